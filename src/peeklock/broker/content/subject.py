"""A message as the rules of subscriptions see it, decoded as late as possible.

A filter on application properties costs one decoding a message, whatever the number of rules; a filter on a
message id costs the decoding of the properties section. What cannot be read counts as absent, and so does a
value that no expression can compare.
Source: wire contract 3.2, 9.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from peeklock.amqp.codec import DecodeError, decode, iter_map_raw
from peeklock.amqp.decimals import number_of
from peeklock.amqp.messaging import Properties, Sections, scan
from peeklock.amqp.types import Decimal32, Decimal64, Decimal128, Described, Symbol, Timestamp
from peeklock.broker.content.routing import PARTITION_KEY, VIA_PARTITION_KEY, key_text
from peeklock.broker.vocabulary.descriptions import shown_source
from peeklock.broker.vocabulary.message import NEVER_MS, Message
from peeklock.rules.filters import Value

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = frozenset((str, int, bool, float, bytes, UUID))
_TICKS_PER_US = 10
_TICKS_OF_EPOCH = 621_355_968_000_000_000
"""100 ns since the year 1, as .NET counts."""

OVERLAID_FIELDS = {
    "message-id": "messageid",
    "correlation-id": "correlationid",
    "to": "to",
    "reply-to": "replyto",
    "subject": "label",
    "content-type": "contenttype",
    "group-id": "sessionid",
    "reply-to-group-id": "replytosessionid",
    "x-opt-partition-key": "partitionkey",
    "x-opt-via-partition-key": "viapartitionkey",
    "x-opt-scheduled-enqueue-time": "scheduledenqueuetimeutc",
}
"""What an overlay can change: AMQP's name, and that of the system property."""


class MessageSubject:
    """One message sent to a topic. Its mappings are made on first use."""

    __slots__ = ("_message", "_names", "_sections", "_tokens", "system", "user")

    user: Mapping[str, Value]
    system: Mapping[str, Value]

    def __init__(self, message: Message, sections: Sections, tokens: Callable[[], bytes]) -> None:
        """See `message` in its present state.

        Args:
            sections: the encoded message; its body is not read.
            tokens: returns 16 random bytes, for newid().
        """
        self._message = message
        self._sections = sections
        self._tokens = tokens

    def has_user(self, folded_name: str) -> bool:
        """Return whether an application property exists, even if it is null."""
        return folded_name in self._names

    def user_name(self, folded_name: str) -> str | None:
        """Return the message's own spelling of an application property."""
        name: str | None = self._names.get(folded_name)
        return name

    def new_id(self) -> UUID:
        """Return a new random id."""
        return UUID(bytes=self._tokens(), version=4)

    def __getattr__(self, name: str) -> Any:
        # Called once for each mapping, while its slot is empty.
        if name == "system":
            self.system = self._read_system()
        elif name in ("user", "_names"):
            self._read_user()
        else:
            raise AttributeError(name)
        return getattr(self, name)

    def _read_user(self) -> None:
        found: dict[Any, Any] = {}
        try:
            found = self._sections.decode_application_properties()
        except DecodeError:
            found = {}
        if self._message.overlay is not None:
            found = dict(found)
            for key, value in overlaid(self._message.overlay):
                if isinstance(key, bytes):
                    found.pop(key.decode(), None)
                elif not isinstance(key, Symbol):
                    found[key] = value
        self.user, self._names = user_values(found)

    def _read_system(self) -> dict[str, Value]:
        message = self._message
        sections = self._sections
        fields = Properties()
        annotations: dict[str, Any] = {}
        try:
            fields = sections.decode_properties()
            annotations = sections.decode_message_annotations()
        except DecodeError:
            pass
        ttl_ms = message.ttl_ms
        if ttl_ms is None and message.expires_at_ms != NEVER_MS:
            ttl_ms = message.expires_at_ms - message.enqueued_at_ms
        source = message.dead_letter_source
        found: dict[str, Any] = {
            "messageid": id_text(fields.message_id),
            "correlationid": id_text(fields.correlation_id),
            "to": fields.to,
            "replyto": fields.reply_to,
            "replytosessionid": fields.reply_to_group_id,
            "sessionid": fields.group_id,
            "label": fields.subject,
            "contenttype": fields.content_type,
            "partitionkey": key_text(annotations.get(PARTITION_KEY)),
            "viapartitionkey": key_text(annotations.get(VIA_PARTITION_KEY)),
            "timetolive": None if ttl_ms is None else _span(ttl_ms * 1000),
            "enqueuedtimeutc": _instant(message.enqueued_at_ms * 1000),
            "sequencenumber": message.sequence_number,
            "enqueuedsequencenumber": message.enqueued_sequence_number,
            "deliverycount": message.delivery_count,
            "size": message.size_bytes,
            "state": int(message.state),
            "deadlettersource": None if source is None else shown_source(source),
        }
        if message.scheduled_at_ms is not None:
            found["scheduledenqueuetimeutc"] = _instant(message.scheduled_at_ms * 1000)
        if ttl_ms is not None:
            found["expiresatutc"] = _instant((message.enqueued_at_ms + ttl_ms) * 1000)
        if message.overlay is not None:
            for key, value in overlaid(message.overlay):
                if isinstance(key, Symbol) and key in OVERLAID_FIELDS:
                    found[OVERLAID_FIELDS[key]] = value
        system: dict[str, Value] = {}
        for name, raw in found.items():
            known = raw if type(raw) in _PLAIN else value_of(raw)
            if known is not None:
                system[name] = known
        return system


def user_values(found: Mapping[Any, Any]) -> tuple[dict[str, Value], dict[str, str]]:
    """Return application properties by lower-case name, and the message's spelling of each name."""
    user: dict[str, Value] = {}
    names: dict[str, str] = {}
    for key, raw in found.items():
        if not isinstance(key, str):
            continue
        folded = key.lower()
        # The first of two spellings counts, even if it is null. Source: wire contract C36
        if names.setdefault(folded, key) == key:
            value = raw if type(raw) in _PLAIN else value_of(raw)
            if value is not None:
                user[folded] = value
    return user, names


def without_body(payload: bytes) -> Sections:
    """Return the sections that filters read: a body may have 100 MB, and many are read at a time.

    A message that cannot be read has none.
    """
    try:
        return scan(payload).without_body()
    except DecodeError:
        return Sections(b"")


def overlaid(overlay: bytes) -> list[tuple[Any, Any]]:
    """Return the changes of an overlay as (key, value); see `overlay` for the types of keys."""
    return [(key, decode(overlay, start)[0]) for key, _, start, _ in iter_map_raw(overlay)]


def value_of(raw: Any) -> Value | None:
    """Return the value of expressions for a decoded AMQP value; None if there is none."""
    if isinstance(raw, Timestamp):
        return _instant(raw * 1000)
    if isinstance(raw, Described):
        # The .NET client's types that AMQP does not have.
        kind, inner = str(raw.descriptor), raw.value
        if not isinstance(inner, int | str):
            return None
        if kind == "com.microsoft:timespan" and isinstance(inner, int):
            return _span(inner // _TICKS_PER_US)
        if kind == "com.microsoft:datetime-offset" and isinstance(inner, int):
            return _instant((inner - _TICKS_OF_EPOCH) // _TICKS_PER_US)
        if kind == "com.microsoft:uri" and isinstance(inner, str):
            return inner
        return None
    if isinstance(raw, datetime | timedelta):
        return raw
    if isinstance(raw, Decimal32 | Decimal64 | Decimal128):
        return number_of(raw)
    if isinstance(raw, bool | UUID):
        return raw
    if isinstance(raw, int):
        return int(raw)
    if isinstance(raw, float):
        return float(raw)
    if isinstance(raw, str):
        return str(raw)
    return bytes(raw) if isinstance(raw, bytes) else None


def id_text(raw: Any) -> str | None:
    """Return an id as text, as clients of every language show it; AMQP ids may be uuids and numbers."""
    if raw is None or isinstance(raw, str):
        return raw
    return str(raw) if isinstance(raw, UUID | int) else None


def _instant(us: int) -> datetime | None:
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return None


def _span(us: int) -> timedelta | None:
    try:
        return timedelta(microseconds=us)
    except OverflowError:
        return None
