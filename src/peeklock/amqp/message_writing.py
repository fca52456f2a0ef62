"""Encoding of messages in the AMQP 1.0 message format; `messaging` reads them.

Source: OASIS AMQP 1.0 section 3.2; wire contract 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .encoding import encode_into
from .messaging import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Header,
    Properties,
)
from .types import Described, Symbol, Timestamp, UByte, UInt


def encode_message(
    *,
    header: Header | None = None,
    delivery_annotations: Mapping[Any, Any] | None = None,
    message_annotations: Mapping[Any, Any] | None = None,
    properties: Properties | None = None,
    application_properties: Mapping[Any, Any] | None = None,
    data: bytes | list[bytes] | None = None,
    sequence: list[Any] | None = None,
    value: Any = None,
    footer: Mapping[Any, Any] | None = None,
) -> bytes:
    """Encode a message. The body is `data` (one or more sections), a `sequence`, or else `value` (also null).

    Plain `str` keys of annotations become symbols; keys of application-properties become strings.

    Raises:
        EncodeError: a value without AMQP form.
    """
    out = bytearray()
    if header is not None:
        ttl = None if header.ttl is None else UInt(header.ttl)
        count = UInt(header.delivery_count)
        fields = [header.durable, UByte(header.priority), ttl, header.first_acquirer, count]
        _section(out, HEADER, fields)
    if delivery_annotations is not None:
        _section(out, DELIVERY_ANNOTATIONS, _symbol_keys(delivery_annotations))
    if message_annotations is not None:
        _section(out, MESSAGE_ANNOTATIONS, _symbol_keys(message_annotations))
    if properties is not None:
        _section(out, PROPERTIES, _property_fields(properties))
    if application_properties is not None:
        pairs = {str(key): item for key, item in application_properties.items()}
        _section(out, APPLICATION_PROPERTIES, pairs)
    if data is not None:
        for piece in data if isinstance(data, list) else [data]:
            _section(out, DATA, piece)
    elif sequence is not None:
        _section(out, SEQUENCE, sequence)
    else:
        _section(out, VALUE, value)
    if footer is not None:
        _section(out, FOOTER, _symbol_keys(footer))
    return bytes(out)


def _section(out: bytearray, code: int, value: Any) -> None:
    encode_into(out, Described(code, value))


def _symbol_keys(pairs: Mapping[Any, Any]) -> dict[Any, Any]:
    return {Symbol(key) if type(key) is str else key: value for key, value in pairs.items()}


def _property_fields(properties: Properties) -> list[Any]:
    fields = [
        properties.message_id,
        properties.user_id,
        properties.to,
        properties.subject,
        properties.reply_to,
        properties.correlation_id,
        _as(Symbol, properties.content_type),
        _as(Symbol, properties.content_encoding),
        _as(Timestamp, properties.absolute_expiry_time),
        _as(Timestamp, properties.creation_time),
        properties.group_id,
        _as(UInt, properties.group_sequence),
        properties.reply_to_group_id,
    ]
    while fields and fields[-1] is None:
        fields.pop()
    return fields


def _as(kind: type, value: Any) -> Any:
    return None if value is None else kind(value)
