"""Deliveries both ways: one frame or many, aborted, oversized, in every encoding, in the clients' ways."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.errors import LocalProtocolError
from peeklock.amqp.events import DeliveryOversized, DeliveryReceived, Event, LinkDetached
from peeklock.amqp.frames import Limits, frame
from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.amqp.performatives import Accepted, Received, TransactionalState
from peeklock.amqp.types import Role, Symbol, UInt, ULong
from tests.amqp.pair import (
    attach,
    bare_server,
    begin,
    closed_with,
    every,
    flow,
    frames_of,
    only,
    opened_pair,
    transfer,
)


def receiving_server(*, size_bytes_max: int = 1 << 20, limits: Limits | None = None) -> Any:
    """Return a server with an accepted incoming link on channel 0, handle 0."""
    server = bare_server(limits)
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.accept_link(0, 0, max_message_size=size_bytes_max)
    server.data_to_send()
    return server


@pytest.mark.parametrize("role", [Role.SENDER, Role.RECEIVER])
@pytest.mark.parametrize("size", [0, 1, 200, 65536 - 64, 65536 - 63, 65536, 200_000])
def test_a_delivery_crosses_whole_whatever_its_size(role: Role, size: int) -> None:
    pair = opened_pair()
    channel, handle = pair.attach(role, credit=2)
    sender = pair.client if role is Role.SENDER else pair.server
    payload = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    first = sender.send(channel, handle, b"tag1", payload)
    second = sender.send(channel, handle, b"\x00" * 16, b"next", settled=True, message_format=BATCH_FORMAT)
    at_client, at_server = pair.take()
    received = every(at_server if role is Role.SENDER else at_client, DeliveryReceived)
    assert received == [
        DeliveryReceived(channel, handle, first, b"tag1", 0, False, None, payload),
        DeliveryReceived(channel, handle, second, b"\x00" * 16, BATCH_FORMAT, True, None, b"next"),
    ]


def test_delivery_ids_count_per_session_from_zero() -> None:
    pair = opened_pair()
    channel, first = pair.attach(Role.RECEIVER, credit=5)
    _, second = pair.attach(Role.RECEIVER, channel=channel, name="other", credit=5)
    handles = [first, second, first]
    assert [pair.server.send(channel, handle, b"t", b"") for handle in handles] == [0, 1, 2]
    other, handle = pair.attach(Role.RECEIVER, name="elsewhere", credit=5)
    assert pair.server.send(other, handle, b"t", b"") == 0


def test_an_outgoing_transfer_is_encoded_as_the_contract_asks() -> None:
    """Source: wire contract 0.2, 2.8: short descriptor, explicit message-format and settled."""
    server = bare_server()
    server.receive(begin(1) + attach(1, Role.RECEIVER, channel=1), 0)
    server.accept_link(1, 1)
    server.receive(flow(1, credit=1, channel=1), 0)
    server.data_to_send()
    server.send(1, 1, bytes(range(16)), b"payload")
    data = server.data_to_send()
    assert data[8:12] == b"\x00\x53\x14\xc0"
    assert frames_of(data) == [(1, composites.TRANSFER, [1, 0, bytes(range(16)), 0, False], b"payload")]


@pytest.mark.parametrize("max_frame_size", [512, 1000, 65536])
def test_frames_never_exceed_the_peers_maximum(max_frame_size: int) -> None:
    pair = opened_pair(client={"max_frame_size": max_frame_size})
    channel, handle = pair.attach(Role.RECEIVER, credit=10)
    pair.to_client = b""
    payload = bytes(5000)
    state = TransactionalState(b"t" * 32)
    pair.server.send(channel, handle, b"x" * 32, payload)
    pair.server.send(channel, handle, b"x" * 32, payload, message_format=BATCH_FORMAT, state=state)
    at_client, _ = pair.take()
    assert [event.payload for event in every(at_client, DeliveryReceived)] == [payload, payload]
    assert every(at_client, DeliveryReceived)[1].state == state
    position = 0
    while position < len(pair.to_client):
        size = int.from_bytes(pair.to_client[position : position + 4], "big")
        assert size <= max_frame_size
        position += size


def test_continuation_frames_repeat_settled() -> None:
    """The Python client looks for `settled` in the last frame of a delivery."""
    pair = opened_pair(client={"max_frame_size": 512})
    channel, handle = pair.attach(Role.RECEIVER, credit=10)
    pair.to_client = b""
    pair.server.send(channel, handle, b"t", bytes(1000), settled=True)
    pair.take()
    transfers = [fields for _, code, fields, _ in frames_of(pair.to_client) if code == composites.TRANSFER]
    assert len(transfers) == 3
    assert [fields[4:6] for fields in transfers] == [[True, True], [True, True], [True, False]]
    assert [fields[1] for fields in transfers] == [0, None, None]


def test_a_message_of_tens_of_megabytes_crosses_both_ways_in_linear_time() -> None:
    """Req: T-10"""
    pair = opened_pair()
    channel, out = pair.attach(Role.SENDER, name="up", credit=10)
    _, back = pair.attach(Role.RECEIVER, channel=channel, name="down", credit=10)

    def cross(size: int) -> float:
        payload = bytes(size)
        started = time.process_time()
        pair.client.send(channel, out, b"t", payload)
        pair.server.send(channel, back, b"t", payload)
        at_client, at_server = pair.take()
        pair.to_client = pair.to_server = b""
        took = time.process_time() - started
        assert len(only(at_client, DeliveryReceived).payload) == size
        assert len(only(at_server, DeliveryReceived).payload) == size
        return took

    small = min(cross(2 << 20) for _ in range(3))
    large = cross(32 << 20)
    # Sixteen times the size; were it quadratic, the chunks joined so far would be copied 8 GB in all.
    assert large < 16 * 6 * max(small, 0.006)


def test_the_python_clients_repeated_ids_on_continuations_are_taken() -> None:
    """Source: wire contract 2.8: it repeats delivery-id and tag on every frame."""
    server = receiving_server()
    data = b"".join(
        transfer(0, 7, part, tag=b"abcd", more=more) for part, more in ((b"a", True), (b"b", True))
    )
    assert server.receive(data, 0) == []
    events = server.receive(transfer(0, 7, b"c", tag=b"abcd"), 0)
    assert events == [DeliveryReceived(0, 0, 7, b"abcd", 0, False, None, b"abc")]


def test_delivery_ids_that_jump_or_repeat_between_deliveries_are_taken() -> None:
    """Source: wire contract 2.8: never enforce the sequence of delivery-ids."""
    server = receiving_server()
    events = server.receive(b"".join(transfer(0, number, b"x") for number in (5, 5, 2**32 - 1, 0)), 0)
    assert [event.delivery_id for event in every(events, DeliveryReceived)] == [5, 5, 2**32 - 1, 0]


def test_transfers_before_our_first_flow_and_beyond_credit_are_taken() -> None:
    """Source: wire contract 2.7: the Python client ignores credit. Req: T-08"""
    server = bare_server()
    server.receive(begin(), 0)
    events = server.receive(attach(0, Role.SENDER) + transfer(0, 0, b"early"), 0)
    assert only(events, DeliveryReceived).payload == b"early"
    server.accept_link(0, 0)
    server.flow(0, 0, 2)
    assert server.credit(0, 0) == 2
    events = server.receive(b"".join(transfer(0, number, b"x") for number in range(1, 6)), 0)
    assert len(events) == 5
    assert server.credit(0, 0) == 0


def test_deliveries_of_several_links_interleave() -> None:
    server = receiving_server()
    server.receive(attach(1, Role.SENDER, name="other"), 0)
    server.accept_link(0, 1)
    events = server.receive(
        transfer(0, 0, b"a1", tag=b"A", more=True)
        + transfer(1, 1, b"b1", tag=b"B", more=True)
        + transfer(0, None, b"a2", tag=None, message_format=None)
        + transfer(1, None, b"b2", tag=None, message_format=None),
        0,
    )
    assert [(event.handle, event.payload) for event in every(events, DeliveryReceived)] == [
        (0, b"a1a2"),
        (1, b"b1b2"),
    ]


def test_an_aborted_delivery_is_forgotten_and_costs_its_credit() -> None:
    server = receiving_server()
    server.flow(0, 0, 10)
    data = transfer(0, 0, b"a", more=True) + transfer(0, 0, b"b", more=True, aborted=True)
    assert server.receive(data, 0) == []
    assert server.credit(0, 0) == 9
    assert server.receive(transfer(0, 1, b"whole", aborted=True), 0) == []
    events = server.receive(transfer(0, 2, b"next"), 0)
    assert only(events, DeliveryReceived).payload == b"next"
    assert server.credit(0, 0) == 7


def test_settled_on_any_frame_settles_the_delivery_and_format_is_the_firsts() -> None:
    """Source: AMQP 2.7.5."""
    server = receiving_server()
    events = server.receive(
        transfer(0, 0, b"a", more=True, settled=True, message_format=BATCH_FORMAT)
        + transfer(0, None, b"b", tag=None, message_format=None, settled=None),
        0,
    )
    event = only(events, DeliveryReceived)
    assert (event.settled, event.message_format) == (True, BATCH_FORMAT)


def test_a_delivery_within_a_transaction_carries_its_state() -> None:
    """Source: wire contract 6."""
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=5)
    state = TransactionalState(b"txn-1", None)
    pair.client.send(channel, handle, b"t", b"x", state=state)
    pair.client.send(channel, handle, b"t", b"x", state=TransactionalState(b"txn-2", Accepted()))
    _, at_server = pair.take()
    assert [event.state for event in every(at_server, DeliveryReceived)] == [
        state,
        TransactionalState(b"txn-2", Accepted()),
    ]


ENCODED_HANDLES = ["43", "5200", "7000000000"]
ENCODED_IDS = [("43", 0), ("5207", 7), ("7000000100", 256), ("70ffffffff", 2**32 - 1)]
ENCODED_TAGS = [("a000", b""), ("a00161", b"a"), ("b00000000161", b"a"), ("a010" + "ab" * 16, b"\xab" * 16)]
TAILS = [
    ("", 0, 0, False),
    ("43", 1, 0, False),
    ("40", 1, 0, False),
    ("4342", 2, 0, False),
    ("4341", 2, 0, True),
    ("435601", 2, 0, True),
    ("7080013700" + "4240", 3, BATCH_FORMAT, False),
    ("52054242", 3, 5, False),
    ("43424240404240" + "42", 8, 0, False),
    ("434242404040" + "4240", 8, 0, False),
    ("434242" + "5000", 4, 0, False),  # rcv-settle-mode
]


@pytest.mark.parametrize("handle", ENCODED_HANDLES)
@pytest.mark.parametrize("identifier", ENCODED_IDS)
@pytest.mark.parametrize("tag", ENCODED_TAGS)
def test_every_encoding_of_a_transfer_gives_the_same_delivery(
    handle: str, identifier: tuple[str, int], tag: tuple[str, bytes]
) -> None:
    server = receiving_server()
    payload = b"\x00\x53\x75\xa0\x01x"
    for tail, count, message_format, settled in TAILS:
        fields = bytes.fromhex(handle + identifier[0] + tag[0] + tail)
        short = b"\xc0" + bytes([len(fields) + 1, 3 + count]) + fields
        long = b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + (3 + count).to_bytes(4, "big") + fields
        expected = [DeliveryReceived(0, 0, identifier[1], tag[1], message_format, settled, None, payload)]
        for descriptor in (b"\x00\x53\x14", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x14"):
            for fields_list in (short, long):
                data = frame(0, descriptor + fields_list + payload)
                # Twice: once decoded in full, once recognised.
                assert server.receive(data + data, 0) == expected * 2, tail


def test_an_extended_frame_header_is_skipped() -> None:
    server = receiving_server()
    plain = transfer(0, 0, b"x")
    extended = (len(plain) + 4).to_bytes(4, "big") + b"\x03\x00\x00\x00" + b"more" + plain[8:]
    assert only(server.receive(extended, 0), DeliveryReceived).payload == b"x"


@pytest.mark.parametrize(
    "data",
    [
        transfer(0, None, b"x"),
        transfer(0, 0, b"x", tag=None),
        transfer(0, 0, b"x", tag=b"t" * 256),
        transfer(0, 0, b"x", more=True) + transfer(0, 1, b"y"),
        transfer(0, 0, b"x", more=True) + transfer(0, 0, b"y", tag=b"other"),
    ],
)
def test_a_delivery_without_a_clear_identity_detaches_its_link(data: bytes) -> None:
    """Source: AMQP 2.7.5. Req: R-05"""
    server = receiving_server()
    server.receive(attach(1, Role.SENDER, name="other"), 0)
    server.accept_link(0, 1)
    server.data_to_send()
    event = only(server.receive(data, 0), LinkDetached)
    assert event.error is not None
    assert (event.error.condition, event.clean, event.handle) == ("amqp:invalid-field", False, 0)
    assert b"amqp:invalid-field" in server.data_to_send()
    only(server.receive(transfer(1, 1, b"x"), 0), DeliveryReceived)


@pytest.mark.parametrize("size", [32, 36, 200, 255])
def test_tags_that_are_longer_than_the_specification_allows_are_taken(size: int) -> None:
    """Req: R-05, T-11. Source: wire contract C18: the Java client before com.azure's sends 36 bytes."""
    server = receiving_server()
    tag = bytes(range(size))
    data = transfer(0, 0, b"x", tag=tag) + transfer(0, 1, b"y", tag=tag)
    assert [event.delivery_tag for event in every(server.receive(data, 0), DeliveryReceived)] == [tag, tag]


def test_a_long_tag_may_be_repeated_in_each_frame() -> None:
    server = receiving_server()
    tag = bytes(255)
    data = transfer(0, 0, b"x", tag=tag, more=True) + transfer(0, 0, b"y", tag=tag)
    assert only(server.receive(data, 0), DeliveryReceived).payload == b"xy"


def test_our_own_tags_stay_within_the_specification() -> None:
    """Source: AMQP 2.8.7."""
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=2)
    pair.client.send(channel, handle, b"t" * 32, b"x")
    with pytest.raises(LocalProtocolError):
        pair.client.send(channel, handle, b"t" * 33, b"x")


def test_a_transfer_on_a_link_we_send_on_detaches_it() -> None:
    server = bare_server()
    server.receive(begin() + attach(0, Role.RECEIVER), 0)
    server.accept_link(0, 0)
    event = only(server.receive(transfer(0, 0, b"x"), 0), LinkDetached)
    assert event.error is not None
    assert event.error.condition == "amqp:not-allowed"


@pytest.mark.parametrize("frames", [1, 4])
def test_a_delivery_at_the_links_size_is_taken_and_one_past_it_reported(frames: int) -> None:
    """Req: T-10, R-05"""
    server = receiving_server(size_bytes_max=1000)

    def deliver(identifier: int, size: int) -> list[Event]:
        step = -(-size // frames)
        parts = [bytes(min(step, size - start)) for start in range(0, size, step)]
        frames_of_it = (
            transfer(0, identifier, part, more=index < len(parts) - 1) for index, part in enumerate(parts)
        )
        events: list[Event] = server.receive(b"".join(frames_of_it), 0)
        return events

    server.flow(0, 0, 10)
    assert len(only(deliver(0, 1000), DeliveryReceived).payload) == 1000
    assert deliver(1, 1001) == [DeliveryOversized(0, 0, 1, b"tag0", False, None, 1000, bytes(1001))]
    assert len(only(deliver(2, 1000), DeliveryReceived).payload) == 1000
    assert server.credit(0, 0) == 7


@pytest.mark.parametrize(("size", "step"), [(4095, 4095), (9000, 9000), (9000, 1000), (9000, 5)])
def test_the_head_of_an_oversized_delivery_is_kept(size: int, step: int) -> None:
    """Req: C25"""
    server = receiving_server(size_bytes_max=min(size - 1, 5000))
    payload = bytes(number & 0xFF for number in range(size))
    parts = [payload[start : start + step] for start in range(0, size, step)]
    frames = (transfer(0, 0, part, more=index < len(parts) - 1) for index, part in enumerate(parts))
    event = only(server.receive(b"".join(frames), 0), DeliveryOversized)
    assert event.head == payload[:4096]


def test_an_oversized_delivery_holds_its_head_alone() -> None:
    """Req: R-05, C25"""
    server = receiving_server(size_bytes_max=1000, limits=Limits(reassembly_bytes=5000))
    for _ in range(100):
        assert server.receive(transfer(0, 0, bytes(900), more=True), 0) == []
    assert server.receive(transfer(0, 0, b"end", settled=True), 0) == [
        DeliveryOversized(0, 0, 0, b"tag0", True, None, 1000, bytes(1800))
    ]


def test_unfinished_deliveries_past_the_connections_limit_end_it() -> None:
    """Req: R-05"""
    overhead = 64
    limits = Limits(reassembly_bytes=2 * (1000 + overhead))
    server = receiving_server(limits=limits)
    server.receive(attach(1, Role.SENDER, name="b") + attach(2, Role.SENDER, name="c"), 0)
    for handle in (0, 1):
        assert server.receive(transfer(handle, handle, bytes(1000), more=True), 0) == []
    assert closed_with(
        server.receive(transfer(2, 2, b"", more=True) + transfer(2, 2, b"x", more=True), 0)
    ) == ("amqp:resource-limit-exceeded")


def test_the_limit_of_unfinished_bytes_counts_only_what_is_unfinished() -> None:
    """Req: R-05"""
    server = receiving_server(limits=Limits(reassembly_bytes=5000))
    for number in range(20):
        for _ in range(4):
            server.receive(transfer(0, number, bytes(1000), more=True), 0)
        ending = number % 3
        if ending == 0:
            assert len(server.receive(transfer(0, number, b""), 0)) == 1
        elif ending == 1:
            assert server.receive(transfer(0, number, b"", aborted=True), 0) == []
        else:
            server.detach(0, 0)
            server.receive(attach(0, Role.SENDER), 0)
            server.accept_link(0, 0, max_message_size=1 << 20)


def test_tiny_frames_count_with_their_overhead() -> None:
    """A million chunks of one byte would take 40 MB. Req: R-05"""
    server = receiving_server(limits=Limits(reassembly_bytes=65 * 100))
    for _ in range(100):
        assert server.receive(transfer(0, 0, b"x", more=True), 0) == []
    assert closed_with(server.receive(transfer(0, 0, b"x", more=True), 0)) == "amqp:resource-limit-exceeded"


def test_a_state_that_is_not_one_is_a_protocol_error() -> None:
    server = receiving_server()
    assert closed_with(server.receive(transfer(0, 0, b"x", state="accepted"), 0)) == "amqp:invalid-field"
    server = receiving_server()
    states = [None, UInt(5), ULong(5)]
    body = composite(composites.TRANSACTIONAL_STATE, states)
    assert closed_with(server.receive(transfer(0, 0, b"x", state=body), 0)) == "amqp:invalid-field"


@pytest.mark.parametrize("fields", [[Symbol("handle")], [UInt(0), "id"], [UInt(0), UInt(0), "tag"], [None]])
def test_fields_of_a_wrong_kind_are_a_protocol_error(fields: list[Any]) -> None:
    server = receiving_server()
    events = server.receive(frame(0, composite(composites.TRANSFER, fields)), 0)
    assert closed_with(events) == "amqp:invalid-field"


def test_a_partial_state_is_passed_on() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=5)
    pair.client.send(channel, handle, b"t", b"x", state=Received(1, 2**40))
    assert only(pair.take()[1], DeliveryReceived).state == Received(1, 2**40)


sizes = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.integers(0, 2000), st.booleans()), min_size=1, max_size=12
)


@settings(deadline=None, max_examples=40)
@given(sizes, st.integers(1, 9))
def test_whatever_is_sent_arrives_in_order_through_any_window(
    deliveries: list[tuple[int, int, bool]], window: int
) -> None:
    """Req: L-16"""
    pair = opened_pair(client={"max_frame_size": 512}, client_limits=Limits(incoming_window=window))
    channel, first = pair.attach(Role.RECEIVER, credit=100)
    _, second = pair.attach(Role.RECEIVER, channel=channel, name="other", credit=100)
    expected = []
    for number, (link, size, settled) in enumerate(deliveries):
        handle = (first, second)[link]
        payload = bytes([number]) * size
        expected.append((handle, number, settled, payload))
        assert pair.server.send(channel, handle, b"t", payload, settled=settled) == number
    at_client, _ = pair.take()
    received = [
        (event.handle, event.delivery_id, event.settled, event.payload)
        for event in every(at_client, DeliveryReceived)
    ]
    assert received == expected
    assert pair.server.pending_bytes == 0


def test_a_state_too_large_for_a_frame_is_refused_before_anything_is_counted() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=1)
    with pytest.raises(LocalProtocolError):
        pair.client.send(channel, handle, b"t", b"x", state=TransactionalState(bytes(70_000)))
    assert pair.client.send(channel, handle, b"t", b"x") == 0
