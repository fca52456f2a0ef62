"""The seam between the engine and durable storage.

Owns: the `Store` protocol and its values. Must not know: what the facts mean beyond their vocabulary. A store
has no
rules: it keeps batches, whole or not at all, in order, and gives them back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
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
    """The world failed: the message says what happened, to which file, and what to do."""


class StoreFailed(StoreError):
    """A write or fsync failed: memory is ahead of the disk, the process must stop and recover from facts."""


class StoreFull(StoreFailed):
    """A write found no room."""


class StoreDamaged(StoreError):
    """A checksum, a gap in batch numbers or a missing body: never silently passed over."""


class StoreGone(StoreDamaged):
    """The database is not there, and something was acknowledged: nothing can be read. The message names all
    ways on."""


class StoreInUse(StoreError):
    """Another process holds the folder; the message names its pid and start time."""


class StoreTooNew(StoreError):
    """The store was written by a newer release; the message names both formats."""


@dataclass(slots=True)
class Batch:
    """All facts of one commit."""

    no: int
    """Grows by 1 per commit, without gaps."""
    changes: list[Change]
    body_rows: dict[int, list[bytes]] = field(default_factory=dict)
    """New body rows: row number -> payloads by slot; each row at most ~256 KiB unless one payload is
    larger."""
    dropped_rows: list[int] = field(default_factory=list)
    """Body rows in which nothing lives any more."""
    dropped_bytes: int = 0
    """About what these rows hold."""
    truncate_before: int = 0
    """Frames with a lower number may be forgotten: all that still holds in them was re-emitted."""
    events: list[EventTuple] | None = None
    """What happened; None while capture is off. While it is on each batch has an event row, if an empty one:
    a missing number is a gap."""
    events_exported_to: int = 0
    """Event rows up to this number are written elsewhere, or given up, and may be forgotten."""


@dataclass(slots=True)
class Frame:
    """One batch as read back from the journal."""

    no: int
    changes: list[Change]
    size_bytes: int


@dataclass(slots=True)
class FrameKeys:
    """What one batch recorded that may still hold: enough to find what has to be recorded anew, and read many
    times as quickly as the records."""

    no: int
    stored: list[tuple[int, tuple[int, ...]]]
    """(queue id, positions) of messages."""
    ids: list[MessageIdSeen]


@dataclass(slots=True)
class LiveFacts:
    """What still holds after all frames: the journal folded, last record wins."""

    first_no: int
    """Number of the oldest frame; 1 when there is none."""
    frame_sizes: Sequence[int]
    """Bytes of each frame, oldest first; the last frame has number first_no + len(frame_sizes) - 1."""
    messages: Iterator[tuple[int, list[MessageStored]]]
    """(queue id, records of this queue), in bounded pieces; each `message.journal_no` names its frame."""
    numbers: list[tuple[int, NumbersIssued]]
    """(frame number, last counters) of each queue."""
    ids: list[MessageIdSeen]
    id_frames: dict[int, int]
    """Frame number -> how many message ids it recorded."""


@dataclass(slots=True)
class Definitions:
    """The entities, rules and cursors that there are."""

    entities: list[EntityStored]
    """By id, so that a topic comes before its subscriptions."""
    rules: list[RuleStored]
    """By entity, then by name without regard to case; each entity is there."""
    next_entity_id: int
    cursors: list[CursorStored] = field(default_factory=list)
    """By queue, then by name; each queue's entity is there."""
    claims: list[ClaimStored] = field(default_factory=list)
    """By queue, cursor and number; each cursor is there."""


class Store(Protocol):
    """Durable facts of one namespace. One writer; commits are durable in the order they were called."""

    async def open(self) -> None:
        """Take the folder and make it usable. Raises: StoreInUse, StoreTooNew, StoreDamaged, StoreFailed."""

    async def load_definitions(self) -> Definitions:
        """Return all entities, rules and cursors. Raises: StoreDamaged."""

    def load(self) -> AsyncIterator[Frame]:
        """Return every frame in order, oldest first. Raises: StoreDamaged."""

    async def load_live(self) -> LiveFacts:
        """Return what still holds: much faster than to replay every frame. Raises: StoreDamaged."""

    def commit(self, batch: Batch) -> Awaitable[int]:
        """Make a batch durable; the awaitable gives the size of its frame in bytes, once on stable storage.

        A store that has done it already, in a time that the loop may stand still, returns a future that is
        done. The batch is encoded before this returns, not when awaited: records change with the next
        command.
        Raises (from the awaitable): StoreFailed.
        """

    async def read_body_rows(self, rows: Sequence[int]) -> dict[int, list[bytes]]:
        """Return the payloads of body rows, by slot; `LOST_BODY` for one that is damaged, and for each of a row
        that cannot be read or is not there.

        What is damaged was read twice. Raises: StoreFailed, where the disk reports an error.
        """

    async def list_body_rows(self, after: int, count_max: int) -> list[tuple[int, int]]:
        """Return (row, size in bytes) of the rows above `after`, ascending. Raises: StoreDamaged."""

    async def last_body_row(self) -> int:
        """Return the highest body row there is, 0 when there is none."""

    async def read_head(self, bytes_max: int) -> list[FrameKeys]:
        """Return the keys of the oldest frames, at least one if there is one, up to about `bytes_max`. Raises:
        StoreDamaged."""

    @property
    def created_at_ms(self) -> int:
        """When the namespace was made, UTC ms, known once the store is open; 0 = at this start."""

    @property
    def event_backlog(self) -> EventBacklog:
        """Which event rows are there."""

    def free_bytes(self) -> int | None:
        """Return how much of the volume new messages may take, None where there is no such limit."""

    async def close(self) -> None:
        """Finish with a truncating checkpoint and let the folder go."""
