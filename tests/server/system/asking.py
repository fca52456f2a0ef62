"""A system store in a folder, opened for one piece of a test."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from peeklock.server.system.store import SystemStore
from peeklock.store.sqlite.store import SqliteStore


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SystemStore]:
    """Yield the system store of a folder, as a new process would have it."""
    system = await SystemStore.open(SqliteStore(folder))
    try:
        yield system
    finally:
        await system.close()


def as_killed_now(folder: Path, copy: Path) -> Path:
    """Copy an open store as a kill at this instant would leave it; return the copy."""
    shutil.copytree(folder, copy)
    return copy
