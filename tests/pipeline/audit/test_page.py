"""docs/reference/audit.md says what the audit says. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

from peeklock.pipeline.audit.checks import OTHERS, RECEIPTS, SENDS, Check

PAGE = (Path(__file__).parents[3] / "docs/reference/audit.md").read_text()


def test_each_check_is_on_the_page_in_order() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| ") and "**" not in line]
    told = [(name.strip(), promise.strip()) for name, promise in rows]
    checks = [(check.title, check.promise) for check in Check]
    assert [row for row in told if row in checks] == checks


def test_each_action_of_a_ledger_is_on_the_page() -> None:
    for action in (*SENDS, *RECEIPTS, *OTHERS):
        assert f"`{action}`" in PAGE
