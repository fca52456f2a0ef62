"""Deferred and scheduled messages, removed by their numbers."""

from __future__ import annotations

from typing import Any

from peeklock.jobs.operations import Done, Message, Operation, Peek, Remove
from peeklock.jobs.plan import Plan
from peeklock.jobs.survey import Snapshot
from peeklock.jobs.sweep import Sweep
from peeklock.search import Criteria, MessageState
from tests.jobs.model import message

DEFERRED, SCHEDULED = MessageState.DEFERRED, MessageState.SCHEDULED


def purge(**criteria: Any) -> Plan:
    return Plan(work="purge", namespace="here", source="a", criteria=Criteria(**criteria))


def page(*messages: bytes) -> tuple[Message, ...]:
    return tuple(Message(b"", payload) for payload in messages)


def test_each_state_and_session_of_a_page_is_removed_by_itself() -> None:
    sweep = Sweep(purge(text="x"), Snapshot({0: 9}), by_session=True)
    assert sweep.start() == Peek(0)
    found = page(
        message(1, "x", session="a", state=1),
        message(2, "x", session="b", state=1),
        message(3, "x", session="a"),
        message(4, "x", session="a", state=2),
        message(5, "y", session="a", state=1),
        message(6, "x", session="a", state=1),
    )
    asked: list[Operation] = [sweep.step(found)]
    asked += [sweep.step(frozenset()), sweep.step(frozenset({2}))]
    assert asked == [
        Remove(DEFERRED, (1, 6), "a"),
        Remove(DEFERRED, (2,), "b"),
        Remove(SCHEDULED, (4,), None),
    ]
    assert sweep.step(frozenset()) == Peek(7)
    assert sweep.step(()) == Done()
    assert (sweep.done, sweep.left) == (3, 1)


def test_what_came_later_stays() -> None:
    sweep = Sweep(purge(), Snapshot({0: 2}), by_session=False)
    sweep.start()
    found = page(message(1, "x", state=1), message(3, "x", state=1))
    assert sweep.step(found) == Remove(DEFERRED, (1,), None)
    assert sweep.step(frozenset()) == Done()


def test_it_stops_after_what_is_under_way() -> None:
    sweep = Sweep(purge(), Snapshot({0: 9}), by_session=False)
    sweep.start()
    assert isinstance(sweep.step(page(message(1, "x", state=2))), Remove)
    sweep.stop()
    assert sweep.step(frozenset()) == Done()
    assert sweep.done == 1
