"""Encoded messages as rows: what `sections` reads, in the columns of `schema`.

An invalid value of a sender, which a broker does not check, is null: the row stays, and its column `encoded`
has the bytes.

A body of data sections is their bytes, one after the other. Of a body that is one AMQP value, a text is shown
as UTF-8, binary as it is, null as null; any other value, and sequences, as their AMQP encoding.
Source: wire contract 3.1, 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.messaging import scan
from peeklock.spark.options import Key
from peeklock.spark.source.sections import (
    ENQUEUED,
    KEY,
    NUMBER,
    PROPERTY_NAMES,
    TIME_MS_MAX,
    Texts,
    annotations_of,
    integer,
    read,
)

_STATES: Final = {None: "active", 0: "active", 1: "deferred", 2: "scheduled"}
CLAIMED: Final = "claimed"

_SESSION_ID: Final = PROPERTY_NAMES.index("sessionId")

_TTL_MS_MAX: Final = 0xFFFFFFFF
"""The header.ttl of a message whose absolute-expiry-time is later (wire contract 3.2)."""

_TIME_MS_MIN: Final = -62_135_596_800_000
"""The years 1 to 9999, the range of a table's timestamp."""

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
    columns = _columns(payloads) if payloads else {}
    arrays: list[pa.Array] = []
    for field in schema:
        name, kind = field.name, field.type
        if name == "entity":
            arrays.append(pa.repeat(pa.scalar(entity, kind), count))
        elif name == "encoded":
            arrays.append(pa.array(payloads, kind))
        elif not payloads or (name == "body" and not include_body):
            arrays.append(pa.nulls(count, kind))
        elif name == "body":
            arrays.append(pa.array(columns[name], pa.binary()).view(kind))
        elif name == "applicationProperties":
            arrays.append(_maps(columns[name], kind))
        elif pa.types.is_timestamp(kind):
            arrays.append(pa.array(columns[name], pa.timestamp("ms", tz="UTC")).cast(kind))
        else:
            arrays.append(pa.array(columns[name], kind))
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


def sequence_number(payload: bytes) -> int:
    """Return the sequence number of an encoded message from a broker. Raises: DecodeError."""
    found = enqueued(payload)[0]
    if found is None:
        raise DecodeError("the broker sent a message without a sequence number")
    return found


def enqueued(payload: bytes) -> tuple[int | None, int | None]:
    """Return the sequence number and the enqueued time, UTC ms, of an encoded message from a broker."""
    section = scan(payload).message_annotations
    if section is None:
        return None, None
    values = annotations_of(payload, section[0] + 3, section[1])
    return integer(values[NUMBER]), integer(values[ENQUEUED])


def key_of(payload: bytes, by: Key) -> str | None:
    """Return the session id of an encoded message, or its partition key and else its session id.

    Raises: DecodeError.
    """
    _, annotations, properties, _, _ = read(payload)
    key: str | None = annotations[KEY] if by is Key.PARTITION_KEY else None
    return properties[_SESSION_ID] if key is None else key


def _columns(payloads: Sequence[bytes]) -> dict[str, Sequence[Any]]:
    """Return the values of the columns, apart from `entity` and `encoded`; times in ms."""
    headers, annotations, properties, texts, bodies = zip(*map(read, payloads), strict=True)
    deliveries, ttls_ms = zip(*headers, strict=True)
    enqueued_ms, numbers, first_numbers, states, keys, scheduled_ms, sources, cursors = zip(
        *annotations, strict=True
    )
    found: dict[str, Sequence[Any]] = {
        "body": bodies,
        "sequenceNumber": numbers,
        "enqueuedSequenceNumber": first_numbers,
        "enqueuedTime": enqueued_ms,
        "partitionKey": keys,
        "deliveryCount": deliveries,
        "scheduledEnqueueTime": [*map(_instant, scheduled_ms)],
        "state": [
            CLAIMED if cursor is not None else _STATES.get(state) or str(state)
            for state, cursor in zip(states, cursors, strict=True)
        ],
        "deadLetterReason": [_text_of(each, "DeadLetterReason") for each in texts],
        "deadLetterErrorDescription": [_text_of(each, "DeadLetterErrorDescription") for each in texts],
        "deadLetterSource": sources,
        "applicationProperties": texts,
    }
    found |= {
        name: values
        for name, values in zip(PROPERTY_NAMES, zip(*properties, strict=True), strict=True)
        if name
    }
    found["expiresAt"] = [*map(_expires_ms, ttls_ms, enqueued_ms, found["absoluteExpiryTime"])]
    return found


def _expires_ms(ttl_ms: int | None, enqueued_ms: int | None, absolute: Any) -> int | None:
    """Return when a message expires; for a time-to-live that its field cannot hold, the instant beside it."""
    if ttl_ms is None or enqueued_ms is None:
        return None
    at_ms = enqueued_ms + ttl_ms
    if ttl_ms == _TTL_MS_MAX:
        at_ms = integer(absolute) or at_ms
    return _instant(at_ms)


def _text_of(texts: Texts | None, name: str) -> str | None:
    """Return an application property, None if there is none."""
    if texts is None or name not in texts[0]:
        return None
    return texts[1][texts[0].index(name)]


def _instant(ms: int | None) -> int | None:
    """Return a time, None outside the years 1 to 9999: senders may write any value."""
    return ms if ms is not None and _TIME_MS_MIN <= ms <= TIME_MS_MAX else None


def _maps(column: Sequence[Texts | None], kind: pa.DataType) -> pa.Array:
    """Return a column of maps, made of arrays of their parts: ten times as fast as from rows."""
    offsets: list[int | None] = []
    keys: list[str] = []
    values: list[str | None] = []
    for texts in column:
        if texts is None:
            offsets.append(None)
            continue
        offsets.append(len(keys))
        keys += texts[0]
        values += texts[1]
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string()), type=kind
    )
