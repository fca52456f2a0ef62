"""Composite types: their codes, the table of their fields, decoding with checks, encoding.

Owns: one table per composite with each field's name, kind and whether it is mandatory. Must not know what a
field means, nor in which state a performative may come. Every composite is sent with the descriptor `00 53
<code>`, which the official Python client reads by position (wire contract 0.2).
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
"""What a frame may hold."""

_SYMBOLIC: Final = {
    f"amqp:{name}:list": code
    for code, name in (
        NAMES
        | {
            ERROR: "error",
            RECEIVED: "received",
            ACCEPTED_CODE: "accepted",
            REJECTED: "rejected",
            RELEASED_CODE: "released",
            MODIFIED: "modified",
            SOURCE: "source",
            TARGET: "target",
            COORDINATOR: "coordinator",
            DECLARE: "declare",
            DISCHARGE: "discharge",
            DECLARED: "declared",
            TRANSACTIONAL_STATE: "transactional-state",
        }
    ).items()
}


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
    DECLARE: (("global-id", _ANY, False),),
    DISCHARGE: (("txn-id", _ANY, False), ("fail", _BOOL, False)),
    DECLARED: (("txn-id", _BINARY, True),),
    # A txn-id that is missing or wrong is for the coordinator to refuse, see `performatives.transaction_id`.
    TRANSACTIONAL_STATE: (("txn-id", _ANY, False), ("outcome", _ANY, False)),
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


_FLOW_HEAD: Final = b"\x00\x53\x13"
_FLAGS: Final = {0x40: None, 0x41: True, 0x42: False}
_U32 = struct.Struct(">I").unpack_from
_LIST32 = struct.Struct(">II").unpack_from


def decode_performative(body: bytes, depth: int) -> Performative:
    """Decode and check the performative at the start of a frame body.

    Raises:
        DecodeError: the bytes are no described list, or of an unknown type.
        RemoteProtocolError: invalid-field, for a missing or wrong field.
    """
    if body[:3] == _FLOW_HEAD:
        flow = _usual_flow(body)
        if flow is not None:
            return flow
    if not body or body[0] != 0:
        raise DecodeError("frame body is not a described type")
    descriptor, offset = decode_typed(body, 1, depth_max=2)
    code = code_of(descriptor)
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
    return Performative(code, checked_fields(code, fields), spans, end)


def _usual_flow(body: bytes) -> Performative | None:
    """Read a flow of uints, nulls and booleans: a client that takes one message at a time sends one for each.

    None leaves it to the general decoder, whatever is wrong with it.
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
    """Give the code of a descriptor in its numeric or symbolic form, -1 for one that is neither."""
    if isinstance(descriptor, int):
        return descriptor
    if isinstance(descriptor, str):
        return _SYMBOLIC.get(descriptor, -1)
    return -1


def described_list(value: Any, what: str) -> tuple[int, list[Any]]:
    """Take a decoded described list apart: its code and its fields.

    Raises:
        RemoteProtocolError: something else where a `what` belongs.
    """
    if not isinstance(value, Described) or type(value.value) is not list:
        raise RemoteProtocolError(INVALID_FIELD, f"{type(value).__name__} where a {what} belongs")
    return code_of(value.descriptor), value.value


def checked_fields(code: int, fields: list[Any]) -> list[Any]:
    """Check the fields of a composite and fill up those left out with None.

    Raises:
        RemoteProtocolError: invalid-field, for a missing, null or wrong field or too many of them.
    """
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
