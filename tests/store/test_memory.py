"""What the memory store has beyond the contract: a crash."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from peeklock.broker.vocabulary.changes import FactRemoved, FactStored, MessageStored
from peeklock.broker.vocabulary.message import Message
from peeklock.store.base import Batch
from peeklock.store.memory import MemoryStore

T = TypeVar("T")


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run what must not suspend, as a simulator does."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it suspended")


def batch(no: int) -> Batch:
    message = Message(4)
    message.position = no
    message.body_row = no
    return Batch(no, [MessageStored(4, message)], {no: [b"body"]})


def test_a_crash_loses_what_was_staged_and_nothing_else() -> None:
    """Req: R-02."""
    store = MemoryStore()
    at_once(store.open())
    store.stage(batch(1))
    store.flush()
    store.stage(batch(2))
    store.crash()
    store.flush()
    live = at_once(store.load_live())
    assert [c.message.position for _, changes in live.messages for c in changes] == [1]
    assert at_once(store.last_body_row()) == 1
    store.stage(batch(2))
    store.stage(batch(3))
    store.flush()
    assert at_once(store.last_body_row()) == 3
    assert len(at_once(store.load_live()).frame_sizes) == 3  # in a chain


def test_a_crash_loses_the_facts_of_staged_batches_together() -> None:
    """Req: R-02."""
    store = MemoryStore()
    at_once(store.commit(Batch(1, [FactStored("a", "1"), FactStored("b", "1")])))  # type: ignore[arg-type]  # a coroutine here
    store.stage(Batch(2, [FactStored("a", "2"), FactRemoved("b"), FactStored("c", "2")]))
    assert at_once(store.load_definitions()).facts == {"a": "1", "b": "1"}
    store.crash()
    store.flush()
    assert at_once(store.load_definitions()).facts == {"a": "1", "b": "1"}
    store.stage(Batch(2, [FactStored("a", "2"), FactRemoved("b"), FactStored("c", "2")]))
    store.flush()
    assert at_once(store.load_definitions()).facts == {"a": "2", "c": "2"}


def test_nothing_suspends() -> None:
    """A simulator has no event loop."""
    store = MemoryStore()
    for coroutine in (
        store.open(),
        store.load_definitions(),
        store.load_live(),
        store.read_head(1),
    ):
        at_once(coroutine)
    committing = store.commit(batch(1))
    assert isinstance(committing, Coroutine)
    assert at_once(committing) > 0
    assert at_once(store.read_body_rows([1])) == {1: [b"body"]}
    at_once(store.close())
