"""Clients that receive all that is left once the faults are over.

Owns: the phase without faults: everything can be received, in order, and in time. Must not know: the broker's
internals.
"""

from __future__ import annotations

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.performatives import ACCEPTED, DeliveryState
from peeklock.broker.vocabulary.descriptions import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.actors.actors import ANSWER_MS_MAX, Actor, Shared
from tests.simulation.actors.peer import ReceiveLink
from tests.simulation.actors.requests import (
    get_state,
    list_sessions,
    peek,
    read_delivery,
    receive_deferred,
    set_state,
    update_disposition,
)
from tests.simulation.oracle.checker import split
from tests.simulation.oracle.history import Hold, Lock, Seen
from tests.simulation.oracle.holds import Accept
from tests.simulation.oracle.records import MAIN, Record, Violation

DRAIN_CREDIT = 10


class Drainer(Actor):
    """Receives all messages of one queue and its dead-letter queues, in order; of a topic, the dead letters
    of sends via it."""

    def __init__(self, shared: Shared, queue: Description) -> None:
        super().__init__(shared, f"drainer-{queue.name}")
        self._queue = queue
        self._last: dict[str, int] = {}

    def ready(self) -> None:
        if self.stopped:
            self.leave()
            return
        assert self.peer is not None
        queue, name = self._queue, self._queue.name
        addresses = [f"{name}/$Transfer/$DeadLetterQueue"]
        if not isinstance(queue, TopicDescription):
            addresses = [name, f"{name}/$DeadLetterQueue", *addresses]
        for address in addresses:
            if address != name or not (queue.requires_session or queue.forward_to is not None):
                self._serve(address, self.peer.attach_receiver(address, delete=False))
            if address != name or not queue.requires_session:
                self._browse(address)

    def _serve(self, address: str, link: ReceiveLink) -> None:
        def delivered(event: DeliveryReceived) -> None:
            seen = read_delivery(event.payload)
            self.world.note(f"{self.name} <- {seen}")
            lock = self.checker.delivered(seen, address, event.delivery_tag, self.connection)
            assert lock is not None
            place = self.checker.facts.where.get(lock.uid)
            position = place[1] if place is not None else 0
            if position <= self._last.get(address, 0):
                raise Violation(f"{self.name} was given position {position} after {self._last[address]}")
            self._last[address] = position
            self.checker.settling(lock, "complete")
            asked_ms = self.now_ms
            link.settle(event.delivery_id, ACCEPTED, lambda state: self._settled(lock, asked_ms, state))
            given.append(lock.uid)
            if len(given) > DRAIN_CREDIT:
                link.flow(DRAIN_CREDIT)

        def drained() -> None:
            self.world.note(f"{self.name} drained {address}")
            if len(given) < expected[0]:
                raise Violation(f"{self.name} was drained after {len(given)} of {expected[0]} messages")
            link.flow(DRAIN_CREDIT)

        def attached() -> None:
            # Nothing is locked and no one else receives: an active message is available.
            expected[0] = min(DRAIN_CREDIT, len(self._available(address)))
            link.flow(DRAIN_CREDIT, drain=True)

        def lost(condition: str | None) -> None:
            if not self.checker.excused(self.connection):
                raise Violation(f"{self.name}: the broker detached the link of {address}: {condition}")

        given: list[int] = []
        expected = [0]
        link.on_attached = attached
        link.on_delivery = delivered
        link.on_drained = drained
        link.on_lost = lost

    def _available(self, address: str) -> list[Record]:
        """Return what a receiver must get now: active, not about to expire, and not on its way elsewhere."""
        if split(address)[1] != MAIN and self._queue.forward_dead_lettered_to is not None:
            return []
        return available(self, address)

    def _settled(self, lock: Lock, asked_ms: int, state: DeliveryState | None) -> None:
        if state != ACCEPTED:
            raise Violation(f"without faults, complete of uid {lock.uid} was answered with {state}")
        self.checker.settle_answered(lock, "complete", asked_ms, None)

    def _browse(self, address: str) -> None:
        """Find the deferred messages, and receive them by number; repeatedly, since earlier locks may
        lapse."""

        def found(messages: list[Seen]) -> None:
            for seen in [seen for seen in messages if seen.state == MessageState.DEFERRED][:20]:
                receive_deferred(
                    self,
                    address,
                    [seen.number],
                    False,
                    lambda lock: update_disposition(self, address, lock, "complete"),
                )

        peek(self, address, 0, 200, found)
        self.later(3_000, self._browse, address)


def available(actor: Actor, address: str) -> list[Record]:
    """Return the messages that are active and not about to expire."""
    name, sub = split(address)
    queue_id = actor.checker.history.queue_id(name, sub)
    soon_ms = actor.checker.history.clocks.latest_ms(actor.now_ms, actor.now_ms) + ANSWER_MS_MAX
    return [
        record
        for record in actor.checker.facts.live.values()
        if record.queue_id == queue_id
        and record.state is MessageState.ACTIVE
        and (record.is_dead or actor.checker.reasons.expires_broker_ms(record, min) > soon_ms)
    ]


class SessionDrainer(Actor):
    """Receives all messages of one queue's sessions, one session after the other, and clears the states."""

    WAIT_MS = 2_000

    def __init__(self, shared: Shared, queue: QueueDescription | SubscriptionDescription) -> None:
        super().__init__(shared, f"drainer-{queue.name}-sessions")
        self._queue = queue
        self._link: ReceiveLink | None = None
        self._turns = 0

    def ready(self) -> None:
        if self.stopped:
            self.leave()
        else:
            self._next()

    def left(self) -> None:
        self._link = None

    def _next(self) -> None:
        """Accept a session that is listed, or in turns the next available one."""
        self._turns += 1
        if self._turns % 2:
            self._accept(None)
        else:
            list_sessions(self, self._queue.name, self._listed)

    def _listed(self, found: list[str]) -> None:
        if found:
            self._accept(found[0])
        else:
            self.later(500, self._next)

    def _accept(self, session_id: str | None) -> None:
        assert self.peer is not None
        name = self._queue.name
        waiting = {record.uid for record in available(self, name)}
        accept = self.checker.holds.asking(
            self.connection, name, session_id, self.WAIT_MS, self._queue.lock_duration_ms
        )
        link = self.peer.attach_receiver(name, delete=False, session=(session_id,), wait_ms=self.WAIT_MS)
        self._link = link
        link.on_attached = lambda: self._granted(link, accept)
        link.on_lost = lambda condition: self._left(accept, waiting, condition)

    def _left(self, accept: Accept, waiting: set[int], condition: str | None) -> None:
        if self.checker.excused(self.connection):
            return
        if accept.hold is not None:
            # The session had more than can be received within its lock.
            self.checker.holds.detached(accept, condition)
        else:
            self.checker.holds.refused(accept, condition)
            if waiting:
                raise Violation(f"no session was available, though there were messages: uids {waiting}")
        self.later(100, self._next)

    def _granted(self, link: ReceiveLink, accept: Accept) -> None:
        hold = self.checker.holds.granted(accept, link.session_id, link.locked_until_ms)
        self.world.note(f"{self.name} holds {hold.session_id!r}")
        link.on_delivery = lambda event: self._delivered(link, hold, event)
        link.flow(DRAIN_CREDIT)
        get_state(self, self._queue.name, hold, lambda uid: self._clear(hold, uid))
        self._fetch(hold)
        self.later(200, self._look, link, hold, accept)

    def _clear(self, hold: Hold, uid: int | None) -> None:
        if uid is not None:
            set_state(self, self._queue.name, hold, None)

    def _delivered(self, link: ReceiveLink, hold: Hold, event: DeliveryReceived) -> None:
        seen = read_delivery(event.payload)
        self.world.note(f"{self.name} <- {seen}")
        address = self._queue.name
        lock = self.checker.delivered(seen, address, event.delivery_tag, self.connection, hold=hold)
        assert lock is not None
        asked_ms = self.now_ms
        self.checker.settling(lock, "complete")
        link.settle(event.delivery_id, ACCEPTED, lambda state: self._settled(lock, asked_ms, state))
        link.flow(DRAIN_CREDIT)

    def _settled(self, lock: Lock, asked_ms: int, state: DeliveryState | None) -> None:
        if state == ACCEPTED:
            self.checker.settle_answered(lock, "complete", asked_ms, None)
        elif lock.surely_live(self.now_ms, but=1):
            raise Violation(f"without faults, complete of uid {lock.uid} was answered with {state}")

    def _fetch(self, hold: Hold) -> None:
        def found(messages: list[Seen]) -> None:
            for seen in [seen for seen in messages if seen.state == MessageState.DEFERRED][:20]:
                receive_deferred(
                    self,
                    self._queue.name,
                    [seen.number],
                    False,
                    lambda lock: update_disposition(self, self._queue.name, lock, "complete"),
                    hold=hold,
                )

        peek(self, self._queue.name, 0, 200, found, session_id=hold.session_id)

    def _look(self, link: ReceiveLink, hold: Hold, accept: Accept) -> None:
        """Leave the session once it is empty."""
        if self._link is not link or not link.open:
            return
        self.checker.holds.check_detached(accept)
        left = [
            record
            for record in self.checker.facts.live.values()
            if (record.entity_id, record.session) == (hold.entity_id, hold.session)
            and record.state is not MessageState.SCHEDULED
        ]
        if left:
            self.later(200, self._look, link, hold, accept)
            return
        self._link = None
        self.checker.holds.left(accept, "detach")
        link.detach()
        self._next()
