"""The request with which an HTTP connection waits for messages, or reads a stream of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import h11

from peeklock.admin.exchange import Response
from peeklock.api.exchange import EVENTS, Stream, Work
from peeklock.rest.broker_properties import write_date
from peeklock.rest.exchange import Receive
from peeklock.rest.receives import Receives
from peeklock.server.loop.timers import Deadline
from peeklock.server.net.hub import Answered, ApiHub, Hub, Waiting
from peeklock.server.workers.hub import WorkHub

HEARTBEAT_S = 15.0
"""Source: the HTML standard, 9.2.7: a comment every 15 seconds or so keeps proxies from ending a stream."""

SLOW_BEATS_MAX = 2
"""Heartbeats, 30 s, during which a client may leave unread what the transport holds. Our choice."""


class HttpWait:
    """The wait of one connection; mostly there is none."""

    def __init__(
        self,
        receives: Hub[Receives] | None,
        api: ApiHub | None,
        works: WorkHub | None,
        deadline: Deadline,
        now_ms: Callable[[], int],
    ) -> None:
        """Wait for nothing; `receives`, `api` and `works` take the requests of each kind."""
        self._receives = receives
        self._api = api
        self._works = works
        self._deadline = deadline
        self._now_ms = now_ms
        self._hub: Hub[Receives] | ApiHub | WorkHub | None = None
        self._number: int | None = None
        self._stream: EventStream | None = None

    def begin(
        self,
        wanted: Receive | Waiting,
        transport: asyncio.Transport,
        write: Callable[[h11.Event], None],
        answered: Answered,
    ) -> Response | None:
        """Begin to wait; or return the answer.

        `answered` is called later, once, unless a stream begins, which is written by `write`. Neither is kept
        longer than the wait.
        """
        if isinstance(wanted, Receive):
            assert self._receives is not None
            self._hub = self._receives
            number = self._receives.begin(wanted, answered)
        elif isinstance(wanted, Work):
            assert self._works is not None
            self._hub = self._works
            self._stream = EventStream(
                transport, write, self._deadline, self._works, self._now_ms, wanted.content_type
            )
            number = self._works.begin(wanted, answered, self._stream.take)
        else:
            assert self._api is not None
            self._hub = self._api
            if isinstance(wanted, Stream):
                self._stream = EventStream(transport, write, self._deadline, self._api, self._now_ms)
                number = self._api.begin(wanted, answered, self._stream.take)
            else:
                number = self._api.begin(wanted, answered)
        if isinstance(number, Response):
            self.over()
            return number
        self._number = number
        if self._stream is not None:
            self._stream.number = number
        elif not isinstance(wanted, Stream | Work) and wanted.timeout_s > 0:
            self._deadline.set(wanted.timeout_s, self._time_out)
        return None

    def slow(self, *, is_slow: bool) -> None:
        """Note whether the transport holds more than it should."""
        if self._stream is not None:
            self._stream.slow(is_slow=is_slow)

    def over(self) -> None:
        """Note that the request was answered."""
        self._number = self._hub = self._stream = None

    def give_up(self) -> None:
        """Forget the request: its client is gone."""
        number, hub = self._number, self._hub
        self.over()
        if number is not None and hub is not None:
            hub.cancel(number)

    def _time_out(self) -> None:
        if self._number is not None and self._hub is not None:
            self._hub.time_out(self._number)


class StreamHub(Protocol):
    """Whose streams they are."""

    def slow(self, number: int, *, is_slow: bool) -> None: ...

    def beat(self, number: int) -> None: ...


class EventStream:
    """Server-sent events or lines, the last answer of a connection. Source: the HTML standard, 9.2."""

    def __init__(
        self,
        transport: asyncio.Transport,
        write: Callable[[h11.Event], None],
        deadline: Deadline,
        hub: StreamHub,
        now_ms: Callable[[], int],
        content_type: str = EVENTS,
    ) -> None:
        """Begin with nothing written; `write` writes to the transport, `deadline` is the connection's."""
        self._transport = transport
        self._write = write
        self._deadline = deadline
        self._hub = hub
        self._now_ms = now_ms
        self._content_type = content_type
        self._begun = False
        self._is_slow = False
        self._slow_beats = 0
        self.number = 0
        """Of the request; set once it is known."""

    def take(self, event: bytes | None) -> None:
        """Write an event; None = the end."""
        if not self._begun:
            self._begun = True
            headers = [
                ("Date", write_date(self._now_ms())),
                ("Content-Type", self._content_type),
                ("Cache-Control", "no-store"),
                ("Connection", "close"),
            ]
            self._write(h11.Response(status_code=200, reason=b"OK", headers=headers))
            self._deadline.set(HEARTBEAT_S, self._beat)
        if event is not None:
            self._write(h11.Data(data=event))
            return
        self._write(h11.EndOfMessage())
        self._deadline.clear()
        self._transport.close()

    def slow(self, *, is_slow: bool) -> None:
        """Note whether the transport holds more than it should."""
        self._is_slow = is_slow
        self._slow_beats = 0
        self._hub.slow(self.number, is_slow=is_slow)

    def _beat(self) -> None:
        self._slow_beats += self._is_slow
        if self._slow_beats > SLOW_BEATS_MAX:
            self._transport.abort()
            return
        if not self._is_slow and self._content_type == EVENTS:
            self._write(h11.Data(data=b":\n\n"))
        self._hub.beat(self.number)
        self._deadline.set(HEARTBEAT_S, self._beat)
