"""A request of the API and its possible answers; problems, JSON, cursors. Source: RFC 9457 for problems."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from peeklock.admin.exchange import AdminContext, AdminRequest, Exchange, Response
from peeklock.api.count_board import CountBoard
from peeklock.api.problems import (
    STATUSES,
    ApiRefusal,
    MethodNotAllowed,
    Refusal,
    RightMissing,
    words_of,
)
from peeklock.auth.errors import AuthorizationError
from peeklock.auth.rights import Grant, Right
from peeklock.auth.sas import SasToken, is_sas
from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.commands import NOWHERE, Address, Command
from peeklock.broker.vocabulary.effects import Deliver, Done
from peeklock.broker.vocabulary.errors import ArgumentInvalid, ServiceBusError
from peeklock.broker.vocabulary.message import MessageView
from peeklock.gateway.errors import MessageMalformed
from peeklock.rest.broker_properties import read_json
from peeklock.rest.exchange import RETRY_AFTER_S, Step, Take

JSON = "application/json"
PROBLEM = "application/problem+json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"

CURSOR_LENGTH_MAX = 2048
"""Characters of a cursor. Our choice: the longest path of an entity, escaped as JSON."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """What the broker around the API has."""

    counts: CountBoard | None = None
    """None = it has no counts."""
    history: History | None = None
    """None = it is off."""
    identities_of: Callable[[int], list[str]] = lambda connection_id: []
    """Returns the names of the keys and roles of an AMQP connection."""
    is_development: bool = False
    """Whether clients need no secret."""
    has_event_log: bool = False
    has_jobs: bool = False
    has_namespaces: bool = False
    """Whether the pages of the operator show other namespaces here too."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A command to run. A failure is answered with its problem; any other effect is given to `render`."""

    exchange: ApiExchange
    command: Command
    render: Callable[[Any], Answer]
    refusal: Callable[[ServiceBusError], ServiceBusError] = lambda error: error
    """Returns the error to answer for a failure."""
    instead: Callable[[ServiceBusError], Answer | None] = lambda error: None
    """Returns what to do instead of answering a failure; None = answer it."""


@dataclass(frozen=True, slots=True)
class Show:
    """A command whose effect shows messages. A failure is answered with its problem."""

    exchange: ApiExchange
    command: Command
    views: Callable[[Any], list[MessageView]]
    """Takes the effect, and returns the messages whose bodies are wanted."""
    render: Callable[[Any, list[bytes]], Answer]
    """Takes the effect and the payloads of those, `LOST_BODY` for a damaged one."""
    refusal: Callable[[ServiceBusError], ServiceBusError] = lambda error: error


@dataclass(frozen=True, slots=True)
class Stream:
    """Lock messages of an entity as they come, until the client leaves."""

    exchange: ApiExchange
    """As of `Take`."""
    address: Address
    window: int
    """Messages that this stream may hold locked at a time."""
    render: Callable[[Deliver, bytes], bytes]
    """Makes an event."""


@dataclass(frozen=True, slots=True)
class Work:
    """Have a child process do long work, and stream what it writes until its end, or until the client leaves.

    It connects as a client with these grants, as long as they are upheld.
    """

    exchange: ApiExchange
    """As of `Take`."""
    grants: tuple[Grant, ...]
    identity: str
    """Of the key of the request, see `Grant.identity`."""
    work: Mapping[str, Any]
    """For the child, see `peeklock.worker`."""
    content_type: str


@dataclass(frozen=True, slots=True)
class Steer:
    """Start a job, show jobs, or change what one does."""

    exchange: ApiExchange
    do: Literal["start", "list", "show", "stop", "resume", "forget"]
    sees: Callable[[Mapping[str, Any], str], bool]
    """Whether a job, as JSON, may be seen; the second argument is who started or resumed it last, see
    `Grant.identity`."""
    job_id: str = ""
    order: Mapping[str, Any] | None = None
    """Of a job to start: `shown`, its members as JSON, and `work`, for the child."""
    grants: Callable[[Mapping[str, Any]], tuple[Grant, ...]] = lambda job: ()
    """Returns the grants for a job, as JSON, that is to run. Raises: AuthorizationError, RightMissing."""
    by: str = ""
    """The name of the key or the roles of the request."""


Answer: TypeAlias = Response | Ask | Show | Take | Stream | Work | Steer | Step


class ApiExchange(Exchange):
    """One request of the API."""

    refused_event = "API request refused"
    refused_on = (*Exchange.refused_on, ApiRefusal, MessageMalformed)

    def __init__(self, admin_context: AdminContext, request: AdminRequest, now_ms: int) -> None:
        super().__init__(admin_context, request, NOWHERE, now_ms)
        self.statuses: Mapping[type[Refusal], int] = STATUSES
        """Of refusals; an operation may set its own."""

    def slim(self) -> ApiExchange:
        """Return an exchange that keeps of the request only what a refusal shows."""
        return ApiExchange(self.admin_context, self.shown_request, self.now_ms)

    def require(self, right: Right, path: str, or_right: Right | None = None) -> None:
        """Raise AuthorizationError or RightMissing unless the token has one of two rights on a path.

        A token may also be for this very address or a path above it.
        """
        self.grant(right, path, or_right)

    def grant(self, right: Right, path: str, or_right: Right | None = None) -> Grant:
        """Return the grant for a path of a token that has a right on it, without an expiry of its own.

        Raises: AuthorizationError, RightMissing.
        """
        found = self.granted_here(path)
        if right not in found.rights and or_right not in found.rights:
            wanted = right.value if or_right is None else f"{right.value} or {or_right.value}"
            raise RightMissing(f"{wanted} claim required for this operation.")
        return replace(found, path=path, expires_at_ms=None)

    def own_grant(self) -> Grant:
        """Verify the request's token for what it is signed for; a web token for the namespace.

        Raises: AuthorizationError, RightMissing.
        """
        token = self.token.strip()
        grant = self.granted(token, SasToken.parse(token).path if is_sas(token) else "")
        if not grant.rights:
            raise RightMissing("The token has no right in this namespace.")
        return grant

    def refusal(self, failure: Refusal | MessageMalformed) -> Response:
        """Return the problem of a refusal, and log it under the same tracking id."""
        if isinstance(failure, MessageMalformed):
            failure = ArgumentInvalid(str(failure))
        kind = type(failure)
        status = self.statuses[kind]
        key_name = failure.key_name if isinstance(failure, AuthorizationError) else ""
        headers: tuple[tuple[str, str], ...] = ()
        if status == 503:
            headers = (("Retry-After", str(RETRY_AFTER_S)),)
        elif status == 401:
            headers = (("WWW-Authenticate", "SharedAccessSignature, Bearer"),)
        elif isinstance(failure, MethodNotAllowed):
            headers = (("Allow", ", ".join(failure.allowed)),)
        return self.problem(status, words_of(kind), str(failure), headers, key_name=key_name)

    def problem(
        self,
        status: int,
        words: list[str],
        detail: str,
        headers: tuple[tuple[str, str], ...] = (),
        *,
        key_name: str = "",
    ) -> Response:
        """Return a problem of a kind, and log it under the same tracking id."""
        tracking = self.admin_context.tracking()
        self.log_refusal(tracking, status, detail, key_name)
        members = {
            "type": f"urn:peeklock:problem:{'-'.join(words)}",
            "title": " ".join(words).capitalize(),
            "status": status,
            "detail": detail,
            "trackingId": tracking,
        }
        return Response(status, PROBLEM, to_json(members), headers)


def done(effect: Done) -> Response:
    """Return the answer without content."""
    return Response(204)


def to_json(value: Any) -> bytes:
    """Encode JSON in ASCII, so that every text can be encoded."""
    return json.dumps(value, separators=(",", ":")).encode()


def answer_json(value: Any, status: int = 200) -> Response:
    """Return an answer of JSON."""
    return Response(status, JSON, to_json(value))


def to_cursor(*parts: int | str) -> str:
    """Encode a position as a cursor."""
    return base64.urlsafe_b64encode(to_json(parts)).decode().rstrip("=")


def from_cursor(text: str, *kinds: type) -> list[Any]:
    """Decode a cursor. Raises: ArgumentInvalid."""
    try:
        padded = text + "=" * (-len(text) % 4)
        parts = read_json(base64.b64decode(padded, b"-_", validate=True), "The cursor")
    except (binascii.Error, ValueError, ArgumentInvalid):
        parts = None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds):
        raise cursor_unknown()
    if any(isinstance(part, int) and not 0 <= part < 1 << 63 for part in parts):
        raise cursor_unknown()
    return parts


def cursor_unknown() -> ArgumentInvalid:
    """Return the refusal of a cursor that this API has not returned."""
    return ArgumentInvalid("The parameter 'cursor' is not a cursor of this API.")
