"""The text formats of Prometheus and OpenMetrics, which differ here in the heads and the end alone.

Our own writer, because 120,000 series have to be written in slices between other turns of the event loop, and
prometheus-client writes a page in one call at some 5 us a series. Its parsers check this one in tests.
Source: Prometheus text format 0.0.4, OpenMetrics 1.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import accumulate

from peeklock.metrics.histogram import Histogram
from peeklock.metrics.table import Metric


class Format(Enum):
    """A format, by its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @classmethod
    def accepted(cls, accept: str) -> Format:
        """Return the format for the value of an Accept header."""
        return cls.OPENMETRICS if "application/openmetrics-text" in accept.lower() else cls.TEXT

    @property
    def end(self) -> str:
        """What ends a page."""
        return "# EOF\n" if self is Format.OPENMETRICS else ""


def head(metric: Metric, form: Format) -> str:
    """Return the lines before the series of a metric."""
    name = metric.name
    if form is Format.OPENMETRICS and metric.kind == "counter":
        name = name.removesuffix("_total")
    return f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n"


def prefix(name: str, labels: Mapping[str, str]) -> str:
    """Return the beginning of a line, to which the number is added."""
    shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    return f"{name}{{{shown}}} "


def histogram_lines(metric: Metric, labels: Mapping[str, str], histogram: Histogram) -> Iterator[str]:
    """Yield the lines of a histogram."""
    totals = [*accumulate(histogram.counts)]
    bounds = [*map(repr, histogram.bounds), "+Inf"]
    for bound, total in zip(bounds, totals, strict=True):
        yield f"{prefix(f'{metric.name}_bucket', {**labels, 'le': bound})}{total}\n"
    yield f"{prefix(f'{metric.name}_sum', labels)}{histogram.sum!r}\n"
    yield f"{prefix(f'{metric.name}_count', labels)}{totals[-1]}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
