"""The request with which an HTTP connection waits for messages.

Owns: who has it, and when its time is over. Must not know: HTTP syntax, what is received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import h11

from peeklock.admin.exchange import Response
from peeklock.api.exchange import Stream
from peeklock.rest.exchange import Receive
from peeklock.rest.receives import Receives
from peeklock.server.loop.deadline import Deadline
from peeklock.server.net.api_hub import ApiHub
from peeklock.server.net.api_requests import Waiting
from peeklock.server.net.event_stream import EventStream
from peeklock.server.net.hub import Answered, Hub


class HttpWait:
    """See the module; mostly there is none."""

    def __init__(
        self,
        receives: Hub[Receives] | None,
        api: ApiHub | None,
        deadline: Deadline,
        now_ms: Callable[[], int],
    ) -> None:
        """Wait for nothing.

        Args:
            receives: takes requests of the data plane; None = there are none.
            api: takes those of the API; None = there are none.
            deadline: of the connection.
            now_ms: UTC.
        """
        self._receives = receives
        self._api = api
        self._deadline = deadline
        self._now_ms = now_ms
        self._hub: Hub[Receives] | ApiHub | None = None
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
            assert self._receives is not None, "nobody takes requests that wait"
            self._hub = self._receives
            number = self._receives.begin(wanted, answered)
        else:
            assert self._api is not None, "nobody takes requests that wait"
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
        elif not isinstance(wanted, Stream) and wanted.timeout_s > 0:
            self._deadline.set(wanted.timeout_s, self._time_out)
        return None

    def slow(self, *, is_slow: bool) -> None:
        """Take note that the transport holds more than it should, or no longer."""
        if self._stream is not None:
            self._stream.slow(is_slow=is_slow)

    def over(self) -> None:
        """Take note that it was answered."""
        self._number = self._hub = self._stream = None

    def give_up(self) -> None:
        """Forget it: its client is gone."""
        number, hub = self._number, self._hub
        self.over()
        if number is not None and hub is not None:
            hub.cancel(number)

    def _time_out(self) -> None:
        if self._number is not None and self._hub is not None:
            self._hub.time_out(self._number)
