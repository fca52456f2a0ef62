"""An AMQP connection on the event loop: bytes between a transport and a gateway.

It carries bytes to the gateway, the gateway's commands to the shard, and the shard's effects back. The bytes
of a read are worked on in slices, as `loop.turns` allows. While some wait, the connection reads no more. The
end of the stream waits behind them: a client may send, close and leave in one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.server.loop.turns import Turns
from peeklock.server.net import ending
from peeklock.server.shard.shard import Shard

if TYPE_CHECKING:
    from peeklock.gateway.connection import Gateway
    from peeklock.gateway.views import ConnectionView

UNCOMMITTED_BYTES_MAX = 8 * 1024 * 1024
"""Reading from a connection pauses above this. Source: architecture, back-pressure."""

RELAYED_LINGER_S = 5.0
"""The same as `LINGER_S` where another node carries the connection. Our choice, the length of a lease: by
then that node knows of a move, and passes on nothing more that the client sends."""

ALL_UNCOMMITTED_BYTES_MAX = 64 * 1024 * 1024
"""Reading from sending connections pauses above this, over all of them. Our choice: eight that each fill
theirs; pre-settled transfers (T-06) count only here, since they are never answered."""

SLICE_UNITS = 64
"""Of one step of a connection's work, in units of `amqp.connection.FRAME_UNITS`; the clock is checked in
between. Our choice: 64 messages or 8 attaches take about a millisecond."""

WRITE_BUFFER_BYTES_HIGH = 1024 * 1024
"""Above this much unsent output the transport asks to pause, and the gateway gives no further credit. Our
choice."""

STRANGER_UNCOMMITTED_BYTES_MAX = 32 * 1024
STRANGER_WRITE_BUFFER_BYTES_HIGH = 32 * 1024
"""The same of a peer without a valid claim. Our choice: it has nothing to commit, and the answer to a token
has some 150 bytes."""


RELAYED = "relayed"
"""Information of a transport: another node has handed the connection on."""


class Buffered:
    """Bytes in the buffers of all connections, as counted at their last ticks."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class AmqpConnection(asyncio.Protocol):
    """One AMQP connection of the broker."""

    def __init__(
        self,
        connection_id: int,
        shard: Shard,
        turns: Turns,
        make_gateway: Callable[[int, int], Gateway],
        on_closed: Callable[[int], None],
        buffered: Buffered | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Join a shard with `connection_made`; `make_gateway(connection_id, now_ms)` makes the gateway now.

        `buffered` is the sum over all connections. `now_ms`: the time of tokens and idle time-outs, which no
        test moves; None = the shard's.
        """
        self.connection_id = connection_id
        self._now_ms = shard.now_ms if now_ms is None else now_ms
        self.opened_at_ms = self._now_ms()
        self._shard = shard
        self._turns = turns
        self._gateway = make_gateway(connection_id, self.opened_at_ms)
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._arrived: list[bytes] = []
        """Was read and not passed to the gateway."""
        self._commands: Sequence[Command] = ()
        """Commands of the gateway that wait for a turn; later ones follow them."""
        self._working = False
        """Whether what was read waits for its turn."""
        self._write_due = False
        """Whether it writes at the end of this turn."""
        self._eof = False
        self._over = False
        """Whether the gateway knows the end of the stream."""
        self._buffered = buffered if buffered is not None else Buffered()
        self._buffered_bytes = 0
        """The part of this connection in that sum."""
        self._stranger = True
        self._uncommitted_bytes_max = STRANGER_UNCOMMITTED_BYTES_MAX
        self._reading_paused = False
        self._output_full = False
        self._stopping = False
        """Nothing more is taken from the peer: the broker stops."""
        self._ending = False
        """Our half of the stream has ended."""
        self._has_parted = False
        """Nothing more is asked of the shard: its store is another node's."""
        self._end_of_output: ending.Ending | None = None

    @property
    def known(self) -> bool:
        """Whether the peer has ever shown a valid claim."""
        return self._gateway.known

    @property
    def endpoint(self) -> str:
        """Address and port of the other end, for the log; empty = unknown."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else ""

    @property
    def peer(self) -> str:
        """The address of the other end; empty = unknown."""
        return self.endpoint.rpartition(":")[0]

    @property
    def has_tls(self) -> bool:
        """Whether the peer uses TLS."""
        return self._transport is not None and self._transport.get_extra_info("sslcontext") is not None

    def view(self) -> ConnectionView:
        """Return what an operator sees of it."""
        return self._gateway.view()

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=STRANGER_WRITE_BUFFER_BYTES_HIGH)
        self._shard.add(self.connection_id, self)

    def data_received(self, data: bytes) -> None:
        if self._end_of_output is not None:
            self._end_of_output.heard()
        if self._stopping:
            return
        self._arrived.append(data)
        self._turns.take(self)
        if self._arrived and self._transport is not None:  # libuv would pass 8 MB of it in this turn
            self._working = True
            self._pause_reading(self._transport)

    def eof_received(self) -> bool:
        self._eof = True
        self._turns.take(self)
        # True keeps the transport for the answers to what was read; TLS cannot keep it.
        return not self._over and self._transport is not None and self._transport.can_write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._end_of_output is not None:
            self._end_of_output.cancel()
            self._end_of_output = None  # it knows the transport
        self._eof = True
        self._turns.take(self)

    # From the turns

    def work(self, units: int, until_s: float) -> bool:
        """Pass a part of what was read to the gateway, and its commands to the shard."""
        gateway, now = self._gateway, self._now_ms()
        clock_s = self._turns.clock_s
        more = True
        while more:
            if self._commands:
                self._commands = self._shard.offer_until(self._commands, until_s)
                if self._commands:
                    break
            more = not self._stopping and bool(self._arrived or gateway.unread)
            if not more or units <= 0 or clock_s() >= until_s:
                break
            units -= SLICE_UNITS
            arrived, self._arrived = self._arrived, []
            data = arrived[0] if len(arrived) == 1 else b"".join(arrived)
            self._commands = gateway.receive(data, now, SLICE_UNITS)
        self._working = more
        if not self._has_parted:
            self._shard.close_batch()  # effects handed out by it may let a link continue
        if self._eof and not self._working:
            self._finish(now)
        else:
            self._pause_reading_if_full()
            if not self._write_due:
                self._write_due = True
                self._turns.write_at_end(self)
        return self._working

    def end_turn(self) -> None:
        if self._write_due:  # nothing was handed out after the work
            self.flush(self._now_ms())

    def _finish(self, now: int) -> None:
        """Tell the gateway the end of the stream: all bytes before it are done."""
        self._over = True
        try:
            # It knows whether a close came first (L-13), and then has no further commands.
            self._offer(self._gateway.eof(now))
        finally:
            if self._transport is None:
                self._count_buffered(0)
                self._shard.remove(self.connection_id)
                self._gateway.forget()
                self._on_closed(self.connection_id)
        if self._transport is not None:
            self.flush(now)
            if not self._transport.is_closing():  # asyncio's TLS breaks when closed twice
                self._transport.close()

    def _offer(self, commands: Sequence[Command]) -> None:
        """Offer commands of the gateway, after those that wait."""
        if self._has_parted:
            return
        if self._commands:
            self._commands = [*self._commands, *commands]
        elif commands:
            self._shard.offer(commands)

    def pause_writing(self) -> None:
        self._output_full = True

    def resume_writing(self) -> None:
        self._output_full = False
        self.flush(self._now_ms())

    # From the shard

    def join(self, shard: Shard) -> None:
        """Leave the shard for another one, before anything was asked of it."""
        self._shard.remove(self.connection_id)
        self._shard = shard
        shard.add(self.connection_id, self)

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
        self._gateway.handle(effects, self._shard.body, self._now_ms())

    def bodies_wanted(self) -> set[int]:
        return self._gateway.bodies_wanted()

    def bodies_arrived(self, now_ms: int) -> None:
        self._gateway.bodies_arrived(self._shard.body, self._now_ms())

    def flush(self, now_ms: int) -> None:
        self._write_due = False
        gateway = self._gateway
        if not self._working and gateway.unread and not self._stopping:  # transfers before their attach
            self._working = True
            self._turns.plan(self)
            self._pause_reading_if_full()
        transport = self._transport
        if transport is None or (transport.is_closing() and not self._ending):
            return  # the transport reports the end of the connection
        if self._stranger and gateway.known:
            self._welcome(transport)
        data = gateway.data_to_send()
        if data and not self._ending:
            transport.write(data)
        # Also without data: a delivery that came too late for its link, for example, is given back.
        commands = gateway.written(self._unsent(), now_ms)
        if commands and not self._stopping:  # else deliveries would follow one another during the stop
            self._offer(commands)
        if self._ending:
            self._read_on(transport)
        elif gateway.closing:
            self._end(transport)
        elif self._reading_paused:
            self._resume_reading_if_room(transport)
        elif self._output_full:
            self._pause_reading(transport)

    def _welcome(self, transport: asyncio.Transport) -> None:
        """Raise the limits for a peer that has shown a valid claim."""
        self._stranger = False
        self._uncommitted_bytes_max = UNCOMMITTED_BYTES_MAX
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)

    def _pause_reading_if_full(self) -> None:
        """Stop reading while bytes to commit or to send exceed a limit, or read bytes wait for their turn.

        Credit cannot bound a peer: the official Python client transfers before it has any, and requests and
        pre-settled transfers need none. What is not read waits in the peer.
        """
        transport = self._transport
        if transport is None or self._reading_paused or self._ending:
            return
        if self._working or self._output_full:
            self._pause_reading(transport)
        elif not self._has_room(1):
            self._pause_reading(transport)
            self._shard.wait_for_room(self)

    def _resume_reading_if_room(self, transport: asyncio.Transport) -> None:
        """Read on once there is clearly room again."""
        if self._working or self._output_full or self._stopping:
            return  # their ends call this again; a broker that stops reads no more
        if self._has_room(2):
            self._reading_paused = False
            transport.resume_reading()
        else:
            self._shard.wait_for_room(self)

    def _has_room(self, share: int) -> bool:
        """Return whether less than 1/`share` of the permitted bytes are uncommitted."""
        return (
            self._gateway.uncommitted_bytes * share <= self._uncommitted_bytes_max
            and self._shard.uncommitted_bytes * share <= ALL_UNCOMMITTED_BYTES_MAX
        )

    def _pause_reading(self, transport: asyncio.Transport) -> None:
        if not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()

    def _end(self, transport: asyncio.Transport) -> None:
        """End our half of the stream, and read on until the peer has ended its own, or has all.

        Else the peer may lose what it has not read yet: the `close` with the reason.
        """
        self._ending = True
        data = self._gateway.data_to_send()  # of a defect met after the last turn's data was taken
        if data:
            transport.write(data)
        linger_s = RELAYED_LINGER_S if transport.get_extra_info(RELAYED) else ending.LINGER_S
        self._end_of_output = ending.Ending(transport, linger_s)
        self._read_on(transport)

    def _read_on(self, transport: asyncio.Transport) -> None:
        """Read what the peer still sends after our end, for its end behind that."""
        if self._reading_paused and not self._working and not transport.is_closing():
            self._reading_paused = False
            transport.resume_reading()

    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # From the server

    def tick(self, now_ms: int) -> None:
        """Do what is due: idle time-outs, empty frames, expired tokens."""
        self._count_buffered(self._gateway.buffered_bytes + self._unsent())
        due = self._gateway.next_deadline_ms()
        if due is not None and due <= now_ms:
            self._offer(self._gateway.tick(now_ms))
            self.flush(now_ms)

    def _count_buffered(self, now_bytes: int) -> None:
        self._buffered.size_bytes += now_bytes - self._buffered_bytes
        self._buffered_bytes = now_bytes

    def stop_taking(self) -> None:
        """Take nothing more from the peer, and drop what was not begun."""
        self._stopping = True
        self._arrived.clear()
        commands, self._commands = self._commands, ()
        if commands:
            self._shard.offer(commands)  # part of a read that is begun
        self._working = False
        if self._transport is not None:
            self._pause_reading(self._transport)

    def shut_down(self, now_ms: int) -> None:
        """Tell the peer that the broker stops, and close once that is written."""
        self._gateway.shutdown(now_ms)
        self.flush(now_ms)

    def close(self, why: str, now_ms: int) -> None:
        """Close the connection as an operator says; the peer is told why."""
        self._gateway.shutdown(now_ms, why)
        self.flush(now_ms)

    def part(self) -> bool:
        """Ask nothing more of the shard; return whether the peer is left to read what was written.

        If not, the connection has to be aborted. That which is left ends by itself.
        """
        self._has_parted = self._ending
        return self._has_parted

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
