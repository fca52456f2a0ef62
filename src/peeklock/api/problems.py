"""Statuses and names of problems: one table, every leaf of the broker's and of authorization's errors.

Source: RFC 9110 15.5; RFC 9457.
"""

from __future__ import annotations

import re

from peeklock.admin.errors import STATUSES as ADMINISTRATION
from peeklock.admin.errors import Refusal as BrokersRefusal
from peeklock.broker.vocabulary.errors import (
    EntityDisabled,
    InvalidOperation,
    LowSpace,
    MessageSizeExceeded,
    QuotaExceeded,
    SessionLockLost,
)


class ApiRefusal(Exception):
    """Refused by the API, before the broker."""


class RightMissing(ApiRefusal):
    """The token is valid and lacks a right."""


class MediaTypeUnsupported(ApiRefusal):
    """A body is not JSON, or does not say that it is."""


class MethodNotAllowed(ApiRefusal):
    """A resource does not take this method."""

    def __init__(self, method: str, allowed: list[str]) -> None:
        """Name the methods that it takes."""
        super().__init__(f"The method {method[:20]} is not allowed here; allowed: {', '.join(allowed)}.")
        self.allowed = allowed


class NotHere(ApiRefusal):
    """No resource of the API has this path."""


Refusal = BrokersRefusal | ApiRefusal

STATUSES: dict[type[Refusal], int] = {
    **dict[type[Refusal], int](ADMINISTRATION.items()),
    EntityDisabled: 409,
    InvalidOperation: 409,
    LowSpace: 503,
    MediaTypeUnsupported: 415,
    MessageSizeExceeded: 413,
    MethodNotAllowed: 405,
    NotHere: 404,
    QuotaExceeded: 409,
    RightMissing: 403,
    SessionLockLost: 409,
}

SEND_STATUSES = {**STATUSES, InvalidOperation: 400}
"""Of sends, as over the data plane. Source: wire contract 8."""

_WORD = re.compile("[A-Z][a-z]*")


def words_of(failure: type[Refusal]) -> list[str]:
    """Return the words of a refusal's name, in lower case."""
    return [word.lower() for word in _WORD.findall(failure.__name__)]
