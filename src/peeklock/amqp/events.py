"""Events that a connection reports to its owner: plain values, in the order in which the peer caused them.

`channel` and `handle` are ours; in the server role they equal the peer's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import AmqpError
from .performatives import Coordinator, DeliveryState, Source, Target
from .types import Encoded, Role


@dataclass(slots=True)
class SaslInit:
    """The peer chose a mechanism; the owner answers with `Connection.sasl_outcome`."""

    mechanism: str
    response: bytes
    hostname: str | None


@dataclass(slots=True)
class ConnectionOpened:
    """The peer's `open`. Sizes in bytes, times in ms; a server answers with `Connection.open`."""

    container_id: str
    hostname: str | None
    max_frame_size: int
    channel_max: int
    idle_timeout_ms: int | None
    properties: dict[Any, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SessionBegun:
    """A session is mapped; `begin` is answered already."""

    channel: int


@dataclass(slots=True)
class LinkAttached:
    """The peer's `attach`: in the server role a request to accept or refuse, in the client role the answer.

    `role` is the peer's. A refused link has a null `source` (if the peer sends) or `target` (if it receives);
    a LinkDetached with the reason follows. `source_raw` and `target_raw` are the termini as encoded.
    """

    channel: int
    handle: int
    name: str
    role: Role
    source: Source | Coordinator | None
    target: Target | Coordinator | None
    snd_settle_mode: int
    rcv_settle_mode: int
    initial_delivery_count: int
    max_message_size: int | None
    properties: dict[Any, Any]
    source_raw: Encoded
    target_raw: Encoded


@dataclass(slots=True)
class LinkFlow:
    """The peer's credit for a link we send on: the deliveries we may send now, not an increment."""

    channel: int
    handle: int
    credit: int
    drain: bool


@dataclass(slots=True)
class LinkDrained:
    """The peer has used or returned all credit that we asked it to drain."""

    channel: int
    handle: int


@dataclass(slots=True)
class DeliveryReceived:
    """A whole delivery, reassembled from its frames."""

    channel: int
    handle: int
    delivery_id: int
    delivery_tag: bytes
    message_format: int
    settled: bool
    state: DeliveryState | None
    payload: bytes


@dataclass(slots=True)
class DeliveryOversized:
    """A delivery above the link's max-message-size: discarded except for its head; the link lives on."""

    channel: int
    handle: int
    delivery_id: int
    delivery_tag: bytes
    settled: bool
    state: DeliveryState | None
    size_bytes_max: int
    head: bytes
    """The first `link.HEAD_BYTES_MAX` bytes."""


@dataclass(slots=True)
class DispositionReceived:
    """The peer's state of deliveries `first..last` (serial numbers: the range may wrap at 2^32).

    `role` is the peer's: RECEIVER for deliveries we sent. The range is cut to ids that this session has used,
    but may be long and include settled deliveries: walk it with `serial.ids_in_range`.
    """

    channel: int
    role: Role
    first: int
    last: int
    settled: bool
    state: DeliveryState | None


@dataclass(slots=True)
class LinkDetached:
    """The link is gone: the peer's detach (answered already), the end of its session, or a protocol error.

    `clean` is False if we ended it because the peer broke the protocol. In the client role this event also
    answers our own detach; a server does not report that answer, since some clients never send it.
    """

    channel: int
    handle: int
    closed: bool
    error: AmqpError | None
    clean: bool = True


@dataclass(slots=True)
class SessionEnded:
    """The session is gone, after the LinkDetached of each link; `clean` and client role as there."""

    channel: int
    error: AmqpError | None
    clean: bool = True


@dataclass(slots=True)
class ConnectionClosed:
    """The connection is over; no event follows.

    Clean: the peer sent `close` (answered already). Not clean: end of stream, our idle time-out, or the peer
    broke the protocol, as `error` describes.
    """

    error: AmqpError | None
    clean: bool
    unsent: list[tuple[int, int]] = field(default_factory=list)
    """Channel and id of our unsettled deliveries that waited for the peer's window, unwritten."""


Event = (
    SaslInit
    | ConnectionOpened
    | SessionBegun
    | LinkAttached
    | LinkFlow
    | LinkDrained
    | DeliveryReceived
    | DeliveryOversized
    | DispositionReceived
    | LinkDetached
    | SessionEnded
    | ConnectionClosed
)
