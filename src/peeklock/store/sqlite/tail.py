"""Checks that the end of a store is complete, by the write-ahead log and the witness."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from peeklock.store.base import StoreDamaged, StoreGone
from peeklock.store.encoding import frames
from peeklock.store.sqlite import wal, witness
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.read_only import open_read_only
from peeklock.store.sqlite.witness import Seen


def verify(path: Path) -> None:
    """Check a store before it is opened for writing, and cut off what a crash left of the last commit.

    A connection that may write copies the log into the database and starts it over, so later it proves
    nothing. Raises: StoreDamaged, StoreFailed.
    """
    seen = witness.read(path.parent)
    if not path.exists() or not path.stat().st_size:
        if seen is not None and seen.no:
            raise StoreGone(no_database(path, seen))
        return
    with store_errors(f"check {path}"), open_read_only(path, is_ours=True) as db:
        db.execute("BEGIN")
        damages = damages_of(db, path, seen)
        left = wal.inspect(path)
    if damages:
        raise StoreDamaged("; ".join(damages))
    if left is not None:
        wal.cut_left_over(path, left)


def no_database(path: Path, seen: Seen) -> str:
    """Return the text about a missing database."""
    return (
        f"{path} is missing or empty, and batch {seen.no} was acknowledged. Put back a copy of the whole "
        f"folder, or remove {path.with_name(witness.WITNESS_NAME)} to start empty and lose all data"
    )


def damages_of(
    db: sqlite3.Connection, path: Path, seen: Seen | None, *, is_written: bool = False
) -> list[str]:
    """Return what is missing at the end of a store, as texts for people.

    Args:
        db: in a read transaction.
        path: of the database.
        seen: by the witness, read before that.
        is_written: a broker is writing, so the log grows.
    """
    damages = []
    last_no = _last_no(db)
    if not is_written and (seen is None or seen.counts):
        damages += _damages_of_log(path)
    copied_no = 0 if is_written else _last_no_copied(path)
    if copied_no > last_no:
        name = wal.path_of(path)
        damages.append(f"{name} ends at batch {last_no}, but what was copied from it goes up to {copied_no}")
    if seen is None or not seen.no:
        return damages
    if seen.counts and seen.no > last_no:
        which = f"batch {seen.no} is" if seen.no == last_no + 1 else f"batches {last_no + 1} to {seen.no} are"
        damages.append(f"{which} missing from {path}: all up to {seen.no} were acknowledged")
    elif seen.no <= last_no:
        for (head,) in db.execute("SELECT substr(meta, 1, 5) FROM journal WHERE no = ?", (seen.no,)):
            if type(head) is not bytes or frames.checksum_of(head) != seen.checksum:
                damages.append(f"frame {seen.no} is not the one that was acknowledged")
    return damages


def _last_no(db: sqlite3.Connection) -> int:
    [[tables]] = db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'journal'").fetchall()
    if not tables:
        return 0
    [[last_no]] = db.execute("SELECT coalesce(max(no), 0) FROM journal").fetchall()
    return int(last_no)


def _last_no_copied(path: Path) -> int:
    """Return the last batch in the database without its log; 0 if unreadable, as after a kill."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
        try:
            return _last_no(db)
        finally:
            db.close()
    except sqlite3.Error:
        return 0


def _damages_of_log(path: Path) -> list[str]:
    found = wal.inspect(path)
    if found is None:
        return []
    name = wal.path_of(path)
    if not found.head_is_sound:
        return (
            [f"the head of {name} is damaged: SQLite reads none of its commits"]
            if found.has_left_over
            else []
        )
    if not found.lost_commits:
        return []
    return [
        f"{name} is damaged at byte {found.read_bytes:,} or soon after it: {found.lost_commits} commits "
        "cannot be read in order; a crash leaves one such commit at most"
    ]
