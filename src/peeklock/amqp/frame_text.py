"""Kept frames as JSON values: performatives with the names of the specification, for people and programs.

The payload of a transfer and the responses of SASL are left out: messages and keys are not for a trace. It
takes whatever a peer has sent, also what the engine refuses.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from .codec import DecodeError, decode_typed, read_list_header
from .composites import (
    NAMES,
    SASL_CHALLENGE,
    SASL_INIT,
    SASL_OUTCOME,
    SASL_RESPONSE,
    TRANSFER,
    code_of,
    composite_name,
    field_names,
    performative_code,
)
from .recent_frames import PROTOCOL_BYTES, KeptFrame
from .types import Described

TEXT_LENGTH_MAX: Final = 500
"""Characters shown of a text, and bytes of a binary. Our choice: descriptions of errors have some 300."""

FRAME_SIZE_MAX: Final = 1024 * 1024
"""Bytes of the largest frame that is decoded. Our choice: clients announce at most this."""

_HEADER = struct.Struct(">IBBH").unpack_from
_SECRETS: Final = {(SASL_INIT, 1), (SASL_CHALLENGE, 0), (SASL_RESPONSE, 0), (SASL_OUTCOME, 1)}
"""Code of a performative, and the index of a field that may have a key."""


def described(frame: KeptFrame) -> dict[str, Any]:
    """Return a frame as a JSON object.

    `frame` is the name of its performative, or `header`, `empty`, `unreadable`; `payloadBytes` counts what
    follows a transfer's performative. Fields without a value are left out.
    """
    at_ms, direction, head = frame
    shown: dict[str, Any] = {"atMs": at_ms, "direction": direction}
    if head[:4] == b"AMQP":
        protocol = {0: "AMQP", 2: "TLS", 3: "SASL"}.get(head[4], f"protocol {head[4]}")
        version = ".".join(map(str, head[5:PROTOCOL_BYTES]))
        return {**shown, "frame": "header", "fields": {"protocol": protocol, "version": version}}
    size_bytes, offset, _, channel = _HEADER(head)
    shown |= {"frame": "empty", "channel": channel, "bytes": size_bytes}
    body = head[offset * 4 :]
    if size_bytes <= PROTOCOL_BYTES and size_bytes == len(head):
        return shown
    try:
        return shown | _performative(body, size_bytes - offset * 4)
    except DecodeError as failure:
        return {**shown, "frame": "unreadable", "why": str(failure), "begins": head[:12].hex(" ")}


def _performative(body: bytes, size_bytes: int) -> dict[str, Any]:
    """Return name and fields of the performative at the start of a body of `size_bytes`, which may be cut."""
    code, at = performative_code(body)
    there = len(body)
    body += bytes(max(min(size_bytes, FRAME_SIZE_MAX) - there, 0))  # the list states its whole size
    at, end, count = read_list_header(body, at)
    names = field_names(code)
    fields: dict[str, Any] = {}
    shown: dict[str, Any] = {"frame": NAMES[code], "fields": fields}
    for index in range(count):
        try:
            value, at = decode_typed(body, at)
        except DecodeError:
            if there >= size_bytes:
                raise
            at = len(body) + 1  # what is there instead of its end is no value
        if at > there:
            shown["cut"] = True
            break
        if value is not None:
            name = names[index] if index < len(names) else f"field-{index}"
            fields[name] = "(left out)" if (code, index) in _SECRETS else _field(name, value)
    if code == TRANSFER:
        shown["payloadBytes"] = max(size_bytes - end, 0)
    return shown


def _field(name: str, value: Any) -> Any:
    if name == "role" and isinstance(value, bool):
        return "receiver" if value else "sender"
    shown = _value(value)
    # A source in the field `source` need not say its type.
    return shown[name] if isinstance(shown, dict) and list(shown) == [name] else shown


def _value(value: Any) -> Any:
    """Return a decoded value as JSON; composites are objects of their names, bytes hexadecimal."""
    if isinstance(value, Described):
        return _composite(value)
    if isinstance(value, dict):
        return {str(_value(key)): _value(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_value(each) for each in value]
    if isinstance(value, bytes):
        return _cut(value[:TEXT_LENGTH_MAX].hex(), len(value))
    if isinstance(value, str):
        text = "".join(c if c.isprintable() else "?" for c in value[:TEXT_LENGTH_MAX])
        return _cut(text, len(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)


def _composite(value: Described) -> Any:
    code = code_of(value.descriptor)
    names = field_names(code)
    if type(value.value) is not list:
        return {str(_value(value.descriptor)): _value(value.value)}
    fields = {
        name: _field(name, each)
        for index, each in enumerate(value.value)
        if each is not None
        for name in (names[index] if index < len(names) else f"field-{index}",)
    }
    return {composite_name(code) or str(_value(value.descriptor)): fields}


def _cut(text: str, length: int) -> str:
    return text if length <= TEXT_LENGTH_MAX else f"{text}... ({length} in all)"
