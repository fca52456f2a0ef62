"""Opening and closing: headers, SASL, open, close, and the errors of a peer that gets them wrong."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp import composites
from peeklock.amqp.codec import decode
from peeklock.amqp.composites import composite
from peeklock.amqp.connection import Connection
from peeklock.amqp.errors import CONNECTION_FORCED, UNAUTHORIZED_ACCESS, AmqpError, LocalProtocolError
from peeklock.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    LinkAttached,
    SaslInit,
    SessionBegun,
)
from peeklock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, Limits, frame
from peeklock.amqp.handshake import EndError
from peeklock.amqp.performatives import ACCEPTED, Source, Target, encode_close, encode_open
from peeklock.amqp.types import Array, Role, Symbol, UInt, UShort
from tests.amqp.pair import (
    Pair,
    attach,
    bare_server,
    begin,
    closed_with,
    flow,
    frames_of,
    only,
    opened_pair,
    transfer,
)

MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
REFUSAL = AmqpError(UNAUTHORIZED_ACCESS, "The key is wrong.")
SASL = {"server": {"sasl_mechanisms": MECHANISMS}}


def sasl_pair(mechanism: str, response: bytes = b"") -> Pair:
    client: dict[str, Any] = {
        "sasl_mechanisms": (mechanism,),
        "sasl_response": response,
        "hostname": "ns.example",
    }
    return Pair(client=client, server=SASL["server"])


def sasl_init(mechanism: str) -> bytes:
    return frame(0, composite(composites.SASL_INIT, [Symbol(mechanism), b"", None]), SASL_FRAME)


def open_frame(**changes: Any) -> bytes:
    """Encode an open whose fields may be of any kind."""
    fields: list[Any] = [
        "client",
        "host",
        UInt(65536),
        UShort(100),
        UInt(60_000),
        None,
        None,
        None,
        None,
        None,
    ]
    for index, value in changes.items():
        fields[int(index[1:])] = value
    return frame(0, composite(composites.OPEN, fields))


def unopened_server(**options: Any) -> Connection:
    """Return a server without SASL that awaits the client's open."""
    server = Connection("server", container_id="server", now_ms=0, **options)
    server.receive(AMQP_HEADER, 0)
    server.data_to_send()
    return server


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_both_ends_open_with_every_mechanism(mechanism: str) -> None:
    pair = sasl_pair(mechanism, b"\0key\0secret")
    pair.open()
    pair = sasl_pair(mechanism, b"\0key\0secret")
    pair.client.open()
    at_client, at_server = pair.take()
    assert only(at_server, SaslInit) == SaslInit(mechanism, b"\0key\0secret", "ns.example")
    assert only(at_server, ConnectionOpened).container_id == "client"
    assert only(at_client, ConnectionOpened).container_id == "server"


def test_mechanisms_are_an_array_of_symbols_with_anonymous_among_them() -> None:
    """Source: wire contract 1.3."""
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=MECHANISMS)
    server.receive(SASL_HEADER, 0)
    reply = server.data_to_send()
    assert reply.startswith(SASL_HEADER)
    described, _ = decode(reply, 16)
    assert described.descriptor == composites.SASL_MECHANISMS
    assert described.value == [Array.of(Symbol, ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"])]


def test_the_outcome_carries_its_code_as_an_unsigned_byte() -> None:
    """Source: wire contract 1.3."""
    for refusal, code in ((None, b"\x50\x00"), (REFUSAL, b"\x50\x01")):
        server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
        server.receive(SASL_HEADER, 0)
        server.receive(sasl_init("ANONYMOUS"), 0)
        server.data_to_send()
        server.sasl_outcome(refusal)
        assert server.data_to_send()[8:] == b"\x00\x53\x44\xc0\x03\x01" + code
        assert server.closed is (refusal is not None)
        assert server.end_error == (None if refusal is None else EndError(REFUSAL, by_peer=False))


def test_a_failed_client_is_told_and_the_connection_is_over() -> None:
    pair = sasl_pair("PLAIN")
    pair.sasl_refusal = REFUSAL
    pair.client.open()
    at_client, _ = pair.take()
    assert closed_with(at_client) == "amqp:unauthorized-access"
    assert pair.server.closed
    assert pair.client.closed


def test_a_mechanism_that_was_not_offered_fails() -> None:
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("PLAIN",))
    server.receive(SASL_HEADER, 0)
    server.data_to_send()
    events = server.receive(sasl_init("XOAUTH2"), 0)
    assert closed_with(events) == "amqp:unauthorized-access"
    assert server.data_to_send()[8:] == b"\x00\x53\x44\xc0\x03\x01\x50\x01"


def test_a_client_refuses_a_server_without_its_mechanism() -> None:
    pair = Pair(client={"sasl_mechanisms": ("EXTERNAL",)}, server={"sasl_mechanisms": ("PLAIN",)})
    pair.client.open()
    at_client, _ = pair.take()
    assert closed_with(at_client) == "amqp:unauthorized-access"


def test_bytes_pipelined_behind_the_init_wait_for_the_outcome() -> None:
    """Nothing of an unauthenticated peer is read before the owner's word on it."""
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
    rest = AMQP_HEADER + open_frame() + begin()
    events = server.receive(SASL_HEADER + sasl_init("ANONYMOUS") + rest[:20], 0)
    assert [type(event) for event in events] == [SaslInit]
    assert not bool(server.stalled)  # it is the owner that must act; bool() for mypy
    assert server.receive(rest[20:], 0) == []
    server.sasl_outcome()
    assert server.stalled
    assert server.next_deadline_ms() == 0
    events = server.receive(b"", 0)
    assert [type(event) for event in events] == [ConnectionOpened, SessionBegun]
    assert not server.stalled


def test_a_tick_goes_on_after_the_outcome_too() -> None:
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
    server.receive(SASL_HEADER + sasl_init("ANONYMOUS") + AMQP_HEADER + open_frame(), 0)
    server.sasl_outcome()
    assert [type(event) for event in server.tick(0)] == [ConnectionOpened]


def test_bytes_pipelined_behind_a_failed_init_are_never_read() -> None:
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
    server.receive(SASL_HEADER + sasl_init("ANONYMOUS") + AMQP_HEADER + open_frame(), 0)
    server.sasl_outcome(REFUSAL)
    assert not server.stalled
    assert server.receive(b"", 0) == server.receive(open_frame(), 0) == server.tick(10**9) == []
    assert server.next_deadline_ms() is None


def test_too_many_bytes_before_the_outcome_end_the_connection() -> None:
    """Req: R-05"""
    server = Connection(
        "server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",), max_frame_size=512
    )
    server.receive(SASL_HEADER + sasl_init("ANONYMOUS"), 0)
    assert server.receive(bytes(512), 0) == []
    assert closed_with(server.receive(b"\x00", 0)) == "amqp:resource-limit-exceeded"


def test_a_client_may_begin_without_sasl() -> None:
    """Req: T-11. Source: wire contract, correction C1."""
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
    events = server.receive(AMQP_HEADER + open_frame() + begin(), 0)
    assert [type(event) for event in events] == [ConnectionOpened, SessionBegun]
    server.open()
    assert server.data_to_send().startswith(AMQP_HEADER)


def test_sasl_cannot_follow_an_amqp_header() -> None:
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
    assert closed_with(server.receive(AMQP_HEADER + SASL_HEADER, 0)) == "amqp:connection:framing-error"


def test_an_amqp_header_in_answer_to_sasl_ends_a_client_of_ours() -> None:
    """A client that has to log in never goes on without."""
    client = Connection("client", container_id="c", now_ms=0, sasl_mechanisms=("PLAIN",))
    client.open()
    assert closed_with(client.receive(AMQP_HEADER, 0)) == "amqp:connection:framing-error"


@pytest.mark.parametrize(
    ("mechanisms", "sent", "answer"),
    [
        (("ANONYMOUS",), b"AMQP\x00\x00\x09\x01", SASL_HEADER),
        (("ANONYMOUS",), b"AMQP\x02\x01\x00\x00", SASL_HEADER),
        (("ANONYMOUS",), b"GET / HT", SASL_HEADER),
        ((), b"AMQP\x00\x00\x09\x01", AMQP_HEADER),
        ((), SASL_HEADER, AMQP_HEADER),
    ],
)
def test_another_protocol_header_is_answered_with_ours_and_the_end(
    mechanisms: tuple[str, ...], sent: bytes, answer: bytes
) -> None:
    """Source: AMQP 2.2."""
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=mechanisms)
    events = server.receive(sent, 0)
    assert closed_with(events) == "amqp:connection:framing-error"
    assert server.data_to_send() == answer
    assert server.closed


def test_the_open_says_what_the_contract_asks() -> None:
    """Source: wire contract 1.4."""
    server = unopened_server()
    opened = only(server.receive(open_frame(), 0), ConnectionOpened)
    assert opened == ConnectionOpened("client", "host", 65536, 100, 60_000, {})
    server.open()
    ((channel, code, fields, _),) = frames_of(server.data_to_send())
    assert (channel, code) == (0, composites.OPEN)
    assert fields == ["server", None, 65536, 4999, 240_000, None, None, None, None, None]


def test_sparse_opens_get_the_defaults_of_the_specification() -> None:
    server = unopened_server()
    data = frame(0, composite(composites.OPEN, ["only a container-id"]))
    opened = only(server.receive(data, 0), ConnectionOpened)
    assert (opened.max_frame_size, opened.channel_max, opened.idle_timeout_ms) == (4294967295, 65535, None)


def test_an_idle_time_out_of_zero_means_none() -> None:
    server = unopened_server(idle_timeout_ms=None)
    assert only(server.receive(open_frame(_4=UInt(0)), 0), ConnectionOpened).idle_timeout_ms is None
    assert server.next_deadline_ms() is None


@pytest.mark.parametrize(
    ("changes", "condition"),
    [
        ({"_0": None}, "amqp:invalid-field"),
        ({"_0": 5}, "amqp:invalid-field"),
        ({"_0": "x" * 4097}, "amqp:resource-limit-exceeded"),
        ({"_1": "x" * 4097}, "amqp:resource-limit-exceeded"),
        ({"_2": UInt(511)}, "amqp:invalid-field"),
        ({"_2": "big"}, "amqp:invalid-field"),
        ({"_3": UInt(65536)}, "amqp:invalid-field"),
        ({"_4": UInt(99)}, "amqp:not-allowed"),
        ({"_9": {Symbol("k"): "v" * 16384}}, "amqp:resource-limit-exceeded"),
        ({"_9": ["no map"]}, "amqp:invalid-field"),
    ],
)
def test_an_open_beyond_the_limits_is_answered_with_open_and_close(
    changes: dict[str, Any], condition: str
) -> None:
    """Req: R-05"""
    server = unopened_server()
    assert closed_with(server.receive(open_frame(**changes), 0)) == condition
    (_, first, _, _), (_, second, fields, _) = frames_of(server.data_to_send())
    assert (first, second) == (composites.OPEN, composites.CLOSE)
    assert fields[0].value[0] == condition


def test_an_open_at_the_limits_is_taken() -> None:
    """Req: R-05"""
    server = unopened_server()
    changes = {"_0": "x" * 4096, "_1": "x" * 4096, "_2": UInt(512), "_3": UShort(65535), "_4": UInt(100)}
    only(server.receive(open_frame(**changes), 0), ConnectionOpened)


def test_a_client_that_pipelines_open_begin_and_attach_is_answered_in_order() -> None:
    """Source: wire contract 1.4: the Python client does not wait for our open."""
    server = unopened_server()
    events = server.receive(open_frame() + begin(1) + attach(1, Role.SENDER, channel=1), 0)
    assert [type(event) for event in events] == [ConnectionOpened, SessionBegun, LinkAttached]
    assert server.data_to_send() == b""
    server.accept_link(1, 1)
    server.flow(1, 1, 100)
    assert server.data_to_send() == b""  # nothing may go before our open
    server.open()
    codes = [code for _, code, _, _ in frames_of(server.data_to_send())]
    assert codes == [composites.OPEN, composites.BEGIN, composites.ATTACH, composites.FLOW]


def test_a_client_may_pipeline_everything_before_the_handshake() -> None:
    pair = sasl_pair("ANONYMOUS")
    pair.client.open()
    channel = pair.client.begin()
    pair.client.attach(channel, "link", Role.SENDER, Source(address="a"), Target(address="b"))
    at_client, at_server = pair.take()
    assert [type(event) for event in at_client] == [ConnectionOpened, SessionBegun, LinkAttached]
    assert [type(event) for event in at_server] == [
        SaslInit,
        ConnectionOpened,
        SessionBegun,
        LinkAttached,
    ]


def test_closing_is_clean_for_the_one_that_receives_the_close() -> None:
    pair = opened_pair()
    error = AmqpError(CONNECTION_FORCED, "shutting down", {Symbol("k"): "v"})
    pair.server.close(error)
    at_client, at_server = pair.take()
    assert at_client == [ConnectionClosed(error, clean=True)]
    assert at_server == [ConnectionClosed(None, clean=True)]
    assert pair.client.closed
    assert pair.server.closed


def test_a_server_may_close_instead_of_opening() -> None:
    server = unopened_server()
    server.receive(open_frame() + begin(), 0)
    server.close(AmqpError("amqp:not-found", "no such namespace"))
    codes = [code for _, code, _, _ in frames_of(server.data_to_send())]
    assert codes == [composites.OPEN, composites.CLOSE]
    server.open()  # too late, and harmless
    assert server.data_to_send() == b""


def test_nothing_is_sent_after_our_close_and_frames_that_cross_it_are_read_over() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER, credit=5)
    pair.to_client = b""
    pair.server.disposition(channel, Role.RECEIVER, 0, 0, None)
    pair.server.close()
    pair.server.send(channel, handle, b"tag", b"late")
    pair.server.disposition(channel, Role.RECEIVER, 0, 0, None)
    pair.client.detach(channel, handle)
    pair.client.end(channel)
    at_client, at_server = pair.take()
    assert at_client == [ConnectionClosed(None, clean=True)]
    assert at_server == [ConnectionClosed(None, clean=True)]
    codes = [code for _, code, _, _ in frames_of(pair.to_client)]
    assert codes == [composites.DISPOSITION, composites.CLOSE]


def test_deliveries_and_settlements_wait_for_our_open_too() -> None:
    server = unopened_server()
    pipelined = open_frame() + begin() + attach(0, Role.RECEIVER) + attach(1, Role.SENDER)
    server.receive(pipelined + flow(0, credit=5) + transfer(1, 0, b"x"), 0)
    server.accept_link(0, 0)
    server.accept_link(0, 1)
    server.send(0, 0, b"t", b"x")
    server.disposition(0, Role.RECEIVER, 0, 0, ACCEPTED)
    assert server.data_to_send() == b""
    assert server.pending_bytes > 0
    server.open()
    codes = [code for _, code, _, _ in frames_of(server.data_to_send())]
    assert codes[0] == composites.OPEN
    assert sorted(codes[1:]) == sorted(
        [composites.BEGIN, composites.ATTACH, composites.ATTACH, composites.TRANSFER, composites.DISPOSITION]
    )
    assert server.pending_bytes == 0


def test_a_close_before_the_headers_just_ends() -> None:
    client = Connection("client", container_id="c", now_ms=0)
    client.close()
    assert client.closed
    assert client.data_to_send() == b""


def test_the_end_of_the_stream_without_close_is_not_clean() -> None:
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    assert server.eof(5) == [ConnectionClosed(None, clean=False)]
    assert server.eof(6) == server.receive(begin(1), 6) == []


def test_the_end_of_the_stream_after_close_is_nothing_new() -> None:
    server = bare_server()
    assert only(server.receive(frame(0, encode_close(None)), 0), ConnectionClosed).clean
    assert server.eof(5) == []


def test_calls_after_the_end_do_nothing() -> None:
    """The owner works through its list of events and cannot know yet that the last one is the end."""
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER) + frame(0, encode_close(None)), 0)
    server.data_to_send()
    server.accept_link(0, 0)
    server.flow(0, 0, 100)
    server.disposition(0, Role.RECEIVER, 0, 0, None)
    server.detach(0, 0)
    server.end(0)
    server.drained(0, 0)
    server.refuse_link(0, 0, AmqpError("amqp:not-found"))
    server.close()
    server.open()
    server.sasl_outcome()
    assert server.send(0, 0, b"t", b"x") == -1
    assert server.credit(0, 0) == 0
    assert server.data_to_send() == b""


@pytest.mark.parametrize("byte_count", [1, 3, 7])
def test_a_stream_cut_anywhere_before_the_open_waits(byte_count: int) -> None:
    server = Connection("server", container_id="s", now_ms=0)
    assert server.receive(AMQP_HEADER[:byte_count], 0) == []
    server.receive(AMQP_HEADER[byte_count:], 0)
    assert server.data_to_send() == AMQP_HEADER


def test_misuse_by_the_owner_is_a_local_error() -> None:
    pair = opened_pair()
    with pytest.raises(LocalProtocolError):
        pair.client.open()
    with pytest.raises(LocalProtocolError):
        pair.server.open()
    with pytest.raises(LocalProtocolError):
        pair.server.begin()
    with pytest.raises(LocalProtocolError):
        pair.server.attach(0, "x", Role.SENDER, None, None)
    with pytest.raises(LocalProtocolError):
        pair.server.sasl_outcome()
    with pytest.raises(LocalProtocolError):
        Connection("server", container_id="s", now_ms=0).open()
    with pytest.raises(ValueError, match="neither"):
        Connection("proxy", container_id="s", now_ms=0)  # type: ignore[arg-type]  # that is the point


def test_a_client_that_has_begun_to_open_does_not_open_twice() -> None:
    client = Connection("client", container_id="c", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
    client.open()
    with pytest.raises(LocalProtocolError):
        client.open()


def test_a_second_connection_is_untouched_by_the_fault_of_the_first() -> None:
    """Req: R-05"""
    first, second = opened_pair(), opened_pair()
    channel, handle = second.attach(Role.SENDER, credit=1)
    closed_with(first.server.receive(b"\xff" * 64, 0))
    second.client.send(channel, handle, b"t", b"still here")
    _, at_server = second.take()
    assert len(at_server) == 1


def test_a_frame_that_does_not_fit_the_peer_ends_the_connection_with_its_condition() -> None:
    server = Connection("server", container_id="s", now_ms=0)
    server.receive(AMQP_HEADER + open_frame(_2=UInt(512)) + begin() + attach(0, Role.SENDER), 0)
    server.open()
    server.accept_link(0, 0, properties={Symbol("k"): "v" * 600})
    assert server.next_deadline_ms() == 0
    assert closed_with(server.tick(0)) == "amqp:frame-size-too-small"
    assert [code for _, code, _, _ in frames_of(server.data_to_send())][-1] == composites.CLOSE


def test_a_close_is_shortened_to_fit_the_peer() -> None:
    server = Connection("server", container_id="s", now_ms=0)
    server.receive(AMQP_HEADER + open_frame(_2=UInt(512)), 0)
    server.open()
    server.close(AmqpError("amqp:internal-error", "x" * 1000))
    _, code, fields, _ = frames_of(server.data_to_send())[-1]
    assert code == composites.CLOSE
    assert fields[0].value == ["amqp:internal-error", "", None]


def test_limits_can_be_set() -> None:
    """Req: R-05"""
    server = Connection("server", container_id="s", now_ms=0, limits=Limits(name_length=3))
    server.receive(AMQP_HEADER, 0)
    data = frame(0, encode_open("abcd", None, 512, 1, None, None))
    assert closed_with(server.receive(data, 0)) == "amqp:resource-limit-exceeded"
