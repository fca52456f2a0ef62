"""Changes and effects are values: each can be pickled, and none reaches a live object of the broker."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from peeklock.broker.entities.entity import Entity
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue.cursor import Claim
from peeklock.broker.queue.cursors import Cursors
from peeklock.broker.queue.links import Consumer
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Holder, Lock
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary.changes import MessageRemoved, MessageStored, NumbersIssued
from peeklock.broker.vocabulary.effects import Accepted, Deliver, Rejected, Settled, SettlementFailed
from peeklock.broker.vocabulary.message import FIELDS, Message
from peeklock.engine.driver import Commit, Driver, HandOut
from peeklock.engine.engine import Engine
from tests.simulation.plan import run_seed

pytestmark = pytest.mark.simulation

LIVE = (
    Claim, Cursors, Driver, Engine, Entity, Holder, Lock, MessageQueue, Namespace, Outcome, Consumer,
    Shared,
)  # fmt: skip


SEEDS = range(4)


class ValuePickler(pickle.Pickler):
    """Refuses to pickle live objects."""

    def persistent_id(self, obj: object) -> None:
        assert not isinstance(obj, LIVE), f"a {type(obj).__name__} is reached"


def plain(value: Any) -> Any:
    """Return a value in a form that compares by content."""
    if isinstance(value, Message):
        return {name: getattr(value, name) for name in FIELDS if name != "lock"}
    if isinstance(value, BaseException):
        return type(value), str(value)
    if is_dataclass(value):
        return type(value), {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def test_changes_and_effects_of_a_history_can_be_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is pickled as it leaves the driver, and is equal when it comes back."""
    kinds: Counter[type] = Counter()
    step = Driver.step

    def carry(value: Any) -> None:
        buffer = io.BytesIO()
        ValuePickler(buffer).dump(value)
        assert plain(pickle.loads(buffer.getvalue())) == plain(value)
        kinds[type(value)] += 1

    def stepped(self: Driver, *args: Any) -> list[Any]:
        actions = step(self, *args)
        for action in actions:
            if isinstance(action, Commit):
                for change in action.batch.changes:
                    carry(change)
            elif isinstance(action, HandOut):
                for effect in action.effects:
                    carry(effect)
        return actions

    monkeypatch.setattr(Driver, "step", stepped)
    for seed in SEEDS:
        result = run_seed(seed)
        assert result.failure is None, result.failure
    assert {MessageStored, MessageRemoved, NumbersIssued} <= set(kinds)
    assert {Deliver, Accepted, Settled, Rejected, SettlementFailed} <= set(kinds)
