"""The sections of a message as JSON, with the AMQP type of each value.

Source: AMQP 1.0 part 1 for the names of types, part 3.2 for those of sections and their fields.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from peeklock.amqp import types
from peeklock.amqp.codec import DecodeError, decode, decode_typed
from peeklock.amqp.decimals import number_of
from peeklock.amqp.messaging import Sections
from peeklock.api.instants import write_instant
from peeklock.api.schema import Schema, record, ref

EXACT_MAX = (1 << 53) - 1
"""The largest integer that every reader of JSON keeps exact. Source: RFC 8259, 6."""

_HEADER = ("durable", "priority", "ttl", "firstAcquirer", "deliveryCount")
_PROPERTIES = (
    "messageId", "userId", "to", "subject", "replyTo", "correlationId", "contentType", "contentEncoding",
    "absoluteExpiryTime", "creationTime", "groupId", "groupSequence", "replyToGroupId",
)  # fmt: skip

_FIELDS: Mapping[str, tuple[str, ...]] = {"header": _HEADER, "properties": _PROPERTIES}
"""Sections that are lists, with the names of their fields. The others are maps."""

_SECTIONS: Mapping[str, Callable[[Sections], tuple[int, int] | None]] = {
    "header": lambda sections: sections.header,
    "deliveryAnnotations": lambda sections: sections.delivery_annotations,
    "messageAnnotations": lambda sections: sections.message_annotations,
    "properties": lambda sections: sections.properties,
    "applicationProperties": lambda sections: sections.application_properties,
    "footer": lambda sections: sections.footer,
}

_WRAPPED: Mapping[type, str] = {
    types.UByte: "ubyte",
    types.UShort: "ushort",
    types.UInt: "uint",
    types.ULong: "ulong",
    types.Byte: "byte",
    types.Short: "short",
    types.Int: "int",
    types.Long: "long",
    types.Timestamp: "timestamp",
    types.Float: "float",
    types.Decimal32: "decimal32",
    types.Decimal64: "decimal64",
    types.Decimal128: "decimal128",
    types.Symbol: "symbol",
    types.Char: "char",
    types.Array: "array",
    types.Described: "described",
    UUID: "uuid",
    type(None): "null",
    bool: "boolean",
    float: "double",
    str: "string",
    bytes: "binary",
    list: "list",
    dict: "map",
}
"""Type of a decoded value -> name of its AMQP type."""

BODY_KINDS = ("data", "sequence", "value", "none")

AMQP_VALUE: Schema = {
    "type": "object",
    "required": ["type", "value"],
    "properties": {
        "type": {"type": "string", "enum": sorted(_WRAPPED.values())},
        "value": {
            "description": "Binary is base64. A timestamp, a decimal, a number that is not finite, and an "
            "integer beyond 2^53 are text. A list and an array have values, a map pairs of values.",
        },
        "descriptor": {"description": "Of a described value: a value."},
    },
    "additionalProperties": False,
    "description": "A value with its AMQP type.",
    "examples": [{"type": "uuid", "value": "00000000-0000-0000-0000-000000000001"}],
}

_VALUES: Schema = {"type": "object", "additionalProperties": ref("AmqpValue")}

SECTIONS: Schema = record(
    {
        **dict.fromkeys(_SECTIONS, _VALUES),
        "body": {
            "type": "array",
            "items": ref("AmqpValue"),
            "description": "The values of a body of kind `sequence` or `value`, unless it is cut.",
        },
        "malformed": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Sections that cannot be decoded.",
        },
    },
    (),
    description="The sections of a message as a receiver gets it. An absent section is absent here.",
)

NAMED = {"AmqpValue": AMQP_VALUE, "Sections": SECTIONS}


def sections_json(sections: Sections, *, with_body: bool) -> dict[str, Any]:
    """Return the sections of a message, and the kind of its body."""
    found: dict[str, Any] = {}
    malformed: list[str] = []
    for name, find in _SECTIONS.items():
        span = find(sections)
        if span is not None:
            try:
                found[name] = _section(sections.payload, span[0], _FIELDS.get(name))
            except DecodeError:
                malformed.append(name)
    kind = "none"
    try:
        parts = sections.decode_body(typed=with_body)
        kind = parts[0][0] if parts else "none"
        if with_body and kind in ("sequence", "value"):
            found["body"] = [value_json(value) for _, value in parts]
    except DecodeError:
        malformed.append("body")
    if malformed:
        found["malformed"] = malformed
    return {"sections": found, "bodyKind": kind}


def _section(payload: bytes, start: int, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return a section by the names of its values. Raises: DecodeError."""
    value, _ = decode_typed(payload, decode(payload, start + 1)[1])
    pairs: Iterable[tuple[Any, Any]]
    if names is None:
        if not isinstance(value, dict):
            raise DecodeError("the section is not a map")
        pairs = value.items()
    elif isinstance(value, list):
        pairs = [(name, field) for name, field in zip(names, value, strict=False) if field is not None]
    else:
        raise DecodeError("the section is not a list")
    return {str(name): value_json(field) for name, field in pairs}


def value_json(value: Any) -> dict[str, Any]:
    """Return a decoded value with its type."""
    kind = type(value)
    if kind is types.Described:
        described = {"descriptor": value_json(value.descriptor), "value": value_json(value.value)}
        return {"type": _WRAPPED[kind], **described}
    show = _SHOWN.get(kind)
    return {"type": _WRAPPED[kind], "value": value if show is None else show(value)}


def _integer(value: int) -> int | str:
    return int(value) if -EXACT_MAX <= value <= EXACT_MAX else str(int(value))


def _float(value: float) -> float | str:
    return float(value) if math.isfinite(value) else str(float(value))


def _decimal(value: Any) -> str:
    return str(number_of(value))


def _list(value: list[Any]) -> list[dict[str, Any]]:
    return [value_json(item) for item in value]


_SHOWN: Mapping[type, Callable[[Any], Any]] = {
    types.ULong: _integer,
    types.Long: _integer,
    types.Timestamp: lambda value: write_instant(value) or str(int(value)),
    types.Float: _float,
    float: _float,
    types.Decimal32: _decimal,
    types.Decimal64: _decimal,
    types.Decimal128: _decimal,
    UUID: str,
    bytes: lambda value: base64.b64encode(value).decode(),
    list: _list,
    types.Array: _list,
    dict: lambda value: [[value_json(key), value_json(item)] for key, item in value.items()],
}
"""How values are shown that JSON has not as they are."""
