"""Encoded messages as rows, in the columns of `schema`.

A body of data sections is their bytes, one after the other. Of a body that is one AMQP value, a text is shown
as UTF-8, binary as it is, null as null; any other value, and sequences, as their AMQP encoding.
Source: wire contract 3.1, 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from peeklock.amqp.annotations import ENQUEUED, KEY, NUMBER, broker_annotations
from peeklock.spark.options import Key
from peeklock.spark.source import uniform
from peeklock.spark.source.schema import ENCODED
from peeklock.spark.source.sections import PROPERTY_NAMES, read

_SESSION_ID: Final = PROPERTY_NAMES.index("sessionId")

_BATCH_ROWS: Final = 4096
_BATCH_BYTES: Final = 4 << 20
"""Size of an Arrow batch: large enough for little overhead, small against a worker's memory."""


def record_batch(
    payloads: Sequence[bytes], entity: str, schema: pa.Schema, *, include_body: bool = True
) -> pa.RecordBatch:
    """Return the rows of encoded messages of one entity, with columns of `peeklock.spark.source.schema`.

    Raises:
        DecodeError: a payload is truncated or not a message.
    """
    count = len(payloads)
    left_out = {"entity", ENCODED} if include_body else {"entity", ENCODED, "body"}
    fields = [field for field in schema if field.name not in left_out]
    found = uniform.arrays_of(payloads, fields) if payloads else {}
    arrays: list[pa.Array] = []
    for field in schema:
        name, kind = field.name, field.type
        if name == "entity":
            arrays.append(pa.repeat(pa.scalar(entity, kind), count))
        elif name == ENCODED:
            arrays.append(pa.array(payloads, kind))
        else:
            arrays.append(found[name] if name in found else pa.nulls(count, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def record_batches(
    answers: Iterable[tuple[str, Sequence[bytes]]], schema: pa.Schema, *, include_body: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of answers, each an entity and its messages: batches of many answers, of bounded size.

    Raises:
        DecodeError: a payload is truncated or not a message; and what `answers` raises.
    """
    waiting: list[bytes] = []
    size = 0
    of = ""
    for entity, payloads in answers:
        if waiting and (entity != of or len(waiting) >= _BATCH_ROWS or size >= _BATCH_BYTES):
            yield record_batch(waiting, of, schema, include_body=include_body)
            waiting, size = [], 0
        of = entity
        waiting += payloads
        size += sum(map(len, payloads))
    if waiting:
        yield record_batch(waiting, of, schema, include_body=include_body)


def enqueued(payload: bytes) -> tuple[int | None, int | None]:
    """Return the sequence number and the enqueued time, UTC ms, of an encoded message from a broker."""
    values = broker_annotations(payload)
    return values[NUMBER], values[ENQUEUED]


def key_of(payload: bytes, by: Key) -> str | None:
    """Return the session id of an encoded message, or its partition key and else its session id.

    Raises: DecodeError.
    """
    _, annotations, properties, _, _ = read(payload)
    key: str | None = annotations[KEY] if by is Key.PARTITION_KEY else None
    return properties[_SESSION_ID] if key is None else key
