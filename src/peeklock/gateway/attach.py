"""What a client's attach asks for, decided from its termini alone, and how it is told which session it got.

Owns: the choice of link kind, the session filter in both directions, and the refusals that need no look at
the entity. Must not know: links once they are open. Source: wire contract 2.1, 2.4, 2.6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from peeklock.amqp.codec import decode, iter_map_raw, read_list_header, skip
from peeklock.amqp.encoding import compound8_or_32, encode
from peeklock.amqp.events import LinkAttached
from peeklock.amqp.performatives import Coordinator, Source
from peeklock.amqp.types import Described, Encoded, Long, Role, Symbol
from peeklock.broker.commands import ReceiveMode, SessionWish, SubQueue
from peeklock.broker.errors import ArgumentInvalid, InvalidOperation
from peeklock.broker.routing import ID_LENGTH_MAX
from peeklock.gateway.address import COORDINATOR, Node, NodeKind, parse_node, shown
from peeklock.gateway.errors import AddressInvalid, FilterInvalid

SESSION_FILTER = Symbol("com.microsoft:session-filter")
SESSION_FILTER_CODE = 0x000000137000000C
"""Descriptor of the filter's value as Go sends it; the others send the value alone. Source: wire contract
2.6."""

TIMEOUT = Symbol("com.microsoft:timeout")
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"

NAME_LENGTH_MAX = 512
"""Characters of an address that a refusal quotes. Our choice: host, path (260) and suffixes fit."""

SESSION_WAIT_MS = 65_000
"""How long an attach waits for the next session when the client does not say. Source: wire contract 2.6."""

SESSION_WAIT_MS_MAX = 86_400_000
"""Our choice: a day; a client that wants to wait for longer attaches again."""

_TICKS_PER_MS = 10_000
_TICKS_OF_1970 = 621_355_968_000_000_000
"""Ticks of 100 ns from the year 1 to 1970, as .NET's DateTime counts them. Source: wire contract 2.6."""

_FILTER = 7
"""Position in a source (AMQP 3.5.3)."""

_SETTLED = 1
"""`snd-settle-mode` settled: receive and delete (wire contract 2.4)."""


class LinkKind(Enum):
    """What a link does, seen from the client."""

    SEND = "send"
    RECEIVE = "receive"
    REQUEST = "request"
    REPLY = "reply"
    COORDINATE = "coordinate"


@dataclass(frozen=True, slots=True)
class Wish:
    """What an attach asks for."""

    kind: LinkKind
    node: Node
    mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    session: SessionWish | None = None
    destination: Node | None = None
    """Where messages shall go that are sent via the node."""


def read_attach(event: LinkAttached, now_ms: int) -> Wish:
    """Decide what a new link shall be.

    Raises:
        AddressInvalid: it names no node, or no destination that is one.
        InvalidOperation: sending to a sub-queue, or coordinating on a link that receives.
        FilterInvalid: the session filter is neither a string nor null.
        ArgumentInvalid: the session id is too long.
    """
    sends = event.role is Role.SENDER
    if isinstance(event.target, Coordinator):
        if not sends:
            raise InvalidOperation("A coordinator does not send.")
        return Wish(LinkKind.COORDINATE, COORDINATOR)
    address = _address(event)
    if not isinstance(address, str) or not address:
        raise AddressInvalid(f"The link '{event.name[:64]}' names no address.")
    node = parse_node(address)
    if node.kind is not NodeKind.CBS and not node.address.path:
        raise AddressInvalid(f"The address '{address[:64]}' names no entity.")
    if node.kind is not NodeKind.ENTITY:
        return Wish(LinkKind.REQUEST if sends else LinkKind.REPLY, node)
    if sends:
        if node.address.sub_queue is not SubQueue.MAIN:
            raise InvalidOperation(f"It is not possible to send to the sub-queue '{shown(node.address)}'.")
        return Wish(LinkKind.SEND, node, destination=_destination(event))
    settled = event.snd_settle_mode == _SETTLED
    mode = ReceiveMode.RECEIVE_AND_DELETE if settled else ReceiveMode.PEEK_LOCK
    return Wish(LinkKind.RECEIVE, node, mode, _session_wish(event, now_ms))


def _destination(event: LinkAttached) -> Node | None:
    """Read where a link that sends via an entity sends to. Source: wire contract 2.1."""
    text = event.properties.get(TRANSFER_DESTINATION)
    if text is None:
        return None
    if not isinstance(text, str):
        raise AddressInvalid(f"The transfer destination is a {type(text).__name__}, not a string.")
    node = parse_node(text)
    if node.kind is NodeKind.ENTITY and not node.address.path:
        raise AddressInvalid(f"The transfer destination '{text[:64]}' names no entity.")
    if node.kind is not NodeKind.ENTITY or node.address.sub_queue is not SubQueue.MAIN:
        raise InvalidOperation(f"It is not possible to send via an entity to '{text[:NAME_LENGTH_MAX]}'.")
    return node


def _session_wish(event: LinkAttached, now_ms: int) -> SessionWish | None:
    filters = event.source.filter if isinstance(event.source, Source) else None
    if not filters or SESSION_FILTER not in filters:
        return None
    value = filters[SESSION_FILTER]
    if isinstance(value, Described) and value.descriptor in (SESSION_FILTER_CODE, SESSION_FILTER):
        value = value.value
    if value is not None and type(value) is not str:
        raise FilterInvalid(f"The session filter is a {type(value).__name__}, neither a string nor null.")
    if value is not None and len(value) > ID_LENGTH_MAX:
        raise ArgumentInvalid(f"The SessionId has {len(value)} characters; the limit is {ID_LENGTH_MAX}.")
    wait_ms = event.properties.get(TIMEOUT)
    if not isinstance(wait_ms, int) or isinstance(wait_ms, bool):
        wait_ms = SESSION_WAIT_MS
    return SessionWish(value, now_ms + min(max(0, int(wait_ms)), SESSION_WAIT_MS_MAX))


def accepted_source(source: Encoded, session_id: str) -> Encoded:
    """Give a client's source back with the session that it got in its filter; all else byte for byte.

    The filter's value is described if it was, by the same descriptor: Go reads nothing else, the others
    nothing but a plain string. Source: wire contract 0.1, 2.6.
    """
    position, _, count = read_list_header(source, decode(source, 1)[1])
    fields = bytearray()
    for number in range(count):
        end = skip(source, position)
        fields += (
            _accepted_filter(source, position, session_id) if number == _FILTER else source[position:end]
        )
        position = end
    out = bytearray((0x00, 0x53, 0x28))
    compound8_or_32(out, 0xC0, 0xD0, count, fields)
    return Encoded(out)


def _accepted_filter(source: bytes, position: int, session_id: str) -> bytes:
    pairs = bytearray()
    count = 0
    for key, start, value_start, end in iter_map_raw(source, position):
        count += 2
        if key != SESSION_FILTER:
            pairs += source[start:end]
            continue
        pairs += encode(SESSION_FILTER)
        if source[value_start] == 0:
            pairs += source[value_start : decode(source, value_start + 1)[1]]
        pairs += encode(session_id)
    out = bytearray()
    compound8_or_32(out, 0xC1, 0xD1, count, pairs)
    return bytes(out)


def accepted_properties(locked_until_ms: int) -> dict[Symbol, Long]:
    """Tell until when the session is held. Source: wire contract 0.4, 2.6."""
    return {LOCKED_UNTIL: Long(locked_until_ms * _TICKS_PER_MS + _TICKS_OF_1970)}


def asked_for(event: LinkAttached) -> str:
    """Name the entity of an attach for the text of a refusal, as far as there is one."""
    address = _address(event)
    return shown(parse_node(address[:NAME_LENGTH_MAX]).address) if isinstance(address, str) else ""


def _address(event: LinkAttached) -> object:
    terminus = event.target if event.role is Role.SENDER else event.source
    return None if terminus is None or isinstance(terminus, Coordinator) else terminus.address
