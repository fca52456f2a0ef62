"""One message as a peek returns it: its sections are found once, and decoded when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from peeklock.amqp.annotations import ENQUEUED, NO_ANNOTATIONS, NUMBER, STATE, broker_annotations
from peeklock.amqp.codec import DecodeError, decode
from peeklock.amqp.messaging import BodyKind, Properties, Sections, scan
from peeklock.broker.vocabulary.message import MessageState
from peeklock.search.plain import plain

STATES: Final = {
    MessageState.ACTIVE: "active",
    MessageState.DEFERRED: "deferred",
    MessageState.SCHEDULED: "scheduled",
}
"""State of a message -> its name."""

_UTF8: Final = "utf-8"
_SHORT_DATA: Final = b"\x00\x53\x75\xa0"
_LONG_DATA: Final = b"\x00\x53\x75\xb0"
"""Descriptor of a data section, and constructor of a binary with a size of 1 or 4 bytes."""
_SHORT_MAP: Final = b"\x00\x53\x74\xc1"
"""Descriptor of application properties, and constructor of a map with a size of 1 byte."""
_SHORT_TEXT: Final = 0xA1
"""Constructor of a string with a size of 1 byte."""
_GROUP_ID: Final = 10
"""Place of the session id in the properties section. Source: AMQP 3.2.4."""


class Peeked:
    """A message. What cannot be decoded counts as absent, as it does for rules."""

    __slots__ = (
        "_annotations",
        "_application_properties",
        "_body",
        "_broker",
        "_properties",
        "_sections",
        "payload",
    )

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._sections: Sections | None = None
        self._broker: Sequence[Any] | None = None
        self._annotations: dict[Any, Any] | None = None
        self._properties: Properties | None = None
        self._application_properties: dict[Any, Any] | None = None
        self._body: bytes | None = None

    # Sections

    @property
    def sections(self) -> Sections:
        """Where the sections are."""
        if self._sections is None:
            try:
                self._sections = scan(self.payload)
            except DecodeError:
                self._sections = Sections(b"")
        return self._sections

    @property
    def annotations(self) -> dict[Any, Any]:
        """The message annotations."""
        if self._annotations is None:
            try:
                self._annotations = self.sections.decode_message_annotations()
            except DecodeError:
                self._annotations = {}
        return self._annotations

    @property
    def properties(self) -> Properties:
        """The properties section."""
        if self._properties is None:
            try:
                self._properties = self.sections.decode_properties()
            except DecodeError:
                self._properties = Properties()
        return self._properties

    @property
    def application_properties(self) -> dict[Any, Any]:
        """The application properties."""
        if self._application_properties is None:
            self._application_properties = self._read_application_properties()
        return self._application_properties

    def _read_application_properties(self) -> dict[Any, Any]:
        sections = self.sections
        usual = _usual_map(self.payload, sections.properties_end, sections.body_offset)
        if usual is not None:
            return usual
        try:
            return sections.decode_application_properties()
        except DecodeError:
            return {}

    # Facts

    @property
    def broker(self) -> Sequence[Any]:
        """What the broker says of it, by the places of `peeklock.amqp.annotations`."""
        if self._broker is None:
            try:
                self._broker = broker_annotations(self.payload)
            except DecodeError:
                self._broker = NO_ANNOTATIONS
        return self._broker

    @property
    def sequence_number(self) -> int | None:
        """The number that the broker gave it; None only if it does not come from a broker."""
        number: int | None = self.broker[NUMBER]
        return number

    @property
    def enqueued_at_ms(self) -> int | None:
        """When it was enqueued, UTC ms."""
        at_ms: int | None = self.broker[ENQUEUED]
        return at_ms

    @property
    def state(self) -> MessageState:
        """Its state. Source: wire contract 3.2: absent means active."""
        number = self.broker[STATE]
        return MessageState(number) if number in STATES else MessageState.ACTIVE

    @property
    def session_id(self) -> str | None:
        """The session that it belongs to."""
        found = self.property_at(_GROUP_ID)
        return found if isinstance(found, str) else None

    @property
    def dead_letter_reason(self) -> str | None:
        """Why it was dead-lettered."""
        found = self.application_properties.get("DeadLetterReason")
        return found if isinstance(found, str) else None

    # Body

    @property
    def body(self) -> bytes:
        """The body as bytes: data and binary as they are, a string in UTF-8, any other value as JSON."""
        if self._body is None:
            self._body = self._read_body()
        return self._body

    @property
    def body_text(self) -> str | None:
        """The body as text; None if it is not UTF-8."""
        try:
            return self.body.decode(_UTF8)
        except UnicodeDecodeError:
            return None

    def body_parts(self) -> list[tuple[BodyKind, Any]]:
        """Return the decoded body sections; none if they cannot be decoded."""
        try:
            return self.sections.decode_body()
        except DecodeError:
            return []

    def property_at(self, index: int) -> Any:
        """Return one field of the properties section, without decoding those after it: message-id is 0."""
        try:
            raw = self.sections.property_raw(index)
            if raw is None:
                return None
            return raw[2:].decode() if raw[0] == _SHORT_TEXT else decode(raw)[0]
        except (DecodeError, UnicodeDecodeError):
            return None

    def data_span(self) -> tuple[int, int] | None:
        """Return where the bytes of a body of one data section are, which most clients send; else None."""
        payload, start, end = self.payload, self.sections.body_offset, self.sections.body_end
        code = payload[start : start + 4]
        if code == _LONG_DATA and start + 8 + int.from_bytes(payload[start + 4 : start + 8]) == end:
            return start + 8, end
        if code == _SHORT_DATA and start + 5 + payload[start + 4] == end:
            return start + 5, end
        return None

    def _read_body(self) -> bytes:
        span = self.data_span()
        if span is not None:
            return self.payload[slice(*span)]
        parts = self.body_parts()
        if not parts:
            return b""
        kind, value = parts[0]
        if kind == "data":
            return bytes(value) if len(parts) == 1 else b"".join(piece for _, piece in parts)
        if kind == "sequence":
            value = [item for _, items in parts for item in items]
        elif value is None:
            return b""
        elif type(value) is bytes:
            return value
        elif isinstance(value, str):
            return value.encode(_UTF8, "surrogatepass")
        return json.dumps(plain(value), ensure_ascii=False).encode(_UTF8, "surrogatepass")


def _usual_map(payload: bytes, start: int, end: int) -> dict[Any, Any] | None:
    """Return a section that is a map of short texts to short values; None if it is another, or invalid."""
    found: dict[Any, Any] = {}
    if start == end:
        return found
    try:
        if payload[start : start + 4] != _SHORT_MAP:
            return None
        count = payload[start + 5]
        position = start + 6
        for _ in range(count >> 1):
            if payload[position] != _SHORT_TEXT:
                return None
            after = position + 2 + payload[position + 1]
            key = payload[position + 2 : after].decode()
            code = payload[after]
            if code == _SHORT_TEXT:
                position = after + 2 + payload[after + 1]
                found[key] = payload[after + 2 : position].decode()
            elif code == 0x54 or code == 0x55:
                number = payload[after + 1]
                found[key] = number if number < 128 else number - 256
                position = after + 2
            else:
                found[key], position = decode(payload, after)
    except (DecodeError, IndexError, UnicodeDecodeError):
        return None
    return found if position == end and not count & 1 else None
