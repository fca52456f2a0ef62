"""What the broker needs of an arriving message, read once, and the checks of wire contract 3.3 without state.

Usually only the offsets of sections are found. Fields are decoded only where a section is long enough to
break a rule, or where the entity routes by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, TypeGuard

from peeklock.amqp.codec import DecodeError, decode, iter_map_raw
from peeklock.amqp.messaging import Sections, Span, in_order, scan
from peeklock.amqp.types import Symbol
from peeklock.broker.content.routing import (
    ID_LENGTH_MAX,
    PARTITION_KEY,
    VIA_PARTITION_KEY,
    key_text,
    routing_of,
)
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    MessageSizeExceeded,
)
from peeklock.broker.vocabulary.message import Message
from peeklock.gateway.errors import MessageMalformed
from peeklock.gateway.rewriting import INSTANT_MS_MAX, TTL_MS_MAX

BATCH_MESSAGES_MAX: Final = 4_500
"""Messages in one batch or one schedule. Source: Azure/azure-service-bus issue 397: the service takes no more
in a batch; the .NET client holds itself to it."""

PROPERTIES_BYTES_MAX: Final = 65_536
"""Header, annotations, properties and application properties together. Source: wire contract 3.3, 10.1."""

PROPERTY_BYTES_MAX: Final = 32 * 1024
"""The value of one application property, without its type and length. Source: wire contract 10.1."""

_LONG_VALUE_BYTES: Final = 5
"""Constructor and length of a value that is longer than 255 bytes. Source: AMQP 1.6."""

_STRING: Final = (0xA1, 0xB1)

_HEADER_BYTES_MAX: Final = 64
"""Our choice: its five fields take 28 bytes in their longest legal forms."""

_PREFIX_BYTES_MAX: Final = 256
"""Longer ones are unlikely to repeat, and are not cached."""

_Prefix = tuple[int | None, int | None, str | None, str | None, tuple[int, ...]]
"""Time-to-live and scheduled enqueue time in ms, partition key, via partition key, and the offsets of
annotation keys that are strings."""

_ID_FREE_BYTES: Final = ID_LENGTH_MAX + 7
"""A properties section of so many bytes cannot hold an id that is too long: its constructors take 7."""


def take_in(payload: bytes, reads_routing: bool) -> tuple[Message, Sections]:
    """Return the record of an arriving message, and the message as it is kept.

    Its sections are in order there, and keys of annotations and footer are symbols: the official Java client
    writes strings and does not read them (wire contract C5).

    Args:
        payload: the encoded message.
        reads_routing: whether the entity decides by message id, session id or partition key.

    Raises:
        MessageMalformed: it is no AMQP message.
        ArgumentInvalid: an id is too long, or a value of the wrong type.
        ArgumentOutOfRange: it is scheduled beyond the year 9999.
        InvalidOperation: group-id and partition key differ, or the properties, one of them, or the footer are
        too large.
    """
    try:
        return _inspect(payload, reads_routing)
    except DecodeError as error:
        # Rare: the sections may be out of order.
        try:
            return _inspect(in_order(payload), reads_routing)
        except DecodeError:
            raise MessageMalformed(f"The message could not be decoded: {error}.") from None


_SLICE_BYTES: Final = 65_536
"""A slice of a batch ends with the member that passes this; some footers take 150 ns a byte."""


class BatchReader:
    """Messages of a batch or schedule, read in slices; a bad one refuses all. Source: wire contract 3.7."""

    def __init__(self, members: Iterator[bytes], reads_routing: bool) -> None:
        """`members` finds each message when it is asked for."""
        self._members = members
        self._reads_routing = reads_routing
        self.messages: list[tuple[Message, Sections]] = []
        """Those that were read."""

    def read(self, count: int) -> bool:
        """Read up to `count` members, fewer if they are large; return whether there may be more.

        Raises: as `take_in`; MessageSizeExceeded: there are too many; and what `members` raises.
        """
        messages = self.messages
        members: list[bytes] = []
        size_bytes = 0
        try:
            for member in islice(self._members, count):
                members.append(member)
                size_bytes += len(member)
                if size_bytes > _SLICE_BYTES:
                    count = len(members)
                    break
        except DecodeError as error:
            raise MessageMalformed(f"The batch could not be decoded: {error}.") from None
        if len(messages) + len(members) > BATCH_MESSAGES_MAX:
            raise MessageSizeExceeded(
                f"There are more than {BATCH_MESSAGES_MAX} messages in one batch: send them in several."
            )
        messages += [take_in(member, self._reads_routing) for member in members]
        if not messages:
            raise MessageMalformed("The batch is empty.")
        return len(members) == count


def _inspect(payload: bytes, reads_routing: bool) -> tuple[Message, Sections]:
    sections = scan(payload)
    message = Message(len(payload), bare_offset=sections.bare_offset)
    # AMQP 3.2 requires a body, but the official Python client sends none for an empty value (None, 0, "").
    if sections.body_offset > PROPERTY_BYTES_MAX:
        _check_sizes(sections, sections.body_offset)
    key = via_key = None
    string_keys: tuple[int, ...] = ()
    bare_offset = sections.bare_offset
    if bare_offset:
        if bare_offset == sections.header_end:
            message.ttl_ms = _read_ttl_ms(payload[:bare_offset])
        else:
            read = _known_annotations if bare_offset <= _PREFIX_BYTES_MAX else _read_annotations
            message.ttl_ms, message.scheduled_at_ms, key, via_key, string_keys = read(
                payload[:bare_offset], sections.header_end, sections.delivery_annotations_end
            )
        if message.ttl_ms == TTL_MS_MAX and sections.properties is not None:
            message.ttl_ms = _long_ttl_ms(sections)
    if sections.footer_end > sections.body_end:
        string_keys += _footer_string_keys(payload, (sections.body_end, sections.footer_end))
    if string_keys:
        sections.payload = _with_symbols(payload, string_keys)  # of the same length
    if reads_routing or via_key is not None:
        message.routing = routing_of(sections, key)
        message.routing.via_partition_key = via_key
    elif key is not None or sections.properties_end - sections.bare_offset > _ID_FREE_BYTES:
        routing_of(sections, key)  # for its checks
    return message, sections


def _check_sizes(sections: Sections, size_bytes: int) -> None:
    """Raise InvalidOperation where the sections before the body or an application property are too large."""
    if size_bytes > PROPERTIES_BYTES_MAX:
        raise InvalidOperation(
            f"The header and properties take {size_bytes} bytes; the limit is {PROPERTIES_BYTES_MAX}."
        )
    start, end = sections.application_properties or (0, 0)
    if end - start <= PROPERTY_BYTES_MAX:
        return
    payload = sections.payload
    for key, _, value_start, value_end in iter_map_raw(payload, decode(payload, start + 1)[1]):
        value_bytes = value_end - value_start - _LONG_VALUE_BYTES
        if value_bytes > PROPERTY_BYTES_MAX:
            raise InvalidOperation(
                f"The application property '{str(key)[:64]}' has {value_bytes} bytes; the limit is "
                f"{PROPERTY_BYTES_MAX}."
            )


def _read_annotations(prefix: bytes, header_end: int, annotations_start: int) -> _Prefix:
    """Read the sections before the bare message, annotations included. Raises: as `take_in`."""
    sections = Sections(prefix, header_end, annotations_start, len(prefix))
    ttl_ms = _read_ttl_ms(prefix[:header_end]) if header_end else None
    string_keys: tuple[int, ...] = ()
    if annotations_start > header_end:
        string_keys = _string_keys(prefix, (header_end, annotations_start))
    if sections.bare_offset == annotations_start:
        return ttl_ms, None, None, None, string_keys
    annotations = sections.decode_message_annotations()
    if any(type(name) is not Symbol for name in annotations):
        string_keys += _string_keys(prefix, (annotations_start, sections.bare_offset))
    at = annotations.get("x-opt-scheduled-enqueue-time")
    if at is not None:
        if not _is_integer(at):
            raise ArgumentInvalid("The annotation x-opt-scheduled-enqueue-time is not a timestamp.")
        if at > INSTANT_MS_MAX:
            raise ArgumentOutOfRange("The annotation x-opt-scheduled-enqueue-time is beyond the year 9999.")
        at = int(at)
    key = _read_key("PartitionKey", annotations.get(PARTITION_KEY))
    via_key = _read_key("ViaPartitionKey", annotations.get(VIA_PARTITION_KEY))
    return ttl_ms, at, key, via_key, string_keys


_known_annotations: Final = lru_cache(maxsize=1024)(_read_annotations)
"""Cached: a sender's prefixes are mostly the same few bytes."""


def _read_key(name: str, value: object) -> str | None:
    """Return a partition key as text. Source: wire contract 3.3, C6."""
    if value is None:
        return None
    key = key_text(value)
    if key is None:
        raise ArgumentInvalid(f"The {name} is neither a string nor binary that holds UTF-8.")
    if len(key) > ID_LENGTH_MAX:
        raise ArgumentInvalid(f"The {name} has {len(key)} characters; the limit is {ID_LENGTH_MAX}.")
    return key


@lru_cache(maxsize=1024)
def _read_ttl_ms(header: bytes) -> int | None:
    """Read the time-to-live of a header section. A sender's headers are mostly the same few bytes."""
    if len(header) > _HEADER_BYTES_MAX:
        raise DecodeError("the header is too long")
    ttl_ms = Sections(header, len(header)).decode_header().ttl
    if ttl_ms is not None and not 0 <= ttl_ms <= TTL_MS_MAX:
        raise DecodeError("the time-to-live is not a uint")
    return ttl_ms


def _long_ttl_ms(sections: Sections) -> int:
    """Return a time-to-live that header.ttl cannot hold. Source: wire contract 3.2."""
    properties = sections.decode_properties()
    created, expires = properties.creation_time, properties.absolute_expiry_time
    if _is_integer(created) and _is_integer(expires) and expires - created > TTL_MS_MAX:
        return min(int(expires - created), UNLIMITED_MS)
    return TTL_MS_MAX


def _string_keys(payload: bytes, section: Span) -> tuple[int, ...]:
    """Return the offsets of keys of a section's map that are strings and may be symbols."""
    return tuple(
        start
        for key, start, _, _ in iter_map_raw(payload, decode(payload, section[0] + 1)[1])
        if payload[start] in _STRING and key.isascii()
    )


def _footer_string_keys(payload: bytes, footer: Span) -> tuple[int, ...]:
    """Do the same for a footer; its limit is that of the sections before the body."""
    size_bytes = footer[1] - footer[0]
    if size_bytes > PROPERTIES_BYTES_MAX:
        raise InvalidOperation(f"The footer takes {size_bytes} bytes; the limit is {PROPERTIES_BYTES_MAX}.")
    return _string_keys(payload, footer)


def _with_symbols(payload: bytes, strings: tuple[int, ...]) -> bytes:
    """Make symbols of the strings at these offsets: the same bytes, under a code that is 2 higher."""
    changed = bytearray(payload)
    for start in strings:
        changed[start] += 2
    return bytes(changed)


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
