# The image of peeklock: a broker in place of the Service Bus emulator, and the same for production by settings.
#   docker build -t peeklock .
#   docker run -p 5672:5672 -p 5300:5300 -v peeklock:/data peeklock
# No step depends on the architecture.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/peeklock
RUN /opt/peeklock/bin/python -m pip install --no-cache-dir --disable-pip-version-check ".[otel]"
RUN /opt/peeklock/bin/python -m pip uninstall --yes pip
RUN /opt/peeklock/bin/python -m compileall -q -j 0 /opt/peeklock/lib

FROM python:3.13-slim
LABEL org.opencontainers.image.title="peeklock" \
      org.opencontainers.image.description="A durable, self-hosted message broker that speaks Azure Service Bus" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.springframework.boot.service-connection="azure-messaging/servicebus-emulator"
COPY --from=build /opt/peeklock /opt/peeklock
RUN install -d -o 10001 -g 10001 -m 0700 /data
ENV PATH="/opt/peeklock/bin:$PATH" \
    PYTHONDONTWRITEBYTECODE="1" \
    PYTHONUNBUFFERED="1" \
    PEEKLOCK_EMULATOR="true" \
    PEEKLOCK_AUTH="development" \
    PEEKLOCK_ALLOW_PLAINTEXT="true" \
    PEEKLOCK_HOST="0.0.0.0" \
    PEEKLOCK_DATA="/data"
USER 10001:10001
VOLUME ["/data"]
EXPOSE 5672 5300 80
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s CMD ["/opt/peeklock/bin/peeklock", "health", "--ready"]
ENTRYPOINT ["/opt/peeklock/bin/peeklock"]
CMD ["serve"]
