"""The faulty store: a failed commit is wholly there or not at all."""

from __future__ import annotations

import asyncio

import pytest

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import NumbersIssued
from peeklock.store.base import Batch, StoreFailed
from peeklock.store.memory import MemoryStore
from peeklock.testing.faults import Fault, FaultyStore


def batch(no: int) -> Batch:
    return Batch(no, [NumbersIssued(4, no + 1, SequenceNumber(no + 1), 0)], {no: [b"body"]})


async def frames(store: FaultyStore) -> list[int]:
    return [frame.no async for frame in store.load()]


def test_commits_pass_unless_picked() -> None:
    async def run() -> None:
        store = FaultyStore(MemoryStore(), fault=lambda b: Fault.BEFORE if b.no == 2 else None)
        assert await store.commit(batch(1)) > 0
        with pytest.raises(StoreFailed, match="commit 2"):
            await store.commit(batch(2))
        assert await frames(store) == [1]

    asyncio.run(run())


def test_a_fault_after_leaves_the_batch_stored() -> None:
    async def run() -> None:
        store = FaultyStore(MemoryStore(), fault=lambda b: Fault.AFTER)
        with pytest.raises(StoreFailed):
            await store.commit(batch(1))
        assert await frames(store) == [1]
        assert await store.read_body_rows([1]) == {1: [b"body"]}
        assert await store.last_body_row() == 1
        assert len(await store.list_body_rows(0, 10)) == 1
        assert (await store.load_live()).numbers == [(1, NumbersIssued(4, 2, SequenceNumber(2), 0))]

    asyncio.run(run())


def test_free_space_is_what_is_set() -> None:
    async def run() -> None:
        store = FaultyStore(MemoryStore())
        await store.open()
        assert store.free_bytes() is None
        store.free = 17
        assert store.free_bytes() == 17
        await store.close()

    asyncio.run(run())
