"""How the facts of one batch become one BLOB, a frame, and how frames become facts again.

Owns: the bytes of a frame and of a body row. Must not know: where they are kept.

A frame is `version u8, crc32 u32, number u64` and then runs. A run is `kind u8, queue id u64, count u32` and
`count` records of one fixed width, so that a whole run is decoded by one `struct.iter_unpack`. All integers
are little-endian; a position is unsigned, since it counts on where sequence numbers roll over.
Changed properties, the only part of variable length, have runs of their own. A frame holds all its stored
records before all its removed ones: positions are never reused, so a removal is always the last word on its
key, and the order of records of different keys means nothing.

The checksum is CRC-32 (zlib): it finds every flipped bit and every burst of up to 32 bits, which is what a
disk does wrong, and costs a fifth of an 8-byte BLAKE2b (4.0 GB/s against 0.7, one slow core). It is no
protection from a forger, who could write the file anyway. It covers the version and the number, so that a
frame in another's place is found too.

`Fold` replays a journal without making objects for records that do not last: see there.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, repeat

from peeklock.broker.changes import (
    Change,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
)
from peeklock.broker.message import Message, MessageState
from peeklock.store.base import Batch, Frame, LiveFacts, StoreDamaged

FRAME_VERSION = 1

_HEAD = struct.Struct("<BIQ")  # version, checksum, number
_CHECKED_FROM = 5  # the checksum covers the number and all that follows; the version is its starting value
_RUN = struct.Struct("<BQI")  # kind, queue id (0 where records name it themselves), count

_STORED, _REMOVED, _NUMBERS, _ID_SEEN, _OVERLAYS = 1, 2, 3, 4, 5

# sequence number, enqueued sequence number, enqueued at, expires at, ttl, scheduled at, body row, frame
# number, body slot, size, bare offset, delivery count, flags; the position stands before them.
_FIELDS = "qqqqqqqqIIIIB"
_STORED_RECORD = struct.Struct("<Q" + _FIELDS)
_STORED_REST = struct.Struct("<" + _FIELDS)
_STORED_PAIR = struct.Struct(f"<Q{_STORED_REST.size}s")  # the same record as (position, rest)
_REMOVED_RECORD = struct.Struct("<Q")  # position
_NUMBERS_RECORD = struct.Struct("<QQqQ")  # queue id, next position, next sequence number, last enqueued at
_ID_RECORD = struct.Struct("<16sqq")  # digest, seen at, sequence number
_OVERLAY_RECORD = struct.Struct("<QI")  # position, length; the bytes of all follow the last record of the run

_WIDTHS = {
    _STORED: _STORED_RECORD.size,
    _REMOVED: _REMOVED_RECORD.size,
    _NUMBERS: _NUMBERS_RECORD.size,
    _ID_SEEN: _ID_RECORD.size,
}

_BODY_HEAD = struct.Struct(
    "<BIQI"
)  # version, checksum, row, number of payloads; then a u32 length for each; then the payloads
_ABSENT = -1  # stands for None in times and durations, which are never negative
_STATE_MASK = 0x03
_HAS_OVERLAY = 0x80
_STATES = tuple(MessageState)  # by number: 0, 1, 2

STORED_RECORD_BYTES = _STORED_RECORD.size
PIECE_RECORDS = 20_000
"""Records decoded at a time after a fold: some 5 MB of objects beyond what lasts."""


def encode(batch: Batch) -> bytes:
    """Encode the facts of a batch, with the values that its messages have now; entity facts are kept
    elsewhere."""
    no = batch.no
    pack = _STORED_RECORD.pack
    stored: dict[int, list[bytes]] = {}
    removed: dict[int, list[int]] = {}
    overlays: dict[int, list[tuple[int, bytes]]] = {}
    numbers: list[bytes] = []
    ids: dict[int, list[bytes]] = {}
    last_stored = last_removed = -1
    add_stored = add_removed = None
    for change in batch.changes:
        if type(change) is MessageStored:
            queue_id = change.queue_id
            if queue_id != last_stored:
                last_stored = queue_id
                add_stored = stored.setdefault(queue_id, []).append
            m = change.message
            ttl_ms = m.ttl_ms
            scheduled_at_ms = m.scheduled_at_ms
            flags: int = m.state
            if m.overlay is not None:
                flags |= _HAS_OVERLAY
                overlays.setdefault(queue_id, []).append((m.position, m.overlay))
            add_stored(  # type: ignore[misc]
                pack(
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
            )
        elif type(change) is MessageRemoved:
            queue_id = change.queue_id
            if queue_id != last_removed:
                last_removed = queue_id
                add_removed = removed.setdefault(queue_id, []).append
            add_removed(change.message.position)  # type: ignore[misc]
        elif isinstance(change, NumbersIssued):
            numbers.append(
                _NUMBERS_RECORD.pack(
                    change.queue_id,
                    change.next_position,
                    change.next_sequence_number,
                    change.last_enqueued_at_ms,
                )
            )
        elif isinstance(change, MessageIdSeen):
            ids.setdefault(change.queue_id, []).append(
                _ID_RECORD.pack(change.digest, change.seen_at_ms, change.sequence_number)
            )
        else:
            assert isinstance(change, EntityStored | EntityRemoved), f"a store cannot keep {change!r}"
    parts = [_HEAD.pack(FRAME_VERSION, 0, no)[_CHECKED_FROM:]]
    for queue_id, entries in overlays.items():
        parts.append(_RUN.pack(_OVERLAYS, queue_id, len(entries)))
        parts += [_OVERLAY_RECORD.pack(position, len(overlay)) for position, overlay in entries]
        parts += [overlay for _, overlay in entries]
    for queue_id, records in stored.items():
        parts.append(_RUN.pack(_STORED, queue_id, len(records)))
        parts += records
    for queue_id, positions in removed.items():
        parts.append(_RUN.pack(_REMOVED, queue_id, len(positions)))
        parts.append(struct.pack(f"<{len(positions)}Q", *positions))
    if numbers:
        parts.append(_RUN.pack(_NUMBERS, 0, len(numbers)))
        parts += numbers
    for queue_id, records in ids.items():
        parts.append(_RUN.pack(_ID_SEEN, queue_id, len(records)))
        parts += records
    checked = b"".join(parts)
    return _HEAD.pack(FRAME_VERSION, zlib.crc32(checked, FRAME_VERSION), no)[:_CHECKED_FROM] + checked


def decode(no: int, meta: bytes) -> Frame:
    """Give back the facts of frame `no`. Raises: StoreDamaged."""
    changes: list[Change] = []
    overlays: dict[tuple[int, int], bytes] = {}
    for kind, queue_id, data in _runs(no, meta):
        if kind == _STORED:
            changes += _messages(queue_id, _STORED_PAIR.iter_unpack(data), overlays)
        elif kind == _OVERLAYS:
            overlays.update(((queue_id, position), overlay) for position, overlay in _overlays(data))
        elif kind == _REMOVED:
            for (position,) in _REMOVED_RECORD.iter_unpack(data):
                message = Message(0)
                message.queue_id = queue_id
                message.position = position
                changes.append(MessageRemoved(queue_id, message))
        elif kind == _NUMBERS:
            changes += [NumbersIssued(*fields) for fields in _NUMBERS_RECORD.iter_unpack(data)]
        else:
            changes += [MessageIdSeen(queue_id, *fields) for fields in _ID_RECORD.iter_unpack(data)]
    return Frame(no, changes, len(meta))


class Fold:
    """Replays frames so that only what lasts becomes objects.

    A record stays a slice of bytes, keyed by its position; a whole run goes into the table, and out of it,
    within one C call (about 0.2 us a record). Once all frames are in, what is left is decoded. Worst case is
    a journal of three times the live records; with an object for each it takes three times as long.
    """

    def __init__(self) -> None:
        self._first_no = 1
        self._sizes = array("L")
        self._stored: dict[int, dict[int, bytes]] = {}
        self._overlays: dict[tuple[int, int], bytes] = {}
        self._numbers: dict[int, tuple[int, NumbersIssued]] = {}
        self._ids: dict[tuple[int, bytes], MessageIdSeen] = {}
        self._id_frames: dict[int, int] = {}

    def add(self, no: int, meta: bytes) -> None:
        """Replay frame `no`. Raises: StoreDamaged, also for a gap."""
        runs = _runs(no, meta)
        if not self._sizes:
            self._first_no = no
        elif no != self._first_no + len(self._sizes):
            raise StoreDamaged(gap(self._first_no + len(self._sizes), no))
        self._sizes.append(len(meta))
        for kind, queue_id, data in runs:
            if kind == _STORED:
                self._stored.setdefault(queue_id, {}).update(_STORED_PAIR.iter_unpack(data))
            elif kind == _REMOVED:
                live = self._stored.get(queue_id)
                if live:
                    positions = struct.unpack(f"<{len(data) // _REMOVED_RECORD.size}Q", data)
                    deque(map(live.pop, positions, repeat(None)), maxlen=0)
            elif kind == _NUMBERS:
                for fields in _NUMBERS_RECORD.iter_unpack(data):
                    self._numbers[fields[0]] = (no, NumbersIssued(*fields))
            elif kind == _ID_SEEN:
                self._id_frames[no] = self._id_frames.get(no, 0) + len(data) // _ID_RECORD.size
                for fields in _ID_RECORD.iter_unpack(data):
                    self._ids[queue_id, fields[0]] = MessageIdSeen(queue_id, *fields)
            else:
                for position, overlay in _overlays(data):
                    self._overlays[queue_id, position] = overlay

    def finish(self) -> LiveFacts:
        """Give what lasts. The fold is used up: its memory is freed piece by piece as the messages are
        taken."""
        return LiveFacts(
            self._first_no,
            self._sizes,
            self._take_messages(),
            list(self._numbers.values()),
            list(self._ids.values()),
            self._id_frames,
        )

    def _take_messages(self) -> Iterator[tuple[int, list[MessageStored]]]:
        while self._stored:
            queue_id, records = self._stored.popitem()
            pairs = iter(records.items())
            while piece := list(islice(pairs, PIECE_RECORDS)):
                yield queue_id, _messages(queue_id, piece, self._overlays)


def gap(expected: int, found: int) -> str:
    """Say that frames are missing."""
    missing = f"frame {expected} is" if found == expected + 1 else f"frames {expected} to {found - 1} are"
    return f"{missing} missing from the journal: frame {found} comes next"


def _runs(no: int, meta: bytes) -> list[tuple[int, int, bytes]]:
    """Check a frame and cut it into (kind, queue id, bytes of the records). Raises: StoreDamaged."""
    where = f"frame {no}"
    if len(meta) < _HEAD.size:
        raise StoreDamaged(f"{where} is cut off: {len(meta)} bytes, its head alone takes {_HEAD.size}")
    version, checksum, own_no = _HEAD.unpack_from(meta)
    found = zlib.crc32(memoryview(meta)[_CHECKED_FROM:], version)
    if found != checksum:
        raise StoreDamaged(f"{where} fails its checksum: it says {checksum:08x}, its bytes give {found:08x}")
    if version != FRAME_VERSION:
        raise StoreDamaged(f"{where} has version {version}; this release knows version {FRAME_VERSION}")
    if own_no != no:
        raise StoreDamaged(f"{where} is another frame in its place: it says that it is frame {own_no}")
    runs = []
    at, end = _HEAD.size, len(meta)
    while at < end:
        if end - at < _RUN.size:
            raise StoreDamaged(f"{where} ends within a run")
        kind, queue_id, count = _RUN.unpack_from(meta, at)
        at += _RUN.size
        width = _WIDTHS.get(kind)
        if width is not None:
            stop = at + count * width
        elif kind == _OVERLAYS:
            stop = at + count * _OVERLAY_RECORD.size
            if stop <= end:
                stop += sum(size for _, size in _OVERLAY_RECORD.iter_unpack(meta[at:stop]))
        else:
            raise StoreDamaged(f"{where} holds records of an unknown kind, {kind}")
        if stop > end:
            raise StoreDamaged(f"{where} ends within a run of {count} records")
        if kind == _OVERLAYS:
            runs.append((kind, queue_id, _RUN.pack(kind, queue_id, count) + meta[at:stop]))
        else:
            runs.append((kind, queue_id, meta[at:stop]))
        at = stop
    return runs


def _overlays(run: bytes) -> Iterator[tuple[int, bytes]]:
    """Give (position, overlay) of a whole run, head included; its lengths were checked."""
    count = _RUN.unpack_from(run)[2]
    at = _RUN.size + count * _OVERLAY_RECORD.size
    for position, size in _OVERLAY_RECORD.iter_unpack(run[_RUN.size : at]):
        yield position, run[at : at + size]
        at += size


def _messages(
    queue_id: int, pairs: Iterable[tuple[int, bytes]], overlays: dict[tuple[int, int], bytes]
) -> list[MessageStored]:
    """Make messages of (position, rest of the record). Equal neighbours share one int object: it saves 100
    bytes each."""
    positions, rests = zip(*pairs, strict=True)
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
    ) in zip(positions, _STORED_REST.iter_unpack(b"".join(rests)), strict=True):
        if flags & ~(_STATE_MASK | _HAS_OVERLAY) or flags & _STATE_MASK == _STATE_MASK:
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
            last_size = size_bytes
        m = new(Message)
        m.queue_id = queue_id
        m.position = position
        m.sequence_number = position if sequence_number == position else sequence_number
        m.enqueued_sequence_number = (
            position if enqueued_sequence_number == position else enqueued_sequence_number
        )
        m.enqueued_at_ms = last_enqueued
        m.expires_at_ms = last_expires
        m.ttl_ms = None if ttl_ms == _ABSENT else ttl_ms
        m.scheduled_at_ms = None if scheduled_at_ms == _ABSENT else scheduled_at_ms
        m.body_row = last_row
        m.journal_no = last_no
        m.body_slot = body_slot
        m.size_bytes = last_size
        m.bare_offset = bare_offset
        m.delivery_count = delivery_count
        m.state = states[flags & _STATE_MASK]
        m.overlay = overlays[queue_id, position] if flags & _HAS_OVERLAY else None
        m.message_id = None
        m.lock = None
        add(MessageStored(queue_id, m))
    return changes


def pack_body_row(row: int, payloads: Sequence[bytes]) -> bytes:
    """Encode the payloads of a body row, by slot."""
    sizes = struct.pack(f"<{len(payloads)}I", *map(len, payloads))
    checked = b"".join(
        (_BODY_HEAD.pack(FRAME_VERSION, 0, row, len(payloads))[_CHECKED_FROM:], sizes, *payloads)
    )
    return (
        _BODY_HEAD.pack(FRAME_VERSION, zlib.crc32(checked, FRAME_VERSION), row, 0)[:_CHECKED_FROM] + checked
    )


def unpack_body_row(row: int, data: bytes) -> list[bytes]:
    """Give back the payloads of body row `row`, by slot. Raises: StoreDamaged."""
    where = f"body row {row}"
    if len(data) < _BODY_HEAD.size:
        raise StoreDamaged(f"{where} is cut off: {len(data)} bytes, its head alone takes {_BODY_HEAD.size}")
    version, checksum, own_row, count = _BODY_HEAD.unpack_from(data)
    found = zlib.crc32(memoryview(data)[_CHECKED_FROM:], version)
    if found != checksum:
        raise StoreDamaged(f"{where} fails its checksum: it says {checksum:08x}, its bytes give {found:08x}")
    if version != FRAME_VERSION:
        raise StoreDamaged(f"{where} has version {version}; this release knows version {FRAME_VERSION}")
    if own_row != row:
        raise StoreDamaged(f"{where} is another row in its place: it says that it is row {own_row}")
    at = _BODY_HEAD.size + 4 * count
    if at > len(data):
        raise StoreDamaged(f"{where} is too short for its {count} payloads")
    payloads = []
    for size in struct.unpack_from(f"<{count}I", data, _BODY_HEAD.size):
        payloads.append(data[at : at + size])
        at += size
    if at != len(data):
        raise StoreDamaged(f"{where} has {len(data)} bytes; its {count} payloads take {at}")
    return payloads
