"""The facts of a store as a new journal whose numbers begin far ahead: after a rescue or a restore.

What clients saw after these facts is unknown, so no number after them is used: sequence numbers, claims, and
the ids of entities skip ahead, and so do the batches, whose first number the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    SESSION_STATES,
    Change,
    CursorStored,
    MessageStored,
    NumbersIssued,
)
from peeklock.store.base import Batch, Blob, Definitions, Entry, LiveFacts
from peeklock.store.encoding import definitions, entities, frames

SKIPPED_ENTITIES = 1_000_000
"""Ids of entities that are skipped. Our choice: a log of 40 MB has under a million records."""

NUMBER_MAX = 2**63 - 1
"""The last sequence number. A queue counts by its next position; the number is for readers of the journal."""

PIECE_CHANGES = 20_000
"""Facts of a new frame."""


def renumbered_entries(entries: Iterable[Entry], found: Definitions, skipped: int) -> list[Entry]:
    """Return entries, which `found` was read from, with a higher next id and higher numbers of claims.

    A claim of an owner that has not read is given up: it may claim again under the same number.
    """
    kept = {entry[0]: entry for entry in entries}
    last_id = max((entity.entity_id for entity in found.entities), default=0)
    next_id = max(found.next_entity_id, last_id + 1) + SKIPPED_ENTITIES
    changed = {definitions.NEXT_ENTITY_ID_KEY: str(next_id)}
    unread = {(each.queue_id, each.name): each.unread_from_no for each in found.cursors}
    for claim in found.claims:
        unread_from_no = unread[claim.queue_id, claim.cursor]
        if unread_from_no is not None and claim.no > unread_from_no:
            del kept[entities.claim_key(claim.queue_id, claim.cursor, claim.no)]
    for cursor in found.cursors:
        key = entities.cursor_key(cursor.queue_id, cursor.name)
        changed[key] = entities.encode_cursor(_later(cursor, skipped))
    kept.update((key, definitions.entry(key, text)) for key, text in changed.items())
    return [kept[key] for key in sorted(kept)]


def _later(cursor: CursorStored, skipped: int) -> CursorStored:
    last_no = cursor.last_no + skipped
    unread_from_no = None if cursor.unread_from_no is None else last_no
    undone = cursor.last_no + 1, last_no - 1  # the last one is where a reader may stand
    return replace(cursor, last_no=last_no, unread_from_no=unread_from_no, undone=undone)


def renumbered_frames(
    live: LiveFacts,
    found: Definitions,
    first_no: int,
    skipped: int,
    see: Callable[[int, list[MessageStored], bool], None] = lambda queue_id, stored, is_known: None,
) -> Iterator[Blob]:
    """Yield the frames of a new journal, at least one, from number `first_no` on.

    Args:
        live: the facts to keep; those of entities that are no longer defined are left out.
        found: the definitions.
        first_no: after all numbers that clients or the event log may have seen.
        skipped: how many sequence numbers.
        see: called with the messages of a queue, and whether its entity is defined.
    """
    known = {entity.entity_id for entity in found.entities}
    numbers = {each.queue_id: each for _, each in live.numbers if each.queue_id // QUEUES_PER_ENTITY in known}
    last: dict[int, int] = {}  # position, by queue
    journal = _Journal(first_no)
    changes: list[Change] = []
    for queue_id, stored in live.messages:
        is_known = queue_id // QUEUES_PER_ENTITY in known
        see(queue_id, stored, is_known)
        if not is_known:
            continue
        last[queue_id] = max(last.get(queue_id, 0), *(change.message.position for change in stored), 0)
        changes += stored
        if len(changes) >= PIECE_CHANGES:
            yield journal.frame(changes)
            changes = []
    ids = [seen for seen in live.ids if seen.queue_id // QUEUES_PER_ENTITY in known]
    for entity in found.entities:
        first = entity.entity_id * QUEUES_PER_ENTITY
        partitions = (1,) * frames.PARTITIONS if entity.description.enable_partitioning else ()
        for queue_id in range(first, first + SESSION_STATES):  # they may have issued numbers since
            counts = partitions if queue_id == first else ()
            numbers.setdefault(queue_id, NumbersIssued(queue_id, 1, SequenceNumber(1), 0, counts))
    changes += [_higher(each, last.get(queue_id, 0), skipped) for queue_id, each in sorted(numbers.items())]
    yield journal.frame([*changes, *ids])


class _Journal:
    """Frames in a chain."""

    def __init__(self, first_no: int) -> None:
        self._no = first_no
        self._previous = 0  # checksum of the frame before

    def frame(self, changes: list[Change]) -> Blob:
        no = self._no
        meta = frames.encode(Batch(no, changes), self._previous)
        self._previous, self._no = frames.checksum_of(meta), no + 1
        return no, meta


def _higher(numbers: NumbersIssued, last_position: int, skipped: int) -> NumbersIssued:
    next_position = max(numbers.next_position, last_position + 1) + skipped
    return NumbersIssued(
        numbers.queue_id,
        next_position,
        SequenceNumber(min(numbers.next_sequence_number + skipped, NUMBER_MAX)),
        numbers.last_enqueued_at_ms,
        tuple(number + skipped for number in numbers.partitions),
    )
