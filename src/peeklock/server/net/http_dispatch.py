"""Routing of HTTP requests: the operator's pages, the API, messages, the administration, WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from peeklock.admin.api import BODY_BYTES_MAX, Administration, AdminRequest, Pending, Response
from peeklock.api import exchange as api_exchange
from peeklock.api.api import Api
from peeklock.api.exchange import ApiContext
from peeklock.broker.vocabulary.commands import NOWHERE, Command, ReplyTo
from peeklock.broker.vocabulary.effects import Effect
from peeklock.rest.api import Answer, Ask, DataPlane, DataRequest, Elsewhere, Receive, Step
from peeklock.rest.exchange import RETRY_AFTER_S, Take
from peeklock.rest.receives import Receives
from peeklock.server import log
from peeklock.server.line_limits import Note
from peeklock.server.loop.turns import Turns
from peeklock.server.net.http_bodies import BodyBudget
from peeklock.server.net.http_heads import Head
from peeklock.server.net.hub import ApiHub, Hub, Waiting
from peeklock.server.net.operator_pages import OperatorPages
from peeklock.server.origins import OriginPolicy
from peeklock.server.workers.hub import WorkHub
from peeklock.server.workers.jobs import Jobs

Submit = Callable[[Callable[[ReplyTo], Command]], Awaitable[Effect]]
"""Runs a command, which the given function makes from the reply-to."""

SubmitFor = Callable[[Callable[[ReplyTo], Command], Callable[[Effect], None]], None]
"""Does the same, and calls a function with the effect: a turn of the loop less than a task that awaits."""

Then = Callable[[Response | Receive | Waiting], None]
"""Takes the answer to a request, or what the request waits for."""

WEBSOCKET_PATH = "/$servicebus/websocket"
"""In any case, with or without a slash at its end. Source: wire contract 1.1."""


@dataclass(frozen=True, slots=True)
class HttpContext:
    """What all HTTP connections of a broker share."""

    submit: Submit
    submit_for: SubmitFor
    administration: Callable[[Note], Administration]
    """Makes the administration of a connection, whose refusals are noted."""
    pages: OperatorPages
    """What the operator sees."""
    now_ms: Callable[[], int]
    """UTC."""
    origin_policy: OriginPolicy
    stops: Callable[[], bool]
    """Whether the broker stops: no request is begun then."""
    amqp: Callable[[], asyncio.Protocol]
    """Makes the protocol that a WebSocket carries."""
    turns: Turns
    bears_refusal: Callable[[str], bool]
    """Is called with the address of a peer that has shown a bad token; whether that peer may go on."""
    bodies: BodyBudget
    """For messages that are not complete yet."""
    receives: Hub[Receives] | None = None
    """Takes requests that wait for messages."""
    api: ApiHub | None = None
    """Takes requests to the API that wait; None = there is no API."""
    api_context: ApiContext = field(default_factory=ApiContext)
    works: WorkHub | None = None
    """Takes requests whose work a child process does; None = there is no API."""
    jobs: Jobs | None = None
    """None = there is no API."""


class Dispatch:
    """The answers to the requests of one connection."""

    def __init__(self, context: HttpContext, note: Note) -> None:
        self._context = context
        self._note = note
        self._administration = context.administration(note)
        admin_context = self._administration.admin_context
        self._data = DataPlane(admin_context)
        self._api = None if context.api is None else Api(admin_context, context.api_context)
        self._task: asyncio.Task[None] | None = None
        self.known = False
        """Whether a request that needs a token has been served."""

    # Before the body

    def why_page_refused(self, head: Head) -> tuple[int, str] | None:
        """Return status and reason if a foreign web page may have sent the request."""
        policy = self._context.origin_policy
        refusal = policy.refusal_of_origin(head.headers.get("origin"), head.hosts)
        if refusal is not None or self._context.pages.open_to_any_host(head.path):
            return refusal
        if self._api_for(head) is not None:  # where a GET may lock messages
            refusal = policy.refusal_of_site(head.headers.get("sec-fetch-site"), head.headers.get("origin"))
        return refusal or policy.refusal_of_host(head.hosts)

    def body_bytes_max(self, head: Head) -> tuple[int, bool]:
        """Return how large a body may be, and whether it is a message."""
        if api := self._api_for(head):
            return api.body_bytes_max(head.method, head.path), True
        bytes_max = self._data.body_bytes_max(head.method, head.path)
        return (BODY_BYTES_MAX, False) if bytes_max is None else (bytes_max, True)

    def too_large(self, head: Head, bytes_max: int, peer: str | None) -> Response:
        """Return the refusal of a message that is too large."""
        return (self._api_for(head) or self._data).too_large(
            _request(head, b"", peer), bytes_max, self._context.now_ms()
        )

    def refusal_before_body(self, head: Head, peer: str | None, *, is_message: bool) -> Response | None:
        """Return the refusal of a request with a large body and a bad token; None = it may go on."""
        refuses = self._api_for(head) or (self._data if is_message else self._administration)
        return refuses.refusal(_request(head, b"", peer), self._context.now_ms())

    def wants_no_body(self, head: Head) -> bool:
        takes = self._context.pages.takes_body(head.path, head.method)
        return (self._is_page(head) and not takes) or is_websocket(head)

    # Complete requests

    def answer(self, head: Head, body: bytes, peer: str | None, then: Then, *, secure: bool) -> None:
        """Call `then` with the answer to a request, now or later. Messages take no task."""
        if self._context.stops():
            again = (("Retry-After", str(RETRY_AFTER_S)), ("Connection", "close"))
            then(Response(503, "text/plain", b"the broker stops", again))
            return
        if api := self._api_for(head):
            if api.administers(head.method, head.path):
                then = partial(_log_administration, head, peer, then)
            try:
                found = api.handle(_request(head, body, peer), self._context.now_ms())
                self._take_api_answer(found, partial(self._hand_on, then))
            except Exception as failure:
                then(defect(failure))
            return
        wanted = self._data.wants(head.method, head.path, head.query, has_body=bool(body))
        if not wanted or self._is_page(head):  # a key may be named `messages`
            self._task = asyncio.get_running_loop().create_task(self._answer(head, body, peer, then))
            return
        asked = DataRequest(head.method, head.path, head.query, head.headers, body, peer, head.fields, secure)

        def go_on(make: Callable[[], Answer]) -> None:
            try:
                found = make()
                if isinstance(found, Ask):
                    render = found.render
                    self._context.submit_for(
                        _addressed(found.command), lambda effect: go_on(lambda: render(effect))
                    )
                    return
                if isinstance(found, Step):  # other work has its turn
                    asyncio.get_running_loop().call_soon(go_on, found.go_on)
                    return
            except Exception as failure:
                then(defect(failure))
                return
            if isinstance(found, Elsewhere):
                self._task = asyncio.get_running_loop().create_task(self._answer(head, body, peer, then))
                return
            self._hand_on(then, found)

        go_on(lambda: self._data.handle(asked, self._context.now_ms()))

    def _take_api_answer(self, answer: api_exchange.Answer, then: Then) -> None:
        if isinstance(answer, Step):  # other work has its turn
            go_on = answer.go_on
            asyncio.get_running_loop().call_soon(lambda: self._take_api_answer(go_on(), then))
        elif isinstance(answer, api_exchange.Steer):
            assert self._context.jobs is not None
            self._context.jobs.steer(answer, then)
        elif isinstance(answer, Response | Take | api_exchange.Stream | api_exchange.Work):
            then(answer)
        else:
            assert self._context.api is not None
            refused = self._context.api.begin(answer, partial(self._take_api_answer, then=then))
            if isinstance(refused, Response):
                then(refused)

    def _hand_on(self, then: Then, found: Response | Receive | Waiting) -> None:
        """Call `then`; note whether the client has shown a token: one that waits has."""
        self.known = self.known or not isinstance(found, Response) or found.status < HTTPStatus.BAD_REQUEST
        then(found)

    def _api_for(self, head: Head) -> Api | None:
        """Return the API if the request is for it, and not for a page below it."""
        api = self._api
        return api if api is not None and api.wants(head.path) and not self._is_page(head) else None

    async def _answer(self, head: Head, body: bytes, peer: str | None, then: Then) -> None:
        try:
            response = await self._respond(head, body, peer)
        except Exception as failure:
            response = defect(failure)
        then(response)

    async def _respond(self, head: Head, body: bytes, peer: str | None) -> Response:
        """Return the answer to a request that is not for messages."""
        if self._is_page(head):
            return await self._page(head, body, peer)
        if is_websocket(head):
            refusal = accepted(head, body)
            assert isinstance(refusal, Response)  # else it would have been upgraded
            self.note_refusal(refusal.status, refusal.body.decode().strip(), peer)
            return refusal
        if "websocket" in head.headers.get("upgrade", "").lower():
            text = f"AMQP over WebSocket is at {WEBSOCKET_PATH}, not here"
            self.note_refusal(404, text, peer)
            return Response(404, "text/plain", text.encode())
        return await self._administer(head, body, peer)

    def note_refusal(self, status: int, reason: str, peer: str | None) -> None:
        self._note("HTTP request refused", {"status": status, "reason": reason, "peer": peer})

    async def _administer(self, head: Head, body: bytes, peer: str | None) -> Response:
        answer = self._administration.handle(_request(head, body, peer), NOWHERE, self._context.now_ms())
        while isinstance(answer, Pending):
            answer = answer.render(await self._context.submit(_addressed(answer.command)))
        self.known = self.known or answer.status < HTTPStatus.BAD_REQUEST
        if head.method not in ("GET", "HEAD"):
            _log_administration(head, peer, lambda _: None, answer)
        return answer

    def _is_page(self, head: Head) -> bool:
        return self._context.pages.wants(head.path, head.query)

    async def _page(self, head: Head, body: bytes, peer: str | None) -> Response:
        """Return a page of the operator. A bad key there counts against its address."""
        host = (peer or "").rpartition(":")[0]
        return await self._context.pages.answer(
            _request(head, body, peer),
            self._administration.admin_context,
            self._context.now_ms(),
            known_host=self._context.origin_policy.knows(head.hosts),
            refused=lambda: self._context.bears_refusal(host),
        )


def is_websocket(head: Head) -> bool:
    return unquote(head.path).rstrip("/").lower() == WEBSOCKET_PATH


def accepted(head: Head, body: bytes) -> dict[str, str] | Response:
    """Return the headers that accept an upgrade, or the refusal."""
    from peeklock.server.net.websocket import accept  # 40 ms, for those who use it

    return accept(head.method, head.version, head.headers, body)


def defect(failure: Exception) -> Response:
    """Return the answer to a request that met a defect of ours; only this connection ends."""
    log.error("an HTTP request met a defect", {"exception": repr(failure)})
    return Response(500, "text/plain", b"internal error", (("Connection", "close"),))


def _request(head: Head, body: bytes, peer: str | None) -> AdminRequest:
    return AdminRequest(head.method, head.path, head.query, head.headers, body, peer)


def _log_administration(head: Head, peer: str | None, then: Then, found: Any) -> None:
    """Log a request that has changed entities or rules, then call `then`."""
    if isinstance(found, Response) and found.status < 300:
        fields = {"method": head.method, "path": head.path, "status": found.status, "peer": peer}
        log.info("administration request", fields)
    then(found)


def _addressed(command: Any) -> Callable[[ReplyTo], Command]:
    return lambda reply_to: replace(command, reply_to=reply_to)
