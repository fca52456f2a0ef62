"""The administration over HTTP, sans-IO: routes, and the namespace's properties.

Theory of operation: `handle` authorizes, routes and parses, then answers at once or returns `Pending(command,
render)`. The owner runs the command and calls `render` with its effect, which answers or returns another
`Pending` (an update that leaves out what cannot be changed looks the entity up first). Every refusal has a
tracking id, in its log line too. Source: wire contract 7; Learn "Service Bus REST API" (entities).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

from peeklock.admin import atom
from peeklock.admin.atom import write_element
from peeklock.admin.entity_requests import EntityRequests, list_entities, of_queue_or_topic, of_subscription
from peeklock.admin.exchange import AdminCommand, AdminContext, AdminRequest, Exchange, Pending, Response
from peeklock.admin.reading import BODY_BYTES_MAX
from peeklock.admin.rule_requests import RuleRequests, list_rules
from peeklock.auth.errors import AuthorizationError
from peeklock.broker.vocabulary.commands import NOWHERE, ReplyTo
from peeklock.broker.vocabulary.descriptions import EntityKind
from peeklock.broker.vocabulary.errors import ArgumentInvalid

__all__ = ["BODY_BYTES_MAX", "AdminCommand", "AdminRequest", "Administration", "Pending", "Response"]

_LISTS = {"$resources/queues": EntityKind.QUEUE, "$resources/topics": EntityKind.TOPIC}

# A topic's name may contain slashes and even this word; names of subscriptions and rules contain no slash.
_UNDER_TOPIC = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<subscription>[^/]+)(?P<rules>/rules(?:/(?P<rule>[^/]+))?)?)?",
    re.IGNORECASE | re.DOTALL,
)


class Administration:
    """The administration of one namespace."""

    def __init__(self, admin_context: AdminContext) -> None:
        self.admin_context = admin_context

    def handle(self, request: AdminRequest, reply_to: ReplyTo, now_ms: int) -> Response | Pending:
        """Answer a request, or return the command to run first. Never raises for what a client sent."""
        exchange = Exchange(self.admin_context, request, reply_to, now_ms)

        def answer() -> Response | Pending:
            exchange.authorize()
            return _route(exchange)

        return exchange.guarded(answer)

    def refusal(self, request: AdminRequest, now_ms: int) -> Response | None:
        """Return the refusal of a request for its token, before its body is there; None = it
        is not refused."""
        exchange = Exchange(self.admin_context, request, NOWHERE, now_ms)
        try:
            exchange.authorize()
        except AuthorizationError as failure:
            return exchange.refusal(failure)
        return None


def _route(exchange: Exchange) -> Response | Pending:
    """Dispatch on path, then on method. Raises: ServiceBusError, AuthorizationError."""
    path = exchange.path.lower()
    if path in _LISTS:
        return _only_get(exchange, lambda: list_entities(exchange, _LISTS[path]))
    if path == "$namespaceinfo":
        return _only_get(exchange, lambda: _namespace_info(exchange))
    # Split before it is decoded: an encoded slash belongs to a name.
    under = _UNDER_TOPIC.fullmatch(exchange.request.path.strip("/"))
    if under is None:
        return _entity(exchange)
    topic, subscription, rule = (
        None if part is None else unquote(part) for part in under.group("topic", "subscription", "rule")
    )
    assert topic is not None
    if subscription is None:
        return _list(
            exchange, "subscription", lambda: list_entities(exchange, EntityKind.SUBSCRIPTION, topic)
        )
    if rule is not None:
        return _one(exchange, RuleRequests(exchange, topic, subscription, rule))
    if under["rules"] is not None:
        return _list(exchange, "rule", lambda: list_rules(exchange, topic, subscription))
    return _one(exchange, of_subscription(exchange, topic, subscription))


def _entity(exchange: Exchange) -> Response | Pending:
    if exchange.path:
        return _one(exchange, of_queue_or_topic(exchange, exchange.path))
    return _list(exchange, "queue or topic", exchange.nothing_here)


def _one(exchange: Exchange, resource: EntityRequests | RuleRequests) -> Response | Pending:
    match exchange.request.method:
        case "GET":
            return resource.get()
        case "PUT":
            return resource.put()
        case "DELETE":
            return resource.delete()
    return exchange.not_allowed("GET, PUT, DELETE")


def _list(exchange: Exchange, kind: str, give: Callable[[], Response | Pending]) -> Response | Pending:
    """Serve a path whose last name is missing: a list."""
    match exchange.request.method:
        case "GET":
            return give()
        case "PUT" | "DELETE":
            raise ArgumentInvalid(f"The name of a {kind} must not be empty.")
    return exchange.not_allowed("GET")


def _only_get(exchange: Exchange, give: Callable[[], Response | Pending]) -> Response | Pending:
    return give() if exchange.request.method == "GET" else exchange.not_allowed("GET")


def _namespace_info(exchange: Exchange) -> Response:
    admin_context = exchange.admin_context
    created = atom.timestamp(admin_context.created_at_ms)
    content = write_element(
        "NamespaceInfo",
        (
            ("CreatedTime", created),
            ("MessagingSKU", admin_context.limits.name),
            ("MessagingUnits", 1 if admin_context.limits.name == "Premium" else None),
            ("ModifiedTime", created),
            ("Name", admin_context.name),
            ("NamespaceType", "Messaging"),
        ),
    )
    where = exchange.href("$namespaceinfo")
    return exchange.entry(
        200,
        atom.Entry(
            admin_context.name, where, admin_context.created_at_ms, admin_context.created_at_ms, content
        ),
    )
