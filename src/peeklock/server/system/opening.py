"""Opens the system store of a process that starts, and takes over what earlier releases kept in files."""

from __future__ import annotations

from peeklock.server.disk import SYSTEM, Stores
from peeklock.server.settings import Settings, StartFailed
from peeklock.server.system.default_name import set_default_name
from peeklock.server.system.migration import MigrationRefused, migrate
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.store.base import Store, StoreError, StoreInUse
from peeklock.store.sqlite.folder import holder, require_finished


async def open_system(settings: Settings, default: str, stores: Stores | None) -> SystemStore:
    """Open the system store of the data folder, or one in memory; `default` names the default namespace.

    `stores`: None = all is in memory. Raises: StartFailed.
    """
    try:
        if settings.data is not None:
            require_finished(settings.data)  # before anything is made there
        nodes = None if stores is None else stores.nodes
        if nodes is None:
            system = await SystemStore.open(_store(settings, stores))
        else:
            from peeklock.server.system.sealing import Sealing
            from peeklock.server.system.shared import SharedSystemStore

            assert stores is not None
            assert stores.cluster_key is not None
            sealing = Sealing(stores.cluster_key)
            # The other nodes look then, and read the facts again.
            system = await SharedSystemStore.open_shared(
                lambda: _store(settings, stores), sealing, nodes.notify
            )
    except StoreInUse as failure:  # of its own folder, which nobody has named
        assert settings.data is not None
        text = f"{settings.data} is in use by {holder(folder_of(settings.data))}"
        raise StartFailed(f"{text}; stop it or use another folder") from failure
    except StoreError as failure:
        raise StartFailed(str(failure)) from failure
    try:
        await set_default_name(system, default)
    except StoreError as failure:
        await system.close()
        raise StartFailed(str(failure)) from failure
    return system


async def take_over_files(system: SystemStore, settings: Settings, default: str) -> None:
    """Take over what earlier releases kept in files of the data folder, for the default namespace.

    Call it once the store of this namespace is open. It has this release's format then, so that an earlier
    release, which would miss its files and make new keys, refuses the folder. Raises: StartFailed.
    """
    if settings.data is None or settings.store is not None:
        return
    try:
        await migrate(
            system,
            settings.data,
            default,
            takes_keys="sas" in settings.auth and settings.keys is None,
            takes_authority=settings.tls_cert is None and settings.tls_pfx_base64 is None,
        )
    except (StoreError, MigrationRefused) as failure:
        raise StartFailed(str(failure)) from failure


def _store(settings: Settings, stores: Stores | None) -> Store:
    if stores is None or settings.data is None or settings.durability == "memory":
        from peeklock.store.memory import MemoryStore

        return MemoryStore()
    return stores.store(folder_of(settings.data), SYSTEM, settings.durability)
