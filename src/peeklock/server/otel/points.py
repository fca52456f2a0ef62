"""The figures of a namespace as OTLP has them. The table of `metrics` says what there is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from peeklock.metrics import histogram, table
from peeklock.metrics.pages import Figures, series_of

_ATTRIBUTES = {
    "cursor": "peeklock.cursor",
    "entity": "messaging.destination.name",
    "operation": "messaging.operation.name",
    "reason": "peeklock.reason",
    "state": "peeklock.state",
    "status": "peeklock.status",
}
"""By label."""

_CUMULATIVE = AggregationTemporality.CUMULATIVE


def metrics_data(
    figures: Figures,
    namespace: str,
    resource: Resource,
    scope: InstrumentationScope,
    began_ns: int,
    now_ns: int,
) -> MetricsData:
    """Return all metrics of a namespace.

    Args:
        figures: what it shows now.
        namespace: its name.
        resource: what sends them.
        scope: which part of it.
        began_ns: since when counters count, UTC ns.
        now_ns: UTC ns.
    """
    own = {"messaging.system": "servicebus", "peeklock.namespace": namespace}
    metrics = [
        found
        for metric in table.METRICS
        if metric.otel_name and metric is not table.BUILD  # the resource says the same
        for found in [_metric(metric, own, figures, began_ns, now_ns)]
        if found.data.data_points
    ]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _metric(
    metric: table.Metric, own: Mapping[str, str], figures: Figures, began_ns: int, now_ns: int
) -> Metric:
    numbers: list[NumberDataPoint] = []
    histograms: list[HistogramDataPoint] = []
    for labels, value in series_of(metric, figures):
        attributes = {**own, **{_ATTRIBUTES[label]: text for label, text in labels.items()}}
        if isinstance(value, histogram.Histogram):
            histograms.append(_point(value, attributes, began_ns, now_ns))
        else:
            numbers.append(NumberDataPoint(attributes, began_ns, now_ns, value))
    data: Sum | Gauge | Histogram
    if metric.kind == "histogram":
        data = Histogram(histograms, _CUMULATIVE)
    elif metric.kind == "counter":
        data = Sum(numbers, _CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(numbers)
    return Metric(metric.otel_name, metric.help, metric.otel_unit, data)


def _point(
    value: histogram.Histogram, attributes: Mapping[str, str], began_ns: int, now_ns: int
) -> HistogramDataPoint:
    """Return a histogram. The least and the greatest observation are not known, and left out."""
    unknown: Any = None
    return HistogramDataPoint(
        attributes,
        began_ns,
        now_ns,
        count=sum(value.counts),
        sum=value.sum,
        bucket_counts=[*value.counts],
        explicit_bounds=value.bounds,
        min=unknown,
        max=unknown,
    )
