"""Servers and connections that cannot keep what a broker promises.

Source: postgresql.org/docs/current/runtime-config-wal.html, runtime-config-replication.html.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import psycopg

from peeklock.store.base import StoreFailed

Durability = Literal["replicated", "fsync", "os"]
"""What a commit survives: the loss of the primary, a power cut, the death of the server's processes."""

VERSION_MIN = 14
"""The oldest with maintained pipelines of one round trip, and that PostgreSQL itself supports."""

Db = psycopg.Connection[Any]


def check_version(db: Db, shown: str) -> None:
    """Raise StoreFailed for a server that is too old."""
    version = db.info.server_version // 10_000
    if version < VERSION_MIN:
        raise StoreFailed(
            f"{shown} is PostgreSQL {version}, and {VERSION_MIN} is the oldest that works: upgrade the server"
        )


def set_durability(db: Db, shown: str, durability: Durability) -> None:
    """Make commits over a connection survive what they must. Raises: StoreFailed if the server cannot."""
    names = ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")
    query = ", ".join(f"current_setting('{name}')" for name in names)
    row = db.execute(f"SELECT {query}").fetchone()
    assert row is not None
    settings = dict(zip(names, row, strict=True))
    if durability == "os":
        return
    for name in ("fsync", "full_page_writes"):
        if settings[name] != "on":
            raise StoreFailed(
                f"{shown} runs with {name} = off, so that a power cut loses what was acknowledged: switch it "
                "on there, or start with --durability os"
            )
    if durability == "replicated" and not settings["synchronous_standby_names"].strip():
        raise StoreFailed(
            f"{shown} replicates asynchronously, or not at all, and --durability replicated promises that a "
            "commit is on a standby too: set synchronous_standby_names on the primary, such as 'ANY 1 (*)', "
            "or start with --durability fsync"
        )
    weak = ("off", "local") if durability == "replicated" else ("off",)
    if settings["synchronous_commit"] in weak:
        db.execute("SET synchronous_commit = on")


def check_pooling(db: Db, shown: str, connect: Callable[[], Db]) -> None:
    """Raise StoreFailed if another connection may get the same session of the server.

    PgBouncer and its like tell each client a process number of their own. Behind one that pools transactions,
    a second connection gets the session that the first one does not use just now.
    """
    found = _backend_pid(db)
    if found == db.info.backend_pid:
        return
    with connect() as other:
        shared = _backend_pid(other) == found
    if shared:
        raise StoreFailed(
            f"{shown} is a pool that shares the sessions of the server between transactions, such as "
            "PgBouncer with pool_mode = transaction: name the server itself, or a pool with "
            "pool_mode = session"
        )


def _backend_pid(db: Db) -> int:
    row = db.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    assert row is not None
    return int(row[0])
