"""docs/reference/metrics.md is what the table of metrics says."""

from __future__ import annotations

from docs import metrics as page


def test_the_page_is_current() -> None:
    assert page.PAGE.read_text() == page.written(page.PAGE.read_text()), "run python -m docs.metrics"
