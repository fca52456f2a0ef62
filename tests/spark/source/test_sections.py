"""Rows, read straight from the bytes, say what the codec says: of any messages, in any order, caches warm."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.annotations import CACHED_BYTES_MAX, CACHED_MAX
from peeklock.amqp.codec import DecodeError
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, scan
from peeklock.amqp.types import Int, Long, Timestamp
from peeklock.broker.vocabulary.message import MessageState, MessageView
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.spark.source import sections
from peeklock.spark.source.rows import record_batch, record_batches
from peeklock.spark.source.schema import row_schema
from tests.gateway.harness import stored

pytestmark = pytest.mark.spark

_texts = st.one_of(st.none(), st.sampled_from(["", "a", "order", "grüße"]), st.text(max_size=300))
_values = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-200, 200), st.text()
)
_properties = st.builds(
    Properties,
    message_id=_texts,
    to=_texts,
    subject=_texts,
    reply_to=_texts,
    correlation_id=_texts,
    content_type=st.sampled_from([None, "text/plain"]),
    content_encoding=st.sampled_from([None, "utf-8"]),
    creation_time=st.sampled_from([None, 5]),
    group_id=_texts,
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Make a message as our broker shows it to a reader that locks nothing, or as another broker may."""
    sent: dict[str, Any] = {
        "properties": draw(st.none() | _properties),
        "application_properties": draw(st.none() | st.dictionaries(st.text(max_size=9), _values, max_size=4)),
        "data": draw(st.binary(max_size=300)),
    }
    annotations = {
        "x-opt-partition-key": draw(_texts),
        "x-opt-scheduled-enqueue-time": draw(st.none() | st.builds(Timestamp, st.integers(0, 1 << 40))),
        "x-opt-of-a-sender": draw(_values),
    }
    annotations = {name: value for name, value in annotations.items() if value is not None}
    number = draw(st.integers(1, 1 << 50))
    deliveries = draw(st.integers(0, 300))
    ttl_ms = draw(st.none() | st.integers(1, 1 << 31))
    state = draw(st.sampled_from(MessageState))
    if draw(st.booleans()):
        payload = encode_message(message_annotations=annotations, **sent)
        message = stored(payload, number=number)
        message.dead_letter_source = draw(st.none() | st.just("elsewhere"))
        cursor = draw(st.none() | st.just("spark"))
        view = MessageView(message, None, 0, deliveries, ttl_ms, state, None, cursor=cursor)
        return encode_for_receiver(view, payload, partitioned=draw(st.booleans()))
    own = {
        "x-opt-sequence-number": Long(number),
        "x-opt-enqueued-time": Timestamp(draw(st.integers(0, 1 << 41))),
        "x-opt-message-state": Int(state),
    }
    mixed = dict(draw(st.permutations([*own.items(), *annotations.items()])))
    header = Header(ttl=ttl_ms, delivery_count=deliveries)
    return encode_message(header=header, message_annotations=mixed, **sent)


def by_the_codec(payload: bytes) -> dict[str, Any]:
    """Return the row of a message, by the codec alone."""
    found = scan(payload)
    header, properties = found.decode_header(), found.decode_properties()
    known = found.decode_message_annotations()
    texts = {
        name: str(value).lower() if isinstance(value, bool) else None if value is None else str(value)
        for name, value in found.decode_application_properties().items()
    }
    enqueued_ms: int | None = known.get("x-opt-enqueued-time")
    state = ("active", "deferred", "scheduled")[known.get("x-opt-message-state", 0)]
    return {
        "body": b"".join(piece for _, piece in found.decode_body()),
        "entity": "orders",
        "sequenceNumber": known.get("x-opt-sequence-number"),
        "enqueuedSequenceNumber": known.get("x-opt-enqueue-sequence-number"),
        "enqueuedTime": _at(enqueued_ms),
        "messageId": properties.message_id,
        "sessionId": properties.group_id,
        "partitionKey": known.get("x-opt-partition-key"),
        "correlationId": properties.correlation_id,
        "subject": properties.subject,
        "contentType": properties.content_type,
        "to": properties.to,
        "replyTo": properties.reply_to,
        "deliveryCount": header.delivery_count,
        "expiresAt": None if header.ttl is None else _at((enqueued_ms or 0) + header.ttl),
        "scheduledEnqueueTime": _at(known.get("x-opt-scheduled-enqueue-time")),
        "state": "claimed" if "x-opt-peeklock-cursor" in known else state,
        "deadLetterReason": texts.get("DeadLetterReason"),
        "deadLetterErrorDescription": texts.get("DeadLetterErrorDescription"),
        "deadLetterSource": known.get("x-opt-deadletter-source"),
        "applicationProperties": [*texts.items()] if found.application_properties else None,
    }


def _at(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


def at_once(payloads: list[bytes]) -> pa.RecordBatch:
    return record_batch(payloads, "orders", row_schema())


@given(st.lists(messages(), min_size=1, max_size=6))
def test_rows_are_what_the_codec_decodes(payloads: list[bytes]) -> None:
    expected = [by_the_codec(payload) for payload in payloads]
    assert at_once(payloads).to_pylist() == expected
    assert at_once(payloads[::-1]).to_pylist() == expected[::-1]


@given(messages(), st.data())
def test_a_damaged_message_is_an_error_or_a_row_and_changes_no_other(
    payload: bytes, data: st.DataObject
) -> None:
    sound = at_once([payload])
    place = data.draw(st.integers(0, len(payload) - 1))
    damaged = payload[:place] + bytes((data.draw(st.integers(0, 255)),)) + payload[place + 1 :]
    try:
        sections.read(damaged)
    except DecodeError:
        assert damaged != payload
    assert at_once([payload]).equals(sound)


def test_no_cache_holds_more_than_its_limits() -> None:
    for number in range(2 * CACHED_MAX):
        properties = {"number": number, "text": "x" * (number % 400)}
        texts = sections.read(encode_message(application_properties=properties, data=b""))[3]
        assert texts == (("number", "text"), (str(number), "x" * (number % 400)))
    assert 0 < len(sections.TEXTS) <= CACHED_MAX
    assert max(map(len, sections.TEXTS)) <= CACHED_BYTES_MAX


def test_batches_hold_many_answers_of_one_entity_each() -> None:
    def message(number: int, size: int) -> bytes:
        annotations = {"x-opt-sequence-number": Long(number)}
        return encode_message(message_annotations=annotations, data=bytes(size))

    small = [message(number, 10) for number in range(1000)]
    large = [message(number, 1 << 20) for number in range(6)]
    answers = [*[("orders", small)] * 6, ("events", []), ("events", small[:1]), ("bills", large[:5])]
    answers += [("bills", large[5:])]
    batches = [*record_batches(answers, row_schema())]
    found = [(batch["entity"][0].as_py(), batch.num_rows) for batch in batches]
    assert found == [("orders", 5000), ("orders", 1000), ("events", 1), ("bills", 5), ("bills", 1)]
    numbers = [number for batch in batches for number in batch["sequenceNumber"].to_pylist()]
    assert numbers == [*range(1000)] * 6 + [0, *range(6)]
    assert [*record_batches([], row_schema())] == []
