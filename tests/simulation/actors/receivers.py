"""Receivers: they settle, renew, forget and give back messages at random.

Owns: what is done with deliveries, by the world's random source. Must not know: the broker's internals.
"""

from __future__ import annotations

from dataclasses import dataclass

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.performatives import ACCEPTED, RELEASED, DeliveryState, Modified, Rejected
from peeklock.amqp.types import Symbol
from peeklock.testing.wire import WireState
from tests.simulation.actors.actors import ANSWER_MS_MAX, Actor, Shared
from tests.simulation.actors.peer import ReceiveLink, error_condition
from tests.simulation.actors.requests import read_delivery, renew, update_disposition
from tests.simulation.oracle.checker import split
from tests.simulation.oracle.history import COMMIT_MS_MAX, WIRE_MS_MAX, Hold, Lock
from tests.simulation.oracle.records import MAIN, Violation

SURELY_ARRIVED_MS = WIRE_MS_MAX + COMMIT_MS_MAX

SUCCESS = {
    "complete": type(ACCEPTED),
    "release": type(RELEASED),
    "dead-letter": Rejected,
    "abandon": Modified,
    "defer": Modified,
}


@dataclass(slots=True)
class Held:
    """A delivery that its receiver has not settled yet."""

    lock: Lock
    delivery_id: int
    link: ReceiveLink


def outcome_of(kind: str, reason: str, properties: dict[Symbol, int] | None = None) -> DeliveryState:
    """Return the delivery state of a settlement."""
    if kind == "complete":
        return ACCEPTED
    if kind == "release":
        return RELEASED
    if kind == "dead-letter":
        info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): "as simulated"}
        return Rejected(AmqpError(Symbol("com.microsoft:dead-letter"), "", info))
    return Modified(True, kind == "defer", properties)


class Receiver(Actor):
    """Receives from one queue or dead-letter queue, and treats each message at random."""

    def __init__(
        self, shared: Shared, name: str, address: str, *, delete: bool, credit: int, cbs: bool = False
    ) -> None:
        super().__init__(shared, name, cbs=cbs)
        self.address = address
        self._entity = split(address)[0]
        self._delete = delete
        self._credit_max = credit
        self._link: ReceiveLink | None = None
        self._held: list[Held] = []
        self._received_count = 0
        self._limit = 0
        """How many deliveries the link may have brought in all, by the credit that it ever had."""
        self._given_max = 0
        """The same, with credit that was taken back since: deliveries in flight may wait at the link."""
        self._draining = False
        self._drain_ms = 0
        self._took_back = False
        """A drain was taken back: its answer may still come, and be taken for that of another."""
        self._dead = split(address)[1] != MAIN
        self._hold: Hold | None = None
        """The session that the link holds."""

    def ready(self) -> None:
        self._attach()
        self.next_time(self.random.randint(100, 4_000), self._act)

    def left(self) -> None:
        self._forget_link()

    def stop(self) -> None:
        super().stop()
        self._leave_link()

    def _forget_link(self) -> None:
        if self._link is not None:
            self.checker.receiving(self._entity, self._link, False)
        self._link = self._hold = None
        self._held.clear()

    def _leave_link(self, *, with_session: bool = False) -> None:
        """Leave the link properly, or its AMQP session."""
        link = self._link
        if link is None or self.peer is None:
            return
        if link.open:
            self.checker.link_lost(self.connection)
        self._forget_link()
        if with_session and link.channel in self.peer.begun:
            self.peer.end(link.channel)
        else:
            link.detach()

    def _attach(self) -> None:
        assert self.peer is not None
        link = self.peer.attach_receiver(self.address, delete=self._delete)
        self._serve(link)
        link.on_attached = lambda: self._flow(link)

    def _serve(self, link: ReceiveLink) -> None:
        self._link = link
        self._draining = self._took_back = False
        self._received_count = self._limit = self._given_max = 0
        link.on_delivery = lambda event: self._delivered(link, event)
        link.on_drained = lambda: self._drained(link)
        link.on_lost = lambda condition: self._link_lost(link, condition)

    def _link_lost(self, link: ReceiveLink, condition: str | None) -> None:
        if self._link is link:
            self._forget_link()
        if self.peer is not None and not self.peer.lost:
            self.checker.graces.link_ended(self.connection)
        if self.peer is None or self.peer.lost or self.checker.may_refuse(condition, self._entity):
            return
        if not self.checker.excused(self.connection):
            raise Violation(f"{self.name}: the broker detached the receiver link: {condition}")

    def _flow(self, link: ReceiveLink) -> None:
        if not self.stopped and self._link is link and link.open and not self._draining:
            credit = self.random.randint(0 if self._limit else 1, self._credit_max)
            self._allow(credit)
            link.flow(credit)
            if not credit:
                self.checker.receiving(self._entity, link, False)
            self.later(SURELY_ARRIVED_MS, self._receiving, link, self._limit)

    def _receiving(self, link: ReceiveLink, limit: int) -> None:
        """Report credit: the broker has it by now, and while it lasts the queue is not idle."""
        if self._link is link and link.open and self._received_count < limit and not self._draining:
            # A drain that was taken back may have used it up all the same.
            if link.peer.connection.credit(link.channel, link.handle) > 0:
                self.checker.receiving(self._entity, link, True)

    def _allow(self, credit: int) -> None:
        self._limit = max(self._limit, self._received_count + credit)
        self._given_max = max(self._given_max, self._limit)
        if self._delete:
            self.checker.may_delete(self.address, credit)

    def _delivered(self, link: ReceiveLink, event: DeliveryReceived) -> None:
        seen = read_delivery(event.payload)
        self._received_count += 1
        self.world.note(f"{self.name} <- {seen}")
        if self._received_count > self._limit:
            raise Violation(f"{self.name} was given a delivery without credit: {seen}")
        if event.settled != self._delete:
            raise Violation(f"{self.name} was given {seen} settled={event.settled}")
        lock = self.checker.delivered(
            seen,
            self.address,
            event.delivery_tag,
            self.connection,
            deletes=self._delete,
            hold=self._hold,
        )
        if link.peer.connection.credit(link.channel, link.handle) == 0:
            self.checker.used_up(link)
        if lock is not None:
            self.shared.locks.append((self.address, lock))
            held = Held(lock, event.delivery_id, link)
            self._held.append(held)
            self._decide(held)
        if self._limit - self._received_count <= self._credit_max // 3:
            self.later(self.random.randint(0, 30), self._flow, link)

    def _decide(self, held: Held) -> None:
        """Choose what to do with a message, and when."""
        random = self.random
        claim = held.lock if held.lock.hold is None else held.lock.hold
        lock_ms = max(0, claim.until_ms - self.now_ms)
        think_ms = random.choice((0, 1, 5, 50, 400, 2_000))
        kinds = (
            "complete",
            "abandon",
            "dead-letter",
            "defer",
            "release",
            "lapse",
            "renew",
            "managed",
            "late",
            "twice",
        )
        kind = random.choices(kinds, (50, 9, 0 if self._dead else 6, 6, 6, 7, 5, 5, 3, 3))[0]
        if kind == "lapse":
            self._held.remove(held)
        elif kind == "late":
            self.later(
                lock_ms + random.randint(-40, 400), self._settle, held, random.choice(("complete", "abandon"))
            )
        elif kind == "renew":
            self.later(random.randint(0, lock_ms), self._renew, held)
        elif kind == "managed":
            self.later(
                think_ms, self._managed, held, random.choice(("complete", "abandon", "defer", "dead-letter"))
            )
        elif kind == "twice":
            self.later(think_ms, self._settle, held, "complete")
            self.later(
                think_ms + random.randint(0, 500), self._managed, held, random.choice(("complete", "abandon"))
            )
        else:
            self.later(think_ms, self._settle, held, kind)

    def _settle(self, held: Held, kind: str) -> None:
        """Settle over the link that brought the message."""
        if held not in self._held or not held.link.open:
            return
        self._held.remove(held)
        reason = f"reason-{held.lock.uid}"
        properties = {Symbol("touched"): held.lock.count} if self.random.random() < 0.3 else None
        state = outcome_of(kind, reason, properties)
        silent = kind == "release" or self.random.random() < 0.1
        asked_ms = self.now_ms
        self.checker.settling(held.lock, kind, reason)
        self._giving_back(held.lock, kind)
        self.world.note(f"{self.name} settles uid {held.lock.uid}: {kind}")
        if kind == "defer":
            self._deferring(held.lock)
        answered = None if silent else lambda state: self._settled(held.lock, kind, asked_ms, state)
        held.link.settle(held.delivery_id, state, answered)

    def _giving_back(self, lock: Lock, kind: str) -> None:
        if kind in ("abandon", "release") and lock.hold is not None and lock.hold is self._hold:
            self.checker.holds.giving_back(lock, self._given_max - self._received_count)

    def _deferring(self, lock: Lock) -> None:
        record = self.checker.facts.life(lock.uid).records[-1][0]
        if lock.hold is None:
            self.shared.deferred.append((self.address, record.sequence_number, lock.uid))

    def _settled(self, lock: Lock, kind: str, asked_ms: int, state: DeliveryState | None) -> None:
        condition = error_condition(state)
        self.world.note(f"{self.name}: uid {lock.uid} {kind} {condition or 'done'}")
        if condition is None and type(state) is not SUCCESS[kind]:
            raise Violation(f"{kind} was answered with {state}")
        self.checker.settle_answered(lock, kind, asked_ms, condition)
        self.checker.holds.given_back(lock, condition is None)

    def _renew(self, held: Held) -> None:
        renew(self, self.address, held.lock)
        self.later(self.random.randint(0, 3_000), self._settle, held, "complete")

    def _managed(self, held: Held, kind: str) -> None:
        if held in self._held:
            self._held.remove(held)
        if kind == "dead-letter" and self._dead:
            kind = "complete"
        if kind == "defer":
            self._deferring(held.lock)
        update_disposition(self, self.address, held.lock, kind)

    def _act(self) -> None:
        """Act on the link or the connection now and then."""
        if self.stopped:
            return
        self.next_time(self.random.randint(100, 5_000), self._act)
        link = self._link
        if link is None:
            self._attach()
            return
        if not link.open:
            return
        roll = self.random.random()
        if roll < 0.4:
            self._drain(link)
        elif roll < 0.6:
            self._leave_link(with_session=roll >= 0.5)
            self._attach()
        elif roll < 0.7:
            self.leave()
        else:
            self._flow(link)  # also less than before, while deliveries are in flight

    def _drain(self, link: ReceiveLink) -> None:
        if self._draining:
            assert self.wire is not None
            late = self.now_ms - self._drain_ms > ANSWER_MS_MAX
            if (
                late
                and self.wire.memory.state is WireState.OPEN
                and not self.checker.excused(self.connection)
            ):
                raise Violation(f"{self.name}: a drain was not answered")
            return
        self._draining = True
        self._drain_ms = self.now_ms
        self.checker.receiving(self._entity, link, False)
        credit = self.random.randint(0, self._credit_max)
        self._allow(credit)
        self.world.note(f"{self.name} drains {credit}")
        link.flow(credit, drain=True)
        if self.random.random() < 0.3:
            self.later(self.random.choice((0, 0, 1, 5, 100)), self._change_mind, link)

    def _change_mind(self, link: ReceiveLink) -> None:
        """Take a drain back by a new flow, before it is answered or just after."""
        if self._link is link and link.open and self._draining:
            self.world.note(f"{self.name} takes its drain back")
            self._draining = False
            self._took_back = True
            self._flow(link)

    def _drained(self, link: ReceiveLink) -> None:
        if self._link is not link:
            return
        self.world.note(f"{self.name} drained")
        if not self._took_back:
            self._limit = self._received_count
        self._draining = False
        self.later(self.random.randint(0, 1_000), self._flow, link)
