"""What a client's attach asks for, decided from its termini alone, and the source that answers it.

It refuses what can be refused without the entity. Source: wire contract 2.1, 2.4, 2.6, C42.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from peeklock.amqp.codec import decode, iter_map_raw, read_list_header, skip
from peeklock.amqp.encoding import compound8_or_32, encode
from peeklock.amqp.events import LinkAttached
from peeklock.amqp.performatives import Coordinator, Source
from peeklock.amqp.types import Described, Encoded, Long, Role, Symbol
from peeklock.auth import Right
from peeklock.broker.content.routing import ID_LENGTH_MAX
from peeklock.broker.vocabulary.commands import ReceiveMode, SessionRequest, SubQueue
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation, NotSupported
from peeklock.gateway.address import COORDINATOR, Node, NodeKind, parse_node, shown
from peeklock.gateway.errors import AddressInvalid, FilterInvalid

SESSION_FILTER = Symbol("com.microsoft:session-filter")
SESSION_FILTER_CODE = 0x000000137000000C
"""Descriptor of the filter's value as Go sends it; the others send the value alone. Source: wire contract
2.6."""

UNSUPPORTED_FILTERS = {
    0x0000468C00000004: "a message selector",
    "apache.org:selector-filter:string": "a message selector",
    0x0000468C00000003: "a no-local filter",
    "apache.org:no-local-filter:list": "a no-local filter",
}
"""Descriptors of JMS's filters: ignored, they would deliver messages that the client did not ask for. Source:
wire contract C42."""

SHARED_SESSIONS = (0x000000137000000E, "com.microsoft:non-exclusive-session-filter")
"""Descriptors, and the second also the key, of .NET's filter for sessions that receivers share. Source: wire
contract C45."""

TIMEOUT = Symbol("com.microsoft:timeout")
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"

NAME_LENGTH_MAX = 512
"""Characters of an address that a refusal quotes. Our choice: host, path (260) and suffixes fit."""

SESSION_WAIT_MS = 65_000
"""How long an attach waits for the next session by default. Source: wire contract 2.6."""

SESSION_WAIT_MS_MAX = 86_400_000
"""Our choice: a day; a client that wants to wait longer attaches again."""

_TICKS_PER_MS = 10_000
_TICKS_OF_1970 = 621_355_968_000_000_000
"""Ticks of 100 ns from the year 1 to 1970, as .NET's DateTime counts them. Source: wire contract 2.6."""

_FILTER = 7
"""Position in a source (AMQP 3.5.3)."""

_SETTLED = 1
"""`snd-settle-mode` settled: receive and delete (wire contract 2.4)."""


class LinkKind(Enum):
    """What a client does on a link."""

    SEND = "send"
    RECEIVE = "receive"
    REQUEST = "request"
    REPLY = "reply"
    COORDINATE = "coordinate"


RIGHTS = {
    LinkKind.SEND: Right.SEND,
    LinkKind.RECEIVE: Right.LISTEN,
    LinkKind.REQUEST: None,
    LinkKind.REPLY: None,
    LinkKind.COORDINATE: None,
}
"""Kind of link -> the right that it needs; None = any right."""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """What an attach asks for."""

    kind: LinkKind
    node: Node
    mode: ReceiveMode = ReceiveMode.PEEK_LOCK
    session: SessionRequest | None = None
    destination: Node | None = None
    """Where messages go that are sent via the node."""


def read_attach(event: LinkAttached, now_ms: int) -> AttachRequest:
    """Read an attach.

    Raises:
        AddressInvalid: the node or the destination is missing or no address.
        InvalidOperation: a coordinator as the source.
        FilterInvalid: the session filter is neither a string nor null.
        ArgumentInvalid: the session id is too long.
        NotSupported: a JMS filter, a browser, or a shared subscription.
    """
    sends = event.role is Role.SENDER
    if isinstance(event.target, Coordinator):
        if not sends:
            raise InvalidOperation("A coordinator sends no messages: attach as a sender.")
        return AttachRequest(LinkKind.COORDINATE, COORDINATOR)
    address = _address(event)
    if not isinstance(address, str) or not address:
        raise AddressInvalid(f"The link '{event.name[:64]}' names no address.")
    node = parse_node(address)
    if node.kind is not NodeKind.CBS and not node.address.path:
        raise AddressInvalid(f"The address '{address[:64]}' names no entity.")
    if not sends and isinstance(event.source, Source):
        _check_supported(event.source)
    if node.kind is not NodeKind.ENTITY:
        return AttachRequest(LinkKind.REQUEST if sends else LinkKind.REPLY, node)
    if sends:
        return AttachRequest(LinkKind.SEND, node, destination=_destination(event))
    settled = event.snd_settle_mode == _SETTLED
    mode = ReceiveMode.RECEIVE_AND_DELETE if settled else ReceiveMode.PEEK_LOCK
    return AttachRequest(LinkKind.RECEIVE, node, mode, _session_request(event, now_ms))


def claimed_paths(node: Node, destination: Node | None) -> list[str | None]:
    """Return the paths that a link needs its right for; None = any path, so that some claim is enough."""
    paths: list[str | None] = []
    if node.kind is not NodeKind.CBS:
        paths.append(None if node.kind is NodeKind.COORDINATOR else node.path)
    if destination is not None:
        paths.append(destination.path)
    return paths


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
    return node


def check_possible(asked: AttachRequest) -> None:
    """Refuse what no right allows. Check the rights first: their refusal says more.

    Raises:
        InvalidOperation: sending to a sub-queue, or via an entity to something else.
    """
    node, to = asked.node, asked.destination
    if asked.kind is LinkKind.SEND and node.address.sub_queue is not SubQueue.MAIN:
        raise InvalidOperation(f"It is not possible to send to the sub-queue '{shown(node.address)}'.")
    if to is not None and (to.kind is not NodeKind.ENTITY or to.address.sub_queue is not SubQueue.MAIN):
        raise InvalidOperation(f"It is not possible to send via an entity to '{to.path[:NAME_LENGTH_MAX]}'.")


def _check_supported(source: Source) -> None:
    """Raise NotSupported for a receiver that would lose messages if it were served like any other.

    A client that browses accepts each message that it shows, which would remove them. Source: wire contract
    C42; of the shared subscription, which Qpid JMS asks for by this capability, our choice: only the
    administration makes subscriptions.
    """
    if source.distribution_mode == "copy":
        raise NotSupported("The distribution mode 'copy' is not supported: peek instead of browsing.")
    capabilities = source.capabilities
    if capabilities == "shared" or (isinstance(capabilities, list) and "shared" in capabilities):
        raise NotSupported("Shared subscriptions are not supported: receive from a subscription.")
    for key, value in (source.filter or {}).items():
        descriptor = value.descriptor if isinstance(value, Described) else None
        if key == SHARED_SESSIONS[1] or descriptor in SHARED_SESSIONS:
            raise NotSupported("Sessions that receivers share are not supported: accept each session.")
        if isinstance(descriptor, (int, str)) and (what := UNSUPPORTED_FILTERS.get(descriptor)) is not None:
            raise NotSupported(f"A receiver with {what} is not supported: use the rules of a subscription.")


def _session_request(event: LinkAttached, now_ms: int) -> SessionRequest | None:
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
    return SessionRequest(value, now_ms + min(max(0, int(wait_ms)), SESSION_WAIT_MS_MAX))


def accepted_source(event: LinkAttached, session_id: str | None) -> Encoded | None:
    """Return the source that answers a receiver; None for the client's own, byte for byte.

    Only a filter in force is echoed (AMQP 3.5.3): the session filter, with the session that was locked. All
    else stays byte for byte. Source: wire contract 0.1, 2.6, C42.
    """
    if not isinstance(event.source, Source) or not event.source.filter:
        return None
    source = event.source_raw
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


def _accepted_filter(source: bytes, position: int, session_id: str | None) -> bytes:
    """Return the filter map with the session filter alone, or an empty one.

    The value has the client's descriptor, if any: Go reads only a described value, the others only a plain
    string.
    """
    pairs = bytearray()
    count = 0
    for key, _, value_start, _ in iter_map_raw(source, position):
        if key == SESSION_FILTER and session_id is not None:
            count += 2
            pairs += encode(SESSION_FILTER)
            if source[value_start] == 0:
                pairs += source[value_start : decode(source, value_start + 1)[1]]
            pairs += encode(session_id)
    out = bytearray()
    compound8_or_32(out, 0xC1, 0xD1, count, pairs)
    return bytes(out)


def accepted_properties(locked_until_ms: int) -> dict[Symbol, Long]:
    """Return the property with the end of the session's lock. Source: wire contract 0.4, 2.6."""
    return {LOCKED_UNTIL: Long(locked_until_ms * _TICKS_PER_MS + _TICKS_OF_1970)}


def asked_for(event: LinkAttached) -> str:
    """Return the entity of an attach for the text of a refusal; empty = it names none."""
    address = _address(event)
    return shown(parse_node(address[:NAME_LENGTH_MAX]).address) if isinstance(address, str) else ""


def _address(event: LinkAttached) -> object:
    terminus = event.target if event.role is Role.SENDER else event.source
    return None if terminus is None or isinstance(terminus, Coordinator) else terminus.address
