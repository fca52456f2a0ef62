"""The fields of a message in the event log: its id, and its content if bodies are captured.

They are decoded from the `head` of an event, a properties section or a whole encoded message. What cannot be
decoded is None: clients may send anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from peeklock.amqp.codec import DecodeError, decode
from peeklock.amqp.messaging import Sections, scan
from peeklock.amqp.types import Timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a message; None for absent fields."""

    body: bytes | None
    """The joined data sections, or a text as UTF-8, or the AMQP encoding of another value."""
    subject: str | None
    correlation_id: str | None
    content_type: str | None
    application_properties: dict[str, str | None]


def message_id(head: bytes) -> str | None:
    """Return the message id as text: a UUID in its usual form, bytes in hex."""
    # Fast path: 00 53 73, list8, a text of up to 255 bytes as the first field (AMQP 3.2.4, 1.6.20).
    if head[:4] == b"\x00\x53\x73\xc0" and head[6:7] == b"\xa1":
        try:
            return head[8 : 8 + head[7]].decode()
        except (UnicodeDecodeError, IndexError):
            return None
    try:
        raw = scan(head).property_raw(0)
        return None if raw is None else _text(decode(raw)[0])
    except DecodeError:
        return None


def content(head: bytes) -> Content | None:
    """Return the content of a whole message; None for a properties section alone, and for other bytes."""
    if head[:4] == b"\x00\x53\x73\xc0" and len(head) > 4 and len(head) == 5 + head[4]:
        return None  # fast path: nothing follows the properties section
    try:
        sections = scan(head)
        if sections.body is None and sections.application_properties is None:
            return None
        properties = sections.decode_properties()
        return Content(
            _body(sections),
            _text(properties.subject),
            _text(properties.correlation_id),
            _text(properties.content_type),
            {str(key): _text(value) for key, value in sections.decode_application_properties().items()},
        )
    except DecodeError:
        return None


def _body(sections: Sections) -> bytes | None:
    parts = sections.decode_body()
    if not parts:
        return None
    if all(kind == "data" for kind, _ in parts):
        return b"".join(value for _, value in parts)
    if len(parts) == 1 and isinstance(parts[0][1], str):
        return parts[0][1].encode()
    assert sections.body is not None
    start, end = sections.body
    return sections.payload[start:end]


def _text(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case bytes() | bytearray() | memoryview():
            return value.hex()
        case Timestamp():
            try:
                return (_EPOCH + timedelta(milliseconds=int(value))).isoformat(timespec="milliseconds")
            except OverflowError:  # beyond the years that have four digits
                return str(int(value))
        case _:
            return str(value)
