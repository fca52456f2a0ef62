"""Transactions, states of sessions and message ids with a broker that is killed; and the judge of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kill.bank import Bank, States, Steps, Transfer
from tests.kill.bank_loop import COMMITTED_MIN, STEPS_MIN, STEPS_ROLLED_BACK_MIN, BankLoop
from tests.kill.ledger import Broken

pytestmark = pytest.mark.kill


def test_transfers_are_whole_or_leave_nothing_however_often_the_broker_is_killed(tmp_path: Path) -> None:
    """Notes are taken from some queues and put into others, one of them behind a forward, with an entry in a
    queue of sessions that drops duplicates. The sum stays; entries are in the order of the commits; no number
    is used twice or left out; a state that was set is there. A planner completes, sends, schedules, cancels
    and sets a state in one transaction.

    Req: F-03, R-01, R-02, F-01, G-01, G-03, D-01, S-01, S-06, L-12, C30, C48
    """
    figures = asyncio.run(BankLoop(tmp_path, seed=3, options=("--durability", "fsync")).run(10))
    assert figures["committed"] > COMMITTED_MIN
    assert figures["rolled back"] > 20
    assert figures["unknown and done"] + figures["unknown and undone"] > 0
    assert figures["markers"] > 20
    assert figures["states"] > 200
    assert figures["steps"] > STEPS_MIN
    assert figures["steps rolled back"] > STEPS_ROLLED_BACK_MIN


BEFORE = {"a": [(1, 1)], "b": [(1, 2)]}
AFTER = {"a": [(2, 3)], "b": [(1, 2), (2, 4)]}
"""The content of the accounts before and after the transfer of the tests: (sequence number, uid)."""


class TestBank:
    """The judge itself."""

    @pytest.fixture
    def bank(self) -> Bank:
        """Return a bank with one note in each of two accounts."""
        bank = Bank()
        bank.bring("a", 10)
        bank.bring("b", 10)
        return bank

    @pytest.fixture
    def transfer(self, bank: Bank) -> Transfer:
        """Begin a transfer in which the first note becomes two, 3 and 4."""
        transfer = bank.begin("transferer")
        bank.delivered("a", 1, 1)
        bank.take(transfer, 1)
        bank.put(transfer, "a", 4)
        bank.put(transfer, "b", 6)
        bank.ask(transfer)
        return transfer

    def test_a_transfer_without_an_answer_may_be_done_or_not(self, bank: Bank, transfer: Transfer) -> None:
        assert bank.judge(AFTER, {"transferer": [1]}, [])["unknown and done"] == 1
        assert bank.judge(BEFORE, {"transferer": []}, [])["unknown and undone"] == 1

    def test_a_transfer_that_was_accepted_is_done(self, bank: Bank, transfer: Transfer) -> None:
        bank.answered(transfer, None)
        bank.judge(AFTER, {"transferer": [1]}, [])
        with pytest.raises(Broken, match="0 entries"):
            bank.judge(BEFORE, {"transferer": []}, [])

    def test_a_transfer_that_was_refused_leaves_nothing(self, bank: Bank, transfer: Transfer) -> None:
        bank.answered(transfer, "amqp:transaction:rollback")
        assert bank.judge(BEFORE, {"transferer": []}, [])["refused"] == 1
        with pytest.raises(Broken, match="1 entries"):
            bank.judge(AFTER, {"transferer": [1]}, [])
        with pytest.raises(Broken, match="not done"):
            bank.delivered("b", 4, 2)

    @pytest.mark.parametrize(
        "accounts",
        [
            {"a": [(2, 3)], "b": [(1, 2)]},
            {"a": [(1, 1), (2, 3)], "b": [(1, 2), (2, 4)]},
            {"a": [(2, 3), (3, 3)], "b": [(1, 2), (2, 4)]},
            {"a": [(2, 3)], "b": [(1, 2), (3, 4)]},
            {"a": [(1, 3)], "b": [(1, 2), (2, 4)]},
            {"a": [], "b": [(1, 2), (2, 4), (3, 3)]},
        ],
        ids=["put in part", "not taken", "put twice", "a number left out", "a number again", "elsewhere"],
    )
    def test_half_a_transfer_is_found(
        self, bank: Bank, transfer: Transfer, accounts: dict[str, list[tuple[int, int]]]
    ) -> None:
        with pytest.raises(Broken):
            bank.judge(accounts, {"transferer": [1]}, [])

    def test_a_note_that_was_taken_and_comes_back_is_found(self, bank: Bank, transfer: Transfer) -> None:
        bank.answered(transfer, None)
        with pytest.raises(Broken, match="came back"):
            bank.delivered("a", 1, 1)

    def test_a_note_that_was_taken_twice_is_found(self, bank: Bank, transfer: Transfer) -> None:
        second = bank.begin("transferer")
        bank.take(second, 1)
        bank.put(second, "b", 10)
        bank.ask(second)
        with pytest.raises(Broken, match="taken twice"):
            bank.judge({"a": [(2, 3)], "b": [(1, 2), (2, 4), (3, 5)]}, {"transferer": [1, 2]}, [])

    def test_an_entry_and_its_marker_exclude_each_other(self, bank: Bank, transfer: Transfer) -> None:
        transfer.marked = True
        bank.judge(AFTER, {"transferer": [1]}, [])
        bank.judge(BEFORE, {"transferer": []}, [1])
        for entries, markers in (([1], [1]), ([], [])):
            with pytest.raises(Broken, match="exactly one"):
                bank.judge(AFTER, {"transferer": entries}, markers)

    def test_entries_in_another_order_are_found(self, bank: Bank, transfer: Transfer) -> None:
        bank.ask(bank.begin("transferer"))
        bank.judge(AFTER, {"transferer": [1, 2]}, [])
        with pytest.raises(Broken, match="order"):
            bank.judge(AFTER, {"transferer": [2, 1]}, [])

    def test_a_state_is_one_between_the_last_that_was_set_and_the_last_that_was_asked_for(self) -> None:
        states = States()
        numbers = [states.asking() for _ in range(8)]
        states.answered(numbers[4])
        for state in (b"state 5", b"state 6", None, b"state 8"):
            states.found(state)
        for state in (b"state 4", b"state 9", b""):
            with pytest.raises(Broken, match="number 5 was set"):
                states.found(state)


class TestSteps:
    """The judge of planners."""

    @pytest.fixture
    def steps(self) -> Steps:
        """Return steps of which the first is done, and the commit of the second one requested."""
        steps = Steps()
        steps.planned(4)
        steps.ask(4)
        steps.answered()
        steps.planned(9)
        steps.ask(9)
        return steps

    @pytest.mark.parametrize("done", [1, 2])
    def test_a_step_without_an_answer_may_be_done_or_not(self, steps: Steps, done: int) -> None:
        steps.found(b"step %d" % done)
        steps.judge([done] * 3, [4 if done == 1 else 9], list(range(1, done + 1)), 3)

    @pytest.mark.parametrize("state", [None, b"step 3", b"replaced"])
    def test_another_state_is_found(self, steps: Steps, state: bytes | None) -> None:
        with pytest.raises(Broken, match="the state of a planner"):
            steps.found(state)

    @pytest.mark.parametrize(
        ("tasks", "plans", "entries"),
        [
            ([2, 2], [9], [1, 2]),
            ([2, 1, 2], [9], [1, 2]),
            ([2, 2, 2, 2], [9], [1, 2]),
            ([2, 2, 2], [4], [1, 2]),
            ([2, 2, 2], [4, 9], [1, 2]),
            ([2, 2, 2], [], [1, 2]),
            ([2, 2, 2], [9], [1]),
        ],
    )
    def test_a_step_done_in_part_is_found(
        self, steps: Steps, tasks: list[int], plans: list[int], entries: list[int]
    ) -> None:
        steps.found(b"step 2")
        with pytest.raises(Broken):
            steps.judge(tasks, plans, entries, 3)

    def test_a_number_that_is_answered_twice_is_found(self, steps: Steps) -> None:
        with pytest.raises(Broken, match="answered again"):
            steps.planned(4)
