"""Runs a driver to the end in the calling thread, over a store that never waits."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Protocol, TypeVar

from peeklock.broker.vocabulary.commands import OWN_CONNECTION_ID, Command, ReplyTo
from peeklock.broker.vocabulary.effects import Effect
from peeklock.engine.driver import Action, BodiesRead, Commit, Driver, HandOut, ReadRows, Reclaim, WakeAt
from peeklock.gateway.connection import Gateway
from peeklock.store.memory import MemoryStore
from peeklock.testing.clock import ManualClock

T = TypeVar("T")


class PumpedConnection(Protocol):
    """What the pump needs of a connection."""

    gateway: Gateway

    def flush(self) -> None:
        """Take the output of the gateway, and offer the commands that follow."""


class Pump:
    """The adapter of the in-process broker: does the driver's actions until none is left."""

    def __init__(self, driver: Driver, store: MemoryStore, clock: ManualClock) -> None:
        """Begin without connections."""
        self._driver = driver
        self._store = store
        self._clock = clock
        self.connections: dict[int, PumpedConnection] = {}
        self.answers: dict[int, Effect] = {}
        """Answers to this process, by the number of the request."""

    def connect(self, connection_id: int, connection: PumpedConnection) -> None:
        """Add a connection; it gets the effects for it."""
        self.connections[connection_id] = connection
        self._driver.connect(connection_id)

    def disconnect(self, connection_id: int) -> None:
        """Remove a connection that ended; later effects for it are dropped."""
        self.connections.pop(connection_id, None)
        self._driver.disconnect(connection_id)

    def offer(self, commands: Iterable[Command]) -> None:
        """Apply commands; `run` commits them and handles the effects."""
        self._driver.offer(commands, self._clock.now_ms)

    def tick(self) -> None:
        """Fire the timers that are due."""
        for connection in list(self.connections.values()):
            self.offer(connection.gateway.tick(self._clock.now_ms))
        self.run()

    def run(self) -> None:
        """Commit and hand out until nothing is left to do now."""
        driver, now_ms = self._driver, self._clock.now_ms
        more = True
        while more:
            for connection in list(self.connections.values()):
                while connection.gateway.unread:
                    self.offer(connection.gateway.receive(b"", now_ms))
            while driver.unfinished:
                driver.go_on(now_ms)
            more = False
            for action in driver.step(now_ms):
                more = self._do(action, now_ms) or more
            more = more or driver.more

    def _do(self, action: Action, now_ms: int) -> bool:
        """Do an action of the driver; return whether more may follow from it now."""
        driver, store = self._driver, self._store
        match action:
            case HandOut(connection_id, effects):
                self._hand_out(connection_id, effects, now_ms)
            case BodiesRead(connection_id):
                self.connections[connection_id].gateway.bodies_arrived(driver.body, now_ms)
                self._flush(connection_id)
            case Commit(batch):
                driver.committed(batch.no, finish(store.commit(batch)), now_ms)
            case ReadRows(rows):
                for row in rows:  # one at a time: the cache may be too small for two
                    driver.rows_read(finish(store.read_body_rows([row])), now_ms)
            case Reclaim(wanted):
                driver.reclaimed(finish(wanted.read_from(store)), now_ms)
            case WakeAt(at_ms):
                return at_ms is not None and at_ms <= now_ms
        return True

    def _hand_out(self, connection_id: int, effects: list[Effect], now_ms: int) -> None:
        if connection_id == OWN_CONNECTION_ID:
            for effect in effects:
                reply_to: ReplyTo | None = getattr(effect, "reply_to", None)
                if reply_to is not None:
                    self.answers[reply_to.number] = effect
        else:
            self.connections[connection_id].gateway.handle(effects, self._driver.body, now_ms)
            self._flush(connection_id)

    def _flush(self, connection_id: int) -> None:
        connection = self.connections[connection_id]
        connection.flush()
        self._driver.want(connection_id, connection.gateway.bodies_wanted())


def finish(awaitable: Awaitable[T]) -> T:
    """Run what never suspends to its end, without an event loop."""
    steps = awaitable.__await__()
    try:
        next(steps)
    except StopIteration as finished:
        value: T = finished.value
        return value
    raise RuntimeError("a store in memory suspended")
