"""People at the clients' end: they send, receive and manage, carelessly, and tell the checker what they did
and saw.

Owns: what clients choose to do, by the world's dice. Must not know: the broker's insides; all goes through
`Peer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.messaging import BATCH_FORMAT, Header, Properties, encode_message, scan
from peeklock.amqp.performatives import ACCEPTED, RELEASED, DeliveryState, Modified, Rejected
from peeklock.amqp.types import Array, Int, Long, Symbol, Timestamp
from peeklock.broker.message import MessageState
from peeklock.testing.wire import CLIENT, WireState
from tests.simulation.checker import Checker, Lock, Sent
from tests.simulation.facts import Violation, uid_of
from tests.simulation.node import Line, Node
from tests.simulation.peer import Peer, ReceiveLink, SendLink, error_condition, lock_uuid
from tests.simulation.world import World

RETRY_MS = 400
ANSWER_MS_MAX = 30_000
"""Without faults, every question is answered within this time."""

DRAIN_CREDIT = 10


@dataclass(slots=True)
class Shared:
    """What the actors of one simulation know together."""

    world: World
    node: Node
    checker: Checker
    uids: int = 0
    groups: int = 0
    connections: int = 0
    recent_ids: list[tuple[str, str]] = field(default_factory=list)
    """(queue, message id) sent before, to be sent again."""
    scheduled: list[tuple[str, int, int]] = field(default_factory=list)
    """(queue, sequence number, uid) as the schedule operation answered."""
    deferred: list[tuple[str, int, int]] = field(default_factory=list)
    """(address, sequence number, uid) of messages that were deferred."""
    locks: list[tuple[str, Lock]] = field(default_factory=list)
    """(address, lock) of recent deliveries, for whoever wants to settle through the management node."""

    def queue_id(self, address: str) -> int:
        entity, _, dead = address.partition("/")
        return self.checker.queue_ids[entity] + (1 if dead else 0)


class Actor:
    """Somebody with one connection at a time, who comes back after losing it."""

    def __init__(self, shared: Shared, name: str, *, cbs: bool = False) -> None:
        self.shared = shared
        self.world = shared.world
        self.random = shared.world.random
        self.checker = shared.checker
        self.name = name
        self._cbs = cbs
        self.peer: Peer | None = None
        self.line: Line | None = None
        self.connection = 0
        self.stopped = False
        self._excused = False  # the end of the connection is our own doing
        self._tick_ms: int | None = None

    # The connection

    def connect(self) -> None:
        if self.stopped or self.peer is not None:
            return
        line = self.shared.node.connect()
        if line is None:
            self.world.after(self.random.randint(50, RETRY_MS), self.connect)
            return
        self.shared.connections += 1
        self.connection = self.shared.connections
        self.checker.connected(self.connection)
        self.line = line
        self._excused = False
        peer = Peer(
            self.name, lambda data: line.write(CLIENT, data), lambda: self.world.now_ms, cbs=self._cbs
        )
        self.peer = peer
        line.on_data[CLIENT] = lambda data: self._received(peer, data)
        line.on_end[CLIENT] = peer.ended
        peer.on_ready = self.ready
        peer.on_lost = lambda condition: self._lost(peer, condition)
        self.world.note(f"{self.name} connects")
        peer.start()
        self._plan_tick(peer)

    def _received(self, peer: Peer, data: bytes) -> None:
        peer.received(data)
        self._plan_tick(peer)

    def _plan_tick(self, peer: Peer) -> None:
        due_ms = peer.next_deadline_ms()
        if due_ms is not None and due_ms != self._tick_ms:
            self._tick_ms = due_ms
            self.world.at(due_ms, self._tick, peer, due_ms)

    def _tick(self, peer: Peer, due_ms: int) -> None:
        if peer.lost or self._tick_ms != due_ms:
            return
        self._tick_ms = None
        peer.tick()
        self._plan_tick(peer)

    def _lost(self, peer: Peer, condition: str | None) -> None:
        if self.peer is not peer:
            return
        self.world.note(f"{self.name} lost its connection: {condition}")
        assert self.line is not None
        if (
            not self._excused
            and self.line.wire.state is WireState.OPEN
            and not self.checker.excused(self.connection)
        ):
            raise Violation(f"{self.name}: the broker ended the connection: {condition}")
        if self.line.wire.state is WireState.CUT:
            self.checker.connection_lost(self.connection, "cut")
        else:
            self.checker.connection_lost(self.connection, "drop")
        self.line.close(CLIENT)
        self._gone()

    def _gone(self) -> None:
        self.peer = self.line = None
        self.left()
        if not self.stopped:
            self.world.after(self.random.randint(1, RETRY_MS), self.connect)

    def cut(self) -> None:
        """Break the connection, as a pulled cable does with both ends told."""
        if self.line is not None and self.line.wire.state is WireState.OPEN:
            self.world.note(f"{self.name}: cut")
            self.checker.connection_lost(self.connection, "cut")
            self.line.cut()

    def drop(self) -> None:
        """Let the connection go half open; the client gives up on it by itself."""
        if self.line is not None and self.line.wire.state is WireState.OPEN:
            self.world.note(f"{self.name}: half open")
            self.checker.connection_lost(self.connection, "drop")
            self.line.wire.drop()
            self.world.after(self.random.randint(100, 20_000), self._give_up, self.line)

    def _give_up(self, line: Line) -> None:
        if self.line is line and self.peer is not None:
            peer, self.peer = self.peer, None
            peer.lost = True
            line.close(CLIENT)
            self._gone()

    def leave(self) -> None:
        """Close the connection properly, now and then without waiting for the answer."""
        if self.peer is None or self.line is None or not self.peer.ready:
            return
        self.world.note(f"{self.name} leaves")
        self._excused = True
        self.checker.connection_lost(self.connection, "close")
        self.peer.close()
        if self.random.random() < 0.5 and self.peer is not None:
            peer, line = self.peer, self.line
            peer.lost = True
            line.close(CLIENT)
            self._gone()

    # For the kinds of actors

    def ready(self) -> None:
        """The connection is open."""
        raise NotImplementedError

    def left(self) -> None:
        """The connection is gone."""

    def stop(self) -> None:
        """Begin nothing new; what was asked must still be answered."""
        self.stopped = True

    def open_questions(self) -> int:
        """How many answers are outstanding on a connection that is alive."""
        peer = self.peer
        if peer is None or self.line is None or self.line.wire.state is not WireState.OPEN:
            return 0
        return len(peer.sends) + len(peer.settlements) + sum(len(r.answers) for r in peer.requests.values())

    def later(self, delay_ms: int, do: Callable[..., None], *args: Any) -> None:
        """Do something later, unless the connection of now is lost by then."""
        peer = self.peer
        self.world.after(
            delay_ms, lambda: do(*args) if self.peer is peer and peer is not None and peer.ready else None
        )


class Sender(Actor):
    """Sends to one queue: single, batched, pre-settled, scheduled, with time-to-live, with ids used
    before."""

    def __init__(self, shared: Shared, name: str, queue: str, *, pace_ms: int, cbs: bool = False) -> None:
        super().__init__(shared, name, cbs=cbs)
        self._queue = queue
        self._pace_ms = pace_ms
        self._link: SendLink | None = None

    def ready(self) -> None:
        self._attach()
        self.later(self.random.randint(0, self._pace_ms), self._act)

    def _attach(self) -> None:
        assert self.peer is not None
        self._link = link = self.peer.attach_sender(self._queue)
        link.on_lost = lambda condition: self._link_lost(condition)

    def left(self) -> None:
        self._link = None

    def _link_lost(self, condition: str | None) -> None:
        self._link = None
        if self.peer is None or self.peer.lost or self.checker.may_be_disabled(condition):
            return
        if not self.checker.excused(self.connection):
            raise Violation(f"{self.name}: the broker detached the sender link: {condition}")

    def _act(self) -> None:
        if self.stopped:
            return
        self.later(self.random.randint(1, 2 * self._pace_ms), self._act)
        link = self._link
        if link is None:
            self._attach()
            return
        if not link.open or link.credit <= 0:
            return
        roll = self.random.random()
        if roll < 0.5:
            for _ in range(self.random.choice((1, 1, 1, 2, 5))):
                if link.credit > 0:
                    self._send_one(link)
        elif roll < 0.68:
            self._send_batch(link)
        elif roll < 0.76:
            self._send_one(link, settled=True)
        elif roll < 0.85:
            self._send_one(link, scheduled=True)
        elif roll < 0.95:
            self._schedule()
        elif roll < 0.965:
            self._send_one(link, wrong=True)
        elif roll < 0.98:
            self.leave()
        else:
            link.detach()
            self._attach()

    def _message(self, *, scheduled: bool = False, group: int = 0, wrong: bool = False) -> tuple[Sent, bytes]:
        """Make a message, and its encoding."""
        shared, random = self.shared, self.random
        shared.uids += 1
        uid = shared.uids
        message_id: str | None = f"id-{uid}"
        roll = random.random()
        if roll < 0.15:
            message_id = None
        elif roll < 0.35 and shared.recent_ids:
            queue, again = random.choice(shared.recent_ids[-12:])
            message_id = again if queue == self._queue else message_id
        if wrong:
            message_id = "x" * 200
        elif message_id is not None:
            shared.recent_ids.append((self._queue, message_id))
        ttl_ms = random.choice((None, None, None, 50, 3_000, 20_000, 60_000))
        at_ms = shared.node.now_ms + random.choice((-1_000, 0, 20, 700, 4_000, 15_000)) if scheduled else None
        sent = Sent(uid, self._queue, message_id, ttl_ms, at_ms, group, self.world.now_ms, wrong)
        data = b"uid=%08d;" % uid + b"." * random.choice((0, 3, 40, 300))
        roll = random.random()
        if roll < 0.01:
            data += b"." * 3_000
        elif roll < 0.011:
            data += b"." * 150_000  # several frames
        payload = encode_message(
            header=None if ttl_ms is None else Header(ttl=ttl_ms),
            message_annotations=None
            if at_ms is None
            else {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(at_ms)},
            properties=Properties(message_id=message_id),
            application_properties={"n": uid} if random.random() < 0.3 else None,
            data=data,
        )
        return sent, payload

    def _send_one(
        self, link: SendLink, *, scheduled: bool = False, settled: bool = False, wrong: bool = False
    ) -> None:
        sent, payload = self._message(scheduled=scheduled, wrong=wrong)
        self.checker.sending([sent])
        link.send(payload, None if settled else lambda state: self._outcome([sent.uid], state))

    def _send_batch(self, link: SendLink) -> None:
        self.shared.groups += 1
        many = self.random.choice((1, 2, 3, 8))
        wrong = self.random.randrange(20)
        made = [
            self._message(
                group=self.shared.groups, scheduled=self.random.random() < 0.1, wrong=wrong == index
            )
            for index in range(many)
        ]
        self.checker.sending([sent for sent, _ in made])
        payload = encode_message(data=[payload for _, payload in made])
        uids = [sent.uid for sent, _ in made]
        if self.random.random() < 0.1:
            link.send(payload, None, message_format=BATCH_FORMAT)
        else:
            link.send(payload, lambda state: self._outcome(uids, state), message_format=BATCH_FORMAT)

    def _outcome(self, uids: list[int], state: DeliveryState | None) -> None:
        condition = error_condition(state)
        if condition is None and state != ACCEPTED:
            raise Violation(f"the outcome of a send is {state}")
        self.world.note(f"{self.name}: {uids} {condition or 'accepted'}")
        self.checker.send_answered(uids, condition or "accepted")

    def _schedule(self) -> None:
        assert self.peer is not None
        self.shared.groups += 1
        many = self.random.choice((1, 1, 3))
        made = [self._message(scheduled=True, group=self.shared.groups) for _ in range(many)]
        self.checker.sending([sent for sent, _ in made])
        uids = [sent.uid for sent, _ in made]
        messages = []
        for sent, payload in made:
            entry = {"message": payload}
            if sent.message_id is not None:
                entry["message-id"] = sent.message_id
            messages.append(entry)

        def answered(status: int, condition: str | None, body: Any) -> None:
            if status == 0:
                return
            self.world.note(f"{self.name}: scheduled {uids} {status} {condition} {body}")
            if status != 200:
                self.checker.send_answered(uids, str(condition))
                return
            numbers = list(body["sequence-numbers"])
            self.checker.scheduled(uids, numbers)
            self.shared.scheduled += [
                (self._queue, number, uid)
                for number, uid in zip(numbers, uids, strict=True)
                if self.checker.sent[uid].outcome == "accepted"
            ]

        self.peer.ask(self._queue, "com.microsoft:schedule-message", {"messages": messages}, answered)


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


SUCCESS = {
    "complete": type(ACCEPTED),
    "release": type(RELEASED),
    "dead-letter": Rejected,
    "abandon": Modified,
    "defer": Modified,
}

STATUS = {"complete": "completed", "abandon": "abandoned", "defer": "defered", "dead-letter": "suspended"}


def read_delivery(payload: bytes) -> tuple[int, int, int, int | None, int]:
    """Read (uid, sequence number, delivery count, locked until, state) as a client does."""
    sections = scan(payload)
    annotations = sections.decode_message_annotations()
    until = annotations.get("x-opt-locked-until")
    return (
        uid_of(payload),
        annotations["x-opt-sequence-number"],
        sections.decode_header().delivery_count,
        None if until is None else int(until),
        annotations.get("x-opt-message-state", 0),
    )


def renew(actor: Actor, address: str, lock: Lock) -> None:
    """Renew a lock through the management node."""
    assert actor.peer is not None
    asked_ms = actor.world.now_ms
    actor.checker.renewing(lock)

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return  # never known: the lock may be longer than told
        actor.world.note(f"{actor.name}: renewal of uid {lock.uid} {status} {condition} {body}")
        if actor.checker.may_be_disabled(condition):
            return
        if status not in (200, 410):
            raise Violation(f"a renewal was answered with {status} {condition}")
        actor.checker.renew_answered(lock, asked_ms, int(body["expirations"][0]) if status == 200 else None)

    body = {"lock-tokens": Array.of(type(lock_uuid(lock.token)), [lock_uuid(lock.token)])}
    actor.peer.ask(address, "com.microsoft:renew-lock", body, answered)


def update_disposition(actor: Actor, address: str, lock: Lock, kind: str) -> None:
    """Settle a lock, of whatever connection, through the management node."""
    assert actor.peer is not None
    asked_ms = actor.world.now_ms
    reason = f"reason-{lock.uid}"
    actor.checker.settling(lock, kind, reason)
    actor.world.note(f"{actor.name} settles uid {lock.uid} by management: {kind}")

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        actor.world.note(f"{actor.name}: uid {lock.uid} {kind} {status} {condition}")
        if status not in (200, 410) and not actor.checker.may_be_disabled(condition):
            raise Violation(f"update-disposition was answered with {status} {condition}")
        actor.checker.settle_answered(lock, kind, asked_ms, None if status == 200 else str(condition))

    body: dict[str, Any] = {
        "disposition-status": STATUS[kind],
        "lock-tokens": Array.of(type(lock_uuid(lock.token)), [lock_uuid(lock.token)]),
    }
    if kind == "dead-letter":
        body["deadletter-reason"] = reason
        body["deadletter-description"] = "as simulated"
    actor.peer.ask(address, "com.microsoft:update-disposition", body, answered)


def receive_deferred(
    actor: Actor, address: str, numbers: list[int], delete: bool, then: Callable[[Lock], None]
) -> None:
    """Receive deferred messages by number; `then` is called with each lock."""
    assert actor.peer is not None
    queue_id = actor.shared.queue_id(address)
    connection = actor.connection
    if delete:
        actor.checker.may_delete(queue_id, len(numbers))

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        actor.world.note(f"{actor.name}: deferred {numbers} {status} {condition}")
        if status not in (200, 204, 404) and not actor.checker.may_be_disabled(condition):
            raise Violation(f"receive-by-sequence-number was answered with {status} {condition}")
        if status == 200 and len(body["messages"]) != len(set(numbers)):
            raise Violation(f"{len(body['messages'])} messages for the numbers {numbers}")
        for entry in body["messages"] if status == 200 else ():
            uid, number, count, until_ms, state = read_delivery(entry["message"])
            if number not in numbers or state != 1:
                raise Violation(f"asked for deferred {numbers}, got {number} in state {state}")
            token = b"" if delete else entry["lock-token"].bytes_le
            lock = actor.checker.delivered(uid, queue_id, number, count, token, until_ms, connection)
            if lock is not None:
                then(lock)

    body = {"sequence-numbers": Array.of(Long, numbers), "receiver-settle-mode": Int(0 if delete else 1)}
    actor.peer.ask(address, "com.microsoft:receive-by-sequence-number", body, answered)


def peek(
    actor: Actor,
    address: str,
    from_number: int,
    count: int,
    then: Callable[[list[tuple[int, int, int]]], None],
) -> None:
    """Browse; `then` is called with (sequence number, uid, state) of each message found."""
    assert actor.peer is not None
    queue_id = actor.shared.queue_id(address)

    def answered(status: int, condition: str | None, body: Any) -> None:
        if status == 0:
            return
        if status not in (200, 204) and not actor.checker.may_be_disabled(condition):
            raise Violation(f"peek was answered with {status} {condition}")
        found = []
        for entry in body["messages"] if status == 200 else ():
            uid, number, _, _, state = read_delivery(entry["message"])
            found.append((number, uid, state))
        actor.world.note(f"{actor.name}: peek {address} from {from_number}: {found}")
        actor.checker.peeked(queue_id, from_number, found)
        then(found)

    body = {"from-sequence-number": Long(from_number), "message-count": Int(count)}
    actor.peer.ask(address, "com.microsoft:peek-message", body, answered)


class Manager(Actor):
    """Works through the management nodes: peeks, cancels, fetches deferred messages, settles for others,
    deletes."""

    def __init__(self, shared: Shared, name: str, queues: list[str], *, cbs: bool = False) -> None:
        super().__init__(shared, name, cbs=cbs)
        self._queues = queues

    def ready(self) -> None:
        self.later(self.random.randint(0, 500), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        self.later(self.random.randint(20, 1_500), self._act)
        random, shared = self.random, self.shared
        roll = random.random()
        address = random.choice(self._queues) + random.choice(("", "", "/$DeadLetterQueue"))
        if roll < 0.2:
            peek(self, address, random.choice((0, 1, 7)), random.choice((1, 5, 50)), lambda found: None)
        elif roll < 0.4 and shared.scheduled:
            self._cancel(*random.choice(shared.scheduled[-8:]))
        elif roll < 0.65 and shared.deferred:
            self._fetch()
        elif roll < 0.8 and shared.locks:
            update_disposition(
                self, *random.choice(shared.locks[-12:]), random.choice(("complete", "abandon"))
            )
        elif roll < 0.9 and shared.locks:
            renew(self, *random.choice(shared.locks[-12:]))
        elif roll < 0.92:
            self._delete(address)
        elif roll < 0.94:
            self.leave()

    def _cancel(self, queue: str, number: int, uid: int) -> None:
        assert self.peer is not None
        self.checker.cancelling(uid)

        def answered(status: int, condition: str | None, body: Any) -> None:
            if status == 0:
                return
            self.world.note(f"{self.name}: cancel of uid {uid} {status} {condition}")
            if status not in (200, 404) and not self.checker.may_be_disabled(condition):
                raise Violation(f"cancel was answered with {status} {condition}")
            if status == 200:
                self.checker.cancelled(uid)

        body = {"sequence-numbers": Array.of(Long, [number])}
        self.peer.ask(queue, "com.microsoft:cancel-scheduled-message", body, answered)

    def _fetch(self) -> None:
        address = self.random.choice(self.shared.deferred[-20:])[0]
        known = [number for where, number, _ in self.shared.deferred if where == address]
        numbers = self.random.sample(known, min(len(known), self.random.choice((1, 1, 2))))
        numbers = list(dict.fromkeys(numbers))
        delete = self.random.random() < 0.15
        receive_deferred(self, address, numbers, delete, lambda lock: self._got(address, lock))

    def _got(self, address: str, lock: Lock) -> None:
        self.shared.locks.append((address, lock))
        kind = self.random.choice(("complete", "complete", "abandon", "dead-letter", "defer", "lapse"))
        if kind != "lapse" and not ("/" in address and kind == "dead-letter"):
            self.later(self.random.choice((0, 10, 1_000)), update_disposition, self, address, lock, kind)

    def _delete(self, address: str) -> None:
        assert self.peer is not None
        count = self.random.choice((1, 3))
        self.checker.may_delete(self.shared.queue_id(address), count)

        def answered(status: int, condition: str | None, body: Any) -> None:
            if status not in (0, 200, 204) and not self.checker.may_be_disabled(condition):
                raise Violation(f"batch deletion was answered with {status} {condition}")
            if status == 200 and not 0 <= body["message-count"] <= count:
                raise Violation(f"batch deletion of {count} answered {body}")

        body = {"message-count": Int(count), "enqueued-time-utc": Timestamp(self.shared.node.now_ms)}
        self.peer.ask(address, "com.microsoft:batch-delete-messages", body, answered)


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
