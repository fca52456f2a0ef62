"""What a rule can be asked to do: filters and actions as they are written down, before they are compiled.

Owns: the descriptions, plain values. Must not know: their meaning. `compiled` gives it to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import TypeAlias
from uuid import UUID

Value: TypeAlias = bool | int | float | str | bytes | UUID | datetime | timedelta | Decimal
"""A value of a property, parameter or expression. A `datetime` is in UTC; one of a rule's own may have no
zone, which means the same and is given back as it was. An `int` has 64 bits, signed (one from a message may
be an unsigned one of as many)."""

Pairs: TypeAlias = tuple[tuple[str, Value | None], ...]
"""Names and values in the order in which they were given."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Messages for which an expression is true."""

    expression: str
    parameters: Pairs = ()
    """Names with their `@`."""


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
    """Application properties, names as the sender spells them."""


Filter: TypeAlias = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    """What is changed in the copy of a message that matched."""

    expression: str
    parameters: Pairs = ()
    """Names with their `@`."""
