"""Receivers: they do with a message whatever comes to mind; and those who take what is left at the end.

Owns: what is done with deliveries, by the world's dice. Must not know: the broker's insides.
"""

from __future__ import annotations

from dataclasses import dataclass

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.performatives import ACCEPTED, RELEASED, DeliveryState, Modified, Rejected
from peeklock.amqp.types import Symbol
from peeklock.broker.message import MessageState
from peeklock.testing.wire import WireState
from tests.simulation.actors import ANSWER_MS_MAX, Actor, Shared
from tests.simulation.checker import Lock
from tests.simulation.facts import Violation
from tests.simulation.managing import peek, read_delivery, receive_deferred, renew, update_disposition
from tests.simulation.peer import ReceiveLink, error_condition

DRAIN_CREDIT = 10

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


class Receiver(Actor):
    """Receives from one queue or dead-letter queue, and does with a message whatever comes to mind."""

    def __init__(
        self, shared: Shared, name: str, address: str, *, delete: bool, credit: int, cbs: bool = False
    ) -> None:
        super().__init__(shared, name, cbs=cbs)
        self.address = address
        self._delete = delete
        self._credit_max = credit
        self._link: ReceiveLink | None = None
        self._held: list[Held] = []
        self._received_count = 0
        self._limit = 0
        """How many deliveries the link may have brought in all, by the credit it was ever given."""
        self._draining = False
        self._drain_ms = 0
        self._dead = "/" in address

    def ready(self) -> None:
        self._attach()
        self.later(self.random.randint(100, 4_000), self._act)

    def left(self) -> None:
        self._link = None
        self._held.clear()

    def stop(self) -> None:
        super().stop()
        if self._link is not None and self._link.open:
            self.checker.link_lost()
            self._link.detach()
            self._link = None

    def _attach(self) -> None:
        assert self.peer is not None
        link = self.peer.attach_receiver(self.address, delete=self._delete)
        self._link = link
        self._draining = False
        self._received_count = self._limit = 0
        link.on_attached = lambda: self._flow(link)
        link.on_delivery = lambda event: self._delivered(link, event)
        link.on_drained = lambda: self._drained(link)
        link.on_lost = lambda condition: self._link_lost(link, condition)

    def _link_lost(self, link: ReceiveLink, condition: str | None) -> None:
        if self._link is link:
            self._link = None
        if self.peer is None or self.peer.lost or self.checker.may_be_disabled(condition):
            return
        if not self.checker.excused(self.connection):
            raise Violation(f"{self.name}: the broker detached the receiver link: {condition}")

    def _flow(self, link: ReceiveLink) -> None:
        if not self.stopped and self._link is link and link.open and not self._draining:
            credit = self.random.randint(0 if self._limit else 1, self._credit_max)
            self._allow(credit)
            link.flow(credit)

    def _allow(self, credit: int) -> None:
        self._limit = max(self._limit, self._received_count + credit)
        if self._delete:
            self.checker.may_delete(self.shared.queue_id(self.address), credit)

    def _delivered(self, link: ReceiveLink, event: DeliveryReceived) -> None:
        uid, number, count, until_ms, _ = read_delivery(event.payload)
        self._received_count += 1
        self.world.note(f"{self.name} <- uid {uid} number {number} count {count} until {until_ms}")
        if self._received_count > self._limit:
            raise Violation(f"{self.name} was given a delivery without credit: uid {uid}")
        if event.settled != self._delete:
            raise Violation(f"{self.name} was given uid {uid} settled={event.settled}")
        lock = self.checker.delivered(
            uid, self.shared.queue_id(self.address), number, count, event.delivery_tag, until_ms,
                self.connection,
        )  # fmt: skip
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
        lock_ms = held.lock.until_ms - held.lock.taken_ms
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
        """Settle over the link that the message came by."""
        if held not in self._held or not held.link.open:
            return
        self._held.remove(held)
        reason = f"reason-{held.lock.uid}"
        state: DeliveryState
        if kind == "complete":
            state = ACCEPTED
        elif kind == "release":
            state = RELEASED
        elif kind == "dead-letter":
            info = {Symbol("DeadLetterReason"): reason, Symbol("DeadLetterErrorDescription"): "as simulated"}
            state = Rejected(AmqpError(Symbol("com.microsoft:dead-letter"), "", info))
        else:
            properties = {Symbol("touched"): held.lock.count} if self.random.random() < 0.3 else None
            state = Modified(True, kind == "defer", properties)
        silent = kind == "release" or self.random.random() < 0.1
        asked_ms = self.world.now_ms
        self.checker.settling(held.lock, kind, reason)
        self.world.note(f"{self.name} settles uid {held.lock.uid}: {kind}")
        if kind == "defer":
            self._deferring(held.lock)
        answered = None if silent else lambda state: self._settled(held.lock, kind, asked_ms, state)
        held.link.settle(held.delivery_id, state, answered)

    def _deferring(self, lock: Lock) -> None:
        record = self.checker.facts.life(lock.uid).records[-1][0]
        self.shared.deferred.append((self.address, record.sequence_number, lock.uid))

    def _settled(self, lock: Lock, kind: str, asked_ms: int, state: DeliveryState | None) -> None:
        condition = error_condition(state)
        self.world.note(f"{self.name}: uid {lock.uid} {kind} {condition or 'done'}")
        if condition is None and type(state) is not SUCCESS[kind]:
            raise Violation(f"{kind} was answered with {state}")
        self.checker.settle_answered(lock, kind, asked_ms, condition)

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
        """Now and then do something with the link or the connection."""
        if self.stopped:
            return
        self.later(self.random.randint(100, 5_000), self._act)
        link = self._link
        if link is None or self.peer is None:
            if self.peer is not None:
                self._attach()
            return
        if not link.open:
            return
        roll = self.random.random()
        if roll < 0.4:
            self._drain(link)
        elif roll < 0.6:
            self.checker.link_lost()
            self._held.clear()
            if roll < 0.5:
                link.detach()
            else:
                self.peer.end(link.channel)
            self._attach()
        elif roll < 0.7:
            self.leave()
        else:
            self._flow(link)  # also less than before, while deliveries are under way

    def _drain(self, link: ReceiveLink) -> None:
        if self._draining:
            assert self.line is not None
            late = self.world.now_ms - self._drain_ms > ANSWER_MS_MAX
            if late and self.line.wire.state is WireState.OPEN and not self.checker.excused(self.connection):
                raise Violation(f"{self.name}: a drain was not answered")
            return
        self._draining = True
        self._drain_ms = self.world.now_ms
        credit = self.random.randint(0, self._credit_max)
        self._allow(credit)
        self.world.note(f"{self.name} drains {credit}")
        link.flow(credit, drain=True)

    def _drained(self, link: ReceiveLink) -> None:
        if self._link is not link:
            return
        self.world.note(f"{self.name} drained")
        self._limit = self._received_count
        self._draining = False
        self.later(self.random.randint(0, 1_000), self._flow, link)


class Drainer(Actor):
    """Takes everything out of one queue and its dead-letter queue, in order, once the faults are over."""

    def __init__(self, shared: Shared, name: str, queue: str) -> None:
        super().__init__(shared, name)
        self._queue = queue
        self._last: dict[str, int] = {}

    def ready(self) -> None:
        assert self.peer is not None
        for address in (self._queue, f"{self._queue}/$DeadLetterQueue"):
            link = self.peer.attach_receiver(address, delete=False)
            self._serve(address, link)
            self._browse(address)

    def _serve(self, address: str, link: ReceiveLink) -> None:
        def delivered(event: DeliveryReceived) -> None:
            uid, number, count, until_ms, _ = read_delivery(event.payload)
            self.world.note(f"{self.name} <- uid {uid} number {number} count {count}")
            lock = self.checker.delivered(
                uid, self.shared.queue_id(address), number, count, event.delivery_tag, until_ms,
                self.connection,
            )  # fmt: skip
            assert lock is not None
            place = self.checker.facts.where.get(uid)
            position = place[1] if place is not None else 0
            if position <= self._last.get(address, 0):
                raise Violation(f"{self.name} was given position {position} after {self._last[address]}")
            self._last[address] = position
            self.checker.settling(lock, "complete")
            asked_ms = self.world.now_ms
            link.settle(event.delivery_id, ACCEPTED, lambda state: self._settled(lock, asked_ms, state))
            given.append(uid)
            if len(given) > DRAIN_CREDIT:
                link.flow(DRAIN_CREDIT)

        def drained() -> None:
            self.world.note(f"{self.name} drained {address}")
            if len(given) < expected[0]:
                raise Violation(f"{self.name} was drained after {len(given)} of {expected[0]} messages")
            link.flow(DRAIN_CREDIT)

        def attached() -> None:
            # Nothing is locked and nobody else receives: what is active now is available.
            expected[0] = min(DRAIN_CREDIT, self._available(address))
            link.flow(DRAIN_CREDIT, drain=True)

        given: list[int] = []
        expected = [0]
        link.on_attached = attached
        link.on_delivery = delivered
        link.on_drained = drained

    def _available(self, address: str) -> int:
        """Count what a receiver must get now: active, and not about to expire."""
        queue_id = self.shared.queue_id(address)
        soon_ms = self.shared.node.now_ms + ANSWER_MS_MAX
        return sum(
            record.queue_id == queue_id
            and record.state is MessageState.ACTIVE
            and (record.in_dead_letter_queue or self.checker.expires_broker_ms(record, min) > soon_ms)
            for record in self.checker.facts.live.values()
        )

    def _settled(self, lock: Lock, asked_ms: int, state: DeliveryState | None) -> None:
        if state != ACCEPTED:
            raise Violation(f"without faults, complete of uid {lock.uid} was answered with {state}")
        self.checker.settle_answered(lock, "complete", asked_ms, None)

    def _browse(self, address: str) -> None:
        """Find the deferred messages, and receive them by number; again and again, since locks of before may
        lapse."""

        def found(messages: list[tuple[int, int, int]]) -> None:
            numbers = [number for number, _, state in messages if state == 1][:20]
            for number in numbers:
                receive_deferred(
                    self,
                    address,
                    [number],
                    False,
                    lambda lock: update_disposition(self, address, lock, "complete"),
                )

        peek(self, address, 0, 200, found)
        self.later(3_000, self._browse, address)
