"""The facts of the process: whole commits, their numbers, restarts, kills, failures."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.changes import FactStored
from peeklock.server.system.store import SystemStore
from peeklock.store.base import Batch, StoreDamaged, StoreFailed, StoreInUse
from peeklock.store.check import SOUND, check
from peeklock.store.memory import MemoryStore
from peeklock.store.sqlite.store import SqliteStore
from peeklock.testing.faults import Fault, FaultyStore
from tests.server.system.asking import as_killed_now, opened

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def frames_in(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "peeklock.db")) as db:
        return [no for (no,) in db.execute("SELECT no FROM journal ORDER BY no")]


def contents(system: SystemStore) -> dict[str, Any]:
    return {key: system.get(key) for key in system.keys_below("")}


def test_facts_are_there_after_a_restart_and_batch_numbers_go_on(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as system:
            assert contents(system) == {}
            await system.put({"b": [1, {"x": "☃"}], "a/2": 2, "a/1": False})
            await system.put({"b": "new", "a/2": None, "never there": None})
        assert frames_in(tmp_path) == [2]
        async with opened(tmp_path) as system:
            assert contents(system) == {"a/1": False, "b": "new"}
            await system.put({"a/3": 3})
            assert system.keys_below("a/") == ["a/1", "a/3"]
            assert system.keys_below("a0") == system.keys_below("c") == []
            assert system.get("a/2") is None
        assert frames_in(tmp_path) == [3]
        assert check(tmp_path).exit_status == SOUND

    asyncio.run(test())


def test_a_kill_after_any_commit_leaves_what_was_committed(tmp_path: Path) -> None:
    """Req: R-02."""
    data = tmp_path / "data"

    async def test() -> None:
        expected = []
        async with opened(data) as system:
            for number in range(1, 5):
                await system.put({"n": number, f"key/{number}": number, f"key/{number - 1}": None})
                expected.append(contents(system))
                as_killed_now(data, tmp_path / str(number))
        for number, facts in enumerate(expected, 1):
            async with opened(tmp_path / str(number)) as system:
                assert contents(system) == facts
                assert facts == {"n": number, f"key/{number}": number}
                await system.put({"again": True})
            async with opened(tmp_path / str(number)) as system:
                assert contents(system) == {**facts, "again": True}

    asyncio.run(test())


def test_the_journal_does_not_grow(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(tmp_path) as system:
            for number in range(50):
                await system.put({"n": number})
                assert len(frames_in(tmp_path)) == 1

    asyncio.run(test())


def test_values_show_only_when_they_are_durable() -> None:
    async def test() -> None:
        committing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store = _Waiting(committing)
        system = await SystemStore.open(store)
        putting = asyncio.ensure_future(system.put({"a": 1}))
        await store.asked.wait()
        assert system.get("a") is None
        committing.set_result(None)
        await putting
        assert system.get("a") == 1

    asyncio.run(test())


def test_a_cancelled_put_goes_on_to_its_end() -> None:
    """The commit may be durable already: what shows would differ from what is stored."""

    async def test() -> None:
        committing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store = _Waiting(committing)
        system = await SystemStore.open(store)
        said: list[Any] = []
        putting = asyncio.ensure_future(system.change(lambda: {"a": 1}, lambda: said.append(system.get("a"))))
        await store.asked.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert system.get("a") is None
        committing.set_result(None)
        await system.close()  # waits for it
        assert said == [1]
        assert (await store.load_definitions()).facts == {"a": "1"}

    asyncio.run(test())


def test_changes_at_the_same_time_see_each_other() -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        await system.put({"n": 0})
        await asyncio.gather(*(system.change(lambda: {"n": system.get("n") + 1}) for _ in range(20)))
        assert system.get("n") == 20
        await system.close()

    asyncio.run(test())


@pytest.mark.parametrize("fault", Fault)
def test_a_failed_commit_shows_nothing_and_ends_the_writing(fault: Fault) -> None:
    """Only the next start knows what is durable."""

    async def test() -> None:
        inner = MemoryStore()
        store = FaultyStore(inner)
        system = await SystemStore.open(store)
        await system.put({"a": 1, "b": 1})
        store.fault = lambda batch: fault
        with pytest.raises(StoreFailed):
            await system.put({"a": 2, "b": None})
        store.fault = lambda batch: None
        assert contents(system) == {"a": 1, "b": 1}
        with pytest.raises(StoreFailed, match="cannot be changed"):
            await system.put({"a": 3})
        await system.close()
        system = await SystemStore.open(inner)
        assert contents(system) == ({"a": 2} if fault is Fault.AFTER else {"a": 1, "b": 1})
        await system.put({"a": 3})
        assert system.get("a") == 3

    asyncio.run(test())


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), object()])
def test_what_json_cannot_hold_is_refused_and_changes_nothing(value: object) -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        await system.put({"a": 1})
        with pytest.raises((TypeError, ValueError)):
            await system.put({"a": 2, "b": value})
        with pytest.raises(ValueError, match="surrogates not allowed"):
            await system.put({"a": 2, "\ud800": 1})
        assert contents(system) == {"a": 1}
        await system.put({"a": 3})
        assert contents(system) == {"a": 3}

    asyncio.run(test())


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4), max_size=6))
def test_the_last_value_of_a_key_holds_over_restarts(puts: list[dict[str, Any]]) -> None:
    """Half a surrogate pair, which JSON allows, included."""

    async def test() -> None:
        store = MemoryStore()
        expected: dict[str, Any] = {}
        for values in puts:
            system = await SystemStore.open(store)
            await system.put(values)
            await system.close()
            expected |= values
            expected = {key: value for key, value in expected.items() if value is not None}
            assert contents(await SystemStore.open(store)) == expected

    asyncio.run(test())


def test_half_a_surrogate_pair_comes_back(tmp_path: Path) -> None:
    async def test() -> None:
        value = json.loads('"\\ud800"')
        async with opened(tmp_path) as system:
            await system.put({"a": value})
        async with opened(tmp_path) as system:
            assert system.get("a") == value

    asyncio.run(test())


def test_a_value_is_the_reader_s_own() -> None:
    async def test() -> None:
        system = await SystemStore.open(MemoryStore())
        await system.put({"a": [1]})
        system.get("a").append(2)
        assert system.get("a") == [1]

    asyncio.run(test())


def test_a_fact_that_is_not_json_is_named_at_the_start(tmp_path: Path) -> None:
    """Req: R-03. The folder is free again."""

    async def test() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        await store.commit(Batch(1, [FactStored("a", "{")]))
        with pytest.raises(StoreInUse):
            await SystemStore.open(SqliteStore(tmp_path))
        await store.close()
        for _ in range(2):
            with pytest.raises(StoreDamaged, match="the fact a of the process is not JSON"):
                await SystemStore.open(SqliteStore(tmp_path))

    asyncio.run(test())


class _Waiting(MemoryStore):
    """A store whose commits wait for a future."""

    def __init__(self, until: asyncio.Future[None]) -> None:
        super().__init__()
        self._until = until
        self.asked = asyncio.Event()

    async def commit(self, batch: Batch) -> int:
        self.asked.set()
        await self._until
        return await super().commit(batch)
