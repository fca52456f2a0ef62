"""The contract of a store, and its values.

A store has no rules: it keeps batches, whole or not at all, in order, and returns them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from peeklock.broker.vocabulary.changes import (
    Change,
    ClaimStored,
    CursorStored,
    EntityStored,
    MessageIdSeen,
    MessageStored,
    NumbersIssued,
    RuleStored,
)
from peeklock.broker.vocabulary.events import EventTuple
from peeklock.store.event_backlog import EventBacklog


class StoreError(Exception):
    """Storage failed; the message says what happened, to which file, and what to do."""


class StoreFailed(StoreError):
    """A write or fsync failed: memory is ahead of the disk, so the process must stop and recover."""


class StoreFull(StoreFailed):
    """A write found no space."""


class StoreDeposed(StoreFailed):
    """Another process owns the store now: nothing that this one says may be believed any more."""


class StoreUnknown(StoreFailed):
    """Whether a commit is durable cannot be found out: the process must stop and recover from facts."""


class StoreDamaged(StoreError):
    """A checksum does not match, a batch is missing, or an entry cannot be read."""


class StoreGone(StoreDamaged):
    """The database is missing although a batch was acknowledged; the message names all ways on."""


class StoreInUse(StoreError):
    """Another process holds the folder; the message names its pid and start time."""


class StoreTooNew(StoreError):
    """A newer release wrote the store; the message names both formats."""


class StoreUnfinished(StoreError):
    """A restore into the store did not end; the message says what to do."""


@dataclass(slots=True)
class Batch:
    """All facts of one commit."""

    no: int
    """Grows by 1 with each commit."""
    changes: list[Change]
    body_rows: dict[int, list[bytes]] = field(default_factory=dict)
    """New body rows: row number -> payloads by slot; a row has up to about 256 KiB, or one larger payload."""
    dropped_rows: list[int] = field(default_factory=list)
    """Body rows without live payloads."""
    dropped_bytes: int = 0
    """About the size of these rows."""
    truncate_before: int = 0
    """Frames with a lower number may be deleted: all their live facts were written again."""
    events: list[EventTuple] | None = None
    """The events of the batch; None while capture is off. While it is on, each batch has an event row, maybe
    an empty one: a missing number is a gap."""
    events_exported_to: int = 0
    """Event rows up to this number are exported, or given up, and may be deleted."""


@dataclass(slots=True)
class Frame:
    """One batch as read from the journal."""

    no: int
    changes: list[Change]
    size_bytes: int


@dataclass(slots=True)
class FrameKeys:
    """The keys of the facts in one batch: enough to find the live ones, and much quicker to read than the
    records."""

    no: int
    stored: list[tuple[int, tuple[int, ...]]]
    """(queue id, positions) of messages."""
    ids: list[MessageIdSeen]


@dataclass(slots=True)
class LiveFacts:
    """The facts that hold after all frames: the last record of a key wins."""

    first_no: int
    """Number of the oldest frame; 1 if there is none."""
    frame_sizes: Sequence[int]
    """Bytes of each frame, oldest first; the last frame has number first_no + len(frame_sizes) - 1."""
    messages: Iterator[tuple[int, list[MessageStored]]]
    """(queue id, records of this queue), in bounded pieces; `message.journal_no` names the frame."""
    numbers: list[tuple[int, NumbersIssued]]
    """(frame number, last counters) of each queue."""
    ids: list[MessageIdSeen]
    id_frames: dict[int, int]
    """Frame number -> number of message ids that it recorded."""


@dataclass(slots=True)
class Definitions:
    """All facts that are kept apart from the journal."""

    entities: list[EntityStored]
    """By id, so that topics come before their subscriptions."""
    rules: list[RuleStored]
    """By entity, then by name without regard to case; each entity exists."""
    next_entity_id: int
    cursors: list[CursorStored] = field(default_factory=list)
    """By queue, then by name; each queue's entity exists."""
    claims: list[ClaimStored] = field(default_factory=list)
    """By queue, cursor and number; each cursor exists."""
    facts: dict[str, str] = field(default_factory=dict)
    """Of the process that uses the store, by key, in the order of the keys."""


NEVER = float("inf")
"""End of the ownership of a store that gives it for good."""

Entry = tuple[str, str, int]
"""A fact kept apart from the journal, as it is stored: key, text and checksum."""

Blob = tuple[int, bytes]
"""A frame or a body row as it is stored: its number and its bytes."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a store begins and ends; 0 = it has no frame, no body row."""

    first_no: int
    """Of the oldest frame."""
    last_no: int
    """Of the newest frame."""
    last_row: int
    """The highest body row."""


class StoreReader(Protocol):
    """Reads what is committed, as it is stored, while commits go on; for one thread, of any process.

    Each call sees the state of its own instant, or all see that at which the reader was made. No commit waits
    for it. Frames and body rows are never changed, only added with higher numbers, and dropped.
    """

    def ends(self) -> Ends:
        """Return where the store begins and ends. Raises: StoreDamaged, StoreFailed, as all calls."""

    def frames(self, after: int, bytes_max: int) -> list[Blob]:
        """Return the frames above a number, ascending, until `bytes_max` is reached; one at least."""

    def body_rows(self, after: int, bytes_max: int) -> list[Blob]:
        """Return the body rows above a number, likewise."""

    def body_row(self, no: int) -> bytes | None:
        """Return one body row, None if there is none."""

    def body_row_numbers(self) -> list[int]:
        """Return the numbers of all body rows, ascending."""

    def entries(self) -> list[Entry]:
        """Return all facts that are kept apart from the journal, by key."""

    def at_one_instant(self) -> AbstractContextManager[None]:
        """Return a context in which all calls see the same state."""

    def writer_name(self) -> str:
        """Return who writes to the store: while this stays the same, no number of a row is used again."""

    def close(self) -> None:
        """End the reading."""


class StoreFiller(Protocol):
    """Makes a new store of what `StoreReader` has read. Until `finish` ends it is no store: opening it raises
    `StoreUnfinished`."""

    def add_body_rows(self, rows: Iterable[Blob]) -> None:
        """Add body rows. Raises: StoreFailed, as all calls."""

    def add_frames(self, frames: Iterable[Blob]) -> None:
        """Add frames, in the order of their numbers."""

    def add_entries(self, entries: Iterable[Entry]) -> None:
        """Add facts that are kept apart from the journal."""

    def add_event_row(self, no: int, data: bytes) -> None:
        """Add the events of a batch."""

    def write(self) -> None:
        """Make all durable; what follows is `finish` or `abandon`."""

    def finish(self) -> None:
        """Make it a store."""

    def abandon(self) -> None:
        """Leave it as it is, unfinished."""


class Store(Protocol):
    """Durable facts of one namespace. One writer; commits become durable in the order of the calls."""

    async def open(self) -> None:
        """Lock the folder and open the store. Raises: StoreInUse, StoreTooNew, StoreDamaged, StoreFailed."""

    async def load_definitions(self) -> Definitions:
        """Return all facts that are kept apart from the journal. Raises: StoreDamaged."""

    def load(self) -> AsyncIterator[Frame]:
        """Yield all frames, oldest first. Raises: StoreDamaged."""

    async def load_live(self) -> LiveFacts:
        """Return the live facts, much faster than by `load`. Raises: StoreDamaged."""

    def commit(self, batch: Batch) -> Awaitable[int]:
        """Make a batch durable; the awaitable returns the size of its frame in bytes, once on stable storage.

        A store that is quick enough for the event loop returns a future that is done. The batch is encoded
        before this returns, since records change with the next command.
        Raises (from the awaitable): StoreFailed.
        """

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, Sequence[bytes]]:
        """Return the payloads of body rows, by slot.

        `LOST_BODY` replaces a damaged payload, and each payload of a row that is missing or cannot be
        read; both are read twice. Raises: StoreFailed, if the disk reports an error.
        """

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        """Return (row, size in bytes) of the rows above `after`, ascending. Raises: StoreDamaged."""

    async def last_body_row(self) -> int:
        """Return the highest body row, 0 if there is none."""

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        """Return the keys of the oldest frames, of about `bytes_max` bytes, of one frame at least.

        Raises: StoreDamaged.
        """

    @property
    def created_at_ms(self) -> int:
        """When the namespace was created, UTC ms, known once the store is open; 0 = at this start."""

    @property
    def event_backlog(self) -> EventBacklog:
        """The numbers and sizes of the event rows."""

    def free_bytes(self) -> int | None:
        """Return the bytes of the volume that new messages may take, None = no limit."""

    def valid_until_s(self) -> float:
        """Return until when the store is surely this process', in seconds of CLOCK_BOOTTIME; `NEVER` = for
        good. Every commit and every renewal moves it."""

    def failure(self) -> StoreError | None:
        """Return what has ended the ownership while no commit was under way, None = nothing has."""

    def reader(self) -> StoreReader:
        """Return a reader of what is committed, for a back-up. Raises: StoreFailed."""

    async def close(self) -> None:
        """Close the store and release the folder."""
