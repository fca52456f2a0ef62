"""Frames as the .NET client writes them: every field of each performative, in the client's form.

Owns: which fields the client fills, and the constant values. Must not know the state of a connection. Source:
frames of client 7.19.0.
"""

from __future__ import annotations

import struct
from typing import Any

from peeklock.amqp.types import Described, Encoded, Symbol, UByte, UInt, ULong, UShort
from tests.interop.dotnet.encoding import composite, encode

FRAME_BYTES_MAX = 65_536
WINDOW = 5_000
WINDOW_UNBOUNDED = 2**32 - 1
TARGET = 0x29
BATCH_FORMAT = 0x80013700

ACCEPTED = Encoded(b"\x00\x53\x24\x45")
RELEASED = Encoded(b"\x00\x53\x26\x45")

PRODUCT = {
    Symbol("product"): "Messaging.ServiceBus",
    Symbol("version"): "7.1900.25.20802",
    Symbol("framework"): ".NETCoreApp,Version=v8.0",
    Symbol("platform"): "Debian GNU/Linux 12 (bookworm)",
    Symbol("user-agent"): "azsdk-net-Messaging.ServiceBus/7.1900.25.20802 "
    "(.NETCoreApp,Version=v8.0; Debian GNU/Linux 12 (bookworm))",
}

PROPERTIES = [
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
]
HEADER = ["durable", "priority", "ttl", "first-acquirer", "delivery-count"]


def frame(channel: int, body: bytes, *, sasl: bool = False) -> bytes:
    """Return a frame of a performative and its payload."""
    return struct.pack(">IBBH", 8 + len(body), 2, int(sasl), channel) + body


def sasl_init() -> bytes:
    return frame(0, composite(0x41, [Symbol("MSSBCBS"), None, None]), sasl=True)


def open_(container: str, hostname: str) -> bytes:
    fields = [container, hostname, UInt(FRAME_BYTES_MAX), UShort(8191), UInt(30_000)]
    return frame(0, composite(0x10, [*fields, None, None, None, None, PRODUCT]))


def begin(channel: int, window: int) -> bytes:
    fields: list[Any] = [None, UInt(1), UInt(window), UInt(WINDOW), UInt(262_143), None, None, {}]
    return frame(channel, composite(0x11, fields))


def attach(
    channel: int,
    name: str,
    handle: int,
    *,
    receives: bool,
    source: bytes,
    target: bytes,
    snd: int | None = None,
    rcv: int | None = None,
    counted: bool = False,
    size_max: int | None = None,
    properties: dict[Any, Any] | None = None,
) -> bytes:
    """Return an attach; `counted`: with an initial-delivery-count, as senders to an entity have."""
    fields = [
        name,
        UInt(handle),
        receives,
        None if snd is None else UByte(snd),
        None if rcv is None else UByte(rcv),
        Encoded(source),
        Encoded(target),
        None,
        None,
        UInt(0) if counted else None,
        None if size_max is None else ULong(size_max),
        None,
        None,
        properties,
    ]
    return frame(channel, composite(0x12, fields))


def source(address: str | None = None, *, filter: dict[Any, Any] | None = None, moves: bool = False) -> bytes:
    mode = Symbol("move") if moves else None
    return composite(0x28, [address, None, None, None, None, None, mode, filter, None, None, None])


def target(address: str | None) -> bytes:
    return composite(TARGET, [address, None, None, None, None, None, None])


def coordinator() -> bytes:
    return composite(0x30, [None])


def flow(
    channel: int,
    incoming: tuple[int, int],
    outgoing: int,
    handle: int,
    delivery_count: int,
    credit: int,
    *,
    available: int = 0,
    drain: bool = False,
) -> bytes:
    """Return a flow; `incoming` and `outgoing` are the next ids; with the first comes the window."""
    numbers = (*incoming, outgoing, WINDOW, handle, delivery_count, credit, available)
    return frame(channel, composite(0x13, [*map(UInt, numbers), drain or None, False, None]))


def transfer(
    channel: int,
    handle: int,
    delivery_id: int,
    tag: bytes,
    payload: bytes,
    *,
    message_format: int = 0,
    settled: bool | None = None,
    state: bytes | None = None,
    batchable: bool = True,
) -> list[bytes]:
    """Return the frames of one delivery."""

    def performative(number: int, more: bool) -> bytes:
        fields = [UInt(handle), UInt(number), tag, UInt(message_format), settled, more, None]
        fields += [None if state is None else Encoded(state), None, None, batchable]
        return composite(0x14, fields)

    # The client reserves bytes for the longest delivery-id, whatever the id is.
    room = FRAME_BYTES_MAX - 8 - len(performative(2**32 - 1, True))
    made = [frame(channel, performative(delivery_id, len(payload) > room) + payload[:room])]
    rest = payload[room:]
    while rest:
        next_ = composite(0x14, [UInt(handle), None, None, None, None, True, *[None] * 5])
        room = FRAME_BYTES_MAX - 8 - len(next_)
        next_ = composite(0x14, [UInt(handle), None, None, None, None, len(rest) > room, *[None] * 5])
        made.append(frame(channel, next_ + rest[:room]))
        rest = rest[room:]
    return made


def disposition(
    channel: int, first: int, state: bytes, *, settled: bool = False, sends: bool = False
) -> bytes:
    """Return a disposition of one delivery, never of a range; `sends`: of one that the client sent."""
    return frame(channel, composite(0x15, [not sends, UInt(first), None, settled, Encoded(state), None]))


def modified(annotations: dict[Any, Any] | None = None, *, undeliverable: bool | None = None) -> bytes:
    return composite(0x27, [None, undeliverable, annotations])


def rejected(info: dict[Any, Any] | None = None) -> bytes:
    """Return rejected; without `info` a dead-letter without a reason."""
    error = (
        None if info is None else Encoded(composite(0x1D, [Symbol("com.microsoft:dead-letter"), None, info]))
    )
    return composite(0x25, [error])


def transactional(transaction: bytes, outcome: bytes | None = None) -> bytes:
    return composite(0x34, [transaction, None if outcome is None else Encoded(outcome)])


def declare() -> bytes:
    return section(0x77, Described(ULong(0x31), [None]))


def discharge(transaction: bytes, fail: bool) -> bytes:
    return section(0x77, Described(ULong(0x32), [transaction, fail]))


def detach(channel: int, handle: int) -> bytes:
    return frame(channel, composite(0x16, [UInt(handle), True, None]))


def end(channel: int) -> bytes:
    return frame(channel, composite(0x17, [None]))


def close(error: bytes | None = None) -> bytes:
    return frame(0, composite(0x18, [None if error is None else Encoded(error)]))


def error(condition: str, description: str) -> bytes:
    return composite(0x1D, [Symbol(condition), description, None])


def section(code: int, value: Any) -> bytes:
    """Return one section of a message."""
    return bytes((0x00, 0x53, code)) + encode(value)


def fields(names: list[str], values: dict[str, Any]) -> list[Any]:
    """Return values by name in the order of a list, with nulls for the rest."""
    assert set(values) <= set(names), f"no such field: {set(values) - set(names)}"
    return [values.get(name) for name in names]


def message(
    *,
    header: dict[str, Any] | None = None,
    delivery_annotations: dict[Any, Any] | None = None,
    annotations: dict[Any, Any] | None = None,
    properties: dict[str, Any] | None = None,
    application_properties: dict[str, Any] | None = None,
    body: bytes = b"",
    footer: dict[Any, Any] | None = None,
) -> bytes:
    """Return sections joined; empty ones are left out. `body` is encoded already."""
    made = section(0x70, fields(HEADER, header)) if header else b""
    made += section(0x71, delivery_annotations) if delivery_annotations else b""
    made += section(0x72, annotations) if annotations else b""
    made += section(0x73, fields(PROPERTIES, properties)) if properties else b""
    made += section(0x74, application_properties) if application_properties else b""
    return made + body + (section(0x78, footer) if footer else b"")


def request(number: int, reply_to: str, application_properties: dict[str, Any], value: Any) -> bytes:
    """Return a request to a node; they are counted from 1 for each pair of links."""
    properties = {"message-id": f"request{number}", "reply-to": reply_to}
    return message(
        properties=properties, application_properties=application_properties, body=section(0x77, value)
    )
