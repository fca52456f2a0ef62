"""Credit, drain, echo, session windows and idle time-outs."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp import composites
from peeklock.amqp.codec import DecodeError
from peeklock.amqp.composites import composite
from peeklock.amqp.connection import Connection
from peeklock.amqp.errors import RemoteProtocolError
from peeklock.amqp.events import (
    ConnectionClosed,
    DeliveryReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkDrained,
    LinkFlow,
)
from peeklock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, Limits, frame
from peeklock.amqp.performatives import ACCEPTED, encode_detach, encode_open
from peeklock.amqp.types import Role, UInt
from tests.amqp.pair import Pair, attach, bare_server, begin, every, frames_of, only, opened_pair, transfer


def flow(
    handle: int | None = None,
    *,
    next_incoming_id: int | None = 0,
    window: int = 65536,
    delivery_count: int | None = 0,
    credit: int | None = None,
    drain: bool | None = None,
    echo: bool | None = None,
) -> bytes:
    fields: list[Any] = [
        None if next_incoming_id is None else UInt(next_incoming_id),
        UInt(window),
        UInt(0),
        UInt(65536),
        None if handle is None else UInt(handle),
        None if delivery_count is None or handle is None else UInt(delivery_count),
        None if credit is None else UInt(credit),
        None,
        drain,
        echo,
    ]
    return frame(0, composite(composites.FLOW, fields))


def sending_server(*, window: int = 65536) -> Connection:
    """Return a server with an accepted outgoing link on channel 0, handle 0."""
    server = bare_server()
    server.receive(begin(window=window) + attach(0, Role.RECEIVER), 0)
    server.accept_link(0, 0)
    server.data_to_send()
    return server


def flows_of(data: bytes) -> list[list[Any]]:
    return [fields for _, code, fields, _ in frames_of(data) if code == composites.FLOW]


def test_credit_is_absolute_from_the_receivers_view_of_the_count() -> None:
    """Source: wire contract 2.7."""
    server = sending_server()
    assert server.receive(flow(0, credit=10), 0) == [LinkFlow(0, 0, 10, False)]
    for _ in range(4):
        server.send(0, 0, b"t", b"x")
    assert server.credit(0, 0) == 6
    # The peer has seen two of the four: 2 + 10 - 4 are left.
    assert server.receive(flow(0, delivery_count=2, credit=10), 0) == [LinkFlow(0, 0, 8, False)]
    # Less than what is under way leaves nothing, not something negative.
    assert server.receive(flow(0, delivery_count=2, credit=1), 0) == [LinkFlow(0, 0, 0, False)]
    assert server.receive(flow(0, delivery_count=4, credit=0), 0) == [LinkFlow(0, 0, 0, False)]


def test_credit_without_a_count_starts_at_the_links_beginning() -> None:
    """Source: AMQP 2.6.7: the receiver has not seen our attach."""
    server = sending_server()
    assert server.receive(flow(0, delivery_count=None, credit=3), 0) == [LinkFlow(0, 0, 3, False)]
    server.send(0, 0, b"t", b"x")
    assert server.receive(flow(0, delivery_count=None, credit=3), 0) == [LinkFlow(0, 0, 2, False)]


def test_a_flow_of_the_link_without_credit_grants_none() -> None:
    assert sending_server().receive(flow(0, credit=None), 0) == [LinkFlow(0, 0, 0, False)]


def test_credit_granted_before_our_attach_is_reported() -> None:
    server = bare_server()
    events = server.receive(begin() + attach(0, Role.RECEIVER) + flow(0, delivery_count=None, credit=5), 0)
    assert events[-1] == LinkFlow(0, 0, 5, False)


HALF = 2**31


@pytest.mark.parametrize(
    ("delivery_count", "credit", "left"),
    [
        (1, 2**32 - 1, HALF - 1),
        (HALF - 1, HALF + 1, HALF - 1),
        (0, 2**32 - 1, HALF - 1),
        (0, HALF, HALF - 1),
        (0, HALF - 1, HALF - 1),
        (0, HALF - 2, HALF - 2),
        (None, 2**32 - 1, HALF - 1),
        (2**32 - 1, 2**32 - 1, HALF - 1),  # one behind ours
        (2**32 - 1, HALF - 1, HALF - 2),
        (HALF + 1, 2**32 - 1, HALF - 1),  # as far behind as serial numbers can say
        (HALF + 1, HALF - 1, 0),
        (HALF, 5, 5),  # neither ahead nor behind
        (1, 5, 5),
        (HALF - 1, 0, 0),
    ],
)
def test_credit_is_at_most_what_the_peer_says_and_what_serial_numbers_compare(
    delivery_count: int | None, credit: int, left: int
) -> None:
    """Source: AMQP 2.6.7: a receiver's delivery-count is the last value that it knows of the sender's."""
    server = sending_server()
    events = server.receive(flow(0, delivery_count=delivery_count, credit=credit, echo=True), 0)
    assert events == [LinkFlow(0, 0, left, False)]
    (fields,) = flows_of(server.data_to_send())
    assert fields[4:7] == [0, 0, left]


def test_credit_counts_on_where_the_count_wraps_around() -> None:
    server = sending_server()
    events = server.receive(flow(0, delivery_count=0, credit=HALF - 1, drain=True), 0)
    server.drained(0, 0)
    server.receive(flow(0, delivery_count=HALF - 1, credit=HALF - 1, drain=True), 0)
    server.drained(0, 0)
    assert flows_of(server.data_to_send())[-1][5:7] == [2**32 - 2, 0]
    server.receive(flow(0, delivery_count=2**32 - 2, credit=4), 0)
    for _ in range(3):
        server.send(0, 0, b"t", b"x")
    events = server.receive(flow(0, delivery_count=0, credit=10, echo=True), 0)  # two of the three are seen
    assert events == [LinkFlow(0, 0, 9, False)]
    assert flows_of(server.data_to_send())[-1][5:7] == [1, 9]


def test_a_receivers_flow_states_count_and_credit_in_full() -> None:
    """Source: wire contract 0.2: a null in either drops the link in the Python client."""
    server = bare_server()
    server.receive(begin(next_outgoing_id=100) + attach(0, Role.SENDER), 0)
    server.accept_link(0, 0)
    server.receive(transfer(0, 0, b"x"), 0)
    server.data_to_send()
    server.flow(0, 0, 50)
    assert flows_of(server.data_to_send()) == [[101, 5000, 0, 65535, 0, 1, 50, None, False, False]]


def test_a_flow_replaces_the_credit_that_was_left() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=10)
    pair.client.send(channel, handle, b"t", b"x")
    pair.take()
    pair.server.flow(channel, handle, 3)
    at_client, _ = pair.take()
    assert at_client == [LinkFlow(channel, handle, 3, False)]
    pair.server.flow(channel, handle, 0)
    pair.take()
    assert pair.client.credit(channel, handle) == 0


def test_drain_is_answered_with_the_count_moved_and_no_credit() -> None:
    """Source: wire contract 2.7. Req: L-16"""
    server = sending_server()
    events = server.receive(flow(0, credit=10, drain=True), 0)
    assert events == [LinkFlow(0, 0, 10, True)]
    assert server.data_to_send() == b""  # the owner first sends what it has
    server.send(0, 0, b"t", b"x")
    server.drained(0, 0)
    (fields,) = flows_of(server.data_to_send())
    assert fields == [0, 5000, 1, 65535, 0, 10, 0, None, True, True]
    assert server.credit(0, 0) == 0


def test_drain_without_credit_is_answered_at_once_and_asks_for_no_echo() -> None:
    """With an echo each time, two ends that answer every drain would never stop."""
    server = sending_server()
    assert server.receive(flow(0, credit=0, drain=True), 0) == [LinkFlow(0, 0, 0, True)]
    server.drained(0, 0)
    assert flows_of(server.data_to_send()) == [[0, 5000, 0, 65535, 0, 0, 0, None, True, False]]


def test_a_drain_loses_and_repeats_nothing() -> None:
    """Req: L-16"""
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER, credit=4)
    received: list[int] = []
    for _ in range(3):
        for number in range(2):
            pair.server.send(channel, handle, b"t", bytes([number]))
        pair.client.flow(channel, handle, 4, drain=True)
        at_client, at_server = pair.take()
        assert every(at_server, LinkFlow)[-1].drain
        # The client counted from what it had seen: none of the two.
        assert pair.server.credit(channel, handle) in (2, 4)
        pair.server.drained(channel, handle)
        later, _ = pair.take()
        assert every(later, LinkDrained) == [LinkDrained(channel, handle)]
        received += [event.delivery_id for event in every(at_client + later, DeliveryReceived)]
        assert pair.client.credit(channel, handle) == 0
        pair.client.flow(channel, handle, 4)
        pair.take()
    assert received == list(range(6))


def test_credit_counts_on_after_a_drain_that_was_taken_back() -> None:
    """Req: L-16. The sender has given the credit back and counted it; AMQP 2.6.7, delivery-count."""
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER, credit=4)
    pair.client.flow(channel, handle, 4, drain=True)
    pair.client.flow(channel, handle, 2)  # it crosses the answer
    _, at_server = pair.take()
    assert [event.drain for event in every(at_server, LinkFlow)] == [True, False]
    pair.server.drained(channel, handle)
    at_client, _ = pair.take()
    assert every(at_client, LinkDrained) == []
    assert pair.client.credit(channel, handle) == 0
    pair.client.flow(channel, handle, 3)
    pair.take()
    assert pair.server.credit(channel, handle) == 3


def test_credit_of_zero_then_more_loses_nothing() -> None:
    """Req: L-16"""
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER, credit=2)
    pair.server.send(channel, handle, b"t", b"0")
    pair.client.flow(channel, handle, 0)
    pair.server.send(channel, handle, b"t", b"1")  # it crosses the flow
    at_client, at_server = pair.take()
    assert len(every(at_client, DeliveryReceived)) == 2
    assert only(at_server, LinkFlow).credit == 0
    pair.client.flow(channel, handle, 1)
    pair.take()
    assert pair.server.credit(channel, handle) == 1


@pytest.mark.parametrize(
    ("request_frame", "expected"),
    [
        (flow(echo=True), [0, 5000, 0, 65535]),
        (flow(0, credit=7, echo=True), [0, 5000, 0, 65535, 0, 0, 7, None, False, False]),
    ],
)
def test_an_echo_is_answered_with_our_state(request_frame: bytes, expected: list[Any]) -> None:
    server = sending_server()
    server.receive(request_frame, 0)
    assert flows_of(server.data_to_send()) == [expected]


def test_a_senders_flow_is_taken_and_answered_only_if_it_asks() -> None:
    """Source: wire contract 2.7: the Python client's sender sends flow frames too."""
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.accept_link(0, 0)
    server.flow(0, 0, 10)
    server.data_to_send()
    assert server.receive(flow(0, delivery_count=3, credit=0), 0) == []
    assert server.data_to_send() == b""
    assert server.receive(flow(0, delivery_count=3, credit=0, echo=True), 0) == []
    (fields,) = flows_of(server.data_to_send())
    assert fields[5:7] == [0, 10]  # our count is what has come, not what the peer says


def test_an_echo_asked_of_a_pending_link_is_answered_once_it_is_accepted() -> None:
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER) + flow(0, credit=0, echo=True), 0)
    assert flows_of(server.data_to_send()) == []
    server.accept_link(0, 0)
    codes = [code for _, code, _, _ in frames_of(server.data_to_send())]
    assert codes == [composites.ATTACH, composites.FLOW]


def test_an_echo_is_asked_for_on_request() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=1)
    pair.to_server = b""
    pair.server.flow(channel, handle, 5, echo=True)
    pair.take()
    assert len(flows_of(pair.to_server)) == 1


def test_our_window_is_topped_up_at_half_and_counts_frames() -> None:
    """Source: wire contract 1.5, 2.8."""
    server = bare_server(Limits(incoming_window=10))
    server.receive(begin(next_outgoing_id=2**32 - 2) + attach(0, Role.SENDER), 0)
    server.accept_link(0, 0)
    server.data_to_send()
    server.receive(b"".join(transfer(0, 0, b"x", more=True) for _ in range(4)), 0)
    assert server.data_to_send() == b""
    server.receive(transfer(0, 0, b"x", more=False), 0)
    assert flows_of(server.data_to_send()) == [[3, 10, 0, 65535]]


def test_every_flow_restarts_the_count_towards_the_next() -> None:
    server = bare_server(Limits(incoming_window=10))
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.accept_link(0, 0)
    for number in range(3):
        server.receive(transfer(0, number, b"x"), 0)
    server.flow(0, 0, 5)
    server.data_to_send()
    for number in range(4):
        server.receive(transfer(0, number, b"x"), 0)
    assert server.data_to_send() == b""
    server.receive(transfer(0, 7, b"x"), 0)
    assert flows_of(server.data_to_send()) == [[8, 10, 0, 65535]]


def test_a_peer_that_overruns_our_window_is_served() -> None:
    """Source: wire contract 2.8. Req: T-08"""
    server = bare_server(Limits(incoming_window=4))
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.accept_link(0, 0)
    events = server.receive(b"".join(transfer(0, number, b"x") for number in range(100)), 0)
    assert len(every(events, DeliveryReceived)) == 100


def test_deliveries_wait_for_the_peers_window_in_order() -> None:
    server = sending_server(window=2)
    server.receive(flow(0, window=2, credit=100), 0)
    for number in range(5):
        assert server.send(0, 0, b"t", bytes([number])) == number
    assert server.pending_bytes > 3
    sent = [fields[1] for _, _, fields, _ in frames_of(server.data_to_send())]
    assert sent == [0, 1]
    assert server.pending_bytes == 3
    server.receive(flow(next_incoming_id=2, window=1), 0)
    server.receive(flow(next_incoming_id=3, window=2), 0)
    sent = [fields[1] for _, _, fields, _ in frames_of(server.data_to_send())]
    assert sent == [2, 3, 4]
    assert server.pending_bytes == 0


def test_a_window_in_the_peers_own_counting_is_understood() -> None:
    """Frames under way when the peer wrote its flow are taken off the window it gives."""
    server = sending_server(window=4)
    server.receive(flow(0, window=4, credit=100), 0)
    for _ in range(4):
        server.send(0, 0, b"t", b"x")
    server.receive(flow(next_incoming_id=1, window=4), 0)  # three are still on their way
    for _ in range(4):
        server.send(0, 0, b"t", b"x")
    assert len(frames_of(server.data_to_send())) == 5


@pytest.mark.parametrize("window", [2**31 - 1, 2**31, 2**32 - 1])
def test_a_boundless_window_never_closes(window: int) -> None:
    server = sending_server(window=window)
    server.receive(flow(0, window=window, credit=100), 0)
    for _ in range(50):
        server.send(0, 0, b"t", b"x")
    server.receive(flow(next_incoming_id=10, window=window), 0)
    server.send(0, 0, b"t", b"x")
    assert len(frames_of(server.data_to_send())) == 51


def test_a_drain_behind_a_closed_window_waits_its_turn() -> None:
    """Otherwise the count would run ahead of deliveries that come later. Req: L-16"""
    server = sending_server(window=1)
    server.receive(flow(0, window=1, credit=5), 0)
    server.send(0, 0, b"t", b"0")
    server.send(0, 0, b"t", b"1")
    server.receive(flow(0, next_incoming_id=1, window=0, delivery_count=1, credit=4, drain=True), 0)
    server.drained(0, 0)
    codes = [code for _, code, _, _ in frames_of(server.data_to_send())]
    assert codes == [composites.TRANSFER]
    server.receive(flow(next_incoming_id=1, window=5), 0)
    (_, first, _, _), (_, second, fields, _) = frames_of(server.data_to_send())
    assert (first, second) == (composites.TRANSFER, composites.FLOW)
    assert fields[5:7] == [5, 0]


@pytest.mark.parametrize("by_peer", [True, False])
def test_what_waits_for_the_window_goes_with_its_link_and_other_links_go_on(by_peer: bool) -> None:
    server = sending_server(window=1)
    server.receive(attach(1, Role.RECEIVER, name="other"), 0)
    server.accept_link(0, 1)
    server.receive(flow(0, window=1, credit=5) + flow(1, window=1, credit=5), 0)
    server.send(0, 0, b"t", bytes(100_000))  # its first frame goes, the rest waits
    server.send(0, 1, b"t", b"other")
    server.send(0, 0, b"t", b"waits")
    server.data_to_send()
    if by_peer:
        event = only(server.receive(frame(0, encode_detach(0, True, None)), 0), LinkDetached)
        assert event.handle == 0
    else:
        server.detach(0, 0)
    server.receive(flow(next_incoming_id=1, window=100), 0)
    sent = frames_of(server.data_to_send())
    assert [payload for _, code, _, payload in sent if code == composites.TRANSFER] == [b"other"]
    assert server.pending_bytes == 0


def test_ending_the_session_drops_what_waits_for_its_window() -> None:
    server = sending_server(window=0)
    server.receive(flow(0, window=0, credit=5), 0)
    server.send(0, 0, b"t", bytes(1000))
    server.disposition(0, Role.RECEIVER, 0, 0, ACCEPTED)
    server.end(0)
    codes = [code for _, code, _, _ in frames_of(server.data_to_send())]
    assert codes == [composites.DISPOSITION, composites.END]
    assert server.pending_bytes == 0


def idle_pair(client_ms: int | None, server_ms: int | None) -> Pair:
    return opened_pair(client={"idle_timeout_ms": client_ms}, server={"idle_timeout_ms": server_ms})


def test_empty_frames_go_out_before_half_of_the_peers_time_out() -> None:
    """Source: wire contract 1.6."""
    pair = idle_pair(60_000, 240_000)
    start = pair.now_ms
    assert pair.server.next_deadline_ms() == start + 24_000
    assert pair.server.tick(start + 23_999) == []
    assert pair.server.data_to_send() == b""
    assert pair.server.tick(start + 24_000) == []
    assert pair.server.data_to_send() == EMPTY_FRAME
    assert pair.server.next_deadline_ms() == start + 48_000


def test_traffic_postpones_the_empty_frame() -> None:
    pair = idle_pair(60_000, None)
    channel, handle = pair.attach(Role.RECEIVER, credit=1)
    start = pair.now_ms
    pair.server.tick(start + 20_000)
    pair.server.send(channel, handle, b"t", b"x")
    pair.server.data_to_send()
    assert pair.server.next_deadline_ms() == start + 44_000


def test_a_silent_peer_is_closed_at_the_full_time_out_and_not_before() -> None:
    """Source: wire contract 1.6."""
    pair = idle_pair(None, 240_000)
    start = pair.now_ms
    assert pair.server.next_deadline_ms() == start + 240_000
    assert pair.server.tick(start + 239_999) == []
    event = only(pair.server.tick(start + 240_000), ConnectionClosed)
    assert event.error is not None
    assert (event.clean, event.error.condition) == (False, "amqp:resource-limit-exceeded")
    ((_, code, fields, _),) = frames_of(pair.server.data_to_send())
    assert code == composites.CLOSE
    assert fields[0].value[0] == "amqp:resource-limit-exceeded"
    assert pair.server.next_deadline_ms() is None


def test_a_client_that_is_heard_of_late_is_kept() -> None:
    """Req: C39. The .NET client says 30 s, and sends an empty frame after 7/8 of our 240 s."""
    pair = idle_pair(30_000, 240_000)
    start = pair.now_ms
    written = b""
    for since_ms in range(0, 1_000_000, 1_000):
        if since_ms and since_ms % 210_000 == 0:
            assert pair.server.receive(EMPTY_FRAME, start + since_ms) == []
        assert pair.server.tick(start + since_ms) == []
        written += pair.server.data_to_send()
    assert written == EMPTY_FRAME * (999_000 // 12_000)  # less than half of 30 s
    assert pair.server.tick(start + 840_000 + 239_999) == []
    only(pair.server.tick(start + 840_000 + 240_000), ConnectionClosed)


def test_any_byte_of_the_peer_is_a_sign_of_life() -> None:
    pair = idle_pair(None, 1000)
    start = pair.now_ms
    for step, data in enumerate((EMPTY_FRAME, EMPTY_FRAME[:3], EMPTY_FRAME[3:]), 1):
        assert pair.server.receive(data, start + step * 900) == []
    assert pair.server.tick(start + 3_699) == []
    assert len(pair.server.tick(start + 3_700)) == 1


def test_two_idle_ends_keep_each_other_alive_for_an_hour() -> None:
    """Source: wire contract 1.6: the JavaScript client closes at twice its 60 s without traffic."""
    pair = idle_pair(60_000, 240_000)
    end_ms = pair.now_ms + 3_600_000
    events: list[Event] = []
    while pair.now_ms < end_ms:
        deadlines = [end.next_deadline_ms() for end in (pair.client, pair.server)]
        pair.now_ms = min(deadline for deadline in deadlines if deadline is not None)
        events += pair.client.tick(pair.now_ms) + pair.server.tick(pair.now_ms)
        pair.exchange()
    assert events + pair.at_client + pair.at_server == []
    assert pair.to_client.count(EMPTY_FRAME) == 3_600_000 // 24_000


def test_no_empty_frame_goes_out_before_our_open() -> None:
    server = Connection("server", container_id="s", now_ms=0)
    server.receive(AMQP_HEADER + frame(0, encode_open("c", None, 65536, 10, 1000, None)), 0)
    server.data_to_send()
    server.tick(500)
    assert server.data_to_send() == b""


def test_a_connection_that_never_opens_times_out_too() -> None:
    server = Connection("server", container_id="s", now_ms=0, idle_timeout_ms=5_000)
    assert server.tick(4_999) == []
    assert only(server.tick(5_000), ConnectionClosed).clean is False


def test_an_empty_frame_may_come_before_the_open_and_between_frames() -> None:
    server = Connection("server", container_id="s", now_ms=0)
    opening = frame(0, encode_open("c", None, 65536, 10, None, None))
    server.receive(AMQP_HEADER + EMPTY_FRAME + opening + EMPTY_FRAME + begin() + EMPTY_FRAME, 0)
    events = server.receive(EMPTY_FRAME + attach(0, Role.SENDER) + EMPTY_FRAME, 0)
    assert [type(event) for event in events] == [LinkAttached]


# Decoding

uints = st.sampled_from(
    [b"\x43", b"\x40", b"\x52\x00", b"\x52\xff", b"\x70\x00\x00\x01\x00", b"\x70\xff\xff\xff\xff"]
)
flags = st.sampled_from([b"\x40", b"\x41", b"\x42"])
others = st.sampled_from(
    [b"\x56\x01", b"\x60\x00\x01", b"\xa1\x01a", b"\xc1\x01\x00", b"\x45", b"\x52", b"\x70\x01"]
)


@st.composite
def flow_lists(draw: st.DrawFn) -> bytes:
    """Draw the list of a flow: of usual fields mostly, whole or cut, its size and count right or not."""
    fields = [*draw(st.lists(uints, max_size=9)), *draw(st.lists(flags, max_size=4))]
    if draw(st.booleans()):
        fields = [draw(uints) for _ in range(8)] + [draw(flags), draw(flags), draw(st.just(b"\x40"))]
        fields = fields[: draw(st.integers(0, 11))]
    if fields and draw(st.integers(0, 3)) == 0:
        fields[draw(st.integers(0, len(fields) - 1))] = draw(others)
    content = b"".join(fields)
    wrong = draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    count = max(0, len(fields) + draw(st.sampled_from([0, 0, 0, 0, 1, -1])))
    if draw(st.booleans()):
        head = b"\xc0" + bytes((max(0, len(content) + 1 + wrong), count))
    else:
        head = b"\xd0" + struct.pack(">II", max(0, len(content) + 4 + wrong), count)
    return head + content + draw(st.sampled_from([b"", b"", b"", b"\x40"]))


@given(flow_lists())
def test_a_flow_with_a_numeric_descriptor_is_read_like_one_with_a_symbol(fields: bytes) -> None:
    """The general decoder reads the second."""

    def read(descriptor: bytes) -> Any:
        try:
            flow = composites.decode_performative(b"\x00" + descriptor + fields, 8)
        except (DecodeError, RemoteProtocolError) as error:
            return type(error), str(error)
        return flow.code, flow.fields, flow.payload_start - len(descriptor)

    assert read(b"\x53\x13") == read(b"\xa3\x0eamqp:flow:list")


def test_flows_of_clients_are_read_without_the_general_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both forms of a list, with all fields and with the last ones left out."""
    monkeypatch.setattr(composites, "decode_typed", None)
    fields = b"\x43\x70\x00\x00\x13\x88\x52\x01\x70\x00\x00\x13\x88\x43\x52\x05\x52\x01"
    rest = b"\x40\x42\x42\x40"
    expected = [0, 5000, 1, 5000, 0, 5, 1, None, False, False, None]
    for content, count in ((fields + rest, 11), (fields, 7)):
        for head in (
            bytes((0xC0, len(content) + 1, count)),
            b"\xd0" + struct.pack(">II", len(content) + 4, count),
        ):
            read = composites.decode_performative(b"\x00\x53\x13" + head + content, 8)
            assert read.fields == (expected if count == 11 else [*expected[:7], None, None, None, None])
