"""The driver of one namespace in virtual time: the adapter that carries out its instructions.

Owns: when a step, a read or a timer of the driver is due, and the checks of what it hands out. Must not know:
what leaves when (`engine.driver`), how a commit ends (`commits`), what clients want.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.broker.vocabulary.effects import Deliver
from peeklock.broker.vocabulary.message import MessageState
from peeklock.engine.bodies import has_lost
from peeklock.engine.driver import Action, BodiesRead, Commit, HandOut, ReadRows, Reclaim, WakeAt
from peeklock.engine.reclaim import ReclaimRead
from peeklock.server.loop.turns import Batches
from peeklock.testing.pump import finish
from tests.simulation.oracle.records import Violation
from tests.simulation.world.pieces import Connection

if TYPE_CHECKING:
    from tests.simulation.world.shard import Shard


class Driving:
    """Adapter of the driver of one namespace."""

    def __init__(self, shard: Shard) -> None:
        """Do nothing before `start`."""
        self._shard = shard
        self._process = process = shard.process
        self._world = shard.world
        self._driver = shard.driver
        self._commits = process.node.commits(shard, self._committed)
        self._batches = Batches(process.turns)
        self._pumping = False
        self._timer_ms: int | None = None
        self._given: set[bytes] = set()  # lock tokens that connections have received

    def start(self) -> None:
        """Take the lease on the store."""
        self._lease = self._process.node.lease_of(self._shard)

    def go_on(self) -> None:
        """Step the driver in this turn."""
        if not self._pumping:
            self._pumping = True
            self._world.at(self._world.now_ms, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        process, driver, now_ms = self._process, self._driver, self._process.now_ms
        if driver.unfinished and not process.dead:
            driver.go_on(now_ms)
            if driver.unfinished:
                self.go_on()
        while not process.dead:
            for action in driver.step(now_ms, self._lease.until_ms):
                self._do(action, now_ms)
            if not driver.more:
                break
            if self._lease.turn_is_over():
                process.call_soon(self._pump)
                break
        if not driver.in_flight:
            self._batches.set_under_way(driver.more)
        # While there is more, a message that goes back may wait for its own turn, when its grace is over.
        if driver.idle and not driver.more and not process.dead:
            self._check_locks()

    def _do(self, action: Action, now_ms: int) -> None:
        world = self._world
        match action:
            case HandOut():
                self._hand_out(action, now_ms)
            case BodiesRead(connection_id):
                connection = self._shard.connection(connection_id)
                if connection is not None:
                    connection.bodies_arrived(now_ms)
                    self._flush(connection_id, connection)
            case Commit(batch):
                self._batches.taken()
                self._commits.begin(batch)
            case ReadRows(rows):
                world.after(world.random.randint(0, 8), self._read, rows)
            case Reclaim(wanted):
                world.after(world.random.randint(0, 5), self._reclaim, wanted)
            case WakeAt(at_ms):
                if at_ms != self._timer_ms:
                    self._timer_ms = at_ms
                    if at_ms is not None:
                        world.after(at_ms - now_ms, self._due, at_ms)

    def _hand_out(self, action: HandOut, now_ms: int) -> None:
        connection_id, no = action.connection_id, action.batch_no
        if no is not None and no > self._commits.durable_no:
            raise Violation(f"effects of batch {no} leave, and it is not on stable storage")
        if now_ms >= self._lease.until_ms:
            raise Violation(f"effects leave {now_ms - self._lease.until_ms} ms after the lease")
        self._process.node.check_leaving(no, action.effects)
        connection = self._shard.connection(connection_id)
        if connection is None:
            self._driver.undelivered(action.effects, now_ms)
            return
        tokens = [effect.lock_token for effect in action.effects if type(effect) is Deliver]
        self._given.update(token for token in tokens if token is not None)
        connection.handle(action.effects, now_ms)
        self._flush(connection_id, connection)

    def _flush(self, connection_id: int, connection: Connection) -> None:
        connection.flush()
        self._driver.want(connection_id, connection.bodies_wanted())

    def _check_locks(self) -> None:
        """Check that each locked message reached a connection, now that all effects have left."""
        for queue in self._shard.namespace._queues.values():
            for token, lock in queue.locks.items():
                if token not in self._given and lock.message.state is MessageState.ACTIVE:
                    raise Violation(f"a message is locked, and no connection received it: {lock.message}")

    def _committed(self, no: int, size_bytes: int) -> None:
        if not self._process.dead:
            self._driver.committed(no, size_bytes, self._process.now_ms)
            self._pump()

    def _reclaim(self, wanted: ReclaimRead) -> None:
        if not self._process.dead:
            self._world.note("reclaim")
            self._driver.reclaimed(finish(wanted.read_from(self._shard.store)), self._process.now_ms)
            self._pump()

    def _read(self, rows: list[int]) -> None:
        if self._process.dead:
            return
        self._world.note(f"read body rows {rows}")
        found = finish(self._shard.store.read_body_rows(rows))
        if any(map(has_lost, found.values())):
            raise Violation(f"of the body rows {rows} that are waited for some are gone")
        self._driver.rows_read(found, self._process.now_ms)
        self._pump()

    def _due(self, due_ms: int) -> None:
        if not self._process.dead and self._timer_ms == due_ms:
            self._timer_ms = None
            self._world.note("timer")
            self._pump()
