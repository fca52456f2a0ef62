"""docs/reference/metrics.md is what the table of metrics says."""

from __future__ import annotations

from docs.metrics import PAGE


def test_the_page_is_current() -> None:
    text = PAGE.file.read_text()
    assert text == PAGE.written(text), "run python -m docs.metrics"
