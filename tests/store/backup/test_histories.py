"""Random histories of the core: what a store has is what a store made of its back-ups has, but for the
numbers, which skip ahead; and the broker goes on with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, CursorStored
from peeklock.broker.vocabulary.message import FIELDS
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.store.backup.restoring import SKIPPED_BATCHES, SKIPPED_NUMBERS
from peeklock.store.backup.verifying import Backup
from peeklock.store.memory import MemoryStore
from tests.broker.histories import Scene
from tests.broker.test_histories import SMALL
from tests.engine.rig import at_once
from tests.store.backup.files import back_up, restore

PLACES = ("lock", "routing", "journal_no")


class History(Scene):
    """A history that anybody may interrupt; it asserts nothing by itself."""

    def make_namespace(self) -> Namespace:
        return Namespace(
            limits=STANDARD,
            tokens=lambda: LockToken(next(self.counter).to_bytes(16, "big")),
            digest_key=b"key",
            first_sequence_number=self.first,
        )

    def restart(self) -> None:
        self.begin()
        if self.random.random() < 0.7:
            self.finish()
        self.store.crash()
        self.now_ms += self.random.choice([0, 1_000, 30_000])
        self.start()

    def snapshot(self) -> None:
        """Nothing is looked at."""

    def go_on_with(self, store: MemoryStore) -> None:
        """Start again with another store."""
        self.store = store
        self.start()

    def highest(self) -> dict[int, int]:
        """Return the next position of each queue."""
        return {queue.queue_id: queue.next_position for queue in self.queues()}


def facts(store: MemoryStore, skipped: int) -> Any:
    """Return all facts of a store, with the bodies; numbers that were skipped are taken back by `skipped`."""
    found = at_once(store.load_definitions())
    known = {entity.entity_id for entity in found.entities}
    live = at_once(store.load_live())
    fields = [name for name in FIELDS if name not in PLACES]
    messages = {}
    for queue_id, stored in live.messages:
        for change in stored if queue_id // QUEUES_PER_ENTITY in known else ():
            message = change.message
            body = at_once(store.read_body_rows([message.body_row]))[message.body_row][message.body_slot]
            key = queue_id, message.position
            messages[key] = [getattr(message, name) for name in fields], body
    numbers = {
        each.queue_id: (each.next_position - skipped, each.last_enqueued_at_ms)
        for _, each in live.numbers
        if each.queue_id // QUEUES_PER_ENTITY in known and each.next_position - skipped > 1
    }
    ids = {
        (seen.queue_id, seen.digest): seen for seen in live.ids if seen.queue_id // QUEUES_PER_ENTITY in known
    }
    cursors = [_before(each, skipped) for each in found.cursors]
    return found.entities, found.rules, cursors, found.claims, messages, numbers, ids


def _before(cursor: CursorStored, skipped: int) -> CursorStored:
    return replace(cursor, last_no=cursor.last_no - skipped, undone=None)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(f"peeklock.{name}", value)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("topics", [False, True])
@pytest.mark.parametrize("seed", range(15))
def test_a_restored_store_has_the_same_facts_and_goes_on(tmp_path: Path, seed: int, topics: bool) -> None:
    """Full back-ups and increments at random moments, restarts between them. Req: R-07."""
    history = History(seed, topics=topics)
    random = Random(seed)
    chain: list[Backup] = []
    restores = 0
    for _ in range(8):
        for _ in range(random.randint(1, 120)):
            history.step()
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.backup"
        since = chain[-1] if chain and random.random() < 0.8 else None
        made = back_up(history.store.reader(), path, since)
        is_full = not next(iter(made.stores.values())).head.after_no
        chain = [made] if is_full else [*chain, made]
        if since is not None and is_full:
            made.header = replace(made.header, follows=None)  # it needs no other
        store = MemoryStore()
        restored = restore(chain, store.filler())
        assert facts(store, SKIPPED_NUMBERS) == facts(history.store, 0)
        assert restored.first_no >= restored.last_no + SKIPPED_BATCHES
        assert at_once(store.load_live()).first_no == restored.last_no + SKIPPED_BATCHES
        if random.random() < 0.3:
            history.finish()
            was = history.highest()
            history.go_on_with(store)
            now = history.highest()
            again = [q for q in now if q in was and history.first <= now[q] < was[q]]
            assert not again, "their numbers would be used again"
            restores += 1
    history.restart()
    assert at_once(history.store.load_live()).first_no > restores * SKIPPED_BATCHES
