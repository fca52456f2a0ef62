"""Verification of a store, for `peeklock check`: reads everything, changes nothing.

It finds damaged pages (SQLite's own integrity check); frames that fail their checksum, are missing or were
replaced by others; body rows and payloads that fail their checksum, with the messages that need them; missing
bodies that live messages need; definitions that cannot be read or contradict each other; and a missing end,
where the WAL or the witness proves it (`tail`). What it cannot find is in docs/explanation/durability.md.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY
from peeklock.broker.vocabulary.message import Message
from peeklock.store.base import Blob, Entry, StoreDamaged, StoreError, StoreTooNew
from peeklock.store.encoding import body_rows, definitions, event_rows, frames
from peeklock.store.encoding.fold import Chain, Fold
from peeklock.store.losses import messages_named, queue_name
from peeklock.store.sqlite import tail, witness
from peeklock.store.sqlite.folder import DATABASE_NAME, holder, is_held
from peeklock.store.sqlite.format import check_header, read_format, schema_damages
from peeklock.store.sqlite.read_only import open_read_only

SOUND, DAMAGED, NOT_CHECKED = 0, 1, 2
"""Exit statuses."""

INTEGRITY_LINES_MAX = 20

PAYLOADS_NAMED_MAX = 100
"""Damaged payloads named one by one, of all rows together; the rest is counted by row. Our choice: a page of
4 KiB holds some 40 small ones."""

MESSAGES_NAMED_MAX = 5
"""Messages named of those that share a damaged payload; a topic's copies may be 10,000. Our choice."""

Places = dict[int, list[int]]
"""Slots of damaged payloads, by body row."""


@dataclass(slots=True)
class Report:
    """The findings of a check."""

    lines: list[str] = field(default_factory=list)
    handled: int = 0
    """Messages that are dead-lettered already because their bodies are damaged: no new damage."""
    damages: list[str] = field(default_factory=list)
    """One line for each damage; also in `lines`."""
    exit_status: int = SOUND
    stops: bool = False
    """Whether something other than payloads is damaged: a start refuses, or the broker would stop."""
    is_gone: bool = False
    """Whether the database is missing; the damage names all ways on."""

    def say(self, line: str) -> None:
        """Add a line that reports no damage."""
        self.lines.append(line)

    def damage(self, line: str, *, stops: bool = True) -> None:
        """Add a damage."""
        self.stops = self.stops or stops
        self.damages.append(line)
        self.lines.append(f"DAMAGED: {line}")
        self.exit_status = DAMAGED

    def know(self, line: str, messages: int) -> None:
        """Add a damaged body whose messages are dead-lettered already; `messages`: their number."""
        self.handled += messages
        self.lines.append(f"KNOWN: {line}")

    def close(self, changed: str) -> None:
        """Add the number of damages; `changed` ends the line if there are any."""
        if self.handled:
            were, they = ("message was", "it is") if self.handled == 1 else ("messages were", "they are")
            self.say(
                f"{self.handled:,} {were} dead-lettered before without the damaged body; its bytes stay for "
                f"rescue until {they} completed or deleted"
            )
        count = len(self.damages)
        if count:
            self.say(f"{count} damage{'s' if count > 1 else ''} found{changed}")
        else:
            self.say("no other damage found" if self.handled else "no damage found")


@dataclass(slots=True)
class _Needs:
    """The needs of live messages on one body row."""

    messages: int = 0
    handled: int = 0
    """Those of them that are dead-lettered already because the body is damaged."""
    last_slot: int = 0
    queue_ids: set[int] = field(default_factory=set)


class Rows(Protocol):
    """All that a store has, in the order of its keys and numbers, read as often as it is asked for."""

    def entries(self) -> Iterable[Entry]:
        """Return the facts that are kept apart from the journal."""

    def journal(self) -> Iterable[Blob]:
        """Return the frames."""

    def bodies(self) -> Iterable[Blob]:
        """Return the body rows."""

    def events(self) -> Iterable[Blob]:
        """Return the event rows."""


class _SqliteRows:
    """See `Rows`; values may be of any type, which no checksum covers."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def entries(self) -> Iterable[Entry]:
        return self._db.execute("SELECT k, v, checksum FROM kv ORDER BY k")

    def journal(self) -> Iterable[Blob]:
        return self._db.execute("SELECT no, meta FROM journal ORDER BY no")

    def bodies(self) -> Iterable[Blob]:
        return self._db.execute("SELECT no, data FROM body ORDER BY no")

    def events(self) -> Iterable[Blob]:
        if not self._db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'event'").fetchone()[0]:
            return ()  # a store of a format before 4
        return self._db.execute("SELECT no, data FROM event ORDER BY no")


def check(
    folder: str | os.PathLike[str],
    is_bodiless: Callable[[Message], bool] = lambda message: False,
    *,
    repair_follows: bool = False,
) -> Report:
    """Verify the store in a folder, as committed at the start. A running broker is not disturbed.

    Args:
        folder: the data folder of a broker.
        is_bodiless: whether a message is a dead letter whose body is known to be damaged.
        repair_follows: leave out that nothing was changed.
    """
    report = Report()
    path = Path(folder) / DATABASE_NAME
    seen = witness.read(path.parent)
    if seen is not None and seen.no and not (path.is_file() and path.stat().st_size):
        report.damage(tail.no_database(path, seen))
        report.is_gone = True
        return report
    if not path.is_file():
        report.say(f"there is no store in {folder}: {path} does not exist")
        report.exit_status = NOT_CHECKED
        return report
    is_used = is_held(path.parent)
    used = f", in use by {holder(path.parent)}" if is_used else ""
    try:
        check_header(path)
        with open_read_only(path) as db:
            db.execute("BEGIN")
            report.say(f"store {path}, format {read_format(db, path)}{used}")
            for damage in tail.damages_of(db, path, seen, is_written=is_used):
                report.damage(damage)
            _check_pages(db, report)
            for damage in schema_damages(db):
                report.damage(damage)
            check_rows(_SqliteRows(db), report, is_bodiless)
    except StoreTooNew as error:
        report.say(str(error))
        report.exit_status = NOT_CHECKED
        return report
    except StoreError as error:
        report.damage(str(error))
    except sqlite3.Error as error:
        report.damage(f"{path} cannot be read further: {error}")
    report.close("" if repair_follows else "; nothing was changed")
    return report


def check_rows(rows: Rows, report: Report, is_bodiless: Callable[[Message], bool]) -> None:
    """Verify all that a store has; what reading it raises is not caught."""
    names = _check_definitions(rows, report)
    needs = _check_journal(rows, report, names, is_bodiless)
    _check_bodies(rows, report, names, needs, is_bodiless)
    _check_events(rows, report)


def _check_pages(db: sqlite3.Connection, report: Report) -> None:
    for (line,) in db.execute(f"PRAGMA integrity_check({INTEGRITY_LINES_MAX})"):
        if line != "ok":
            report.damage(f"SQLite: {' '.join(line.split())}")


def _check_definitions(rows: Rows, report: Report) -> dict[int, str] | None:
    """Return the names of entities by id, None if some cannot be read."""
    reader = definitions.Reader()
    sound = True
    for entry in rows.entries():
        try:
            reader.add(*entry)
        except StoreDamaged as error:
            report.damage(str(error))
            sound = False
    if sound:  # otherwise one damage would be reported twice
        for contradiction in reader.contradictions():
            report.damage(contradiction)
    found = reader.read()
    report.say(f"entities: {len(found.entities)}, rules: {len(found.rules)}")
    if found.cursors:
        report.say(f"cursors: {len(found.cursors)}, claims: {len(found.claims)}")
    if found.facts:
        report.say(f"facts: {len(found.facts)}")
    return {entity.entity_id: entity.description.name for entity in found.entities} if sound else None


def _check_journal(
    rows: Rows,
    report: Report,
    names: dict[int, str] | None,
    is_bodiless: Callable[[Message], bool],
) -> dict[int, _Needs] | None:
    """Check all frames; return the needs on each body row, None if they are unknown."""
    fold: Fold | None = Fold()
    chain = Chain()
    first = last = None
    size_bytes = 0
    for no, meta in rows.journal():
        first = no if first is None else first
        last = no
        size_bytes += len(meta or b"")
        damaged = False
        try:
            if fold is not None:
                fold.add(no, meta)
            else:
                frames.decode(no, meta)
        except StoreDamaged as error:
            report.damage(str(error))
            damaged = True
        try:
            if damaged:
                chain.follow_damaged(no)
            else:
                chain.follow(no, meta)
        except StoreDamaged as error:
            report.damage(str(error))
            damaged = True
        if damaged:
            fold = None
    if first is None:
        report.say("journal: empty")
    else:
        report.say(f"journal: frames {first} to {last}, {size_bytes:,} bytes")
    if fold is None or names is None:
        report.say(
            "messages: not counted, since part of the store cannot be read; missing bodies cannot be found"
        )
        return None
    needs: dict[int, _Needs] = {}
    counts: Counter[int] = Counter()
    for queue_id, changes in fold.finish().messages:
        if queue_id // QUEUES_PER_ENTITY not in names:
            continue  # of a deleted entity
        counts[queue_id] += len(changes)
        for change in changes:
            need = needs.setdefault(change.message.body_row, _Needs())
            need.messages += 1
            need.handled += is_bodiless(change.message)
            need.last_slot = max(need.last_slot, change.message.body_slot)
            need.queue_ids.add(queue_id)
    report.say(f"messages: {counts.total():,}")
    for queue_id, count in sorted(counts.items()):
        report.say(f"  {queue_name(queue_id, names)}: {count:,}")
    return needs


def _check_bodies(
    store: Rows,
    report: Report,
    names: dict[int, str] | None,
    needs: dict[int, _Needs] | None,
    is_bodiless: Callable[[Message], bool],
) -> None:
    rows = idle = size_bytes = 0
    damaged: Places = {}
    for row, data in store.bodies():
        rows += 1
        size_bytes += len(data or b"")
        need = None if needs is None else needs.pop(row, None)
        idle += needs is not None and need is None
        try:
            payloads, slots = body_rows.read(row, data)
        except StoreDamaged as error:
            _name_row(report, str(error), need, names)
            continue
        count = len(payloads)
        if slots:
            damaged[row] = slots
        if need is not None and need.last_slot >= count:
            needed = f"{_needed_by(need, names)}, up to slot {need.last_slot}"
            report.damage(f"body row {row} has {count} payloads{needed}")
    waiting = f", {idle:,} of them unused" if idle else ""
    report.say(f"bodies: {rows:,} rows, {size_bytes:,} bytes{waiting}")
    for row, need in sorted((needs or {}).items()):
        _name_row(report, f"body row {row} is missing", need, names)
    if damaged:
        owners = {} if needs is None or names is None else _owners(store, damaged, names, is_bodiless)
        _name_payloads(report, damaged, owners, names or {})


def _name_row(report: Report, text: str, need: _Needs | None, names: dict[int, str] | None) -> None:
    """Report a row that is missing or cannot be read."""
    if need is None or need.handled < need.messages:
        report.damage(f"{text}{_needed_by(need, names)}", stops=False)
    else:
        were = "message was" if need.messages == 1 else "messages were"
        report.know(f"{text}; {need.messages:,} {were} dead-lettered without it", need.messages)


@dataclass(slots=True)
class _Owners:
    """The messages of one damaged payload, by queue id and sequence number."""

    needing: list[tuple[int, SequenceNumber]] = field(default_factory=list)
    handled: list[tuple[int, SequenceNumber]] = field(default_factory=list)


def _owners(
    rows: Rows, damaged: Places, names: dict[int, str], is_bodiless: Callable[[Message], bool]
) -> dict[tuple[int, int], _Owners]:
    """Return the messages of damaged payloads, by (row, slot).

    The journal is sound; it is read once more, since all messages by payload would take the memory of a whole
    broker.
    """
    fold = Fold()
    for no, meta in rows.journal():
        fold.add(no, meta)
    places = {(row, slot) for row, slots in damaged.items() for slot in slots}
    owners: dict[tuple[int, int], _Owners] = {}
    for queue_id, changes in fold.finish().messages:
        if queue_id // QUEUES_PER_ENTITY not in names:
            continue
        for change in changes:
            message = change.message
            place = message.body_row, message.body_slot
            if place in places:
                found = owners.setdefault(place, _Owners())
                which = found.handled if is_bodiless(message) else found.needing
                which.append((queue_id, message.sequence_number))
    return owners


def _name_payloads(
    report: Report, damaged: Places, owners: dict[tuple[int, int], _Owners], names: dict[int, str]
) -> None:
    """Report damaged payloads, the first of them one by one with their messages."""
    left = PAYLOADS_NAMED_MAX
    for row, slots in damaged.items():
        found = {slot: owners.get((row, slot), _Owners()) for slot in slots}
        known = [slot for slot in slots if found[slot].handled and not found[slot].needing]
        others = [slot for slot in slots if slot not in known]
        for slot in others[:left]:
            report.damage(_fails(row, [slot]) + _needed_for(found[slot].needing, names), stops=False)
        if len(others) > left:
            report.damage(_fails(row, others[left:]), stops=False)
        left -= min(left, len(others))
        for slot in known[:left]:
            handled = sorted(found[slot].handled)
            text = messages_named(handled, names, MESSAGES_NAMED_MAX)
            were = "was" if len(handled) == 1 else "were"
            report.know(f"{_fails(row, [slot])}; {text} {were} dead-lettered without it", len(handled))
        if len(known) > left:
            count = sum(len(found[slot].handled) for slot in known[left:])
            report.know(f"{_fails(row, known[left:])}; dead-lettered without: {count:,}", count)
        left -= min(left, len(known))


def _fails(row: int, slots: list[int]) -> str:
    return f"body row {row} fails the checksum of {body_rows.describe(slots)}"


def _needed_for(messages: list[tuple[int, SequenceNumber]], names: dict[int, str]) -> str:
    if not messages:
        return ""
    named = messages_named(sorted(messages), names, MESSAGES_NAMED_MAX)
    return f"; {named} need{'s' if len(messages) == 1 else ''} it"


def _needed_by(need: _Needs | None, names: dict[int, str] | None) -> str:
    if need is None or names is None:
        return ""
    queues = ", ".join(queue_name(queue_id, names) for queue_id in sorted(need.queue_ids))
    return f"; {need.messages:,} message{'s' if need.messages > 1 else ''} of {queues} need it"


def _check_events(store: Rows, report: Report) -> None:
    """Check every event row that waits to be exported."""
    rows = count = 0
    for no, data in store.events():
        rows += 1
        try:
            count += len(event_rows.unpack(no, data))
        except StoreDamaged as error:
            report.damage(str(error))
    if rows:
        report.say(f"{count} events in {rows} rows wait to be exported")
