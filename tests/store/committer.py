"""`python -m tests.store.committer FOLDER`: commits batch after batch and prints the number of each when it
is durable.

The victim of the kill tests. Batch `no` has `RECORDS` messages with payloads that tell the batch and the
slot.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from peeklock.broker.vocabulary.changes import Change, MessageStored
from peeklock.broker.vocabulary.message import Message
from peeklock.store.base import Batch
from peeklock.store.sqlite.store import SqliteStore

QUEUE_ID = 4
RECORDS = 20


def payload(no: int, slot: int) -> bytes:
    return b"batch %d slot %d " % (no, slot) * 30


def batch(no: int) -> Batch:
    changes: list[Change] = []
    for slot in range(RECORDS):
        message = Message(1)
        message.position = no * RECORDS + slot
        message.body_row, message.body_slot = no, slot
        changes.append(MessageStored(QUEUE_ID, message))
    return Batch(no, changes, {no: [payload(no, slot) for slot in range(RECORDS)]})


async def main(folder: Path) -> None:
    store = SqliteStore(folder)
    await store.open()
    live = await store.load_live()
    no = live.first_no + len(live.frame_sizes)
    while True:
        await store.commit(batch(no))
        print(no, flush=True)
        no += 1


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
