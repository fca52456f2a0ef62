"""Requests of the API that the broker has not answered yet, and streams of deliveries.

Owns: the events of which stream go to whom. Must not know: HTTP, what is asked.
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.admin.exchange import Response
from peeklock.api.exchange import Ask, Show, Stream
from peeklock.api.waits import Waits
from peeklock.rest.exchange import Take
from peeklock.server.net.hub import Answered, Hub, OnDefect
from peeklock.server.shard.shard import Shard

OnEvent = Callable[[bytes | None], None]
"""Takes what is to be written to a stream; None = it has ended."""


class ApiHub(Hub[Waits]):
    """The requests of the API to one shard."""

    def __init__(self, new_connection_id: Callable[[], int], shard: Shard, on_defect: OnDefect) -> None:
        """Begin with none; the arguments are those of `Hub`."""
        super().__init__(Waits, new_connection_id, shard, on_defect)
        self._on_event: dict[int, OnEvent] = {}

    def begin(
        self, asked: Ask | Show | Take | Stream, answered: Answered, on_event: OnEvent | None = None
    ) -> int | Response:
        """Begin a request, and return its number; or its answer.

        Args:
            answered: is called later, once; of a stream only if it is refused before its first event.
            on_event: of a stream; is called until it has ended.
        """
        number = super().begin(asked, answered)
        if isinstance(number, int) and on_event is not None:
            self._on_event[number] = on_event  # in time: events come with a later turn of the loop
        return number

    def cancel(self, number: int) -> None:
        self._on_event.pop(number, None)
        super().cancel(number)

    def slow(self, number: int, *, is_slow: bool) -> None:
        """Take note of how fast a stream's client reads."""
        self._requests.slow(number, is_slow=is_slow)
        self._offer()

    def beat(self, number: int) -> None:
        """Look at the locks of a stream, as is to be done from time to time."""
        self._requests.beat(number, self._shard.now_ms())
        self._offer()

    def flush(self, now_ms: int) -> None:
        self._offer()
        for number, event in self._requests.take_events():
            on_event = self._on_event.get(number)
            if event is None:
                self._on_event.pop(number, None)
                self._answered.pop(number, None)
            if on_event is not None:
                on_event(event)
        super().flush(now_ms)

    def _answer(self, number: int, response: Response) -> None:
        self._on_event.pop(number, None)
        super()._answer(number, response)
