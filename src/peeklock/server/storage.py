"""The store of a broker: opened, rescued if `--accept-loss` permits it, and the space to keep free."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from peeklock.broker.content.overlay import is_bodiless
from peeklock.engine.engine import Engine
from peeklock.server import log
from peeklock.server.disk import Stores
from peeklock.server.settings import Settings, StartFailed
from peeklock.store.base import Store, StoreDamaged, StoreError, StoreGone

MIN_FREE_BYTES = 1024**3
MIN_FREE_SHARE = 0.05
"""Below the smaller of the two, sends are refused (R-06): 5 % keeps small volumes usable, 1 GiB large ones
full."""


async def open_store(settings: Settings, stores: Stores | None, name: str) -> Store:
    """Open the store of a namespace, or one in memory. Raises: StartFailed.

    `stores`: None = in memory; `name`: see `disk.store_name`.
    """
    store: Store
    if settings.durability == "memory":
        from peeklock.store.memory import MemoryStore

        store = MemoryStore()
    else:
        assert settings.data is not None
        assert stores is not None
        if settings.accept_loss:
            _rescue(settings.data)
        store = stores.store(settings.data, name, settings.durability)
    try:
        await store.open()
    except StoreError as failure:
        raise _start_failed(failure, settings) from failure
    return store


async def recover(engine: Engine, store: Store, settings: Settings, now_ms: int) -> None:
    """Recover an engine from a store, which is closed if that fails. Raises: StartFailed."""
    try:
        await engine.recover(store, now_ms)
    except StoreError as failure:
        await store.close()
        raise _start_failed(failure, settings) from failure


def min_free_bytes(settings: Settings) -> Callable[[], int]:
    """Return a function that returns how much space must stay free on the volume."""
    data, given = settings.data, settings.min_free_bytes
    if settings.store is not None:
        return lambda: 1  # of a database it is known only whether it is full
    if given is not None or data is None:
        return lambda: given or 0

    def share() -> int:
        volume = os.statvfs(data)
        return min(MIN_FREE_BYTES, int(volume.f_blocks * volume.f_frsize * MIN_FREE_SHARE))

    return share


def _rescue(data: Path) -> None:
    """Replace a damaged store by what can be read of it. Raises: StartFailed."""
    from peeklock.store.check import check
    from peeklock.store.rescue import accept_loss

    report = check(data, is_bodiless)
    if not report.stops:
        return
    try:
        details = accept_loss(data, is_bodiless)
    except StoreError as failure:
        raise StartFailed(str(failure)) from failure
    for line in report.damages:
        log.error("the store is damaged; --accept-loss continues behind the damage", {"damage": line})
    for line in details:
        log.warning("starting with what can be read of the store", {"detail": line})


def _start_failed(failure: StoreError, settings: Settings) -> StartFailed:
    if not isinstance(failure, StoreDamaged) or isinstance(failure, StoreGone):
        return StartFailed(str(failure))
    if settings.store is not None:
        return StartFailed(f"{failure}; restore a back-up of the database")
    return StartFailed(
        f"{failure}; `peeklock check {settings.data}` says more. Put back a copy of the folder, or start "
        "with --accept-loss to continue with what can be read"
    )
