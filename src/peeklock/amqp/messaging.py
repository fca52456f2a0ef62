"""The AMQP 1.0 message format: locating and reading the sections of an encoded message.

Nothing is decoded before it is asked for: `scan` only finds where each section begins and ends.
Source: OASIS AMQP 1.0 section 3.2; wire contract 3.1 and 3.7.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from .codec import ELEMENTS_MAX, DecodeError, decode, decode_typed, read_list_header, skip

BATCH_FORMAT: Final = 0x80013700
"""Message-format of a transfer whose data sections are whole messages. Source: wire contract 3.7."""

SECTIONS_MAX: Final = 1024
"""Body sections of one message. Our choice: clients write one, and a megabyte of empty ones would take 0.1 s.
A batch, which has more, is read by `iter_batch`."""

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
SEQUENCE: Final = 0x76
VALUE: Final = 0x77
FOOTER: Final = 0x78

Span = tuple[int, int]
"""Start of a section (its descriptor) and its end."""

_U32: Final = struct.Struct(">I").unpack_from
_SHORT: Final = struct.Struct(">IB").unpack_from
"""Descriptor and constructor of a section, and its size in the short form."""

_SHORT_HEADER: Final = 0x005370C0
_SHORT_ANNOTATIONS: Final = 0x005372C1
_SHORT_PROPERTIES: Final = 0x005373C0
_SHORT_APPLICATION_PROPERTIES: Final = 0x005374C1
_SHORT_DATA: Final = 0x005375A0
_LONG_DATA: Final = 0x005375B0

_LIST: Final = frozenset((0x45, 0xC0, 0xD0))
_MAP: Final = frozenset((0xC1, 0xD1))
_BINARY: Final = frozenset((0xA0, 0xB0))
_SECTIONS: Final[dict[int, tuple[str, frozenset[int] | None]]] = {
    HEADER: ("amqp:header:list", _LIST),
    DELIVERY_ANNOTATIONS: ("amqp:delivery-annotations:map", _MAP),
    MESSAGE_ANNOTATIONS: ("amqp:message-annotations:map", _MAP),
    PROPERTIES: ("amqp:properties:list", _LIST),
    APPLICATION_PROPERTIES: ("amqp:application-properties:map", _MAP),
    DATA: ("amqp:data:binary", _BINARY),
    SEQUENCE: ("amqp:amqp-sequence:list", _LIST),
    VALUE: ("amqp:amqp-value:*", None),
    FOOTER: ("amqp:footer:map", _MAP),
}
"""Symbolic descriptor and allowed constructors (None = any), in the order in which sections must come."""

_SYMBOLIC: Final = {name: code for code, (name, _) in _SECTIONS.items()}
_REPEATED: Final = frozenset((DATA, SEQUENCE))


@dataclass(slots=True)
class Header:
    """The header section (AMQP 3.2.1); `ttl` in ms. `delivery_count` is the message's, not a link's."""

    durable: bool = False
    priority: int = 4
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


@dataclass(slots=True)
class Properties:
    """The properties section (AMQP 3.2.4); the two times in ms since 1970 UTC."""

    message_id: Any = None
    user_id: bytes | None = None
    to: Any = None
    subject: str | None = None
    reply_to: Any = None
    correlation_id: Any = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


_PROPERTY_COUNT: Final = 13
_FIELD_VALUES_MAX: Final = 64
"""Values in a header or in properties, whose fields are scalars."""

BodyKind = Literal["data", "sequence", "value"]
_BODY_KINDS: Final[dict[int, BodyKind]] = {DATA: "data", SEQUENCE: "sequence", VALUE: "value"}


@dataclass(slots=True, eq=False, repr=False)
class Sections:
    """An encoded message and where its sections end.

    Sections are adjacent and in a fixed order: each begins where the one before it ends, and an absent one is
    empty. `scan` finds them; until then none is known.
    """

    payload: bytes
    header_end: int = 0
    delivery_annotations_end: int = 0
    bare_offset: int = 0
    """End of the message-annotations: from here on, intermediaries change nothing (AMQP 3.2)."""
    properties_end: int = 0
    body_offset: int = 0
    """End of the application-properties, the last section before the body."""
    body_end: int = 0
    """End of the last body section."""
    footer_end: int = 0
    lacks_message_id: bool = False
    """False also for properties that cannot be decoded: they may contain one."""

    @property
    def header(self) -> Span | None:
        return _span(0, self.header_end)

    @property
    def delivery_annotations(self) -> Span | None:
        return _span(self.header_end, self.delivery_annotations_end)

    @property
    def message_annotations(self) -> Span | None:
        return _span(self.delivery_annotations_end, self.bare_offset)

    @property
    def properties(self) -> Span | None:
        return _span(self.bare_offset, self.properties_end)

    @property
    def application_properties(self) -> Span | None:
        return _span(self.properties_end, self.body_offset)

    @property
    def body(self) -> Span | None:
        """All body sections."""
        return _span(self.body_offset, self.body_end)

    @property
    def footer(self) -> Span | None:
        return _span(self.body_end, self.footer_end)

    def without_body(self) -> Sections:
        """Return the sections before the body, without the footer."""
        end = self.body_offset
        return Sections(
            self.payload[:end],
            self.header_end,
            self.delivery_annotations_end,
            self.bare_offset,
            self.properties_end,
            end,
            end,
            end,
            self.lacks_message_id,
        )

    def decode_header(self) -> Header:
        """Decode the header; absent fields have their defaults.

        Raises:
            DecodeError: a field has the wrong type.
        """
        durable, priority, ttl, first_acquirer, delivery_count = self._fields(self.header, 5)
        for number in (priority, ttl, delivery_count):
            if number is not None and type(number) is not int:
                raise DecodeError("a numeric field of the header is not an integer")
        priority = 4 if priority is None else priority
        return Header(bool(durable), priority, ttl, bool(first_acquirer), delivery_count or 0)

    def decode_properties(self) -> Properties:
        """Decode the properties; absent fields are None.

        Raises:
            DecodeError: not a list of at most 13 fields.
        """
        return Properties(*self._fields(self.properties, _PROPERTY_COUNT))

    def property_raw(self, index: int) -> bytes | None:
        """Return field `index` of the properties as encoded (message-id 0, group-id 10); None if absent.

        Raises:
            DecodeError: the properties are invalid up to there.
        """
        payload, start = self.payload, self.bare_offset
        if start == self.properties_end:
            return None
        # The inner steps of `read_list_header` and `skip` for what nearly every client sends.
        try:
            if _U32(payload, start)[0] == _SHORT_PROPERTIES:
                position, end, count = start + 6, start + 5 + payload[start + 4], payload[start + 5]
            else:
                position, end, count = read_list_header(payload, _value_start(payload, start))
            if index >= count:
                return None
            for _ in range(index):
                code = payload[position]
                if code == 0x40:
                    position += 1
                elif code == 0xA1:
                    position += 2 + payload[position + 1]
                else:
                    position = skip(payload, position)
            code = payload[position]
            after = position + 2 + payload[position + 1] if code == 0xA1 else skip(payload, position)
        except (IndexError, struct.error):
            raise DecodeError("the properties are truncated") from None
        if after > end:
            raise DecodeError("a property exceeds its section")
        return None if code == 0x40 else payload[position:after]

    def decode_delivery_annotations(self) -> dict[Any, Any]:
        """Decode the delivery-annotations, empty if absent. Raises DecodeError."""
        return self._map(self.delivery_annotations)

    def decode_message_annotations(self) -> dict[Any, Any]:
        """Decode the message-annotations, empty if absent. Raises DecodeError."""
        return self._map(self.message_annotations)

    def decode_application_properties(self, *, elements_max: int = ELEMENTS_MAX) -> dict[Any, Any]:
        """Decode the application-properties, empty if absent. Raises DecodeError."""
        return self._map(self.application_properties, elements_max)

    def decode_footer(self) -> dict[Any, Any]:
        """Decode the footer, empty if absent. Raises DecodeError."""
        return self._map(self.footer)

    def decode_body(self, *, typed: bool = False) -> list[tuple[BodyKind, Any]]:
        """Decode the body sections, in order, `typed` into the wrapper types. Raises DecodeError."""
        read = decode_typed if typed else decode
        found: list[tuple[BodyKind, Any]] = []
        if self.body is not None:
            position, end = self.body
            while position < end:
                code, start = _descriptor(self.payload, position)
                value, position = read(self.payload, start)
                found.append((_BODY_KINDS[code], value))
        return found

    def _fields(self, span: Span | None, wanted: int) -> list[Any]:
        if span is None:
            return [None] * wanted
        start = _value_start(self.payload, span[0])
        fields, end = decode(self.payload, start, elements_max=_FIELD_VALUES_MAX)
        if end != span[1] or len(fields) > wanted:
            raise DecodeError(f"section with {len(fields)} fields, at most {wanted} are allowed")
        return list(fields) + [None] * (wanted - len(fields))

    def _map(self, span: Span | None, elements_max: int = ELEMENTS_MAX) -> dict[Any, Any]:
        if span is None:
            return {}
        value, end = decode(self.payload, _value_start(self.payload, span[0]), elements_max=elements_max)
        if end != span[1]:
            raise DecodeError("size of a section does not match its content")
        pairs: dict[Any, Any] = value
        return pairs


def scan_head(head: bytes) -> Sections:
    """Find the complete sections in the first bytes of a message."""
    return scan(head, whole=False)


def scan(payload: bytes, *, whole: bool = True) -> Sections:
    """Find the sections of an encoded message, and whether it has a message-id, in one pass.

    With `whole`, raise at the first error; else return the sections before it.

    Raises:
        DecodeError: no section where one should begin; of a wrong type, out of order, truncated; more than
        `SECTIONS_MAX` in the body.
    """
    # Fast path: sections in their short forms and one data section, as nearly every client sends. They are
    # complete if the data ends with the payload. Anything else goes through the loop, from the start.
    try:
        head, size = _SHORT(payload, 0)
        header_end = at = 5 + size if head == _SHORT_HEADER else 0
        if at:
            head, size = _SHORT(payload, at)
        if head == _SHORT_ANNOTATIONS:
            at += 5 + size
            head, size = _SHORT(payload, at)
        bare_offset = at
        lacks_message_id = True
        if head == _SHORT_PROPERTIES:
            count = payload[at + 5]
            if count >= size:
                return _scan_any(payload, whole)
            lacks_message_id = not count or payload[at + 6] == 0x40
            at += 5 + size
            head, size = _SHORT(payload, at)
        properties_end = at
        if head == _SHORT_APPLICATION_PROPERTIES:
            at += 5 + size
            head, size = _SHORT(payload, at)
        body_offset = at
        if head == _LONG_DATA:
            at += 8 + _U32(payload, at + 4)[0]
        elif head == _SHORT_DATA:
            at += 5 + size
        if body_offset < at == len(payload):
            return Sections(
                payload,
                header_end,
                header_end,
                bare_offset,
                properties_end,
                body_offset,
                at,
                at,
                lacks_message_id,
            )
    except (IndexError, struct.error):
        pass
    return _scan_any(payload, whole)


def _scan_any(payload: bytes, whole: bool) -> Sections:
    size = len(payload)
    position = 0
    last = 0
    left = SECTIONS_MAX
    ends = [0] * len(_SECTIONS)  # by code: a section that is found moves the ends of later ones too
    lacks_message_id = size > 0  # an empty message lacks nothing
    try:
        while position < size:
            if payload[position] == 0 and payload[position + 1] == 0x53:
                code = payload[position + 2]
                start = position + 3
            else:
                code, start = _descriptor(payload, position)
            constructor = payload[start]
            if constructor == 0xC0 or constructor == 0xC1 or constructor == 0xA0:
                end = start + 2 + payload[start + 1]
            elif constructor == 0xB0 or constructor == 0xD0 or constructor == 0xD1:
                end = start + 5 + _U32(payload, start + 1)[0]
            else:
                end = skip(payload, start)
            _check_section(code, constructor, last)
            if end > size:
                raise DecodeError(f"section 0x{code:x} is truncated")
            if code == last:
                left -= 1
                if not left:
                    raise DecodeError(f"message with more than {SECTIONS_MAX} body sections")
            elif code == PROPERTIES:
                lacks_message_id = _lacks_first_field(payload, start)
            first = code - HEADER
            ends[first:] = [end] * (len(ends) - first)
            last = code
            position = end
    except (IndexError, struct.error):
        if whole:
            raise DecodeError("message is truncated") from None
    except DecodeError:
        if whole:
            raise
    return Sections(payload, ends[0], ends[1], ends[2], ends[3], ends[4], ends[7], ends[8], lacks_message_id)


def _check_section(code: int, constructor: int, last: int) -> None:
    """Raise DecodeError unless a section may come after the section `last`, with this constructor."""
    if code not in _SECTIONS:
        raise DecodeError(f"0x{code:x} is not a section of a message")
    allowed = _SECTIONS[code][1]
    if allowed is not None and constructor not in allowed:
        raise DecodeError(f"constructor 0x{constructor:02x} in section 0x{code:x}")
    if code <= last and not (code == last and code in _REPEATED):
        raise DecodeError(f"section 0x{code:x} after section 0x{last:x}")
    if code != last and code in _BODY_KINDS and last in _BODY_KINDS:
        raise DecodeError("body with sections of several kinds")


def in_order(payload: bytes) -> bytes:
    """Move a section that clients encode in the wrong place; its bytes do not change.

    The official Python client writes delivery-annotations after the footer (observed with azure-servicebus
    7.15); rhea, and so the official JavaScript client, writes the footer before the body (rhea 3.0.5).
    Return the payload itself if it has neither fault; other faults remain.

    Raises:
        DecodeError: no section where one should begin, or a truncated one.
    """
    codes: list[int] = []
    pieces: list[bytes] = []
    position = 0
    while position < len(payload):
        code, start = _descriptor(payload, position)
        end = skip(payload, start)
        if end > len(payload) or len(codes) > SECTIONS_MAX + len(_SECTIONS):
            return payload
        codes.append(code)
        pieces.append(payload[position:end])
        position = end
    if codes[-1:] == [DELIVERY_ANNOTATIONS]:
        pieces.insert(1 if codes[0] == HEADER else 0, pieces.pop())
    elif FOOTER in codes:
        pieces.append(pieces.pop(codes.index(FOOTER)))
    ordered = b"".join(pieces)
    return payload if ordered == payload else ordered


def iter_batch(payload: bytes) -> Iterator[bytes]:
    """Yield the members of a batch: the binary of each data section. The sections before them are a hint.

    A batch may have very many members, so each is read on demand.

    Raises:
        DecodeError: not a message, or its body is not data.
    """
    position = last = 0
    while position < len(payload):
        code, start = _descriptor(payload, position)
        if code in (SEQUENCE, VALUE):
            raise DecodeError("batch whose body is not data")
        if code not in _SECTIONS:
            raise DecodeError(f"0x{code:x} is not a section of a message")
        if code <= last and not code == last == DATA:
            raise DecodeError(f"section 0x{code:x} after section 0x{last:x}")
        last = code
        if code == DATA:
            if payload[start : start + 1] not in (b"\xa0", b"\xb0"):
                raise DecodeError("data section without a binary")
            member, position = decode(payload, start)
            yield member
        else:
            position = skip(payload, start)


def _descriptor(payload: bytes, position: int) -> tuple[int, int]:
    """Return the code of the section at `position` and where its value starts, for any form of descriptor."""
    if payload[position : position + 2] == b"\x00\x53" and len(payload) > position + 3:
        return payload[position + 2], position + 3
    if position >= len(payload) or payload[position] != 0:
        raise DecodeError("no section begins where one should")
    descriptor, start = decode(payload, position + 1)
    if isinstance(descriptor, str):
        descriptor = _SYMBOLIC.get(descriptor, -1)
    if type(descriptor) is not int:
        raise DecodeError(f"{type(descriptor).__name__} as the descriptor of a section")
    return descriptor, start


def _value_start(payload: bytes, position: int) -> int:
    return _descriptor(payload, position)[1]


def _lacks_first_field(payload: bytes, offset: int) -> bool:
    try:
        position, end, count = read_list_header(payload, offset)
    except DecodeError:
        return False
    return count == 0 or (position < end and payload[position] == 0x40)


def _span(start: int, end: int) -> Span | None:
    return (start, end) if end > start else None
