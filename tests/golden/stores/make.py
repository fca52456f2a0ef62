"""`python -m tests.golden.stores.make FOLDER`: write the small store that each format keeps one of.

Run once when a format is new; the folder is never written again. `test_golden_stores` states what is in it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from peeklock.broker.changes import (
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.descriptions import EntityStatus, QueueDescription
from peeklock.broker.message import Message, MessageState
from peeklock.store.base import Batch
from peeklock.store.sqlite import SqliteStore

ORDERS = EntityStored(1, QueueDescription("orders"), 1_700_000_000_000, 1_700_000_000_000)
EVERY_SETTING = EntityStored(
    2,
    QueueDescription(
        "with/every Setting",
        lock_duration_ms=5_000,
        max_size_mb=2048,
        requires_duplicate_detection=True,
        default_ttl_ms=86_400_000,
        dead_lettering_on_expiration=True,
        duplicate_window_ms=60_000,
        max_delivery_count=3,
        enable_batched_operations=False,
        status=EntityStatus.RECEIVE_DISABLED,
        user_metadata="naïve ☃",
        auto_delete_on_idle_ms=3_600_000,
        max_message_size_kb=2048,
    ),
    1_700_000_000_001,
    1_700_000_000_002,
)
DELETED = EntityStored(3, QueueDescription("deleted"), 0, 0)

PAYLOADS = [b"first payload", b"", b"x" * 5000]


def message(position: int, row: int, slot: int, state: MessageState = MessageState.ACTIVE) -> Message:
    made = Message(len(PAYLOADS[slot]), bare_offset=7)
    made.position = made.sequence_number = position
    made.enqueued_at_ms = 1_700_000_000_000 + position
    made.body_row, made.body_slot = row, slot
    made.state = state
    return made


def batches() -> list[Batch]:
    """Give batches with every kind of fact, also ones that later facts replace."""
    plain, gone, scheduled = message(1, 1, 0), message(2, 1, 1), message(3, 1, 2, MessageState.SCHEDULED)
    scheduled.scheduled_at_ms = 1_800_000_000_000
    deferred = message(1, 1, 0, MessageState.DEFERRED)
    deferred.delivery_count = 2
    deferred.ttl_ms = 60_000
    deferred.expires_at_ms = 1_700_000_060_001
    deferred.overlay = b"\xc1\x01\x00"
    dead = message(2, 1, 1)
    dead.position = 1 << 63  # where sequence numbers have rolled over
    dead.sequence_number = 0
    dead.enqueued_sequence_number = 2
    return [
        Batch(41, [ORDERS, EVERY_SETTING, DELETED]),
        Batch(42, [MessageStored(4, m) for m in (plain, gone, scheduled)], {1: PAYLOADS}),
        Batch(43, [MessageIdSeen(8, b"0123456789abcdef", 1_700_000_000_000, 5), NumbersIssued(4, 4, 4, 9)]),
        Batch(
            44,
            [MessageRemoved(4, gone), MessageStored(5, dead), MessageStored(4, deferred)],
            {3: [b"dead row"]},
        ),
        Batch(45, [EntityRemoved(3), NumbersIssued(4, 5, 5, 1_700_000_000_003)], {}, [3], truncate_before=42),
    ]


async def make(folder: Path) -> None:
    store = SqliteStore(folder)
    await store.open()
    for batch in batches():
        await store.commit(batch)
    await store.close()
    (folder / "peeklock.lock").unlink()


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
