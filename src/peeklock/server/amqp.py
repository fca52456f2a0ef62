"""An AMQP connection on the event loop: bytes between a transport and a gateway.

Owns: reading, writing, pausing and the ticks of one connection. Must not know: AMQP frames or Service Bus; it
carries bytes to the gateway, the gateway's commands to the shard, and the shard's effects back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from peeklock.broker.effects import Effect
from peeklock.server.shard import Shard

if TYPE_CHECKING:
    from peeklock.gateway.connection import Gateway

UNCOMMITTED_BYTES_MAX = 8 * 1024 * 1024
"""Reading from a connection pauses above this. Source: architecture, back-pressure."""

LINGER_S = 2.0
"""How long we read on after our end of the stream. Our choice: a round trip or two on any path."""

END_S_MAX = 30.0
"""How long a connection that is over may take to drain: one that reads no more would stay for ever. Our
choice."""

ALL_UNCOMMITTED_BYTES_MAX = 64 * 1024 * 1024
"""Reading from the connections that send pauses above this over all of them. Our choice: eight that each fill
theirs; pre-settled transfers (T-06) are counted only here, since nothing is ever answered for them."""

WRITE_BUFFER_BYTES_HIGH = 1024 * 1024
"""Above this much unsent output the transport asks to pause, and the gateway gives no further credit. Our
choice."""


class AmqpConnection(asyncio.Protocol):
    """One AMQP connection of the broker."""

    def __init__(
        self,
        connection_id: int,
        shard: Shard,
        make_gateway: Callable[[int, int], Gateway],
        on_closed: Callable[[int], None],
    ) -> None:
        """`make_gateway(connection_id, now_ms)` is called once the transport is there."""
        self.connection_id = connection_id
        self._shard = shard
        self._gateway = make_gateway(connection_id, shard.now_ms())
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._reading_paused = False
        self._output_full = False
        self._ending = False
        self._end_timers: list[asyncio.TimerHandle] = []

    @property
    def known(self) -> bool:
        """Whether the peer has ever shown a valid claim."""
        return self._gateway.known

    @property
    def peer(self) -> str:
        """The address of the other end; empty when nobody knows it."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return str(name[0]) if name else ""

    @property
    def endpoint(self) -> str:
        """Address and port of the other end, for the log; empty when nobody knows them."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else ""

    # From the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH)
        self._shard.add(self.connection_id, self)

    def data_received(self, data: bytes) -> None:
        now = self._shard.now_ms()
        commands = self._gateway.receive(data, now)
        if commands:
            self._shard.offer_from_socket(commands)
        self.flush(now)

    def eof_received(self) -> bool:
        now = self._shard.now_ms()
        self._shard.offer(self._gateway.eof(now))
        self.flush(now)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        # The gateway knows whether a close came first (L-13), and answers nothing when it has said so
        # already.
        self._shard.offer(self._gateway.eof(self._shard.now_ms()))
        self._shard.remove(self.connection_id)
        self._transport = None
        for timer in self._end_timers:
            timer.cancel()
        self._on_closed(self.connection_id)

    def pause_writing(self) -> None:
        self._output_full = True

    def resume_writing(self) -> None:
        self._output_full = False
        now = self._shard.now_ms()
        self._shard.offer(self._gateway.written(self._unsent(), now))
        self.flush(now)

    # From the shard

    def handle(self, effect: Effect, now_ms: int) -> None:
        self._gateway.handle(effect, self._shard.body, now_ms)

    def bodies_wanted(self) -> set[int]:
        return self._gateway.bodies_wanted()

    def bodies_arrived(self, now_ms: int) -> None:
        self._gateway.bodies_arrived(self._shard.body, now_ms)

    def flush(self, now_ms: int) -> None:
        transport = self._transport
        if transport is None:
            return
        gateway = self._gateway
        data = gateway.data_to_send()
        if data and not self._ending:
            transport.write(data)
        # Also without data: a delivery that came too late for its link is given back, for one.
        commands = gateway.written(self._unsent(), now_ms)
        if commands:
            self._shard.offer(commands)
        if self._ending:
            return
        if gateway.closing:
            self._end(transport)
        else:
            self._pause_or_resume_reading(transport)

    def _pause_or_resume_reading(self, transport: asyncio.Transport) -> None:
        """Read only while there is room for what reading leads to: bodies to commit, answers to send.

        Credit cannot bound a peer: the official Python client transfers before it has any, and requests and
        pre-settled transfers come without. What is not read waits in the peer.
        """
        uncommitted = self._gateway.uncommitted_bytes
        if not self._reading_paused:
            if (
                uncommitted > UNCOMMITTED_BYTES_MAX
                or self._output_full
                or self._shard.uncommitted_bytes > ALL_UNCOMMITTED_BYTES_MAX
            ):
                self._reading_paused = True
                transport.pause_reading()
                self._shard.wait_for_room(self)
        elif (
            uncommitted < UNCOMMITTED_BYTES_MAX // 2
            and not self._output_full
            and self._shard.uncommitted_bytes < ALL_UNCOMMITTED_BYTES_MAX // 2
        ):
            self._reading_paused = False
            transport.resume_reading()
        else:
            self._shard.wait_for_room(self)

    def _end(self, transport: asyncio.Transport) -> None:
        """End our half of the stream, and read on until the peer has ended its own.

        A socket that is closed with bytes unread resets the connection, and the peer loses what it has not
        read yet: the `close` that tells it why.
        """
        self._ending = True
        later = asyncio.get_running_loop().call_later
        self._end_timers.append(later(END_S_MAX, transport.abort))
        if not transport.can_write_eof():  # TLS: has no half-close
            transport.close()
            self._end_timers.append(later(LINGER_S, self._end_unanswered, transport))
            return
        transport.write_eof()  # after what is buffered
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()
        self._end_timers.append(later(LINGER_S, transport.close))

    def _end_unanswered(self, transport: asyncio.Transport) -> None:
        """End a connection whose peer does not answer the end of TLS: a client that reads when it is used."""
        if self._unsent():  # a slow peer; END_S_MAX bounds it
            later = asyncio.get_running_loop().call_later
            self._end_timers.append(later(LINGER_S, self._end_unanswered, transport))
        else:
            transport.abort()

    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # From the server

    def tick(self, now_ms: int) -> None:
        """Let time pass: idle time-outs, empty frames, expired tokens."""
        due = self._gateway.next_deadline_ms()
        if due is not None and due <= now_ms:
            commands = self._gateway.tick(now_ms)
            if commands:
                self._shard.offer(commands)
            self.flush(now_ms)

    def shut_down(self, now_ms: int) -> None:
        """Tell the peer that the broker stops, and close once that is written."""
        self._gateway.shutdown(now_ms)
        self.flush(now_ms)

    def abort(self) -> None:
        """End the connection without a word."""
        if self._transport is not None:
            self._transport.abort()
