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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, Change, NumbersIssued
from peeklock.broker.vocabulary.message import Message
from peeklock.store.base import Batch, Definitions, LiveFacts, StoreDamaged, StoreFailed, StoreGone
from peeklock.store.encoding import body_rows, definitions, entities, event_rows, frames
from peeklock.store.encoding.fold import Chain, Fold
from peeklock.store.losses import Losses
from peeklock.store.sqlite import tail, wal, witness
from peeklock.store.sqlite.errors import store_errors
from peeklock.store.sqlite.folder import DATABASE_NAME, FolderLock, sync
from peeklock.store.sqlite.format import SCHEMA, schema_damages
from peeklock.store.sqlite.read_only import open_read_only

SKIPPED_NUMBERS = 1_000_000_000
"""Sequence and claim numbers that are skipped. Our choice: a log of 40 MB has under a million records."""

SKIPPED_BATCHES = 1_000_000
"""Numbers of batches and of entities that are skipped, likewise."""

NUMBER_MAX = 2**63 - 1
"""The last sequence number. A queue counts by its next position; the number is for readers of the journal."""

PIECE_CHANGES = 20_000
"""Facts of a new frame."""


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
        _make(to)
        losses = Losses(doubts=_damaged_tables(db))
        found = _copy_definitions(db, to, losses)
        bodies = _Bodies(losses, is_bodiless)
        rows = _copy_rows(db, to, "body", "data", bodies.read)
        live = _fold(db, seen, losses)
        first_no = max(0 if seen is None else seen.no, losses.last_no) + SKIPPED_BATCHES
        messages = _write_journal(to, live, found, first_no, bodies)
        events = _copy_rows(db, to, "event", "data", partial(_read_events, losses))
        to.execute("COMMIT")
    sync(new)
    names = {entity.entity_id: entity.description.name for entity in found.entities}
    return [
        *losses.lines(None if seen is None else seen.no, names),
        f"kept: {len(found.entities):,} entities, {len(found.rules):,} rules, {messages:,} messages, "
        f"{rows:,} body rows, {events:,} event rows, {len(found.facts):,} facts",
        f"sequence numbers continue {SKIPPED_NUMBERS:,} higher, batch numbers at {first_no:,}",
    ]


def _make(to: sqlite3.Connection) -> None:
    """Create an empty store, in a transaction that stays open."""
    to.execute("PRAGMA page_size = 4096")
    to.execute("PRAGMA auto_vacuum = INCREMENTAL")
    to.execute("PRAGMA journal_mode = OFF").fetchall()
    to.execute("BEGIN")
    for statement in SCHEMA:
        to.execute(statement)


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
        self._is_bodiless = is_bodiless
        self._counts: dict[int, int] = {}  # payloads, by row
        self._damaged: set[tuple[int, int]] = set()

    def read(self, row: int, data: bytes) -> None:
        """Record the payloads of a row. Raises: StoreDamaged."""
        payloads, damaged = body_rows.read(row, data)
        self._counts[row] = len(payloads)
        self._damaged.update((row, slot) for slot in damaged)

    def look(self, queue_id: int, message: Message) -> None:
        """Count a message as lost if its body cannot be read."""
        row, slot = message.body_row, message.body_slot
        if slot < self._counts.get(row, 0) and (row, slot) not in self._damaged:
            return
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


def _entries(db: sqlite3.Connection) -> dict[str, definitions.Entry]:
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
    last_id = max((entity.entity_id for entity in found.entities), default=0)
    next_id = max(found.next_entity_id, last_id + 1) + SKIPPED_BATCHES
    changed = {definitions.NEXT_ENTITY_ID_KEY: str(next_id)}
    for cursor in found.cursors:
        higher = replace(cursor, last_no=cursor.last_no + SKIPPED_NUMBERS)
        changed[entities.cursor_key(cursor.queue_id, cursor.name)] = entities.encode_cursor(higher)
    if definitions.CREATED_AT_KEY not in entries:
        changed[definitions.CREATED_AT_KEY] = str(time.time_ns() // 1_000_000)
    entries.update((key, definitions.entry(key, text)) for key, text in changed.items())
    to.executemany("INSERT INTO kv VALUES (?, ?, ?)", entries.values())
    return found


# Writing


def _write_journal(
    to: sqlite3.Connection, live: LiveFacts, found: Definitions, first_no: int, bodies: _Bodies
) -> int:
    """Write the live facts as new frames; return the number of messages."""
    known = {entity.entity_id for entity in found.entities}
    numbers = {each.queue_id: each for _, each in live.numbers if each.queue_id // QUEUES_PER_ENTITY in known}
    last: dict[int, int] = {}  # position, by queue
    previous, no, count = 0, first_no, 0

    def write(changes: list[Change]) -> None:
        nonlocal previous, no
        meta = frames.encode(Batch(no, changes), previous)
        to.execute("INSERT INTO journal VALUES (?, ?)", (no, meta))
        previous, no = frames.checksum_of(meta), no + 1

    changes: list[Change] = []
    for queue_id, stored in live.messages:
        if queue_id // QUEUES_PER_ENTITY not in known:
            bodies.losses.orphans += len(stored)
            continue
        count += len(stored)
        for change in stored:
            bodies.look(queue_id, change.message)
        last[queue_id] = max(last.get(queue_id, 0), *(change.message.position for change in stored), 0)
        changes += stored
        if len(changes) >= PIECE_CHANGES:
            write(changes)
            changes = []
    ids = [seen for seen in live.ids if seen.queue_id // QUEUES_PER_ENTITY in known]
    for entity in found.entities:
        queue_id = entity.entity_id * QUEUES_PER_ENTITY
        partitions = (1,) * frames.PARTITIONS if entity.description.enable_partitioning else ()
        numbers.setdefault(queue_id, NumbersIssued(queue_id, 1, SequenceNumber(1), 0, partitions))
    changes += [_higher(each, last.get(queue_id, 0)) for queue_id, each in sorted(numbers.items())]
    write([*changes, *ids])
    return count


def _higher(numbers: NumbersIssued, last_position: int) -> NumbersIssued:
    next_position = max(numbers.next_position, last_position + 1) + SKIPPED_NUMBERS
    return NumbersIssued(
        numbers.queue_id,
        next_position,
        SequenceNumber(min(numbers.next_sequence_number + SKIPPED_NUMBERS, NUMBER_MAX)),
        numbers.last_enqueued_at_ms,
        tuple(number + SKIPPED_NUMBERS for number in numbers.partitions),
    )
