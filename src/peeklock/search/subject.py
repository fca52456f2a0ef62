"""A peeked message as SQL filters see it: as in a subscription's rule, but of what a reader is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, cast
from uuid import UUID

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.messaging import Header
from peeklock.amqp.types import Timestamp
from peeklock.broker.content.routing import PARTITION_KEY, VIA_PARTITION_KEY, key_text
from peeklock.broker.content.subject import id_text, user_values, value_of
from peeklock.rules.errors import EvaluationError
from peeklock.rules.filters import Value
from peeklock.search.peeked import Peeked


class PeekedSubject:
    """One message; what a filter does not name is not decoded."""

    __slots__ = ("_peeked", "_user")

    def __init__(self, peeked: Peeked) -> None:
        self._peeked = peeked
        self._user: _User | None = None

    @property
    def system(self) -> Mapping[str, Value]:
        """System properties by lower-case name: the subject itself; a filter needs no more than `get`."""
        return cast("Mapping[str, Value]", self)

    @property
    def user(self) -> Mapping[str, Value]:
        """Application properties by lower-case name; a filter needs no more than `get`."""
        return cast("Mapping[str, Value]", self._found())

    def has_user(self, folded_name: str) -> bool:
        """Return whether an application property exists, even if it is null."""
        return folded_name in self._found().names

    def user_name(self, folded_name: str) -> str | None:
        """Return the message's own spelling of an application property."""
        return self._found().names.get(folded_name)

    def _found(self) -> _User:
        if self._user is None:
            self._user = _User(self._peeked.application_properties)
        return self._user

    def new_id(self) -> UUID:
        """Raise EvaluationError: a search has no random ids; `Search.compile` refuses newid()."""
        raise EvaluationError("newid() has no value in a search")

    def __getitem__(self, name: str) -> Value:
        """Return a system property. Raises: KeyError."""
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def get(self, name: str) -> Value | None:
        """Return a system property by its lower-case name; None = it is absent."""
        read = _READERS.get(name)
        if read is None:
            return None
        return _value(read(self._peeked))


class _User:
    """Application properties by lower-case name, read when a filter names them."""

    __slots__ = ("_found", "names")

    def __init__(self, found: dict[Any, Any]) -> None:
        self._found = found
        self.names = _spellings(tuple(found))
        """The message's own spelling by lower-case name."""

    def get(self, folded_name: str) -> Value | None:
        """Return an application property; None = it is absent, null, or has no value in expressions."""
        name = self.names.get(folded_name)
        return None if name is None else _value(self._found[name])


@lru_cache(64)
def _spellings(names: tuple[Any, ...]) -> Mapping[str, str]:
    """Return the spelling that counts of each name, by lower-case name. Many messages share their names."""
    return user_values(dict.fromkeys(names))[1]


def _value(raw: Any) -> Value | None:
    return raw if type(raw) is str or type(raw) is int else value_of(raw)


def _header(peeked: Peeked) -> Header:
    try:
        return peeked.sections.decode_header()
    except DecodeError:
        return Header()


def _time_to_live(peeked: Peeked) -> timedelta | None:
    ttl_ms = _header(peeked).ttl
    return None if ttl_ms is None else timedelta(milliseconds=ttl_ms)


def expires_at_ms(peeked: Peeked) -> int | None:
    """Return when a message expires, UTC ms, as official clients compute it."""
    ttl_ms, enqueued_at_ms = _header(peeked).ttl, peeked.enqueued_at_ms
    return None if ttl_ms is None or enqueued_at_ms is None else enqueued_at_ms + ttl_ms


def _expires_at(peeked: Peeked) -> Timestamp | None:
    at_ms = expires_at_ms(peeked)
    return None if at_ms is None else Timestamp(at_ms)


def _annotation(name: str) -> Callable[[Peeked], Any]:
    return lambda peeked: peeked.annotations.get(name)


_READERS: Final[dict[str, Callable[[Peeked], Any]]] = {
    "messageid": lambda peeked: id_text(peeked.property_at(0)),
    "correlationid": lambda peeked: id_text(peeked.property_at(5)),
    "to": lambda peeked: peeked.property_at(2),
    "replyto": lambda peeked: peeked.property_at(4),
    "replytosessionid": lambda peeked: peeked.properties.reply_to_group_id,
    "sessionid": lambda peeked: peeked.properties.group_id,
    "label": lambda peeked: peeked.property_at(3),
    "contenttype": lambda peeked: peeked.property_at(6),
    "partitionkey": lambda peeked: key_text(peeked.annotations.get(PARTITION_KEY)),
    "viapartitionkey": lambda peeked: key_text(peeked.annotations.get(VIA_PARTITION_KEY)),
    "timetolive": _time_to_live,
    "expiresatutc": _expires_at,
    "enqueuedtimeutc": _annotation("x-opt-enqueued-time"),
    "scheduledenqueuetimeutc": _annotation("x-opt-scheduled-enqueue-time"),
    "lockeduntilutc": _annotation("x-opt-locked-until"),
    "sequencenumber": _annotation("x-opt-sequence-number"),
    "enqueuedsequencenumber": _annotation("x-opt-enqueue-sequence-number"),
    "deadlettersource": _annotation("x-opt-deadletter-source"),
    "deliverycount": lambda peeked: _header(peeked).delivery_count,
    "size": lambda peeked: len(peeked.payload),
    "state": lambda peeked: int(peeked.state),
}
"""Source: wire contract 3.2, 9.3."""
