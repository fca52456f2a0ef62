"""The API as a whole: the table of operations, and the steps of a request: find, authorize, read, handle.

Theory of operation: as in `rest.api`. `handle` answers at once, or returns the next step: a command to run
(`Ask`, `Show`), more to read (`Step`), messages to wait for (`Take`, `Stream`), the work of a
child process (`Work`). `waits` does all but `Step` and `Work`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from urllib.parse import parse_qsl, unquote

from peeklock.admin.exchange import AdminContext, AdminRequest, Response
from peeklock.api import (
    by_number,
    counts,
    definitions,
    entities,
    history,
    jobs,
    life,
    locks,
    match,
    me,
    messages,
    model,
    openapi,
    rule_json,
    rules,
    scheduled,
    search,
    sessions,
    works,
)
from peeklock.api.exchange import JSON, Answer, ApiContext, ApiExchange, to_json
from peeklock.api.problems import MethodNotAllowed, NotHere
from peeklock.api.table import (
    ROOT,
    SMALL_BODY_BYTES_MAX,
    Call,
    Operation,
    Table,
    node_of,
    read_body,
    read_parameters,
)
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.errors import MessageSizeExceeded
from peeklock.gateway.address import Node

DOCUMENT = "/$api/openapi.json"
"""Served without a token: it is public documentation."""

_PARTS = (
    model,
    rule_json,
    me,
    counts,
    entities,
    definitions,
    rules,
    match,
    messages,
    by_number,
    locks,
    sessions,
    search,
    scheduled,
    history,
    works,
    jobs,
    life,
)

TABLE = Table(
    tuple(operation for part in _PARTS for operation in getattr(part, "OPERATIONS", ())),
    {name: schema for part in _PARTS for name, schema in part.NAMED.items()},
)


class Api:
    """The API of one namespace."""

    def __init__(self, admin_context: AdminContext, context: ApiContext) -> None:
        """Serve a namespace; its log takes one line for each refusal."""
        self._admin_context = admin_context
        self._context = context

    def wants(self, path: str) -> bool:
        """Return whether a path, percent-encoded, is the API's. No entity has such a name."""
        return unquote(path.lstrip("/").partition("/")[0]) == "$api"

    def administers(self, method: str, path: str) -> bool:
        """Return whether a request is to change entities or rules."""
        try:
            operation = _find(method, path)[0]
        except (NotHere, MethodNotAllowed):
            return False
        return (
            operation.right is Right.MANAGE
            and "{entity}" in operation.path
            and not (method == "GET" or operation.changes_nothing)
        )

    def body_bytes_max(self, method: str, path: str) -> int:
        """Return the largest body that is read."""
        try:
            return _find(method, path)[0].body_bytes_max
        except (NotHere, MethodNotAllowed):
            return SMALL_BODY_BYTES_MAX

    def refusal(self, request: AdminRequest, now_ms: int) -> Response | None:
        """Return the refusal of a request for its token, before its body is there; None = not refused."""
        exchange = ApiExchange(self._admin_context, request, now_ms)
        passed = Response(204)

        def answer() -> Answer:
            _authorized(exchange)
            return passed

        found = exchange.guarded(answer)
        assert isinstance(found, Response)
        return None if found is passed else found

    def too_large(self, request: AdminRequest, bytes_max: int, now_ms: int) -> Response:
        """Return the refusal of a request with a larger body than is read."""
        text = f"The body is larger than {bytes_max} bytes, the limit of this operation."
        return ApiExchange(self._admin_context, request, now_ms).refusal(MessageSizeExceeded(text))

    def handle(self, request: AdminRequest, now_ms: int) -> Answer:
        """Return the answer to a request of this API, or the next step.

        Never raises for what a client sent.
        """
        exchange = ApiExchange(self._admin_context, request, now_ms)

        def answer() -> Answer:
            if request.method == "GET" and unquote(request.path) == DOCUMENT:
                return Response(200, JSON, _document())
            operation, texts, node = _authorized(exchange, request.body)
            given = read_parameters(operation, texts, request.query, request.headers)
            content_type = request.headers.get("content-type", "")
            body = read_body(operation, request.body, content_type, TABLE.named)
            return operation.handle(Call(exchange, node, given, body, self._context))

        return exchange.guarded(answer)


def _find(method: str, path: str) -> tuple[Operation, Mapping[str, str]]:
    """Return an operation, and the texts of its path's parameters. Raises: NotHere, MethodNotAllowed."""
    decoded = [unquote(segment) for segment in path.split("/")]
    if decoded == ["", *DOCUMENT.split("/")[1:]]:
        raise MethodNotAllowed(method, ["GET"])
    if "/".join(decoded[:3]) != ROOT:
        raise NotHere(f"This API has no {unquote(path)[:200]}: its paths begin with {ROOT}/.")
    methods, texts = TABLE.find(decoded[3:])
    if method not in methods:
        raise MethodNotAllowed(method, list(methods))
    return methods[method], texts


def _authorized(
    exchange: ApiExchange, body: bytes | None = None
) -> tuple[Operation, Mapping[str, str], Node | None]:
    """Return the operation of a request, the texts of its path, and its entity; require the right to it.

    `body`: None = it is not there yet; if it is to name the entity, any right is enough so far.

    Raises: NotHere, MethodNotAllowed, ArgumentInvalid, AuthorizationError.
    """
    request = exchange.request
    operation, texts = _find(request.method, request.path)
    text = texts.get("entity")
    if text is None and any(parameter.name == "entity" for parameter in operation.query):
        text = dict(parse_qsl(request.query)).get("entity")
    if operation.right is None:
        exchange.own_grant()
        return operation, texts, None
    if operation.finds_entity is not None:
        if body is None:
            exchange.own_grant()
            return operation, texts, None
        text = operation.finds_entity(body)
    if text is None:
        exchange.require(Right.MANAGE, "")
        return operation, texts, None
    node = node_of(text)
    exchange.require(operation.right, node.path, operation.or_right)
    return operation, texts, node


@cache
def _document() -> bytes:
    return to_json(openapi.document(TABLE))
