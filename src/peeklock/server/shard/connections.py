"""The connections of one namespace, to which effects are handed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from peeklock.broker.vocabulary.effects import Effect
from peeklock.engine.driver import Driver, HandOut
from peeklock.server.loop.turns import Turns


class EffectSink(Protocol):
    """Takes effects."""

    def handle(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Take effects, in order; nothing is written yet."""

    def flush(self, now_ms: int) -> None:
        """Write what the effects of this turn led to."""

    def bodies_wanted(self) -> set[int]:
        """Return the body rows that deliveries wait for."""

    def bodies_arrived(self, now_ms: int) -> None:
        """Retry the waiting deliveries."""


class Connections:
    """The connections by id, and those that wait for room."""

    def __init__(self, driver: Driver, turns: Turns) -> None:
        """Begin with none; `turns` learns how long handing out takes."""
        self._driver = driver
        self._turns = turns
        self._by_id: dict[int, EffectSink] = {}
        self._waiting_for_room: set[EffectSink] = set()

    def add(self, connection_id: int, connection: EffectSink) -> None:
        """Hand effects for this id to a connection."""
        self._by_id[connection_id] = connection
        self._driver.connect(connection_id)

    def remove(self, connection_id: int) -> None:
        """Forget a connection; effects still to come for it are dropped."""
        connection = self._by_id.pop(connection_id, None)
        if connection is not None:
            self._waiting_for_room.discard(connection)
        self._driver.disconnect(connection_id)

    def __contains__(self, connection_id: int) -> bool:
        return connection_id in self._by_id

    def hand_out(self, action: HandOut, now_ms: int) -> None:
        """Hand effects to their connection, and have it write what follows."""
        connection = self._by_id.get(action.connection_id)
        if connection is None:  # closed by what another one was handed
            self._driver.undelivered(action.effects, now_ms)
            return
        started_s = self._turns.clock_s()
        connection.handle(action.effects, now_ms)
        self._flush(action.connection_id, connection, now_ms)
        self._turns.handed_out(self._turns.clock_s() - started_s)

    def bodies_read(self, connection_id: int, now_ms: int) -> None:
        """Retry what waits for bodies in a connection."""
        connection = self._by_id.get(connection_id)
        if connection is not None:
            connection.bodies_arrived(now_ms)
            self._flush(connection_id, connection, now_ms)

    def _flush(self, connection_id: int, connection: EffectSink, now_ms: int) -> None:
        connection.flush(now_ms)
        self._driver.want(connection_id, connection.bodies_wanted())

    @property
    def wait_for_bodies(self) -> bool:
        """Whether a delivery or an answer waits for a body."""
        return any(connection.bodies_wanted() for connection in self._by_id.values())

    # Room

    def wait_for_room(self, connection: EffectSink) -> None:
        """Flush a connection that has stopped reading after the next commit."""
        self._waiting_for_room.add(connection)

    def flush_waiting(self, now_ms: int) -> None:
        """Flush the connections that waited for room."""
        if self._waiting_for_room:
            waiting, self._waiting_for_room = self._waiting_for_room, set()
            for connection in waiting:
                connection.flush(now_ms)
