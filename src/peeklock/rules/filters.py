"""What a rule can be asked to do: filters and actions as they are written down, before they are compiled.

Owns: the descriptions, plain values. Must not know: their meaning. `compiled` gives it to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import repeat
from typing import TypeAlias
from uuid import UUID

Value: TypeAlias = bool | int | float | str | bytes | UUID | datetime | timedelta | Decimal
"""A value of a property, parameter or expression. A `datetime` is in UTC; one of a rule's own may have no
zone, which means the same and is given back as it was. An `int` has 64 bits, signed or unsigned."""

Pairs: TypeAlias = tuple[tuple[str, Value | None], ...]
"""Names and values in the order in which they were given."""


@dataclass(frozen=True, slots=True)
class AsGiven:
    """How a value of a rule was written by whoever gave it."""

    type: str
    """Name of the type behind its notation: `d:short` of the administration API, `amqp:uint` of AMQP."""
    text: str
    """With `d:` the text in the element, with `amqp:` the encoded value in hexadecimal digits."""

    def name_in(self, notation: str) -> str | None:
        """Return the name of the type when it is of this notation."""
        known, _, name = self.type.partition(":")
        return name if known == notation else None


AllAsGiven: TypeAlias = tuple[AsGiven | None, ...]
"""One for each pair, in order, None where the value alone tells it or it is not known; empty = all are None.
It changes neither what a rule does nor whether two rules are equal."""


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
    """Messages for which an expression is true."""

    expression: str
    parameters: Pairs = ()
    """Names with their `@`."""
    as_given: AllAsGiven = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """All messages."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """No message."""


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Messages that have all of these values, exactly."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Pairs = ()
    """Application properties; the case of their names makes no difference."""
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
    """What is changed in the copy of a message that matched."""

    expression: str
    parameters: Pairs = ()
    """Names with their `@`."""
    as_given: AllAsGiven = field(default=(), compare=False)
