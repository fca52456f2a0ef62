"""docs/reference/audit.md says what the audit checks, and why it does not check the rest. Needs no Spark."""

from __future__ import annotations

from docs.audit import PAGE, REQUIREMENTS
from peeklock.pipeline.audit.checks import OTHERS, RECEIPTS, SENDS, Check
from peeklock.pipeline.audit.promises import FAMILIES, PROMISES

TEXT = PAGE.file.read_text(encoding="utf-8")


def test_the_page_is_current() -> None:
    assert PAGE.written(TEXT) == TEXT, "run python -m docs.audit"


def test_each_check_keeps_a_promise() -> None:
    assert {check for promise in PROMISES for check in promise.checks} == set(Check)


def test_each_requirement_of_messages_has_its_checks_or_the_reason_why_there_is_none() -> None:
    """Req: X-04"""
    told = [promise.requirement for promise in PROMISES]
    assert len(told) == len(set(told))
    assert {name for name in REQUIREMENTS if name.split("-")[0] in FAMILIES} <= set(told) <= set(REQUIREMENTS)
    assert [promise.requirement for promise in PROMISES if not promise.checks and not promise.reason] == []


def test_each_action_of_a_ledger_is_on_the_page() -> None:
    for action in (*SENDS, *RECEIPTS, *OTHERS):
        assert f"`{action}`" in TEXT
