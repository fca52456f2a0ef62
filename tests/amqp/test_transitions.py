"""The lives of links and sessions: frames reach each row of the tables, and no other state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from peeklock.amqp.connection import Connection
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.link import Link
from peeklock.amqp.performatives import Source, Target
from peeklock.amqp.session import Session
from peeklock.amqp.states import (
    LINK_TRANSITIONS,
    SESSION_TRANSITIONS,
    LinkMove,
    LinkState,
    SessionMove,
    SessionState,
)
from peeklock.amqp.types import Role
from tests.amqp.pair import Pair, opened_pair

GONE = AmqpError("amqp:not-found", "gone")


class Ends:
    """A client and a server with one session, and a link that is not answered yet."""

    def __init__(self) -> None:
        self.pair: Pair = opened_pair()
        self.pair.on_attach = lambda event: None
        self.channel = self.pair.client.begin()
        self.pair.exchange()
        self.handle = self.pair.client.attach(
            self.channel, "link", Role.SENDER, Source(address="source"), Target(address="target")
        )
        self.client = self._links(self.pair.client)[self.handle]
        self.pair.exchange()
        self.server = self._links(self.pair.server)[self.handle]

    def _links(self, connection: Connection) -> dict[int, Link]:
        return session_of(connection, self.channel).links.by_handle

    def accept(self) -> None:
        self.pair.server.accept_link(self.channel, self.handle)

    def detach(self, connection: Connection) -> None:
        connection.detach(self.channel, self.handle)

    def accepted(self) -> Ends:
        self.accept()
        self.pair.exchange()
        return self


def session_of(connection: Connection, channel: int) -> Session:
    found = connection._sessions.by_channel[channel]
    assert isinstance(found, Session)
    return found


def _crossing(ends: Ends) -> None:
    ends.detach(ends.pair.client)
    assert ends.client.state is LinkState.DETACH_SENT
    ends.accepted()


# (state, move): the call that makes the move, and the end of the link to check.
LINKS: dict[tuple[LinkState, LinkMove], tuple[Callable[[], Ends], Callable[[Ends], Any], str]] = {
    (LinkState.PENDING, LinkMove.ACCEPT): (Ends, Ends.accept, "server"),
    (LinkState.PENDING, LinkMove.DETACH): (
        Ends,
        lambda ends: ends.pair.server.refuse_link(ends.channel, ends.handle, GONE),
        "server",
    ),
    (LinkState.ATTACH_SENT, LinkMove.ANSWERED): (Ends, Ends.accepted, "client"),
    (LinkState.ATTACH_SENT, LinkMove.DETACH): (Ends, lambda ends: ends.detach(ends.pair.client), "client"),
    (LinkState.ATTACHED, LinkMove.DETACH): (
        lambda: Ends().accepted(),
        lambda ends: ends.detach(ends.pair.server),
        "server",
    ),
    (LinkState.DETACH_SENT, LinkMove.ANSWERED): (Ends, _crossing, "client"),
}


def test_each_row_of_the_tables_has_a_case() -> None:
    """A row that frames cannot reach does not belong to the life of a link or a session."""
    assert set(LINKS) == {(state, move) for state, moves in LINK_TRANSITIONS.items() for move in moves}
    assert set(SESSIONS) == {(state, move) for state, moves in SESSION_TRANSITIONS.items() for move in moves}
    assert set(LINK_TRANSITIONS) == set(LinkState)
    assert set(SESSION_TRANSITIONS) == set(SessionState)


@pytest.mark.parametrize(("state", "move"), LINKS, ids=lambda value: value.name)
def test_frames_move_a_link_as_the_table_says(state: LinkState, move: LinkMove) -> None:
    """Source: AMQP 2.6.3, 2.6.4; wire contract 2.2."""
    make, act, end = LINKS[state, move]
    ends = make()
    watched: Link = getattr(ends, end)
    if state is not LinkState.DETACH_SENT:  # _crossing gets there by itself
        assert watched.state is state
    act(ends)
    assert watched.state is LINK_TRANSITIONS[state][move]


@pytest.mark.parametrize("act", ["accept", "refuse", "detach"])
def test_what_the_owner_does_with_a_detached_link_does_nothing(act: str) -> None:
    """Its event is on the way, so the table is not asked."""
    ends = Ends().accepted()
    server = ends.pair.server
    ends.detach(server)
    acts: dict[str, Callable[[], Any]] = {
        "accept": ends.accept,
        "refuse": lambda: server.refuse_link(ends.channel, ends.handle, GONE),
        "detach": lambda: ends.detach(server),
    }
    acts[act]()
    assert ends.server.state is LinkState.DETACH_SENT


def _begun_by_client() -> tuple[Connection, Session, Pair]:
    pair = opened_pair()
    channel = pair.client.begin()
    return pair.client, session_of(pair.client, channel), pair


def _mapped() -> tuple[Connection, Session, Pair]:
    client, found, pair = _begun_by_client()
    pair.exchange()
    return client, found, pair


Begun = tuple[Connection, Session, Pair]
SESSIONS: dict[
    tuple[SessionState, SessionMove], tuple[Callable[[], Begun], Callable[[Connection, Session, Pair], Any]]
] = {
    (SessionState.BEGIN_SENT, SessionMove.BEGUN): (
        _begun_by_client,
        lambda client, found, pair: pair.exchange(),
    ),
    (SessionState.BEGIN_SENT, SessionMove.END): (
        _begun_by_client,
        lambda client, found, pair: client.end(found.channel),
    ),
    (SessionState.MAPPED, SessionMove.END): (
        _mapped,
        lambda client, found, pair: client.end(found.channel),
    ),
}


@pytest.mark.parametrize(("state", "move"), SESSIONS, ids=lambda value: value.name)
def test_frames_move_a_session_as_the_table_says(state: SessionState, move: SessionMove) -> None:
    """Source: AMQP 2.5."""
    make, act = SESSIONS[state, move]
    client, found, pair = make()
    assert found.state is state
    act(client, found, pair)
    assert found.state is SESSION_TRANSITIONS[state][move]
