"""Fields of a management request: any integer type for an integer, array or list for a sequence, uuid or
string for a lock token. Source: wire contract 5.1.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peeklock.broker.content.routing import ID_LENGTH_MAX
from peeklock.broker.vocabulary.commands import LockToken, ReplyTo, SequenceNumber
from peeklock.broker.vocabulary.errors import ArgumentInvalid, ArgumentOutOfRange
from peeklock.gateway.context import GatewayLimits

Body = Mapping[Any, Any]
"""A map of a request, decoded with its types. All functions here raise `ArgumentInvalid`, those for a range
`ArgumentOutOfRange`."""

HeldSessions = Mapping[str, tuple[str, str]]
"""Name of a receiver that holds a message session -> path of its entity, and session id."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What reading a request needs besides the request."""

    limits: GatewayLimits
    sessions: HeldSessions
    reply_to: ReplyTo
    now_ms: int
    wall_ms: int
    """By the wall clock."""


ELEMENTS_MAX = 1_000
"""Lock tokens or sequence numbers in one request. Our choice: at 2 us to read one, 1 to 4 us to do the
operation and up to 5 us to answer with a message, 10 ms at most. Clients send one token, and the numbers that
their user names."""

_INT_MAX = 2**31 - 1


def integer(body: Body, key: str) -> int:
    """Read an integer."""
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentInvalid(f"'{key}' is not an integer.")
    return int(value)


def positive(body: Body, key: str) -> int:
    """Read an integer greater than zero."""
    value = integer(body, key)
    if value <= 0:
        raise ArgumentOutOfRange(f"'{key}' is {value}; it must be greater than zero.")
    return value


def not_negative(body: Body, key: str) -> int:
    """Read how many of something to skip: an int that is not negative."""
    value = integer(body, key)
    if not 0 <= value <= _INT_MAX:
        raise ArgumentOutOfRange(f"'{key}' is {value}; it must be an int that is not negative.")
    return value


def boolean(body: Body, key: str) -> bool:
    """Read a boolean; False where it is absent or null."""
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise ArgumentInvalid(f"'{key}' is not a boolean.")
    return bool(value)


def text(body: Body, key: str) -> str | None:
    """Read a string; None where it is absent or null."""
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise ArgumentInvalid(f"'{key}' is not a string.")
    return None if value is None else str(value)


def session_id(body: Body) -> str | None:
    """Read a session id that may be absent."""
    found = text(body, "session-id")
    if found is not None and len(found) > ID_LENGTH_MAX:
        raise ArgumentInvalid(f"The SessionId has {len(found)} characters; the limit is {ID_LENGTH_MAX}.")
    return found


def named_session_id(body: Body) -> str:
    """Read a session id that must be there."""
    found = session_id(body)
    if found is None:
        raise ArgumentInvalid("'session-id' is missing.")
    return found


def sequence(body: Body, key: str) -> list[Any]:
    """Read an array or a list that is not empty and of at most `ELEMENTS_MAX` elements."""
    value = body.get(key)
    if not isinstance(value, list) or not value:
        raise ArgumentInvalid(f"'{key}' is not an array, or is empty.")
    if len(value) > ELEMENTS_MAX:
        raise ArgumentOutOfRange(f"'{key}' has {len(value)} elements; the limit is {ELEMENTS_MAX}.")
    return value


def sequence_numbers(body: Body) -> list[SequenceNumber]:
    """Read sequence numbers."""
    values = sequence(body, "sequence-numbers")
    if any(not isinstance(value, int) or isinstance(value, bool) for value in values):
        raise ArgumentInvalid("An element of 'sequence-numbers' is not an integer.")
    return [SequenceNumber(int(value)) for value in values]


def tokens(body: Body) -> list[LockToken]:
    """Read lock tokens into .NET's byte order, which is the broker's (and the delivery tag's)."""
    found = []
    for value in sequence(body, "lock-tokens"):
        if isinstance(value, uuid.UUID):
            found.append(LockToken(value.bytes_le))
        elif isinstance(value, str):
            try:
                found.append(LockToken(uuid.UUID(value).bytes_le))
            except ValueError:
                raise ArgumentInvalid("A lock token is not a GUID.") from None
        else:
            raise ArgumentInvalid("A lock token is neither a uuid nor a string.")
    return found
