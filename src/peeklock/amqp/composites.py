"""Composite types: their codes, the table of their fields, checked decoding, encoding.

Must not know what a field means, nor in which state a performative is legal. Every composite is sent with the
descriptor `00 53 <code>`, which the official Python client reads by position (wire contract 0.2).
Source: OASIS AMQP 1.0 sections 2.7, 2.8.14, 3.4, 3.5, 4.5 and 5.3.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from .codec import DecodeError, decode_typed, read_list_header
from .encoding import compound8_or_32, encode_into
from .errors import INVALID_FIELD, RemoteProtocolError
from .types import Described, Encoded

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
DECLARE: Final = 0x31
DISCHARGE: Final = 0x32
DECLARED: Final = 0x33
TRANSACTIONAL_STATE: Final = 0x34
SASL_MECHANISMS: Final = 0x40
SASL_INIT: Final = 0x41
SASL_CHALLENGE: Final = 0x42
SASL_RESPONSE: Final = 0x43
SASL_OUTCOME: Final = 0x44

_COMPOSITES: Final[dict[int, tuple[str, str]]] = {
    OPEN: (
        "open",
        "container-id:string! hostname:string max-frame-size:uint channel-max:ushort idle-time-out:uint "
        "outgoing-locales incoming-locales offered-capabilities desired-capabilities properties:map",
    ),
    BEGIN: (
        "begin",
        "remote-channel:ushort next-outgoing-id:uint! incoming-window:uint! outgoing-window:uint! "
        "handle-max:uint offered-capabilities desired-capabilities properties:map",
    ),
    ATTACH: (
        "attach",
        "name:string! handle:uint! role:boolean! snd-settle-mode:ubyte rcv-settle-mode:ubyte source target "
        "unsettled:map incomplete-unsettled:boolean initial-delivery-count:uint max-message-size:ulong "
        "offered-capabilities desired-capabilities properties:map",
    ),
    FLOW: (
        "flow",
        "next-incoming-id:uint incoming-window:uint! next-outgoing-id:uint! outgoing-window:uint! "
        "handle:uint delivery-count:uint link-credit:uint available:uint drain:boolean echo:boolean "
        "properties:map",
    ),
    TRANSFER: (
        "transfer",
        "handle:uint! delivery-id:uint delivery-tag:binary message-format:uint settled:boolean more:boolean "
        "rcv-settle-mode:ubyte state resume:boolean aborted:boolean batchable:boolean",
    ),
    DISPOSITION: (
        "disposition",
        "role:boolean! first:uint! last:uint settled:boolean state batchable:boolean",
    ),
    DETACH: ("detach", "handle:uint! closed:boolean error"),
    END: ("end", "error"),
    CLOSE: ("close", "error"),
    ERROR: ("error", "condition:symbol! description:string info:map"),
    RECEIVED: ("received", "section-number:uint! section-offset:ulong!"),
    ACCEPTED_CODE: ("accepted", ""),
    REJECTED: ("rejected", "error"),
    RELEASED_CODE: ("released", ""),
    MODIFIED: ("modified", "delivery-failed:boolean undeliverable-here:boolean message-annotations:map"),
    SOURCE: (
        "source",
        "address durable:uint expiry-policy:symbol timeout:uint dynamic:boolean dynamic-node-properties:map "
        "distribution-mode:symbol filter:map default-outcome outcomes capabilities",
    ),
    TARGET: (
        "target",
        "address durable:uint expiry-policy:symbol timeout:uint dynamic:boolean dynamic-node-properties:map "
        "capabilities",
    ),
    COORDINATOR: ("coordinator", "capabilities"),
    DECLARE: ("declare", "global-id"),
    DISCHARGE: ("discharge", "txn-id fail:boolean"),
    DECLARED: ("declared", "txn-id:binary!"),
    # The coordinator refuses a missing or wrong txn-id, see `performatives.transaction_id`.
    TRANSACTIONAL_STATE: ("transactional-state", "txn-id outcome"),
    SASL_MECHANISMS: ("sasl-mechanisms", "sasl-server-mechanisms!"),
    SASL_INIT: ("sasl-init", "mechanism:symbol! initial-response:binary hostname:string"),
    SASL_CHALLENGE: ("sasl-challenge", "challenge:binary!"),
    SASL_RESPONSE: ("sasl-response", "response:binary!"),
    SASL_OUTCOME: ("sasl-outcome", "code:ubyte! additional-data:binary"),
}
"""Name and fields: `name:kind`; no kind = any value, `!` = mandatory."""

NAMES: Final = {
    code: name
    for code, (name, _) in _COMPOSITES.items()
    if OPEN <= code <= CLOSE or SASL_MECHANISMS <= code <= SASL_OUTCOME
}
"""What a frame may contain."""

_SYMBOLIC: Final = {f"amqp:{name}:list": code for code, (name, _) in _COMPOSITES.items()}
_INTEGER_MAX: Final = {"uint": 0xFFFFFFFF, "ushort": 0xFFFF, "ubyte": 0xFF, "ulong": 0xFFFFFFFFFFFFFFFF}
_CLASSES: Final = {"boolean": bool, "string": str, "symbol": str, "binary": bytes, "map": dict}


def _parsed(field: str) -> tuple[str, str, bool]:
    name, _, kind = field.removesuffix("!").partition(":")
    return name, kind, field.endswith("!")


_FIELDS: Final = {code: tuple(map(_parsed, text.split())) for code, (_, text) in _COMPOSITES.items()}
"""Name, kind, mandatory of each field."""


@dataclass(slots=True)
class Performative:
    """A decoded frame body: code, checked fields, the span of each field, start of the payload."""

    code: int
    fields: list[Any]
    spans: list[tuple[int, int]]
    payload_start: int

    def raw(self, buf: bytes, index: int) -> Encoded:
        """Return field `index` as encoded; null if absent."""
        if index >= len(self.spans):
            return Encoded(b"\x40")
        start, end = self.spans[index]
        return Encoded(buf[start:end])

    def size_of(self, index: int) -> int:
        """Return the encoded size of field `index`; 0 if absent."""
        if index >= len(self.spans):
            return 0
        start, end = self.spans[index]
        return end - start


_FLOW_HEAD: Final = b"\x00\x53\x13"
_FLAGS: Final = {0x40: None, 0x41: True, 0x42: False}
_U32 = struct.Struct(">I").unpack_from
_LIST32 = struct.Struct(">II").unpack_from


def decode_performative(body: bytes, depth: int) -> Performative:
    """Decode and check the performative at the start of a frame body.

    Raises:
        DecodeError: not a described list, or of an unknown type.
        RemoteProtocolError: invalid-field, for a missing or wrong field.
    """
    if body[:3] == _FLOW_HEAD:
        flow = _usual_flow(body)
        if flow is not None:
            return flow
    code, offset = performative_code(body)
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
    return Performative(code, checked_fields(code, fields), spans, end)


def performative_code(body: bytes) -> tuple[int, int]:
    """Return the code of the performative at the start of a frame body, and the offset of its fields.

    Raises:
        DecodeError: it is none. The text quotes no value but a number: the bytes may be a message.
    """
    if not body or body[0] != 0:
        raise DecodeError("frame body is not a described type")
    descriptor, offset = decode_typed(body, 1, depth_max=2)
    code = code_of(descriptor)
    if code not in NAMES:
        shown = (
            int(descriptor) if isinstance(descriptor, int) else f"descriptor of {type(descriptor).__name__}"
        )
        raise DecodeError(f"{shown} is not a performative")
    return code, offset


def _usual_flow(body: bytes) -> Performative | None:
    """Fast path: a flow of uints, nulls and booleans. Clients that receive singly send one for each message.

    Return None to leave anything else to the general decoder.
    """
    size = len(body)
    constructor = body[3] if size > 12 else None
    if constructor == 0xC0:
        end, count, at = 5 + body[4], body[5], 6
    elif constructor == 0xD0:
        (list_bytes, count), at = _LIST32(body, 4), 12
        end = 8 + list_bytes
    else:
        return None
    if end != size or not 4 <= count <= 11:
        return None
    fields: list[Any] = []
    while at < end and len(fields) < 8:
        code = body[at]
        if code == 0x52 and at + 1 < end:
            fields.append(body[at + 1])
            at += 2
        elif code == 0x43:
            fields.append(0)
            at += 1
        elif code == 0x40:
            fields.append(None)
            at += 1
        elif code == 0x70 and at + 5 <= end:
            fields.append(_U32(body, at + 1)[0])
            at += 5
        else:
            return None
    while at < end and len(fields) < 10:
        code = body[at]
        if code not in _FLAGS:
            return None
        fields.append(_FLAGS[code])
        at += 1
    if at < end and body[at] == 0x40:  # properties
        fields.append(None)
        at += 1
    if at != end or len(fields) != count or None in fields[1:4]:
        return None
    return Performative(FLOW, fields + [None] * (11 - count), [], end)


def code_of(descriptor: Any) -> int:
    """Return the code of a numeric or symbolic descriptor; -1 for anything else."""
    if isinstance(descriptor, int):
        return descriptor
    if isinstance(descriptor, str):
        return _SYMBOLIC.get(descriptor, -1)
    return -1


def composite_name(code: int) -> str:
    """Return the name of a composite type; empty for an unknown code."""
    return _COMPOSITES[code][0] if code in _COMPOSITES else ""


def field_names(code: int) -> list[str]:
    """Return the names of the fields of a composite type; none for an unknown code."""
    return [name for name, _, _ in _FIELDS.get(code, ())]


def described_list(value: Any, what: str) -> tuple[int, list[Any]]:
    """Return code and fields of a decoded described list.

    Raises:
        RemoteProtocolError: `value` is not one; `what` names it in the error.
    """
    if not isinstance(value, Described) or type(value.value) is not list:
        raise RemoteProtocolError(INVALID_FIELD, f"{type(value).__name__} instead of a {what}")
    return code_of(value.descriptor), value.value


def checked_fields(code: int, fields: list[Any]) -> list[Any]:
    """Check the fields of a composite; append None for omitted ones.

    Raises:
        RemoteProtocolError: invalid-field: a missing, null or wrong field, or too many of them.
    """
    table = _FIELDS[code]
    if len(fields) > len(table):
        raise RemoteProtocolError(INVALID_FIELD, f"{len(fields)} fields, at most {len(table)} are allowed")
    for position, value in enumerate(fields):
        name, kind, mandatory = table[position]
        if value is None:
            if mandatory:
                raise RemoteProtocolError(INVALID_FIELD, f"mandatory field {name} is null")
        elif kind in _INTEGER_MAX:
            # The width is not enforced: some clients send the smallest integer that fits.
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _INTEGER_MAX[kind]:
                raise RemoteProtocolError(INVALID_FIELD, f"{_shown(value)} is not a valid {name}")
        elif kind and not isinstance(value, _CLASSES[kind]):
            raise RemoteProtocolError(INVALID_FIELD, f"{_shown(value)} is not a valid {name}")
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
    """Encode a described list; with `trim`, omit nulls at its end."""
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
