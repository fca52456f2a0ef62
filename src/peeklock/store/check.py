"""Verification of a store, for `peeklock check`: reads everything, changes nothing.

Owns: what is looked at and how it is told. Must not know: how to repair; nothing here guesses.

It finds: damaged pages (SQLite's own integrity check), frames and body rows that fail their checksum, gaps in
the numbers of frames, bodies that live messages need and that are not there, definitions that cannot be read
or that contradict each other.
It cannot find that the end of SQLite's WAL was lost: that looks as if the process had died a little earlier.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from peeklock.broker.changes import QUEUES_PER_ENTITY
from peeklock.store import body_rows, definitions, event_rows, frames
from peeklock.store.base import StoreDamaged, StoreError, StoreTooNew
from peeklock.store.fold import Fold, gap
from peeklock.store.folder import DATABASE_NAME, holder, is_held
from peeklock.store.format import check_header, read_format
from peeklock.store.looking import looked_at

SOUND, DAMAGED, NOT_CHECKED = 0, 1, 2
"""Exit statuses."""

INTEGRITY_LINES_MAX = 20

_SUB_QUEUES = ("", " (dead letters)", " (transfer dead letters)", " (session states)")


@dataclass(slots=True)
class Report:
    """What was found, in lines for people."""

    lines: list[str] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    """What is damaged, one line each; also in `lines`."""
    exit_status: int = SOUND

    def say(self, line: str) -> None:
        self.lines.append(line)

    def damage(self, line: str) -> None:
        self.damages.append(line)
        self.lines.append(f"DAMAGED: {line}")
        self.exit_status = DAMAGED


@dataclass(slots=True)
class _Needs:
    """What live messages need of one body row."""

    messages: int = 0
    last_slot: int = 0
    queue_ids: set[int] = field(default_factory=set)


def check(folder: str | os.PathLike[str]) -> Report:
    """Verify the store in a folder. A running broker is not disturbed: what it had committed at the start is
    read."""
    report = Report()
    path = Path(folder) / DATABASE_NAME
    if not path.is_file():
        report.say(f"there is no store in {folder}: {path} does not exist")
        report.exit_status = NOT_CHECKED
        return report
    try:
        check_header(path)
    except StoreTooNew as error:
        report.say(str(error))
        report.exit_status = NOT_CHECKED
        return report
    except StoreError as error:
        report.damage(str(error))
        return report
    used = f", in use by {holder(path.parent)}" if is_held(path.parent) else ""
    try:
        with looked_at(path) as db:
            db.execute("BEGIN")
            report.say(f"store {path}, format {read_format(db, path)}{used}")
            _check_all(db, report)
    except StoreTooNew as error:
        report.say(str(error))
        report.exit_status = NOT_CHECKED
        return report
    except StoreError as error:
        report.damage(str(error))
    except sqlite3.Error as error:
        report.damage(f"{path} cannot be read further: {error}")
    count = len(report.damages)
    report.say(
        f"{count} damage{'s' if count > 1 else ''} found; nothing was changed" if count else "no damage found"
    )
    return report


def _check_all(db: sqlite3.Connection, report: Report) -> None:
    _check_pages(db, report)
    names = _check_definitions(db, report)
    needs = _check_journal(db, report, names)
    _check_bodies(db, report, names, needs)
    _check_events(db, report)


def _check_pages(db: sqlite3.Connection, report: Report) -> None:
    for (line,) in db.execute(f"PRAGMA integrity_check({INTEGRITY_LINES_MAX})"):
        if line != "ok":
            report.damage(f"SQLite: {' '.join(line.split())}")


def _check_definitions(db: sqlite3.Connection, report: Report) -> dict[int, str] | None:
    """Give the names of entities by id, None when not all can be read."""
    reader = definitions.Reader()
    sound = True
    for entry in db.execute("SELECT k, v, checksum FROM kv ORDER BY k"):
        try:
            reader.add(*entry)
        except StoreDamaged as error:
            report.damage(str(error))
            sound = False
    if sound:  # else one damage would be told again as others
        for contradiction in reader.contradictions():
            report.damage(contradiction)
    found = reader.read()
    report.say(f"entities: {len(found.entities)}, rules: {len(found.rules)}")
    if found.cursors:
        report.say(f"cursors: {len(found.cursors)}, claims: {len(found.claims)}")
    return {entity.entity_id: entity.description.name for entity in found.entities} if sound else None


def _check_journal(
    db: sqlite3.Connection, report: Report, names: dict[int, str] | None
) -> dict[int, _Needs] | None:
    """Check all frames; give what live messages need of the body rows, None when that cannot be known."""
    fold: Fold | None = Fold()
    first = expected = None
    size_bytes = 0
    for no, meta in db.execute("SELECT no, meta FROM journal ORDER BY no"):
        if expected is not None and no != expected:
            report.damage(gap(expected, no))
            fold = None
        first = no if first is None else first
        expected = no + 1
        size_bytes += len(meta)
        try:
            if fold is not None:
                fold.add(no, meta)
            else:
                frames.decode(no, meta)
        except StoreDamaged as error:
            report.damage(str(error))
            fold = None
    if first is None:
        report.say("journal: empty")
    else:
        report.say(f"journal: frames {first} to {(expected or 0) - 1}, {size_bytes:,} bytes")
    if fold is None or names is None:
        report.say(
            "messages: not counted, since not everything could be read; nor is known which bodies they need"
        )
        return None
    needs: dict[int, _Needs] = {}
    counts: Counter[int] = Counter()
    for queue_id, changes in fold.finish().messages:
        if queue_id // QUEUES_PER_ENTITY not in names:
            continue  # a deleted entity's
        counts[queue_id] += len(changes)
        for change in changes:
            need = needs.setdefault(change.message.body_row, _Needs())
            need.messages += 1
            need.last_slot = max(need.last_slot, change.message.body_slot)
            need.queue_ids.add(queue_id)
    report.say(f"messages: {counts.total():,}")
    for queue_id, count in sorted(counts.items()):
        report.say(f"  {_queue_name(queue_id, names)}: {count:,}")
    return needs


def _check_bodies(
    db: sqlite3.Connection, report: Report, names: dict[int, str] | None, needs: dict[int, _Needs] | None
) -> None:
    rows = idle = size_bytes = 0
    for row, data in db.execute("SELECT no, data FROM body ORDER BY no"):
        rows += 1
        size_bytes += len(data)
        need = None if needs is None else needs.pop(row, None)
        idle += needs is not None and need is None
        try:
            count = len(body_rows.unpack(row, data))
        except StoreDamaged as error:
            report.damage(f"{error}{_needed_by(need, names)}")
            continue
        if need is not None and need.last_slot >= count:
            needed = f"{_needed_by(need, names)}, up to slot {need.last_slot}"
            report.damage(f"body row {row} has {count} payloads{needed}")
    waiting = f", {idle:,} of the rows wait to be dropped" if idle else ""
    report.say(f"bodies: {rows:,} rows, {size_bytes:,} bytes{waiting}")
    for row, need in sorted((needs or {}).items()):
        report.damage(f"body row {row} is missing{_needed_by(need, names)}")


def _needed_by(need: _Needs | None, names: dict[int, str] | None) -> str:
    if need is None or names is None:
        return ""
    queues = ", ".join(_queue_name(queue_id, names) for queue_id in sorted(need.queue_ids))
    return f"; {need.messages:,} message{'s' if need.messages > 1 else ''} of {queues} need it"


def _queue_name(queue_id: int, names: dict[int, str]) -> str:
    entity_id, sub_queue = divmod(queue_id, QUEUES_PER_ENTITY)
    return f"'{names[entity_id]}'" + _SUB_QUEUES[sub_queue]


def _check_events(db: sqlite3.Connection, report: Report) -> None:
    """Read every event row; those that were exported are not here any more."""
    if not db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'event'").fetchone()[0]:
        return  # a store of a format before 4 has none
    rows = count = 0
    for no, data in db.execute("SELECT no, data FROM event ORDER BY no"):
        rows += 1
        try:
            count += len(event_rows.unpack(no, data))
        except StoreDamaged as error:
            report.damage(str(error))
    if rows:
        report.say(f"{count} events in {rows} rows wait to be exported")
