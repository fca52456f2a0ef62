"""An HTTP answer that goes on: server-sent events, for as long as the client is there.

Owns: its head, events and heartbeats, and the end of a client that does not read. Must not know: what an
event says, who asked. Source: the HTML standard, 9.2 "Server-sent events".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11

from peeklock.api.exchange import EVENTS
from peeklock.rest.broker_properties import write_date
from peeklock.server.loop.deadline import Deadline
from peeklock.server.net.api_hub import ApiHub

HEARTBEAT_S = 15.0
"""Source: the HTML standard, 9.2.7: a comment every 15 seconds or so keeps proxies from ending a stream."""

SLOW_BEATS_MAX = 2
"""For so many heartbeats, 30 s, a client may leave unread what the transport holds. Our choice."""


class EventStream:
    """See the module. It is the last answer of its connection."""

    def __init__(
        self,
        transport: asyncio.Transport,
        write: Callable[[h11.Event], None],
        deadline: Deadline,
        hub: ApiHub,
        now_ms: Callable[[], int],
    ) -> None:
        """Begin with nothing written.

        Args:
            transport: is closed at the end.
            write: writes to it.
            deadline: of the connection.
            hub: is told how fast the client reads.
            now_ms: UTC.
        """
        self._transport = transport
        self._write = write
        self._deadline = deadline
        self._hub = hub
        self._now_ms = now_ms
        self._begun = False
        self._is_slow = False
        self._slow_beats = 0
        self.number = 0
        """Of the request; given once it is known."""

    def take(self, event: bytes | None) -> None:
        """Write an event; None = the end."""
        if not self._begun:
            self._begun = True
            headers = [
                ("Date", write_date(self._now_ms())),
                ("Content-Type", EVENTS),
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
        """Take note that the transport holds more than it should, or no longer."""
        self._is_slow = is_slow
        self._slow_beats = 0
        self._hub.slow(self.number, is_slow=is_slow)

    def _beat(self) -> None:
        self._slow_beats += self._is_slow
        if self._slow_beats > SLOW_BEATS_MAX:
            self._transport.abort()
            return
        if not self._is_slow:
            self._write(h11.Data(data=b":\n\n"))
        self._hub.beat(self.number)
        self._deadline.set(HEARTBEAT_S, self._beat)
