"""Reads back-ups through: whether they are whole, follow each other, and what they have of each store.

A back-up is read once before anything is made of it. Frames and body rows are not unpacked then, as the
checksum of a block covers what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from peeklock.store.backup.format import (
    BackupUnusable,
    Block,
    Header,
    Kind,
    Row,
    StoreEnd,
    StoreHead,
    read_blocks,
    read_record,
    unpack_entries,
    unpack_live,
)
from peeklock.store.base import Entry


@dataclass(frozen=True, slots=True)
class Section:
    """The part of a file that has a store."""

    path: Path
    at: int
    end: int
    checksum: int
    """Of the block before."""


@dataclass(slots=True)
class Covered:
    """What a back-up has of one store."""

    head: StoreHead
    end: StoreEnd
    entries: list[Entry]
    rows: dict[int, Row]
    """The live body rows, by number."""
    section: Section


@dataclass(slots=True)
class Backup:
    """What a file has."""

    path: Path
    header: Header
    stores: dict[str, Covered] = field(default_factory=dict)
    """By key, see `key_of`."""

    @property
    def taken_at(self) -> str:
        """When it was taken, for people."""
        taken = datetime.fromtimestamp(self.header.taken_at_ms / 1000, UTC)
        return taken.isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Source:
    """A store in a chain of back-ups: as the last one has it, and where its parts are."""

    last: Covered
    sections: list[Section]
    """Oldest first; the first one is full."""
    taken_at: str
    taken_at_ms: int


def key_of(head: StoreHead) -> str:
    """Return the key of a store: names of namespaces differ in more than case."""
    return f"{head.role}/{head.name.lower()}"


def verify(path: Path, store_format: int) -> Backup:
    """Return what a file has, once all of it was read.

    `store_format`: the newest format of facts that this release reads. Raises: BackupUnusable.
    """
    try:
        with path.open("rb") as file:
            reading = _Reading(path, store_format)
            for block in read_blocks(file):
                reading.add(block)
            return reading.finish()
    except BackupUnusable as failure:
        raise BackupUnusable(f"{path} cannot be used: {failure}") from failure
    except OSError as error:
        raise BackupUnusable(f"cannot read {path}: {error.strerror}; check the file and its owner") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackupUnusable(f"{path} cannot be used: a part of it cannot be read: {error}") from error


class _Reading:
    """One file under way."""

    def __init__(self, path: Path, store_format: int) -> None:
        self._path = path
        self._store_format = store_format
        self._backup: Backup | None = None
        self._head: StoreHead | None = None
        self._entries: list[Entry] = []
        self._rows: dict[int, Row] = {}
        self._begin = (0, 0)  # of the store: place, and checksum before it
        self._checksum = 0

    def add(self, block: Block) -> None:
        match block.kind:
            case Kind.HEADER:
                self._backup = Backup(self._path, self._checked(read_record(block, Header)))
            case Kind.STORE_HEAD:
                self._head = read_record(block, StoreHead)
                self._entries, self._rows = [], {}
                self._begin = block.at, self._checksum
            case Kind.ENTRIES:
                self._entries += unpack_entries(block.unpacked())
            case Kind.LIVE:
                self._rows.update(unpack_live(block.unpacked()))
            case Kind.STORE_END:
                self._add_store(read_record(block, StoreEnd), block.at)
        self._checksum = block.checksum

    def _checked(self, header: Header) -> Header:
        if header.store_format > self._store_format:
            raise BackupUnusable(
                f"its facts have format {header.store_format}, written by release {header.release}; this one "
                f"reads up to {self._store_format}: restore it with that release or a newer one"
            )
        return header

    def _add_store(self, end: StoreEnd, at: int) -> None:
        head = self._head
        if self._backup is None or head is None:
            raise BackupUnusable("its blocks are out of order: the file is damaged")
        section = Section(self._path, self._begin[0], at, self._begin[1])
        self._backup.stores[key_of(head)] = Covered(head, end, self._entries, self._rows, section)

    def finish(self) -> Backup:
        if self._backup is None or not self._backup.stores:
            raise BackupUnusable("it has no store: the file is damaged")
        return self._backup


def chained(backups: Sequence[Backup]) -> dict[str, Source]:
    """Return the stores of the last of some back-ups, of which each follows the one before.

    Raises: BackupUnusable.
    """
    for before, after in pairwise(backups):
        follows = after.header.follows
        if follows != before.header.id:
            right = next((each.path for each in backups if each.header.id == follows), None)
            which = "another back-up" if follows is not None else "no other one, as it is full"
            raise BackupUnusable(
                f"{after.path} (taken {after.taken_at}) does not follow {before.path} (taken "
                f"{before.taken_at}), but {which if right is None else right}: name the full back-up first, "
                "then each increment after the one that it was taken --since"
            )
    last = backups[-1]
    return {key: _source(backups, key, covered) for key, covered in last.stores.items()}


def _source(backups: Sequence[Backup], key: str, covered: Covered) -> Source:
    sections: list[Section] = []
    for backup in reversed(backups):
        found = backup.stores.get(key)
        if found is None:
            break
        sections.insert(0, found.section)
        if not found.head.after_no:
            last = backups[-1]
            return Source(covered, sections, last.taken_at, last.header.taken_at_ms)
    first = backups[0]
    raise BackupUnusable(
        f"{first.path} is an increment of '{covered.head.name}': name the full back-up and the increments "
        f"before it too"
    )
