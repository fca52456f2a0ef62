"""Nodes of a cluster in this process: brokers on one database, each with a folder of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from peeklock.server.app import Broker
from peeklock.server.cluster.member import Member
from peeklock.server.settings import Settings
from tests.server.waiting import SECONDS_MAX

KEY = b"a secret of 32 bytes for a test."


class Cluster:
    """Nodes by name; the first namespace is the default one."""

    def __init__(self, url: str, folder: Path, namespaces: Iterable[str]) -> None:
        self.folder = folder
        self.key = folder / "cluster.key"
        self.key.write_bytes(KEY)
        self.config = folder / "config.json"
        found = [{"Name": name, "Queues": [{"Name": "orders"}]} for name in namespaces]
        self.config.write_text(json.dumps({"UserConfig": {"Namespaces": found}}))
        self.settings = Settings(
            None, self.config, "127.0.0.1", 0, 0, "fsync", None, None, "standard", None, store=url
        )
        self.settings = replace(self.settings, cluster_key=self.key, store_connections=12)
        self.brokers: dict[str, Broker] = {}
        self._serving: dict[str, asyncio.Task[int]] = {}

    async def start(self, name: str, **changes: Any) -> Broker:
        """Start a node."""
        settings = replace(self.settings, **{"data": self.folder / name, "node": name, **changes})
        broker = Broker(settings)
        await broker.start()
        self.brokers[name] = broker
        self._serving[name] = asyncio.ensure_future(broker.stopped())
        return broker

    async def stop(self, name: str) -> int:
        """Stop a node; return its exit status."""
        self.brokers.pop(name).ask_to_stop()
        return await self._serving.pop(name)

    async def stopped(self, name: str) -> int:
        """Wait until a node has stopped by itself; return its exit status."""
        del self.brokers[name]
        return await self._serving.pop(name)

    def owned(self) -> dict[str, list[str]]:
        """Return the names of the stores that each node owns."""
        found = {}
        for name, broker in self.brokers.items():
            assert broker.node is not None
            found[name] = sorted(broker.node.member.owned())
        return found

    async def until_owned(self, **wanted: list[str]) -> None:
        """Wait until each node owns these."""
        until_s = time.monotonic() + SECONDS_MAX
        while self.owned() != wanted and time.monotonic() < until_s:  # noqa: ASYNC110  # no one event tells
            await asyncio.sleep(0.02)
        assert self.owned() == wanted

    async def until_seen(self, broker: Broker, *names: str) -> None:
        """Wait until a node sees these nodes."""
        assert broker.node is not None
        member, until_s = broker.node.member, time.monotonic() + SECONDS_MAX
        while set(member.view.nodes) != set(names) and time.monotonic() < until_s:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.02)
        assert set(member.view.nodes) == set(names)


def in_cluster(
    test: Callable[[Cluster], Awaitable[None]], url: str, folder: Path, namespaces: Iterable[str]
) -> None:
    """Run a test, and stop the nodes that it has left."""

    async def run() -> None:
        cluster = Cluster(url, folder, namespaces)
        try:
            await test(cluster)
        finally:
            for name in list(cluster.brokers):
                await cluster.stop(name)

    asyncio.run(run())


async def until_next_view(member: Member) -> None:
    """Wait until a node has read the database once more, and has done what follows."""
    seen = asyncio.Event()
    member.on_view(seen.set)
    for _ in range(2):
        await asyncio.wait_for(seen.wait(), 20)
        seen.clear()
