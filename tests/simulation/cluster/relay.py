"""The connections of clients at one node, which leads them to the owner: a model of `server/net/relay`.

Owns: the bytes between a client and the owner, and when a session is cut. Must not know: what the bytes mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from peeklock.testing.wire import BROKER, CLIENT, MemoryWire, WireState
from tests.simulation.oracle.records import Violation
from tests.simulation.world.wire import Wire

if TYPE_CHECKING:
    from tests.simulation.cluster.member import Member
    from tests.simulation.world.tenant import Tenant

LATE_MS_MAX = 800
"""Bytes must not go to a deposed owner for longer: some looks at the row."""


@dataclass(slots=True, eq=False)
class Session:
    """A client that is led to the owner of another node."""

    outer: Wire
    """From the client to this node."""
    inner: Wire
    """From this node to the owner."""
    owner: str
    """The process that it was led to."""


class Relay:
    """The clients of one node."""

    def __init__(self, member: Member) -> None:
        """Have no client."""
        self._member = member
        self._sessions: list[Session] = []
        self._wires: list[Wire] = []
        self.blind_until_ms = 0
        """The node could not follow the row for a while before."""

    def accept(self, tenant: Tenant, random: Random) -> Wire | None:
        """Take a client of the namespace and lead it to the owner; None = nobody serves it."""
        member = self._member
        owner = member.cluster.process_of(member.owner)
        if owner is None or owner.process is None:
            return None
        delay_ms, client = tenant.fault_rates.wire_ms_max, member.cluster.world
        outer = Wire(client, MemoryWire(random, delay_ms_max=delay_ms, split=True), (client, member.gated))
        self._wires = [wire for wire in self._wires if wire.memory.state is WireState.OPEN]
        self._wires.append(outer)
        if owner is member:
            owner.process.accept(owner.new_id(), outer, None, tenant)
            return outer
        inner = Wire(
            client, MemoryWire(random, delay_ms_max=delay_ms // 2, split=True), (member.gated, owner.gated)
        )
        session = Session(outer, inner, owner.session)
        self._sessions.append(session)
        outer.on_data[BROKER] = lambda data: self._carry(session, data)
        outer.on_end[BROKER] = lambda: self._left(session)
        inner.on_data[CLIENT] = lambda data: outer.write(BROKER, data)
        inner.on_end[CLIENT] = lambda: self._ended(session)
        owner.process.accept(owner.new_id(), inner, None, tenant)
        return outer

    def has(self, wire: Wire | None) -> bool:
        """Return whether a client's wire comes here."""
        return wire in self._wires

    def follow(self, owner: str | None) -> None:
        """Cut the sessions with a process that owns the store no more."""
        for session in [each for each in self._sessions if each.owner != owner]:
            self._cut(session)

    def cut(self) -> None:
        """Cut all: this node is dead."""
        for session in list(self._sessions):
            self._cut(session)
        for wire in self._wires:
            self._member.cluster.on_cut(wire)
        self._wires = []

    def find_half_open(self) -> None:
        """End sessions whose client is half open."""
        for session in list(self._sessions):
            if session.outer.memory.state is WireState.DROPPED:
                self._left(session)

    def _carry(self, session: Session, data: bytes) -> None:
        member = self._member
        late_ms = member.cluster.deposed_for_ms(session.owner)
        blind = member.link.is_cut or member.world.now_ms < self.blind_until_ms
        if late_ms is not None and late_ms > LATE_MS_MAX and not blind:
            raise Violation(
                f"{member.name} relays bytes to {session.owner}, {late_ms} ms after "
                f"{member.cluster.owner} has taken the store over"
            )
        session.inner.write(CLIENT, data)

    def _left(self, session: Session) -> None:
        """Pass on that the client has left."""
        session.inner.close(CLIENT)
        self._forget(session)

    def _ended(self, session: Session) -> None:
        """Pass on how the owner has ended the connection."""
        if session.inner.memory.state is WireState.OPEN:
            session.outer.close(BROKER)
            self._forget(session)
        else:
            self._cut(session)

    def _cut(self, session: Session) -> None:
        self._member.cluster.on_cut(session.outer)
        session.inner.cut()
        self._forget(session)

    def _forget(self, session: Session) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
