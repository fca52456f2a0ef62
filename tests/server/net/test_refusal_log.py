"""How many lines refusals over HTTP may fill."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from peeklock.server.line_limits import CONNECTION_LINES_MAX, REFUSAL_LINES_MAX, WINDOW_MS, RefusalLog


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "peeklock")

    def taken() -> list[tuple[str, Any]]:
        records: list[Any] = list(caplog.records)
        caplog.clear()
        return [(record.getMessage(), record.fields) for record in records]

    return taken


def test_a_connection_that_is_refused_again_and_again_fills_a_few_lines_and_one_that_counts(
    lines: Any,
) -> None:
    """Req: R-05. Others have theirs."""
    now = 1_000
    refusals = RefusalLog(lambda: now)
    noisy, quiet = refusals.of_connection(), refusals.of_connection()
    for number in range(CONNECTION_LINES_MAX + 5):
        noisy("refused", {"n": number})
    quiet("refused", {"n": -1})
    assert lines() == [("refused", {"n": n}) for n in (*range(CONNECTION_LINES_MAX), -1)]
    refusals.tick(now + WINDOW_MS - 1)
    assert lines() == []
    now += WINDOW_MS
    refusals.tick(now)
    assert lines() == [("lines about refused requests left out", {"count": 5})]
    noisy("refused", {"n": 7})
    assert lines() == [("refused", {"n": 7})]
    refusals.finish()
    assert lines() == []


def test_many_connections_that_are_refused_once_each_do_not_bury_the_log(lines: Any) -> None:
    """Req: R-05."""
    refusals = RefusalLog(lambda: 1_000)
    for number in range(REFUSAL_LINES_MAX + 3):
        refusals.of_connection()("refused", {"n": number})
    refusals.finish()
    found = lines()
    assert len(found) == REFUSAL_LINES_MAX + 1
    assert found[-1] == ("lines about refused requests left out", {"count": 3})
