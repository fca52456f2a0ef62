"""A peeked message as JSON: names, instants, and bodies of each kind."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties
from peeklock.amqp.types import Described, Float, Long, Symbol, Timestamp
from peeklock.search import Peeked, message_json
from peeklock.search.plain import instant_text, plain


def test_a_message_has_the_names_of_the_http_api() -> None:
    payload = encode_message(
        header=Header(ttl=60_000, delivery_count=3),
        message_annotations={
            "x-opt-sequence-number": Long(42),
            "x-opt-enqueue-sequence-number": Long(41),
            "x-opt-enqueued-time": Timestamp(1_790_000_000_123),
            "x-opt-partition-key": "k",
        },
        properties=Properties(message_id="m1", subject="pizza", group_id="s1", content_type="text/plain"),
        application_properties={
            "n": 1,
            "at": Timestamp(0),
            "id": UUID(int=1),
            "bytes": b"\xff",
            "none": None,
        },
        data=b"one",
    )
    assert message_json(Peeked(payload)) == {
        "sequenceNumber": 42,
        "enqueuedSequenceNumber": 41,
        "enqueuedTime": "2026-09-21T14:13:20.123Z",
        "state": "active",
        "deliveryCount": 3,
        "sizeBytes": len(payload),
        "timeToLive": 60.0,
        "expiresAt": "2026-09-21T14:14:20.123Z",
        "messageId": "m1",
        "sessionId": "s1",
        "subject": "pizza",
        "contentType": "text/plain",
        "partitionKey": "k",
        "properties": {
            "n": 1,
            "at": "1970-01-01T00:00:00.000Z",
            "id": "00000000-0000-0000-0000-000000000001",
            "bytes": "/w==",
            "none": None,
        },
        "bodyType": "data",
        "body": "one",
    }


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({"data": b""}, {"bodyType": "data", "body": ""}),
        ({"data": [b"a", b"b"]}, {"bodyType": "data", "body": "ab"}),
        ({"data": b"\xff\x00"}, {"bodyType": "data", "bodyBase64": "/wA="}),
        ({"value": "text"}, {"bodyType": "value", "body": "text"}),
        ({"value": None}, {"bodyType": "value", "bodyValue": None}),
        ({"value": {"a": [1, True]}}, {"bodyType": "value", "bodyValue": {"a": [1, True]}}),
        ({"sequence": [1, "b"]}, {"bodyType": "sequence", "bodyValue": [1, "b"]}),
    ],
)
def test_a_body_says_what_it_is(sent: dict[str, Any], shown: dict[str, Any]) -> None:
    found = message_json(Peeked(encode_message(**sent)))
    assert {key: value for key, value in found.items() if key.startswith("body")} == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (Float(0.5), 0.5),
        (Symbol("s"), "s"),
        (Timestamp(1 << 62), str(1 << 62)),
        (Described(Symbol("com.microsoft:timespan"), 10_000_000), "0:00:01"),
        (Described(Symbol("other"), [1]), [1]),
        ({1: "a", None: "b", Symbol("c"): 2}, {"1": "a", "None": "b", "c": 2}),
        (Decimal(1), "1"),
    ],
)
def test_each_amqp_value_has_a_value_in_json(value: Any, shown: Any) -> None:
    assert plain(value) == shown
    json.dumps(plain(value), allow_nan=False)


def test_an_instant_is_in_utc_and_to_the_millisecond() -> None:
    assert instant_text(0) == "1970-01-01T00:00:00.000Z"
    assert instant_text(-1) == "1969-12-31T23:59:59.999Z"


@given(st.binary(max_size=80))
def test_any_bytes_can_be_shown(payload: bytes) -> None:
    json.dumps(message_json(Peeked(payload)), allow_nan=False)
