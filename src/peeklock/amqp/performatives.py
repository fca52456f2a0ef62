"""Performatives, termini and delivery states: their fields, their decoding with checks, their encoding.

Owns: one table per composite type with each field's name, kind and whether it is mandatory. Must not know in
which state a performative may come: that is `connection`, `session` and `link`. Every composite is sent with
the descriptor `00 53 <code>`, and every error as a list of three: the official Python client reads both by
position (wire contract 0.2). The usual transfers and dispositions do not pass here: `session` reads and
writes them inline.
Source: OASIS AMQP 1.0 sections 2.7, 2.8.14, 3.4, 3.5 and 4.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .codec import DecodeError, decode_typed, read_list_header
from .encoding import compound8_or_32, encode_into
from .errors import INVALID_FIELD, AmqpError, RemoteProtocolError
from .types import Array, Described, Encoded, Role, Symbol, UByte, UInt, ULong, UShort

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18
ERROR: Final = 0x1D
RECEIVED: Final = 0x23
ACCEPTED_CODE: Final = 0x24
REJECTED: Final = 0x25
RELEASED_CODE: Final = 0x26
MODIFIED: Final = 0x27
SOURCE: Final = 0x28
TARGET: Final = 0x29
COORDINATOR: Final = 0x30
DECLARED: Final = 0x33
TRANSACTIONAL_STATE: Final = 0x34
SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_CHALLENGE: Final = 0x42
SASL_RESPONSE: Final = 0x43
SASL_OUTCOME: Final = 0x44

NAMES: Final = {
    OPEN: "open",
    BEGIN: "begin",
    ATTACH: "attach",
    FLOW: "flow",
    TRANSFER: "transfer",
    DISPOSITION: "disposition",
    DETACH: "detach",
    END: "end",
    CLOSE: "close",
    SASL_MECHANISMS: "sasl-mechanisms",
    SASL_INIT: "sasl-init",
    SASL_CHALLENGE: "sasl-challenge",
    SASL_RESPONSE: "sasl-response",
    SASL_OUTCOME: "sasl-outcome",
}


# --- delivery states
# -------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Accepted:
    """The delivery was processed (AMQP 3.4.2)."""


@dataclass(slots=True, frozen=True)
class Rejected:
    """The delivery is invalid and cannot be processed (AMQP 3.4.3)."""

    error: AmqpError | None = None


@dataclass(slots=True, frozen=True)
class Released:
    """The delivery was not and will not be processed (AMQP 3.4.4)."""


@dataclass(slots=True, frozen=True)
class Modified:
    """The delivery was changed but not processed (AMQP 3.4.5)."""

    delivery_failed: bool = False
    undeliverable_here: bool = False
    message_annotations: dict[Any, Any] | None = None


@dataclass(slots=True, frozen=True)
class Received:
    """How far a partial delivery has come (AMQP 3.4.1)."""

    section_number: int = 0
    section_offset: int = 0


@dataclass(slots=True, frozen=True)
class Declared:
    """The outcome of a declare: the new transaction's id (AMQP 4.5.5)."""

    txn_id: bytes


@dataclass(slots=True, frozen=True)
class TransactionalState:
    """The state of a delivery inside a transaction (AMQP 4.5.8)."""

    txn_id: bytes
    outcome: DeliveryState | None = None


DeliveryState = Accepted | Rejected | Released | Modified | Received | Declared | TransactionalState

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()

_ACCEPTED_BYTES: Final = b"\x00\x53\x24\x45"
_RELEASED_BYTES: Final = b"\x00\x53\x26\x45"


def encode_state(state: DeliveryState | None) -> bytes:
    """Encode a delivery state, or null."""
    if state is ACCEPTED:
        return _ACCEPTED_BYTES
    if state is RELEASED:
        return _RELEASED_BYTES
    if state is None:
        return b"\x40"
    return _STATE_ENCODERS[type(state)](state)


def _encode_accepted(state: Any) -> bytes:
    return _ACCEPTED_BYTES


def _encode_released(state: Any) -> bytes:
    return _RELEASED_BYTES


def _encode_rejected(state: Rejected) -> bytes:
    if state.error is None:
        return b"\x00\x53\x25\x45"
    return composite(REJECTED, [Encoded(encode_error(state.error))])


def _encode_modified(state: Modified) -> bytes:
    annotations = state.message_annotations
    return composite(MODIFIED, [state.delivery_failed, state.undeliverable_here, annotations])


def _encode_received(state: Received) -> bytes:
    return composite(RECEIVED, [UInt(state.section_number), ULong(state.section_offset)])


def _encode_declared(state: Declared) -> bytes:
    return composite(DECLARED, [state.txn_id])


def _encode_transactional(state: TransactionalState) -> bytes:
    return composite(TRANSACTIONAL_STATE, [state.txn_id, Encoded(encode_state(state.outcome))])


_STATE_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Accepted: _encode_accepted,
    Released: _encode_released,
    Rejected: _encode_rejected,
    Modified: _encode_modified,
    Received: _encode_received,
    Declared: _encode_declared,
    TransactionalState: _encode_transactional,
}


def decode_state(value: Any) -> DeliveryState | None:
    """Turn a decoded described value into a delivery state.

    Raises:
        RemoteProtocolError: not a delivery state, or with wrong fields.
    """
    if value is None:
        return None
    code, fields = _described_list(value, "delivery state")
    if code == ACCEPTED_CODE:
        return ACCEPTED
    if code == RELEASED_CODE:
        return RELEASED
    if code == REJECTED:
        return Rejected(decode_error(fields[0]) if fields else None)
    if code == MODIFIED:
        failed, undeliverable, annotations = _checked(MODIFIED, fields)
        return Modified(bool(failed), bool(undeliverable), annotations)
    if code == RECEIVED:
        number, offset = _checked(RECEIVED, fields)
        return Received(number, offset)
    if code == DECLARED:
        return Declared(_checked(DECLARED, fields)[0])
    if code == TRANSACTIONAL_STATE:
        txn_id, outcome = _checked(TRANSACTIONAL_STATE, fields)
        inner = decode_state(outcome)
        if isinstance(inner, (Received, TransactionalState)):
            raise RemoteProtocolError(INVALID_FIELD, "the outcome of a transactional-state is not an outcome")
        return TransactionalState(txn_id, inner)
    raise RemoteProtocolError(INVALID_FIELD, f"0x{code:x} is not a delivery state")


def encode_error(error: AmqpError) -> bytes:
    """Encode an error with all its three fields."""
    return composite(ERROR, [error.condition, error.description, error.info], trim=False)


def decode_error(value: Any) -> AmqpError | None:
    """Turn a decoded described value into an error; a condition sent as a string is taken too.

    Raises:
        RemoteProtocolError: not an error.
    """
    if value is None:
        return None
    code, fields = _described_list(value, "error")
    if code != ERROR:
        raise RemoteProtocolError(INVALID_FIELD, f"0x{code:x} where an error belongs")
    condition, description, info = _checked(ERROR, fields)
    return AmqpError(condition, description or "", info)


# --- termini
# ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Source:
    """Where a link's messages come from (AMQP 3.5.3). `timeout` in seconds."""

    address: Any = None
    durable: int = 0
    expiry_policy: str | None = None
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    distribution_mode: str | None = None
    filter: dict[Any, Any] | None = None
    default_outcome: Any = None
    outcomes: Any = None
    capabilities: Any = None


@dataclass(slots=True)
class Target:
    """Where a link's messages go (AMQP 3.5.4). `timeout` in seconds."""

    address: Any = None
    durable: int = 0
    expiry_policy: str | None = None
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    capabilities: Any = None


@dataclass(slots=True)
class Coordinator:
    """The target of a transaction controller's link (AMQP 4.5.1)."""

    capabilities: Any = None


Terminus = Source | Target | Coordinator


def encode_terminus(terminus: Terminus | Encoded | None) -> bytes:
    """Encode a source, target or coordinator; null for None; an `Encoded` value as it is."""
    if terminus is None:
        return b"\x40"
    if isinstance(terminus, Encoded):
        return terminus
    if isinstance(terminus, Coordinator):
        # Explicit null: clients index the list by position.
        return composite(COORDINATOR, [_symbols(terminus.capabilities)], trim=False)
    fields = [
        terminus.address,
        UInt(terminus.durable),
        _symbol(terminus.expiry_policy),
        UInt(terminus.timeout),
        terminus.dynamic,
        terminus.dynamic_node_properties,
    ]
    if isinstance(terminus, Target):
        return composite(TARGET, [*fields, _symbols(terminus.capabilities)])
    fields += [
        _symbol(terminus.distribution_mode),
        terminus.filter,
        terminus.default_outcome,
        _symbols(terminus.outcomes),
        _symbols(terminus.capabilities),
    ]
    return composite(SOURCE, fields)


def decode_terminus(value: Any) -> Terminus | None:
    """Turn a decoded described value into a source, target or coordinator.

    Raises:
        RemoteProtocolError: another type, or wrong fields.
    """
    if value is None:
        return None
    code, fields = _described_list(value, "terminus")
    if code == SOURCE:
        values = _checked(SOURCE, fields)
        return Source(
            values[0], values[1] or 0, values[2], values[3] or 0, bool(values[4]), values[5], *values[6:11]
        )
    if code == TARGET:
        values = _checked(TARGET, fields)
        return Target(
            values[0], values[1] or 0, values[2], values[3] or 0, bool(values[4]), values[5], values[6]
        )
    if code == COORDINATOR:
        return Coordinator(_checked(COORDINATOR, fields)[0])
    raise RemoteProtocolError(INVALID_FIELD, f"0x{code:x} is not a terminus")


def _symbol(value: str | None) -> Symbol | None:
    return None if value is None else Symbol(value)


def _symbols(value: Any) -> Any:
    """Turn a tuple or list of names into an array of symbols; pass on what a peer sent as it came."""
    if value is None or isinstance(value, (str, Array, Encoded)):
        return _symbol(value) if isinstance(value, str) else value
    return Array.of(Symbol, value)


# --- fields of each composite
# ----------------------------------------------------------------------------------

_UINT, _USHORT, _UBYTE, _ULONG, _BOOL, _STRING, _SYMBOL, _BINARY, _MAP, _ANY = range(10)

_INTEGER_MAX: Final = {_UINT: 0xFFFFFFFF, _USHORT: 0xFFFF, _UBYTE: 0xFF, _ULONG: 0xFFFFFFFFFFFFFFFF}
_CLASSES: Final[dict[int, type]] = {_BOOL: bool, _STRING: str, _SYMBOL: str, _BINARY: bytes, _MAP: dict}

Field = tuple[str, int, bool]
"""Name, kind, mandatory."""

FIELDS: Final[dict[int, tuple[Field, ...]]] = {
    OPEN: (
        ("container-id", _STRING, True),
        ("hostname", _STRING, False),
        ("max-frame-size", _UINT, False),
        ("channel-max", _USHORT, False),
        ("idle-time-out", _UINT, False),
        ("outgoing-locales", _ANY, False),
        ("incoming-locales", _ANY, False),
        ("offered-capabilities", _ANY, False),
        ("desired-capabilities", _ANY, False),
        ("properties", _MAP, False),
    ),
    BEGIN: (
        ("remote-channel", _USHORT, False),
        ("next-outgoing-id", _UINT, True),
        ("incoming-window", _UINT, True),
        ("outgoing-window", _UINT, True),
        ("handle-max", _UINT, False),
        ("offered-capabilities", _ANY, False),
        ("desired-capabilities", _ANY, False),
        ("properties", _MAP, False),
    ),
    ATTACH: (
        ("name", _STRING, True),
        ("handle", _UINT, True),
        ("role", _BOOL, True),
        ("snd-settle-mode", _UBYTE, False),
        ("rcv-settle-mode", _UBYTE, False),
        ("source", _ANY, False),
        ("target", _ANY, False),
        ("unsettled", _MAP, False),
        ("incomplete-unsettled", _BOOL, False),
        ("initial-delivery-count", _UINT, False),
        ("max-message-size", _ULONG, False),
        ("offered-capabilities", _ANY, False),
        ("desired-capabilities", _ANY, False),
        ("properties", _MAP, False),
    ),
    FLOW: (
        ("next-incoming-id", _UINT, False),
        ("incoming-window", _UINT, True),
        ("next-outgoing-id", _UINT, True),
        ("outgoing-window", _UINT, True),
        ("handle", _UINT, False),
        ("delivery-count", _UINT, False),
        ("link-credit", _UINT, False),
        ("available", _UINT, False),
        ("drain", _BOOL, False),
        ("echo", _BOOL, False),
        ("properties", _MAP, False),
    ),
    TRANSFER: (
        ("handle", _UINT, True),
        ("delivery-id", _UINT, False),
        ("delivery-tag", _BINARY, False),
        ("message-format", _UINT, False),
        ("settled", _BOOL, False),
        ("more", _BOOL, False),
        ("rcv-settle-mode", _UBYTE, False),
        ("state", _ANY, False),
        ("resume", _BOOL, False),
        ("aborted", _BOOL, False),
        ("batchable", _BOOL, False),
    ),
    DISPOSITION: (
        ("role", _BOOL, True),
        ("first", _UINT, True),
        ("last", _UINT, False),
        ("settled", _BOOL, False),
        ("state", _ANY, False),
        ("batchable", _BOOL, False),
    ),
    DETACH: (("handle", _UINT, True), ("closed", _BOOL, False), ("error", _ANY, False)),
    END: (("error", _ANY, False),),
    CLOSE: (("error", _ANY, False),),
    ERROR: (("condition", _SYMBOL, True), ("description", _STRING, False), ("info", _MAP, False)),
    RECEIVED: (("section-number", _UINT, True), ("section-offset", _ULONG, True)),
    MODIFIED: (
        ("delivery-failed", _BOOL, False),
        ("undeliverable-here", _BOOL, False),
        ("message-annotations", _MAP, False),
    ),
    DECLARED: (("txn-id", _BINARY, True),),
    TRANSACTIONAL_STATE: (("txn-id", _BINARY, True), ("outcome", _ANY, False)),
    SOURCE: (
        ("address", _ANY, False),
        ("durable", _UINT, False),
        ("expiry-policy", _SYMBOL, False),
        ("timeout", _UINT, False),
        ("dynamic", _BOOL, False),
        ("dynamic-node-properties", _MAP, False),
        ("distribution-mode", _SYMBOL, False),
        ("filter", _MAP, False),
        ("default-outcome", _ANY, False),
        ("outcomes", _ANY, False),
        ("capabilities", _ANY, False),
    ),
    TARGET: (
        ("address", _ANY, False),
        ("durable", _UINT, False),
        ("expiry-policy", _SYMBOL, False),
        ("timeout", _UINT, False),
        ("dynamic", _BOOL, False),
        ("dynamic-node-properties", _MAP, False),
        ("capabilities", _ANY, False),
    ),
    COORDINATOR: (("capabilities", _ANY, False),),
    SASL_MECHANISMS: (("sasl-server-mechanisms", _ANY, True),),
    SASL_INIT: (
        ("mechanism", _SYMBOL, True),
        ("initial-response", _BINARY, False),
        ("hostname", _STRING, False),
    ),
    SASL_CHALLENGE: (("challenge", _BINARY, True),),
    SASL_RESPONSE: (("response", _BINARY, True),),
    SASL_OUTCOME: (("code", _UBYTE, True), ("additional-data", _BINARY, False)),
}

_SYMBOLIC: Final = {
    "amqp:open:list": OPEN,
    "amqp:begin:list": BEGIN,
    "amqp:attach:list": ATTACH,
    "amqp:flow:list": FLOW,
    "amqp:transfer:list": TRANSFER,
    "amqp:disposition:list": DISPOSITION,
    "amqp:detach:list": DETACH,
    "amqp:end:list": END,
    "amqp:close:list": CLOSE,
    "amqp:error:list": ERROR,
    "amqp:received:list": RECEIVED,
    "amqp:accepted:list": ACCEPTED_CODE,
    "amqp:rejected:list": REJECTED,
    "amqp:released:list": RELEASED_CODE,
    "amqp:modified:list": MODIFIED,
    "amqp:source:list": SOURCE,
    "amqp:target:list": TARGET,
    "amqp:coordinator:list": COORDINATOR,
    "amqp:declared:list": DECLARED,
    "amqp:transactional-state:list": TRANSACTIONAL_STATE,
    "amqp:sasl-mechanisms:list": SASL_MECHANISMS,
    "amqp:sasl-init:list": SASL_INIT,
    "amqp:sasl-challenge:list": SASL_CHALLENGE,
    "amqp:sasl-response:list": SASL_RESPONSE,
    "amqp:sasl-outcome:list": SASL_OUTCOME,
}


@dataclass(slots=True)
class Performative:
    """A decoded frame body: its code, its checked fields by position, each field's place, where the payload
    begins."""

    code: int
    fields: list[Any]
    spans: list[tuple[int, int]]
    payload_start: int

    def raw(self, buf: bytes, index: int) -> Encoded:
        """Give field `index` as it was encoded, null if it was left out."""
        if index >= len(self.spans):
            return Encoded(b"\x40")
        start, end = self.spans[index]
        return Encoded(buf[start:end])

    def size_of(self, index: int) -> int:
        """Give the encoded bytes of field `index`, 0 if it was left out."""
        if index >= len(self.spans):
            return 0
        start, end = self.spans[index]
        return end - start


def decode_performative(body: bytes, depth: int) -> Performative:
    """Decode and check the performative at the start of a frame body.

    Raises:
        DecodeError: the bytes are no described list, or of an unknown type.
        RemoteProtocolError: invalid-field, for a missing or wrong field.
    """
    if not body or body[0] != 0:
        raise DecodeError("frame body is not a described type")
    descriptor, offset = decode_typed(body, 1, depth_max=2)
    code = _code_of(descriptor)
    if code not in NAMES:
        raise DecodeError(f"{descriptor!r} is not a performative")
    position, end, count = read_list_header(body, offset)
    fields: list[Any] = []
    spans: list[tuple[int, int]] = []
    for _ in range(count):
        value, after = decode_typed(body, position, depth_max=depth, elements_max=len(body))
        fields.append(value)
        spans.append((position, after))
        position = after
    if position != end:
        raise DecodeError("size of a performative does not match its fields")
    return Performative(code, _checked(code, fields), spans, end)


def _code_of(descriptor: Any) -> int:
    if isinstance(descriptor, int):
        return descriptor
    if isinstance(descriptor, str):
        return _SYMBOLIC.get(descriptor, -1)
    return -1


def _described_list(value: Any, what: str) -> tuple[int, list[Any]]:
    if not isinstance(value, Described) or type(value.value) is not list:
        raise RemoteProtocolError(INVALID_FIELD, f"{type(value).__name__} where a {what} belongs")
    return _code_of(value.descriptor), value.value


def _checked(code: int, fields: list[Any]) -> list[Any]:
    """Check the fields of a composite and fill up those left out with None."""
    table = FIELDS[code]
    if len(fields) > len(table):
        raise RemoteProtocolError(INVALID_FIELD, f"{len(fields)} fields where at most {len(table)} belong")
    for position, value in enumerate(fields):
        name, kind, mandatory = table[position]
        if value is None:
            if mandatory:
                raise RemoteProtocolError(INVALID_FIELD, f"mandatory field {name} is null")
        elif kind in _INTEGER_MAX:
            # The width is not enforced: some clients send the smallest integer that fits.
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _INTEGER_MAX[kind]:
                raise RemoteProtocolError(INVALID_FIELD, f"{_shown(value)} is no valid {name}")
        elif kind != _ANY and not isinstance(value, _CLASSES[kind]):
            raise RemoteProtocolError(INVALID_FIELD, f"{_shown(value)} is no valid {name}")
    if len(fields) == len(table):
        return fields
    for name, _, mandatory in table[len(fields) :]:
        if mandatory:
            raise RemoteProtocolError(INVALID_FIELD, f"mandatory field {name} is missing")
    return fields + [None] * (len(table) - len(fields))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 64 else text[:61] + "..."


def composite(code: int, fields: list[Any], *, trim: bool = True) -> bytes:
    """Encode a described list; nulls at its end are left out when `trim`."""
    count = len(fields)
    if trim:
        while count and fields[count - 1] is None:
            count -= 1
    body = bytearray()
    for value in fields[:count]:
        encode_into(body, value)
    out = bytearray((0x00, 0x53, code))
    if count:
        compound8_or_32(out, 0xC0, 0xD0, count, body)
    else:
        out.append(0x45)
    return bytes(out)


# --- encoders of the performatives
# -----------------------------------------------------------------------------


def encode_open(
    container_id: str,
    hostname: str | None,
    max_frame_size: int,
    channel_max: int,
    idle_timeout_ms: int | None,
    properties: dict[Any, Any] | None,
) -> bytes:
    """Encode `open` (AMQP 2.7.1)."""
    idle = None if idle_timeout_ms is None else UInt(idle_timeout_ms)
    return composite(
        OPEN,
        [
            container_id,
            hostname,
            UInt(max_frame_size),
            UShort(channel_max),
            idle,
            None,
            None,
            None,
            None,
            properties,
        ],
    )


def encode_begin(remote_channel: int | None, next_outgoing_id: int, window: int, handle_max: int) -> bytes:
    """Encode `begin` with the same window both ways (AMQP 2.7.2)."""
    remote = None if remote_channel is None else UShort(remote_channel)
    return composite(BEGIN, [remote, UInt(next_outgoing_id), UInt(window), UInt(window), UInt(handle_max)])


def encode_attach(
    name: str,
    handle: int,
    role: Role,
    snd_settle_mode: int,
    rcv_settle_mode: int,
    source: Terminus | Encoded | None,
    target: Terminus | Encoded | None,
    initial_delivery_count: int | None,
    max_message_size: int | None,
    offered_capabilities: Any,
    properties: dict[Any, Any] | None,
) -> bytes:
    """Encode `attach` (AMQP 2.7.3)."""
    return composite(
        ATTACH,
        [
            name,
            UInt(handle),
            role.value,
            UByte(snd_settle_mode),
            UByte(rcv_settle_mode),
            Encoded(encode_terminus(source)),
            Encoded(encode_terminus(target)),
            None,
            None,
            None if initial_delivery_count is None else UInt(initial_delivery_count),
            None if max_message_size is None else ULong(max_message_size),
            _symbols(offered_capabilities),
            None,
            properties,
        ],
    )


def encode_flow(
    next_incoming_id: int | None,
    incoming_window: int,
    next_outgoing_id: int,
    outgoing_window: int,
    handle: int | None = None,
    delivery_count: int = 0,
    link_credit: int = 0,
    drain: bool = False,
    echo: bool = False,
) -> bytes:
    """Encode `flow`, of the session or, with `handle`, of a link (AMQP 2.7.4)."""
    fields: list[Any] = [
        None if next_incoming_id is None else UInt(next_incoming_id),
        UInt(incoming_window),
        UInt(next_outgoing_id),
        UInt(outgoing_window),
    ]
    if handle is not None:
        fields += [UInt(handle), UInt(delivery_count), UInt(link_credit), None, drain, echo]
    elif echo:
        fields += [None, None, None, None, False, True]
    return composite(FLOW, fields)


def encode_disposition(
    role: Role, first: int, last: int, settled: bool, state: DeliveryState | None
) -> bytes:
    """Encode `disposition` with its first five fields always present (AMQP 2.7.6)."""
    return composite(
        DISPOSITION,
        [role.value, UInt(first), UInt(last), settled, Encoded(encode_state(state))],
        trim=False,
    )


def encode_detach(handle: int, closed: bool, error: AmqpError | None) -> bytes:
    """Encode `detach` (AMQP 2.7.7)."""
    return composite(DETACH, [UInt(handle), closed, None if error is None else Encoded(encode_error(error))])


def encode_end(error: AmqpError | None) -> bytes:
    """Encode `end` (AMQP 2.7.8)."""
    return composite(END, [None if error is None else Encoded(encode_error(error))])


def encode_close(error: AmqpError | None) -> bytes:
    """Encode `close` (AMQP 2.7.9)."""
    return composite(CLOSE, [None if error is None else Encoded(encode_error(error))])
