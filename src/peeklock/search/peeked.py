"""One message as a peek returns it: its sections are found once, and decoded when they are asked for."""

from __future__ import annotations

import json
from typing import Any, Final

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


class Peeked:
    """A message. What cannot be decoded counts as absent, as it does for rules."""

    __slots__ = ("_annotations", "_application_properties", "_body", "_properties", "_sections", "payload")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self._sections: Sections | None = None
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
            try:
                self._application_properties = self.sections.decode_application_properties()
            except DecodeError:
                self._application_properties = {}
        return self._application_properties

    # Facts

    @property
    def sequence_number(self) -> int | None:
        """The number that the broker gave it; None only if it does not come from a broker."""
        return self._integer("x-opt-sequence-number")

    @property
    def enqueued_at_ms(self) -> int | None:
        """When it was enqueued, UTC ms."""
        return self._integer("x-opt-enqueued-time")

    @property
    def state(self) -> MessageState:
        """Its state. Source: wire contract 3.2: absent means active."""
        number = self.annotations.get("x-opt-message-state")
        return MessageState(number) if number in STATES else MessageState.ACTIVE

    @property
    def session_id(self) -> str | None:
        """The session that it belongs to."""
        found = self.properties.group_id
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
            return None if raw is None else decode(raw)[0]
        except DecodeError:
            return None

    def _read_body(self) -> bytes:
        # Fast path: one data section, as nearly every client sends.
        payload, start, end = self.payload, self.sections.body_offset, self.sections.body_end
        code = payload[start : start + 4]
        if code == _SHORT_DATA and start + 5 + payload[start + 4] == end:
            return payload[start + 5 : end]
        if code == _LONG_DATA and start + 8 + int.from_bytes(payload[start + 4 : start + 8]) == end:
            return payload[start + 8 : end]
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

    def _integer(self, key: str) -> int | None:
        found = self.annotations.get(key)
        return int(found) if isinstance(found, int) else None
