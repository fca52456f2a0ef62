"""Encoded messages as Arrow arrays, all messages of one layout at once: most of a queue have few layouts.

Theory of operation. The layout of one message says which bits before the body the others must share. Their
bytes up to there, one row each, are a matrix: one comparison finds the messages of this layout, and a
column is some columns of the matrix. Any other column has one value, that of the first of them as `columns`
reads it. A layout has to pay off: one that few messages have is not used, and after some of these no more are
tried. The messages that are left are read by `columns`, which decides what each value is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from peeklock.amqp.annotations import CURSOR, TIME_MS_MAX, integer
from peeklock.spark.source import columns
from peeklock.spark.source.columns import REASONS, TIME_MS, TIME_MS_MIN, TTL_MS_MAX
from peeklock.spark.source.layout import ENQUEUED, EXPIRY, STATE, TTL, Layout, Place, layout_of
from peeklock.spark.source.sections import PROPERTY_NAMES, read, texts_of

ROWS_MIN: Final = 512
"""Messages of a layout. The arrays of one cost as much as these, read one after the other."""
LAYOUTS_MAX: Final = 8
MISSES_MAX: Final = 3
"""Layouts of a batch that are used, and that are tried in vain."""
SAMPLE: Final = 128
"""Messages around the one whose layout is tried: their share tells cheaply whether it pays off."""

_STATES: Final = pa.array([columns.shown_state(byte if byte < 128 else byte - 256) for byte in range(256)])
"""States by the byte of a smallint."""

_Bytes = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Alike:
    """Messages of one layout."""

    layout: Layout
    rows: _Numbers
    """Their places in the batch, ascending."""
    payloads: Sequence[bytes]
    heads: _Bytes
    """Their bytes before the body, a row each."""


def arrays_of(
    payloads: Sequence[bytes], fields: Iterable[pa.Field], *, rows_min: int = ROWS_MIN
) -> dict[str, pa.Array]:
    """Return what `columns.arrays_of` returns for these messages. Raises: DecodeError."""
    fields = [*fields]
    groups, others = _alike(payloads, rows_min)
    if not groups:
        return columns.arrays_of(payloads, fields)
    rows = [group.rows for group in groups]
    parts = []
    if others:
        # First, so that a message that is no message is the error, as in any other batch.
        parts.append(columns.arrays_of([payloads[row] for row in others], fields))
        rows.insert(0, np.array(others))
    parts += [_arrays(group, fields) for group in groups]
    if len(parts) == 1:
        return parts[0]
    order = pa.array(np.argsort(np.concatenate(rows)))
    return {
        field.name: pa.concat_arrays([part.pop(field.name) for part in parts]).take(order) for field in fields
    }


def _alike(payloads: Sequence[bytes], rows_min: int) -> tuple[list[_Alike], list[int]]:
    """Return the messages of the layouts that many have, and the places of the others, ascending."""
    groups: list[_Alike] = []
    others: list[int] = []
    waiting = np.arange(len(payloads))
    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
    misses = 0
    while len(waiting) >= rows_min and len(groups) < LAYOUTS_MAX and misses < MISSES_MAX:
        middle = len(waiting) // 2  # the first of a queue may be unlike all others
        group = _like(middle, payloads, sizes, waiting, rows_min)
        if group is None:
            misses += 1
            others.append(int(waiting[middle]))
            waiting = np.delete(waiting, middle)
        else:
            groups.append(group)
            waiting = np.setdiff1d(waiting, group.rows, assume_unique=True)
    return groups, sorted([*others, *waiting.tolist()])


def _like(
    place: int, payloads: Sequence[bytes], sizes: _Numbers, waiting: _Numbers, rows_min: int
) -> _Alike | None:
    """Return those that wait with the layout of one of them; None = it has none, or they are few."""
    one = payloads[waiting[place]]
    layout = layout_of(one)
    if layout is None:
        return None
    sample = waiting[max(0, place - SAMPLE // 2) : place + SAMPLE // 2]
    found, _ = _matching(layout, one, payloads, sizes, sample)
    if len(found) * len(waiting) < rows_min * len(sample):
        return None
    rows, heads = _matching(layout, one, payloads, sizes, waiting)
    if len(rows) < rows_min:
        return None
    return _Alike(layout, rows, [payloads[row] for row in rows.tolist()], heads)


def _matching(
    layout: Layout, one: bytes, payloads: Sequence[bytes], sizes: _Numbers, rows: _Numbers
) -> tuple[_Numbers, _Bytes]:
    """Return those of some rows with the layout of a message, and their bytes before the body."""
    width = len(layout.mask)
    body_bytes = sizes[rows] - width
    chosen = body_bytes == 0 if layout.size is None else body_bytes >= 0
    rows, body_bytes = rows[chosen], body_bytes[chosen]
    joined = b"".join([payloads[row][:width] for row in rows.tolist()])
    heads = np.frombuffer(joined, np.uint8).reshape(len(rows), width)
    differing = heads ^ np.frombuffer(one, np.uint8, width)
    differing &= np.frombuffer(layout.mask, np.uint8)
    same = ~differing.any(axis=1)
    if layout.size is not None:
        same &= _numbers(heads, layout.size) == body_bytes
    return (rows, heads) if same.all() else (rows[same], heads[same])


def _arrays(group: _Alike, fields: Sequence[pa.Field]) -> dict[str, pa.Array]:
    """Return the columns of messages of one layout."""
    found = _by_properties(group, fields)
    for field in fields:
        if field.name not in found:
            array = _array(group, field)
            if array is not None:
                found[field.name] = array
    constant = [field for field in fields if field.name not in found]
    first = pa.array(np.zeros(len(group.rows), np.int32))
    for name, array in columns.arrays_of(group.payloads[:1], constant).items():
        found[name] = array.take(first)
    return found


def _array(group: _Alike, field: pa.Field) -> pa.Array | None:
    """Return one column; None = all have the value of the first message."""
    layout, heads, name, kind = group.layout, group.heads, field.name, field.type
    if name in layout.texts:
        return _texts(heads, layout.texts[name])
    if name == "body" and layout.size is not None:
        return _bodies(group).view(kind)
    if name == "state" and STATE in layout.numbers and read(group.payloads[0])[1][CURSOR] is None:
        return _STATES.take(pa.array(_numbers(heads, layout.numbers[STATE])))
    if name == "expiresAt" and TTL in layout.numbers:
        return _instants(_expires_ms(group), kind)
    if name in (STATE, EXPIRY, TTL) or name not in layout.numbers:
        return None
    numbers = _numbers(heads, layout.numbers[name])
    if name == ENQUEUED:
        return pa.array(numbers, TIME_MS).cast(kind)
    return _instants(numbers, kind) if pa.types.is_timestamp(kind) else pa.array(numbers, kind)


def _numbers(heads: _Bytes, place: Place) -> _Numbers:
    """Return integers of 1, 4 (unsigned) or 8 bytes (signed)."""
    start, width = place
    raw = np.ascontiguousarray(heads[:, start : start + width])
    return raw.view(f">{'i' if width == 8 else 'u'}{width}")[:, 0].astype(np.int64)


def _texts(heads: _Bytes, place: Place) -> pa.Array:
    start, width = place
    offsets = np.arange(len(heads) + 1, dtype=np.int32) * np.int32(width)
    return _strings(pa.string(), offsets, heads[:, start : start + width].tobytes())


def _bodies(group: _Alike) -> pa.Array:
    """Return the bodies, each copied once to its place: a batch in a few copies would fill a small worker."""
    start = group.heads.shape[1]
    offsets = np.zeros(len(group.payloads) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, group.payloads), np.int32, len(group.payloads)) - start, out=offsets[1:])
    data = pa.allocate_buffer(int(offsets[-1]))
    place = memoryview(data).cast("B")
    ends = offsets.tolist()
    for payload, begin, end in zip(group.payloads, ends, ends[1:], strict=False):
        place[begin:end] = memoryview(payload)[start:]
    return _strings(pa.binary(), offsets, data)


def _strings(kind: pa.DataType, offsets: npt.NDArray[np.int32], data: bytes | pa.Buffer) -> pa.Array:
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _expires_ms(group: _Alike) -> _Numbers:
    """Return when messages expire, as `columns` does; any instant outside the years 1 to 9999 for none."""
    heads, numbers = group.heads, group.layout.numbers
    ttl_ms = _numbers(heads, numbers[TTL])
    # A sum with what is out of range anyway would not fit.
    at_ms = np.clip(_numbers(heads, numbers[ENQUEUED]), TIME_MS_MIN - (1 << 33), TIME_MS_MAX + 1) + ttl_ms
    absolute: Any
    if EXPIRY in numbers:
        absolute = _numbers(heads, numbers[EXPIRY])
    else:
        constant = integer(read(group.payloads[0])[2][PROPERTY_NAMES.index(EXPIRY)]) or 0
        absolute = max(TIME_MS_MIN - 1, min(constant, TIME_MS_MAX + 1))
    return np.where((ttl_ms == TTL_MS_MAX) & (absolute != 0), absolute, at_ms)


def _instants(ms: _Numbers, kind: pa.DataType) -> pa.Array:
    """Return times, null outside the years 1 to 9999."""
    outside = (ms < TIME_MS_MIN) | (ms > TIME_MS_MAX)
    return pa.array(np.where(outside, 0, ms), TIME_MS, mask=outside).cast(kind)


def _by_properties(group: _Alike, fields: Iterable[pa.Field]) -> dict[str, pa.Array]:
    """Return the columns of application properties; each distinct section is read once."""
    wanted = [field for field in fields if field.name == "applicationProperties" or field.name in REASONS]
    if group.layout.properties is None or not wanted:
        return {}
    start, width = group.layout.properties
    raw = pa.py_buffer(group.heads[:, start : start + width].tobytes())
    distinct = pa.Array.from_buffers(pa.binary(width), len(group.rows), [None, raw]).dictionary_encode()
    texts = [texts_of(section) for section in distinct.dictionary.to_numpy(zero_copy_only=False)]
    found = {}
    for field in wanted:
        if field.name in REASONS:
            few = pa.array([columns.text_of(each, REASONS[field.name]) for each in texts], field.type)
        else:
            few = columns.maps(texts, field.type)
        found[field.name] = few if len(few) == len(group.rows) else few.take(distinct.indices)
    return found
