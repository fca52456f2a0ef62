"""`python -m docs.metrics [--check]`: write the table of docs/reference/metrics.md.

The table in `peeklock.metrics.table` is the source. The text before the mark on the page is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from docs.generated import GeneratedPage
from peeklock.metrics.table import BUILD, METRICS, Metric


def _table() -> Iterator[str]:
    yield "| metric | kind | of an entity | meaning | Azure Monitor | OpenTelemetry |"
    yield "|---|---|---|---|---|---|"
    for metric in METRICS:
        otel = f"`{metric.otel_name}`" if metric.otel_name and metric is not BUILD else ""
        yield (
            f"| {_name(metric)} | {metric.kind} | {_yes(metric)} | {metric.help} | {metric.azure} | {otel} |"
        )


def _name(metric: Metric) -> str:
    labels = f" `{{{', '.join(metric.labels)}}}`" if metric.labels else ""
    return f"`{metric.name}`{labels}"


def _yes(metric: Metric) -> str:
    return "yes" if metric.per_entity else ""


PAGE = GeneratedPage("metrics", _table)

if __name__ == "__main__":
    raise SystemExit(PAGE.main(sys.argv[1:]))
