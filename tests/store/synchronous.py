"""A store on disk for a broker in the calling thread: each call waits for the disk."""

from __future__ import annotations

import asyncio
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

from peeklock.store.sqlite.store import SqliteStore


class Synchronous:
    """A `SqliteStore` whose coroutines never wait for anybody else."""

    def __init__(self, folder: Path) -> None:
        self._inner = SqliteStore(folder)
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != "commit" and not iscoroutinefunction(found):
            return found

        async def awaited(*arguments: Any) -> Any:
            return await found(*arguments)

        async def call(*arguments: Any) -> Any:
            return self._loop.run_until_complete(awaited(*arguments))

        return call

    def end(self) -> None:
        """Close the store."""
        self._loop.run_until_complete(self._inner.close())
        self._loop.close()
