"""OpenTelemetry: metrics and spans of the broker, exported by OTLP. Needs the extra `otel`.

export   When and how both are sent, and what is said of failures.
spans    The spans of traced messages.
points   The figures of a namespace as OTLP has them.

Nothing here is imported without `--otlp`.
"""
