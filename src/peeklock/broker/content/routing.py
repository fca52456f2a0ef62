"""Message id, session id and partition key: the properties that decide where a message goes.

A message that is sent without an id gets one. The service gives it a GUID, and clients rely on it: the
JavaScript client cannot settle a message without an id if it renews its lock.
Source: wire contract 3.3, 10.1; AMQP 3.2.4; observed with @azure/service-bus 7.9.5.
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from peeklock.amqp.codec import DecodeError, decode, decode_typed, iter_map_raw, read_list_header, skip
from peeklock.amqp.encoding import compound8_or_32, encode
from peeklock.amqp.messaging import PROPERTIES, Sections
from peeklock.amqp.types import Symbol
from peeklock.broker.vocabulary.errors import ArgumentInvalid, InvalidOperation
from peeklock.broker.vocabulary.message import Routing

ID_LENGTH_MAX: Final = 128
"""Characters of message-id, group-id and partition key. Source: wire contract 3.3, 10.1."""

PARTITION_KEY: Final = "x-opt-partition-key"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"

_GROUP_ID: Final = 10
"""Index in the properties section (AMQP 3.2.4); message-id is the first."""

_FIELDS_MAX: Final = 13
_NULL: Final = b"\x40"

_NULLS_BETWEEN: Final = b"\x40" * (_GROUP_ID - 1)
"""The usual fields between message-id and group-id: all null."""

_STR8: Final = 0xA1
_SHORT_TEXT: Final = frozenset((_STR8, 0xA3))
_TIMESTAMP: Final = 0x83
_STRING: Final = frozenset((_STR8, 0xB1))
_ONE_FORM: Final = frozenset((_STR8, 0xA0, 0x98))
"""A short string, short binary or uuid has a single encoding here."""

_PROPERTIES: Final = bytes((0x00, 0x53, PROPERTIES))
_LIST8, _LIST32 = 0xC0, 0xD0

_DIGITS: Final = b"\xa1\x20"
"""Head of an encoded string of 32 characters."""

_ID_BYTES: Final = 34
_ONLY_AN_ID: Final = _PROPERTIES + bytes((_LIST8, 1 + _ID_BYTES, 1))


def read_routing(sections: Sections, overlay: bytes | None = None) -> Routing:
    """Return what decides where a stored message goes.

    What cannot be read counts as absent: the message may have been accepted where nothing depended on it.

    Args:
        sections: the encoded message; its body is not read.
        overlay: its changed properties.
    """
    try:
        annotations = sections.decode_message_annotations()
        routing = routing_of(sections, key_text(annotations.get(PARTITION_KEY)))
        routing.via_partition_key = key_text(annotations.get(VIA_PARTITION_KEY))
    except (DecodeError, ArgumentInvalid, InvalidOperation):
        routing = Routing()
    return routing if overlay is None else with_overlay(routing, overlay)


def key_text(value: object) -> str | None:
    """Return a partition key as a string; None if it is neither a string nor binary with UTF-8.

    The official Python client sends annotations of a received message again as binary (wire contract C6).
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return None


def with_overlay(routing: Routing, overlay: bytes) -> Routing:
    """Return the routing fields after the actions of rules, which set strings or null."""
    changed = replace(routing)
    for name, _, start, end in iter_map_raw(overlay):
        if not isinstance(name, Symbol):
            continue
        if name == "message-id":
            encoded = overlay[start:end]
            changed.message_id = None if encoded == _NULL else encoded
        elif name == "group-id":
            changed.session_id = decode(overlay, start)[0]
        elif name == PARTITION_KEY:
            changed.partition_key = decode(overlay, start)[0]
    return changed


def routing_of(sections: Sections, key: str | None) -> Routing:
    """Return message id and session id, checked; the session id must not contradict the partition key.

    Raises:
        DecodeError: the properties cannot be read.
        ArgumentInvalid: an id is too long, or the session id is not a string.
        InvalidOperation: the session id is not empty and differs from the partition key.
    """
    if sections.properties_end == sections.bare_offset:
        return Routing(None, None, key)
    message_id, session_id = _raw_ids(sections)
    if message_id is not None:
        if len(message_id) > ID_LENGTH_MAX:
            _check_length("MessageId", decode(message_id)[0])
        if message_id[0] not in _ONE_FORM:
            # Equal ids can have several encodings.
            message_id = encode(decode_typed(message_id)[0])
    if session_id is None:
        return Routing(message_id, None, key)
    if session_id[0] not in _STRING:
        raise ArgumentInvalid("The SessionId is not a string.")
    if len(session_id) > ID_LENGTH_MAX:
        _check_length("SessionId", decode(session_id)[0])
    text: str = decode(session_id)[0]
    if text and key is not None and key != text:
        raise InvalidOperation(f"The PartitionKey '{key}' differs from the SessionId '{text}'.")
    return Routing(message_id, text, key)


def _raw_ids(sections: Sections) -> tuple[bytes | None, bytes | None]:
    """Return the encoded message-id and group-id, None if absent, in one pass over the section."""
    payload, start, end = sections.payload, sections.bare_offset, sections.properties_end
    try:
        if payload[start + 1] == 0x53 and payload[start + 3] == 0xC0:
            position, count = start + 6, payload[start + 5]
        else:
            position, _, count = read_list_header(payload, decode(payload, start + 1)[1])
        if count > _FIELDS_MAX:
            raise DecodeError(f"properties with {count} fields, at most {_FIELDS_MAX} are defined")
        if count == 0:
            return None, None
        message_id = None
        begin = position
        code = payload[position]
        if code == 0x40:
            position += 1
        else:
            position = position + 2 + payload[position + 1] if code == _STR8 else skip(payload, position)
            message_id = payload[begin:position]
        group_id = None
        if count > _GROUP_ID:
            if payload.startswith(_NULLS_BETWEEN, position):
                position += _GROUP_ID - 1
            else:
                for _ in range(_GROUP_ID - 1):
                    code = payload[position]
                    if code == 0x40:
                        position += 1
                    elif code in _SHORT_TEXT:
                        position += 2 + payload[position + 1]
                    elif code == _TIMESTAMP:
                        position += 9
                    else:
                        position = skip(payload, position)
            if payload[position] != 0x40:
                begin = position
                position = skip(payload, position)
                group_id = payload[begin:position]
    except IndexError:
        raise DecodeError("the properties are truncated") from None
    if position > end:
        raise DecodeError("a property reaches beyond its section")
    return message_id, group_id


def _check_length(name: str, value: Any) -> None:
    if isinstance(value, (str, bytes)) and len(value) > ID_LENGTH_MAX:
        raise ArgumentInvalid(f"The {name} has {len(value)} characters; the limit is {ID_LENGTH_MAX}.")


def with_id(sections: Sections, tokens: Callable[[], bytes]) -> tuple[Sections, bytes]:
    """Return a message that lacks an id with one of 32 hexadecimal digits, and the encoded id."""
    message_id = _DIGITS + hexlify(tokens())
    payload, start, end = sections.payload, sections.bare_offset, sections.properties_end
    if end == start:
        section = _ONLY_AN_ID + message_id
    else:
        position, _, count = read_list_header(payload, decode(payload, start + 1)[1])
        if count:
            position += 1  # replaces the null
        changed = bytearray(_PROPERTIES)
        compound8_or_32(changed, _LIST8, _LIST32, max(count, 1), message_id + payload[position:end])
        section = bytes(changed)
    growth = len(section) - (end - start)
    written = Sections(
        b"".join((payload[:start], section, payload[end:])),
        sections.header_end,
        sections.delivery_annotations_end,
        start,
        end + growth,
        sections.body_offset + growth,
        sections.body_end + growth,
        sections.footer_end + growth,
    )
    return written, message_id
