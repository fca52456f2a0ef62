"""Performatives, termini and delivery states: their values, encoding and decoding.

Must not know in which state a performative is legal. The usual transfers and dispositions do not pass here:
`incoming` and `outgoing` read and write them inline.
Performatives and errors are sent with their nulls: older official Python clients index the fields without
counting them (wire contract 0.2).
Source: OASIS AMQP 1.0 sections 2.7, 2.8.14, 3.4, 3.5 and 4.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from .composites import (
    ACCEPTED_CODE,
    ATTACH,
    BEGIN,
    CLOSE,
    COORDINATOR,
    DECLARED,
    DETACH,
    DISPOSITION,
    END,
    ERROR,
    FLOW,
    MODIFIED,
    OPEN,
    RECEIVED,
    REJECTED,
    RELEASED_CODE,
    SOURCE,
    TARGET,
    TRANSACTIONAL_STATE,
    checked_fields,
    composite,
    described_list,
)
from .errors import INVALID_FIELD, AmqpError, RemoteProtocolError
from .types import Array, Encoded, Role, Symbol, UByte, UInt, ULong, UShort


@dataclass(slots=True, frozen=True)
class Accepted:
    """The delivery was processed (AMQP 3.4.2)."""


@dataclass(slots=True, frozen=True)
class Rejected:
    """The delivery is invalid (AMQP 3.4.3)."""

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
    """The received part of a partial delivery (AMQP 3.4.1)."""

    section_number: int = 0
    section_offset: int = 0


@dataclass(slots=True, frozen=True)
class Declared:
    """The outcome of a declare: the new transaction's id (AMQP 4.5.5)."""

    txn_id: bytes


@dataclass(slots=True, frozen=True)
class TransactionalState:
    """The state of a delivery inside a transaction (AMQP 4.5.6)."""

    txn_id: bytes
    outcome: DeliveryState | None = None


DeliveryState = Accepted | Rejected | Released | Modified | Received | Declared | TransactionalState

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()

ACCEPTED_BYTES: Final = b"\x00\x53\x24\x45"
_RELEASED_BYTES: Final = b"\x00\x53\x26\x45"


def encode_state(state: DeliveryState | None) -> bytes:
    """Encode a delivery state, or null."""
    if state is ACCEPTED:
        return ACCEPTED_BYTES
    if state is RELEASED:
        return _RELEASED_BYTES
    if state is None:
        return b"\x40"
    match state:
        case Accepted():
            return ACCEPTED_BYTES
        case Released():
            return _RELEASED_BYTES
        case Rejected(error):
            return composite(REJECTED, [_optional(error)])
        case Modified(failed, undeliverable, annotations):
            return composite(MODIFIED, [failed, undeliverable, annotations])
        case Received(number, offset):
            return composite(RECEIVED, [UInt(number), ULong(offset)])
        case Declared(txn_id):
            return composite(DECLARED, [txn_id])
        case TransactionalState(txn_id, outcome):
            return composite(TRANSACTIONAL_STATE, [txn_id, Encoded(encode_state(outcome))])


def decode_state(value: Any) -> DeliveryState | None:
    """Convert a decoded described value to a delivery state.

    Raises:
        RemoteProtocolError: not a delivery state, or wrong fields.
    """
    if value is None:
        return None
    code, fields = described_list(value, "delivery state")
    if code == ACCEPTED_CODE:
        return ACCEPTED
    if code == RELEASED_CODE:
        return RELEASED
    if code == REJECTED:
        return Rejected(decode_error(fields[0]) if fields else None)
    if code == MODIFIED:
        failed, undeliverable, annotations = checked_fields(MODIFIED, fields)
        return Modified(bool(failed), bool(undeliverable), annotations)
    if code == RECEIVED:
        number, offset = checked_fields(RECEIVED, fields)
        return Received(number, offset)
    if code == DECLARED:
        return Declared(checked_fields(DECLARED, fields)[0])
    if code == TRANSACTIONAL_STATE:
        txn_id, outcome = checked_fields(TRANSACTIONAL_STATE, fields)
        return TransactionalState(transaction_id(txn_id), decode_state(outcome))
    raise RemoteProtocolError(INVALID_FIELD, f"0x{code:x} is not a delivery state")


def transaction_id(value: Any) -> bytes:
    """Return the txn-id of a peer; empty, which names no transaction, for one that is missing or not binary.

    A client with a wrong id so gets `amqp:transaction:unknown-id` where it used it, and keeps the connection
    with its other transactions.
    """
    return value if isinstance(value, bytes) else b""


def encode_error(error: AmqpError) -> bytes:
    """Encode an error with all three fields."""
    return composite(ERROR, [error.condition, error.description, error.info], trim=False)


def _optional(error: AmqpError | None) -> Encoded | None:
    return None if error is None else Encoded(encode_error(error))


def decode_error(value: Any) -> AmqpError | None:
    """Convert a decoded described value to an error; its condition may also be a string.

    Raises:
        RemoteProtocolError: not an error.
    """
    if value is None:
        return None
    code, fields = described_list(value, "error")
    if code != ERROR:
        raise RemoteProtocolError(INVALID_FIELD, f"0x{code:x} is not an error")
    condition, description, info = checked_fields(ERROR, fields)
    return AmqpError(condition, description or "", info)


@dataclass(slots=True)
class Source:
    """The source of a link (AMQP 3.5.3). `timeout` in seconds."""

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
    """The target of a link (AMQP 3.5.4). `timeout` in seconds."""

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
    """Encode a source, target or coordinator; None as null; an `Encoded` value unchanged."""
    if terminus is None or isinstance(terminus, Encoded):
        return terminus or b"\x40"
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
    """Convert a decoded described value to a source, target or coordinator.

    Raises:
        RemoteProtocolError: another type, or wrong fields.
    """
    if value is None:
        return None
    code, fields = described_list(value, "terminus")
    if code in (SOURCE, TARGET):
        address, durable, policy, timeout, dynamic, properties, *rest = checked_fields(code, fields)
        kind = Source if code == SOURCE else Target
        return kind(address, durable or 0, policy, timeout or 0, bool(dynamic), properties, *rest)
    if code == COORDINATOR:
        return Coordinator(checked_fields(COORDINATOR, fields)[0])
    raise RemoteProtocolError(INVALID_FIELD, f"0x{code:x} is not a terminus")


def _symbol(value: str | None) -> Symbol | None:
    return None if value is None else Symbol(value)


def _symbols(value: Any) -> Any:
    """Return a tuple or list of names as an array of symbols; a value that a peer sent, unchanged."""
    if value is None or isinstance(value, (str, Array, Encoded)):
        return _symbol(value) if isinstance(value, str) else value
    return Array.of(Symbol, value)


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
    sizes = [UInt(max_frame_size), UShort(channel_max)]
    fields = [container_id, hostname, *sizes, idle, None, None, None, None, properties]
    return composite(OPEN, fields, trim=False)


def encode_begin(remote_channel: int | None, next_outgoing_id: int, window: int, handle_max: int) -> bytes:
    """Encode `begin` with the same window in both directions (AMQP 2.7.2)."""
    remote = None if remote_channel is None else UShort(remote_channel)
    fields = [remote, UInt(next_outgoing_id), UInt(window), UInt(window), UInt(handle_max)]
    return composite(BEGIN, fields, trim=False)


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
        trim=False,
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
        fields += [None, None, None, None, False, True]  # drain and echo follow four fields of a link
    return composite(FLOW, fields)


def encode_disposition(
    role: Role, first: int, last: int, settled: bool, state: DeliveryState | None
) -> bytes:
    """Encode `disposition` with its first five fields (AMQP 2.7.6)."""
    fields = [role.value, UInt(first), UInt(last), settled, Encoded(encode_state(state))]
    return composite(DISPOSITION, fields, trim=False)


def encode_detach(handle: int, closed: bool, error: AmqpError | None) -> bytes:
    """Encode `detach` (AMQP 2.7.7)."""
    return composite(DETACH, [UInt(handle), closed, _optional(error)], trim=False)


def encode_end(error: AmqpError | None) -> bytes:
    """Encode `end` (AMQP 2.7.8)."""
    return composite(END, [_optional(error)], trim=False)


def encode_close(error: AmqpError | None) -> bytes:
    """Encode `close` (AMQP 2.7.9)."""
    return composite(CLOSE, [_optional(error)], trim=False)
