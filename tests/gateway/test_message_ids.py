"""What becomes of messages that are sent without an id."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import BATCH_FORMAT, scan
from peeklock.amqp.types import Described, Symbol, Timestamp, ULong
from peeklock.broker.content.routing import with_id
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness, everything, message_bytes, section

TOKEN = bytes(range(16))
ID = "000102030405060708090a0b0c0d0e0f"


def given(payload: bytes) -> bytes:
    sections = scan(payload)
    if not sections.lacks_message_id:
        return payload
    written, message_id = with_id(sections, lambda: TOKEN)
    assert message_id == encode(ID)
    assert everything(written) == everything(scan(written.payload))
    return written.payload


@pytest.mark.parametrize("header", [None, [True]])
@pytest.mark.parametrize(
    "properties",
    [None, [], [None], [None, b"user"], [None] * 13, [None, None, None, "subject"], [None, b"u" * 300]],
)
def test_a_message_without_an_id_is_given_one(header: list[Any] | None, properties: list[Any] | None) -> None:
    """Req: T-11. The JavaScript client cannot settle a message without an id whose lock it renews."""
    own, footer = {"k": "v"}, section(0x78, {Symbol("x"): 1})
    payload = message_bytes(header=header, properties=properties, application_properties=own) + footer
    before, after = scan(payload), scan(given(payload))
    assert after.decode_properties().message_id == ID
    changed = after.decode_properties()
    changed.message_id = None
    assert changed == before.decode_properties()
    assert after.bare_offset == before.bare_offset
    assert after.decode_header() == before.decode_header()
    assert after.decode_body() == before.decode_body()


@pytest.mark.parametrize("message_id", ["1", "", b"1", 7, "x" * 300])
def test_a_message_with_an_id_stays_bit_for_bit(message_id: object) -> None:
    payload = message_bytes(properties=[message_id])
    assert given(payload) is payload


def test_a_section_under_its_long_descriptor_is_read_too() -> None:
    body = section(0x75, b"body")
    for descriptor in (ULong(0x73), Symbol("amqp:properties:list")):
        assert (
            scan(given(encode(Described(descriptor, [None, None, "to"])) + body)).decode_properties().to
            == "to"
        )
        named = encode(Described(descriptor, ["mine"])) + body
        assert given(named) == named


def test_a_message_without_a_body_is_given_one_too() -> None:
    assert scan(given(section(0x70, [True]))).decode_properties().message_id == ID


@pytest.mark.parametrize(
    "payload", [b"", b"\x00\x53\x73\xc0\x01\x01", b"\x00\x53\x73\xc0\x00", b"\x00\x53\x73\xd0\0\0\0\1\0"]
)
def test_what_cannot_be_read_is_left_alone(payload: bytes) -> None:
    assert not scan(payload).lacks_message_id


def ids(rig: LiveHarness, address: str, count: int) -> list[Any]:
    rig.listen(address, credit=count)
    found = [scan(event.payload).decode_properties().message_id for event in rig.deliveries()]
    assert len(found) == count
    return found


def test_each_message_has_an_id_of_its_own_wherever_it_goes() -> None:
    """Req: T-11. A batch's members, copies of a topic, a scheduled one."""
    broker = InProcessBroker()
    broker.create_topic("events")
    for name in ("a", "b"):
        broker.create_subscription("events", name)
    rig = LiveHarness(broker)
    sender = rig.sender("events")
    rig.transfer(sender, message_bytes())
    batch = b"".join(section(0x75, message_bytes()) for _ in range(2))
    rig.transfer(sender, batch, message_format=BATCH_FORMAT)
    soon = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(broker.clock.now_ms + 1_000)}
    rig.transfer(sender, message_bytes(annotations=soon))
    broker.advance(2_000)
    first = ids(rig, "events/Subscriptions/a", 4)
    assert len(set(first)) == 4
    assert all(len(given) == 32 for given in first)
    assert ids(LiveHarness(broker), "events/Subscriptions/b", 4) == first


def test_messages_without_an_id_are_nobody_s_duplicates() -> None:
    """Req: D-01."""
    broker = InProcessBroker()
    broker.create_queue("orders", requires_duplicate_detection=True)
    rig = LiveHarness(broker)
    sender = rig.sender("orders")
    for _ in range(3):
        rig.transfer(sender, message_bytes())
    assert len(set(ids(rig, "orders", 3))) == 3
