"""What the broker must know of an arriving message, read once; and what makes a message unacceptable.

Owns: the checks of wire contract 3.3 that need no state. Must not know: entities, links. On the usual path
only the offsets of sections are found; fields are decoded only where a section is long enough to break a
rule, or the entity routes by them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeGuard

from peeklock.amqp.codec import DecodeError, decode, decode_typed, iter_map_raw, read_list_header, skip
from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import Sections, in_order, iter_batch, scan
from peeklock.broker.descriptions import UNLIMITED_MS
from peeklock.broker.errors import ArgumentInvalid, ArgumentOutOfRange, InvalidOperation
from peeklock.broker.message import Message, Routing
from peeklock.gateway.annotations import TTL_MS_MAX
from peeklock.gateway.errors import MessageMalformed

ID_LENGTH_MAX = 128
"""Characters of message-id, group-id and partition key. Source: wire contract 3.3, 10.1."""

PROPERTIES_BYTES_MAX = 65_536
"""Header, annotations, properties and application properties together. Source: wire contract 3.3, 10.1."""

_PARTITION_KEY = "x-opt-partition-key"

SCHEDULED_AT_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last instant of .NET's DateTime, and so of the service."""

_HEADER_BYTES_MAX = 64
"""Our choice: its five fields take 28 bytes in their longest legal forms."""

_ID_FREE_BYTES = ID_LENGTH_MAX + 7
"""A properties section of so many bytes holds no id that is too long: its own constructors take 7."""

_GROUP_ID = 10
"""Position in the properties section (AMQP 3.2.4); the message-id is its first field."""

_FIELDS_MAX = 13

_NULLS_BETWEEN = b"\x40" * (_GROUP_ID - 1)
"""What mostly stands between message-id and group-id: nothing."""


def take_in(payload: bytes, reads_routing: bool) -> tuple[Message, bytes]:
    """Make the record of an arriving message, and give the payload as it is kept: its sections in order.

    Raises: as `inspect`.
    """
    try:
        return inspect(payload, reads_routing), payload
    except MessageMalformed:
        # Rare enough that only what would be refused is looked through again.
        try:
            ordered = in_order(payload)
        except DecodeError:
            ordered = payload
        if ordered is payload:
            raise
        return inspect(ordered, reads_routing), ordered


def inspect(payload: bytes, reads_routing: bool) -> Message:
    """Make the record of an arriving message.

    Args:
        payload: the encoded message.
        reads_routing: whether the entity decides by message id, session id or partition key.

    Raises:
        MessageMalformed: it is no AMQP message.
        ArgumentInvalid: an id is too long, or a value of the wrong type.
        ArgumentOutOfRange: it is scheduled beyond the year 9999.
        InvalidOperation: group-id and partition key differ, or the properties are too large.
    """
    try:
        return _inspect(payload, reads_routing)
    except DecodeError as error:
        raise MessageMalformed(f"The message could not be decoded: {error}.") from None


def inspect_batch(payload: bytes, reads_routing: bool) -> list[tuple[Message, bytes]]:
    """Make the records of a batch's members; one bad member refuses all.

    Raises: as `inspect`. Source: wire contract 3.7.
    """
    try:
        members = [bytes(member) for member in iter_batch(payload)]
    except DecodeError as error:
        raise MessageMalformed(f"The batch could not be decoded: {error}.") from None
    if not members:
        raise MessageMalformed("The batch holds no message.")
    return [take_in(member, reads_routing) for member in members]


def read_routing(payload: bytes) -> Routing:
    """Read what decides where a stored message goes.

    It may have been accepted where nothing depended on it: what cannot be read counts as absent.
    """
    try:
        sections = scan(payload)
        key = sections.decode_message_annotations().get(_PARTITION_KEY)
        return _routing(sections, key if isinstance(key, str) else None)
    except (DecodeError, ArgumentInvalid, InvalidOperation):
        return Routing()


def _inspect(payload: bytes, reads_routing: bool) -> Message:
    sections = scan(payload)
    message = Message(len(payload), bare_offset=sections.bare_offset)
    # AMQP 3.2 wants a body, but the official Python client sends none for an empty value (None, 0, "").
    body = sections.body or sections.footer or (len(payload), 0)
    if body[0] > PROPERTIES_BYTES_MAX:
        raise InvalidOperation(
            f"The header and properties take {body[0]} bytes; the limit is {PROPERTIES_BYTES_MAX}."
        )
    key = _read_prefix(sections, message) if sections.bare_offset else None
    if reads_routing:
        message.routing = _routing(sections, key)
    else:
        properties = sections.properties
        if properties is not None and (key is not None or properties[1] - properties[0] > _ID_FREE_BYTES):
            _routing(sections, key)  # for its checks
    return message


def _read_prefix(sections: Sections, message: Message) -> str | None:
    """Read what stands before the bare message; give the partition key."""
    if sections.header is not None:
        start, end = sections.header
        message.ttl_ms = _read_ttl_ms(sections.payload[start:end])
        if message.ttl_ms == TTL_MS_MAX and sections.properties is not None:
            message.ttl_ms = _long_ttl_ms(sections)
    if sections.delivery_annotations is not None:
        _check_keys(sections.payload, sections.delivery_annotations[0])
    if sections.message_annotations is None:
        return None
    annotations = sections.decode_message_annotations()
    at = annotations.get("x-opt-scheduled-enqueue-time")
    if at is not None:
        if not _is_integer(at):
            raise ArgumentInvalid("The annotation x-opt-scheduled-enqueue-time is not a timestamp.")
        if at > SCHEDULED_AT_MS_MAX:
            raise ArgumentOutOfRange("The annotation x-opt-scheduled-enqueue-time is beyond the year 9999.")
        message.scheduled_at_ms = int(at)
    key = annotations.get(_PARTITION_KEY)
    if key is None:
        return None
    if not isinstance(key, str):
        raise ArgumentInvalid("The PartitionKey is not a string.")
    if len(key) > ID_LENGTH_MAX:
        raise ArgumentInvalid(f"The PartitionKey has {len(key)} characters; the limit is {ID_LENGTH_MAX}.")
    return str(key)


@lru_cache(maxsize=1024)
def _read_ttl_ms(header: bytes) -> int | None:
    """Read the time-to-live of a header section. A sender's headers are mostly the same few bytes."""
    if len(header) > _HEADER_BYTES_MAX:
        raise DecodeError("the header is too long")
    ttl_ms = scan(header).decode_header().ttl
    if ttl_ms is not None and not 0 <= ttl_ms <= TTL_MS_MAX:
        raise DecodeError("the time-to-live is no uint")
    return ttl_ms


def _long_ttl_ms(sections: Sections) -> int:
    """Give a time-to-live beyond the reach of header.ttl. Source: wire contract 3.2."""
    properties = sections.decode_properties()
    created, expires = properties.creation_time, properties.absolute_expiry_time
    if _is_integer(created) and _is_integer(expires) and expires - created > TTL_MS_MAX:
        return min(int(expires - created), UNLIMITED_MS)
    return TTL_MS_MAX


def _routing(sections: Sections, key: str | None) -> Routing:
    """Read and check message id and session id, which must not contradict the partition key."""
    if sections.properties is None:
        return Routing(None, None, key)
    message_id, session_id = _raw_ids(sections)
    if message_id is not None:
        if len(message_id) > ID_LENGTH_MAX:
            _check_length("MessageId", decode(message_id)[0])
        if message_id[0] not in _ONE_FORM:
            # Equal ids may have been encoded in several ways.
            message_id = encode(decode_typed(message_id)[0])
    if session_id is None:
        return Routing(message_id, None, key)
    if session_id[0] not in _STRING:
        raise ArgumentInvalid("The SessionId is not a string.")
    if len(session_id) > ID_LENGTH_MAX:
        _check_length("SessionId", decode(session_id)[0])
    text: str = decode(session_id)[0]
    if key is not None and key != text:
        raise InvalidOperation(f"The PartitionKey '{key}' differs from the SessionId '{text}'.")
    return Routing(message_id, text, key)


_STR8 = 0xA1
_SHORT_TEXT = frozenset((_STR8, 0xA3))
_TIMESTAMP = 0x83
_STRING = frozenset((_STR8, 0xB1))
_ONE_FORM = frozenset((_STR8, 0xA0, 0x98))
"""A short text, short binary or uuid: as it came is the only way that we encode it."""


def _raw_ids(sections: Sections) -> tuple[bytes | None, bytes | None]:
    """Give message-id and group-id as encoded, None where absent: one pass over the section."""
    payload = sections.payload
    assert sections.properties is not None
    start, end = sections.properties
    try:
        if payload[start + 1] == 0x53 and payload[start + 3] == 0xC0:
            position, count = start + 6, payload[start + 5]
        else:
            position, _, count = read_list_header(payload, decode(payload, start + 1)[1])
        if count > _FIELDS_MAX:
            raise DecodeError(f"properties with {count} fields, at most {_FIELDS_MAX} belong there")
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


def _check_keys(payload: bytes, offset: int) -> None:
    """Walk a section's map, so that it can be taken apart again at delivery."""
    for _ in iter_map_raw(payload, decode(payload, offset + 1)[1]):
        pass


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
