"""Every performative in every state: what is legal, what ends the connection and with which condition."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.connection import UNLIMITED_UNITS, Connection
from peeklock.amqp.errors import AmqpError, LocalProtocolError
from peeklock.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    DeliveryOversized,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SaslInit,
    SessionBegun,
    SessionEnded,
)
from peeklock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, Limits, frame
from peeklock.amqp.performatives import ACCEPTED, encode_open
from peeklock.amqp.types import Array, Role, Symbol, UByte, UInt
from tests.amqp.pair import attach, bare_server, begin, closed_with, transfer

NULL_FIELDS: dict[str, bytes] = {
    "open": frame(0, encode_open("client", None, 65536, 100, None, None)),
    "begin": begin(),
    "attach": attach(0, Role.SENDER),
    "flow": frame(0, composite(composites.FLOW, [UInt(0), UInt(9), UInt(0), UInt(9)])),
    "transfer": transfer(0, 0, b"x"),
    "disposition": frame(0, composite(composites.DISPOSITION, [True, UInt(0)])),
    "detach": frame(0, composite(composites.DETACH, [UInt(0), True])),
    "end": frame(0, composite(composites.END, [])),
    "close": frame(0, composite(composites.CLOSE, [])),
}
SASL_FRAMES: dict[str, bytes] = {
    "sasl-mechanisms": frame(
        0, composite(composites.SASL_MECHANISMS, [Array.of(Symbol, ["PLAIN"])]), SASL_FRAME
    ),
    "sasl-init": frame(0, composite(composites.SASL_INIT, [Symbol("ANONYMOUS")]), SASL_FRAME),
    "sasl-challenge": frame(0, composite(composites.SASL_CHALLENGE, [b"c"]), SASL_FRAME),
    "sasl-response": frame(0, composite(composites.SASL_RESPONSE, [b"r"]), SASL_FRAME),
    "sasl-outcome": frame(0, composite(composites.SASL_OUTCOME, [UByte(0)]), SASL_FRAME),
}
FRAMES = NULL_FIELDS | SASL_FRAMES


def _sasl_server() -> Connection:
    return Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("ANONYMOUS",))


def _in_sasl() -> Connection:
    server = _sasl_server()
    server.receive(SASL_HEADER, 0)
    return server


def _awaiting_open() -> Connection:
    server = Connection("server", container_id="s", now_ms=0)
    server.receive(AMQP_HEADER, 0)
    return server


def _with_session() -> Connection:
    server = bare_server()
    server.receive(begin(), 0)
    return server


def _with_ended_session() -> Connection:
    server = _with_session()
    server.receive(NULL_FIELDS["end"], 0)
    return server


def _with_link() -> Connection:
    server = _with_session()
    server.receive(attach(0, Role.SENDER), 0)
    server.accept_link(0, 0)
    return server


def _discarding() -> Connection:
    server = _with_link()
    server.end(0)
    return server


def _close_sent() -> Connection:
    server = _with_link()
    server.close()
    return server


def _closed() -> Connection:
    server = _with_link()
    server.eof(0)
    return server


FRAMING = "amqp:connection:framing-error"
ILLEGAL = "amqp:illegal-state"
NOTHING: list[type] = []

# state: how to get there, what its legal frames give, and the condition for any other frame by kind.
STATES: dict[str, tuple[Callable[[], Connection], dict[str, list[type]], str, str]] = {
    "SASL header": (_sasl_server, {}, FRAMING, FRAMING),
    "SASL": (_in_sasl, {"sasl-init": [SaslInit]}, FRAMING, ILLEGAL),
    "AMQP header": (lambda: Connection("server", container_id="s", now_ms=0), {}, FRAMING, FRAMING),
    "await open": (
        _awaiting_open,
        {"open": [ConnectionOpened], "close": [ConnectionClosed]},
        ILLEGAL,
        FRAMING,
    ),
    "open, no session": (
        bare_server,
        # The Python client detaches the links of a session it has ended already.
        {"begin": [SessionBegun], "detach": NOTHING, "close": [ConnectionClosed]},
        ILLEGAL,
        FRAMING,
    ),
    "open, session ended by the peer": (
        _with_ended_session,
        {
            "begin": [SessionBegun],
            "attach": NOTHING,
            "flow": NOTHING,
            "disposition": NOTHING,
            "transfer": NOTHING,
            "detach": NOTHING,
            "end": NOTHING,
            "close": [ConnectionClosed],
        },
        ILLEGAL,
        FRAMING,
    ),
    "session, no link": (
        _with_session,
        {
            "attach": [LinkAttached],
            "flow": NOTHING,
            "disposition": NOTHING,
            "transfer": [SessionEnded],
            "detach": [SessionEnded],
            "end": [SessionEnded],
            "close": [ConnectionClosed],
        },
        ILLEGAL,
        FRAMING,
    ),
    "link": (
        _with_link,
        {
            "attach": [LinkDetached, SessionEnded],
            "flow": NOTHING,
            "disposition": NOTHING,
            "transfer": [DeliveryReceived],
            "detach": [LinkDetached],
            "end": [LinkDetached, SessionEnded],
            "close": [ConnectionClosed],
        },
        ILLEGAL,
        FRAMING,
    ),
    "discarding": (
        _discarding,
        {
            "begin": [SessionBegun],
            "attach": NOTHING,
            "flow": NOTHING,
            "disposition": NOTHING,
            "transfer": NOTHING,
            "detach": NOTHING,
            "end": NOTHING,
            "close": [ConnectionClosed],
        },
        ILLEGAL,
        FRAMING,
    ),
    "close sent": (
        _close_sent,
        {name: [ConnectionClosed] if name == "close" else NOTHING for name in NULL_FIELDS},
        ILLEGAL,
        FRAMING,
    ),
    "closed": (_closed, dict.fromkeys(FRAMES, NOTHING), ILLEGAL, FRAMING),
}


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("state", STATES)
def test_a_performative_in_a_state_is_legal_or_ends_the_connection(state: str, name: str) -> None:
    """Req: R-05"""
    reach, legal, amqp_condition, sasl_condition = STATES[state]
    server = reach()
    server.data_to_send()
    events = server.receive(FRAMES[name], 0)
    if name in legal:
        assert [type(event) for event in events] == legal[name]
        assert not [event for event in events if isinstance(event, ConnectionClosed) and not event.clean]
    else:
        assert closed_with(events) == (amqp_condition if name in NULL_FIELDS else sasl_condition)
        assert server.closed


@pytest.mark.parametrize("name", SASL_FRAMES)
@pytest.mark.parametrize("received", [[], ["sasl-mechanisms"]])
def test_a_client_takes_sasl_frames_in_their_order_only(name: str, received: list[str]) -> None:
    client = Connection("client", container_id="c", now_ms=0, sasl_mechanisms=("PLAIN",))
    client.open()
    client.receive(SASL_HEADER + b"".join(SASL_FRAMES[earlier] for earlier in received), 0)
    client.data_to_send()
    events = client.receive(SASL_FRAMES[name], 0)
    if name == ("sasl-outcome" if received else "sasl-mechanisms"):
        assert events == []
        assert client.data_to_send() != b""
    else:
        assert closed_with(events) == ILLEGAL


class Grammar:
    """Checks that events come as the engine promises: nothing of what is not there, one end a begin."""

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self.links: dict[tuple[int, int], Role] = {}
        self.closed = False

    def check(self, event: Event) -> None:
        assert not self.closed
        if isinstance(event, SessionBegun):
            assert event.channel not in self.sessions
            self.sessions.add(event.channel)
        elif isinstance(event, LinkAttached):
            assert event.channel in self.sessions
            assert (event.channel, event.handle) not in self.links
            self.links[event.channel, event.handle] = event.role
        elif isinstance(event, LinkDetached):
            del self.links[event.channel, event.handle]
        elif isinstance(event, SessionEnded):
            self.sessions.remove(event.channel)
            assert all(channel != event.channel for channel, _ in self.links)
        elif isinstance(event, (DeliveryReceived, DeliveryOversized)):
            assert self.links[event.channel, event.handle] is Role.SENDER
        elif isinstance(event, LinkFlow):
            assert self.links[event.channel, event.handle] is Role.RECEIVER
            assert event.credit >= 0
        elif isinstance(event, DispositionReceived):
            assert event.channel in self.sessions
        elif isinstance(event, ConnectionClosed):
            self.closed = True

    def forget(self, channel: int, handle: int) -> None:
        """The owner has detached the link: no event says so."""
        self.links.pop((channel, handle), None)

    def forget_session(self, channel: int) -> None:
        self.sessions.discard(channel)
        self.links = {key: role for key, role in self.links.items() if key[0] != channel}


channels = st.integers(0, 1)
handles = st.integers(0, 2)
small = st.integers(0, 6)


def _peer_flow(channel: int, handle: int | None, credit: int, drain: bool) -> bytes:
    fields: list[Any] = [UInt(credit), UInt(5), UInt(0), UInt(9)]
    if handle is not None:
        fields += [UInt(handle), UInt(0), UInt(credit), None, drain, True]
    return frame(channel, composite(composites.FLOW, fields))


peer_frames = st.one_of(
    st.builds(begin, channels),
    st.builds(lambda channel: frame(channel, composite(composites.END, [])), channels),
    st.builds(
        lambda channel, handle, role: attach(handle, role, channel=channel),
        channels,
        handles,
        st.sampled_from(Role),
    ),
    st.builds(
        lambda channel, handle, closed: frame(channel, composite(composites.DETACH, [UInt(handle), closed])),
        channels,
        handles,
        st.booleans(),
    ),
    st.builds(
        lambda channel, handle, identifier, more, aborted: transfer(
            handle, identifier, b"x" * 50, channel=channel, more=more, aborted=aborted
        ),
        channels,
        handles,
        small,
        st.booleans(),
        st.booleans(),
    ),
    st.builds(_peer_flow, channels, st.none() | handles, small, st.booleans()),
    st.builds(
        lambda channel, receiver, first, last: frame(
            channel, composite(composites.DISPOSITION, [receiver, UInt(first), UInt(last), True])
        ),
        channels,
        st.booleans(),
        small,
        small,
    ),
)
owner_calls = st.tuples(
    st.sampled_from(
        ["accept", "refuse", "detach", "end", "flow", "send", "drained", "settle", "write", "tick"]
    ),
    channels,
    handles,
)


def act(server: Connection, grammar: Grammar, call: str, channel: int, handle: int) -> None:
    """Do what an owner might, rightly or wrongly."""
    if call == "accept":
        server.accept_link(channel, handle, max_message_size=90)
    elif call == "refuse":
        server.refuse_link(channel, handle, AmqpError("amqp:not-found"))
        grammar.forget(channel, handle)
    elif call == "detach":
        server.detach(channel, handle)
        grammar.forget(channel, handle)
    elif call == "end":
        server.end(channel)
        grammar.forget_session(channel)
    elif call == "flow":
        server.flow(channel, handle, 5)
    elif call == "send":
        if server.credit(channel, handle):
            server.send(channel, handle, b"t", b"y" * 600)
    elif call == "drained":
        server.drained(channel, handle)
    elif call == "settle":
        server.disposition(channel, Role.RECEIVER, handle, handle, ACCEPTED)
    elif call == "write":
        server.data_to_send()
    else:
        server.tick(0)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.one_of(peer_frames, owner_calls), max_size=40))
def test_any_order_of_frames_and_calls_keeps_the_grammar_of_events(steps: list[Any]) -> None:
    """Req: R-05"""
    server = bare_server(Limits(incoming_window=8))
    grammar = Grammar()
    for step in steps:
        if isinstance(step, bytes):
            for event in server.receive(step, 0):
                grammar.check(event)
        else:
            with contextlib.suppress(LocalProtocolError):
                act(server, grammar, *step)
    assert server.stalled is False
    assert server.pending_bytes >= 0


@settings(deadline=None, max_examples=100)
@given(st.lists(peer_frames, max_size=30), st.data())
def test_frames_give_the_same_events_alone_or_in_one_batch(steps: list[bytes], data: st.DataObject) -> None:
    """An owner that answers each event at once sees the same either way, also when it reads in slices."""
    alone, together = bare_server(), bare_server()

    def feed(server: Connection, pieces: list[bytes], units: int = UNLIMITED_UNITS) -> list[Event]:
        seen: list[Event] = []

        def take(events: list[Event]) -> None:
            seen.extend(events)
            for event in events:
                if isinstance(event, LinkAttached):
                    server.accept_link(event.channel, event.handle, max_message_size=1000)

        for piece in pieces:
            take(server.receive(piece, 0, units))
            while server.unread:
                take(server.receive(b"", 0, units))
        return seen

    whole = b"".join(steps)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    bytewise = [whole[at : at + 1] for at in range(len(whole))]
    expected = feed(alone, steps)
    assert feed(together, [whole]) == expected
    assert feed(bare_server(), pieces) == expected
    assert feed(bare_server(), bytewise) == expected
    units = data.draw(st.integers(1, 30))
    assert feed(bare_server(), [whole], units) == expected
    assert feed(bare_server(), pieces, units) == expected
