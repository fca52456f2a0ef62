"""What is shown of a message: its id, and its content where bodies are captured."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.types import Timestamp, UInt, ULong
from peeklock.capture.message_fields import content, message_id


def properties_section(**fields: object) -> bytes:
    message = encode_message(properties=Properties(**fields), value=None)  # type: ignore[arg-type]  # by name
    span = scan(message).properties
    assert span is not None
    return message[slice(*span)]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("job-1", "job-1"),
        ("ünï", "ünï"),
        ("x" * 255, "x" * 255),
        ("y" * 256, "y" * 256),
        (ULong(7), "7"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\x01\xff", "01ff"),
        (None, None),
    ],
)
def test_each_type_of_message_id_has_a_text(given: object, shown: str | None) -> None:
    section = properties_section(message_id=given, subject="s")
    assert message_id(section) == shown
    assert message_id(encode_message(properties=Properties(message_id=given), data=b"x")) == shown
    assert content(section) is None


@given(st.binary(max_size=40))
def test_garbage_has_no_id_and_no_content(data: bytes) -> None:
    for head in (data, b"\x00\x53\x73\xc0" + data, b"\x00\x53\x73\xd0" + data):
        assert (message_id(head) or "").encode() is not None
        found = content(head)
        if found is not None:
            texts = (found.subject, found.correlation_id, found.content_type)
            shown = [*texts, *found.application_properties, *found.application_properties.values()]
            "".join(filter(None, shown)).encode()  # no surrogates, which UTF-8 has not


def test_a_text_that_is_not_utf_8_is_no_id() -> None:
    assert message_id(b"\x00\x53\x73\xc0\x04\x01\xa1\x01\xff") is None


def test_the_content_of_a_message() -> None:
    found = content(
        encode_message(
            properties=Properties(
                message_id="1", subject="order", correlation_id=b"\x0a", content_type="text/plain"
            ),
            application_properties={
                "text": "t",
                "yes": True,
                "number": 3,
                "half": 0.5,
                "bytes": b"\x00\x01",
                "at": Timestamp(1),
                "far": Timestamp(1 << 62),
                "none": None,
            },
            data=[b"a", b"b"],
        )
    )
    assert found is not None
    assert (found.body, found.subject, found.correlation_id, found.content_type) == (
        b"ab",
        "order",
        "0a",
        "text/plain",
    )
    assert found.application_properties == {
        "text": "t",
        "yes": "true",
        "number": "3",
        "half": "0.5",
        "bytes": "0001",
        "at": "1970-01-01T00:00:00.001+00:00",
        "far": str(1 << 62),
        "none": None,
    }


def test_a_body_that_is_a_value() -> None:
    text = content(encode_message(value="text"))
    assert text is not None
    assert text.body == b"text"
    number = content(encode_message(value=UInt(0)))
    assert number is not None
    assert number.body == b"\x00\x53\x77\x43"
