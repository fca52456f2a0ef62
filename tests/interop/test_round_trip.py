"""A message comes back bit by bit: the client's sections are compared as they were on the wire."""

from __future__ import annotations

import decimal
import uuid
from typing import Any

import azure.servicebus._pyamqp.aio._receiver_async as async_receiver
import azure.servicebus._pyamqp.aio._sender_async as async_sender
import azure.servicebus._pyamqp.receiver as sync_receiver
import azure.servicebus._pyamqp.sender as sync_sender
import azure.servicebus._transport._pyamqp_transport as transport
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus._pyamqp._decode import _DECODE_BY_CONSTRUCTOR, decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus.amqp import (
    AmqpAnnotatedMessage,
    AmqpMessageBodyType,
    AmqpMessageHeader,
    AmqpMessageProperties,
)

from peeklock.amqp.messaging import scan
from tests.interop.helpers import take_one

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, FOOTER = 0x70, 0x71, 0x72, 0x73, 0x78


def _typed(kind: str, value: Any) -> dict[str, Any]:
    return {"TYPE": kind, "VALUE": value}


SCALARS: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": _typed("UBYTE", 255),
    "byte": _typed("BYTE", -128),
    "ushort": _typed("USHORT", 65_535),
    "short": _typed("SHORT", -32_768),
    "uint 0": _typed("UINT", 0),
    "small uint": _typed("UINT", 255),
    "uint": _typed("UINT", 2**32 - 1),
    "small int": _typed("INT", -1),
    "int": _typed("INT", -(2**31)),
    "ulong 0": _typed("ULONG", 0),
    "small ulong": _typed("ULONG", 255),
    "ulong": _typed("ULONG", 2**64 - 1),
    "small long": _typed("LONG", -1),
    "long": _typed("LONG", -(2**63)),
    "float": _typed("FLOAT", 1.5),
    "double": _typed("DOUBLE", 0.1),
    "decimal128": _typed(
        "DECIMAL128", decimal.Decimal(0)
    ),  # the only one that the client itself can read back
    "timestamp": _typed("TIMESTAMP", 1_700_000_000_123),
    "uuid": uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"),
    "binary": _typed("BINARY", bytes(range(256))),
    "string": "z\u00fcrich \U0001f600",
    "long string": "x" * 300,
    "symbol": _typed("SYMBOL", b"a:symbol"),
}
NESTED: dict[str, Any] = {
    "list": [1, "two", None, [3.5, []]],
    "map": {"key": {"inner": [True, b"bytes"]}, 7: "seven"},
    "array": _typed("ARRAY", [_typed("LONG", 2**40), _typed("LONG", -5)]),
}


class Wire:
    """The payloads that the client encoded and decoded last."""

    def __init__(self) -> None:
        self.sent = b""
        self.received = b""


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """Record what the client encodes and decodes, without changes."""
    seen = Wire()

    def encode(output: bytearray, message: Any) -> bytes:
        encoded = encode_payload(output, message)
        seen.sent = bytes(output)
        return encoded

    def decode(buffer: memoryview) -> Any:
        seen.received = bytes(buffer)
        return decode_payload(buffer)

    for module in (sync_sender, async_sender):
        monkeypatch.setattr(module, "encode_payload", encode)
    for module in (sync_receiver, async_receiver, transport):
        monkeypatch.setattr(module, "decode_payload", decode)
    return seen


def _sections(payload: bytes) -> dict[int, list[bytes]]:
    """Return an encoded message split by section: descriptor -> the encoded sections with it."""
    sections: dict[int, list[bytes]] = {}
    buffer = memoryview(payload)
    while buffer:
        rest, _ = _DECODE_BY_CONSTRUCTOR[buffer[3]](buffer[4:])
        sections.setdefault(buffer[2], []).append(bytes(buffer[: len(buffer) - len(rest)]))
        buffer = rest
    return sections


def _bare(payload: bytes) -> dict[int, list[bytes]]:
    return {code: sections for code, sections in _sections(payload).items() if code >= PROPERTIES}


def _as_sent(received: bytes, sent: bytes) -> dict[int, list[bytes]]:
    """Return the sections without the id that the broker adds to a message without properties, which gets
    none if it has no section at all."""
    sections = _bare(received)
    if sent and PROPERTIES not in _bare(sent):
        assert len(scan(received).decode_properties().message_id) == 32
        del sections[PROPERTIES]
    return sections


def _round_trip(client: Any, queue: str, wire: Wire, message: Any) -> Any:
    """Send one message, and return it as it was received."""
    return _round_trips(client, queue, wire, [message])[0]


def _round_trips(client: Any, queue: str, wire: Wire, messages: list[Any]) -> list[Any]:
    """Send, browse, receive and complete each; its bare message and footer are the same bytes each time."""
    found = []
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        for message in messages:
            sender.send_messages(message)
            sent = wire.sent
            receiver.peek_messages(sequence_number=1)
            assert _as_sent(wire.received, sent) == _bare(sent)
            received = take_one(receiver)
            assert _as_sent(wire.received, sent) == _bare(sent)
            token = received.raw_amqp_message.delivery_annotations[b"x-opt-lock-token"]
            assert received.lock_token == token
            receiver.complete_message(received)
            found.append(received)
    return found


def test_every_type_of_amqp_in_application_properties(client: Any, queue: str, wire: Wire) -> None:
    """Req: T-11"""
    message = AmqpAnnotatedMessage(data_body=b"x", application_properties=dict(SCALARS))
    received = _round_trip(client, queue, wire, message)
    assert set(received.application_properties) == {key.encode() for key in SCALARS}
    assert received.application_properties[b"uuid"] == SCALARS["uuid"]
    assert received.application_properties[b"ulong"] == 2**64 - 1


@pytest.mark.parametrize("values", [SCALARS, NESTED], ids=["scalars", "nested"])
def test_every_type_of_amqp_in_bodies(client: Any, queue: str, wire: Wire, values: dict[str, Any]) -> None:
    """A value body for all of them in a map, and a sequence body of two sections.

    Req: T-11
    """
    sections = [list(values.values()), ["second", "section"]]
    messages = [AmqpAnnotatedMessage(value_body=dict(values)), AmqpAnnotatedMessage(sequence_body=sections)]
    in_map, in_sections = _round_trips(client, queue, wire, messages)
    assert in_map.body_type == AmqpMessageBodyType.VALUE
    assert len(in_map.body) == len(values)
    assert in_sections.body_type == AmqpMessageBodyType.SEQUENCE
    assert [len(section) for section in in_sections.body] == [len(values), 2]


def test_value_bodies(client: Any, queue: str, wire: Wire) -> None:
    """Also an empty value, for which the client sends no body section at all.

    Req: T-11
    """
    bodies = [None, 0, 7, "text", [], {"a": 1}, [[1, 2], ["x"]]]
    messages = [AmqpAnnotatedMessage(value_body=body) for body in bodies]
    received = _round_trips(client, queue, wire, messages)
    assert {message.body_type for message in received} == {AmqpMessageBodyType.VALUE}
    assert [message.body for message in received] == [
        None, None, 7, b"text", None, {b"a": 1}, [[1, 2], [b"x"]]
    ]  # fmt: skip


def test_data_bodies_keep_their_sections(client: Any, queue: str, wire: Wire) -> None:
    """Several data sections in one message are no batch.

    Req: T-11, T-07
    """
    sections = [b"one", b"", b"\x00\xff" * 300, "z\u00fcrich".encode()]
    received = _round_trip(client, queue, wire, AmqpAnnotatedMessage(data_body=sections))
    assert list(received.body) == sections
    assert received.sequence_number == 1


def test_all_properties(client: Any, queue: str, wire: Wire) -> None:
    """Req: T-11"""
    properties = AmqpMessageProperties(
        message_id="id",
        user_id=b"user",
        to="to",
        subject="subject",
        reply_to="reply-to",
        correlation_id="correlation",
        content_type="application/json",
        content_encoding="utf-8",
        creation_time=1_700_000_000_000,
        absolute_expiry_time=4_000_000_000_000,
        group_id="group",
        group_sequence=7,
        reply_to_group_id="reply-group",
    )
    received = _round_trip(client, queue, wire, AmqpAnnotatedMessage(data_body=b"x", properties=properties))
    assert received.message_id == "id"
    assert received.session_id == "group"
    assert received.reply_to_session_id == "reply-group"


def test_message_ids_of_each_type(client: Any, queue: str, wire: Wire) -> None:
    """Message id and correlation id may be a string, a UUID, an unsigned long or bytes.

    Req: T-11, L-15
    """
    ids: list[Any] = ["text", uuid.UUID(int=5), 2**63, b"\x00\x01"]
    properties = [AmqpMessageProperties(message_id=id_, correlation_id=id_) for id_ in ids]
    messages = [AmqpAnnotatedMessage(data_body=b"x", properties=given) for given in properties]
    received = [message.raw_amqp_message for message in _round_trips(client, queue, wire, messages)]
    ids[0] = b"text"  # as the client returns strings of an annotated message
    assert [message.properties.message_id for message in received] == ids
    assert [message.properties.correlation_id for message in received] == ids


def test_header_annotations_and_footer(client: Any, queue: str, wire: Wire) -> None:
    """What the broker does not own comes back; its own annotations are added, whatever a sender claims.

    Req: T-11, S-01
    """
    annotations = {"x-opt-mine": "kept", "number": _typed("SHORT", 5), "x-opt-sequence-number": 999}
    message = AmqpAnnotatedMessage(
        data_body=b"x",
        header=AmqpMessageHeader(durable=True, priority=9, first_acquirer=True),
        annotations=annotations,
        delivery_annotations={"delivery": "annotation", "x-opt-lock-token": uuid.UUID(int=1)},
        footer={"foot": "note", "sum": _typed("ULONG", 12)},
    )
    received = _round_trip(client, queue, wire, message)
    raw = received.raw_amqp_message
    assert (raw.header.durable, raw.header.priority, raw.header.first_acquirer) == (True, 9, True)
    assert raw.header.delivery_count == 0
    assert raw.annotations[b"x-opt-mine"] == b"kept"
    assert raw.annotations[b"number"] == 5
    assert raw.annotations[b"x-opt-sequence-number"] == received.sequence_number == 1
    assert raw.delivery_annotations[b"delivery"] == b"annotation"
    assert raw.delivery_annotations[b"x-opt-lock-token"] != uuid.UUID(int=1)
    assert raw.footer == {b"foot": b"note", b"sum": 12}
    (section,) = _sections(wire.received)[MESSAGE_ANNOTATIONS]
    assert b"\xa3\x06number\x61\x00\x05" in section  # still a symbol and a short


def test_a_plain_message_with_everything(client: Any, queue: str, wire: Wire) -> None:
    """Req: T-11"""
    message = ServiceBusMessage(
        "body",
        application_properties={
            "text": "a",
            "number": 5,
            "yes": True,
            "bytes": b"b",
            "half": 0.5,
            "none": None,  # type: ignore[dict-item]  # the client sends it; its types leave it out
        },
        subject="subject",
        to="to",
        reply_to="back",
        content_type="text/plain",
        correlation_id="c",
        message_id="m",
        partition_key="p",
    )
    received = _round_trip(client, queue, wire, message)
    assert (received.subject, received.to, received.reply_to) == ("subject", "to", "back")
    assert (received.content_type, received.correlation_id, received.message_id) == ("text/plain", "c", "m")
    assert received.partition_key == "p"
    assert received.application_properties[b"half"] == 0.5
    assert received.application_properties[b"none"] is None


def test_a_received_message_can_be_sent_again(client: Any, make_queue: Any, wire: Wire) -> None:
    """Its body and properties stay; numbers, times and locks are the new queue's own.

    Req: S-01, T-11
    """
    source, target = make_queue(), make_queue()
    with client.get_queue_sender(source) as sender, client.get_queue_receiver(source) as receiver:
        sender.send_messages([ServiceBusMessage("skipped"), ServiceBusMessage("body", message_id="m")])
        take_one(receiver)
        received = take_one(receiver)
    with (
        client.get_queue_sender(target) as sender,
        client.get_queue_receiver(target, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        sender.send_messages(received)
        again = take_one(receiver)
    assert (str(again), again.message_id) == ("body", "m")
    assert (received.sequence_number, again.sequence_number) == (2, 1)
    assert again.enqueued_sequence_number == 1
