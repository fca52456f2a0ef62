"""The bytes of an event row: how the events of one batch become one BLOB, and how it becomes events again.

A row is `version u8, crc32 u32, number u64, count u32` and then, deflated, its columns: for each field of
`Event` the values of all events one after another, since that takes a third of the time of records and a
reader can use a column as it is. First comes a byte for each column: a column of nothing but zeros or None is
left out. Integers are little-endian, of one width a column. Each text is once in a table before the columns;
a column of texts holds places in it, 0 for none. A column of bytes holds a length for each event, and then
the values that are not empty. `frames` says why the checksum is CRC-32.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from peeklock.broker.vocabulary.events import Event, EventTuple
from peeklock.store.base import StoreDamaged

ROW_VERSION = 2
"""Version that this release writes. It reads 1 up to this: version 2 came with format 6."""

_HEAD = struct.Struct("<BIQI")  # version, checksum, number, number of events
_CHECKED_FROM = 5  # the checksum covers all that follows; the version is its starting value
_COUNT = struct.Struct("<I")

_LEVEL = 1
"""Of zlib. It makes a row a quarter of its size in 0.1 us an event."""

INTEGERS = {
    "type": "B",
    "state": "B",
    "delivery_count": "I",
    "at_ms": "q",
    "queue_id": "q",
    "sequence_number": "q",
    "enqueued_sequence_number": "q",
    "size_bytes": "q",
    "enqueued_at_ms": "q",
    "expires_at_ms": "q",
    "scheduled_at_ms": "q",
    "locked_until_ms": "q",
    "related_number": "q",
    "connection_id": "q",
    "connection_lost": "B",
}
"""Columns of integers with their type codes, of `array` as of `struct`, in the order of a row."""

TEXTS = ("queue_name", "related_entity", "session_id", "reason", "link_name")
"""Columns of texts."""

BINARIES = ("transaction_id", "lock_token", "head")
"""Columns of bytes."""

BLANK = Event._make(0 if name in INTEGERS else None for name in Event._fields)
"""An event of nothing, from which others are made."""

_PLACE_OF_FIELD = {name: place for place, name in enumerate(Event._fields)}
_INTEGERS = [(_PLACE_OF_FIELD[name], code) for name, code in INTEGERS.items()]
_CODES = sorted({*INTEGERS.values(), "I"})
_TEXTS = [_PLACE_OF_FIELD[name] for name in TEXTS]
_BINARIES = [_PLACE_OF_FIELD[name] for name in BINARIES]
_FIELDS = {1: 22, ROW_VERSION: len(Event._fields)}
"""The number of fields of `Event` in a row, by version. Missing fields are the last ones."""
assert len(INTEGERS) + len(TEXTS) + len(BINARIES) == len(Event._fields), "each field is in one column"
assert array("I").itemsize == 4, "array's I is 4 bytes wide wherever this runs"


@dataclass(slots=True)
class Columns:
    """A row as columns, without an object for each event."""

    count: int
    integers: dict[str, memoryview]
    """By name; item widths as in `INTEGERS`."""
    texts: list[str | None]
    """None at place 0."""
    places: dict[str, memoryview]
    """Of each column of texts: u32 places in `texts`."""
    lengths: dict[str, memoryview]
    """Of each column of bytes: u32 lengths, 0 for None."""
    binaries: dict[str, memoryview]
    """Of each column of bytes: the joined values."""


def pack(events: Sequence[EventTuple]) -> bytes:
    """Encode the columns of a batch's events; `seal` makes the row.

    Call it when the batch closes: it is the cheaper half, and events may hold values that change later.
    """
    if not events:
        return b""
    count = len(events)
    columns: list[tuple[Any, ...]] = list(zip(*events, strict=True))
    formats = {code: struct.Struct(f"<{count}{code}") for code in _CODES}  # half the time of an array
    texts: dict[str | None, int] = {None: 0}
    there = bytearray(len(columns))
    parts: list[bytes] = []
    for place, code in _INTEGERS:
        column = columns[place]
        if any(column):
            there[place] = 1
            parts.append(formats[code].pack(*column))
    for place in _TEXTS:
        column = columns[place]
        first = column[0]
        if column.count(first) == count:  # most columns: one text for all, or none
            if first is not None:
                there[place] = 1
                parts.append(_COUNT.pack(texts.setdefault(first, len(texts))) * count)
            continue
        there[place] = 1
        for text in set(column):
            texts.setdefault(text, len(texts))
        parts.append(formats["I"].pack(*map(texts.__getitem__, column)))
    for place in _BINARIES:
        values = [value or b"" for value in columns[place]]
        joined = b"".join(values)
        if joined:
            there[place] = 1
            parts.append(formats["I"].pack(*map(len, values)))
            parts.append(joined)
    del texts[None]
    encoded = [str(text).encode("utf-8", "surrogatepass") for text in texts]
    lengths = struct.pack(f"<{len(encoded)}I", *map(len, encoded))
    return b"".join((_COUNT.pack(count), there, _COUNT.pack(len(encoded)), lengths, *encoded, *parts))


def seal(no: int, packed: bytes) -> bytes:
    """Return the row of batch `no` from the result of `pack`."""
    count, body = 0, b""
    if packed:
        (count,) = _COUNT.unpack_from(packed)
        body = zlib.compress(memoryview(packed)[_COUNT.size :], _LEVEL)
    checked = _HEAD.pack(ROW_VERSION, 0, no, count)[_CHECKED_FROM:] + body
    return _HEAD.pack(ROW_VERSION, zlib.crc32(checked, ROW_VERSION), no, 0)[:_CHECKED_FROM] + checked


def digest(data: bytes) -> bytes:
    """Return 16 bytes that tell a row from any other."""
    return blake2b(data, digest_size=16).digest()


def unpack(no: int, data: bytes) -> list[Event]:
    """Return the events of the row of batch `no`, in order. Raises: StoreDamaged."""
    columns = read_columns(no, data)
    values: dict[str, Sequence[object]] = dict(columns.integers)
    for name in TEXTS:
        values[name] = [columns.texts[place] for place in columns.places[name]]
    for name in BINARIES:
        lengths = columns.lengths[name]
        joined = columns.binaries[name]
        values[name] = [
            bytes(joined[end - length : end]) if length else None
            for length, end in zip(lengths, accumulate(lengths), strict=True)
        ]
    rows = zip(*(values[name] for name in Event._fields), strict=True)
    return [Event._make(row) for row in rows]


def read_columns(no: int, data: bytes) -> Columns:
    """Return the row of batch `no` as columns. Raises: StoreDamaged."""
    where = f"event row {no}"
    if type(data) is not bytes:  # SQLite keeps the type beside each value, under no checksum
        raise StoreDamaged(f"{where} is damaged: it is not a BLOB")
    if len(data) < _HEAD.size:
        raise StoreDamaged(f"{where} is cut off: {len(data)} bytes, its header alone has {_HEAD.size}")
    version, checksum, own_no, count = _HEAD.unpack_from(data)
    found = zlib.crc32(memoryview(data)[_CHECKED_FROM:], version)
    if found != checksum:
        raise StoreDamaged(f"{where} fails its checksum: stored {checksum:08x}, computed {found:08x}")
    if version not in _FIELDS:
        raise StoreDamaged(f"{where} has version {version}; this release knows 1 to {ROW_VERSION}")
    if own_no != no:
        raise StoreDamaged(f"{where} was replaced by another row: it has the number {own_no}")
    if not count:
        empty = memoryview(b"")
        return Columns(
            0,
            {name: memoryview(array(code)) for name, code in INTEGERS.items()},
            [None],
            {name: memoryview(array("I")) for name in TEXTS},
            {name: memoryview(array("I")) for name in BINARIES},
            dict.fromkeys(BINARIES, empty),
        )
    try:
        taker = _Taker(zlib.decompress(memoryview(data)[_HEAD.size :]))
        return _columns(taker, count, _FIELDS[version])
    except (zlib.error, struct.error, ValueError, IndexError) as error:
        raise StoreDamaged(f"{where} cannot be read although its checksum holds: {error}") from error


class _Taker:
    """Reads a packed row from its start."""

    def __init__(self, data: bytes) -> None:
        self._view = memoryview(data)
        self._at = 0

    def bytes(self, size: int) -> memoryview:
        end = self._at + size
        if end > len(self._view):
            raise ValueError(f"{end - len(self._view)} bytes are missing at its end")
        taken = self._view[self._at : end]
        self._at = end
        return taken

    def array(self, code: str, count: int) -> memoryview:
        width = array(code).itemsize
        values = array(code, self.bytes(count * width).tobytes())  # a copy: what is taken may be unaligned
        return memoryview(_little(values))


def _columns(taker: _Taker, count: int, fields: int) -> Columns:
    there = bytes(taker.bytes(fields)).ljust(len(Event._fields), b"\0")
    (text_count,) = _COUNT.unpack(taker.bytes(_COUNT.size))
    lengths = taker.array("I", text_count).tolist()
    texts: list[str | None] = [None]
    texts += [str(taker.bytes(length), "utf-8", "surrogatepass") for length in lengths]
    integers = {
        name: taker.array(code, count) if there[_PLACE_OF_FIELD[name]] else _zeros(code, count)
        for name, code in INTEGERS.items()
    }
    places = {
        name: taker.array("I", count) if there[_PLACE_OF_FIELD[name]] else _zeros("I", count)
        for name in TEXTS
    }
    if any(max(column) > text_count for column in places.values()):
        raise ValueError("it names a text that it does not have")
    columns = Columns(count, integers, texts, places, {}, {})
    for name in BINARIES:
        is_there = there[_PLACE_OF_FIELD[name]]
        sizes = columns.lengths[name] = taker.array("I", count) if is_there else _zeros("I", count)
        columns.binaries[name] = taker.bytes(sum(sizes))
    return columns


def _zeros(code: str, count: int) -> memoryview:
    return memoryview(array(code, bytes(count * array(code).itemsize)))


def _swapped(values: array[int]) -> array[int]:
    values.byteswap()
    return values


def _as_is(values: array[int]) -> array[int]:
    return values


_little: Callable[[array[int]], array[int]] = _as_is if sys.byteorder == "little" else _swapped
