"""A request for messages over HTTP and its possible answers; rights, refusals. Source: wire contract 8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from peeklock.admin.errors import STATUSES as ADMIN_STATUSES
from peeklock.admin.errors import Refusal
from peeklock.admin.exchange import AdminContext, AdminRequest, Exchange, Response
from peeklock.auth.errors import AuthorizationError, ClaimMissing
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import (
    NOWHERE,
    Address,
    LookUp,
    RenewLocks,
    SendTo,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import Deliver
from peeklock.broker.vocabulary.errors import (
    EntityDeleted,
    EntityNotFound,
    InvalidOperation,
    LowSpace,
)
from peeklock.rest.paths import Form, Place

STATUSES: dict[type[Refusal], int] = {
    **ADMIN_STATUSES,
    EntityDeleted: 410,
    EntityNotFound: 410,
    InvalidOperation: 400,
    LowSpace: 503,
}
RECEIVE_STATUSES = {**STATUSES, InvalidOperation: 405}
"""Of a request for the next message. Source: Azure/azure-sdk-for-php issue 1024: 405 where sessions are
required."""

RETRY_AFTER_S = 5
"""With 503. Our choice: what is short (space, turns of the loop, keys) is checked four times a second, and
rarely back at once."""


@dataclass(frozen=True, slots=True)
class DataRequest(AdminRequest):
    """An HTTP request for messages, read whole."""

    fields: tuple[tuple[str, str], ...] = field(default=())
    """All headers as spelt: names of properties keep their case."""
    secure: bool = False
    """It came over TLS: an address in the answer is one for TLS too."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A command to run; its effect, given to `render`, leads to the answer."""

    command: LookUp | RenewLocks | SendTo | UpdateDisposition
    render: Callable[[Any], Answer]


@dataclass(frozen=True, slots=True)
class Step:
    """There is more to read: call `go_on` in another turn, so that others need not wait."""

    go_on: Callable[[], Any]
    """Returns the answer, as a request does."""


@dataclass(frozen=True, slots=True)
class Take:
    """Wait for messages of an entity, and lock or delete them."""

    exchange: Exchange
    """Without the request's headers and body: it is kept as long as the wait lasts."""
    address: Address
    count_max: int
    timeout_s: float
    deletes: bool
    show: Callable[[Deliver, bytes], Any]
    """Takes a delivery and its payload, and returns what the answer shows of it."""
    answer: Callable[[list[Any]], Response]
    """Takes what `show` returned, in order."""


class Receive(Take):
    """Wait for the next message."""

    __slots__ = ()


class Elsewhere(Enum):
    """The request is for another part of the broker."""

    ADMINISTRATION = 0
    """There is an entity of just this name."""


Answer: TypeAlias = Response | Ask | Step | Receive | Elsewhere


class DataExchange(Exchange):
    """One request for messages."""

    refused_event = "message request refused"

    def __init__(self, admin_context: AdminContext, request: AdminRequest, place: Place, now_ms: int) -> None:
        super().__init__(admin_context, request, NOWHERE, now_ms)
        self.place = place

    def require(self, right: Right) -> None:
        """Raise AuthorizationError unless the token has a right on the entity.

        A token may also be for this very address or a path above it.
        """
        if right not in self.granted_here(self.place.node.path).rights:
            raise ClaimMissing(f"{right.value} claim required for this operation.")

    def refusal(self, failure: Refusal) -> Response:
        """Return the answer to a refusal, and log it under the same tracking id."""
        statuses = RECEIVE_STATUSES if self.place.form is Form.HEAD else STATUSES
        status = statuses[type(failure)]
        headers: tuple[tuple[str, str], ...] = ()
        if status == 503:
            headers = (("Retry-After", str(RETRY_AFTER_S)),)
        elif status == 405:  # nothing can be received here by any method
            headers = (("Allow", ""),)
        key_name = failure.key_name if isinstance(failure, AuthorizationError) else ""
        return self.refused(status, str(failure), headers, key_name=key_name)
