"""`python -m docs.metrics [--check]`: write the table of docs/reference/metrics.md.

The table in `peeklock.metrics.table` is the source. The text before the mark on the page is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from peeklock.metrics.table import METRICS, Metric

PAGE = Path(__file__).with_name("reference") / "metrics.md"
MARK = "<!-- From here on written by `python -m docs.metrics`. -->\n"


def written(page: str) -> str:
    """Return the page with a current table."""
    return page.partition(MARK)[0] + MARK + "\n" + "\n".join(_table()) + "\n"


def _table() -> Iterator[str]:
    yield "| metric | kind | of an entity | meaning | Azure Monitor |"
    yield "|---|---|---|---|---|"
    for metric in METRICS:
        yield f"| {_name(metric)} | {metric.kind} | {_yes(metric)} | {metric.help} | {metric.azure} |"


def _name(metric: Metric) -> str:
    labels = f" `{{{', '.join(metric.labels)}}}`" if metric.labels else ""
    return f"`{metric.name}`{labels}"


def _yes(metric: Metric) -> str:
    return "yes" if metric.per_entity else ""


def main(arguments: list[str]) -> int:
    """Write the page; with `--check`, return 1 if it is not current."""
    page = PAGE.read_text(encoding="utf-8")
    current = written(page)
    if arguments == ["--check"]:
        return int(page != current)
    PAGE.write_text(current, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
