"""Who writes to a record that changes, effects, the core and the engine share."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from peeklock.broker.vocabulary.message import WRITERS, Message
from tests.broker.test_histories import SMALL, History

ENGINE_FIELDS = {field for field, room in WRITERS.items() if room == "engine"}
RESTORING = {"peeklock.store.encoding.frames", "peeklock.store.encoding.records", "peeklock.broker.recovery"}
"""They make a record from a frame before anything else has it."""

SEEDS = range(12)
STEPS = 300


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Hold each write to the table; count the engine's, and those to a record that a change has named."""
    counts: Counter[tuple[str, str]] = Counter()

    def check(self: Message, name: str, value: object) -> None:
        module = sys._getframe(1).f_globals["__name__"]
        room = module.split(".")[1] if module.startswith("peeklock.") else module
        named = getattr(self, "journal_no", 0) != 0 and module not in RESTORING
        if room == "engine":
            assert name in ENGINE_FIELDS, f"{module} writes {name}"
        elif room == "broker":
            assert not named or WRITERS.get(name) == "broker", f"{module} writes {name} of a named record"
        else:
            assert not named, f"{module} writes {name} of a named record"
        if named or room == "engine":
            counts[name, room] += 1
        object.__setattr__(self, name, value)

    monkeypatch.setattr(Message, "__setattr__", check, raising=False)
    return counts


def test_each_field_of_a_named_record_has_one_writer(
    written: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(f"peeklock.{name}", value)
    for seed in SEEDS:
        history = History(seed, topics=seed % 2 == 1)
        for _ in range(STEPS):
            history.step()
    unused = {field for field, room in WRITERS.items() if not written[field, room]}
    assert unused <= {"bare_offset"}  # of a damaged body: tests/server/test_lost_bodies.py
