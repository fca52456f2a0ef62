"""One request for messages on its way to its answer.

Owns: the request as a value, the answers that the room gives, rights, refusals. Must not know: what is sent
or received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

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
from peeklock.broker.vocabulary.errors import ServiceBusError
from peeklock.rest.errors import RECEIVE_STATUSES, RETRY_AFTER_S, STATUSES
from peeklock.rest.paths import Form, Place


@dataclass(frozen=True, slots=True)
class DataRequest(AdminRequest):
    """An HTTP request for messages, read whole."""

    fields: tuple[tuple[str, str], ...] = field(default=())
    """All headers as they were spelt: names of properties keep their case."""
    secure: bool = False
    """It came over TLS, so that an address which is answered is one for TLS too."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A command to run; its effect, given to `render`, leads to the answer."""

    command: LookUp | RenewLocks | SendTo | UpdateDisposition
    render: Callable[[Any], Answer]


@dataclass(frozen=True, slots=True)
class Step:
    """There is more to read than others can wait for: call `go_on` in another turn."""

    go_on: Callable[[], Answer]


@dataclass(frozen=True, slots=True)
class Receive:
    """Wait for the next message."""

    exchange: DataExchange
    """Without the request's headers and body: it is kept for as long as the wait lasts."""
    address: Address
    deletes: bool
    timeout_s: float
    messages_url: str
    """Where the entity's messages are, as the client reached it."""


class Elsewhere(Enum):
    """What a request is about is not here."""

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
        """Require a right on the entity. A token may also be for just this address and what lies above it.

        Raises: AuthorizationError.
        """
        if right not in self.granted_here(self.place.node.path).rights:
            raise ClaimMissing(f"{right.value} claim required for this operation.")

    def refusal(self, failure: Refusal) -> Response:
        """Return the answer that tells of a refusal, and log it under the same tracking id."""
        statuses = RECEIVE_STATUSES if self.place.form is Form.HEAD else STATUSES
        status = statuses[type(failure)]
        headers: tuple[tuple[str, str], ...] = ()
        if status == 503:
            headers = (("Retry-After", str(RETRY_AFTER_S)),)
        elif status == 405:  # nothing can be received here by any method
            headers = (("Allow", ""),)
        key_name = failure.key_name if isinstance(failure, AuthorizationError) else ""
        return self.refused(status, str(failure), headers, key_name=key_name)


def guarded(exchange: DataExchange, answer: Callable[[], Answer]) -> Answer:
    """Return an answer, or the one that tells of a refusal that is raised."""
    try:
        return answer()
    except (ServiceBusError, AuthorizationError) as failure:
        return exchange.refusal(failure)
