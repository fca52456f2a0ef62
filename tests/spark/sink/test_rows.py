"""Rows of a table become messages, column by column; what cannot be sent is named."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from peeklock.amqp.encoding import encode
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, scan
from peeklock.amqp.types import Long, Symbol, Timestamp
from peeklock.spark.sink.columns import COLUMNS, Columns, SchemaMismatch, find_columns
from peeklock.spark.sink.outgoing import EncodedRows, RowEncoder, RowRefused

pytestmark = pytest.mark.spark

NOW_MS = 1_750_000_000_000
MAP = pa.map_(pa.string(), pa.string())
TYPES = {
    "body": pa.binary(),
    "entity": pa.string(),
    "messageId": pa.string(),
    "sessionId": pa.string(),
    "partitionKey": pa.string(),
    "correlationId": pa.string(),
    "subject": pa.string(),
    "contentType": pa.string(),
    "to": pa.string(),
    "replyTo": pa.string(),
    "timeToLive": pa.int64(),
    "scheduledEnqueueTime": pa.timestamp("us", "UTC"),
    "applicationProperties": MAP,
    "encoded": pa.binary(),
}
SPARK_NAMES = {
    pa.binary(): "binary",
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.duration("us"): "interval day to second",
    MAP: "map<string,string>",
}


def table(types: dict[str, Any] | None = None, /, **columns: list[Any]) -> Any:
    """Make a record batch; `types` says those that are not as in `TYPES`."""
    kinds = {**TYPES, **(types or {})}
    arrays = {name: pa.array(values, kinds[name]) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict(arrays)


def columns_of(batch: Any, message_id_column: str | None = None) -> Columns:
    """Find the columns of a record batch."""
    return find_columns([(field.name, SPARK_NAMES[field.type]) for field in batch.schema], message_id_column)


def encoded(batch: Any, message_id_column: str | None = None) -> EncodedRows:
    """Encode a record batch as partition 2 of a task."""
    return RowEncoder(columns_of(batch, message_id_column), "job/2/", 2).encode(batch, NOW_MS)


def id_of(payload: bytes) -> Any:
    """Return the message id of an encoded message."""
    return scan(payload).decode_properties().message_id


def refusal(batch: Any) -> str:
    """Return the text with which a batch is refused."""
    with pytest.raises(RowRefused) as refused:
        encoded(batch)
    return str(refused.value)


def test_a_body_alone_becomes_a_message_with_a_made_id() -> None:
    rows = encoded(table(body=[b"one", b""]))
    first, second = map(scan, rows.payloads)
    assert first.decode_body() == [("data", b"one")]
    assert second.decode_body() == [("data", b"")]
    for row, part in enumerate((first, second)):
        properties = part.decode_properties()
        assert re.fullmatch(rf"job/2/{row}-[0-9a-f]{{16}}", properties.message_id)
        assert replace(properties, message_id=None) == Properties()
    assert first.header is None
    assert first.message_annotations is None
    assert first.application_properties is None
    assert rows.entities == [None, None]
    assert len(set(rows.keys)) == 1


def test_rows_are_numbered_over_all_batches_of_a_task() -> None:
    batch = table(body=[b"x"] * 3)
    encoder = RowEncoder(columns_of(batch), "job/2/", 2)
    encoder.encode(batch, NOW_MS)
    assert encoder.encode(batch.slice(0, 0), NOW_MS).rows == []
    rows = encoder.encode(batch, NOW_MS)
    assert rows.rows == [3, 4, 5]
    assert id_of(rows.payloads[2]).startswith("job/2/5-")


def test_a_text_body_is_sent_as_utf_8() -> None:
    rows = encoded(table({"body": pa.string()}, body=["grün"]))
    assert scan(rows.payloads[0]).decode_body() == [("data", "grün".encode())]


def test_a_null_body_is_sent_as_the_source_reads_it() -> None:
    rows = encoded(table(body=[b"", None]))
    assert scan(rows.payloads[1]).decode_body() == [("value", None)]
    assert scan(encoded(table(body=[None])).payloads[0]).decode_body() == [("value", None)]


def test_each_column_stands_in_its_place_and_null_is_not_sent() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    rows = encoded(
        table(
            body=[b"full", b"bare"],
            entity=["orders", None],
            messageId=["m-1", None],
            sessionId=["s-1", None],
            partitionKey=["s-1", None],
            correlationId=["c-1", None],
            subject=["sub", None],
            contentType=["text/plain", None],
            to=["there", None],
            replyTo=["here", None],
            timeToLive=[90_000, None],
            scheduledEnqueueTime=[at, None],
            applicationProperties=[[("a", "1"), ("gone", None), ("z", "ü" * 300)], None],
        )
    )
    full, bare = map(scan, rows.payloads)
    assert full.decode_properties() == Properties(
        message_id="m-1",
        to="there",
        subject="sub",
        reply_to="here",
        correlation_id="c-1",
        content_type="text/plain",
        group_id="s-1",
    )
    assert full.decode_header().ttl == 90_000
    assert full.decode_message_annotations() == {
        "x-opt-partition-key": "s-1",
        "x-opt-scheduled-enqueue-time": round(at.timestamp() * 1000),
    }
    assert full.decode_application_properties() == {"a": "1", "z": "ü" * 300}
    assert full.property_raw(6) == encode(Symbol("text/plain"))
    assert bare.decode_properties() == Properties(message_id=id_of(rows.payloads[1]))
    assert (bare.header, bare.message_annotations, bare.application_properties) == (None, None, None)
    assert rows.entities == ["orders", None]


def test_a_time_to_live_can_be_an_interval() -> None:
    rows = encoded(
        table(
            {"timeToLive": pa.duration("us")}, body=[b""], timeToLive=[timedelta(minutes=1, microseconds=7)]
        )
    )
    assert scan(rows.payloads[0]).decode_header().ttl == 60_000


def test_a_time_to_live_beyond_the_header_is_said_by_the_two_times() -> None:
    """Source: wire contract 3.2."""
    longest, longer = 0xFFFFFFFF, 0x1_0000_0000
    rows = encoded(table(body=[b"", b""], timeToLive=[longest, longer]))
    first, second = map(scan, rows.payloads)
    assert (first.decode_header().ttl, first.decode_properties().creation_time) == (longest, None)
    assert second.decode_header().ttl == longest
    assert second.decode_properties().creation_time == NOW_MS
    assert second.decode_properties().absolute_expiry_time == NOW_MS + longer


def test_a_slice_has_its_own_application_properties() -> None:
    batch = table(
        body=[b"0", b"1", b"2"], applicationProperties=[[("n", "0")], [("n", "1"), ("m", "1")], [("n", "2")]]
    )
    rows = encoded(batch.slice(1))
    assert [scan(payload).decode_application_properties() for payload in rows.payloads] == [
        {"n": "1", "m": "1"},
        {"n": "2"},
    ]


def test_properties_longer_than_the_short_form_are_encoded() -> None:
    for size in (200, 254, 255, 256, 300, 5000):
        rows = encoded(table(body=[b""], correlationId=["x" * size], to=["t"]))
        assert scan(rows.payloads[0]).decode_properties().correlation_id == "x" * size


def test_keys_tell_sessions_and_partitions_apart() -> None:
    rows = encoded(
        table(
            body=[b""] * 7,
            sessionId=["a", None, None, "a", None, "", ""],
            partitionKey=[None, "b", None, "a", "a", "a", None],
        )
    )
    a, b, none, again, key_alone, key_beside_empty, empty = rows.keys
    assert a == again == key_alone == key_beside_empty
    assert len({a, b, none, empty}) == 4


class TestIds:
    """Which column gives the message id, and the ids that are made."""

    def test_a_row_that_comes_again_has_the_same_id(self) -> None:
        batch = table(body=[b"a", b"a"], subject=["s", None], timeToLive=[1 << 33, None])
        first, again = (
            RowEncoder(columns_of(batch), "job/2/", 2).encode(batch, NOW_MS + late) for late in (0, 60_000)
        )
        ids = [id_of(payload) for payload in first.payloads]
        assert ids == [id_of(payload) for payload in again.payloads]
        assert ids[0] != ids[1]

    @pytest.mark.parametrize(
        "other",
        [
            {"body": [b"b"]},
            {"subject": ["t"]},
            {"sessionId": ["s"]},
            {"timeToLive": [5000]},
            {"applicationProperties": [[("a", "2")]]},
        ],
    )
    def test_another_message_in_the_same_place_has_another_id(self, other: dict[str, Any]) -> None:
        """Else duplicate detection would drop it, where a repeated task sees other rows. Req: X-02"""
        row: dict[str, Any] = {"body": [b"a"], "subject": ["s"], "applicationProperties": [[("a", "1")]]}
        assert id_of(encoded(table(**row)).payloads[0]) != id_of(encoded(table(**row | other)).payloads[0])

    def test_the_named_column_gives_it_and_a_number_is_its_text(self) -> None:
        batch = table({"key": pa.int64()}, body=[b"", b""], key=[7, None], messageId=["not", "these"])
        rows = encoded(batch, "KEY")
        assert id_of(rows.payloads[0]) == "7"
        assert id_of(rows.payloads[1]).startswith("job/2/1-")

    def test_a_name_that_is_not_there_is_refused_with_those_that_are(self) -> None:
        with pytest.raises(SchemaMismatch, match=r"messageIdColumn names 'key'.* it has body"):
            columns_of(table(body=[b""]), "key")

    def test_one_of_another_type_is_refused(self) -> None:
        with pytest.raises(
            SchemaMismatch, match="Column 'when' must be string or whole number; it is timest"
        ):
            find_columns([("body", "binary"), ("when", "timestamp")], "when")

    def test_one_that_is_too_long_names_its_row(self) -> None:
        assert "x" * 128 in str(encoded(table(body=[b""], messageId=["x" * 128])).payloads)
        text = refusal(table(body=[b""] * 2, messageId=["x", "x" * 129]))
        assert text == "Row 1 of partition 2: column 'messageId' has 129 characters; the limit is 128."


class TestSchema:
    """What a table must look like."""

    def test_names_are_taken_in_any_case(self) -> None:
        columns = find_columns([("BODY", "string"), ("sessionid", "string")], None)
        assert columns.places == {"body": 0, "sessionId": 1}

    def test_an_unknown_column_is_named_with_all_that_are_known(self) -> None:
        with pytest.raises(SchemaMismatch) as refused:
            find_columns([("body", "binary"), ("sesionId", "string")], None)
        assert "'sesionId'" in str(refused.value)
        assert "Did you mean 'sessionId'?" in str(refused.value)
        assert all(name in str(refused.value) for name in COLUMNS)

    def test_columns_that_the_broker_sets_may_be_there_with_nulls_only(self) -> None:
        """SQL's INSERT fills the columns that it is not given."""
        types = {"sequenceNumber": pa.int64()}
        rows = encoded(table(types, body=[b"", b""], sequenceNumber=[None, None]))
        assert len(rows.payloads) == 2
        text = refusal(table(types, body=[b"", b""], sequenceNumber=[None, 7]))
        assert text.startswith("Row 1 of partition 2: column 'sequenceNumber' is set by the broker")

    @pytest.mark.parametrize(
        ("name", "kind", "wanted"),
        [
            ("body", "bigint", "binary or string"),
            ("sessionId", "int", "string"),
            ("timeToLive", "interval year to month", "bigint .ms. or interval day to second"),
            ("timeToLive", "double", "bigint"),
            ("scheduledEnqueueTime", "timestamp_ntz", "timestamp"),
            ("applicationProperties", "map<string,bigint>", "map<string,string>"),
            ("encoded", "string", "binary"),
        ],
    )
    def test_a_wrong_type_is_named_with_the_right_one(self, name: str, kind: str, wanted: str) -> None:
        with pytest.raises(SchemaMismatch, match=f"Column '{name}' must be {wanted}.*; it is {kind}"):
            find_columns([("body", "binary"), (name, kind)][name == "body" :], None)

    def test_null_alone_has_a_type_of_its_own_which_fits_all(self) -> None:
        columns = find_columns(
            [("body", "binary"), *((name, "void") for name in COLUMNS if name != "body")], None
        )
        batch = pa.RecordBatch.from_pydict(
            {name: [b"x"] if name == "body" else pa.nulls(1) for name in COLUMNS}
        )
        batch = batch.select(sorted(columns.places, key=columns.places.__getitem__))
        (payload,) = RowEncoder(columns, "", 0).encode(batch, NOW_MS).payloads
        assert scan(payload).decode_properties() == Properties(message_id=id_of(payload))

    @pytest.mark.parametrize("kind", ["string", "varchar(10)", "char(3)", "string collate UNICODE_CI"])
    def test_texts_of_all_kinds_are_texts(self, kind: str) -> None:
        assert find_columns([("body", kind), ("sessionId", kind)], None).places == {"body": 0, "sessionId": 1}

    def test_a_column_that_is_there_twice_is_refused(self) -> None:
        with pytest.raises(SchemaMismatch, match="'Body' occurs twice"):
            find_columns([("body", "binary"), ("Body", "binary")], None)

    def test_without_a_body_there_is_nothing_to_send(self) -> None:
        with pytest.raises(SchemaMismatch, match="neither a column 'body'"):
            find_columns([("messageId", "string")], None)


class TestRefusals:
    """Rows that cannot be messages."""

    def test_a_time_to_live_of_nothing(self) -> None:
        assert "'timeToLive' is 0 ms" in refusal(table(body=[b""], timeToLive=[0]))

    def test_a_partition_key_that_is_not_the_session(self) -> None:
        text = refusal(table(body=[b""] * 2, sessionId=["a", "a"], partitionKey=["a", "b"]))
        assert text.startswith("Row 1 of partition 2: columns 'sessionId' and 'partitionKey' differ")

    def test_a_content_type_that_is_not_ascii(self) -> None:
        assert "'contentType' is 'ü'" in refusal(table(body=[b""], contentType=["ü"]))

    def test_what_is_no_message_in_encoded(self) -> None:
        text = refusal(table(encoded=[b"\x00\x53\x77\x40", b"no message"]))
        assert text.startswith("Row 1 of partition 2: column 'encoded' is not an AMQP message")


class TestEncoded:
    """Whole messages that are sent again."""

    SENT = encode_message(
        header=Header(durable=True, priority=7, ttl=5000),
        message_annotations={"x-opt-partition-key": "key", "x-own": 1},
        properties=Properties(message_id=uuid.UUID(int=5), user_id=b"me", group_sequence=3),
        application_properties={"n": Long(5), "t": Timestamp(7), "DeadLetterReason": "bad"},
        value={"a": [1, 2.5, None]},
        footer={"sum": b"123"},
    )

    def received(self) -> bytes:
        """Return it as a receiver gets it."""
        parts = scan(self.SENT)
        properties = parts.decode_properties()
        return encode_message(
            header=Header(durable=True, priority=7, ttl=5000, delivery_count=3),
            delivery_annotations={"x-opt-lock-token": uuid.UUID(int=1), "x-mine": "d"},
            message_annotations={
                "x-opt-enqueued-time": Timestamp(NOW_MS),
                "x-opt-sequence-number": 12,
                "x-opt-peeklock-cursor": "lake",
                **parts.decode_message_annotations(),
            },
            properties=properties,
            application_properties={"n": Long(5), "t": Timestamp(7), "DeadLetterReason": "bad"},
            value={"a": [1, 2.5, None]},
            footer={"sum": b"123"},
        )

    def test_all_that_the_sender_said_is_sent_again_and_nothing_else(self) -> None:
        rows = encoded(table(encoded=[self.received()]))
        sent, again = scan(self.SENT), scan(rows.payloads[0])
        assert self.SENT[sent.bare_offset :] == rows.payloads[0][again.bare_offset :]
        assert again.decode_header() == sent.decode_header()
        assert again.decode_message_annotations() == {"x-opt-partition-key": "key", "x-own": 1}
        assert again.decode_delivery_annotations() == {"x-mine": "d"}
        assert rows.keys == [encode("key")]

    @pytest.mark.parametrize("session", ["", None])
    def test_the_partition_key_counts_beside_an_empty_session_id(self, session: str | None) -> None:
        annotations, properties = {"x-opt-partition-key": "key"}, Properties(group_id=session)
        message = encode_message(message_annotations=annotations, properties=properties, data=b"")
        assert encoded(table(encoded=[message])).keys == [encode("key")]
        without_key = encode_message(properties=Properties(group_id=""), data=b"")
        assert encoded(table(encoded=[without_key])).keys == [encode("")]

    def test_columns_that_are_not_null_replace_parts_of_it(self) -> None:
        at = datetime(2030, 1, 1, tzinfo=UTC)
        rows = encoded(
            table(
                encoded=[self.received()] * 2,
                body=[b"new", None],
                messageId=["id", None],
                sessionId=["key", None],
                timeToLive=[1, None],
                scheduledEnqueueTime=[at, None],
                applicationProperties=[[("t", "text"), ("DeadLetterReason", None), ("new", "1")], []],
            )
        )
        again, as_it_is = map(scan, rows.payloads)
        assert again.decode_body() == [("data", b"new")]
        assert again.decode_properties() == Properties(
            message_id="id", user_id=b"me", group_id="key", group_sequence=3
        )
        assert again.decode_header().ttl == 1
        assert again.decode_header().priority == 7
        assert again.decode_message_annotations() == {
            "x-opt-partition-key": "key",
            "x-own": 1,
            "x-opt-scheduled-enqueue-time": round(at.timestamp() * 1000),
        }
        assert again.decode_application_properties() == {"n": 5, "t": "text", "new": "1"}
        sent = scan(self.SENT)
        assert rows.payloads[1][as_it_is.bare_offset :] == self.SENT[sent.bare_offset :]

    def test_an_id_is_made_only_where_there_is_none(self) -> None:
        bare = encode_message(data=b"x")
        rows = encoded(table(encoded=[bare, self.SENT]))
        assert id_of(rows.payloads[0]).startswith("job/2/0-")
        assert rows.payloads == encoded(table(encoded=[bare, self.SENT])).payloads
        other = encoded(table(encoded=[encode_message(data=b"y")])).payloads[0]
        assert id_of(rows.payloads[0]) != id_of(other)
        assert scan(rows.payloads[1]).decode_properties().message_id == uuid.UUID(int=5)

    def test_rows_with_and_without_it_keep_their_order(self) -> None:
        batch = table(
            encoded=[None, self.SENT, None, self.SENT],
            body=[b"0", b"1", b"2", None],
            entity=["a", "b", "c", "d"],
        )
        rows = encoded(batch)
        assert rows.rows == [0, 1, 2, 3]
        assert rows.entities == ["a", "b", "c", "d"]
        assert [scan(payload).decode_body() for payload in rows.payloads] == [
            [("data", b"0")],
            [("data", b"1")],
            [("data", b"2")],
            [("value", {"a": [1, 2.5, None]})],
        ]
        assert id_of(rows.payloads[2]).startswith("job/2/2-")
