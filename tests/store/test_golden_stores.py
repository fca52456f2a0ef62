"""Stores that earlier releases wrote are still read: one small one of each format."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from peeklock.broker.changes import MessageIdSeen, NumbersIssued
from peeklock.broker.message import MessageState
from peeklock.store.base import Batch
from peeklock.store.check import SOUND, check
from peeklock.store.sqlite import FORMAT, SqliteStore
from tests.golden.stores.make import EVERY_SETTING, ORDERS, PAYLOADS

GOLDEN = Path(__file__).parent.parent / "golden" / "stores"


def test_every_format_that_is_read_has_its_store() -> None:
    """Req: R-07."""
    found = sorted(int(folder.name.removeprefix("format-")) for folder in GOLDEN.glob("format-*"))
    assert found == list(range(1, FORMAT + 1))


@pytest.mark.parametrize("number", range(1, FORMAT + 1))
def test_a_store_of_each_format_gives_all_its_facts(number: int, tmp_path: Path) -> None:
    """Req: R-07."""
    folder = tmp_path / "data"
    shutil.copytree(GOLDEN / f"format-{number}", folder)
    assert check(folder).exit_status == SOUND
    asyncio.run(reads_all(folder))


async def reads_all(folder: Path) -> None:
    store = SqliteStore(folder)
    await store.open()
    assert await store.load_entities() == ([ORDERS, EVERY_SETTING], 4)
    live = await store.load_live()
    assert (live.first_no, len(live.frame_sizes)) == (42, 4)
    messages = {(q, c.message.position): c.message for q, changes in live.messages for c in changes}
    assert sorted(messages) == [(4, 1), (4, 3), (5, 1 << 63)]
    deferred, scheduled, dead = messages[4, 1], messages[4, 3], messages[5, 1 << 63]
    assert (deferred.state, deferred.delivery_count, deferred.overlay) == (
        MessageState.DEFERRED,
        2,
        b"\xc1\x01\x00",
    )
    assert (deferred.ttl_ms, deferred.expires_at_ms, deferred.scheduled_at_ms) == (
        60_000,
        1_700_000_060_001,
        None,
    )
    assert (deferred.sequence_number, deferred.journal_no, deferred.bare_offset) == (1, 44, 7)
    assert (scheduled.state, scheduled.scheduled_at_ms) == (MessageState.SCHEDULED, 1_800_000_000_000)
    assert (scheduled.enqueued_at_ms, scheduled.journal_no) == (1_700_000_000_003, 42)
    assert (dead.sequence_number, dead.enqueued_sequence_number, dead.size_bytes) == (0, 2, 0)
    assert [(m.body_row, m.body_slot) for m in (deferred, scheduled, dead)] == [(1, 0), (1, 2), (1, 1)]
    assert live.numbers == [(45, NumbersIssued(4, 5, 5, 1_700_000_000_003))]
    assert live.ids == [MessageIdSeen(8, b"0123456789abcdef", 1_700_000_000_000, 5)]
    assert [row for row, _ in await store.list_body_rows(0, 10)] == [1]
    assert await store.read_body_rows([1]) == {1: PAYLOADS}
    await store.commit(Batch(46, []))
    await store.close()
