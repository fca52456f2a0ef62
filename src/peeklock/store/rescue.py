"""Replaces a damaged store by a copy of what can be read, for `peeklock serve --accept-loss`.

The damaged files are moved into a folder, and a new database takes their place. It has each readable
definition and body row, and a new journal of the facts in readable frames. A message that only a lost frame
stored is lost; one that only a lost frame removed is back.

No number is issued twice: the numbers of the lost part are unknown, so all counters skip far ahead.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.message import Message
from peeklock.store.base import Definitions, Entry, LiveFacts, StoreDamaged, StoreFailed, StoreGone
from peeklock.store.encoding import body_rows, definitions, event_rows, frames
from peeklock.store.encoding.fold import Chain, Fold
from peeklock.store.losses import Losses
from peeklock.store.renumbering import renumbered_entries, renumbered_frames
from peeklock.store.sqlite import tail, wal, witness
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.filler import make_store
from peeklock.store.sqlite.folder import DATABASE_NAME, FolderLock, sync
from peeklock.store.sqlite.format import release_entry, schema_damages
from peeklock.store.sqlite.read_only import open_read_only

SKIPPED_NUMBERS = 1_000_000_000
"""Sequence and claim numbers that are skipped. Our choice: a log of 40 MB has under a million records."""

SKIPPED_BATCHES = 1_000_000
"""Numbers of batches that are skipped, likewise."""


def accept_loss(folder: Path, is_bodiless: Callable[[Message], bool] = lambda message: False) -> list[str]:
    """Replace a damaged store by what can be read of it; return the losses as lines for people.

    Args:
        folder: the data folder of a broker.
        is_bodiless: whether a message is a dead letter whose body is known to be damaged.

    Raises: StoreInUse, StoreFailed, StoreDamaged if nothing can be read.
    """
    lock = FolderLock(folder)
    lock.take()
    try:
        return _replace(folder, is_bodiless)
    finally:
        lock.release()


def _replace(folder: Path, is_bodiless: Callable[[Message], bool]) -> list[str]:
    path = folder / DATABASE_NAME
    seen = witness.read(folder)
    if not path.is_file() or not path.stat().st_size:
        why = f"{path} is missing or empty" if seen is None else tail.no_database(path, seen)
        raise StoreGone(f"--accept-loss finds nothing to read: {why}")
    needed = path.stat().st_size
    if shutil.disk_usage(folder).free < needed:
        raise StoreFailed(f"the copy of the readable part of {path} needs {needed:,} bytes; free some space")
    aside = folder / time.strftime("damaged-%Y%m%dT%H%M%SZ", time.gmtime())
    new = folder / f"{DATABASE_NAME}.new"
    log = wal.path_of(path)
    try:
        aside.mkdir()
        new.unlink(missing_ok=True)
        _link(path, aside / DATABASE_NAME)
        if log.exists() and (data := wal.mended(log.read_bytes())):
            wal.path_of(aside / DATABASE_NAME).write_bytes(data)
        said = _copy(aside / DATABASE_NAME, new, seen, is_bodiless)
        if log.exists():
            log.replace(aside / f"{log.name}.found")
        Path(f"{path}-shm").unlink(missing_ok=True)
        if (folder / witness.WITNESS_NAME).exists():
            (folder / witness.WITNESS_NAME).replace(aside / witness.WITNESS_NAME)
        new.replace(path)
        for each in (folder, aside):
            sync(each)
    except OSError as error:
        raise StoreFailed(f"cannot set aside the damaged files of {folder}: {error}") from error
    return [*said, f"the damaged files are in {aside}"]


def _link(path: Path, other: Path) -> None:
    try:
        os.link(path, other)
    except OSError:  # a file system without links
        shutil.copyfile(path, other)


def _copy(
    old: Path, new: Path, seen: witness.Seen | None, is_bodiless: Callable[[Message], bool]
) -> list[str]:
    """Copy what can be read into a new database; return what is lost and what is kept, as lines."""
    with (
        store_errors(f"copy {old}"),
        open_read_only(old) as db,
        closing(sqlite3.connect(new, isolation_level=None)) as to,
    ):
        db.text_factory = lambda data: data.decode(errors="replace")  # checksums find what is wrong
        for damage in schema_damages(db):
            raise StoreDamaged(f"{damage}; nothing can be read: restore your last copy of the folder")
        make_store(to)
        losses = Losses(doubts=_damaged_tables(db))
        found = _copy_definitions(db, to, losses)
        bodies = _Bodies(losses, is_bodiless)
        rows = _copy_rows(db, to, "body", "data", bodies.read)
        live = _fold(db, seen, losses)
        first_no = max(0 if seen is None else seen.no, losses.last_no) + SKIPPED_BATCHES
        to.executemany(
            "INSERT INTO journal VALUES (?, ?)",
            renumbered_frames(live, found, first_no, SKIPPED_NUMBERS, bodies.look),
        )
        events = _copy_rows(db, to, "event", "data", partial(_read_events, losses))
        to.execute("COMMIT")
    sync(new)
    names = {entity.entity_id: entity.description.name for entity in found.entities}
    return [
        *losses.lines(None if seen is None else seen.no, names),
        f"kept: {len(found.entities):,} entities, {len(found.rules):,} rules, {bodies.messages:,} messages, "
        f"{rows:,} body rows, {events:,} event rows, {len(found.facts):,} facts",
        f"sequence numbers continue {SKIPPED_NUMBERS:,} higher, batch numbers at {first_no:,}",
    ]


# Reading


FAR = 1 << 40
"""No broker gets this far: a row with such a number is damaged."""


def readable(db: sqlite3.Connection, table: str, column: str) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a table by number, each once, without those on unreadable pages.

    Rows with a damaged number, or repeated by a page in the place of another, are skipped too.
    """
    after, step = -1, 1
    while after < 1 << 62:
        try:
            for no, data in db.execute(
                f"SELECT no, {column} FROM {table} WHERE no > ? ORDER BY no", (after,)
            ):
                if not after < no < after + FAR:
                    continue  # else the loop might never end
                after, step = no, 1
                yield no, data
            return
        except sqlite3.DatabaseError:
            after += step
            step *= 2


def _copy_rows(
    db: sqlite3.Connection,
    to: sqlite3.Connection,
    table: str,
    column: str,
    read: Callable[[int, bytes], object],
) -> int:
    """Copy the rows for which `read` does not raise StoreDamaged; return their number."""
    count = 0
    for no, data in readable(db, table, column):
        try:
            read(no, data)
        except StoreDamaged:
            continue
        to.execute(f"INSERT INTO {table} VALUES (?, ?)", (no, data))
        count += 1
    return count


class _Bodies:
    """The readable payloads, and the messages that need others."""

    def __init__(self, losses: Losses, is_bodiless: Callable[[Message], bool]) -> None:
        self.losses = losses
        self.messages = 0
        """Those that are kept."""
        self._is_bodiless = is_bodiless
        self._counts: dict[int, int] = {}  # payloads, by row
        self._damaged: set[tuple[int, int]] = set()

    def read(self, row: int, data: bytes) -> None:
        """Record the payloads of a row. Raises: StoreDamaged."""
        payloads, damaged = body_rows.read(row, data)
        self._counts[row] = len(payloads)
        self._damaged.update((row, slot) for slot in damaged)

    def look(self, queue_id: int, stored: list[MessageStored], is_known: bool) -> None:
        """Count the messages of a queue: as orphans, or as kept, and those that lack their body."""
        if not is_known:
            self.losses.orphans += len(stored)
            return
        self.messages += len(stored)
        for change in stored:
            message = change.message
            row, slot = message.body_row, message.body_slot
            if slot < self._counts.get(row, 0) and (row, slot) not in self._damaged:
                continue
            if self._is_bodiless(message):
                self.losses.bodies_known += 1
            else:
                self.losses.bodies.append((queue_id, message.sequence_number))


def _read_events(losses: Losses, no: int, data: bytes) -> None:
    try:
        event_rows.read_columns(no, data)
    except StoreDamaged:
        losses.event_rows += 1
        raise


def _damaged_tables(db: sqlite3.Connection) -> list[str]:
    """Return the tables with pages that SQLite cannot read, which may lack rows without a trace."""
    said = []
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE name IN ('journal', 'kv', 'event')"):
        try:
            is_sound = db.execute(f"PRAGMA integrity_check({table})").fetchall() == [("ok",)]
        except sqlite3.DatabaseError:
            is_sound = False
        if not is_sound:
            said.append(
                f"pages of the table {table} are damaged: it may have lost more rows than are listed here"
            )
    return said


def _fold(db: sqlite3.Connection, seen: witness.Seen | None, losses: Losses) -> LiveFacts:
    """Return the live facts of the readable frames."""
    fold = Fold()
    chain = Chain()
    lost: set[int] = set()
    for no, meta in readable(db, "journal", "meta"):
        try:
            fold.add(no, meta)
        except StoreDamaged:
            lost.add(no)
            continue
        last_no, losses.last_no = losses.last_no, no
        if last_no:  # both frames state their numbers, under a checksum
            lost.update(range(last_no + 1, no))
        if last_no + 1 != no:
            chain = Chain()  # the frames between are reported as lost
        try:
            chain.follow(no, meta)
        except StoreDamaged as error:
            losses.doubts.append(str(error))
        if seen is not None and seen.no == no and seen.checksum != frames.checksum_of(meta):
            losses.doubts.append(f"frame {no} is not the one that was acknowledged")
    losses.batches = sorted(lost)
    return fold.finish()


def _entries(db: sqlite3.Connection) -> dict[str, Entry]:
    """Return the readable entries, from either end."""
    found = {}
    for order in ("ASC", "DESC"):
        try:
            for entry in db.execute(f"SELECT k, v, checksum FROM kv ORDER BY k {order}"):
                found[str(entry[0])] = entry
        except sqlite3.DatabaseError:
            continue
        break
    return found


def _copy_definitions(db: sqlite3.Connection, to: sqlite3.Connection, losses: Losses) -> Definitions:
    """Copy the readable definitions, without those that need an unreadable one."""
    entries = _entries(db)
    while True:
        reader = definitions.Reader()
        gone = []
        for key, entry in entries.items():
            try:
                reader.add(*entry)
            except StoreDamaged as error:
                gone.append((key, str(error)))
        if not gone:
            gone = [(line.partition(" ")[0], line) for line in reader.contradictions()]
        for key, line in gone:
            losses.definitions.append(line)
            entries.pop(key, None)
        if not gone:
            break
    found = reader.read()
    if definitions.CREATED_AT_KEY not in entries:
        now_ms = str(time.time_ns() // 1_000_000)
        entries[definitions.CREATED_AT_KEY] = definitions.entry(definitions.CREATED_AT_KEY, now_ms)
    entries[definitions.RELEASE_KEY] = release_entry()
    to.executemany(
        "INSERT INTO kv VALUES (?, ?, ?)", renumbered_entries(entries.values(), found, SKIPPED_NUMBERS)
    )
    return found
