"""The administration over HTTP, sans-IO: a request becomes an answer, or a command and a use for its effect.

Owns: routes, authorization, the forms of answers. Must not know: sockets, HTTP syntax, where commands are
run. Queues only: topics, subscriptions and rules are not offered yet, which their routes say plainly.
Source: wire contract 7; Learn "Service Bus REST API" (entities).

Theory of operation: `handle` authorizes, routes and parses, then answers at once or gives `Pending(command,
render)`. The owner has the command run and calls `render` with the effect, which answers or gives a further
`Pending` (an update that leaves out what cannot be changed looks the queue up first). Every refusal carries
a tracking id, which stands in the log line of that refusal too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from peeklock.admin import atom
from peeklock.admin.errors import NotOffered, Refusal, status_of
from peeklock.admin.queues import IMMUTABLE, read_queue, write_queue
from peeklock.admin.reading import BODY_BYTES_MAX, Description, read_description
from peeklock.auth.authority import JWT_TOKEN_TYPE, SAS_TOKEN_TYPE, Authority
from peeklock.auth.errors import AuthorizationError, ClaimMissing
from peeklock.auth.rights import Right
from peeklock.broker.commands import (
    Address,
    CreateEntity,
    DeleteEntity,
    ListEntities,
    LookUp,
    ReplyTo,
    UpdateEntity,
)
from peeklock.broker.descriptions import EntityKind, QueueDescription
from peeklock.broker.effects import Done, EntitiesFound, EntityFound, EntityView, Failed
from peeklock.broker.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityNotFound,
    InvalidOperation,
    ServiceBusError,
)
from peeklock.broker.quotas import STANDARD, TierLimits

__all__ = ["BODY_BYTES_MAX", "AdminRequest", "Administration", "Pending", "Response"]

_FORWARD_TOKENS = {
    "forward_to": "servicebussupplementaryauthorization",
    "forward_dead_lettered_to": "servicebusdlqsupplementaryauthorization",
}
"""Field of a description -> header with a token for the entity that it names. Source: wire contract 7.1."""

PAGE_MAX = 100
"""Entities in a page; a larger $top is taken as this. Source: wire contract 7.1."""

_TOPICS_NOT_OFFERED = "Topics, subscriptions and rules are not offered yet."

_UNDER_TOPIC = re.compile(r"(?P<topic>.+)/subscriptions(?P<below>/.*)?", re.IGNORECASE | re.DOTALL)

AdminCommand = CreateEntity | UpdateEntity | DeleteEntity | ListEntities | LookUp
AdminEffect = EntityFound | EntitiesFound | Done | Failed


@dataclass(frozen=True, slots=True)
class AdminRequest:
    """An HTTP request, read whole."""

    method: str
    """Upper case."""
    path: str
    """As sent: percent-encoded, without the query."""
    query: str = ""
    """As sent, without the question mark."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer."""

    status: int
    content_type: str = ""
    """Empty = no body."""
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """A command to run; its effect, given to `render`, leads to the answer."""

    command: AdminCommand
    render: Callable[[Any], Response | Pending]
    """Takes the answering effect of the command."""


class Administration:
    """The administration of one namespace."""

    def __init__(
        self,
        authority: Authority,
        *,
        tracking: Callable[[], str],
        log: Callable[[str, dict[str, Any]], None],
        namespace: str = "peeklock",
        limits: TierLimits = STANDARD,
        created_at_ms: int = 0,
    ) -> None:
        """Take what the answers show.

        Args:
            authority: who may do what.
            tracking: gives a fresh GUID as text at each call.
            log: takes an event and its fields; called once for each refusal.
            namespace: its name, for the namespace's properties and the author of entries.
            limits: of the tier, which is shown as the SKU.
            created_at_ms: of the namespace, UTC ms.
        """
        self._authority = authority
        self._tracking = tracking
        self._log = log
        self._namespace = namespace
        self._limits = limits
        self._created_at_ms = created_at_ms

    def handle(self, request: AdminRequest, reply_to: ReplyTo, now_ms: int) -> Response | Pending:
        """Answer a request, or say what has to be done first. Never raises for what a client sent."""
        exchange = _Exchange(self, request, reply_to, now_ms)
        try:
            self._authorize(request, exchange.path, now_ms)
            return exchange.route()
        except (ServiceBusError, AuthorizationError, NotOffered) as failure:
            return exchange.refusal(failure)

    def _authorize(self, request: AdminRequest, path: str, now_ms: int) -> None:
        token = request.headers.get("authorization", "")
        if not token.strip():
            raise ClaimMissing("MissingToken: The authorization header was not found.")
        self._require(Right.MANAGE, token, path, now_ms, "to perform this operation")

    def authorize_forwards(self, request: AdminRequest, description: QueueDescription, now_ms: int) -> None:
        """Require Send on each entity that is forwarded to, by a token for it or by the request's own.

        Raises: AuthorizationError.
        """
        for field_, header in _FORWARD_TOKENS.items():
            target = getattr(description, field_)
            if target is not None:
                token = request.headers.get(header) or request.headers["authorization"]
                self._require(Right.SEND, token, target, now_ms, f"on '{target}' to forward to it")

    def _require(self, right: Right, token: str, path: str, now_ms: int, what_for: str) -> None:
        token, kind = token.strip(), SAS_TOKEN_TYPE
        if token[:7].lower() == "bearer ":
            token, kind = token[7:], JWT_TOKEN_TYPE
        # A path that could be taken for a URI of another path names no entity: only a namespace's token
        # will do.
        grant = self._authority.authorize(token, "" if "://" in path else path, now_ms, kind)
        if right not in grant.rights:
            raise ClaimMissing(f"Unauthorized access. '{right.value}' claim(s) are required {what_for}.")


class _Exchange:
    """One request on its way to its answer."""

    def __init__(self, owner: Administration, request: AdminRequest, reply_to: ReplyTo, now_ms: int) -> None:
        self._owner = owner
        self._request = request
        self._reply_to = reply_to
        self._now_ms = now_ms
        self._host = request.headers.get("host", "localhost")
        self._query = parse_qs(request.query, keep_blank_values=True)
        self.path = unquote(request.path).strip("/")

    def route(self) -> Response | Pending:
        """Dispatch on path, then on method. Raises: ServiceBusError, AuthorizationError, NotOffered."""
        lower = self.path.lower()
        if lower in ("$resources/queues", "$resources/topics"):
            return self._only_get() or self._list(lower.endswith("topics"))
        if lower == "$namespaceinfo":
            return self._only_get() or self._namespace_info()
        if under := _UNDER_TOPIC.fullmatch(self.path):
            return self._under_topic(under["topic"], (under["below"] or "").strip("/"))
        match self._request.method:
            case "GET":
                return self._get()
            case "PUT":
                return self._put()
            case "DELETE":
                return self._delete()
        return self._not_allowed("GET, PUT, DELETE")

    # Queues

    def _get(self) -> Response | Pending:
        if not self.path:
            return self._nothing_here()
        return Pending(LookUp(Address(self.path), self._reply_to), self._looked_up)

    def _looked_up(self, effect: AdminEffect) -> Response | Pending:
        if isinstance(effect, Failed) and type(effect.error) is EntityNotFound:
            return self._nothing_here()
        return self._entity(200, effect)

    def _put(self) -> Response | Pending:
        if not self.path:
            raise ArgumentInvalid("The name of an entity must not be empty.")
        given = read_description(self._request.body)
        if given.kind in ("TopicDescription", "SubscriptionDescription", "RuleDescription"):
            raise NotOffered(_TOPICS_NOT_OFFERED)
        if given.kind != "QueueDescription":
            raise ArgumentInvalid(f"The content is a {given.kind!r}, not a QueueDescription.")
        if "if-match" not in self._request.headers:
            description = read_queue(given, self.path, self._owner._limits.message_size_kb_default)
            self._owner.authorize_forwards(self._request, description, self._now_ms)
            return Pending(
                CreateEntity(description, self._reply_to), lambda effect: self._entity(201, effect)
            )
        if all(given.has(element) for element in IMMUTABLE):
            return self._update(given, None)
        return Pending(
            LookUp(Address(self.path), self._reply_to), lambda effect: self._update_after(given, effect)
        )

    def _update_after(self, given: Description, effect: AdminEffect) -> Response | Pending:
        if isinstance(effect, Failed):
            return self.refusal(effect.error)
        assert isinstance(effect, EntityFound)
        try:
            return self._update(given, effect.entity)
        except (ServiceBusError, AuthorizationError, NotOffered) as failure:
            return self.refusal(failure)

    def _update(self, given: Description, existing: EntityView | None) -> Pending:
        description = read_queue(
            given,
            self.path,
            self._owner._limits.message_size_kb_default,
            None if existing is None else existing.description,
        )
        self._owner.authorize_forwards(self._request, description, self._now_ms)
        return Pending(UpdateEntity(description, self._reply_to), lambda effect: self._entity(200, effect))

    def _delete(self) -> Response | Pending:
        if not self.path:
            raise ArgumentInvalid("The name of an entity must not be empty.")
        return Pending(DeleteEntity(self.path, self._reply_to), self._deleted)

    def _deleted(self, effect: AdminEffect) -> Response:
        if isinstance(effect, Failed):
            if type(effect.error) is InvalidOperation:
                # Only a lock on the namespace forbids to delete, which is called thus in Azure.
                return self._refusal(409, f"ScopeLocked: {effect.error}")
            return self.refusal(effect.error)
        assert isinstance(effect, Done)
        return Response(200)

    def _entity(self, status: int, effect: AdminEffect) -> Response:
        if isinstance(effect, Failed):
            return self.refusal(effect.error)
        assert isinstance(effect, EntityFound)
        text = atom.entry(self._queue_entry(effect.entity), self._owner._namespace)
        return Response(status, atom.ENTRY_TYPE, text.encode())

    def _queue_entry(self, view: EntityView) -> atom.Entry:
        return atom.Entry(
            title=view.description.name,
            href=self._href(view.description.name),
            published_ms=view.created_at_ms,
            updated_ms=view.updated_at_ms,
            content=write_queue(view, self._host, self._owner._limits.message_size_kb_default),
        )

    # Lists

    def _list(self, topics: bool) -> Response | Pending:
        skip = self._number("$skip", 0)
        top = self._number("$top", PAGE_MAX)
        if top == 0:
            raise ArgumentOutOfRange("The value 0 of $top is out of range; the smallest is 1.")
        top = min(top, PAGE_MAX)
        if topics:
            return self._page("Topics", skip, top, [], more=False)
        return Pending(
            ListEntities(EntityKind.QUEUE, skip, top, self._reply_to),
            lambda effect: self._queues_listed(skip, top, effect),
        )

    def _queues_listed(self, skip: int, top: int, effect: AdminEffect) -> Response:
        if isinstance(effect, Failed):
            return self.refusal(effect.error)
        assert isinstance(effect, EntitiesFound)
        return self._page("Queues", skip, top, effect.entities, effect.more)

    def _page(self, title: str, skip: int, top: int, entities: list[EntityView], more: bool) -> Response:
        where = f"$Resources/{title.lower()}"
        following = self._href(where, f"&%24skip={skip + len(entities)}&%24top={top}") if more else None
        text = atom.feed(
            title,
            self._href(where, f"&%24skip={skip}&%24top={top}"),
            following,
            self._now_ms,
            [self._queue_entry(view) for view in entities],
            self._owner._namespace,
        )
        return Response(200, atom.FEED_TYPE, text.encode())

    def _number(self, name: str, default: int) -> int:
        text = self._query.get(name, [str(default)])[-1]
        if not re.fullmatch("[0-9]{1,9}", text):
            raise ArgumentInvalid(f"The value {text!r} of {name} is not a whole number of up to 9 digits.")
        return int(text)

    # The rest

    def _under_topic(self, topic: str, below: str) -> Response:
        """Answer for a topic that cannot exist: a single thing is absent, a list has no topic."""
        if self._request.method == "PUT":
            raise NotOffered(_TOPICS_NOT_OFFERED)
        if self._request.method == "GET" and below and not below.lower().endswith("/rules"):
            return self._nothing_here()
        if self._request.method in ("GET", "DELETE"):
            raise EntityNotFound(f"Topic '{topic}' was not found.")
        return self._not_allowed("GET, PUT, DELETE")

    def _namespace_info(self) -> Response:
        owner = self._owner
        created = atom.timestamp(owner._created_at_ms)
        units = "<MessagingUnits>1</MessagingUnits>" if owner._limits.name == "Premium" else ""
        content = (
            f'<NamespaceInfo xmlns="{atom.SERVICE_BUS_NAMESPACE}" '
            'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
            f"<CreatedTime>{created}</CreatedTime><MessagingSKU>{owner._limits.name}</MessagingSKU>{units}"
            f"<ModifiedTime>{created}</ModifiedTime><Name>{atom.escape(owner._namespace)}</Name>"
            "<NamespaceType>Messaging</NamespaceType></NamespaceInfo>"
        )
        item = atom.Entry(
            owner._namespace,
            self._href("$namespaceinfo"),
            owner._created_at_ms,
            owner._created_at_ms,
            content,
        )
        return Response(200, atom.ENTRY_TYPE, atom.entry(item, owner._namespace).encode())

    def _nothing_here(self) -> Response:
        text = atom.nothing_here(self._owner._tracking(), self._now_ms)
        return Response(200, atom.FEED_TYPE, text.encode())

    def _only_get(self) -> Response | None:
        return None if self._request.method == "GET" else self._not_allowed("GET")

    def _not_allowed(self, methods: str) -> Response:
        text = f"The method {self._request.method} is not served here; these are: {methods}."
        return self._refusal(405, text, (("Allow", methods),))

    def refusal(self, failure: Refusal) -> Response:
        """Answer with an error, and log it under the same tracking id."""
        return self._refusal(*status_of(failure))

    def _refusal(self, status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
        tracking = f"{self._owner._tracking()}_G0"
        stamp = atom.timestamp(self._now_ms)[:19]
        where = f"{self._host}:{self.path}"
        detail = f"{text.rstrip('.')}. TrackingId:{tracking}, SystemTracker:{where}, Timestamp:{stamp}"
        self._owner._log(
            "administration request refused",
            {
                "tracking_id": tracking,
                "method": self._request.method,
                "path": self.path,
                "status": status,
                "reason": text,
            },
        )
        return Response(status, atom.ERROR_TYPE, atom.error(status, detail).encode(), headers)

    def _href(self, path: str, more: str = "") -> str:
        version = quote(self._query.get("api-version", ["2021-05"])[-1], safe="")
        return f"https://{self._host}/{quote(path, safe='/$')}?api-version={version}{more}"
