"""Sessions and links: begin, attach, refuse, detach, end, and handles that are used again."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp import composites
from peeklock.amqp.codec import encode
from peeklock.amqp.composites import composite
from peeklock.amqp.connection import FRAME_UNITS
from peeklock.amqp.errors import AmqpError, LocalProtocolError
from peeklock.amqp.events import (
    DeliveryReceived,
    Event,
    LinkAttached,
    LinkDetached,
    SessionBegun,
    SessionEnded,
)
from peeklock.amqp.frames import Limits, frame
from peeklock.amqp.performatives import (
    Coordinator,
    Source,
    Target,
    encode_attach,
    encode_detach,
    encode_disposition,
    encode_end,
    encode_flow,
    encode_terminus,
)
from peeklock.amqp.types import Array, Described, Encoded, Long, Role, Symbol, UInt, ULong
from tests.amqp.pair import (
    Pair,
    attach,
    bare_server,
    begin,
    closed_with,
    frames_of,
    only,
    opened_pair,
    transfer,
)

NOT_FOUND = AmqpError("amqp:not-found", "The messaging entity 'sb://h/q' could not be found.")


def detach(handle: int, *, closed: bool = True, channel: int = 0) -> bytes:
    return frame(channel, encode_detach(handle, closed, None))


def ended(channel: int = 0) -> bytes:
    return frame(channel, encode_end(None))


def test_begin_is_answered_on_the_same_channel_with_window_and_handles() -> None:
    """Source: wire contract 1.4, 1.5."""
    server = bare_server()
    assert server.receive(begin(7), 0) == [SessionBegun(7)]
    ((channel, code, fields, _),) = frames_of(server.data_to_send())
    assert (channel, code, fields[:3], fields[4]) == (7, composites.BEGIN, [7, 0, 5000], 1023)


def test_attach_reports_every_field_and_the_raw_termini() -> None:
    source = Source(
        address="amqps://host/queue",
        filter={Symbol("com.microsoft:session-filter"): None},
        capabilities=Array.of(Symbol, [Symbol("queue")]),
    )
    pair = opened_pair()
    channel = pair.client.begin()
    pair.client.attach(
        channel,
        "receiver",
        Role.RECEIVER,
        source,
        Target(address="here"),
        snd_settle_mode=1,
        rcv_settle_mode=1,
        max_message_size=1000,
        properties={Symbol("com.microsoft:timeout"): UInt(5000)},
    )
    _, at_server = pair.take()
    event = only(at_server, LinkAttached)
    assert (event.channel, event.handle, event.name, event.role) == (0, 0, "receiver", Role.RECEIVER)
    assert (event.snd_settle_mode, event.rcv_settle_mode, event.max_message_size) == (1, 1, 1000)
    assert event.source == source
    assert event.target == Target(address="here")
    assert event.properties == {"com.microsoft:timeout": 5000}
    assert event.source_raw.startswith(b"\x00\x53\x28")


def test_an_accepted_link_echoes_the_peers_termini_byte_for_byte() -> None:
    """Source: wire contract 0.1, 2.3."""
    odd_source = b"\x00\x80" + (0x28).to_bytes(8, "big") + encode(["amqps://h/Queue", UInt(0)])
    odd_target = b"\x00\x53\x29\xd0\x00\x00\x00\x07\x00\x00\x00\x01\xa1\x01t"
    server = bare_server()
    request = encode_attach(
        "l", 1, Role.RECEIVER, 0, 1, Encoded(odd_source), Encoded(odd_target), None, None, None, None
    )
    server.receive(begin(1) + frame(1, request), 0)
    server.accept_link(1, 1, max_message_size=262144)
    reply = server.data_to_send()
    assert odd_source + odd_target in reply
    fields = frames_of(reply)[-1][2]
    # name, handle, role sender, both modes; then unsettled, incomplete, initial-delivery-count 0, size
    assert fields[:5] == ["l", 1, False, 0, 1]
    assert fields[7:11] == [None, None, 0, 262144]


def test_a_receiving_link_sends_no_delivery_count_but_its_size() -> None:
    """Source: wire contract 2.3."""
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.accept_link(
        0,
        0,
        max_message_size=262144,
        properties={Symbol("com.microsoft:max-message-batch-size"): Long(5)},
        offered_capabilities=["x"],
    )
    fields = frames_of(server.data_to_send())[-1][2]
    assert fields[2] is True
    assert fields[9:] == [
        None,
        262144,
        Array.of(Symbol, ["x"]),
        None,
        {"com.microsoft:max-message-batch-size": 5},
    ]


def test_a_source_can_be_changed_on_acceptance() -> None:
    """Source: wire contract 2.6: the session filter carries the accepted id."""
    pair = opened_pair()
    event: list[LinkAttached] = []
    pair.on_attach = event.append
    channel = pair.client.begin()
    key = Symbol("com.microsoft:session-filter")
    described = Described(ULong(0x137000000C), None)
    source = Source(address="q", filter={key: described})
    pair.client.attach(channel, "l", Role.RECEIVER, source, Target(address="t"))
    pair.take()
    accepted = event[0].source
    assert isinstance(accepted, Source)
    assert accepted.filter == {key: described}
    accepted.filter[key] = Described(described.descriptor, "session-1")
    pair.server.accept_link(channel, 0, source=accepted)
    at_client, _ = pair.take()
    assert b"\x00\x80\x00\x00\x00\x13\x70\x00\x00\x0c\xa1\x09session-1" in pair.to_client
    answered = only(at_client, LinkAttached).source
    assert isinstance(answered, Source)
    assert answered.filter == {key: Described(0x137000000C, "session-1")}


def test_a_coordinator_is_a_target() -> None:
    """Source: wire contract 6."""
    pair = opened_pair()
    channel = pair.client.begin()
    pair.client.attach(
        channel, "tx", Role.SENDER, Source(address="c"), Coordinator(["amqp:local-transactions"])
    )
    at_client, at_server = pair.take()
    expected = Coordinator(Array.of(Symbol, [Symbol("amqp:local-transactions")]))
    assert only(at_server, LinkAttached).target == expected
    assert only(at_client, LinkAttached).target == expected


@pytest.mark.parametrize("role", [Role.SENDER, Role.RECEIVER])
def test_a_refused_link_gets_a_null_terminus_and_a_closing_detach_with_the_error(role: Role) -> None:
    """Source: wire contract 2.2."""
    pair = opened_pair()
    pair.on_attach = lambda event: pair.server.refuse_link(event.channel, event.handle, NOT_FOUND)
    channel = pair.client.begin()
    pair.client.attach(channel, "link", role, Source(address="a"), Target(address="b"))
    at_client, at_server = pair.take()
    attached = only(at_client, LinkAttached)
    assert (attached.target if role is Role.SENDER else attached.source) is None
    assert (attached.source if role is Role.SENDER else attached.target) is not None
    assert only(at_client, LinkDetached) == LinkDetached(channel, 0, True, NOT_FOUND)
    assert not [event for event in at_server if isinstance(event, LinkDetached)]


def test_an_error_is_a_list_of_three_with_nulls() -> None:
    """Source: wire contract 0.2."""
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.refuse_link(0, 0, AmqpError("amqp:not-found"))
    assert server.data_to_send().endswith(b"\x00\x53\x1d\xc0\x14\x03\xa3\x0eamqp:not-found\xa1\x00\x40")


def test_a_refused_handle_can_be_attached_again_without_a_detach() -> None:
    """Source: wire contract 2.2: the Python client never answers the detach of a refused link."""
    server = bare_server()
    server.receive(begin() + attach(1, Role.SENDER), 0)
    server.refuse_link(0, 1, NOT_FOUND)
    # What was under way for the refused link is read over.
    late = transfer(1, 0, b"late") + frame(0, encode_flow(0, 10, 0, 10, 1, 0, 5))
    assert server.receive(late, 0) == []
    only(server.receive(attach(1, Role.SENDER, name="again"), 0), LinkAttached)
    server.accept_link(0, 1)
    only(server.receive(transfer(1, 1, b"x"), 0), DeliveryReceived)


def test_a_refused_link_may_be_attached_and_detached_again_to_end_it() -> None:
    """Source: wire contract 2.2: the Python client after its own non-closing detach."""
    server = bare_server()
    server.receive(begin() + attach(1, Role.SENDER), 0)
    server.refuse_link(0, 1, NOT_FOUND)
    events = server.receive(attach(1, Role.SENDER) + detach(1), 0)
    assert [type(event) for event in events] == [LinkAttached, LinkDetached]
    server.accept_link(0, 1)  # the owner's answer to the first event comes too late
    codes = [code for _, code, _, _ in frames_of(server.data_to_send())]
    assert codes[-2:] == [composites.ATTACH, composites.DETACH]


@pytest.mark.parametrize("closed", [True, False])
def test_a_detach_is_answered_in_kind(closed: bool) -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER)
    pair.client.detach(channel, handle, NOT_FOUND, closed=closed)
    at_client, at_server = pair.take()
    assert at_server == [LinkDetached(channel, handle, closed, NOT_FOUND)]
    assert at_client == [LinkDetached(channel, handle, closed, None)]


def test_the_answer_to_our_detach_is_no_event_for_a_server() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER)
    pair.server.detach(channel, handle, AmqpError("com.microsoft:session-lock-lost", "lost"))
    pair.server.detach(channel, handle)
    at_client, at_server = pair.take()
    assert only(at_client, LinkDetached).error == AmqpError("com.microsoft:session-lock-lost", "lost")
    assert at_server == []
    assert pair.to_client.count(b"session-lock-lost") == 1


def test_a_pending_link_that_the_peer_detaches_is_answered_with_attach_and_detach() -> None:
    """A next-available-session attach may wait for a minute; the client may give up (wire contract 2.6)."""
    pair = opened_pair()
    pair.on_attach = lambda event: None
    channel = pair.client.begin()
    handle = pair.client.attach(channel, "l", Role.RECEIVER, Source(address="a"), Target(address="b"))
    pair.take()
    pair.client.detach(channel, handle)
    at_client, at_server = pair.take()
    assert at_server == [LinkDetached(channel, handle, True, None)]
    assert [type(event) for event in at_client] == [LinkAttached, LinkDetached]


def test_a_pending_link_can_be_detached_by_us() -> None:
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.data_to_send()
    server.detach(0, 0, NOT_FOUND)
    assert [code for _, code, _, _ in frames_of(server.data_to_send())] == [
        composites.ATTACH,
        composites.DETACH,
    ]


def test_a_handle_is_free_straight_after_detach() -> None:
    """Source: wire contract 2.9: the Python client re-creates a link by detach(closed=false) and attach."""
    server = bare_server()
    server.receive(begin() + attach(1, Role.SENDER), 0)
    server.accept_link(0, 1)
    events = server.receive(detach(1, closed=False), 0)
    assert events == [LinkDetached(0, 1, False, None)]
    only(server.receive(attach(1, Role.SENDER), 0), LinkAttached)
    server.accept_link(0, 1)
    only(server.receive(transfer(1, 0, b"x"), 0), DeliveryReceived)


def test_a_handle_freed_and_taken_in_one_batch_waits_for_the_owner() -> None:
    """Otherwise the answer to the first attach would be taken for the second."""
    server = bare_server()
    server.receive(begin(), 0)
    batch = (
        attach(1, Role.SENDER, name="first")
        + detach(1)
        + attach(1, Role.RECEIVER, name="second")
        + attach(2, Role.SENDER, name="third")
    )
    events = server.receive(batch, 0)
    assert [type(event) for event in events] == [LinkAttached, LinkDetached]
    server.accept_link(0, 1)
    assert bool(server.stalled)  # bool(): else mypy takes the later one for impossible
    assert server.next_deadline_ms() == 0
    events = server.receive(b"", 0)
    assert [event.name for event in events if isinstance(event, LinkAttached)] == ["second", "third"]
    assert not server.stalled
    server.accept_link(0, 1)
    names = [
        fields[0] for _, code, fields, _ in frames_of(server.data_to_send()) if code == composites.ATTACH
    ]
    assert names == ["first", "second"]


def test_a_channel_freed_and_taken_in_one_batch_waits_for_the_owner() -> None:
    server = bare_server()
    events = server.receive(begin(3) + ended(3) + begin(3) + attach(0, Role.SENDER, channel=3), 0)
    assert events == [SessionBegun(3), SessionEnded(3, None)]
    assert server.stalled
    assert [type(event) for event in server.tick(0)] == [SessionBegun, LinkAttached]


def test_an_end_detaches_every_link_first() -> None:
    pair = opened_pair()
    channel, first = pair.attach(Role.SENDER)
    _, second = pair.attach(Role.RECEIVER, channel=channel, name="two")
    error = AmqpError("amqp:internal-error", "why")
    pair.client.end(channel, error)
    at_client, at_server = pair.take()
    assert at_server == [
        LinkDetached(channel, first, True, None),
        LinkDetached(channel, second, True, None),
        SessionEnded(channel, error),
    ]
    assert at_client == [SessionEnded(channel, None)]
    assert pair.client.begin() == channel  # it is free again


def test_a_server_may_end_a_session_and_hears_no_more_of_it() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=5)
    pair.server.end(channel)
    pair.server.end(channel)
    pair.client.send(channel, handle, b"t", b"crossing the end")
    at_client, at_server = pair.take()
    assert at_server == []
    assert [type(event) for event in at_client] == [LinkDetached, SessionEnded]
    assert pair.client.attach(channel, "late", Role.SENDER, None, None) == -1


def test_a_channel_we_ended_may_be_begun_again_without_an_end() -> None:
    """A peer that missed our end, or forgot the session, must not lose its connection."""
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.end(0)
    assert server.receive(begin(), 0) == [SessionBegun(0)]
    only(server.receive(attach(0, Role.SENDER), 0), LinkAttached)


def test_many_links_of_both_roles_live_on_one_session() -> None:
    """Source: wire contract 0.6."""
    pair = opened_pair()
    channel = pair.client.begin()
    handles = [
        pair.attach(Role.SENDER if number % 2 else Role.RECEIVER, channel=channel, name=f"l{number}")[1]
        for number in range(20)
    ]
    assert handles == list(range(20))


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (transfer(5, 0, b"x"), "amqp:session:unattached-handle"),
        (frame(0, encode_flow(0, 1, 0, 1, 5, 0, 1)), "amqp:session:unattached-handle"),
        (detach(5), "amqp:session:unattached-handle"),
        (attach(0, Role.SENDER, name="other"), "amqp:session:handle-in-use"),
    ],
)
def test_a_wrong_handle_ends_the_session_and_no_other(data: bytes, condition: str) -> None:
    """Req: R-05"""
    server = bare_server()
    server.receive(begin(0) + attach(0, Role.SENDER) + begin(1) + attach(0, Role.SENDER, channel=1), 0)
    server.accept_link(0, 0)
    server.accept_link(1, 0)
    server.data_to_send()
    events = server.receive(data, 0)
    assert [type(event) for event in events] == [LinkDetached, SessionEnded]
    event = only(events, SessionEnded)
    assert event.error is not None
    assert (event.error.condition, event.clean, only(events, LinkDetached).clean) == (condition, False, False)
    ((channel, code, fields, _),) = frames_of(server.data_to_send())
    assert (channel, code, fields[0].value[0]) == (0, composites.END, condition)
    # Discarding: nothing on this channel counts until the peer's end; the other session goes on.
    assert server.receive(transfer(0, 0, b"x") + ended(0), 0) == []
    only(server.receive(transfer(0, 0, b"x", channel=1), 0), DeliveryReceived)


def test_handles_up_to_the_limit_are_taken_and_one_past_it_ends_the_connection() -> None:
    """Req: R-05"""
    server = bare_server(Limits(handle_max=300))
    server.receive(begin(), 0)
    only(server.receive(attach(300, Role.SENDER), 0), LinkAttached)
    assert closed_with(server.receive(attach(301, Role.SENDER), 0)) == "amqp:connection:framing-error"


def test_channels_up_to_the_limit_are_taken_and_one_past_it_ends_the_connection() -> None:
    """Req: R-05"""
    server = bare_server()
    assert server.receive(begin(4999), 0) == [SessionBegun(4999)]
    assert closed_with(server.receive(begin(5000), 0)) == "amqp:connection:framing-error"


def test_links_past_the_limit_of_the_connection_are_refused_and_the_others_live() -> None:
    """Req: R-05"""
    server = bare_server(Limits(links=3))
    server.receive(begin(0) + begin(1), 0)
    for channel, handle in ((0, 0), (0, 1), (1, 0)):
        only(server.receive(attach(handle, Role.SENDER, channel=channel), 0), LinkAttached)
    server.data_to_send()
    assert server.receive(attach(1, Role.SENDER, channel=1), 0) == []
    (_, first, fields, _), (_, second, reason, _) = frames_of(server.data_to_send())
    assert (first, second) == (composites.ATTACH, composites.DETACH)
    assert fields[6] is None
    assert reason[2].value[0] == "amqp:resource-limit-exceeded"
    server.receive(detach(1, channel=1) + detach(0, channel=1), 0)
    only(server.receive(attach(5, Role.SENDER, channel=1), 0), LinkAttached)


@pytest.mark.parametrize(
    "request_frame",
    [
        attach(0, Role.SENDER, name="x" * 4097),
        attach(0, Role.SENDER, address="x" * 4097),
        attach(0, Role.SENDER, properties={Symbol("k"): "v" * 16384}),
    ],
)
def test_names_and_properties_past_their_limit_refuse_the_link(request_frame: bytes) -> None:
    """Req: R-05"""
    server = bare_server()
    server.receive(begin(), 0)
    server.data_to_send()
    assert server.receive(request_frame, 0) == []
    assert b"amqp:resource-limit-exceeded" in server.data_to_send()
    only(server.receive(attach(1, Role.SENDER, name="x" * 4096, address="y" * 4096), 0), LinkAttached)


def test_large_properties_of_a_begin_end_the_connection() -> None:
    """Req: R-05"""
    fields = [None, UInt(0), UInt(1), UInt(1), None, None, None, {Symbol("k"): "v" * 16384}]
    server = bare_server()
    events = server.receive(frame(0, composite(composites.BEGIN, fields)), 0)
    assert closed_with(events) == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (Described(0x24, []), None),
        (Described(0x29, []), None),
        (None, Described(0x28, [])),
        ("queue", None),
        (Described(0x28, ["a", "durable"]), None),
        (Described(0x28, [None] * 12), None),
    ],
)
def test_termini_of_another_type_are_a_protocol_error(source: Any, target: Any) -> None:
    fields = ["l", UInt(0), False, None, None, source, target, None, None, UInt(0)]
    server = bare_server()
    events = server.receive(begin() + frame(0, composite(composites.ATTACH, fields)), 0)
    assert len(events) == 2
    assert not [event for event in events if isinstance(event, LinkAttached)]


def test_default_settle_modes_are_mixed_and_first() -> None:
    """Source: AMQP 2.7.3."""
    fields = ["l", UInt(0), True]
    server = bare_server()
    events = server.receive(begin() + frame(0, composite(composites.ATTACH, fields)), 0)
    event = only(events, LinkAttached)
    assert (event.snd_settle_mode, event.rcv_settle_mode) == (2, 0)
    assert event.source is event.target is None
    assert event.source_raw == b"\x40"


def test_misuse_of_a_link_is_a_local_error() -> None:
    pair = opened_pair()
    channel, receiver = pair.attach(Role.RECEIVER, name="in")
    _, sender = pair.attach(Role.SENDER, channel=channel, name="out")
    with pytest.raises(LocalProtocolError):
        pair.server.accept_link(channel, receiver)
    with pytest.raises(LocalProtocolError):
        pair.server.refuse_link(channel, sender, NOT_FOUND)
    with pytest.raises(LocalProtocolError):
        pair.server.flow(channel, receiver, 1)
    with pytest.raises(LocalProtocolError):
        pair.server.drained(channel, sender)
    with pytest.raises(LocalProtocolError):
        pair.server.send(channel, sender, b"t", b"x")
    with pytest.raises(LocalProtocolError):
        pair.server.send(channel, receiver, b"t", b"x")  # no credit
    pair.client.flow(channel, receiver, 1)
    pair.take()
    with pytest.raises(LocalProtocolError):
        pair.server.send(channel, receiver, b"t" * 33, b"x")


def test_a_pending_link_can_neither_send_nor_grant() -> None:
    server = bare_server()
    server.receive(begin() + attach(0, Role.RECEIVER) + attach(1, Role.SENDER), 0)
    with pytest.raises(LocalProtocolError):
        server.send(0, 0, b"t", b"x")
    with pytest.raises(LocalProtocolError):
        server.flow(0, 1, 1)


def test_a_client_takes_no_session_or_link_it_did_not_ask_for() -> None:
    pair = opened_pair()
    assert closed_with(pair.client.receive(begin(5), 0)) == "amqp:not-allowed"
    pair = opened_pair()
    channel, _ = pair.attach(Role.SENDER)
    events: list[Event] = pair.client.receive(attach(9, Role.SENDER, channel=channel, name="unasked"), 0)
    error = only(events, SessionEnded).error
    assert error is not None
    assert error.condition == "amqp:not-allowed"


def test_a_server_takes_no_begin_that_answers() -> None:
    fields = [UInt(3), UInt(0), UInt(1), UInt(1)]
    server = bare_server()
    events = server.receive(frame(0, composite(composites.BEGIN, fields)), 0)
    assert closed_with(events) == "amqp:invalid-field"


def test_a_client_runs_out_of_channels_and_handles_at_the_servers_limit() -> None:
    pair = Pair(server={"channel_max": 1}, server_limits=Limits(handle_max=1)).open()
    channel = pair.client.begin()
    pair.client.begin()
    with pytest.raises(LocalProtocolError):
        pair.client.begin()
    pair.attach(Role.SENDER, channel=channel, name="a")
    pair.attach(Role.SENDER, channel=channel, name="b")
    with pytest.raises(LocalProtocolError):
        pair.client.attach(channel, "c", Role.SENDER, None, None)


def test_refused_links_that_the_peer_does_not_detach_are_bounded() -> None:
    """Req: R-05. As many as may be open; each that the peer detaches makes room, and its handle too."""
    server = bare_server(Limits(links=3))
    server.receive(begin(0), 0)
    for handle in range(6):
        server.receive(attach(handle, Role.SENDER), 0)
    assert server.receive(detach(5) + attach(6, Role.SENDER), 0) == []
    assert server.receive(attach(6, Role.SENDER), 0) == []  # a peer that never answers takes its handle again
    assert closed_with(server.receive(attach(7, Role.SENDER), 0)) == "amqp:resource-limit-exceeded"


LATE = {
    "attach": attach(3, Role.SENDER, channel=1),
    "flow": frame(1, encode_flow(0, 10, 0, 10, 3, 0, 10)),
    "transfer": transfer(3, 0, b"x", channel=1),
    "disposition": frame(1, encode_disposition(Role.SENDER, 0, 5, True, None)),
    "detach": detach(3, channel=1),
    "end": ended(1),
}


@pytest.mark.parametrize("kind", LATE)
def test_what_comes_for_a_session_that_the_peer_has_ended_is_ignored(kind: str) -> None:
    """Req: C43. The .NET client detaches and attaches late; others go on with their links."""
    server = bare_server()
    server.receive(begin(1) + attach(3, Role.SENDER, channel=1) + ended(1), 0)
    server.data_to_send()
    assert server.receive(LATE[kind] * 3, 0, 10**6) == []
    assert server.units_left == 10**6 - 3 * FRAME_UNITS  # they count like other frames
    assert server.data_to_send() == b""
    assert server.receive(begin(1), 0) == [SessionBegun(1)]
    assert server.receive(LATE[kind], 0) != [] or kind in ("flow", "disposition")


@pytest.mark.parametrize("kind", sorted(LATE.keys() - {"detach"}))
def test_what_comes_on_a_channel_that_was_never_begun_ends_the_connection(kind: str) -> None:
    """Req: C43. As before; a detach alone is ignored there too."""
    server = bare_server()
    server.receive(begin(2) + ended(2), 0)
    assert closed_with(server.receive(LATE[kind], 0)) == "amqp:illegal-state"


def test_a_session_that_both_ends_ended_is_ended_by_the_peer() -> None:
    """Req: C43."""
    server = bare_server()
    server.receive(begin(1), 0)
    server.end(1)
    assert server.receive(ended(1) + LATE["attach"] + LATE["end"], 0) == []


def test_sessions_past_the_limit_end_the_connection() -> None:
    """Req: R-05"""
    server = bare_server(Limits(sessions=2))
    server.receive(begin(0) + begin(1) + ended(1), 0)
    assert server.receive(begin(2), 0) == [SessionBegun(2)]
    assert closed_with(server.receive(begin(1), 0)) == "amqp:resource-limit-exceeded"


def test_a_source_or_target_past_the_limit_is_refused() -> None:
    """Req: R-05"""
    server = bare_server(Limits(properties_bytes=1000))
    server.receive(begin(0), 0)
    around = len(encode_terminus(Source(address="q" * 500))) - 500
    event = only(server.receive(attach(0, Role.SENDER, address="q" * (1000 - around)), 0), LinkAttached)
    assert len(event.source_raw) == 1000
    assert server.receive(attach(1, Role.SENDER, address="q" * (1001 - around)), 0) == []
