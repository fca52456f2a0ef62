"""The broker's HTTP side under simulation: it drives the package `peeklock.rest` as the server does.

Owns: requests on their way to `rest` and back (`server.http_dispatch`), waiting requests (`server.hub`), and
their connections: delays, ends, what is lost with them. Must not know: what clients want.

A connection carries one request at a time, and no bytes: the server's own tests cover HTTP parsing. Delays
come from the clients' random source, so that the world's sequence does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from peeklock.admin.exchange import AdminContext, Response
from peeklock.broker.vocabulary.commands import Command
from peeklock.broker.vocabulary.effects import Deliver, Effect, LocksRenewed
from peeklock.broker.vocabulary.quotas import STANDARD
from peeklock.rest.api import Answer, Ask, DataPlane, DataRequest, Elsewhere, Receive, Step
from tests.simulation.oracle.records import Violation

if TYPE_CHECKING:
    from tests.simulation.world.shard import Shard

HTTP_CONNECTION_ID = -1
"""Connection id of all waiting requests in the broker: one connection, which never breaks."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer that a client gets."""

    response: Response
    until_ms: int | None = None
    """When the lock in the answer ends. HTTP dates have whole seconds, and the answer to a renewal has none:
    the checker gets the broker's exact value, and is as exact as with other clients."""


class HttpService:
    """The HTTP side of one namespace in a process."""

    def __init__(self, shard: Shard) -> None:
        """Begin with no waiting request."""
        self.shard = shard
        self.process = process = shard.process
        home = AdminContext(
            shard.authority,
            process.track,
            process.track,
            lambda host, own: True,
            lambda event, fields: None,
            shard.name,
            STANDARD,
            0,
        )
        self._plane = DataPlane(home)
        self._receives = process.pieces.receives(HTTP_CONNECTION_ID, _raise)
        self._waiting: dict[int, Callable[[Response], None]] = {}
        self.untils: dict[bytes, int] = {}
        """Lock token -> end of the lock, as the broker last answered."""
        self.connections: list[HttpConnection] = []

    # From the connections

    def answer(self, request: DataRequest, then: Callable[[Answered | Receive], None]) -> None:
        """Answer a request now, or later: `then` gets the answer."""
        renewed_ms: list[int] = []

        def go_on(found: Answer) -> None:
            match found:
                case Ask():
                    self._ask(found, renewed_ms, go_on)
                case Step():
                    self.process.call_soon(lambda: go_on(found.go_on()))
                case Elsewhere():
                    raise Violation(f"{request.method} {request.path} is answered by the administration")
                case Receive():
                    then(found)
                case Response():
                    then(Answered(found, *renewed_ms))

        go_on(self._plane.handle(request, self.process.now_ms))

    def _ask(self, asked: Ask, renewed_ms: list[int], go_on: Callable[[Answer], None]) -> None:
        def render(effect: Effect) -> None:
            if isinstance(effect, LocksRenewed):
                renewed_ms[:] = effect.locked_until_ms
            go_on(asked.render(effect))

        command: Any = asked.command
        self.shard.own.ask(lambda reply_to: replace(command, reply_to=reply_to), render)

    def begin(self, receive: Receive, answered: Callable[[Response], None]) -> int | Response:
        """Begin a wait for a message; return the number of the wait, or its answer."""
        number = self._receives.begin(receive)
        if isinstance(number, int):
            self._waiting[number] = answered
            self._offer()
        return number

    def time_out(self, number: int) -> None:
        """End a wait; its answer follows."""
        self._receives.time_out(number)
        self._offer()

    def cancel(self, number: int) -> None:
        """Forget a wait whose client has left."""
        if self._waiting.pop(number, None) is not None:
            self._receives.cancel(number)
            self._offer()

    # From the loop

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Take effects for waiting requests."""
        for effect in effects:
            if isinstance(effect, Deliver) and effect.lock_token is not None:
                self.untils[effect.lock_token] = effect.locked_until_ms
            self._receives.handle(effect, self.shard.body)

    def bodies_wanted(self) -> set[int]:
        return self._receives.bodies_wanted()

    def bodies_arrived(self, now_ms: int) -> None:
        self._receives.bodies_arrived(self.shard.body)

    def flush(self) -> None:
        """Pass on the answers that are ready."""
        self._offer()
        for number, response in self._receives.take_ended():
            answered = self._waiting.pop(number, None)
            if answered is not None:
                answered(response)

    def _offer(self) -> None:
        commands: list[Command] = self._receives.take_commands()
        self.shard.offer(commands)

    # From the world

    def cut(self) -> None:
        """Break all connections: the process died."""
        for connection in list(self.connections):
            connection.cut()

    def find_half_open(self) -> None:
        """Break half-open connections, as TCP's keep-alive does."""
        for connection in list(self.connections):
            connection.find_half_open()


class HttpConnection:
    """One connection, from a client to a process."""

    def __init__(
        self,
        service: HttpService,
        random: Random,
        on_answer: Callable[[Answered], None],
        on_end: Callable[[], None],
    ) -> None:
        """Open the connection.

        Args:
            service: of the namespace that the client means.
            random: decides over delays and losses.
            on_answer: takes the answer to what was asked.
            on_end: is called when the connection breaks from the other end.
        """
        self._service = service
        self._world = service.shard.world
        self._random = random
        self._on_answer = on_answer
        self._on_end = on_end
        self._arrives_ms = 0
        """When the last part that was sent arrives: nothing overtakes it."""
        self._client_gone = False
        """The client reads nothing any more."""
        self._broker_knows = False
        """The broker knows that the connection is over, or is dead."""
        self._loses_all = False
        """What is in flight to the broker is lost."""
        self._wait: int | None = None
        service.connections.append(self)

    # From the client

    def ask(self, request: DataRequest) -> None:
        """Send a request."""
        self._arrives_ms = self._world.now_ms + self._delay_ms()
        self._world.at(self._arrives_ms, self._arrived, request)

    def leave(self) -> None:
        """Leave: what is in flight to the broker may be lost; what is in flight from it is lost."""
        self._client_gone = True
        self._loses_all = self._random.random() < 0.3
        self._arrives_ms = max(self._arrives_ms, self._world.now_ms + self._delay_ms())
        self._world.at(self._arrives_ms, self._told)

    def drop(self) -> None:
        """Turn half open: the broker does not learn of it."""
        self._client_gone = True

    # In the broker

    def _arrived(self, request: DataRequest) -> None:
        if not (self._loses_all or self._broker_knows):
            self._world.note(f"HTTP -> {request.method} {request.path}?{request.query}")
            chosen = self._service.process.http_for(request.headers)
            if chosen is not self._service:
                meant, name = self._service.shard.name, chosen.shard.name
                raise Violation(f"{request.method} {request.path} of '{meant}' is answered by '{name}'")
            chosen.answer(request, self._found)

    def _found(self, found: Answered | Receive) -> None:
        if self._broker_knows:
            return
        if isinstance(found, Answered):
            self._write(found)
            return
        number = self._service.begin(found, self._received)
        if isinstance(number, Response):
            self._write(Answered(number))
            return
        self._wait = number
        if found.timeout_s > 0:
            self._service.process.call_later(found.timeout_s, lambda: self._time_out(number))

    def _time_out(self, number: int) -> None:
        if self._wait == number:
            self._service.time_out(number)

    def _received(self, response: Response) -> None:
        self._wait = None
        self._write(Answered(response))

    def _told(self) -> None:
        """Take the end of the connection from the client."""
        if self._broker_knows:
            return
        self._forget()
        if self._wait is not None:
            self._world.note(f"HTTP -> end, {self._wait} waits")
            self._service.cancel(self._wait)
            self._wait = None

    def _forget(self) -> None:
        self._broker_knows = True
        self._service.connections.remove(self)

    def _write(self, answered: Answered) -> None:
        self._world.note(f"HTTP <- {answered.response.status} {answered.response.headers}")
        self._world.after(self._delay_ms(), self._answer, answered)

    def _answer(self, answered: Answered) -> None:
        lost_in_death = self._broker_knows and not self._client_gone and self._random.random() < 0.5
        if self._client_gone or lost_in_death:
            self._service.shard.checker.answer_lost()
        else:
            self._on_answer(answered)

    # From the world

    def cut(self) -> None:
        """Break, since the process died."""
        self._forget()
        self._world.after(self._world_delay_ms(), self._end)

    def find_half_open(self) -> None:
        """Break if the client has left."""
        if self._client_gone:
            self._told()

    def _end(self) -> None:
        if not self._client_gone:
            self._client_gone = True
            self._on_end()

    def _world_delay_ms(self) -> int:
        """Return how long the end takes: longer than an answer before it."""
        return self._service.shard.fault_rates.wire_ms_max + 1

    def _delay_ms(self) -> int:
        return self._random.randint(0, self._service.shard.fault_rates.wire_ms_max)


def _raise(defect: Exception, fields: dict[str, object]) -> None:
    raise Violation(f"a receive over HTTP has met a defect: {fields}") from defect
