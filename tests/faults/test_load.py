"""What the ledger of the matrix notices beside that of the kill loops."""

from __future__ import annotations

import pytest

from tests.faults.load import Deliveries, Timed, gap_s
from tests.kill.ledger import Broken


def test_a_completion_by_a_lock_that_another_delivery_has_ended_is_found() -> None:
    ledger = Timed()
    completions = Deliveries(ledger)
    uid = ledger.sending()
    ledger.answered(uid, None)
    first = ledger.note(uid, 1)
    ledger.note(uid, 1)
    completions.completing(first)
    with pytest.raises(Broken, match="two held a lock"):
        completions.completed(first)


def test_an_answer_that_was_under_way_before_the_next_delivery_is_right() -> None:
    ledger = Timed()
    completions = Deliveries(ledger)
    uid = ledger.sending()
    first = ledger.note(uid, 1)
    ledger.asking(first)
    second = ledger.note(uid, 1)
    ledger.allowed(first, "renewal")
    completions.completing(second)
    completions.completed(second)
    assert len(ledger.completions_s) == 1


def test_a_gap() -> None:
    assert gap_s([1.0, 2.0, 6.0, 7.0], 5.0) == 4.0
    assert gap_s([], 5.0) == 0.0
