"""The records of stored messages in a frame: their fields, and how they become messages.

A record has a fixed width: a position, then `_FIELDS`, then in one with texts the places of two of them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Final

from peeklock import FORM
from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.message import COPIES_FOLLOWING_MAX, SHARED, SHARED_MAX, Message, MessageState
from peeklock.form import PURE
from peeklock.store.base import StoreDamaged

# sequence number, enqueued sequence number, enqueued at, expires at, ttl, scheduled at, body row, frame
# number, body slot, size, bare offset, delivery count, flags; the position comes first.
_FIELDS: Final = "qqqqqqqqIIIIB"
_TEXT_FIELDS: Final = "II"  # places of session id and dead-letter source, after all others
BODY_ROW: Final = 7
"""The place of the body row among the fields of a record, the position included."""
PLACES: Final = struct.Struct("<" + _TEXT_FIELDS)
STORED_RECORD: Final = struct.Struct("<Q" + _FIELDS)
STORED_REST: Final = struct.Struct("<" + _FIELDS)
WITH_TEXTS_RECORD: Final = struct.Struct("<Q" + _FIELDS + _TEXT_FIELDS)
WITH_TEXTS_REST: Final = struct.Struct("<" + _FIELDS + "8x")
_PLACES_IN_REST: Final = struct.Struct(f"<{STORED_REST.size}x" + _TEXT_FIELDS)

ABSENT: Final = -1  # None in times and durations, which are never negative
_STATE_MASK: Final = 0x03
HOPS_SHIFT: Final = 2
_HOPS_MASK: Final = 0x1C
WAS_SCHEDULED: Final = 0x20  # since format 6
_UNKNOWN_FLAGS: Final = 0x40
HAS_OVERLAY: Final = 0x80
_STATES: Final = tuple(MessageState)  # by number: 0, 1, 2

Texts = Sequence["str | None"]
"""The texts of a frame by place; None at place 0."""


def messages(
    queue_id: int,
    positions: Sequence[int],
    rests: Sequence[bytes],
    overlays: Mapping[int, bytes],
    texts: Callable[[int], Texts],
) -> list[MessageStored]:
    """Return the messages of records.

    Args:
        queue_id: of all of them.
        positions: of each message.
        rests: the records without their positions; with texts, without, or some of each.
        overlays: by position.
        texts: returns the texts of a frame by its number.

    Raises: StoreDamaged.
    """
    data = b"".join(rests)
    if len(data) == len(rests) * STORED_REST.size:
        return _messages(queue_id, positions, STORED_REST.iter_unpack(data), overlays)
    if len(data) == len(rests) * WITH_TEXTS_REST.size:
        changes = _messages(queue_id, positions, WITH_TEXTS_REST.iter_unpack(data), overlays)
        _add_texts(changes, _PLACES_IN_REST.iter_unpack(data), texts)
        return changes
    changes = []
    is_plain = [len(rest) == STORED_REST.size for rest in rests]
    for chosen in (is_plain, [not plain for plain in is_plain]):
        some = list(compress(positions, chosen)), list(compress(rests, chosen))
        changes += messages(queue_id, *some, overlays, texts)
    return changes


def _with_its_defaults(kind: type[Message]) -> Message:
    return kind(0)  # a compiled class makes no bare object, and sets the fields in less time than `new` takes


def _messages(
    queue_id: int, positions: Sequence[int], records: Iterable[Sequence[Any]], overlays: Mapping[int, bytes]
) -> list[MessageStored]:
    """Return messages without texts. Equal neighbours share one int object: it saves 100 bytes each."""
    new = Message.__new__ if FORM == PURE else _with_its_defaults
    states = _STATES
    changes: list[MessageStored] = []
    add = changes.append
    last_row = last_no = last_enqueued = last_expires = last_size = 0
    for position, record in zip(positions, records, strict=True):
        number, first_number, enqueued, expires, ttl, scheduled, row, no, slot, size, bare, count, flags = (
            record
        )
        if flags & _UNKNOWN_FLAGS or flags & _STATE_MASK == _STATE_MASK:
            raise StoreDamaged(f"frame {no} gives a message the unknown flags {flags:#04x}")
        if row != last_row:
            last_row = row
        if no != last_no:
            last_no = no
        if enqueued != last_enqueued:
            last_enqueued = enqueued
        if expires != last_expires:
            last_expires = expires
        if size != last_size:
            last_size = SHARED[size] if size < SHARED_MAX else size
        if number == position:
            number = position
        if first_number == position:
            first_number = position
        m = new(Message)
        m.queue_id = queue_id
        m.position = position
        m.sequence_number = number
        m.enqueued_sequence_number = first_number
        m.enqueued_at_ms = last_enqueued
        m.expires_at_ms = last_expires
        m.lead_ms = 0
        m.ttl_ms = None if ttl == ABSENT else ttl
        m.scheduled_at_ms = None if scheduled == ABSENT else scheduled
        m.body_row = last_row
        m.journal_no = last_no
        m.body_slot = slot
        m.size_bytes = last_size
        m.bare_offset = bare
        m.delivery_count = count
        m.state = states[flags & _STATE_MASK]
        m.hops = (flags & _HOPS_MASK) >> HOPS_SHIFT
        m.was_scheduled = bool(flags & WAS_SCHEDULED)
        m.overlay = None
        if flags & HAS_OVERLAY:
            m.overlay = overlays.get(position)
            if m.overlay is None:
                raise StoreDamaged(f"frame {no} lacks the changed properties of a message")
        m.copies_left = COPIES_FOLLOWING_MAX
        m.session_id = m.dead_letter_source = m.routing = m.lock = None
        add(MessageStored(queue_id, m))
    return changes


def set_copies_left(stored: Iterable[MessageStored], copies: Mapping[int, int]) -> None:
    """Set how many copies may still follow from messages, by position."""
    if copies:
        for change in stored:
            message = change.message
            message.copies_left = copies.get(message.position, COPIES_FOLLOWING_MAX)


def _add_texts(
    changes: Iterable[MessageStored],
    places: Iterable[tuple[int, int]],
    texts: Callable[[int], Texts],
) -> None:
    last_no = 0
    of_frame: Texts = ()
    try:
        for change, (session_place, source_place) in zip(changes, places, strict=True):
            message = change.message
            no = message.journal_no
            if no != last_no:
                last_no = no
                of_frame = texts(no)
            message.session_id = of_frame[session_place]
            message.dead_letter_source = of_frame[source_place]
    except (KeyError, IndexError):
        raise StoreDamaged(f"frame {no} lacks texts that its messages refer to") from None
