"""Which part of the broker answers an HTTP request.

Owns: routing to `/health`, the upgrade to WebSocket, messages and the administration; what is refused before
a body is read; the log line of a change. Must not know: HTTP syntax, transports, XML, entities.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from peeklock.admin.api import BODY_BYTES_MAX, Administration, AdminRequest, Pending, Response
from peeklock.api.exchange import JSON
from peeklock.broker.vocabulary.commands import NOWHERE, Command, ReplyTo
from peeklock.broker.vocabulary.effects import Effect
from peeklock.rest.api import Answer, Ask, DataPlane, DataRequest, Elsewhere, Receive, Step
from peeklock.rest.exchange import RETRY_AFTER_S
from peeklock.server import log
from peeklock.server.net.api_requests import ApiRequests, Waiting
from peeklock.server.net.http_heads import Head
from peeklock.server.origins import OriginPolicy

Submit = Callable[[Callable[[ReplyTo], Command]], Awaitable[Effect]]
"""Has a command run; the function given is called with the reply-to and makes the command."""

SubmitFor = Callable[[Callable[[ReplyTo], Command], Callable[[Effect], None]], None]
"""Does the same, and calls a function with the effect: a turn of the loop less than a task that awaits."""

Then = Callable[[Response | Receive | Waiting], None]
"""Takes the answer to a request, or what it waits for."""

Health = Callable[[], Awaitable[Mapping[str, Any]]]
"""Gives the figures for `/health`; the key `status` is `ok` or says what is wrong."""

Note = Callable[[str, Mapping[str, Any]], None]
"""Takes a line for the log about what was refused: event and fields."""

WEBSOCKET_PATH = "/$servicebus/websocket"
"""In any case, with or without a slash at its end. Source: wire contract 1.1."""


class Dispatch:
    """The answers to the requests of one connection."""

    def __init__(
        self,
        submit: Submit,
        submit_for: SubmitFor,
        administration: Administration,
        health: Health,
        now_ms: Callable[[], int],
        note: Note,
        origin_policy: OriginPolicy,
        stops: Callable[[], bool],
        api: ApiRequests | None = None,
    ) -> None:
        """Answer for one connection.

        Args:
            submit: has a command run.
            submit_for: has a command run for a message.
            administration: answers requests.
            health: gives the figures.
            now_ms: UTC.
            note: takes the log lines that anybody can cause, and has to limit them.
            origin_policy: which requests are taken by their `Origin` and `Host`.
            stops: whether the broker stops: no request is begun then.
            api: answers requests to it; None = there is none.
        """
        self._submit = submit
        self._submit_for = submit_for
        self._task: asyncio.Task[None] | None = None
        self._administration = administration
        self._data = DataPlane(administration.admin_context)
        self._health = health
        self._now_ms = now_ms
        self._note = note
        self._origin_policy = origin_policy
        self._stops = stops
        self._api = api
        self.known = False
        """Whether a request has been served that needs a token."""

    # Before the body

    def why_page_refused(self, head: Head) -> tuple[int, str] | None:
        """Return status and reason if the request may be that of a foreign page."""
        policy = self._origin_policy
        refusal = policy.refusal_of_origin(head.headers.get("origin"), head.hosts)
        if refusal is not None or head.path == "/health":  # containers are probed by any name
            return refusal
        if self._desk(head) is not None:  # where a GET may lock messages
            refusal = policy.refusal_of_site(head.headers.get("sec-fetch-site"), head.headers.get("origin"))
        return refusal or policy.refusal_of_host(head.hosts)

    def body_bytes_max(self, head: Head) -> tuple[int, bool]:
        """Return how large a body may be, and whether it is a message."""
        if desk := self._desk(head):
            return desk.body_bytes_max(head), True
        bytes_max = self._data.body_bytes_max(head.method, head.path)
        return (BODY_BYTES_MAX, False) if bytes_max is None else (bytes_max, True)

    def too_large(self, head: Head, bytes_max: int, peer: str | None) -> Response:
        """Return the refusal of a message that is larger than may be."""
        if desk := self._desk(head):
            return desk.too_large(head, bytes_max, peer)
        return self._data.too_large(_bodiless(head, peer), bytes_max, self._now_ms())

    def refusal_before_body(self, head: Head, peer: str | None, *, is_message: bool) -> Response | None:
        """Return the refusal of a request with a large body if its token is no good; None = it may go on."""
        if desk := self._desk(head):
            return desk.refusal_before_body(head, peer)
        refuses = self._data if is_message else self._administration
        return refuses.refusal(_bodiless(head, peer), self._now_ms())

    def wants_no_body(self, head: Head) -> bool:
        return head.path == "/health" or is_websocket(head)

    # Whole requests

    def answer(self, head: Head, body: bytes, peer: str | None, then: Then, *, secure: bool) -> None:
        """Have `then` called with the answer to a request, now or later. Messages take no task."""
        if self._stops():
            again = (("Retry-After", str(RETRY_AFTER_S)), ("Connection", "close"))
            then(Response(503, "text/plain", b"the broker stops", again))
            return
        if desk := self._desk(head):
            self._answer_by(desk, head, body, peer, then)
            return
        if not self._data.wants(head.method, head.path, head.query, has_body=bool(body)):
            self._task = asyncio.get_running_loop().create_task(self._answer(head, body, peer, then))
            return
        asked = DataRequest(head.method, head.path, head.query, head.headers, body, peer, head.fields, secure)

        def go_on(make: Callable[[], Answer]) -> None:
            try:
                found = make()
                if isinstance(found, Ask):
                    render = found.render
                    self._submit_for(_addressed(found.command), lambda effect: go_on(lambda: render(effect)))
                    return
                if isinstance(found, Step):  # others have their turn
                    asyncio.get_running_loop().call_soon(go_on, found.go_on)
                    return
            except Exception as failure:
                then(defect(failure))
                return
            if isinstance(found, Elsewhere):
                self._task = asyncio.get_running_loop().create_task(self._answer(head, body, peer, then))
                return
            # Who waits has shown a token, whatever comes of it.
            self.known = self.known or isinstance(found, Receive) or found.status < HTTPStatus.BAD_REQUEST
            then(found)

        go_on(lambda: self._data.handle(asked, self._now_ms()))

    def _answer_by(self, desk: ApiRequests, head: Head, body: bytes, peer: str | None, then: Then) -> None:
        """Answer a request to the API."""

        def take(found: Response | Waiting) -> None:
            # Who waits has shown a token, as above.
            self.known = (
                self.known or not isinstance(found, Response) or found.status < HTTPStatus.BAD_REQUEST
            )
            then(found)

        try:
            desk.answer(head, body, peer, take)
        except Exception as failure:
            then(defect(failure))

    def _desk(self, head: Head) -> ApiRequests | None:
        """Return who answers a request to the API; None = it is none."""
        return self._api if self._api is not None and self._api.wants(head) else None

    async def _answer(self, head: Head, body: bytes, peer: str | None, then: Then) -> None:
        try:
            response = await self.respond(head, body, peer)
        except Exception as failure:
            response = defect(failure)
        then(response)

    async def respond(self, head: Head, body: bytes, peer: str | None) -> Response:
        """Return the answer to a request that is not for messages."""
        if head.path == "/health":
            return await self._health_answer(head)
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
        request = AdminRequest(head.method, head.path, head.query, head.headers, body, peer)
        answer = self._administration.handle(request, NOWHERE, self._now_ms())
        while isinstance(answer, Pending):
            answer = answer.render(await self._submit(_addressed(answer.command)))
        self.known = self.known or answer.status < HTTPStatus.BAD_REQUEST
        if head.method not in ("GET", "HEAD") and answer.status < 300:
            fields = {"method": head.method, "path": head.path, "status": answer.status, "peer": peer}
            log.info("administration request", fields)
        return answer

    async def _health_answer(self, head: Head) -> Response:
        """Answer the status, with the figures only for who knows a name of this broker."""
        if head.method not in ("GET", "HEAD"):
            return Response(405, "text/plain", b"use GET", (("Allow", "GET, HEAD"),))
        found = await self._health()
        status = 200 if found["status"] == "ok" else 503
        shown = dict(found) if self._origin_policy.knows(head.hosts) else {"status": found["status"]}
        return Response(status, JSON, json.dumps(shown).encode() + b"\n")


def is_websocket(head: Head) -> bool:
    return unquote(head.path).rstrip("/").lower() == WEBSOCKET_PATH


def accepted(head: Head, body: bytes) -> dict[str, str] | Response:
    """Return the headers that accept an upgrade, or the refusal."""
    from peeklock.server.net.websocket import accept  # 40 ms, for those who ask for it

    return accept(head.method, head.version, head.headers, body)


def defect(failure: Exception) -> Response:
    """Return the answer to a request that met a defect of ours, which costs nobody else anything."""
    log.error("an HTTP request met a defect", {"exception": repr(failure)})
    return Response(500, "text/plain", b"internal error", (("Connection", "close"),))


def _bodiless(head: Head, peer: str | None) -> AdminRequest:
    return AdminRequest(head.method, head.path, head.query, head.headers, peer=peer)


def _addressed(command: Any) -> Callable[[ReplyTo], Command]:
    return lambda reply_to: replace(command, reply_to=reply_to)
