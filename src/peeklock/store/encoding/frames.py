"""How the facts of one batch become one BLOB, a frame, and how frames become facts again.

Owns: the bytes of a frame. Must not know: where they are kept.

A frame is `version u8, crc32 u32, number u64, previous u32` and then runs. `previous` is the checksum of the
frame before it (see `chain`), 0 in the first one; a frame of version 1 has none. A run is `kind u8, queue id
u64, count u32` and `count` records of one fixed width, so that a whole run is decoded by one
`struct.iter_unpack`. All integers are little-endian; a position is unsigned, since it counts on where
sequence numbers roll over. A frame holds all its stored records before all its removed ones: positions are
never reused, so a removal is always the last word on its key, and the order of records of different keys
means nothing.

What has a variable length stands in runs of its own. Changed properties are kept by position, and so is what
few messages have: the copies that may still follow from one that a topic made. Texts (session
ids, names of entities) repeat: a frame holds each of its texts once, in one run at its start, and a record
with texts is eight bytes wider and names two of them by their place in that run, from 1 on; 0 is none. So a
record with texts is replayed as quickly as one without, and the text of a record that was replaced is never
looked at.

The checksum is CRC-32 (zlib): it finds every flipped bit and every burst of up to 32 bits, which is what a
disk does wrong, and costs a fifth of an 8-byte BLAKE2b (4.0 GB/s against 0.7, one slow core). It is no
protection from a forger, who could write the file anyway. It covers the version and the number, so that a
frame in another's place is found too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, compress

from peeklock.broker.vocabulary.changes import (
    Change,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.message import COPIES_FOLLOWING_MAX, SHARED, SHARED_MAX, Message, MessageState
from peeklock.store.base import Batch, Frame, FrameKeys, StoreDamaged
from peeklock.store.encoding import definitions

FRAME_VERSION = 2
"""Version that this release writes. It reads 1 up to this: version 2 came with format 6."""

_HEAD = struct.Struct("<BIQ")  # version, checksum, number
_CHECKED_FROM = 5  # the checksum covers the number and all that follows; the version is its starting value
_CHAINED_HEAD = struct.Struct("<BIQI")  # the same, and the checksum of the frame before
_STATED, _CHECKED_HEAD = struct.Struct("<BI"), struct.Struct("<QI")  # its two halves
_CHAINED_FROM = 2
_HEAD_BYTES = {1: _HEAD.size, 2: _CHAINED_HEAD.size}  # by version
_RUN = struct.Struct("<BQI")  # kind, queue id (0 where records name it themselves), count
_COUNT = struct.Struct("<I")

STORED, REMOVED, NUMBERS, ID_SEEN, OVERLAYS, TEXTS, STORED_WITH_TEXTS, PARTITIONED_NUMBERS = range(1, 9)
COPIES_LEFT = 9
"""Kinds of runs. Those from `TEXTS` on came with format 2, `COPIES_LEFT` with format 6."""

# sequence number, enqueued sequence number, enqueued at, expires at, ttl, scheduled at, body row, frame
# number, body slot, size, bare offset, delivery count, flags; the position stands before them.
_FIELDS = "qqqqqqqqIIIIB"
_TEXT_FIELDS = "II"  # places of session id and dead-letter source, after all others
_PLACES = struct.Struct("<" + _TEXT_FIELDS)
_STORED_RECORD = struct.Struct("<Q" + _FIELDS)
_STORED_REST = struct.Struct("<" + _FIELDS)
_WITH_TEXTS_RECORD = struct.Struct("<Q" + _FIELDS + _TEXT_FIELDS)
_WITH_TEXTS_REST = struct.Struct("<" + _FIELDS + "8x")
_PLACES_IN_REST = struct.Struct(f"<{_STORED_REST.size}x" + _TEXT_FIELDS)
PARTITIONS = 16
"""Of a partitioned queue."""
_REMOVED_RECORD = struct.Struct("<Q")  # position
_NUMBERS_RECORD = struct.Struct("<QQqQ")  # queue id, next position, next sequence number, last enqueued at
_PARTITIONED_RECORD = struct.Struct(f"<QQqQ{PARTITIONS}Q")  # the same, and the next order of each partition
_ID_RECORD = struct.Struct("<16sqq")  # digest, seen at, sequence number
_OVERLAY_RECORD = struct.Struct("<QI")  # position, length; the bytes of all follow the last record of the run
_COPIES_RECORD = struct.Struct("<QH")  # position, copies that may still follow from the message
_TEXT_RECORD = struct.Struct("<I")  # length of its UTF-8; the bytes of all follow the last one

STORED_PAIRS = {
    STORED: struct.Struct(f"<Q{_STORED_REST.size}s"),
    STORED_WITH_TEXTS: struct.Struct(f"<Q{_WITH_TEXTS_REST.size}s"),
}
"""The stored records as (position, rest), as a fold keeps them."""

_POSITIONS = {
    STORED: struct.Struct(f"<Q{_STORED_REST.size}x"),
    STORED_WITH_TEXTS: struct.Struct(f"<Q{_WITH_TEXTS_REST.size}x"),
}

_RECORDS = {
    STORED: _STORED_RECORD,
    STORED_WITH_TEXTS: _WITH_TEXTS_RECORD,
    REMOVED: _REMOVED_RECORD,
    NUMBERS: _NUMBERS_RECORD,
    PARTITIONED_NUMBERS: _PARTITIONED_RECORD,
    ID_SEEN: _ID_RECORD,
    OVERLAYS: _OVERLAY_RECORD,
    TEXTS: _TEXT_RECORD,
    COPIES_LEFT: _COPIES_RECORD,
}
_ABSENT = -1  # stands for None in times and durations, which are never negative
_STATE_MASK = 0x03
_HOPS_SHIFT = 2
_HOPS_MASK = 0x1C
_WAS_SCHEDULED = 0x20  # since format 6
_UNKNOWN_FLAGS = 0x40
_HAS_OVERLAY = 0x80
_STATES = tuple(MessageState)  # by number: 0, 1, 2

Texts = Sequence["str | None"]
"""The texts of a frame by place; None at place 0."""


def encode(batch: Batch, previous: int = 0) -> bytes:
    """Encode the facts of a batch, with the values that its messages have now; definitions are
    kept elsewhere.

    Args:
        batch: whose facts.
        previous: checksum of the frame before it, 0 for the first one.
    """
    no = batch.no
    pack = _STORED_RECORD.pack
    stored: dict[int, list[bytes]] = {}
    with_texts: dict[int, list[bytes]] = {}
    texts: dict[str | None, int] = {None: 0}  # and their places
    place_of = texts.setdefault
    removed: dict[int, list[int]] = {}
    overlays: dict[int, list[tuple[int, bytes]]] = {}
    copies: dict[int, list[bytes]] = {}
    numbers: list[bytes] = []
    partitioned: list[bytes] = []
    ids: dict[int, list[bytes]] = {}
    last_stored = last_with_texts = last_removed = last_ids = -1
    add_stored = add_with_texts = add_removed = add_id = None
    pack_id = _ID_RECORD.pack
    for change in batch.changes:
        if type(change) is MessageStored:
            queue_id = change.queue_id
            m = change.message
            ttl_ms = m.ttl_ms
            scheduled_at_ms = m.scheduled_at_ms
            if m.copies_left != COPIES_FOLLOWING_MAX:
                copies.setdefault(queue_id, []).append(_COPIES_RECORD.pack(m.position, m.copies_left))
            flags: int = m.state | m.hops << _HOPS_SHIFT
            if m.overlay is not None:
                flags |= _HAS_OVERLAY
                overlays.setdefault(queue_id, []).append((m.position, m.overlay))
            if m.was_scheduled:
                flags |= _WAS_SCHEDULED
            record = pack(
                m.position,
                m.sequence_number,
                m.enqueued_sequence_number,
                m.enqueued_at_ms,
                m.expires_at_ms,
                _ABSENT if ttl_ms is None else ttl_ms,
                _ABSENT if scheduled_at_ms is None else scheduled_at_ms,
                m.body_row,
                no,
                m.body_slot,
                m.size_bytes,
                m.bare_offset,
                m.delivery_count,
                flags,
            )
            session_id = m.session_id
            source = m.dead_letter_source
            if session_id is None and source is None:
                if queue_id != last_stored:
                    last_stored = queue_id
                    add_stored = stored.setdefault(queue_id, []).append
                add_stored(record)  # type: ignore[misc]
            else:
                if queue_id != last_with_texts:
                    last_with_texts = queue_id
                    add_with_texts = with_texts.setdefault(queue_id, []).append
                add_with_texts(record)  # type: ignore[misc]
                add_with_texts(  # type: ignore[misc]
                    _PLACES.pack(place_of(session_id, len(texts)), place_of(source, len(texts)))
                )
        elif type(change) is MessageRemoved:
            queue_id = change.queue_id
            if queue_id != last_removed:
                last_removed = queue_id
                add_removed = removed.setdefault(queue_id, []).append
            add_removed(change.message.position)  # type: ignore[misc]
        elif type(change) is MessageIdSeen:
            queue_id = change.queue_id
            if queue_id != last_ids:
                last_ids = queue_id
                add_id = ids.setdefault(queue_id, []).append
            add_id(pack_id(change.digest, change.seen_at_ms, change.sequence_number))  # type: ignore[misc]
        elif isinstance(change, NumbersIssued):
            counters = (
                change.queue_id,
                change.next_position,
                change.next_sequence_number,
                change.last_enqueued_at_ms,
            )
            if change.partitions:
                partitioned.append(_PARTITIONED_RECORD.pack(*counters, *change.partitions))
            else:
                numbers.append(_NUMBERS_RECORD.pack(*counters))
        else:
            assert type(change) in definitions.KINDS, f"a store cannot keep {change!r}"
    parts = [_CHECKED_HEAD.pack(no, previous)]
    for queue_id, entries in overlays.items():
        parts.append(_RUN.pack(OVERLAYS, queue_id, len(entries)))
        parts += [_OVERLAY_RECORD.pack(position, len(overlay)) for position, overlay in entries]
        parts += [overlay for _, overlay in entries]
    if with_texts:
        encoded = [text.encode() for text in texts if text is not None]
        parts.append(_RUN.pack(TEXTS, 0, len(encoded)))
        parts.append(struct.pack(f"<{len(encoded)}I", *map(len, encoded)))
        parts += encoded
    for queue_id, records in copies.items():
        parts.append(_RUN.pack(COPIES_LEFT, queue_id, len(records)))
        parts += records
    for queue_id, records in stored.items():
        parts.append(_RUN.pack(STORED, queue_id, len(records)))
        parts += records
    for queue_id, halves in with_texts.items():
        parts.append(_RUN.pack(STORED_WITH_TEXTS, queue_id, len(halves) // 2))
        parts += halves
    for queue_id, positions in removed.items():
        parts.append(_RUN.pack(REMOVED, queue_id, len(positions)))
        parts.append(struct.pack(f"<{len(positions)}Q", *positions))
    for kind, records in ((NUMBERS, numbers), (PARTITIONED_NUMBERS, partitioned)):
        if records:
            parts.append(_RUN.pack(kind, 0, len(records)))
            parts += records
    for queue_id, records in ids.items():
        parts.append(_RUN.pack(ID_SEEN, queue_id, len(records)))
        parts += records
    checked = b"".join(parts)
    return _STATED.pack(FRAME_VERSION, zlib.crc32(checked, FRAME_VERSION)) + checked


def checksum_of(meta: bytes) -> int:
    """Return the checksum that a frame states; its first bytes are enough."""
    return int.from_bytes(meta[1:_CHECKED_FROM], "little")


def number_of(meta: bytes) -> int:
    """Return the number that a frame states."""
    no: int = _HEAD.unpack_from(meta)[2]
    return no


def previous_of(meta: bytes) -> int | None:
    """Return the checksum of the frame before, as a sound frame states it; None in version 1."""
    if meta[0] < _CHAINED_FROM:
        return None
    previous: int = _CHAINED_HEAD.unpack_from(meta)[3]
    return previous


def decode(no: int, meta: bytes) -> Frame:
    """Give back the facts of frame `no`. Raises: StoreDamaged."""
    changes: list[Change] = []
    overlays: dict[int, dict[int, bytes]] = {}
    copies: dict[int, dict[int, int]] = {}
    texts: Texts = (None,)
    for kind, queue_id, data in runs(no, meta):
        if kind in STORED_PAIRS:
            pairs = list(STORED_PAIRS[kind].iter_unpack(data))
            positions, rests = [position for position, _ in pairs], [rest for _, rest in pairs]
            found = messages(queue_id, positions, rests, overlays.get(queue_id, {}), {no: texts}.__getitem__)
            set_copies_left(found, copies.get(queue_id, {}))
            changes += found
        elif kind == COPIES_LEFT:
            copies[queue_id] = dict(read_copies_left(data))
        elif kind == OVERLAYS:
            overlays.setdefault(queue_id, {}).update(read_overlays(data))
        elif kind == TEXTS:
            texts = read_texts(no, data)
        elif kind == REMOVED:
            for position in read_positions(data):
                message = Message(0)
                message.queue_id = queue_id
                message.position = position
                changes.append(MessageRemoved(queue_id, message))
        elif kind == ID_SEEN:
            changes += read_ids(queue_id, data)
        else:
            changes += read_numbers(kind, data)
    return Frame(no, changes, len(meta))


def read_keys(no: int, meta: bytes) -> FrameKeys:
    """Give what frame `no` recorded that may still hold, by key. Raises: StoreDamaged."""
    keys = FrameKeys(no, [], [])
    for kind, queue_id, data in runs(no, meta):
        if kind in _POSITIONS:
            positions = tuple(position for (position,) in _POSITIONS[kind].iter_unpack(data))
            keys.stored.append((queue_id, positions))
        elif kind == ID_SEEN:
            keys.ids += read_ids(queue_id, data)
    return keys


def runs(no: int, meta: bytes) -> list[tuple[int, int, bytes]]:
    """Check a frame and cut it into (kind, queue id, what a `read` function takes). Raises: StoreDamaged."""
    where = f"frame {no}"
    if type(meta) is not bytes:  # SQLite keeps the type beside each value, under no checksum
        raise StoreDamaged(f"{where} is damaged: it is no BLOB")
    if len(meta) < _HEAD.size:
        raise StoreDamaged(f"{where} is cut off: {len(meta)} bytes, its head alone takes {_HEAD.size}")
    version, checksum, own_no = _HEAD.unpack_from(meta)
    found = zlib.crc32(memoryview(meta)[_CHECKED_FROM:], version)
    if found != checksum:
        raise StoreDamaged(f"{where} fails its checksum: it says {checksum:08x}, its bytes give {found:08x}")
    at = _HEAD_BYTES.get(version, 0)
    if not at:
        raise StoreDamaged(f"{where} has version {version}; this release knows 1 to {FRAME_VERSION}")
    if own_no != no:
        raise StoreDamaged(f"{where} is another frame in its place: it says that it is frame {own_no}")
    cut = []
    end = len(meta)
    if at > end:
        raise StoreDamaged(f"{where} ends within its head")
    while at < end:
        if end - at < _RUN.size:
            raise StoreDamaged(f"{where} ends within a run")
        kind, queue_id, count = _RUN.unpack_from(meta, at)
        at += _RUN.size
        record = _RECORDS.get(kind)
        if record is None:
            raise StoreDamaged(f"{where} holds records of an unknown kind, {kind}")
        stop = at + count * record.size
        if kind == TEXTS and stop <= end:
            stop += sum(struct.unpack_from(f"<{count}I", meta, at))
        elif kind == OVERLAYS and stop <= end:
            stop += sum(size for _, size in _OVERLAY_RECORD.iter_unpack(meta[at:stop]))
        if stop > end:
            raise StoreDamaged(f"{where} ends within a run of {count} records")
        if kind in (OVERLAYS, TEXTS):
            at -= _COUNT.size  # it says where the bytes begin
        cut.append((kind, queue_id, meta[at:stop]))
        at = stop
    return cut


def read_positions(data: bytes) -> tuple[int, ...]:
    """Give the positions of removed messages."""
    return struct.unpack(f"<{len(data) // _REMOVED_RECORD.size}Q", data)


def read_numbers(kind: int, data: bytes) -> list[NumbersIssued]:
    """Give counters, of queues with partitions or without."""
    if kind == NUMBERS:
        return [NumbersIssued(*fields) for fields in _NUMBERS_RECORD.iter_unpack(data)]
    return [
        NumbersIssued(queue_id, next_position, next_number, last_enqueued_at_ms, tuple(partitions))
        for queue_id, next_position, next_number, last_enqueued_at_ms, *partitions in (
            _PARTITIONED_RECORD.iter_unpack(data)
        )
    ]


def read_ids(queue_id: int, data: bytes) -> list[MessageIdSeen]:
    """Give message ids that were seen."""
    return [MessageIdSeen(queue_id, *fields) for fields in _ID_RECORD.iter_unpack(data)]


def read_overlays(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Give (position, overlay); the lengths were checked with the run."""
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _OVERLAY_RECORD.size
    for position, size in _OVERLAY_RECORD.iter_unpack(data[_COUNT.size : at]):
        yield position, data[at : at + size]
        at += size


def read_copies_left(data: bytes) -> Iterator[tuple[int, int]]:
    """Return (position, copies that may still follow)."""
    return _COPIES_RECORD.iter_unpack(data)


def set_copies_left(stored: Iterable[MessageStored], copies: Mapping[int, int]) -> None:
    """Set how many copies may still follow from messages, by position."""
    if copies:
        for change in stored:
            message = change.message
            message.copies_left = copies.get(message.position, COPIES_FOLLOWING_MAX)


def read_texts(no: int, data: bytes) -> Texts:
    """Give the texts of frame `no` by place; the lengths were checked with the run. Raises: StoreDamaged."""
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _TEXT_RECORD.size
    encoded = data[at:]
    stops = list(accumulate(struct.unpack_from(f"<{count}I", data, _COUNT.size)))
    starts = [0, *stops[:-1]]
    try:
        text = encoded.decode()
        if len(text) == len(encoded):
            return [None, *(text[start:stop] for start, stop in zip(starts, stops, strict=True))]
        return [None, *(encoded[start:stop].decode() for start, stop in zip(starts, stops, strict=True))]
    except UnicodeDecodeError as error:
        raise StoreDamaged(f"frame {no} holds a text that is not UTF-8: {error}") from error


def messages(
    queue_id: int,
    positions: Sequence[int],
    rests: Sequence[bytes],
    overlays: Mapping[int, bytes],
    texts: Callable[[int], Texts],
) -> list[MessageStored]:
    """Make messages of their positions and the rest of their records.

    Args:
        queue_id: of all of them.
        positions: of each message.
        rests: of records with texts, or without, or some of each.
        overlays: by position.
        texts: gives the texts of a frame by its number.

    Raises: StoreDamaged.
    """
    data = b"".join(rests)
    if len(data) == len(rests) * _STORED_REST.size:
        return _messages(queue_id, positions, _STORED_REST.iter_unpack(data), overlays)
    if len(data) == len(rests) * _WITH_TEXTS_REST.size:
        changes = _messages(queue_id, positions, _WITH_TEXTS_REST.iter_unpack(data), overlays)
        _add_texts(changes, _PLACES_IN_REST.iter_unpack(data), texts)
        return changes
    changes = []
    is_plain = [len(rest) == _STORED_REST.size for rest in rests]
    for chosen in (is_plain, [not plain for plain in is_plain]):
        some = list(compress(positions, chosen)), list(compress(rests, chosen))
        changes += messages(queue_id, *some, overlays, texts)
    return changes


def _messages(
    queue_id: int,
    positions: Sequence[int],
    records: Iterable[tuple[int, ...]],
    overlays: Mapping[int, bytes],
) -> list[MessageStored]:
    """Make messages without texts. Equal neighbours share one int object: it saves 100 bytes each."""
    new = Message.__new__
    states = _STATES
    changes: list[MessageStored] = []
    add = changes.append
    last_row = last_no = last_enqueued = last_expires = last_size = 0
    for position, (
        sequence_number,
        enqueued_sequence_number,
        enqueued_at_ms,
        expires_at_ms,
        ttl_ms,
        scheduled_at_ms,
        body_row,
        no,
        body_slot,
        size_bytes,
        bare_offset,
        delivery_count,
        flags,
    ) in zip(positions, records, strict=True):
        if flags & _UNKNOWN_FLAGS or flags & _STATE_MASK == _STATE_MASK:
            raise StoreDamaged(f"frame {no} gives a message the unknown flags {flags:#04x}")
        if body_row != last_row:
            last_row = body_row
        if no != last_no:
            last_no = no
        if enqueued_at_ms != last_enqueued:
            last_enqueued = enqueued_at_ms
        if expires_at_ms != last_expires:
            last_expires = expires_at_ms
        if size_bytes != last_size:
            last_size = SHARED[size_bytes] if size_bytes < SHARED_MAX else size_bytes
        m = new(Message)
        m.queue_id = queue_id
        m.position = position
        m.sequence_number = position if sequence_number == position else sequence_number
        m.enqueued_sequence_number = (
            position if enqueued_sequence_number == position else enqueued_sequence_number
        )
        m.enqueued_at_ms = last_enqueued
        m.expires_at_ms = last_expires
        m.lead_ms = 0
        m.ttl_ms = None if ttl_ms == _ABSENT else ttl_ms
        m.scheduled_at_ms = None if scheduled_at_ms == _ABSENT else scheduled_at_ms
        m.body_row = last_row
        m.journal_no = last_no
        m.body_slot = body_slot
        m.size_bytes = last_size
        m.bare_offset = bare_offset
        m.delivery_count = delivery_count
        m.state = states[flags & _STATE_MASK]
        m.hops = (flags & _HOPS_MASK) >> _HOPS_SHIFT
        m.was_scheduled = bool(flags & _WAS_SCHEDULED)
        if flags & _HAS_OVERLAY:
            overlay = overlays.get(position)
            if overlay is None:
                raise StoreDamaged(f"frame {no} does not hold the properties of a message that has some")
            m.overlay = overlay
        else:
            m.overlay = None
        m.copies_left = COPIES_FOLLOWING_MAX
        m.session_id = None
        m.dead_letter_source = None
        m.routing = None
        m.lock = None
        add(MessageStored(queue_id, m))
    return changes


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
        raise StoreDamaged(f"frame {no} does not hold the texts that its messages name") from None
