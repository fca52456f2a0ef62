"""The export of metrics and spans by OTLP over HTTP, and what is said when it fails.

The libraries' own variables hold: OTEL_EXPORTER_OTLP_HEADERS, OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME,
OTEL_METRIC_EXPORT_INTERVAL and others. Requests are made in threads, never on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Tracer

from peeklock import __version__
from peeklock.metrics.pages import Figures
from peeklock.server import log
from peeklock.server.otel.points import metrics_data

INTERVAL_VARIABLE = "OTEL_METRIC_EXPORT_INTERVAL"
INTERVAL_MS = 60_000
"""Source: OpenTelemetry's specification of the periodic exporting metric reader."""

STOP_S_MAX = 3.0
"""For the last export. Our choice: a collector that does not answer must not hold up the stop."""

_LIBRARY = logging.getLogger("opentelemetry")


class Telemetry:
    """Exports what one broker does."""

    def __init__(self, url: str, namespace: str, figures: Callable[[], Awaitable[Figures]]) -> None:
        """Export nothing yet; `url` is the collector's, without the paths of the signals."""
        self._namespace = namespace
        self._figures = figures
        self._began_ns = time.time_ns()
        own = Resource({"service.name": "peeklock", "service.version": __version__})
        self._resource = own.merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("peeklock", __version__)
        self._outcome = Outcome(url)
        self._metrics = OTLPMetricExporter(endpoint=f"{url}/v1/metrics")
        # The sender has decided which messages are traced.
        self._spans = TracerProvider(ALWAYS_ON, self._resource, shutdown_on_exit=False)
        exporter = _SpanExporter(OTLPSpanExporter(endpoint=f"{url}/v1/traces"), self._outcome)
        self._spans.add_span_processor(BatchSpanProcessor(exporter))

    @property
    def tracer(self) -> Tracer:
        """What makes spans."""
        return self._spans.get_tracer("peeklock", __version__)

    async def run(self) -> None:
        """Export the metrics at intervals."""
        interval_s = max(1, int(os.environ.get(INTERVAL_VARIABLE) or INTERVAL_MS)) / 1000
        while True:
            await asyncio.sleep(interval_s)
            await _in_daemon(partial(self._export, await self._data()))

    async def stop(self) -> None:
        """Export what is left; wait `STOP_S_MAX` at most."""
        data = await self._data()

        def finish() -> None:
            self._export(data)
            self._spans.shutdown()
            self._metrics.shutdown()

        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_in_daemon(finish), STOP_S_MAX)

    async def _data(self) -> Any:
        figures = await self._figures()
        return metrics_data(
            figures, self._namespace, self._resource, self._scope, self._began_ns, time.time_ns()
        )

    def _export(self, data: Any) -> None:
        self._outcome.take("metrics", self._metrics.export(data) is MetricExportResult.SUCCESS)


def _in_daemon(call: Callable[[], None]) -> asyncio.Future[None]:
    """Call a function in a thread for which the process does not wait at its end; return its outcome."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[None] = loop.create_future()

    def settle(failure: Exception | None) -> None:
        if outcome.done():
            return  # nobody waits any more
        if failure is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(failure)

    def work() -> None:
        failure: Exception | None = None
        try:
            call()
        except Exception as defect:
            failure = defect
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=work, daemon=True).start()
    return outcome


class _SpanExporter(SpanExporter):
    """Exports spans, and tells the outcome."""

    def __init__(self, exporter: SpanExporter, outcome: Outcome) -> None:
        self._exporter = exporter
        self._outcome = outcome

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        self._outcome.take("spans", result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


class Outcome(logging.Handler):
    """Logs when an export begins to fail, with the library's reason, and when it works again."""

    def __init__(self, url: str) -> None:
        """Take the library's log lines from now on."""
        super().__init__(logging.WARNING)
        self._url = url
        self._reason = ""
        self._fails: dict[str, bool] = {}
        _LIBRARY.propagate = False
        _LIBRARY.handlers[:] = [self]

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what the library says; an export that fails says it last."""
        self._reason = record.getMessage()

    def take(self, what: str, succeeded: bool) -> None:
        """Note the outcome of an export of metrics or spans, in any thread."""
        if succeeded == (not self._fails.get(what, False)):
            return
        self._fails[what] = not succeeded
        if succeeded:
            log.info("the export by OTLP works again", {"what": what, "url": self._url})
        else:
            log.warning(
                "the export by OTLP fails",
                {
                    "what": what,
                    "url": self._url,
                    "reason": self._reason,
                    "do": "check --otlp and the collector; what cannot be sent is dropped",
                },
            )
