"""What the broker must know of an arriving message, read once; and what makes a message unacceptable.

Owns: the checks of wire contract 3.3 that need no state. Must not know: entities, links. On the usual path
only the offsets of sections are found; fields are decoded only where a section is long enough to break a
rule, or the entity routes by them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeGuard

from peeklock.amqp.codec import DecodeError, decode, iter_map_raw
from peeklock.amqp.messaging import Sections, in_order, iter_batch, scan
from peeklock.broker.descriptions import UNLIMITED_MS
from peeklock.broker.errors import ArgumentInvalid, ArgumentOutOfRange, InvalidOperation
from peeklock.broker.message import Message
from peeklock.broker.routing import ID_LENGTH_MAX, PARTITION_KEY, routing_of
from peeklock.gateway.annotations import TTL_MS_MAX
from peeklock.gateway.errors import MessageMalformed

PROPERTIES_BYTES_MAX = 65_536
"""Header, annotations, properties and application properties together. Source: wire contract 3.3, 10.1."""

SCHEDULED_AT_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the last instant of .NET's DateTime, and so of the service."""

_HEADER_BYTES_MAX = 64
"""Our choice: its five fields take 28 bytes in their longest legal forms."""

_ID_FREE_BYTES = ID_LENGTH_MAX + 7
"""A properties section of so many bytes holds no id that is too long: its own constructors take 7."""


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
        message.routing = routing_of(sections, key)
    else:
        properties = sections.properties
        if properties is not None and (key is not None or properties[1] - properties[0] > _ID_FREE_BYTES):
            routing_of(sections, key)  # for its checks
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
    key = annotations.get(PARTITION_KEY)
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


def _check_keys(payload: bytes, offset: int) -> None:
    """Walk a section's map, so that it can be taken apart again at delivery."""
    for _ in iter_map_raw(payload, decode(payload, offset + 1)[1]):
        pass


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
