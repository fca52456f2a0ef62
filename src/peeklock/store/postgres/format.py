"""The format of a database: its number, and the tables.

Keys and texts are bytes: PostgreSQL's texts cannot contain the character 0, and are sorted by a language. The
tables are in a schema of their own, which the broker makes; `meta` names the format and the release.

Autovacuum's defaults wait for a fifth of a table to be dead: 25 MB that live grew to 903 MB in 30 s. So each
table has thresholds of its own, without a share and without a delay; `vacuum` does not wait for its naptime.
"""

from __future__ import annotations

import psycopg

from peeklock import __version__
from peeklock.store.base import Entry, StoreDamaged, StoreFailed, StoreTooNew
from peeklock.store.encoding import definitions
from peeklock.store.postgres.errors import store_error
from peeklock.store.postgres.refusals import Db

FORMAT = 2
"""Format that this release writes: 2 has the nodes of a cluster. The bytes in the tables name their own
versions."""

LOCK = 0x706B6C6B
"""The advisory lock under which the tables are made: `pklk`."""

_VACUUM = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_threshold = {}"
)
_TOAST = (
    "toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_cost_delay = 0, "
    "toast.autovacuum_vacuum_threshold = 5000"
)
_ROWS = f"{_VACUUM.format(200)}, {_TOAST}"

SCHEMA = (
    "CREATE TABLE peeklock.meta(k text PRIMARY KEY, v text NOT NULL)",
    # Its rows change with each commit, in place: pages keep room for the next versions.
    "CREATE TABLE peeklock.lease(shard integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
    "name text NOT NULL UNIQUE, is_whole boolean NOT NULL, epoch bigint NOT NULL, batch_no bigint NOT NULL, "
    "expires timestamptz NOT NULL, owner text, instance text, session text, address text) "
    f"WITH (fillfactor = 20, {_VACUUM.format(500)})",
    "CREATE TABLE peeklock.journal(shard integer, no bigint, meta bytea NOT NULL, PRIMARY KEY (shard, no)) "
    f"WITH ({_ROWS})",
    "CREATE TABLE peeklock.body(shard integer, no bigint, data bytea NOT NULL, PRIMARY KEY (shard, no)) "
    f"WITH ({_ROWS})",
    "CREATE TABLE peeklock.kv(shard integer, k bytea, v bytea NOT NULL, checksum bigint NOT NULL, "
    f"PRIMARY KEY (shard, k)) WITH ({_VACUUM.format(200)})",
    "CREATE TABLE peeklock.event(shard integer, no bigint, data bytea NOT NULL, PRIMARY KEY (shard, no)) "
    f"WITH ({_ROWS})",
    # Compressing what is compressed, or random, costs the server's time.
    "ALTER TABLE peeklock.journal ALTER COLUMN meta SET STORAGE EXTERNAL",
    "ALTER TABLE peeklock.body ALTER COLUMN data SET STORAGE EXTERNAL",
    "ALTER TABLE peeklock.event ALTER COLUMN data SET STORAGE EXTERNAL",
)
"""The statements that create the tables of format 1 in the schema."""

UPGRADES = {
    1: (
        "CREATE TABLE peeklock.node(name text PRIMARY KEY, instance text NOT NULL, session text NOT NULL, "
        "address text NOT NULL, version text NOT NULL, started timestamptz NOT NULL, "
        "seen timestamptz NOT NULL, is_leaving boolean NOT NULL, is_sound boolean NOT NULL, "
        f"unreached text[] NOT NULL) WITH (fillfactor = 20, {_VACUUM.format(500)})",
        # The node that an operator has chosen.
        "ALTER TABLE peeklock.lease ADD COLUMN place text",
    )
}
"""By the number of a format: the statements that make the next one of it. A broker that runs meanwhile is not
disturbed."""


_OWNER = (
    "SELECT coalesce(max(t.tableowner), max(pg_get_userbyid(n.nspowner))) FROM pg_namespace n "
    "LEFT JOIN pg_tables t ON t.schemaname = n.nspname WHERE n.nspname = 'peeklock' HAVING count(*) > 0"
)


def make_tables(db: Db, shown: str) -> None:
    """Make schema and tables if they are missing, or of an earlier format, in one transaction.

    Raises: StoreTooNew, StoreDamaged, StoreFailed.
    """
    if _check(db, shown) == FORMAT:
        return
    try:
        with db.transaction():
            db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            found = _check(db, shown)  # another process may have made them meanwhile
            if not found:
                _make(db)
            for number in range(found or 1, FORMAT):
                for statement in UPGRADES[number]:
                    db.execute(statement)
            for key, value in (("format", str(FORMAT)), ("release", __version__)):
                db.execute("UPDATE peeklock.meta SET v = %s WHERE k = %s", (value, key))
    except psycopg.errors.InsufficientPrivilege as error:
        raise _no_right(db, shown, error) from error
    except psycopg.Error as error:
        raise store_error(f"make the tables in {shown}", error) from error


def require_format(db: Db, shown: str) -> None:
    """Require that no newer release has upgraded the tables meanwhile. Raises: StoreTooNew, psycopg.Error."""
    found = dict(db.execute("SELECT k, v FROM peeklock.meta WHERE k IN ('format', 'release')").fetchall())
    _require_readable(int(found["format"]), found["release"], shown)


def _make(db: Db) -> None:
    """Make the tables of format 1."""
    if not _has(db, "SELECT 1 FROM pg_namespace WHERE nspname = 'peeklock'"):
        db.execute("CREATE SCHEMA peeklock")
    for statement in SCHEMA:
        db.execute(statement)
    with db.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO peeklock.meta VALUES (%s, %s)", [("format", "1"), ("release", __version__)]
        )


def require_tables(db: Db, shown: str) -> None:
    """Require tables that this release reads, and change nothing.

    Raises: StoreTooNew, StoreDamaged, StoreFailed.
    """
    if not _check(db, shown):
        raise StoreFailed(f"{shown} has no stores of a broker: check the URL")


def _no_right(db: Db, shown: str, error: psycopg.errors.InsufficientPrivilege) -> StoreFailed:
    """Return the error of a user without rights."""
    user, name = db.info.user, db.info.dbname
    said = " ".join(str(error).split())
    owner = db.execute(_OWNER).fetchone()
    if owner is not None and owner[0] != user:
        return StoreFailed(
            f"the user {user} may not use the schema peeklock in {shown} ({said}): it belongs to the user "
            f"{owner[0]}. Name that user in --store, or another database"
        )
    return StoreFailed(
        f"the user {user} may not make or use tables in {shown} ({said}): run, as the owner of the database, "
        f'`CREATE SCHEMA peeklock AUTHORIZATION "{user}"` in {name}'
    )


def _check(db: Db, shown: str) -> int:
    """Return the format of the tables, 0 = there are none. Raises: StoreTooNew, StoreDamaged, StoreFailed."""
    try:
        if not _has(db, "SELECT 1 FROM pg_tables WHERE schemaname = 'peeklock' AND tablename = 'meta'"):
            return 0
        found = dict(db.execute("SELECT k, v FROM peeklock.meta").fetchall())
    except psycopg.errors.InsufficientPrivilege as error:
        raise _no_right(db, shown, error) from error
    except psycopg.Error as error:
        raise store_error(f"read the format of {shown}", error) from error
    number, release = str(found.get("format", "")), found.get("release", "unknown")
    if not number.isdecimal():
        raise StoreDamaged(f"{shown} has a schema `peeklock` that is not ours: its format is {number!r}")
    _require_readable(int(number), release, shown)
    return int(number)


def _require_readable(number: int, release: str, shown: str) -> None:
    if number > FORMAT:
        raise StoreTooNew(
            f"{shown} has format {number}, written by release {release}; this release, {__version__}, reads "
            f"up to {FORMAT}: start release {release} or a newer one, or restore a back-up that was made "
            "before the upgrade"
        )


def _has(db: Db, sql: str) -> bool:
    return db.execute(sql).fetchone() is not None


def release_entry() -> Entry:
    """Return the entry that names this release as the writer of a store."""
    return definitions.entry(definitions.RELEASE_KEY, __version__)
