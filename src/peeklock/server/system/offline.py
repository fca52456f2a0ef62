"""The system store of a data folder on which no broker runs, for a command that reads or changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from peeklock.server.database import INSTANCE_FILE
from peeklock.server.keys.keys import FILE as KEYS_FILE
from peeklock.server.keys.rules import KeysRefused
from peeklock.server.system import authority
from peeklock.server.system.default_name import default_name
from peeklock.server.system.keys import NamespaceKeys, fact_key
from peeklock.server.system.store import SystemStore, folder_of
from peeklock.server.tls.certificates import keep_authority
from peeklock.server.tls.contexts import (
    CA_FILE,
    CA_KEY_FILE,
    CA_STORE_FILE,
    CERTIFICATE_FILE,
    FOLDER,
    KEY_FILE,
)
from peeklock.store.base import StoreInUse
from peeklock.store.sqlite.folder import require_finished
from peeklock.store.sqlite.store import SqliteStore

T = TypeVar("T")


async def with_keys(data: Path, namespace: str | None, do: Callable[[NamespaceKeys], Awaitable[T]]) -> T:
    """Return what `do` returns of the keys of a namespace, None = the default one; makes no keys.

    Raises: KeysRefused, StoreError, what `do` raises.
    """
    missing = KeysRefused(f"{data} has no keys; start the broker on it once with --auth sas to make them")
    if (data / KEYS_FILE).exists():
        missing = KeysRefused(
            f"the keys of {data} are in {data / KEYS_FILE}, where earlier releases keep them; start the "
            "broker of this release on it once with --auth sas to take them over"
        )
    if not folder_of(data).is_dir():
        if (data / INSTANCE_FILE).exists():
            raise KeysRefused(
                f"the keys of {data} are in the database that its broker was started with, and no broker "
                "runs on it: start it, or ask another node of its cluster"
            )
        raise missing
    system = await opened(data)
    try:
        name = namespace or default_name(system)
        if name is None or (namespace is None and system.get(fact_key(name)) is None):
            raise missing
        if system.get(fact_key(name)) is None:
            raise KeysRefused(f"there is no namespace '{name}' with keys in {data}")
        return await do(NamespaceKeys(system, name))
    finally:
        await system.close()


async def make_authority(data: Path, *, replaces: bool) -> None:
    """Write the certificate of the authority into its folder; make the authority if there is none.

    `replaces`: remove the present one first, with all that it has signed. Raises: StoreError, OSError.
    """
    system = await opened(data)
    try:
        folder = data / FOLDER
        if replaces:
            # The files first: their next start would take an authority over that is no fact any more.
            for name in (CA_KEY_FILE, CA_FILE, CA_STORE_FILE, CERTIFICATE_FILE, KEY_FILE):
                (folder / name).unlink(missing_ok=True)
            await system.put({authority.FACT: None})
        kept = authority.SystemAuthority(system, data)
        await asyncio.to_thread(keep_authority, folder, datetime.now(UTC), kept)
    finally:
        await system.close()


async def opened(data: Path) -> SystemStore:
    """Open the system store of a data folder. Raises: StoreInUse, with a text for a command; StoreError."""
    require_finished(data)
    try:
        return await SystemStore.open(SqliteStore(folder_of(data)))
    except StoreInUse as failure:
        raise StoreInUse(
            f"a broker runs on {data}, but not at its control socket: name the socket with --control PATH, "
            "use --connection-string, or stop the broker"
        ) from failure
