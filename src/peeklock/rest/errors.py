"""What a refusal is called where messages are sent and received over HTTP.

Owns: where this differs from the administration's table. Must not know: how the body is written.
Source: wire contract 8.
"""

from __future__ import annotations

from peeklock.admin.errors import STATUSES as ADMINISTRATION
from peeklock.admin.errors import Refusal
from peeklock.broker.vocabulary.errors import (
    EntityDeleted,
    EntityNotFound,
    InvalidOperation,
    LowSpace,
)

STATUSES: dict[type[Refusal], int] = {
    **ADMINISTRATION,
    EntityDeleted: 410,
    EntityNotFound: 410,
    InvalidOperation: 400,
    LowSpace: 503,
}

RECEIVE_STATUSES = {**STATUSES, InvalidOperation: 405}
"""Of a request for the next message. Source: Azure/azure-sdk-for-php issue 1024: 405 where sessions are
required."""

RETRY_AFTER_S = 5
"""Said with 503. Our choice: what is short (space, turns of the loop, keys) is looked at four times a second,
and is rarely there again at once."""
