"""One connection of the broker under simulation: a wire, a gateway, and its turns.

Owns: how bytes go from the wire to the gateway and back, as in `server.amqp`: in slices, in turns, the end of
the stream behind the bytes before it. Must not know: what clients want.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from zlib import crc32

from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.gateway.connection import Gateway
from peeklock.server.net.amqp import SLICE_UNITS
from peeklock.testing.wire import BROKER, WireState
from tests.simulation.oracle.bounds import Guest
from tests.simulation.world.wire import Wire

if TYPE_CHECKING:
    from tests.simulation.world.shard import Shard
    from tests.simulation.world.tenant import Tenant


SLICE_S = 0.000_3
"""Time of one unit of work. Our choice: a stranger's share of a turn is four of them."""


class Served:
    """A worker of the process' `Turns`."""

    def __init__(
        self,
        shard: Shard,
        connection_id: int,
        wire: Wire,
        gateway: Gateway,
        guest: Guest | None,
        tenant: Tenant,
    ) -> None:
        """Attach to the wire.

        Args:
            guest: the checker's record of a hostile peer; None = an honest client.
            tenant: the namespace that the client means.
        """
        self._process = process = shard.process
        self.shard = shard
        """The namespace that the broker takes it for."""
        self.tenant = tenant
        self._bounds = process.bounds
        self._world = process.world
        self._id = connection_id
        self.wire = wire
        self.gateway = gateway
        self.guest = guest
        self._arrived = b""
        """Bytes that have arrived and that the gateway has not got yet."""
        self._eof = False
        self._gone = False
        self._waits_since: int | None = None
        """The round before the first byte of the backlog came."""
        self._tick_ms: int | None = None
        wire.on_data[BROKER] = self._received
        wire.on_end[BROKER] = self.ended

    # From the wire

    def _received(self, data: bytes) -> None:
        if self._process.dead:
            return
        self._world.note(f"c{self._id} -> {len(data)} {crc32(data):08x}")
        self._arrived += data
        if self._waits_since is None:
            self._waits_since = self._process.rounds
        if self.guest is not None:
            self._bounds.arrived(self.guest)
        self._process.turns.take(self)

    def ended(self) -> None:
        """Take the end of the stream; it waits behind the bytes before it."""
        if self._process.dead:
            return
        self._world.note(f"c{self._id} -> end")
        self._eof = True
        self._process.turns.take(self)

    def find_half_open(self) -> None:
        """Break if the wire is half open."""
        if self.wire.memory.state is WireState.DROPPED:
            self.ended()

    # From the turns

    @property
    def known(self) -> bool:
        """Whether the peer has ever shown a valid claim."""
        return self.gateway.known

    def work(self, units: int, until_s: float) -> bool:
        """Pass a part of the backlog to the gateway, and its commands to the engine."""
        process, gateway = self._process, self.gateway
        if process.dead or self._gone:
            return False
        while units > 0 and (self._arrived or gateway.unread):
            units -= SLICE_UNITS
            process.worked_s += SLICE_S
            arrived, self._arrived = self._arrived, b""
            self._offer(gateway.receive(arrived, process.now_ms, SLICE_UNITS))
        waits = bool(self._arrived or gateway.unread)
        if not waits and self._waits_since is not None:
            if self.guest is None:
                self._bounds.worked(process.rounds - self._waits_since)
            self._waits_since = None
        if self._eof and not waits:
            self._offer(gateway.eof(process.now_ms))
            self.flush()
            self.abort()
        else:
            self.flush()
        return waits and not self._gone

    def _offer(self, commands: list[Command]) -> None:
        """Pass on commands, to the namespace that the client may have chosen just before them."""
        self.shard.offer(commands)

    def abort(self) -> None:
        """End the connection without a word."""
        if self._gone:
            return
        self._gone = True
        self._process.forget(self._id)
        self.wire.close(BROKER)
        if self.guest is not None:
            self._bounds.gone(self.guest)

    # From the driver

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Take effects."""
        self.gateway.handle(effects, self.shard.body, now_ms)

    def bodies_wanted(self) -> set[int]:
        return self.gateway.bodies_wanted()

    def bodies_arrived(self, now_ms: int) -> None:
        """Retry what waits for bodies."""
        self.gateway.bodies_arrived(self.shard.body, now_ms)

    # To the wire

    def flush(self) -> None:
        """Write the gateway's output; end the connection if it is over."""
        if self._gone:
            return
        process, gateway = self._process, self.gateway
        data = gateway.data_to_send()
        if data:
            self._world.note(f"c{self._id} <- {len(data)} {crc32(data):08x}")
            if self.guest is not None:
                self._bounds.answered(self.guest, data)
            self.wire.write(BROKER, data)
        self._offer(gateway.written(0, process.now_ms))
        if gateway.closing:
            # The server's transport reports its own end like any other.
            self._offer(gateway.eof(process.now_ms))
            self.abort()
            return
        if gateway.unread:  # transfers that came before their link was open
            process.turns.plan(self)
        self._plan_tick()

    def _plan_tick(self) -> None:
        due_ms = self.gateway.next_deadline_ms()
        if due_ms is not None and self._tick_ms != due_ms:
            self._tick_ms = due_ms
            self._world.after(due_ms - self._process.now_ms, self._tick, due_ms)

    def _tick(self, due_ms: int) -> None:
        process, gateway = self._process, self.gateway
        if process.dead or self._gone or self._tick_ms != due_ms:
            return
        self._tick_ms = None
        deadline = gateway.next_deadline_ms()
        if deadline is not None and deadline <= process.now_ms:
            self._world.note(f"c{self._id} tick")
            self._offer(gateway.tick(process.now_ms))
        self.flush()
