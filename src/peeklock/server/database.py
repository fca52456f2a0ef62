"""The stores of a process in a PostgreSQL database, and what the process is called there.

The data folder has no messages then, but what is of this node alone: its control socket, its certificate, and
the file that says who it is. So a process that starts again after a kill takes its stores back at once, and
any other waits for the end of the leases.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from peeklock import __version__
from peeklock.cluster.key import ClusterKey, KeyUnusable
from peeklock.server import files, log
from peeklock.server.common_log import folder_id
from peeklock.server.disk import SYSTEM
from peeklock.server.settings import Durability, Settings, StartFailed
from peeklock.store.base import Store, StoreError, StoreInUse
from peeklock.store.sqlite.folder import DATABASE_NAME, FolderLock, make_folder

if TYPE_CHECKING:
    from peeklock.store.postgres.nodes import Nodes

INSTANCE_FILE = "instance"
"""In the data folder: made once, of random digits."""

_INSTANCE = re.compile(r"[0-9a-f]{32}")


class DatabaseStores:
    """See `disk.Stores`."""

    def __init__(self, settings: Settings) -> None:
        """Take the data folder; connect to nothing yet. Raises: StartFailed."""
        assert settings.data is not None
        assert settings.store is not None
        try:
            from peeklock.store.postgres.address import Address, AddressInvalid
            from peeklock.store.postgres.database import Database
            from peeklock.store.postgres.leases import Owner
        except ImportError as failure:
            raise StartFailed(
                f"--store needs psycopg, which is not installed ({failure}): pip install 'peeklock[postgres]'"
            ) from failure
        try:
            address = Address(settings.store)
        except AddressInvalid as failure:
            raise StartFailed(f"--store: {failure}") from failure
        self.cluster_key = None if settings.cluster_key is None else _read_cluster_key(settings.cluster_key)
        instance = self._take_folder(settings.data)
        host = socket.gethostname()
        shown = f"process {os.getpid()} on {host}"
        if settings.node is not None:
            shown = f"node '{settings.node}', {shown}"
        # A folder that was copied to another machine is another node.
        owner = Owner(shown, f"{instance}@{host}", uuid.uuid4().hex)
        self._url = settings.store
        self._survives = "fsync" if settings.durability == "memory" else settings.durability
        most = settings.store_connections
        self._database = Database(
            address,
            owner,
            durability=self._survives,
            connections=most,
            is_node=settings.node is not None,
        )
        self._database.connections.reach.tell = self._tell_reach
        self.nodes: Nodes | None = None
        """The cluster, once this node has joined it."""
        self._node = settings.node
        self._log_folder = None if settings.capture is None else settings.capture.folder

    def join(self, address: str) -> None:
        """Become a node of the cluster that other nodes reach there, or refuse stores that are a cluster's.

        It may take seconds. Raises: StartFailed.
        """
        from peeklock.store.postgres.nodes import Nodes, is_cluster

        connections = self._database.connections
        try:
            if self._node is None or self.cluster_key is None:
                if is_cluster(connections):
                    raise StartFailed(
                        f"the stores in {connections.shown} are those of a cluster: start this broker as a "
                        "node of it, with --node and --cluster-key"
                    )
                return
            nodes = Nodes(connections, self._database.leases.owner, self._node)
            log_folder = "" if self._log_folder is None else folder_id(self._log_folder)
            nodes.admit(address, __version__, self.cluster_key.digest(), log_folder)
        except StoreError as failure:
            raise StartFailed(str(failure)) from failure
        self.nodes = nodes

    def store(self, folder: Path, name: str, durability: Durability) -> Store:
        from peeklock.store.postgres.store import PostgresStore

        def waits(owner: str) -> None:
            if self.nodes is not None and name != SYSTEM:
                raise StoreInUse(f"the store '{name}' is not free yet: {owner} has it")
            do = "nothing: it takes over when that process ends or its lease does"
            log.info("waiting for a store", {"store": name, "owner": owner, "do": do})

        return PostgresStore(self._database, name, on_wait=waits)

    def source(self, folder: Path, name: str) -> dict[str, str | int]:
        epoch = self._database.leases.epoch(name)
        return {"url": self._url, "name": name, "durability": self._survives, "epoch": epoch}

    def has(self, folder: Path, name: str) -> bool:
        return self._database.has(name)

    def remove(self, folder: Path, name: str) -> None:
        self._database.remove(name)
        if folder.exists():
            shutil.rmtree(folder)

    def close(self) -> None:
        self._database.close()
        self._lock.release()

    def _tell_reach(self, reason: str | None, gone_s: float) -> None:
        """Log that the database is gone, or back; called in any thread."""
        from peeklock.store.postgres.store import GIVE_UP_S

        shown = self._database.shown
        if reason is None:
            log.info("the database can be reached again", {"database": shown, "after_s": round(gone_s, 1)})
            return
        waits = f"commits and reads, each up to {GIVE_UP_S:.0f} s: then the broker stops"
        if self._node is not None:
            waits += "; other nodes that reach it take the namespaces of this one"
        fields = {
            "database": shown,
            "since": (datetime.now(UTC) - timedelta(seconds=gone_s)).isoformat(timespec="milliseconds"),
            "reason": " ".join(reason.split()),
            "waits": waits,
            "do": "nothing here: start the database, or mend the network to it",
        }
        log.warning("the database cannot be reached", fields)

    def _take_folder(self, data: Path) -> str:
        """Return who this node is. Raises: StartFailed."""
        self._lock = FolderLock(data)
        try:
            make_folder(data)
            if (data / DATABASE_NAME).exists():
                raise StartFailed(
                    f"{data} has messages of a broker without --store: name another folder with --data"
                )
            self._lock.take()
            return _instance(data / INSTANCE_FILE)
        except StoreError as failure:
            raise StartFailed(str(failure)) from failure


def _read_cluster_key(file: Path) -> ClusterKey:
    """Return the key in a file. Raises: StartFailed."""
    try:
        return ClusterKey(file.read_bytes())
    except OSError as failure:
        raise StartFailed(f"cannot read --cluster-key {file}: {failure.strerror}") from failure
    except KeyUnusable as failure:
        raise StartFailed(f"--cluster-key {file}: {failure}") from failure


def _instance(file: Path) -> str:
    """Return the digits in a file, which is made if it is missing. Raises: StartFailed."""
    try:
        if not file.exists():
            files.replace(file, uuid.uuid4().hex.encode(), 0o600)
        found = file.read_text(errors="replace").strip()
    except OSError as failure:
        raise StartFailed(f"cannot use {file}: {failure.strerror}; check the folder's owner") from failure
    if not _INSTANCE.fullmatch(found):
        raise StartFailed(f"{file} does not say who this node is: delete it, and start again")
    return found
