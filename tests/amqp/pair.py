"""Two real ends of the engine on a wire in memory, and frames written by hand."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from peeklock.amqp import composites
from peeklock.amqp.codec import decode
from peeklock.amqp.composites import composite
from peeklock.amqp.connection import Connection
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import ConnectionClosed, ConnectionOpened, Event, LinkAttached, SaslInit
from peeklock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, Limits, frame
from peeklock.amqp.performatives import Source, Target, encode_attach, encode_end, encode_open
from peeklock.amqp.types import Role, Symbol, UInt

E = TypeVar("E")


def only(events: list[Event], kind: type[E]) -> E:
    """Return the one event of `kind`."""
    found = [event for event in events if isinstance(event, kind)]
    assert len(found) == 1, events
    return found[0]


def every(events: list[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


class Pair:
    """A client and a server; `exchange` carries bytes, events gather in `at_client` and `at_server`."""

    def __init__(
        self,
        *,
        client_limits: Limits | None = None,
        server_limits: Limits | None = None,
        client: dict[str, Any] | None = None,
        server: dict[str, Any] | None = None,
    ) -> None:
        self.now_ms = 1_000_000
        self.client = Connection(
            "client", container_id="client", now_ms=self.now_ms, limits=client_limits, **(client or {})
        )
        self.server = Connection(
            "server", container_id="server", now_ms=self.now_ms, limits=server_limits, **(server or {})
        )
        self.at_client: list[Event] = []
        self.at_server: list[Event] = []
        self.to_server = b""
        self.to_client = b""
        self.sasl_refusal: AmqpError | None = None
        self.on_attach: Callable[[LinkAttached], None] = self._accept

    def _accept(self, event: LinkAttached) -> None:
        self.server.accept_link(event.channel, event.handle, max_message_size=1 << 30)

    def exchange(self) -> None:
        """Carry bytes until both ends are quiet; the server accepts every link."""
        while True:
            upward = self.client.data_to_send()
            self.to_server += upward
            self._serve(self.server.receive(upward, self.now_ms))
            while self.server.stalled:
                self._serve(self.server.receive(b"", self.now_ms))
            downward = self.server.data_to_send()
            self.to_client += downward
            self.at_client += self.client.receive(downward, self.now_ms)
            if not upward and not downward:
                return

    def _serve(self, events: list[Event]) -> None:
        self.at_server += events
        for event in events:
            if isinstance(event, SaslInit):
                self.server.sasl_outcome(self.sasl_refusal)
            elif isinstance(event, ConnectionOpened):
                self.server.open()
            elif isinstance(event, LinkAttached):
                self.on_attach(event)

    def take(self) -> tuple[list[Event], list[Event]]:
        """Exchange; give the events of client and server since the last time."""
        self.exchange()
        taken = self.at_client, self.at_server
        self.at_client, self.at_server = [], []
        return taken

    def open(self) -> Pair:
        """Open the connection."""
        self.client.open()
        self.take()
        return self

    def attach(
        self, role: Role, *, channel: int | None = None, name: str = "link", credit: int = 0
    ) -> tuple[int, int]:
        """Open a link whose client end has `role`; the receiver grants `credit`. Return its address."""
        if channel is None:
            channel = self.client.begin()
        handle = self.client.attach(channel, name, role, Source(address="source"), Target(address="target"))
        self.exchange()
        if credit:
            receiver = self.server if role is Role.SENDER else self.client
            receiver.flow(channel, handle, credit)
        self.take()
        return channel, handle


def opened_pair(**options: Any) -> Pair:
    return Pair(**options).open()


def frames_of(data: bytes) -> list[tuple[int, int, list[Any], bytes]]:
    """Take a stream of AMQP and SASL frames apart generally: (channel, code, fields, payload)."""
    found: list[tuple[int, int, list[Any], bytes]] = []
    position = 0
    while position < len(data):
        if data[position : position + 4] == b"AMQP":
            position += 8
            continue
        size, offset, _, channel = struct.unpack_from(">IBBH", data, position)
        assert size >= 8, f"no frame at byte {position}"
        body = data[position + 4 * offset : position + size]
        position += size
        if not body:
            found.append((channel, -1, [], b""))
            continue
        described, end = decode(body)
        found.append((channel, described.descriptor, described.value, body[end:]))
    return found


def bare_server(limits: Limits | None = None, **options: Any) -> Connection:
    """Return a server without SASL whose client has opened and been answered, ready for hand-made frames."""
    server = Connection("server", container_id="server", now_ms=0, limits=limits, **options)
    server.receive(AMQP_HEADER + frame(0, encode_open("client", "host", 65536, 65535, None, None)), 0)
    server.open()
    server.data_to_send()
    return server


def begin(channel: int = 0, *, window: int = 65536, next_outgoing_id: int = 0) -> bytes:
    fields = [None, UInt(next_outgoing_id), UInt(window), UInt(65536), UInt(4294967295)]
    return frame(channel, composite(composites.BEGIN, fields))


def transfer(
    handle: int,
    delivery_id: int | None,
    payload: bytes,
    *,
    channel: int = 0,
    tag: bytes | None = b"tag0",
    message_format: int | None = 0,
    settled: Any = False,
    more: Any = False,
    state: Any = None,
    aborted: Any = None,
) -> bytes:
    form = None if message_format is None else UInt(message_format)
    identifier = None if delivery_id is None else UInt(delivery_id)
    fields = [UInt(handle), identifier, tag, form, settled, more, None, state, None, aborted]
    return frame(channel, composite(composites.TRANSFER, fields) + payload)


def end(channel: int = 0) -> bytes:
    return frame(channel, encode_end(None))


def sasl_and_open(mechanism: str = "ANONYMOUS", response: bytes = b"") -> bytes:
    """Make all that a client sends up to its `open`, in one piece."""
    init = frame(0, composite(composites.SASL_INIT, [Symbol(mechanism), response]), SASL_FRAME)
    opened = frame(0, encode_open("client", "localhost", 65536, 65535, None, None))
    return SASL_HEADER + init + AMQP_HEADER + opened


def attach(
    handle: int,
    peer_role: Role,
    *,
    channel: int = 0,
    name: str = "link",
    properties: dict[Any, Any] | None = None,
    address: str = "queue",
) -> bytes:
    count = 0 if peer_role is Role.SENDER else None
    source, target = Source(address=address), Target(address=address)
    return frame(
        channel, encode_attach(name, handle, peer_role, 0, 0, source, target, count, None, None, properties)
    )


def flow(handle: int, *, credit: int, channel: int = 0, window: int = 65536, echo: bool = False) -> bytes:
    fields: list[Any] = [UInt(0), UInt(window), UInt(0), UInt(65536), UInt(handle), UInt(0), UInt(credit)]
    fields += [None, False, echo]
    return frame(channel, composite(composites.FLOW, fields))


def closed_with(events: list[Event]) -> str:
    """Return the condition the connection was closed with."""
    event = only(events, ConnectionClosed)
    assert event.error is not None
    return str(event.error.condition)
