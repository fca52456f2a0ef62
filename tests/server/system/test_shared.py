"""The facts of a cluster, in a store that is opened for each change."""

from __future__ import annotations

import asyncio
from pathlib import Path

from peeklock.cluster.key import ClusterKey
from peeklock.server.system.sealing import Sealing
from peeklock.server.system.shared import SharedSystemStore
from peeklock.store.base import StoreFailed
from peeklock.store.sqlite.store import SqliteStore


def test_a_change_is_made_also_where_nobody_can_be_told(tmp_path: Path) -> None:
    """The others look without being told."""

    def tell() -> None:
        raise StoreFailed("the database cannot be reached")

    async def check() -> None:
        sealing = Sealing(ClusterKey(b"a" * 32))
        system = await SharedSystemStore.open_shared(lambda: SqliteStore(tmp_path), sealing, tell)
        shown = []
        await system.change(lambda: {"one": 1}, lambda: shown.append(system.get("one")))
        assert shown == [1]

    asyncio.run(check())


def test_a_refresh_returns_the_keys_of_what_has_changed(tmp_path: Path) -> None:
    """Also of what was read for a change of this node's own, and of that change."""

    async def check() -> None:
        sealing = Sealing(ClusterKey(b"a" * 32))
        one, other = [
            await SharedSystemStore.open_shared(lambda: SqliteStore(tmp_path), sealing, lambda: None)
            for _ in range(2)
        ]
        await one.put({"keys/main": 1, "jobs/main/1": 1, "gone": 1})
        assert await other.refresh() == {"keys/main", "jobs/main/1", "gone"}
        assert await other.refresh() == set()
        await one.put({"jobs/main/1": 2, "gone": None})
        await other.put({"own": 1})
        assert await other.refresh() == {"jobs/main/1", "gone", "own"}

    asyncio.run(check())
