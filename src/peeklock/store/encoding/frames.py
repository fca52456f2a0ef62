"""The bytes of a frame: how the facts of one batch become one BLOB, and how it becomes facts again.

A frame is `version u8, crc32 u32, number u64, previous u32` and then runs. `previous` is the checksum of the
frame before it (see `fold`), 0 in the first one; a frame of version 1 has none. A run is `kind u8, queue id
u64, count u32` and `count` records of one fixed width, so that one `struct.iter_unpack` decodes a whole run.
All integers are little-endian; a position is unsigned, since it counts on where sequence numbers roll over. A
frame holds all its stored records before all its removed ones: positions are never reused, so a removal is
always the last word on its key, and the order of records of different keys means nothing.

Values of variable length have runs of their own. Changed properties (overlays) are kept by position, and so
are the copies that may still follow from a topic's message, which few messages have. Texts (session ids,
names of entities) repeat: a frame holds each text once, in one run before the records. A record with texts is
eight bytes wider and names two of them by their place in that run, from 1 on; 0 is none. So a record with
texts is replayed as quickly as one without, and the texts of a replaced record are never decoded.

The checksum is CRC-32 (zlib): it finds every flipped bit and every burst of up to 32 bits, which is what a
disk does wrong, and costs a fifth of an 8-byte BLAKE2b (4.0 GB/s against 0.7, one slow core). It does not
protect from a forger, who could write the file anyway. It covers the version and the number, so that it also
finds a frame in the place of another.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter, itemgetter
from typing import Final

from peeklock.broker.vocabulary.changes import (
    Change,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.vocabulary.message import COPIES_FOLLOWING_MAX, Message
from peeklock.store.base import Batch, Frame, FrameKeys, StoreDamaged
from peeklock.store.encoding import definitions, records
from peeklock.store.encoding.records import ABSENT, HAS_OVERLAY, HOPS_SHIFT, WAS_SCHEDULED, Texts

FRAME_VERSION: Final = 2
"""Version that this release writes. It reads 1 up to this: version 2 came with format 6."""

_HEAD: Final = struct.Struct("<BIQ")  # version, checksum, number
# The checksum covers the number and all that follows; the version is its starting value.
_CHECKED_FROM: Final = 5
_CHAINED_HEAD: Final = struct.Struct("<BIQI")  # the same, and the checksum of the frame before
_STATED, _CHECKED_HEAD = struct.Struct("<BI"), struct.Struct("<QI")  # its two halves
_CHAINED_FROM: Final = 2
_HEAD_BYTES: Final = {1: _HEAD.size, 2: _CHAINED_HEAD.size}  # by version
_RUN: Final = struct.Struct("<BQI")  # kind, queue id (0 where records name it themselves), count
_COUNT: Final = struct.Struct("<I")

STORED, REMOVED, NUMBERS, ID_SEEN, OVERLAYS, TEXTS, STORED_WITH_TEXTS, PARTITIONED_NUMBERS = range(1, 9)
COPIES_LEFT: Final = 9
"""Kinds of runs. Those from `TEXTS` on came with format 2, `COPIES_LEFT` with format 6."""

PARTITIONS: Final = 16
"""Of a partitioned queue."""
_REMOVED_RECORD: Final = struct.Struct("<Q")  # position
# Queue id, next position, next sequence number, last enqueued at; the next order of each partition.
_NUMBERS_RECORD: Final = struct.Struct("<QQqQ")
_PARTITIONED_RECORD: Final = struct.Struct(f"<QQqQ{PARTITIONS}Q")
_NUMBERS: Final = (_NUMBERS_RECORD, _PARTITIONED_RECORD)
_ID_RECORD: Final = struct.Struct("<16sqq")  # digest, seen at, sequence number
# Position, length; the bytes of all follow the last record of the run.
_OVERLAY_RECORD: Final = struct.Struct("<QI")
_COPIES_RECORD: Final = struct.Struct("<QH")  # position, copies that may still follow from the message
_TEXT_RECORD: Final = struct.Struct("<I")  # length of its UTF-8; the bytes of all follow the last one

STORED_PAIRS: Final = {
    STORED: struct.Struct(f"<Q{records.STORED_REST.size}s"),
    STORED_WITH_TEXTS: struct.Struct(f"<Q{records.WITH_TEXTS_REST.size}s"),
}
"""The stored records as (position, rest), as a fold keeps them."""

_POSITIONS: Final = {
    STORED: struct.Struct(f"<Q{records.STORED_REST.size}x"),
    STORED_WITH_TEXTS: struct.Struct(f"<Q{records.WITH_TEXTS_REST.size}x"),
}

_RECORDS: Final = {
    STORED: records.STORED_RECORD,
    STORED_WITH_TEXTS: records.WITH_TEXTS_RECORD,
    REMOVED: _REMOVED_RECORD,
    NUMBERS: _NUMBERS_RECORD,
    PARTITIONED_NUMBERS: _PARTITIONED_RECORD,
    ID_SEEN: _ID_RECORD,
    OVERLAYS: _OVERLAY_RECORD,
    TEXTS: _TEXT_RECORD,
    COPIES_LEFT: _COPIES_RECORD,
}

_LAST_KINDS: Final = (NUMBERS, PARTITIONED_NUMBERS, ID_SEEN)
"""Kinds of the runs behind those of messages, in their order in a frame."""

_place: Final = itemgetter(0)

_id_fields: Final = attrgetter("digest", "seen_at_ms", "sequence_number")
_counters: Final = attrgetter("queue_id", "next_position", "next_sequence_number", "last_enqueued_at_ms")


def encode(batch: Batch, previous: int = 0) -> bytes:
    """Return the frame of a batch, its messages as they are now; `previous`: checksum of the one before."""
    no, pack = batch.no, records.STORED_RECORD.pack
    runs: dict[tuple[int, int], list[bytes]] = {}  # by place in _LAST_KINDS and queue
    stored: defaultdict[int, list[bytes]] = defaultdict(list)  # records by queue
    with_texts: dict[int, list[bytes]] = {}
    removed: defaultdict[int, list[int]] = defaultdict(list)  # positions by queue
    texts: dict[str | None, int] = {None: 0}  # and their places
    variable: list[MessageStored] = []
    for change in batch.changes:
        if type(change) is MessageStored:
            m, queue_id = change.message, change.queue_id
            flags: int = m.state | m.hops << HOPS_SHIFT | (WAS_SCHEDULED if m.was_scheduled else 0)
            flags |= HAS_OVERLAY if m.overlay is not None else 0
            if flags >= HAS_OVERLAY or m.copies_left != COPIES_FOLLOWING_MAX:
                variable.append(change)
            record = pack(
                m.position,
                m.sequence_number,
                m.enqueued_sequence_number,
                m.enqueued_at_ms,
                m.expires_at_ms,
                ABSENT if m.ttl_ms is None else m.ttl_ms,
                ABSENT if m.scheduled_at_ms is None else m.scheduled_at_ms,
                m.body_row,
                no,
                m.body_slot,
                m.size_bytes,
                m.bare_offset,
                m.delivery_count,
                flags,
            )
            if m.session_id is None and m.dead_letter_source is None:
                stored[queue_id].append(record)
            else:
                places = [texts.setdefault(text, len(texts)) for text in (m.session_id, m.dead_letter_source)]
                with_texts.setdefault(queue_id, []).append(record + records.PLACES.pack(*places))
        elif type(change) is MessageRemoved:
            removed[change.queue_id].append(change.message.position)
        elif type(change) is MessageIdSeen:
            runs.setdefault((2, change.queue_id), []).append(_ID_RECORD.pack(*_id_fields(change)))
        elif type(change) is NumbersIssued:
            place = 1 if change.partitions else 0
            numbers = _NUMBERS[place].pack(*_counters(change), *change.partitions)
            runs.setdefault((place, 0), []).append(numbers)
        else:
            assert type(change) in definitions.KINDS, f"a store cannot keep {change!r}"
    parts = [_CHECKED_HEAD.pack(no, previous)]
    if variable or len(texts) > 1:
        parts += _variable_runs(variable, texts)
    for kind, queues in (STORED, stored), (STORED_WITH_TEXTS, with_texts):
        for queue_id, found in queues.items():
            parts += (_RUN.pack(kind, queue_id, len(found)), *found)
    for queue_id, gone in removed.items():
        parts += (_RUN.pack(REMOVED, queue_id, len(gone)), struct.pack(f"<{len(gone)}Q", *gone))
    for place, queue_id in sorted(runs, key=_place) if len(runs) > 1 else runs:
        found = runs[place, queue_id]
        parts += (_RUN.pack(_LAST_KINDS[place], queue_id, len(found)), *found)
    checked = b"".join(parts)
    return _STATED.pack(FRAME_VERSION, zlib.crc32(checked, FRAME_VERSION)) + checked


def _variable_runs(stored: Sequence[MessageStored], texts: dict[str | None, int]) -> Iterator[bytes]:
    """Yield the runs that stored records need before them: overlays, texts and copies left."""
    overlays: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
    copies: defaultdict[int, list[bytes]] = defaultdict(list)
    for change in stored:
        m = change.message
        if m.overlay is not None:
            overlays[change.queue_id].append((m.position, m.overlay))
        if m.copies_left != COPIES_FOLLOWING_MAX:
            copies[change.queue_id].append(_COPIES_RECORD.pack(m.position, m.copies_left))
    for queue_id, entries in overlays.items():
        yield _RUN.pack(OVERLAYS, queue_id, len(entries))
        yield from (_OVERLAY_RECORD.pack(position, len(overlay)) for position, overlay in entries)
        yield from (overlay for _, overlay in entries)
    encoded = [text.encode() for text in texts if text is not None]
    if encoded:
        yield _RUN.pack(TEXTS, 0, len(encoded))
        yield struct.pack(f"<{len(encoded)}I", *map(len, encoded))
        yield from encoded
    for queue_id, found in copies.items():
        yield _RUN.pack(COPIES_LEFT, queue_id, len(found))
        yield from found


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
    """Return the facts of frame `no`. Raises: StoreDamaged."""
    changes: list[Change] = []
    overlays: dict[int, dict[int, bytes]] = {}
    copies: dict[int, dict[int, int]] = {}
    texts: Texts = (None,)
    for kind, queue_id, data in runs(no, meta):
        if kind in STORED_PAIRS:
            pairs = list(STORED_PAIRS[kind].iter_unpack(data))
            positions, rests = [position for position, _ in pairs], [rest for _, rest in pairs]
            found = records.messages(
                queue_id, positions, rests, overlays.get(queue_id, {}), {no: texts}.__getitem__
            )
            records.set_copies_left(found, copies.get(queue_id, {}))
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
    """Return the keys of what frame `no` recorded. Raises: StoreDamaged."""
    keys = FrameKeys(no, [], [])
    for kind, queue_id, data in runs(no, meta):
        if kind in _POSITIONS:
            positions = tuple(position for (position,) in _POSITIONS[kind].iter_unpack(data))
            keys.stored.append((queue_id, positions))
        elif kind == ID_SEEN:
            keys.ids += read_ids(queue_id, data)
    return keys


def runs(no: int, meta: bytes) -> list[tuple[int, int, bytes]]:
    """Check a frame; return its runs as (kind, queue id, data for `read_*`). Raises: StoreDamaged."""
    where = f"frame {no}"
    if type(meta) is not bytes:  # SQLite keeps the type beside each value, under no checksum
        raise StoreDamaged(f"{where} is damaged: it is not a BLOB")
    if len(meta) < _HEAD.size:
        raise StoreDamaged(f"{where} is cut off: {len(meta)} bytes, its header alone has {_HEAD.size}")
    version, checksum, own_no = _HEAD.unpack_from(meta)
    found = zlib.crc32(memoryview(meta)[_CHECKED_FROM:], version)
    if found != checksum:
        raise StoreDamaged(f"{where} fails its checksum: stored {checksum:08x}, computed {found:08x}")
    at = _HEAD_BYTES.get(version, 0)
    if not at:
        raise StoreDamaged(f"{where} has version {version}; this release knows 1 to {FRAME_VERSION}")
    if own_no != no:
        raise StoreDamaged(f"{where} was replaced by another frame: it has the number {own_no}")
    cut = []
    end = len(meta)
    if at > end:
        raise StoreDamaged(f"{where} ends within its header")
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


def read_rows(no: int, meta: bytes) -> set[int]:
    """Return the body rows that the stored records of frame `no` name. Raises: StoreDamaged."""
    rows: set[int] = set()
    for kind, _, data in runs(no, meta):
        if kind in STORED_PAIRS:
            rows.update(record[records.BODY_ROW] for record in _RECORDS[kind].iter_unpack(data))
    return rows


def read_positions(data: bytes) -> tuple[int, ...]:
    """Return the positions of removed messages."""
    return struct.unpack(f"<{len(data) // _REMOVED_RECORD.size}Q", data)


def read_numbers(kind: int, data: bytes) -> list[NumbersIssued]:
    """Return the counters of queues, from a run of either kind."""
    if kind == NUMBERS:
        return [NumbersIssued(*fields) for fields in _NUMBERS_RECORD.iter_unpack(data)]
    return [
        NumbersIssued(queue_id, next_position, next_number, last_enqueued_at_ms, tuple(partitions))
        for queue_id, next_position, next_number, last_enqueued_at_ms, *partitions in (
            _PARTITIONED_RECORD.iter_unpack(data)
        )
    ]


def read_ids(queue_id: int, data: bytes) -> list[MessageIdSeen]:
    """Return the message ids of a run."""
    return [MessageIdSeen(queue_id, *fields) for fields in _ID_RECORD.iter_unpack(data)]


def read_overlays(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (position, overlay); the run is checked."""
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _OVERLAY_RECORD.size
    for position, size in _OVERLAY_RECORD.iter_unpack(data[_COUNT.size : at]):
        yield position, data[at : at + size]
        at += size


def read_copies_left(data: bytes) -> Iterator[tuple[int, int]]:
    """Return (position, copies that may still follow)."""
    return _COPIES_RECORD.iter_unpack(data)


def read_texts(no: int, data: bytes) -> Texts:
    """Return the texts of frame `no` by place; the run is checked. Raises: StoreDamaged."""
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
        raise StoreDamaged(f"frame {no} has a text that is not UTF-8: {error}") from error
