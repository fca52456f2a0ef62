"""Messages as rows: every column, every kind of body, and what senders do wrong."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.encoding import encode
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties
from peeklock.amqp.types import Int, Long, Symbol, Timestamp, ULong
from peeklock.client.connection import BlockingConnection
from peeklock.spark.source.rows import record_batch
from peeklock.spark.source.schema import row_ddl, row_schema
from peeklock.testing.served import ServedBroker

pytestmark = pytest.mark.spark

NUMBER = {"x-opt-sequence-number": Long(5), "x-opt-enqueued-time": Timestamp(1_000)}


def row(payload: bytes, **options: Any) -> dict[str, Any]:
    batch = record_batch([payload], "orders", row_schema(include_encoded=True), **options)
    found: dict[str, Any]
    (found,) = batch.to_pylist()
    return found


@pytest.mark.parametrize(("sent", "text"), [("key", "key"), ("kéy".encode(), "kéy"), (b"\xff", "ff")])
def test_a_partition_key_may_be_binary_that_holds_utf_8(sent: object, text: str) -> None:
    """Source: wire contract C6."""
    assert row(encode_message(message_annotations={"x-opt-partition-key": sent}))["partitionKey"] == text


@pytest.mark.parametrize(
    ("name", "sent", "column", "shown"),
    [
        ("x-opt-partition-key", Int(7), "partitionKey", "7"),
        ("x-opt-partition-key", Long(7), "partitionKey", "7"),
        ("x-opt-scheduled-enqueue-time", "soon", "scheduledEnqueueTime", None),
    ],
)
def test_an_annotation_of_another_type_is_a_row(
    name: str, sent: object, column: str, shown: str | None
) -> None:
    assert row(encode_message(message_annotations={**NUMBER, name: sent}, data=b""))[column] == shown


def test_every_column() -> None:
    payload = encode_message(
        header=Header(ttl=60_000, delivery_count=3),
        message_annotations={
            **NUMBER,
            "x-opt-enqueue-sequence-number": Long(2),
            "x-opt-message-state": Int(1),
            "x-opt-partition-key": "key",
            "x-opt-scheduled-enqueue-time": Timestamp(500),
            "x-opt-deadletter-source": "elsewhere",
            "x-opt-unknown": "passed over",
        },
        properties=Properties(
            message_id="id",
            user_id=b"u",
            to="to",
            subject="subject",
            reply_to="back",
            correlation_id="about",
            content_type="text/plain",
            content_encoding="utf-8",
            group_id="session",
            group_sequence=1,
            reply_to_group_id="other",
        ),
        application_properties={"DeadLetterReason": "r", "DeadLetterErrorDescription": "d", "kind": "order"},
        data=b"body",
    )
    at = datetime.fromtimestamp(1, UTC)
    assert row(payload) == {
        "body": b"body",
        "entity": "orders",
        "sequenceNumber": 5,
        "enqueuedSequenceNumber": 2,
        "enqueuedTime": at,
        "messageId": "id",
        "sessionId": "session",
        "partitionKey": "key",
        "correlationId": "about",
        "subject": "subject",
        "contentType": "text/plain",
        "to": "to",
        "replyTo": "back",
        "deliveryCount": 3,
        "expiresAt": at + timedelta(minutes=1),
        "scheduledEnqueueTime": at - timedelta(milliseconds=500),
        "state": "deferred",
        "deadLetterReason": "r",
        "deadLetterErrorDescription": "d",
        "deadLetterSource": "elsewhere",
        "applicationProperties": [
            ("DeadLetterReason", "r"),
            ("DeadLetterErrorDescription", "d"),
            ("kind", "order"),
        ],
        "encoded": payload,
    }


def test_a_message_with_nothing_in_it() -> None:
    found = row(encode_message(message_annotations=NUMBER, data=b""))
    shown = {name: value for name, value in found.items() if value is not None}
    assert set(shown) == {
        "body", "entity", "sequenceNumber", "enqueuedTime", "deliveryCount", "state", "encoded"
    }  # fmt: skip
    assert (found["body"], found["deliveryCount"], found["state"]) == (b"", 0, "active")


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"data": [b"one", b"two"]}, b"onetwo"),
        ({"data": b"x" * 300}, b"x" * 300),
        ({"value": "grüße"}, "grüße".encode()),
        ({"value": "x" * 300}, b"x" * 300),
        ({"value": b"raw"}, b"raw"),
        ({"value": b"r" * 300}, b"r" * 300),
        ({"value": None}, None),
        ({"value": Int(7)}, encode(Int(7))),
        ({"value": {"a": 1}}, encode({"a": 1})),
        ({"sequence": [1, 2]}, b"\x00\x53\x76" + encode([1, 2])),
    ],
)
def test_bodies(body: dict[str, Any], shown: bytes | None) -> None:
    assert row(encode_message(message_annotations=NUMBER, **body))["body"] == shown


def test_bodies_are_left_out_when_not_wanted() -> None:
    payload = encode_message(message_annotations=NUMBER, data=b"body")
    assert row(payload, include_body=False)["body"] is None


def test_values_of_application_properties_become_text() -> None:
    name = uuid.UUID(int=7)
    values = {
        "int": Int(-3), "ulong": ULong(2**64 - 1), "double": 1.5, "true": True, "null": None,
        "uuid": name, "at": Timestamp(1_500), "binary": b"\x01\xff", "symbol": Symbol("s"),
        "long text": "x" * 300,
    }  # fmt: skip
    found = row(encode_message(message_annotations=NUMBER, application_properties=values, data=b""))
    assert dict(found["applicationProperties"]) == {
        "int": "-3", "ulong": str(2**64 - 1), "double": "1.5", "true": "true", "null": None,
        "uuid": str(name), "at": "1970-01-01T00:00:01.500+00:00", "binary": "01ff", "symbol": "s",
        "long text": "x" * 300,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message_id", "shown"),
    [
        (uuid.UUID(int=1), str(uuid.UUID(int=1))),
        (ULong(9), "9"),
        (b"\x00\x01", "0001"),
        ("x" * 128, "x" * 128),
    ],
)
def test_ids_of_any_type_become_text(message_id: Any, shown: str) -> None:
    payload = encode_message(
        message_annotations=NUMBER,
        properties=Properties(message_id=message_id, correlation_id=message_id),
        data=b"",
    )
    found = row(payload)
    assert (found["messageId"], found["correlationId"]) == (shown, shown)


def test_a_time_to_live_without_end_expires_never() -> None:
    header = Header(ttl=0xFFFFFFFF)
    forever = Properties(absolute_expiry_time=253_402_300_800_000, creation_time=0)
    assert (
        row(encode_message(header=header, message_annotations=NUMBER, properties=forever, data=b""))[
            "expiresAt"
        ]
        is None
    )
    late = Properties(absolute_expiry_time=9_000_000_000_000, creation_time=0)
    assert row(encode_message(header=header, message_annotations=NUMBER, properties=late, data=b""))[
        "expiresAt"
    ] == datetime.fromtimestamp(9_000_000_000, UTC)


def test_a_claimed_message_says_so() -> None:
    claimed = {**NUMBER, "x-opt-message-state": Int(0), "x-opt-peeklock-cursor": "spark"}
    assert row(encode_message(message_annotations=claimed, data=b""))["state"] == "claimed"


def test_what_a_sender_wrote_wrongly_is_null_and_the_row_is_there() -> None:
    good = encode_message(message_annotations=NUMBER)[:-4]
    broken_map = b"\x00\x53\x74\xc1\x04\x02\xa1\x09k"  # a key that is longer than its map
    broken_list = b"\x00\x53\x73\xc0\x03\x01\xa1\x50"
    found = row(good + broken_list + broken_map + b"\x00\x53\x75\xa0\x01x")
    assert (found["messageId"], found["applicationProperties"], found["body"]) == (None, None, b"x")
    assert found["sequenceNumber"] == 5


@pytest.mark.parametrize("cut", [b"\xc0\x00", b"\xd0\0\0\0\0", b"\xd0\0\0\0\2ab"])
def test_a_properties_section_without_a_count_is_null_and_the_row_is_there(cut: bytes) -> None:
    good = encode_message(message_annotations=NUMBER)[:-4]
    for behind in (b"", b"\x00\x53\x75\xa0\x01x"):
        found = row(good + b"\x00\x53\x73" + cut + behind)
        assert (found["messageId"], found["sequenceNumber"]) == (None, 5)


@pytest.mark.parametrize("at_ms", [-(1 << 63), -(1 << 47), 1 << 62])
def test_times_that_no_calendar_has_are_null(at_ms: int) -> None:
    annotations = {
        **NUMBER,
        "x-opt-enqueued-time": Timestamp(1),
        "x-opt-scheduled-enqueue-time": Timestamp(at_ms),
    }
    found = row(
        encode_message(
            header=Header(ttl=0xFFFFFFFF),
            message_annotations=annotations,
            properties=Properties(message_id="m", absolute_expiry_time=Timestamp(at_ms)),
            data=b"x",
        )
    )
    assert (found["scheduledEnqueueTime"], found["expiresAt"]) == (None, None)
    assert found["messageId"] == "m"


def test_a_key_that_comes_twice_keeps_its_last_value() -> None:
    twice = b"\x00\x53\x74\xc1\x0d\x04\xa1\x01k\xa1\x01a\xa1\x01k\xa1\x01b"
    found = row(encode_message(message_annotations=NUMBER)[:-4] + twice + b"\x00\x53\x75\xa0\x00")
    assert found["applicationProperties"] == [("k", "b")]


def test_descriptors_in_their_long_forms() -> None:
    usual = encode_message(
        message_annotations=NUMBER, properties=Properties(message_id="a"), data=[b"1", b"2"]
    )
    long = usual.replace(b"\x00\x53\x73", b"\x00\x80" + (0x73).to_bytes(8, "big"))
    long = long.replace(b"\x00\x53\x75", b"\x00" + encode(Symbol("amqp:data:binary")))
    assert {**row(long), "encoded": b""} == {**row(usual), "encoded": b""}


def test_maps_with_keys_as_strings_and_four_byte_sizes() -> None:
    annotations = {**NUMBER, "x-opt-long": "x" * 300}
    payload = encode_message(
        header=Header(delivery_count=1), message_annotations=annotations,
        application_properties={"k": "v" * 300}, properties=Properties(subject="s" * 300), data=b"",
    )  # fmt: skip
    found = row(payload)
    assert (found["sequenceNumber"], found["subject"]) == (5, "s" * 300)
    plain_keys = payload.replace(b"\xa3\x15x-opt-sequence-number", b"\xa1\x15x-opt-sequence-number")
    assert row(plain_keys)["sequenceNumber"] == 5


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_message_that_is_cut_short_is_an_error(cut: int) -> None:
    payload = encode_message(message_annotations=NUMBER, properties=Properties(message_id="a"), data=b"x" * 9)
    with pytest.raises(DecodeError):
        row(payload[:-cut])


def test_no_messages_are_no_rows() -> None:
    assert record_batch([], "orders", row_schema()).num_rows == 0


def test_the_schema_is_the_one_that_spark_makes_of_the_ddl(spark: Any) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    for encoded in (False, True):
        made = spark.createDataFrame([], row_ddl(include_encoded=encoded)).schema
        assert to_arrow_schema(made, timezone="UTC").equals(row_schema(include_encoded=encoded))


def test_rows_say_what_the_official_client_says(
    broker: ServedBroker, client: Any, own: BlockingConnection, make_queue: Callable[..., str]
) -> None:
    """Sent and peeked by the official client, in every state.

    Req: X-01
    """
    from azure.servicebus import ServiceBusMessage

    queue = make_queue()
    now = datetime.fromtimestamp(broker.now_ms() // 1000, UTC)
    with client.get_queue_sender(queue) as sender:
        for number in range(3):
            sender.send_messages(
                ServiceBusMessage(
                    f"body {number}",
                    application_properties={"number": number, "price": 1.25, "flag": True, b"raw": "text"},
                    message_id=f"id-{number}",
                    time_to_live=timedelta(hours=1),
                    content_type="text/plain",
                    correlation_id="about",
                    subject="subject",
                    partition_key="key",
                    to="to",
                    reply_to="back",
                )
            )
        sender.schedule_messages(ServiceBusMessage("later"), now + timedelta(hours=1))
    with client.get_queue_receiver(queue) as receiver:
        (first,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
        receiver.defer_message(first)
        (second,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
        receiver.abandon_message(second)
        peeked = receiver.peek_messages(max_message_count=10, sequence_number=1)
    answer = own.management(queue).request(
        "com.microsoft:peek-message", {"from-sequence-number": Long(0), "message-count": Int(10)}
    )
    payloads = [one["message"] for one in answer.body["messages"]]
    rows = record_batch(payloads, queue, row_schema()).to_pylist()
    assert len(rows) == len(peeked) == 4
    states = []
    for found, official in zip(rows, peeked, strict=True):
        assert found["body"] == b"".join(official.body)
        assert found["sequenceNumber"] == official.sequence_number
        assert found["enqueuedSequenceNumber"] == official.enqueued_sequence_number
        assert found["enqueuedTime"] == official.enqueued_time_utc
        assert found["messageId"] == official.message_id
        assert found["partitionKey"] == official.partition_key
        assert found["correlationId"] == official.correlation_id
        assert found["subject"] == official.subject
        assert found["contentType"] == official.content_type
        assert (found["to"], found["replyTo"]) == (official.to, official.reply_to)
        assert found["deliveryCount"] == official.delivery_count
        assert found["expiresAt"] == official.expires_at_utc
        assert found["scheduledEnqueueTime"] == official.scheduled_enqueue_time_utc
        states.append(found["state"])
        assert found["state"].upper() == official.state.name
    assert states == ["deferred", "active", "active", "scheduled"]
    assert dict(rows[0]["applicationProperties"]) == {
        "number": "0", "price": "1.25", "flag": "true", "raw": "text"
    }  # fmt: skip
