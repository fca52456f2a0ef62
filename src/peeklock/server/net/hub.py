"""Requests over HTTP that the broker has not answered yet, joined to a shard.

Owns: who is told the answer of which request. Must not know: HTTP, what is asked. All of a kind are one
connection to the shard, which never breaks: no task and no timer stands here for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from peeklock.admin.exchange import Response
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Effect
from peeklock.broker.vocabulary.message import Message
from peeklock.server.shard.shard import Shard

Answered = Callable[[Response], None]
OnDefect = Callable[[Exception, dict[str, object]], None]


class Requests(Protocol):
    """Requests that are not answered yet, under one connection id. Each has a number."""

    def __len__(self) -> int: ...

    def begin(self, asked: Any, /) -> int | Response:
        """Begin a request, and return its number; or its answer."""

    def time_out(self, number: int) -> None:
        """End a wait."""

    def cancel(self, number: int) -> None:
        """Forget a request whose client is gone."""

    def end_all(self) -> None:
        """End all waits."""

    def handle(self, effect: Effect, body: Callable[[Message], bytes | None]) -> None:
        """Take an effect."""

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that are waited for."""

    def bodies_arrived(self, body: Callable[[Message], bytes | None]) -> None:
        """Go on with what waited for bodies."""

    def take_commands(self) -> Sequence[Command]:
        """Return what is to be asked of the broker, once."""

    def take_ended(self) -> Iterable[tuple[int, Response]]:
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
        """Begin with none.

        Args:
            make: makes the requests, of a connection id and what takes a defect and its fields.
            new_connection_id: returns an id that no other connection has; called with the first request.
            shard: is joined with the first request.
            on_defect: takes a defect and its fields.
        """
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
        """Join with the first use: a broker that is never asked this way has no such connection."""
        if self._joined is None:
            connection_id = self._new_connection_id()
            self._joined = self._make(connection_id, self._on_defect)
            self._shard.add(connection_id, self)
        return self._joined

    # From the connections

    def begin(self, asked: Any, answered: Answered) -> int | Response:
        """Begin a request, and return its number; or its answer. `answered` is called later, once."""
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
        """Forget a request whose client is gone: nobody is told its answer."""
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

    def _answer(self, number: int, response: Response) -> None:
        answered = self._answered.pop(number, None)
        if answered is not None:
            answered(response)

    def _offer(self) -> None:
        commands = self._requests.take_commands()
        if commands:
            self._shard.offer(commands)
