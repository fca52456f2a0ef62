"""What the durable stores of a process share, and where each of them is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from peeklock.server.settings import Durability, Settings
from peeklock.store.base import Store

if TYPE_CHECKING:
    from peeklock.cluster.key import ClusterKey
    from peeklock.store.postgres.nodes import Nodes

SYSTEM = "system"
"""The name of the store with the facts of the process."""


def store_name(namespace: str, *, is_default: bool) -> str:
    """Return the name of the store of a namespace, in a database that has all of them."""
    return "default" if is_default else f"namespace/{namespace.lower()}"


class Stores(Protocol):
    """The durable stores of a process."""

    @property
    def nodes(self) -> Nodes | None:
        """The nodes of the cluster that it has joined; None = it is in none."""

    @property
    def cluster_key(self) -> ClusterKey | None:
        """The secret of the cluster, which is read once; None = the process is no node."""

    def join(self, address: str) -> None:
        """Become a node of a cluster that other nodes reach there, if the settings say so; it may take long.

        Raises: StartFailed.
        """

    def store(self, folder: Path, name: str, durability: Durability) -> Store:
        """Return a store that is not open yet. `folder`: its own; `name`: see `store_name`."""

    def source(self, folder: Path, name: str) -> dict[str, str | int]:
        """Return an open store as the exporter of its events knows it, see `capture.source.source_of`."""

    def has(self, folder: Path, name: str) -> bool:
        """Return whether there is one. It may take long, as `remove` may. Raises: StoreError."""

    def remove(self, folder: Path, name: str) -> None:
        """Remove one that is closed, with its folder. Raises: OSError, StoreError."""

    def close(self) -> None:
        """End what they share; all are closed."""


class Disk:
    """Stores in folders: they share threads, and the reserve for a full disk."""

    def __init__(self, data: Path) -> None:
        """Start the threads. `data`: the folder of the process."""
        from peeklock.store.sqlite.space import Ballast
        from peeklock.store.sqlite.threads import StoreThreads

        self.threads = StoreThreads()
        self.ballast = Ballast(data)
        self.nodes: Nodes | None = None
        self.cluster_key: ClusterKey | None = None

    def join(self, address: str) -> None:
        """A folder is of one process."""

    def store(self, folder: Path, name: str, durability: Durability) -> Store:
        from peeklock.store.sqlite.store import SqliteStore

        return SqliteStore(
            folder,
            durability="os" if durability == "os" else "fsync",
            ballast=self.ballast,
            threads=self.threads,
        )

    def source(self, folder: Path, name: str) -> dict[str, str | int]:
        return {"data": os.path.abspath(folder)}

    def has(self, folder: Path, name: str) -> bool:
        return folder.exists()

    def remove(self, folder: Path, name: str) -> None:
        if folder.exists():
            shutil.rmtree(folder)

    def close(self) -> None:
        self.threads.close()


def open_stores(settings: Settings) -> Stores | None:
    """Return the durable stores that settings ask for, None = all is in memory. Raises: StartFailed."""
    if settings.data is None:
        return None
    if settings.store is None:
        return Disk(settings.data)
    from peeklock.server.database import DatabaseStores

    return DatabaseStores(settings)
