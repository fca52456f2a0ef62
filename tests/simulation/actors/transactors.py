"""A client that works in transactions: takes from some queues, sends to others, and commits or rolls back.

Owns: what is in a transaction and how it ends, by the world's random source. Must not know: the broker's
internals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.amqp.performatives import ACCEPTED, DeliveryState, TransactionalState
from peeklock.broker.vocabulary.descriptions import (
    Description,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tests.simulation.actors.actors import Actor, Shared
from tests.simulation.actors.messages import compose
from tests.simulation.actors.peer import CoordinatorLink, ReceiveLink, SendLink, error_condition
from tests.simulation.actors.receivers import outcome_of
from tests.simulation.actors.requests import cancel, read_delivery, set_state, update_disposition
from tests.simulation.oracle.checker import split
from tests.simulation.oracle.history import Hold, Lock, Unit
from tests.simulation.oracle.holds import Accept
from tests.simulation.oracle.records import Violation
from tests.simulation.oracle.units import top_of

CREDIT = 5

ITEMS_MAX = 6

SETTLED_MS_MAX = 30_000
"""Time from the answer to a commit until its deliveries are settled, on a live connection."""


@dataclass(slots=True, eq=False)
class Inbox:
    """Where messages come from: a queue, or one session after the other of a queue."""

    queue: QueueDescription | SubscriptionDescription
    address: str
    link: ReceiveLink | None = None
    accept: Accept | None = None
    hold: Hold | None = None
    held: list[tuple[Lock, int]] = field(default_factory=list)
    """(lock, delivery id) of unsettled deliveries."""


@dataclass(slots=True, eq=False)
class Open:
    """An open transaction."""

    unit: Unit
    txn_id: bytes
    items: int
    """How many actions are still to be done in it."""
    top: str
    """The top-level entity of the transaction."""
    waiting: int = 0
    """How many answers are outstanding."""
    taken: list[tuple[Inbox, ReceiveLink, Lock, int]] = field(default_factory=list)
    """What is settled in it over links: (inbox, link, lock, delivery id)."""


class Transactor(Actor):
    """Has one transaction open at a time."""

    def __init__(self, shared: Shared, name: str, entities: list[Description]) -> None:
        super().__init__(shared, name)
        queues = [entity for entity in entities if not isinstance(entity, TopicDescription)]
        self._targets = [
            entity for entity in entities if isinstance(entity, QueueDescription | TopicDescription)
        ]
        receivable = [queue for queue in queues if queue.forward_to is None]
        if len(queues) < len(entities):
            self.random.shuffle(receivable)
        self._crosses = self.random.random() < 0.5 and bool(receivable)
        """All its links are on the AMQP session of the coordinator: it sends anywhere, and receives from one
        entity. Else each link has its own, and a transaction concerns one entity."""
        self._inboxes = [Inbox(queue, queue.name) for queue in receivable[: 1 if self._crosses else 2]]
        if not self._inboxes or self.random.random() < 0.3:
            dead = receivable[0] if self._crosses else queues[0]
            self._inboxes.append(Inbox(dead, f"{dead.name}/$DeadLetterQueue"))
        self._channel: int | None = None
        self._coordinator: CoordinatorLink | None = None
        self._senders: dict[tuple[str, str], SendLink] = {}
        """(entity, destination) -> link; the two differ when it sends via the entity."""
        self._open: Open | None = None
        self._declaring: CoordinatorLink | None = None
        """The link with an unanswered declare."""
        self._ended: list[bytes] = []
        self._units = 0

    # Links

    def ready(self) -> None:
        assert self.peer is not None
        self._channel = self.peer.begin() if self._crosses else None
        self._control()
        for inbox in self._inboxes:
            self._receive(inbox)
        self.next_time(self.random.randint(50, 1_000), self._act)

    def left(self) -> None:
        self._coordinator = None
        self._senders.clear()
        self._ended.clear()
        for inbox in self._inboxes:
            inbox.link = inbox.hold = inbox.accept = None
            inbox.held.clear()
        self._forget_unit()

    def _forget_unit(self) -> None:
        if self._open is not None:
            self.checker.units.lost(self._open.unit)
            self._open = None

    def _control(self) -> None:
        assert self.peer is not None
        self._coordinator = link = self.peer.attach_coordinator(channel=self._channel)
        link.on_lost = self._control_lost

    def _control_lost(self, condition: str | None) -> None:
        if self.peer is not None and not self.peer.lost and not self.checker.excused(self.connection):
            raise Violation(f"{self.name}: the broker detached the coordinator link: {condition}")

    def _receive(self, inbox: Inbox) -> None:
        if self.peer is None or self.stopped or inbox.link is not None:
            return
        session: tuple[str | None] | None = None
        if inbox.queue.requires_session and inbox.address == inbox.queue.name:
            session = (None,)
            inbox.accept = self.checker.holds.asking(
                self.connection, inbox.address, None, 20_000, inbox.queue.lock_duration_ms
            )
        accept = inbox.accept
        wait_ms = None if session is None else 20_000
        inbox.link = link = self.peer.attach_receiver(
            inbox.address, channel=self._channel, delete=False, session=session, wait_ms=wait_ms
        )

        def attached() -> None:
            if accept is not None:
                inbox.hold = self.checker.holds.granted(accept, link.session_id, link.locked_until_ms)
            link.flow(CREDIT)

        link.on_attached = attached
        link.on_delivery = lambda event: self._delivered(inbox, link, event)
        link.on_lost = lambda condition: self._link_lost(inbox, link, condition)

    def _link_lost(self, inbox: Inbox, link: ReceiveLink, condition: str | None) -> None:
        if inbox.link is not link:
            return
        accept, hold = inbox.accept, inbox.hold
        inbox.link = inbox.accept = inbox.hold = None
        inbox.held.clear()
        if self.peer is None or self.peer.lost:
            return
        self.checker.link_lost(self.connection)
        self.next_time(500, lambda: self._receive(inbox))
        if self._crosses and condition == "amqp:not-allowed" and hold is None:
            # The entity was refused once, and another one was used first then: a new session is needed.
            if accept is not None:
                accept.refused = True
                accept.over_ms = self.now_ms
            self.leave()
            return
        if self.checker.may_refuse(condition, inbox.queue.name):
            if accept is not None:
                accept.refused = hold is None
                accept.over_ms = self.now_ms
            if hold is not None:
                hold.ends.append((self.now_ms, "update"))
            elif self._crosses:
                self.leave()  # its AMQP session may belong to another entity now, to which it only sends
        elif hold is not None and accept is not None:
            self.checker.holds.detached(accept, condition)
        elif self.checker.excused(self.connection):
            return
        elif accept is not None:
            self.checker.holds.refused(accept, condition)
        else:
            raise Violation(f"{self.name}: the broker detached a receiver link: {condition}")

    def _delivered(self, inbox: Inbox, link: ReceiveLink, event: DeliveryReceived) -> None:
        seen = read_delivery(event.payload)
        self.world.note(f"{self.name} <- {seen}")
        lock = self.checker.delivered(
            seen, inbox.address, event.delivery_tag, self.connection, hold=inbox.hold
        )
        assert lock is not None
        self.shared.locks.append((inbox.address, lock))
        inbox.held.append((lock, event.delivery_id))

    def stop(self) -> None:
        super().stop()
        for inbox in self._inboxes:
            self._leave_inbox(inbox)
        if self._open is not None and self._open.unit.asked is None:
            self._discharge(fail=True)

    def _leave_inbox(self, inbox: Inbox) -> None:
        if inbox.link is None:
            return
        if inbox.accept is not None:
            self.checker.holds.left(inbox.accept, "detach")
        self.checker.link_lost(self.connection)
        inbox.link.detach()
        inbox.link = inbox.accept = inbox.hold = None
        inbox.held.clear()

    # Transactions

    def _act(self) -> None:
        if self.stopped:
            return
        self.next_time(self.random.randint(20, 700), self._act)
        link = self._coordinator
        if link is None or not link.open or link.credit <= 0 or self.random.random() < 0.2:
            self._tidy()
            return
        if self._open is None:
            if self._declaring is not link:
                self._declare(link)
        elif self._open.unit.asked is not None:
            return  # waits for the answer
        elif self._open.items > 0:
            self._open.items -= 1
            self._do_one(self._open)
        elif self._open.waiting == 0 or self.random.random() < 0.2:
            self._finish()

    def _tidy(self) -> None:
        """Settle outside of the transaction, go on to another session, renew the credit."""
        inbox = self.random.choice(self._inboxes)
        if inbox.link is None or not inbox.link.open:
            return
        if inbox.held and self.random.random() < 0.6:
            lock, delivery_id = inbox.held.pop(0)
            self._settle(inbox, lock, delivery_id, self.random.choice(("complete", "release")), None)
        elif inbox.hold is not None and self.random.random() < 0.3:
            self._leave_inbox(inbox)
            self._receive(inbox)
        elif self.random.random() < 0.1:
            self.leave()
        else:
            inbox.link.flow(CREDIT)

    def _declare(self, link: CoordinatorLink) -> None:
        self._units += 1
        unit = Unit(self._units * 1_000 + self.connection, self.connection, self.now_ms)

        def declared(txn_id: bytes | None, condition: str | None) -> None:
            self._declaring = None
            if txn_id is None:
                raise Violation(f"{self.name}: a declare was refused with {condition}")
            if self._coordinator is link:
                self.world.note(f"{self.name} has declared {unit.no}")
                top = top_of(self.random.choice(self._inboxes).queue.name)
                self._open = Open(unit, txn_id, self.random.randint(1, ITEMS_MAX), top)

        self._declaring = link
        link.declare(declared)

    def _do_one(self, open_: Open) -> None:
        inboxes = [
            inbox
            for inbox in self._inboxes
            if inbox.held and inbox.link is not None and top_of(inbox.queue.name) == open_.top
        ]
        holding = [inbox for inbox in inboxes if inbox.hold is not None]
        if holding and self.random.random() < 0.3:
            self._set_state(self.random.choice(holding), open_)
        elif self.random.random() < 0.1 and self._cancel(open_):
            return
        elif inboxes and self.random.random() < 0.6:
            inbox = self.random.choice(inboxes)
            lock, delivery_id = inbox.held.pop(0)
            kinds = ("complete", "complete", "complete", "abandon", "defer", "dead-letter")
            kind = self.random.choice(kinds[: 5 if split(inbox.address)[1] else 6])
            if self.random.random() < 0.25:
                self._settle_by_management(inbox, lock, kind, open_)
            else:
                self._settle(inbox, lock, delivery_id, kind, open_)
            if self.random.random() < 0.1:
                # No one else can settle it meanwhile.
                self.later(
                    self.random.randint(0, 200), update_disposition, self, inbox.address, lock, "complete"
                )
        elif self.random.random() < 0.3:
            self._schedule(open_)
        else:
            self._send(open_)

    def _set_state(self, inbox: Inbox, open_: Open) -> None:
        assert inbox.hold is not None
        uid = None
        if self.random.random() < 0.8:
            self.shared.uids += 1
            uid = self.shared.uids
        open_.waiting += 1
        set_state(
            self, inbox.address, inbox.hold, uid, unit=open_.unit, txn_id=open_.txn_id,
            then=lambda: self._answered(open_),
        )  # fmt: skip

    def _cancel(self, open_: Open) -> bool:
        """Cancel a message that was scheduled lately; return whether there is one."""
        known = [found for found in self.shared.scheduled[-8:] if found[0] == open_.top]
        if not known:
            return False
        open_.waiting += 1
        cancel(
            self, *self.random.choice(known), unit=open_.unit, txn_id=open_.txn_id,
            then=lambda: self._answered(open_),
        )  # fmt: skip
        return True

    def _answered(self, open_: Open) -> None:
        open_.waiting -= 1

    def _target(self, open_: Open) -> QueueDescription | TopicDescription | None:
        """Choose where to schedule, and without crossing where to send: the entity of the transaction."""
        found = [target for target in self._targets if target.name == open_.top]
        return found[0] if found else None

    def _schedule(self, open_: Open) -> None:
        """Schedule by request: the numbers come at once, the messages with the commit."""
        assert self.peer is not None
        queue = self._target(open_)
        if queue is None:
            return
        self.shared.groups += 1
        made = [
            compose(self.shared, queue, scheduled=True, group=self.shared.groups)
            for _ in range(self.random.choice((1, 1, 3)))
        ]
        for sent, _ in made:
            sent.ahead = True
        uids = [sent.uid for sent, _ in made]
        self.checker.sending([sent for sent, _ in made], open_.unit)
        self.checker.units.promising(queue.name, len(made))
        self.world.note(f"{self.name} schedules {uids} in {open_.unit.no}")

        def answered(status: int, condition: str | None, body: Any) -> None:
            open_.waiting -= 1
            if status == 0:
                return
            self.world.note(f"{self.name}: scheduled {uids} {status} {condition} {body}")
            if status != 200:
                self.checker.send_answered(uids, str(condition))
                return
            numbers = list(body["sequence-numbers"])
            self.checker.numbered(uids, numbers)
            self.shared.scheduled += [
                (queue.name, number, uid) for number, uid in zip(numbers, uids, strict=True)
            ]

        open_.waiting += 1
        body = {"messages": [{"message": payload} for _, payload in made]}
        self.peer.ask(queue.name, "com.microsoft:schedule-message", body, answered, txn_id=open_.txn_id)

    def _send(self, open_: Open) -> None:
        assert self.peer is not None
        queue = self.random.choice(self._targets)
        via = self.random.choice(self._targets) if self.random.random() < 0.4 else queue
        if not self._crosses:
            target = self._target(open_)
            if target is None:
                return
            queue, via = (queue, target) if via is not queue else (target, target)
        way = via.name, queue.name
        link = self._senders.get(way)
        if link is None:
            destination = None if via is queue else queue.name
            self._senders[way] = link = self.peer.attach_sender(
                via.name, channel=self._channel, destination=destination
            )
            link.on_lost = lambda condition: self._sender_lost(way, condition)
        if not link.open or link.credit <= 0:
            return
        self.shared.groups += 1
        group = self.shared.groups if self.random.random() < 0.3 else 0
        made = [
            compose(self.shared, queue, group=group, scheduled=self.random.random() < 0.1)
            for _ in range(self.random.randint(1, 4) if group else 1)
        ]
        for sent, _ in made:
            sent.via = None if via is queue else via.name
            sent.free = queue.name != open_.top
        silent = self.random.random() < 0.1
        self.checker.sending([sent for sent, _ in made], open_.unit, silent=silent)
        uids = [sent.uid for sent, _ in made]
        self.world.note(f"{self.name} sends {uids} in {open_.unit.no}")

        def outcome(state: DeliveryState | None) -> None:
            open_.waiting -= 1
            condition = error_condition(state)
            self.world.note(f"{self.name}: {uids} {condition or 'enlisted'}")
            if condition is None and state != TransactionalState(open_.txn_id, ACCEPTED):
                raise Violation(f"the outcome of a send in a transaction is {state}")
            self.checker.send_answered(uids, condition or "accepted")

        payload = encode_message(data=[payload for _, payload in made]) if group else made[0][1]
        message_format = BATCH_FORMAT if group else 0
        open_.waiting += not silent
        link.send(payload, None if silent else outcome, message_format=message_format, txn_id=open_.txn_id)

    def _sender_lost(self, way: tuple[str, str], condition: str | None) -> None:
        self._senders.pop(way, None)
        if self.peer is None or self.peer.lost:
            return
        if any(self.checker.may_refuse(condition, name) for name in way):
            return
        if not self.checker.excused(self.connection):
            raise Violation(f"{self.name}: the broker detached a sender link: {condition}")

    def _settle(self, inbox: Inbox, lock: Lock, delivery_id: int, kind: str, open_: Open | None) -> None:
        assert inbox.link is not None
        unit = None if open_ is None else open_.unit
        reason = f"reason-{lock.uid}" if unit is None else f"reason-{lock.uid}-{unit.no}"
        asked_ms = self.now_ms
        self.checker.settling(lock, kind, reason, unit)
        if kind == "release" and lock.hold is not None:
            self.checker.holds.giving_back(lock, CREDIT)
        self.world.note(
            f"{self.name} settles uid {lock.uid}: {kind}{'' if unit is None else f' in {unit.no}'}"
        )

        def answered(state: DeliveryState | None) -> None:
            if open_ is not None:
                open_.waiting -= 1
            condition = error_condition(state)
            self.world.note(f"{self.name}: uid {lock.uid} {kind} {condition or 'done'}")
            self.checker.settle_answered(lock, kind, asked_ms, condition, unit)
            self.checker.holds.given_back(lock, condition is None)
            if open_ is not None and condition is None:
                open_.taken.append((inbox, link, lock, delivery_id))

        link = inbox.link
        if open_ is not None:
            open_.waiting += 1
        link.settle(
            delivery_id, outcome_of(kind, reason), answered, txn_id=None if open_ is None else open_.txn_id
        )

    def _settle_by_management(self, inbox: Inbox, lock: Lock, kind: str, open_: Open) -> None:
        def done(_: bool) -> None:
            open_.waiting -= 1

        open_.waiting += 1
        update_disposition(self, inbox.address, lock, kind, unit=open_.unit, txn_id=open_.txn_id, then=done)

    def _finish(self) -> None:
        """End the transaction in one way or another."""
        roll = self.random.random()
        holding = [inbox for inbox in self._inboxes if inbox.hold is not None]
        if self._open is not None and self._open.unit.states and holding and roll < 0.15:
            # The lock of the state is lost before the commit, which is refused.
            self._leave_inbox(holding[0])
            self._receive(holding[0])
            self._discharge(fail=False)
        elif roll < 0.6:
            self._discharge(fail=False)
        elif roll < 0.72:
            self._discharge(fail=True)
        elif roll < 0.8:
            # Leaving the coordinator rolls back.
            assert self._coordinator is not None
            self.world.note(f"{self.name} leaves the coordinator")
            self._coordinator.detach()
            self._forget_unit()
            self._control()
        elif roll < 0.94:
            self._discharge(fail=self.random.random() < 0.3)
            if self.random.random() < 0.5:
                self.cut()
        elif roll < 0.97:
            self.leave()

    def _discharge(self, *, fail: bool) -> None:
        open_, link = self._open, self._coordinator
        assert open_ is not None
        if link is None or not link.open or link.credit <= 0:
            return
        unit = open_.unit
        self.checker.units.discharging(unit, fail)
        self.world.note(f"{self.name} discharges {unit.no}: {'roll back' if fail else 'commit'}")

        def outcome(state: DeliveryState | None) -> None:
            condition = error_condition(state)
            self.world.note(f"{self.name}: {unit.no} is {condition or 'done'}")
            if condition is None and state != ACCEPTED:
                raise Violation(f"the outcome of a discharge is {state}")
            if condition is not None and not condition.startswith("amqp:transaction:"):
                raise Violation(f"a discharge was refused with {condition}: {unit}")
            self.checker.units.discharged(unit, condition)
            if self._open is open_:
                self._open = None
            if unit.outcome == "committed":
                self.later(SETTLED_MS_MAX, self._check_settled, open_)
            else:
                # Each can be settled again on its link.
                for inbox, taken_over, lock, delivery_id in open_.taken:
                    if inbox.link is not taken_over or not taken_over.open:
                        continue
                    roll = self.random.random()
                    if roll < 0.3:
                        self._settle(inbox, lock, delivery_id, "complete", None)
                    elif roll < 0.8:
                        inbox.held.append((lock, delivery_id))

        link.discharge(open_.txn_id, fail, outcome)
        if self.random.random() < 0.1 and link.credit > 0:
            link.discharge(open_.txn_id, not fail, self._discharged_twice)

    def _check_settled(self, open_: Open) -> None:
        """Check that the commit has settled the deliveries."""
        if self.peer is None or self.checker.excused(self.connection):
            return
        for inbox, link, lock, delivery_id in open_.taken:
            if inbox.link is link and (link.channel, delivery_id) in self.peer.provisional:
                raise Violation(f"the commit of {open_.unit.no} has not settled the delivery of {lock}")

    def _discharged_twice(self, state: DeliveryState | None) -> None:
        if error_condition(state) != "amqp:transaction:unknown-id":
            raise Violation(f"the second discharge of a transaction was answered with {state}")
