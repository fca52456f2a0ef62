"""The format of a database: its number, the marks that identify our files, and the tables.

Source: sqlite.org/fileformat.html, 1.3: user version at byte 60 of a file, application id at byte 68.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from peeklock import __version__
from peeklock.store.base import Entry, StoreDamaged, StoreFailed, StoreTooNew
from peeklock.store.encoding import definitions

EVENTS_SINCE = 4
"""The first format with the table of events."""

FORMAT = 7
"""Format that this release writes, kept in `PRAGMA user_version`. It reads 1 up to this.

Format 2 adds kinds of runs, format 3 kinds of definitions, format 4 cursors and claims among the definitions
and the table of events, format 5 authorization rules of entities and the time when the namespace was created.
Format 6 has a second version of frames, body rows and event rows beside the first: frames are in a chain and
mark messages that were scheduled, body rows have a checksum for each payload, event rows one more column.
Values of its rules have the form in which they were given. Format 7 adds facts of the process among the
definitions, which an older release would take for damage. So an older store is upgraded by adding what is
missing and writing the new number; older releases refuse the store from then on.
"""

APPLICATION_ID = 0x706B6C6B
"""`pklk`: identifies our files among SQLite databases."""

_RELEASE = re.compile(r"[0-9A-Za-z.+-]{1,40}")

EVENT_TABLE = "CREATE TABLE event(no INTEGER PRIMARY KEY, data BLOB NOT NULL)"  # since format 4

SCHEMA = (
    EVENT_TABLE,
    "CREATE TABLE journal(no INTEGER PRIMARY KEY, meta BLOB NOT NULL)",
    "CREATE TABLE body(no INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    "CREATE TABLE kv(k TEXT PRIMARY KEY, v TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
"""The statements that create a store."""


def schema_damages(db: sqlite3.Connection) -> list[str]:
    """Return damages of the tables' definitions, which SQLite reads as text that no checksum covers."""
    expected = {statement for statement in SCHEMA if statement.startswith("CREATE TABLE")}
    if read_number(db) < EVENTS_SINCE:
        expected.discard(EVENT_TABLE)
    found = {text for (text,) in db.execute("SELECT sql FROM sqlite_schema")}
    damages = [f"the definition of a table is damaged: {text!r}" for text in map(str, found - expected)]
    return [*damages, *(f"a table is missing: {text}" for text in sorted(expected - found))]


def check_header(path: Path) -> None:
    """Check that a file is a store of ours before SQLite opens it.

    Raises: StoreTooNew, StoreDamaged, StoreFailed.
    """
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreFailed(f"cannot read {path}: {error.strerror}; check the folder's owner") from error
    if not header:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise StoreDamaged(f"{path} is not a SQLite database: its first bytes are {header[:16]!r}")
    _check_identity(
        path, int.from_bytes(header[68:72], "big"), int.from_bytes(header[60:64], "big"), empty_is_new=True
    )


def is_new(db: sqlite3.Connection, path: Path) -> bool:
    """Return whether a database has no tables yet: it is new, or a process died while it created it."""
    [[tables]] = db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    read_format(db, path, empty_is_new=not tables)
    return not tables


def read_format(db: sqlite3.Connection, path: Path, *, empty_is_new: bool = False) -> int:
    """Return the format of an open database, its WAL included. Raises: StoreTooNew, StoreDamaged."""
    [[application_id]] = db.execute("PRAGMA application_id").fetchall()
    version = read_number(db)
    _check_identity(path, application_id, version, empty_is_new=empty_is_new)
    return version


def read_number(db: sqlite3.Connection) -> int:
    """Return the number of the format, unchecked."""
    [[version]] = db.execute("PRAGMA user_version").fetchall()
    return int(version)


def _check_identity(path: Path, application_id: int, version: int, *, empty_is_new: bool) -> None:
    if empty_is_new and not application_id and not version:
        return
    if application_id != APPLICATION_ID:
        raise StoreDamaged(
            f"{path} is not a store of peeklock: its application id is {application_id:#010x}, "
            f"not {APPLICATION_ID:#010x}"
        )
    if version > FORMAT:
        release = _release_of(path)
        writer, wanted = "a newer release", "a newer release"
        if release is not None:
            writer, wanted = f"release {release}", f"release {release} or a newer one"
        raise StoreTooNew(
            f"{path} has format {version}, written by {writer}; this release, {__version__}, reads up to "
            f"{FORMAT}: start {wanted}, or restore a back-up that was made before the upgrade"
        )


def release_entry() -> Entry:
    """Return the entry that names this release as the writer of the format."""
    return definitions.entry(definitions.RELEASE_KEY, __version__)


def _release_of(path: Path) -> str | None:
    """Return the release that wrote the format of a file, as far as this one can read it."""
    query = "SELECT v FROM kv WHERE k = ?"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as db:
            rows = db.execute(query, (definitions.RELEASE_KEY,)).fetchall()
    except sqlite3.Error:
        return None
    text = str(rows[0][0]) if rows else ""
    return text if _RELEASE.fullmatch(text) else None
