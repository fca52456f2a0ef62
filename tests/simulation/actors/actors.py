"""The base of all AMQP clients: an actor connects, loses the connection, connects again, and reports to the
checker.

Owns: the life of a client's connection. Must not know: what it is used for, or the broker's internals: all
goes through `Peer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from peeklock.testing.wire import CLIENT, WireState
from tests.simulation.actors.peer import Peer
from tests.simulation.oracle.checker import Checker
from tests.simulation.oracle.history import Lock
from tests.simulation.oracle.records import Violation
from tests.simulation.world.node import Node
from tests.simulation.world.tenant import Tenant
from tests.simulation.world.wire import Wire
from tests.simulation.world.world import World

RETRY_MS = 400
ANSWER_MS_MAX = 30_000
"""Without faults, every question is answered within this time."""


@dataclass(slots=True)
class Shared:
    """What the actors of one namespace share."""

    world: World
    node: Node
    tenant: Tenant
    checker: Checker
    uids: int = 0
    groups: int = 0
    connections: int = 0
    recent_ids: list[tuple[str, str]] = field(default_factory=list)
    freed_ids: dict[str, str] = field(default_factory=dict)
    """By queue: the id of a message that was cancelled lately."""
    """(queue, message id) sent before, to be sent again."""
    scheduled: list[tuple[str, int, int]] = field(default_factory=list)
    """(queue, sequence number, uid) as the schedule operation answered."""
    deferred: list[tuple[str, int, int]] = field(default_factory=list)
    """(address, sequence number, uid) of messages that were deferred."""
    locks: list[tuple[str, Lock]] = field(default_factory=list)
    """(address, lock) of recent deliveries, which any client may settle through the management node."""
    ruled: bool = False
    """Messages have the properties that rules read."""
    slowness: int = 1
    """How many times longer than usual clients pause between two actions."""


class Actor:
    """A client with one connection at a time, which connects again after a loss."""

    def __init__(self, shared: Shared, name: str, *, cbs: bool = False) -> None:
        self.shared = shared
        self.world = shared.world
        self.random = shared.world.random
        self.checker = shared.checker
        self.name = name
        self._cbs = cbs
        self.peer: Peer | None = None
        self.wire: Wire | None = None
        self.connection = 0
        self.stopped = False
        self._excused = False  # this client ends the connection itself
        self._tick_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """The time as it passes at the broker, which the checker uses."""
        return self.shared.node.passed_ms

    # The connection

    def connect(self) -> None:
        if self.stopped or self.peer is not None:
            return
        wire = self.shared.tenant.connect()
        if wire is None:
            self.world.after(self.random.randint(50, RETRY_MS) * self.shared.slowness, self.connect)
            return
        self.shared.connections += 1
        self.connection = self.shared.connections
        self.checker.connected(self.connection)
        self.wire = wire
        self._excused = False
        peer = Peer(
            self.name,
            lambda data: wire.write(CLIENT, data),
            lambda: self.world.now_ms,
            cbs=self._cbs,
            account=self.shared.tenant.account(),
        )
        self.peer = peer
        wire.on_data[CLIENT] = lambda data: self._received(peer, data)
        wire.on_end[CLIENT] = peer.ended
        peer.on_ready = self.ready
        peer.on_lost = lambda condition: self._lost(peer, condition)
        self.world.note(f"{self.name} connects")
        peer.start()
        self._plan_tick(peer)

    def _received(self, peer: Peer, data: bytes) -> None:
        peer.received(data)
        self._plan_tick(peer)

    def _plan_tick(self, peer: Peer) -> None:
        due_ms = peer.next_deadline_ms()
        if due_ms is not None and due_ms != self._tick_ms:
            self._tick_ms = due_ms
            self.world.at(due_ms, self._tick, peer, due_ms)

    def _tick(self, peer: Peer, due_ms: int) -> None:
        if peer.lost or self._tick_ms != due_ms:
            return
        self._tick_ms = None
        peer.tick()
        self._plan_tick(peer)

    def _lost(self, peer: Peer, condition: str | None) -> None:
        if self.peer is not peer:
            return
        self.world.note(f"{self.name} lost its connection: {condition}")
        assert self.wire is not None
        if (
            not self._excused
            and self.wire.memory.state is WireState.OPEN
            and not self.checker.excused(self.connection)
        ):
            raise Violation(f"{self.name}: the broker ended the connection: {condition}")
        if self.wire.memory.state is WireState.CUT:
            self.checker.connection_lost(self.connection, "cut")
        else:
            self.checker.connection_lost(self.connection, "drop")
        self.wire.close(CLIENT)
        self._gone()

    def _gone(self) -> None:
        self.peer = self.wire = None
        self.left()
        if not self.stopped:
            self.world.after(self.random.randint(1, RETRY_MS), self.connect)

    def cut(self) -> None:
        """Break the connection; both ends notice at once."""
        if self.wire is not None and self.wire.memory.state is WireState.OPEN:
            self.world.note(f"{self.name}: cut")
            self.checker.connection_lost(self.connection, "cut")
            self.wire.cut()

    def drop(self) -> None:
        """Turn half open; the client gives the connection up later."""
        if self.wire is not None and self.wire.memory.state is WireState.OPEN:
            self.world.note(f"{self.name}: half open")
            self.checker.connection_lost(self.connection, "drop")
            self.wire.memory.drop()
            self.world.after(self.random.randint(100, 20_000), self._give_up, self.wire)

    def _give_up(self, wire: Wire) -> None:
        if self.wire is wire and self.peer is not None:
            peer, self.peer = self.peer, None
            peer.lost = True
            wire.close(CLIENT)
            self._gone()

    def leave(self) -> None:
        """Close the connection properly, now and then without a wait for the answer."""
        if self.peer is None or self.wire is None or not self.peer.ready:
            return
        self.world.note(f"{self.name} leaves")
        self._excused = True
        self.checker.connection_lost(self.connection, "close")
        self.peer.close()
        if self.random.random() < 0.5 and self.peer is not None:
            peer, wire = self.peer, self.wire
            peer.lost = True
            wire.close(CLIENT)
            self._gone()

    # For the kinds of actors

    def ready(self) -> None:
        """The connection is open."""
        raise NotImplementedError

    def left(self) -> None:
        """The connection is gone."""

    def stop(self) -> None:
        """Begin nothing new; outstanding questions must still be answered."""
        self.stopped = True

    def open_questions(self) -> int:
        """How many answers are outstanding on a live connection."""
        peer = self.peer
        if peer is None or self.wire is None or self.wire.memory.state is not WireState.OPEN:
            return 0
        return len(peer.sends) + len(peer.settlements) + sum(len(r.answers) for r in peer.requests.values())

    def next_time(self, delay_ms: int, do: Callable[..., None]) -> None:
        """Act again later, at the actor's own pace."""
        self.later(delay_ms * self.shared.slowness, do)

    def later(self, delay_ms: int, do: Callable[..., None], *args: Any) -> None:
        """Act later, unless the present connection is lost by then."""
        peer = self.peer
        self.world.after(
            delay_ms, lambda: do(*args) if self.peer is peer and peer is not None and peer.ready else None
        )
