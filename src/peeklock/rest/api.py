"""The REST data plane: messages over HTTP, sans-IO. Source: wire contract 8.

Theory of operation: `handle` authorizes and reads, then answers at once or returns the next step: a command
to run (`Ask`), more to read (`Step`), a message to wait for (`Receive`), or another part of the broker
(`Elsewhere`). The owner of the request takes the step and continues with its result. A refusal has a tracking
id, in its log line too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from urllib.parse import parse_qs, quote

from peeklock.admin.exchange import AdminContext, AdminRequest, Response
from peeklock.auth.errors import AuthorizationError
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import (
    Address,
    Disposition,
    LookUp,
    RenewLocks,
    SendTo,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import (
    Accepted,
    Deliver,
    Done,
    Effect,
    EntityFound,
    Failed,
    LocksRenewed,
    Rejected,
)
from peeklock.broker.vocabulary.errors import ArgumentInvalid, EntityNotFound, MessageSizeExceeded
from peeklock.gateway.address import NodeKind
from peeklock.rest.encoding import Encoded
from peeklock.rest.exchange import (
    Answer,
    Ask,
    DataExchange,
    DataRequest,
    Elsewhere,
    Receive,
    Step,
)
from peeklock.rest.paths import Form, Place, lock_refusal, lock_token, place_of
from peeklock.rest.sending import SLICE_MESSAGES, is_batch, iter_batch, read_one
from peeklock.rest.showing import response_of

__all__ = ["Answer", "Ask", "DataPlane", "DataRequest", "Elsewhere", "Receive", "Step"]

TIMEOUT_S_MAX = 60.0
"""The longest wait of a receive, and the default. Source: wire contract 8."""

SMALL_BODY_BYTES_MAX = 16 * 1024
"""Of a request that sends nothing: its body is ignored."""


class DataPlane:
    """The messages of one namespace, over HTTP."""

    def __init__(self, admin_context: AdminContext) -> None:
        """Serve a namespace; its log gets one line for each refusal."""
        self._admin_context = admin_context

    def wants(self, method: str, path: str, query: str = "", *, has_body: bool) -> bool:
        """Return whether a request is for messages, or has a method that a path for messages lacks.

        A PUT with a body describes an entity. Requests with an `api-version` come from a client of the
        administration, which looks for a queue of such a name.
        """
        place = place_of(path)
        if place is None or (method == "PUT" and has_body):
            return False
        return place.takes(method) or "api-version=" not in query

    def body_bytes_max(self, method: str, path: str) -> int | None:
        """Return the largest body that is read; None = a request with a body is not for messages."""
        place = place_of(path)
        if place is None or method == "PUT" or not place.takes(method):
            return None
        if place.form is Form.MESSAGES:
            return self._admin_context.limits.message_size_kb_max * 1024
        return SMALL_BODY_BYTES_MAX

    def refusal(self, request: AdminRequest, now_ms: int) -> Response | None:
        """Return the refusal of a request for its token, before its body is there; None = not refused."""
        exchange = self._exchange(request, now_ms)
        try:
            exchange.require(_right_for(exchange.place))
        except AuthorizationError as failure:
            return exchange.refusal(failure)
        return None

    def too_large(self, request: AdminRequest, bytes_max: int, now_ms: int) -> Response:
        """Return the refusal of a request with a larger body than is read."""
        text = f"The body is larger than {bytes_max} bytes, the limit of a message."
        return self._exchange(request, now_ms).refusal(MessageSizeExceeded(text))

    def handle(self, request: DataRequest, now_ms: int) -> Answer:
        """Return the answer to a request for messages, or the next step.

        Never raises for what a client sent.
        """
        exchange = self._exchange(request, now_ms)

        def answer() -> Answer:
            if not exchange.place.takes(request.method):
                return _not_taken(exchange)
            exchange.require(_right_for(exchange.place))
            if exchange.place.node.kind is not NodeKind.ENTITY:
                raise EntityNotFound(f"The messaging entity '{exchange.place.node.path}' could not be found.")
            match exchange.place.form:
                case Form.MESSAGES:
                    return self._send(exchange, request)
                case Form.HEAD:
                    return self._receive(exchange)
                case Form.LOCK:
                    return _settle(exchange)

        return exchange.guarded(answer)

    def _exchange(self, request: AdminRequest, now_ms: int) -> DataExchange:
        place = place_of(request.path)
        assert place is not None, "the request is not for messages"
        return DataExchange(self._admin_context, request, place, now_ms)

    def _send(self, exchange: DataExchange, request: DataRequest) -> Answer:
        if is_batch(request):
            return self._read_on(exchange, iter_batch(request, exchange.now_ms), [])
        return _store(exchange, [read_one(request, exchange.now_ms)])

    def _read_on(self, exchange: DataExchange, members: Iterator[Encoded], read: list[Encoded]) -> Answer:
        """Read the next members of a batch."""
        count = len(read)
        read += islice(members, SLICE_MESSAGES)
        if len(read) - count < SLICE_MESSAGES:
            return _store(exchange, read)
        return Step(lambda: exchange.guarded(lambda: self._read_on(exchange, members, read)))

    def _receive(self, exchange: DataExchange) -> Answer:
        request = exchange.request
        timeout_s = _timeout_s(request.query)
        assert isinstance(request, DataRequest)
        scheme = "https" if request.secure else "http"
        host = quote(exchange.host, safe=":[].-_~")  # a client's text in a header
        url = f"{scheme}://{host}/{exchange.place.entity}/messages"
        waits = self._exchange(exchange.shown_request, exchange.now_ms)
        deletes = request.method == "DELETE"
        lock_url = None if deletes else url

        def show(delivery: Deliver, payload: bytes) -> Response:
            return response_of(delivery, payload, lock_url=lock_url)

        receive = Receive(waits, exchange.place.node.address, 1, timeout_s, deletes, show, _first)
        return _unless_entity(exchange, receive) if deletes else receive


def _first(shown: list[Response]) -> Response:
    """Return the answer that shows the message, if one came."""
    return shown[0] if shown else Response(204)


def _timeout_s(query: str) -> float:
    """Return how long to wait. Raises: ArgumentInvalid."""
    given = parse_qs(query, keep_blank_values=True)
    text = next((values[-1] for name, values in given.items() if name.lower() == "timeout"), None)
    if text is None:
        return TIMEOUT_S_MAX
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ArgumentInvalid(f"The timeout {text[:40]!r} is not a whole number of seconds.")
    return min(int(text), TIMEOUT_S_MAX)


def _settle(exchange: DataExchange) -> Answer:
    place, address = exchange.place, exchange.place.node.address
    token = lock_token(place.token)
    if exchange.request.method == "POST":
        return Ask(RenewLocks(address, [token], exchange.reply_to), lambda effect: _settled(exchange, effect))
    completes = exchange.request.method == "DELETE"
    disposition = Disposition.COMPLETED if completes else Disposition.ABANDONED

    def render(effect: Effect) -> Answer:
        response = _settled(exchange, effect)
        # Looked up afterwards, so that a completion need not wait for it.
        return _unless_entity(exchange, response) if completes and isinstance(effect, Failed) else response

    return Ask(UpdateDisposition(address, [token], disposition, exchange.reply_to), render)


def _settled(exchange: DataExchange, effect: Effect) -> Response:
    if isinstance(effect, Failed):
        return exchange.refusal(lock_refusal(effect.error, exchange.place.token))
    assert isinstance(effect, Done | LocksRenewed)
    return Response(200)


def _unless_entity(exchange: DataExchange, answer: Answer) -> Answer:
    """Leave a request to the administration if an entity has exactly this name: it may be deleted."""

    def render(effect: Effect) -> Answer:
        return Elsewhere.ADMINISTRATION if isinstance(effect, EntityFound) else answer

    return Ask(LookUp(Address(exchange.path), exchange.reply_to), render)


def _not_taken(exchange: DataExchange) -> Answer:
    """Refuse a method that the path does not take, unless an entity has exactly this name."""
    exchange.granted_here(exchange.place.node.path)

    def refuse() -> Response:
        exchange.require(_right_for(exchange.place))
        return exchange.not_allowed(exchange.place.form.value)

    def render(effect: Effect) -> Answer:
        return Elsewhere.ADMINISTRATION if isinstance(effect, EntityFound) else exchange.guarded(refuse)

    return Ask(LookUp(Address(exchange.path), exchange.reply_to), render)


def _right_for(place: Place) -> Right:
    return Right.SEND if place.form is Form.MESSAGES else Right.LISTEN


def _store(exchange: DataExchange, messages: list[Encoded]) -> Ask:
    def render(effect: Effect) -> Response:
        if isinstance(effect, Rejected):
            return exchange.refusal(effect.error)
        assert isinstance(effect, Accepted)
        return Response(201)

    return Ask(SendTo(exchange.place.node.address, messages, exchange.reply_to), render)
