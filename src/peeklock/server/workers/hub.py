"""The works of one namespace whose clients wait for their streams.

What a child writes is passed on as it is. A client that is gone ends its child. One that reads slowly slows
it down: little is kept here.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peeklock.admin.exchange import Response
from peeklock.api.exchange import EVENTS, JSON, Work
from peeklock.auth.rights import Grant
from peeklock.broker.vocabulary.errors import ServerBusy, ServiceBusError
from peeklock.server import log
from peeklock.server.workers.children import Child, Children, in_background

Attach = Callable[[socket.socket, Sequence[Grant]], Awaitable[None]]
"""Serves the broker's end of a child's socket, as that of a client with these grants."""

OnEvent = Callable[[bytes | None], None]
"""Takes some of a stream; None = it has ended."""


@dataclass(slots=True)
class _Streaming:
    on_event: OnEvent
    answered: Callable[[Response], None]
    is_gone: bool = False
    child: Child | None = None
    has_room: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self) -> None:
        """Have the child end."""
        self.is_gone = True
        self.has_room.set()
        if self.child is not None:
            self.child.kill()


class WorkHub:
    """The works of one namespace."""

    def __init__(
        self, namespace: str, children: Children, attach: Attach, event_log: Path | None = None
    ) -> None:
        """Begin with none; `children`: of the process; `event_log`: its folder, None = there is none."""
        self._event_log = event_log
        self._namespace = namespace
        self._children = children
        self._attach = attach
        self._streams: dict[int, _Streaming] = {}
        self._last = 0
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._streams)

    def begin(self, work: Work, answered: Callable[[Response], None], on_event: OnEvent) -> int | Response:
        """Begin a work; return its number, or its answer.

        `on_event` takes its stream; `answered` is called later, once, with a refusal in place of a stream.
        """
        try:
            if self._is_stopping:
                raise ServerBusy("the broker stops")
            self._children.require_room(self._namespace, work.identity)
        except ServiceBusError as refusal:
            return work.exchange.refusal(refusal)
        self._last += 1
        stream = self._streams[self._last] = _Streaming(on_event, answered)
        stream.has_room.set()
        in_background(self._run(self._last, stream, work))
        return self._last

    def cancel(self, number: int) -> None:
        """Forget a work whose client is gone."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.end()

    def slow(self, number: int, *, is_slow: bool) -> None:
        """Note whether a client reads slower than its child writes."""
        stream = self._streams.get(number)
        if stream is not None and is_slow and not (stream.is_gone or self._is_stopping):
            stream.has_room.clear()
        elif stream is not None:
            stream.has_room.set()

    def beat(self, number: int) -> None:
        """Do nothing: a child writes of its own accord."""

    def time_out(self, number: int) -> None:
        """Do nothing: a work may take as long as it takes."""

    def stop(self) -> None:
        """End all works."""
        self._is_stopping = True
        for stream in self._streams.values():
            stream.has_room.set()
            if stream.child is not None:
                stream.child.kill()

    async def _run(self, number: int, stream: _Streaming, work: Work) -> None:
        try:
            child = await self._start(work)
        except (ServiceBusError, OSError) as failure:
            del self._streams[number]
            if not stream.is_gone:
                stream.answered(work.exchange.refusal(_refusal(failure)))
            return
        stream.child = child
        if stream.is_gone or self._is_stopping:
            child.kill()
        whole: list[bytes] = []
        while chunk := await child.read():
            if work.content_type == JSON:
                whole.append(chunk)
            elif not stream.is_gone:
                stream.on_event(chunk)
            await stream.has_room.wait()
        is_whole = await child.ended()
        del self._streams[number]
        if stream.is_gone:
            return
        if work.content_type == JSON:
            stream.answered(self._answer(work, b"".join(whole), is_whole=is_whole))
            return
        if not is_whole:
            stream.on_event(self._broken(work))
        stream.on_event(None)

    async def _start(self, work: Work) -> Child:
        async def attach(sock: socket.socket) -> None:
            await self._attach(sock, work.grants)

        request = {**work.work, "namespace": self._namespace}
        if self._event_log is not None:
            request["eventLog"] = str(self._event_log)
        return await self._children.start(self._namespace, work.identity, request, attach)

    def _answer(self, work: Work, line: bytes, *, is_whole: bool) -> Response:
        """Return the answer that a child has written as one line."""
        if not is_whole:
            return work.exchange.refusal(ServerBusy(self._why_broken))
        problem = json.loads(line).get("problem")
        if problem is None:
            return Response(200, JSON, line)
        return work.exchange.problem(problem["status"], problem["title"].lower().split(), problem["detail"])

    @property
    def _why_broken(self) -> str:
        return "the broker stops" if self._is_stopping else "the process that did the work has ended early"

    def _broken(self, work: Work) -> bytes:
        """Return the end of the stream of a child that was killed, or has met a defect."""
        problem = json.loads(work.exchange.refusal(ServerBusy(self._why_broken)).body)
        return end_of_stream(problem, is_events=work.content_type == EVENTS)


def end_of_stream(problem: Any, *, is_events: bool) -> bytes:
    """Return a problem that ends a stream, which may have ended within a line."""
    if is_events:
        return b"\n\nevent: problem\ndata: %s\n\n" % json.dumps(problem).encode()
    return b"\n%s\n" % json.dumps({"problem": problem}).encode()


def _refusal(failure: ServiceBusError | OSError) -> ServiceBusError:
    if isinstance(failure, ServiceBusError):
        return failure
    log.warning("a process for a search or a job cannot be started", {"reason": str(failure)})
    return ServerBusy(f"a process for the work cannot be started: {failure.strerror}")
