"""Requests over HTTP that the broker has not answered yet, as one connection to a shard.

All requests of a kind share a connection that never breaks: none has a task or a timer here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from peeklock.admin.exchange import Response
from peeklock.api.exchange import Ask, Show, Steer, Stream, Work
from peeklock.api.waits import Waits
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.message import Message
from peeklock.rest.exchange import Take
from peeklock.server.shard.shard import Shard

Answered = Callable[[Response | Work | Steer], None]
"""Takes the answer to a request, or what follows it."""

OnDefect = Callable[[Exception, dict[str, object]], None]

OnEvent = Callable[[bytes | None], None]
"""Takes an event of a stream; None = the stream has ended."""

Waiting: TypeAlias = Take | Stream | Work
"""Requests to the API that may wait for long."""


class Requests(Protocol):
    """Unanswered requests under one connection id. Each has a number."""

    def __len__(self) -> int: ...

    def begin(self, asked: Any, /) -> int | Response:
        """Begin a request; return its number, or its answer."""

    def time_out(self, number: int) -> None: ...

    def cancel(self, number: int) -> None:
        """Forget a request whose client is gone."""

    def end_all(self) -> None:
        """End all waits."""

    def handle(self, effect: Effect, body: Callable[[Message], bytes | None]) -> None: ...

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that answers wait for."""

    def bodies_arrived(self, body: Callable[[Message], bytes | None]) -> None:
        """Continue what waited for bodies."""

    def take_commands(self) -> Sequence[Command]:
        """Return the commands for the broker, once."""

    def take_ended(self) -> Iterable[tuple[int, Response | Work | Steer]]:
        """Return the answers that are ready, with the numbers of their requests, once."""


R = TypeVar("R", bound=Requests)


class Hub(Generic[R]):
    """The requests of one kind to one shard."""

    def __init__(
        self,
        make: Callable[[int, OnDefect], R],
        new_connection_id: Callable[[], int],
        shard: Shard,
        on_defect: OnDefect,
    ) -> None:
        """Begin with none; `make` gets a new connection id and `on_defect` with the first request."""
        self._make = make
        self._new_connection_id = new_connection_id
        self._shard = shard
        self._on_defect = on_defect
        self._joined: R | None = None
        self._answered: dict[int, Answered] = {}

    def __len__(self) -> int:
        return 0 if self._joined is None else len(self._joined)

    @property
    def _requests(self) -> R:
        """Join the shard with the first use: a broker without such requests has no such connection."""
        if self._joined is None:
            connection_id = self._new_connection_id()
            self._joined = self._make(connection_id, self._on_defect)
            self._shard.add(connection_id, self)
        return self._joined

    # From the HTTP connections

    def begin(self, asked: Any, answered: Answered) -> int | Response:
        """Begin a request; return its number, or its answer. `answered` is called later, once."""
        number = self._requests.begin(asked)
        if isinstance(number, int):
            self._answered[number] = answered
            self._offer()
        return number

    def time_out(self, number: int) -> None:
        """End a wait; its answer follows."""
        self._requests.time_out(number)
        self._offer()

    def cancel(self, number: int) -> None:
        """Forget a request whose client is gone; its answer is dropped."""
        if self._answered.pop(number, None) is not None:
            self._requests.cancel(number)
            self._offer()

    def stop(self) -> None:
        """End all waits for messages."""
        if self._joined is not None:
            self._joined.end_all()
            self.flush(self._shard.now_ms())

    # From the shard

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
        for effect in effects:
            self._requests.handle(effect, self._shard.body)

    def bodies_wanted(self) -> set[int]:
        return self._requests.bodies_wanted()

    def bodies_arrived(self, now_ms: int) -> None:
        self._requests.bodies_arrived(self._shard.body)

    def flush(self, now_ms: int) -> None:
        self._offer()
        for number, response in self._requests.take_ended():
            self._answer(number, response)

    def _answer(self, number: int, response: Response | Work | Steer) -> None:
        answered = self._answered.pop(number, None)
        if answered is not None:
            answered(response)

    def _offer(self) -> None:
        commands = self._requests.take_commands()
        if commands:
            self._shard.offer(commands)


class ApiHub(Hub[Waits]):
    """Requests to the API, and its streams of deliveries."""

    def __init__(self, new_connection_id: Callable[[], int], shard: Shard, on_defect: OnDefect) -> None:
        super().__init__(Waits, new_connection_id, shard, on_defect)
        self._on_event: dict[int, OnEvent] = {}

    def begin(
        self, asked: Ask | Show | Take | Stream, answered: Answered, on_event: OnEvent | None = None
    ) -> int | Response:
        """Begin a request; return its number, or its answer.

        `answered` is called later, once; for a stream, whose events `on_event` takes, only with a refusal.
        """
        number = super().begin(asked, answered)
        if isinstance(number, int) and on_event is not None:
            self._on_event[number] = on_event  # in time: events come with a later turn of the loop
        return number

    def cancel(self, number: int) -> None:
        self._on_event.pop(number, None)
        super().cancel(number)

    def slow(self, number: int, *, is_slow: bool) -> None:
        """Note whether a stream's client reads slowly."""
        self._requests.slow(number, is_slow=is_slow)
        self._offer()

    def beat(self, number: int) -> None:
        """Check the locks of a stream; to be called from time to time."""
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

    def _answer(self, number: int, response: Response | Work | Steer) -> None:
        self._on_event.pop(number, None)
        super()._answer(number, response)
