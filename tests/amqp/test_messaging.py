"""Sections of a message: finding, reading, writing and splicing them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp import messaging
from peeklock.amqp.codec import DecodeError, decode, encode
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import (
    SECTIONS_MAX,
    Header,
    Properties,
    Sections,
    in_order,
    iter_batch,
    scan,
    scan_head,
)
from peeklock.amqp.types import Described, Int, Symbol, UInt, ULong

FULL = encode_message(
    header=Header(durable=True, priority=7, ttl=60_000, first_acquirer=True, delivery_count=2),
    delivery_annotations={"x-opt-lock-token": uuid.UUID(int=5)},
    message_annotations={"x-opt-partition-key": "p"},
    properties=Properties(
        message_id="m1",
        user_id=b"u",
        to="t",
        subject="s",
        reply_to="r",
        correlation_id=uuid.UUID(int=7),
        content_type="text/plain",
        content_encoding="utf-8",
        absolute_expiry_time=2000,
        creation_time=1000,
        group_id="g",
        group_sequence=3,
        reply_to_group_id="rg",
    ),
    application_properties={"n": Int(5), "text": "é"},
    data=b"body",
    footer={"f": 1},
)

quick = settings(deadline=None, max_examples=60)  # the machine may be slow and shared


def test_all_sections_come_back() -> None:
    sections = scan(FULL)
    assert sections.decode_header() == Header(True, 7, 60_000, True, 2)
    assert sections.decode_delivery_annotations() == {"x-opt-lock-token": uuid.UUID(int=5)}
    assert sections.decode_message_annotations() == {"x-opt-partition-key": "p"}
    properties = sections.decode_properties()
    assert (properties.message_id, properties.correlation_id) == ("m1", uuid.UUID(int=7))
    assert (properties.absolute_expiry_time, properties.creation_time) == (2000, 1000)
    assert isinstance(properties.content_type, Symbol)
    assert (properties.group_id, properties.group_sequence, properties.reply_to_group_id) == ("g", 3, "rg")
    assert sections.decode_application_properties() == {"n": 5, "text": "é"}
    assert sections.decode_body() == [("data", b"body")]
    assert sections.decode_footer() == {"f": 1}


def test_spans_lie_end_to_end_and_the_bare_message_begins_behind_the_annotations() -> None:
    sections = scan(FULL)
    spans = [
        sections.header,
        sections.delivery_annotations,
        sections.message_annotations,
        sections.properties,
        sections.application_properties,
        sections.body,
        sections.footer,
    ]
    position = 0
    for span in spans:
        assert span is not None
        assert span[0] == position
        position = span[1]
    assert position == len(FULL)
    assert sections.properties is not None
    assert sections.bare_offset == sections.properties[0]


def test_keys_of_annotations_are_symbols_and_of_application_properties_strings() -> None:
    """Source: wire contract 0.3."""
    sections = scan(FULL)
    assert all(type(key) is Symbol for key in sections.decode_message_annotations())
    assert all(type(key) is str for key in sections.decode_application_properties())
    assert all(type(key) is Symbol for key in sections.decode_footer())


def test_a_bare_body_has_no_other_section() -> None:
    sections = scan(encode_message(data=b"x"))
    assert sections.bare_offset == 0
    assert sections.header is sections.properties is sections.footer is None
    assert sections.decode_header() == Header()
    assert sections.decode_properties() == Properties()
    assert sections.decode_application_properties() == {}
    assert sections.property_raw(0) is None


@pytest.mark.parametrize(
    ("fields", "lacks"),
    [(["id"], False), ([7, "to"], False), (["x" * 300], False), ([], True), ([None, b"user"], True)],
)
@pytest.mark.parametrize("descriptor", [ULong(0x73), Symbol("amqp:properties:list")])
def test_a_scan_tells_whether_a_message_lacks_an_id(
    descriptor: object, fields: list[Any], lacks: bool
) -> None:
    long = [*fields, *[None] * (300 - len(fields))]
    for properties in (fields, long):
        for rest in (b"", _section(0x77, None)):
            assert scan(encode(Described(descriptor, properties)) + rest).lacks_message_id is lacks


def test_without_properties_a_message_lacks_an_id_and_what_was_not_scanned_does_not() -> None:
    assert scan(_section(0x77, None)).lacks_message_id
    assert not scan(b"").lacks_message_id
    assert not Sections(b"anything").lacks_message_id


def spans(sections: Sections) -> list[tuple[int, int] | None]:
    return [
        sections.header,
        sections.delivery_annotations,
        sections.message_annotations,
        sections.properties,
        sections.application_properties,
        sections.body,
        sections.footer,
    ]


def test_in_the_first_bytes_of_a_message_its_whole_sections_are_found() -> None:
    full = spans(scan(FULL))
    for size in range(len(FULL) + 1):
        whole = [span if span is not None and span[1] <= size else None for span in full]
        assert spans(scan_head(FULL[:size])) == whole


def test_without_its_body_a_message_is_what_stands_before_it() -> None:
    sections = scan(FULL)
    head = sections.without_body()
    assert head.payload == FULL[: sections.body_offset]
    assert spans(head) == [*spans(sections)[:5], None, None] == spans(scan(head.payload))
    assert head.decode_application_properties() == {"n": 5, "text": "é"}


def test_a_message_without_a_body_is_scanned_to_its_end() -> None:
    payload = encode(Described(0x72, {Symbol("a"): 1}))
    sections = scan(payload)
    assert sections.body is None
    assert sections.decode_body() == []
    assert sections.bare_offset == len(payload)
    assert scan(b"").bare_offset == 0


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"data": [b"a", b"", b"bc" * 200]}, [("data", b"a"), ("data", b""), ("data", b"bc" * 200)]),
        ({"sequence": [1, "two", None]}, [("sequence", [1, "two", None])]),
        ({"value": {"k": [1]}}, [("value", {"k": [1]})]),
        ({"value": None}, [("value", None)]),
        ({}, [("value", None)]),
    ],
)
def test_every_kind_of_body_comes_back(body: dict[str, Any], expected: list[tuple[str, Any]]) -> None:
    assert scan(encode_message(**body)).decode_body() == expected


def test_several_sequences_are_one_body() -> None:
    one = encode(Described(0x76, [1]))
    assert scan(one + one).decode_body() == [("sequence", [1]), ("sequence", [1])]


@pytest.mark.parametrize(
    "message_id", ["text", uuid.UUID(int=9), ULong(5), ULong(2**40), b"bytes", "x" * 300]
)
def test_a_raw_property_keeps_its_type(message_id: Any) -> None:
    """Source: wire contract 1.7: a correlation-id has the type of the message-id."""
    payload = encode_message(properties=Properties(message_id=message_id, group_id="g"))
    sections = scan(payload)
    assert sections.property_raw(0) == encode(message_id)
    assert sections.property_raw(10) == encode("g")
    assert sections.property_raw(1) is None  # null
    assert sections.property_raw(12) is None  # left out


def test_sections_with_long_or_symbolic_descriptors_are_found() -> None:
    header = b"\x00\x80" + (0x70).to_bytes(8, "big") + encode([True])
    properties = b"\x00" + encode(Symbol("amqp:properties:list")) + encode(["m"])
    body = b"\x00\x80" + (0x75).to_bytes(8, "big") + encode(b"x")
    sections = scan(header + properties + body)
    assert sections.decode_header().durable is True
    assert sections.decode_properties().message_id == "m"
    assert sections.property_raw(0) == encode("m")
    assert sections.decode_body() == [("data", b"x")]
    assert sections.bare_offset == len(header)


def _section(code: int, value: Any) -> bytes:
    return encode(Described(code, value))


@pytest.mark.parametrize(
    "payload",
    [
        b"x",
        b"\x00",
        b"\x00\x53",
        b"\x00\x53\x75",
        b"\x00\x53\x75\xa0\x05ab",
        b"\x00\x53\x75\xb0\x00\x00",
        b"\x00\x53\x75\xb0\xff\xff\xff\xffab",
        _section(0x73, []) + _section(0x70, []),
        _section(0x75, b"x") + _section(0x77, b"x"),
        _section(0x75, b"x") + _section(0x76, []),
        _section(0x77, 1) + _section(0x77, 2),
        _section(0x73, []) * 2,
        _section(0x72, []),
        _section(0x70, {}),
        _section(0x75, "text"),
        _section(0x78, b"x"),
        _section(0x79, {}),
        _section(0x24, []),
        b"\x00" + encode({}) + encode([]),
    ],
)
def test_what_is_no_message_is_a_decode_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        scan(payload)


@pytest.mark.parametrize(
    "fields", [[None, "high"], [None, None, "ttl"], [None, None, None, None, "x"], [True] * 6]
)
def test_a_header_with_wrong_fields_is_a_decode_error(fields: list[Any]) -> None:
    with pytest.raises(DecodeError):
        scan(_section(0x70, fields) + _section(0x75, b"")).decode_header()


def test_properties_with_too_many_fields_are_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        scan(_section(0x73, [None] * 14)).decode_properties()


def test_content_that_does_not_fill_its_section_is_a_decode_error() -> None:
    broken = b"\x00\x53\x74\xc1\x04\x02\xa1\x05k" + _section(0x75, b"abcdef")
    sections = scan(broken)
    with pytest.raises(DecodeError):
        sections.decode_application_properties()


def test_a_raw_property_that_reaches_beyond_its_section_is_a_decode_error() -> None:
    broken = b"\x00\x53\x73\xc0\x03\x01\xa1\x09" + _section(0x75, b"abcdefghijkl")
    with pytest.raises(DecodeError):
        scan(broken).property_raw(0)


@quick
@given(st.lists(st.binary(max_size=400), max_size=6))
def test_members_of_a_batch_come_back_in_order(members: list[bytes]) -> None:
    """Req: T-07"""
    envelope = encode_message(properties=Properties(message_id="first"), data=members or [b""])
    assert list(iter_batch(envelope)) == (members or [b""])


def test_a_batch_member_is_a_whole_message_of_its_own() -> None:
    """Req: T-07"""
    members = [encode_message(properties=Properties(message_id=str(n)), data=b"%d" % n) for n in range(3)]
    batch = encode_message(message_annotations={"x-opt-partition-key": "p"}, data=members)
    ids = [scan(member).decode_properties().message_id for member in iter_batch(batch)]
    assert ids == ["0", "1", "2"]


def test_a_batch_of_something_else_than_data_is_a_decode_error() -> None:
    """Req: T-07"""
    assert list(iter_batch(b"")) == []
    with pytest.raises(DecodeError):
        list(iter_batch(encode_message(value="x")))


@pytest.mark.parametrize(
    "payload",
    [
        _section(0x75, b"a") + _section(0x73, []),
        _section(0x73, []) + _section(0x73, []),
        _section(0x75, "text"),
        _section(0x75, b"a") + _section(0x79, b"b"),
        _section(0x75, b"abc")[:-1],
        b"\x00\x53\x75",
    ],
)
def test_a_batch_that_is_no_message_is_a_decode_error(payload: bytes) -> None:
    """Req: T-07"""
    with pytest.raises(DecodeError):
        list(iter_batch(payload))


def test_a_batch_is_read_no_further_than_asked_for() -> None:
    """Req: R-05"""
    members = iter_batch(_section(0x75, b"a") + _section(0x75, b"b") + b"\xff" * 1000)
    assert [next(members), next(members)] == [b"a", b"b"]
    with pytest.raises(DecodeError):
        next(members)


def test_the_sections_of_a_body_are_bounded() -> None:
    """Req: R-05"""
    part = _section(0x75, b"")
    for footer in (b"", _section(0x78, {})):
        assert scan(part * SECTIONS_MAX + footer).body == (0, len(part) * SECTIONS_MAX)
        many = part * (SECTIONS_MAX + 1) + footer
        with pytest.raises(DecodeError, match=f"more than {SECTIONS_MAX} body sections"):
            scan(many)
        assert in_order(many) is many
    assert in_order(part * 200_000) == part * 200_000


def test_every_cut_of_a_message_is_scanned_or_refused() -> None:
    for size in range(len(FULL)):
        try:
            sections = scan(FULL[:size])
        except DecodeError:
            continue
        assert sections.bare_offset <= size


def test_ttl_is_an_unsigned_integer() -> None:
    fields = decode(encode_message(header=Header(ttl=5), data=b""))[0].value
    assert fields == [False, 4, 5, False, 0]
    assert encode(UInt(5)) in encode_message(header=Header(ttl=5), data=b"")


PARTS = st.sampled_from(
    [
        b"\x00\x53\x70\xc0\x02\x01\x41",
        b"\x00\x53\x70\x45",
        b"\x00\x53\x71\xc1\x01\x00",
        b"\x00\x53\x72\xc1\x06\x02\xa3\x01k\x41\x41",
        b"\x00\x53\x73\xc0\x03\x01\x52\x05",
        b"\x00\x53\x73\xc0\x03\x02\x40\x41",
        b"\x00\x53\x73\xc0\x01\x00",
        b"\x00\x53\x73\xc0\x01\x05",
        b"\x00\x53\x73\xc0\x00",
        b"\x00\x53\x73\xd0\x00\x00\x00\x06\x00\x00\x00\x01\x52\x05",
        b"\x00\x53\x74\xc1\x01\x00",
        b"\x00\x53\x75\xa0\x02ab",
        b"\x00\x53\x75\xb0\x00\x00\x00\x02ab",
        b"\x00\x53\x75\xa0\x00",
        b"\x00\x53\x76\x45",
        b"\x00\x53\x77\x52\x01",
        b"\x00\x53\x78\xc1\x01\x00",
        b"\x00\x53\x75\xa0",
        b"\x00\x53",
        b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xa0\x01a",
    ]
)


@settings(max_examples=500)
@given(st.lists(PARTS, max_size=6), st.integers(0, 8), st.booleans())
def test_the_usual_layout_is_read_as_any_other(parts: list[bytes], cut: int, whole: bool) -> None:
    payload = b"".join(parts)
    payload = payload[: len(payload) - cut]

    def found(look: Callable[[], Sections]) -> object:
        try:
            sections = look()
        except DecodeError as error:
            return str(error)
        return [getattr(sections, name) for name in Sections.__dataclass_fields__]

    expected = found(lambda: messaging._scan_any(payload, whole))
    assert found(lambda: scan(payload, whole=whole)) == expected
