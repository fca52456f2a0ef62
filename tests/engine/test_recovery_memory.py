"""What a recovery takes in memory beyond what stays, and what each message then has."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from peeklock.broker.namespace import Namespace
from peeklock.broker.vocabulary.addresses import LockToken, SequenceNumber
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    Change,
    EntityStored,
    MessageRemoved,
    MessageStored,
)
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.engine.bodies import BodyCache
from peeklock.engine.engine import Engine
from peeklock.store.base import Batch
from peeklock.store.memory import MemoryStore
from tests.engine.rig import at_once

COUNT = 50_000
ROW_SLOTS = 200
QUEUE_ID = QUEUES_PER_ENTITY
NOW_MS = 1_700_000_000_000


def messages() -> Iterator[Message]:
    """Yield messages as a queue has them: numbered, of nearly equal sizes, many in a body row."""
    for at in range(COUNT):
        message = Message(1000 + at % 100)
        message.queue_id = QUEUE_ID
        message.position = 1_000_000 + at
        message.sequence_number = message.enqueued_sequence_number = SequenceNumber(message.position)
        message.enqueued_at_ms = NOW_MS + at // 50
        message.body_row, message.body_slot = 1_000_000 + at // ROW_SLOTS, at % ROW_SLOTS
        yield message


def stored(times: int) -> MemoryStore:
    """Return a store that has so many records of each message, and one of a message that is gone."""
    store = MemoryStore()
    at_once(store.open())
    gone = Message(1)
    gone.position = 1
    first: list[Change] = [EntityStored(1, QueueDescription("orders"), NOW_MS, NOW_MS)]
    at_once(store.commit(Batch(1, [*first, MessageStored(QUEUE_ID, gone)])))
    no = 1
    for _ in range(times):
        batch: list[Change] = []
        for message in messages():
            batch.append(MessageStored(QUEUE_ID, message))
            if len(batch) == 1000:
                no += 1
                at_once(store.commit(Batch(no, batch)))
                batch = []
    at_once(store.commit(Batch(no + 1, [MessageRemoved(QUEUE_ID, gone)])))
    return store


@pytest.mark.parametrize("times", [1, 3])
def test_a_recovery_has_one_form_of_each_message_at_a_time(times: int) -> None:
    """Records and the tables that find them go as the messages come. Req: T-08."""
    store = stored(times)
    engine = Engine(
        Namespace(limits=STANDARD, tokens=lambda: LockToken(bytes(16)), digest_key=b"k"), BodyCache()
    )
    tracemalloc.start()
    try:
        at_once(engine.recover(store, NOW_MS))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert engine.ledger.journal.live_messages == COUNT
    assert kept / COUNT < 290
    assert peak / COUNT < 400
    assert engine.bodies.size_bytes == 0
