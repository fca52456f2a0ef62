"""The connection itself: SASL, open, its end and its deadlines."""

from __future__ import annotations

import pytest

from peeklock.amqp.connection import Connection
from peeklock.amqp.events import ConnectionClosed, ConnectionOpened, LinkDetached
from peeklock.amqp.types import Role
from peeklock.auth import Authority, OpenAuthority, Right, SasRule, generate
from peeklock.broker.vocabulary.commands import (
    CloseLink,
    Complete,
    DropConnection,
    LookUp,
    OpenSender,
    Peek,
    Send,
)
from peeklock.broker.vocabulary.effects import Accepted, Drained, EntityFound, MessagesFound
from peeklock.gateway.admission import SASL_MECHANISMS
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from tests.gateway.harness import CONNECTION_ID, KEY, KEY_NAME, Harness, message_bytes, view_of_queue

NOW_MS = 1_700_000_000_000
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"


def gateway_for(authority: Authority) -> Gateway:
    return Gateway(
        CONNECTION_ID,
        namespaces=OneNamespace(authority),
        tracking=lambda: "id",
        log=lambda event, fields: None,
        now_ms=NOW_MS,
    )


def talk(gateway: Gateway, client: Connection) -> list[object]:
    """Carry bytes until both ends are silent, and give the client's events."""
    events: list[object] = []
    while True:
        up = client.data_to_send()
        gateway.receive(up, NOW_MS)
        down = gateway.data_to_send()
        if not up and not down:
            return events
        events += client.receive(down, NOW_MS)


def client_with(
    mechanism: str = "ANONYMOUS", response: bytes = b"", hostname: str | None = "localhost"
) -> Connection:
    client = Connection(
        "client",
        container_id="test",
        hostname=hostname,
        now_ms=NOW_MS,
        sasl_mechanisms=(mechanism,),
        sasl_response=response,
        idle_timeout_ms=None,
    )
    client.open()
    return client


# SASL and open


def test_the_mechanisms_are_an_array_of_symbols_with_anonymous_in_it() -> None:
    """Req: T-11. Python refuses to go on without ANONYMOUS. Source: wire contract 1.3."""
    gateway = gateway_for(Authority())
    gateway.receive(SASL_HEADER, NOW_MS)
    sent = gateway.data_to_send()
    assert sent.startswith(SASL_HEADER)
    assert b"\x00\x53\x40" in sent
    names = b"".join(bytes([len(name)]) + name.encode() for name in SASL_MECHANISMS)
    assert b"\xa3" + names in sent
    assert SASL_MECHANISMS == ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS", "EXTERNAL"])
@pytest.mark.parametrize("response", [b"", b"trace"])
def test_anyone_may_connect_and_authorise_by_cbs(mechanism: str, response: bytes) -> None:
    """Req: T-11. Source: wire contract 1.3."""
    rig = Harness(mechanism=mechanism, response=response)
    opened = rig.take_event(ConnectionOpened)
    assert (opened.max_frame_size, opened.channel_max, opened.idle_timeout_ms) == (65536, 4999, 240_000)
    assert b"\x00\x53\x44\xc0\x03\x01\x50\x00" in rig.sent  # sasl-outcome, code 0 as ubyte
    assert not rig.gateway.closing


def test_a_client_without_sasl_authorises_by_cbs() -> None:
    """Req: T-11. Source: wire contract C1: JavaScript with a SharedAccessSignature sends no SASL header."""
    rig = Harness(mechanism=None)
    assert rig.sent.startswith(AMQP_HEADER)
    rig.take_event(ConnectionOpened)
    rig.attach(Role.SENDER, "orders")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"
    sender, _ = rig.pair("$cbs")
    token = generate("sb://localhost/orders", KEY_NAME, KEY, rig.clock.now_ms + 60_000)
    rig.put_token(sender, "sb://localhost/orders", token)
    rig.effect(EntityFound(rig.take(LookUp).reply_to, view_of_queue()))
    assert rig.response().status == 202
    rig.attach(Role.SENDER, "orders")
    rig.take(OpenSender)


def test_a_client_without_sasl_needs_no_claim_where_anybody_may() -> None:
    """Req: T-11. Source: wire contract C1."""
    rig = Harness(mechanism=None, authority=OpenAuthority())
    rig.attach(Role.SENDER, "orders")
    rig.take(OpenSender)


def test_plain_authorises_the_connection_without_cbs() -> None:
    """Req: R-04. Source: wire contract 1.3."""
    rig = Harness(mechanism="PLAIN")
    rig.attach(Role.SENDER, "orders")
    rig.take(OpenSender)
    rig = Harness(
        mechanism="PLAIN",
        response=b"\0sender\0second",
        authority=Authority([SasRule("sender", "first", "second", frozenset({Right.SEND}), "orders")]),
    )
    rig.attach(Role.SENDER, "orders")
    rig.take(OpenSender)
    for role, address in ((Role.RECEIVER, "orders"), (Role.SENDER, "invoices")):
        rig.attach(role, address)
        assert str(rig.refusal().condition) == "amqp:unauthorized-access"


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"\0",
        f"\0{KEY_NAME}\0wrong".encode(),
        f"\0nobody\0{KEY}".encode(),
        f"\0{KEY_NAME}\0{KEY}\0more".encode(),
        f"{KEY_NAME}\0{KEY}".encode(),
        b"\0\xff\0\xff",
        b"\0" + b"n" * 2000 + b"\0k",
    ],
)
def test_a_wrong_plain_ends_the_connection_with_outcome_1(response: bytes) -> None:
    """Req: R-04. The key appears in no log line. Source: wire contract 1.3."""
    rig = Harness(mechanism="PLAIN", response=response, opened=False)
    assert rig.sent.endswith(b"\x00\x53\x44\xc0\x03\x01\x50\x01")
    assert rig.gateway.closing
    [(event, fields)] = rig.logged
    assert event == "refused"
    assert KEY not in repr(fields)
    assert "wrong" not in repr(fields)


def test_an_unknown_mechanism_is_refused() -> None:
    """Req: R-04."""
    rig = Harness(mechanism="SCRAM-SHA-256", opened=False)
    assert not any(isinstance(event, ConnectionOpened) for event in rig.events)
    assert rig.gateway.closing or rig.commands == []


# Who shows no claim


def pass_time(gateway: Gateway, until_ms: int) -> list[object]:
    """Tick when the gateway asks for it, up to an instant and at it."""
    commands: list[object] = []
    while (due := gateway.next_deadline_ms()) is not None and due <= until_ms:
        commands += gateway.tick(due)
    return commands


HALVES = [
    SASL_HEADER[:4],
    SASL_HEADER,
    SASL_HEADER + bytes.fromhex("00000019 02010000 005341 c0 0c 01 a3"),  # a sasl-init without its end
    SASL_HEADER + bytes.fromhex("00000019 02010000 005341 c0 0c 01 a3 09") + b"ANONYMOUS" + AMQP_HEADER,
]


@pytest.mark.parametrize("first", HALVES, ids=["half a header", "header", "half an init", "no open"])
def test_a_peer_that_does_not_get_as_far_as_open_is_given_up_although_it_says_something(first: bytes) -> None:
    """Req: R-05. Silence alone has a limit of its own, which each byte starts anew."""
    gateway = gateway_for(Authority([SasRule(KEY_NAME, KEY)]))
    assert gateway.receive(first, NOW_MS) == []
    assert pass_time(gateway, NOW_MS + 59_999) == []
    assert not bool(gateway.closing)  # bool(): else mypy takes the later one for impossible
    assert pass_time(gateway, NOW_MS + 60_000) == []
    assert gateway.closing
    assert all(not command.broken for command in gateway.eof(NOW_MS) if isinstance(command, DropConnection))


@pytest.mark.parametrize("mechanism", [None, "ANONYMOUS"])
def test_a_connection_without_a_claim_is_closed_with_what_to_do(mechanism: str | None) -> None:
    """Req: R-05. It sends all the time. Source: wire contract 1.6 (20 s there; 60 s are our choice), C1."""
    rig = Harness(mechanism=mechanism)
    sender, _ = rig.pair("$cbs")
    began = rig.clock.now_ms
    while rig.clock.now_ms < began + 50_000:
        rig.clock.now_ms += 10_000
        rig.commands += rig.gateway.tick(rig.clock.now_ms)
        rig.put_token(sender, "sb://localhost/orders", "SharedAccessSignature sr=x&sig=x&se=1&skn=x")
    assert not bool(rig.gateway.closing)  # bool(): else mypy takes the later one for impossible
    rig.logged.clear()
    rig.clock.now_ms = began + 60_000
    rig.commands += rig.gateway.tick(rig.clock.now_ms)
    assert rig.gateway.closing
    rig.pump()
    error = rig.take_event(ConnectionClosed).error
    assert error is not None
    assert str(error.condition) == "amqp:connection:forced"
    assert "put a token on '$cbs', or log in with SASL PLAIN" in error.description
    [(event, fields)] = rig.logged
    assert event == "refused"
    assert str(fields["tracking_id"]) in error.description
    rig.commands += rig.gateway.eof(rig.clock.now_ms)
    assert not rig.take(DropConnection).broken


@pytest.mark.parametrize("mechanism", ["PLAIN", "ANONYMOUS"])
def test_a_claim_in_time_keeps_the_connection_also_when_it_has_run_out(mechanism: str) -> None:
    """Req: R-05. Then its links are gone, and it may put another token. Source: wire contract 1.7."""
    rig = Harness(mechanism=mechanism)
    if mechanism == "ANONYMOUS":
        sender, _ = rig.pair("$cbs")
        rig.clock.now_ms += 59_999
        token = generate("sb://localhost/", KEY_NAME, KEY, rig.clock.now_ms + 30_000)
        rig.put_token(sender, "sb://localhost/", token)
    assert pass_time(rig.gateway, rig.clock.now_ms + 120_000) == []
    assert not rig.gateway.closing


# The end of a connection


def test_a_connection_that_is_closed_leaves_its_locks_alone() -> None:
    """Req: L-13."""
    rig = Harness()
    rig.sender()
    rig.client.close()
    rig.pump()
    [command] = rig.commands
    assert isinstance(command, DropConnection)
    assert (command.connection_id, command.broken) == (CONNECTION_ID, False)
    assert rig.gateway.closing
    assert rig.gateway.eof(rig.clock.now_ms) == []
    assert rig.gateway.receive(b"more", rig.clock.now_ms) == []


def test_a_connection_that_breaks_drops_its_locks() -> None:
    """Req: L-13. End of stream without close."""
    rig = Harness()
    rig.sender()
    [command] = rig.gateway.eof(rig.clock.now_ms)
    assert isinstance(command, DropConnection)
    assert (command.connection_id, command.broken) == (CONNECTION_ID, True)
    assert rig.gateway.closing
    assert rig.gateway.eof(rig.clock.now_ms) == []


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x03\x02\x00\x00\x00"]
)
def test_a_peer_that_breaks_the_protocol_loses_its_locks(garbage: bytes) -> None:
    """Req: L-13, R-05."""
    rig = Harness()
    rig.sender()
    [command] = rig.gateway.receive(garbage, rig.clock.now_ms)
    assert isinstance(command, DropConnection)
    assert command.broken
    assert b"\x00\x53\x18" in rig.gateway.data_to_send()  # close, with the reason
    assert rig.gateway.closing
    assert rig.logged[-1][0] == "connection closed"


def test_a_peer_that_is_silent_too_long_loses_its_locks() -> None:
    """Req: L-13. Source: wire contract 1.4, 1.6."""
    rig = Harness()
    rig.sender()
    start = rig.clock.now_ms
    commands = []
    for _ in range(100):
        due = rig.gateway.next_deadline_ms()
        assert due is not None
        rig.clock.now_ms = max(rig.clock.now_ms, due)
        commands = rig.gateway.tick(rig.clock.now_ms)
        if commands:
            break
    assert 240_000 <= rig.clock.now_ms - start <= 500_000
    [command] = commands
    assert isinstance(command, DropConnection)
    assert command.broken
    assert rig.gateway.closing


def test_links_closed_before_the_connection_broke_were_closed_properly() -> None:
    """Req: L-13. Even if the peer then vanishes."""
    rig = Harness()
    handle, opened = rig.receiver(credit=1)
    rig.commands.clear()
    rig.client.detach(rig.channel, handle)
    rig.pump()
    assert rig.take(CloseLink).link == opened.link
    rig.client.end(rig.channel)
    rig.pump()
    [command] = rig.gateway.eof(rig.clock.now_ms)
    assert isinstance(command, DropConnection)


def test_a_detach_after_the_end_of_its_session_is_read_over() -> None:
    """The Python client ends its session, detaches the session's links, then closes: all of it properly.

    Req: L-13.
    """
    rig = Harness()
    rig.sender()
    rig.client.end(rig.channel)
    rig.pump()
    detach = bytes.fromhex("00000011 02000000 005316 c0 04 03 43 41 40")  # handle 0, closed, no error
    commands = rig.gateway.receive(detach, rig.clock.now_ms)
    assert commands == []
    assert not rig.gateway.closing
    rig.client.close()
    rig.pump()
    assert not rig.take(DropConnection).broken


def test_shutting_down_tells_the_client_and_leaves_locks_alone() -> None:
    """Req: L-13. Clients come back with a back-off. Source: wire contract 2.9."""
    rig = Harness()
    rig.sender()
    rig.gateway.shutdown(rig.clock.now_ms)
    assert rig.gateway.closing
    rig.pump()
    closed = rig.take_event(ConnectionClosed)
    assert closed.error is not None
    assert str(closed.error.condition) == "amqp:connection:forced"
    rig.commands += rig.gateway.eof(rig.clock.now_ms)
    assert not rig.take(DropConnection).broken
    rig.gateway.shutdown(rig.clock.now_ms)
    assert rig.gateway.data_to_send() == b""


def test_effects_after_the_end_are_dropped() -> None:
    """Req: R-05."""
    rig = Harness()
    rig.transfer(rig.sender(), message_bytes())
    send = rig.take(Send)
    rig.gateway.eof(rig.clock.now_ms)
    assert send.reply_to is not None
    rig.gateway.handle([Accepted(send.reply_to)], lambda message: None, rig.clock.now_ms)
    assert rig.gateway.data_to_send() == b""
    assert rig.gateway.uncommitted_bytes == 0
    assert rig.gateway.bodies_wanted() == set()


def test_effects_after_our_close_do_no_harm() -> None:
    """Req: R-05. What was under way when the broker stopped still comes; nothing follows a close on the
    wire."""
    rig = Harness()
    rig.transfer(rig.sender(), message_bytes())
    send = rig.take(Send)
    _, opened = rig.receiver(credit=5)
    sender, _ = rig.pair("orders/$management")
    rig.request(sender, "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": 1})
    peek = rig.take(Peek)
    rig.gateway.shutdown(rig.clock.now_ms)
    rig.gateway.data_to_send()
    assert send.reply_to is not None
    late = rig.deliver(opened.link, message_bytes())
    for effect in (Accepted(send.reply_to), late, Drained(opened.link), MessagesFound(peek.reply_to, [])):
        rig.gateway.handle([effect], lambda message: rig.payloads.get(message.body_row), rig.clock.now_ms)
    assert rig.gateway.data_to_send() == b""


def test_a_session_that_ends_closes_its_links_one_by_one() -> None:
    """Req: L-13."""
    rig = Harness()
    rig.sender()
    _, opened = rig.receiver(credit=1)
    rig.effect(rig.deliver(opened.link, message_bytes()))
    rig.commands.clear()
    rig.client.end(rig.channel)
    rig.pump()
    assert [type(command) for command in rig.commands] == [CloseLink, CloseLink]
    assert not any(isinstance(event, LinkDetached) and event.error for event in rig.events)
    rig.channel = rig.client.begin()
    rig.pump()
    rig.commands.clear()
    rig.settle(0, 0, None, settled=True)
    assert not any(isinstance(command, Complete) for command in rig.commands)


def test_limits_have_sensible_defaults() -> None:
    """Req: R-05. Source: wire contract 1.7, 2.7; architecture, back-pressure."""
    limits = GatewayLimits()
    assert (limits.link_credit, limits.request_credit, limits.output_bytes_max) == (1000, 100, 1 << 20)
