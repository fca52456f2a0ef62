"""Filters and actions as plain values, before they are compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import repeat
from typing import TypeAlias
from uuid import UUID

Value: TypeAlias = bool | int | float | str | bytes | UUID | datetime | timedelta | Decimal
"""A value of a property, parameter or expression. A `datetime` is in UTC; in a rule it may lack the zone,
which means the same and is preserved. An `int` has 64 bits, signed or unsigned."""

Pairs: TypeAlias = tuple[tuple[str, Value | None], ...]
"""Names and values in their given order."""


@dataclass(frozen=True, slots=True)
class AsGiven:
    """How a client wrote a value of a rule."""

    type: str
    """Notation and name of the type: `d:short` of the administration API, `amqp:uint` of AMQP."""
    text: str
    """For `d:` the text of the element, for `amqp:` the encoded value in hexadecimal digits."""

    def name_in(self, notation: str) -> str | None:
        """Return the name of the type if it has this notation."""
        known, _, name = self.type.partition(":")
        return name if known == notation else None


AllAsGiven: TypeAlias = tuple[AsGiven | None, ...]
"""One for each pair, in order; None = unknown, or implied by the value; empty = all are None. It affects
neither what a rule does nor equality."""


def split_given(given: Iterable[tuple[str, Value | None, AsGiven | None]]) -> tuple[Pairs, AllAsGiven]:
    """Return the pairs, and how their values were given."""
    found = tuple(given)
    as_given = tuple(each for _, _, each in found)
    return tuple((name, value) for name, value, _ in found), as_given if any(as_given) else ()


def join_given(pairs: Pairs, as_given: AllAsGiven) -> Iterator[tuple[str, Value | None, AsGiven | None]]:
    """Yield each pair with how its value was given."""
    for (name, value), given in zip(pairs, as_given or repeat(None, len(pairs)), strict=True):
        yield name, value, given


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Matches messages for which an expression is true."""

    expression: str
    parameters: Pairs = ()
    """Names with their `@`."""
    as_given: AllAsGiven = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Matches all messages."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Matches no message."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Matches messages that have exactly these values."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Pairs = ()
    """Application properties; names are case-insensitive."""
    as_given: AllAsGiven = field(default=(), compare=False)
    """Of the properties."""


CORRELATION_FIELDS = {
    "correlation_id": "CorrelationId",
    "message_id": "MessageId",
    "to": "To",
    "reply_to": "ReplyTo",
    "label": "Label",
    "session_id": "SessionId",
    "reply_to_session_id": "ReplyToSessionId",
    "content_type": "ContentType",
}
"""System property of a `CorrelationFilter` -> the service's name of it, in the service's order. Each codec of
rules uses this table."""

Filter: TypeAlias = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    """Changes to the copy of a message that matched."""

    expression: str
    parameters: Pairs = ()
    """Names with their `@`."""
    as_given: AllAsGiven = field(default=(), compare=False)
