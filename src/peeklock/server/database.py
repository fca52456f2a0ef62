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
from pathlib import Path

from peeklock.server import files, log
from peeklock.server.settings import Durability, Settings, StartFailed
from peeklock.store.base import Store, StoreError
from peeklock.store.sqlite.folder import DATABASE_NAME, FolderLock, make_folder

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
        instance = self._take_folder(settings.data)
        host = socket.gethostname()
        # A folder that was copied to another machine is another node.
        owner = Owner(f"process {os.getpid()} on {host}", f"{instance}@{host}", uuid.uuid4().hex)
        self._url = settings.store
        self._survives = "fsync" if settings.durability == "memory" else settings.durability
        most = settings.store_connections
        self._database = Database(address, owner, durability=self._survives, connections=most)

    def store(self, folder: Path, name: str, durability: Durability) -> Store:
        from peeklock.store.postgres.store import PostgresStore

        def waits(owner: str) -> None:
            do = "nothing: it takes over when that process ends or its lease does"
            log.info("waiting for a store", {"store": name, "owner": owner, "do": do})

        return PostgresStore(self._database, name, on_wait=waits)

    def source(self, folder: Path, name: str) -> dict[str, str]:
        return {"url": self._url, "name": name, "durability": self._survives}

    def has(self, folder: Path, name: str) -> bool:
        return self._database.has(name)

    def remove(self, folder: Path, name: str) -> None:
        self._database.remove(name)
        if folder.exists():
            shutil.rmtree(folder)

    def close(self) -> None:
        self._database.close()
        self._lock.release()

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
