"""Columns of numbers as bytes: rows go from task to task as a few large values.

Theory of operation. Spark exchanges rows one by one, and that costs more than to judge them. So a task packs
the rows for each other task into one value. A column keeps, in as few bytes as it needs, the distance of
each number from its smallest one; 0 stands for none.

Owns: the packing. Must not know: Spark, and what the columns are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Truths = NDArray[np.bool_]

NONE = int(np.iinfo(np.int64).min)
"""In an array of numbers: no value."""

_NARROW = (np.uint8, np.uint16, np.uint32)
_BASES = b"bases"


def split(columns: Mapping[str, Numbers], to: Numbers, count: int) -> Iterator[tuple[int, bytes]]:
    """Return the packed rows for each of `count` destinations that has some.

    Args:
        to: the destination of each row, from 0.
    """
    short = to.astype(np.uint16 if count <= 1 << 16 else np.int64)  # numpy sorts short numbers by counting
    sorting = np.argsort(short, kind="stable")
    edges = np.searchsorted(short[sorting], np.arange(count + 1))
    narrow = [_narrow(values) for values in columns.values()]
    schema = pa.schema(
        [(name, pa.from_numpy_dtype(codes.dtype)) for name, (codes, _) in zip(columns, narrow, strict=True)],
        {_BASES: json.dumps([base for _, base in narrow])},
    )
    rows = pa.record_batch([pa.array(codes[sorting]) for codes, _ in narrow], schema=schema)
    for place in range(count):
        here = rows.slice(edges[place], edges[place + 1] - edges[place])
        if len(here):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, schema) as stream:
                stream.write_batch(here)
            yield place, sink.getvalue().to_pybytes()


def join(packed: Iterable[bytes | pa.Buffer]) -> dict[str, Numbers]:
    """Return the columns of all packed rows."""
    parts: dict[str, list[Numbers]] = {}
    for data in packed:
        with pa.ipc.open_stream(data) as stream:
            rows = stream.read_next_batch()
        bases = json.loads(rows.schema.metadata[_BASES])
        for name, column, base in zip(rows.schema.names, rows.columns, bases, strict=True):
            parts.setdefault(name, []).append(_widen(column.to_numpy(), base))
    return {name: np.concatenate(values) for name, values in parts.items()}


def _narrow(values: Numbers) -> tuple[NDArray[np.integer], int | None]:
    """Return the distances from the number before the smallest one, 0 = none, and that number.

    Numbers that are far from each other stay as they are, without a base.
    """
    is_some = values != NONE
    if not is_some.any():
        return np.zeros(len(values), np.uint8), 0
    high, low = int(values.max()), int(values.min(where=is_some, initial=np.iinfo(np.int64).max))
    for kind in _NARROW:
        if high - low + 1 <= np.iinfo(kind).max:
            return np.where(is_some, values - np.int64(low) + 1, 0).astype(kind), low
    return values, None


def _widen(codes: NDArray[np.integer], base: int | None) -> Numbers:
    if base is None:
        return codes.astype(np.int64, copy=False)
    wide = codes.astype(np.int64)
    return np.where(wide == 0, NONE, wide - 1 + base)
