"""Threads with the blocking client, each with a queue of its own and a ledger.

Owns: what each kind of use does, and what must hold for it. Must not know: when the broker dies.

Every queue drops duplicates, since the blocking client sends again what a break has left without an answer.
"""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from peeklock.amqp.types import Array, Int, Long, Symbol, Timestamp
from peeklock.client import (
    ABANDON,
    COMPLETE,
    DEFER,
    BlockingConnection,
    ConnectionString,
    Delivery,
    Properties,
    ReceiveMode,
    ServiceBusError,
    encode_message,
    scan,
)
from tests.kill.clients import now_ms
from tests.kill.ledger import Broken, Ledger

RECEIVE_BY_NUMBER = "com.microsoft:receive-by-sequence-number"
PASSING = re.compile(
    "connection-lost|lock-lost|timeout|server-busy|cannot-be-locked|message-not-found|internal-error|unauthorized"
    "|detach-forced|connection:forced|operation-cancelled"
)
"""Conditions after which a step is tried again."""

DRAIN_ROUNDS_MAX = 400
"""A fifth of a second each."""


def uid_of(payload: bytes) -> int:
    """Return the uid of a message, from its message id."""
    return int(scan(payload).decode_properties().message_id)


def number_of(payload: bytes) -> int:
    """Return the sequence number of a message."""
    return int(scan(payload).decode_message_annotations()["x-opt-sequence-number"])


class Feature(threading.Thread):
    """One kind of use: steps until it is stopped; then what is left is drained and judged."""

    pause_s = 0.25

    def __init__(self, queue: str, settings: Callable[[], ConnectionString], seed: int) -> None:
        super().__init__(name=queue, daemon=True)
        self.queue = queue
        self.random = Random(seed)
        self.ledger = Ledger()
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self.breaks = 0
        self._settings = settings
        self.connection = BlockingConnection(settings())

    def run(self) -> None:
        """Work until stopped."""
        try:
            while not self.stopping.wait(self.pause_s):
                self._try(self.step)
        except BaseException as failure:
            self.failure = failure

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except ServiceBusError as error:
            if not PASSING.search(error.condition):
                raise Broken(f"{self.queue}: {error.condition}: {error}") from error
            self.breaks += 1
            self.connection.close()
            self.connection = BlockingConnection(self._settings())
            self.reopened()

    def reopened(self) -> None:
        """The connection is another one."""

    @abstractmethod
    def step(self) -> None:
        """Send some, receive some."""

    # Sending

    def send(self, uids: list[int], **about: Any) -> None:
        """Send messages of these uids, and record the answers."""
        sender = self.connection.sender(self.queue)
        for uid in uids:
            sender.send(self.message(uid, **about))
        sender.flush()
        for uid in uids:
            self.ledger.answered(uid, None)
        sender.close()

    def message(self, uid: int, *, body: bytes = b"", session: str | None = None, **more: Any) -> bytes:
        """Encode a message."""
        properties = Properties(message_id=str(uid), group_id=session)
        return encode_message(properties=properties, data=body or b"uid=%08d;" % uid, **more)

    # Receiving

    def deliver(self, delivery: Delivery) -> int:
        """Record a delivery; return its uid."""
        uid = uid_of(delivery.payload)
        self.ledger.delivered(uid, number_of(delivery.payload))
        return uid

    def complete(self, receiver: Any, deliveries: Iterable[Delivery]) -> None:
        """Complete deliveries that were recorded."""
        uids = []
        for delivery in deliveries:
            uids.append(uid := uid_of(delivery.payload))
            self.ledger.completing(uid)
            receiver.settle(delivery, COMPLETE)
        receiver.flush()
        for uid in uids:
            self.ledger.completed(uid)

    def receive(self, count: int, timeout_s: float, path: str | None = None) -> int:
        """Receive and complete; return how many came."""
        receiver = self.connection.receiver(path or self.queue, ReceiveMode.PEEK_LOCK)
        deliveries = receiver.receive(count, timeout_s)
        for delivery in deliveries:
            self.deliver(delivery)
        self.complete(receiver, deliveries)
        receiver.close()
        return len(deliveries)

    # The end

    def drain(self) -> None:
        """Take all that is left. Raises: Broken."""
        for _ in range(DRAIN_ROUNDS_MAX):
            self._try(self.last_step)
            if self.is_drained():
                return
        left = [fate for fate in self.ledger.fates.values() if fate.accepted and not fate.completing]
        raise Broken(f"{self.queue}: not drained, {len(left)} are missing: {left[:3]}")

    def last_step(self) -> None:
        """Take some of what is left, waiting for a moment if there is nothing."""
        self.receive(50, 0.2)

    def is_drained(self) -> bool:
        """Return whether all that was accepted has been completed."""
        return self.ledger.is_drained()

    def judge(self) -> dict[str, int]:
        """Check the ledger. Raises: Broken."""
        return self.ledger.finish()

    def end(self) -> None:
        """Close the connection."""
        self.connection.close()


class Deferring(Feature):
    """Defers half of the messages, and receives these by their numbers; abandons some."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.deferred: dict[int, int] = {}
        """Uid of each number that may be deferred."""

    def step(self) -> None:
        self.send([self.ledger.sending() for _ in range(4)])
        self._defer()
        if len(self.deferred) > 20:
            self._fetch()

    def _defer(self) -> None:
        receiver = self.connection.receiver(self.queue, ReceiveMode.PEEK_LOCK)
        completed = []
        for delivery in receiver.receive(10, 0.1):
            uid = self.deliver(delivery)
            roll = self.random.random()
            if roll < 0.5:
                self.deferred[number_of(delivery.payload)] = uid
                receiver.settle(delivery, DEFER)
            elif roll < 0.6:
                receiver.settle(delivery, ABANDON)
            else:
                completed.append(delivery)
        self.complete(receiver, completed)
        receiver.close()

    def _fetch(self) -> None:
        """Receive and delete one at a time: a request with one unknown number fails as a whole."""
        for number in list(self.deferred)[:20]:
            uid = self.deferred[number]
            if not self.ledger.fates[uid].completed:
                self.ledger.completing(uid)
                body = {"sequence-numbers": Array.of(Long, [number]), "receiver-settle-mode": Int(0)}
                try:
                    found = self.connection.management(self.queue).request(RECEIVE_BY_NUMBER, body)
                except ServiceBusError as error:
                    if "message-not-found" not in error.condition:
                        raise
                    # It was not deferred, since the answer to that was lost; or it was taken, likewise.
                else:
                    assert [uid_of(one["message"]) for one in found.body["messages"]] == [uid]
                    self.ledger.completed(uid)
            del self.deferred[number]

    def last_step(self) -> None:
        self._fetch()
        self.receive(50, 0.2)

    def is_drained(self) -> bool:
        return not self.deferred and super().is_drained()


class Scheduling(Feature):
    """Schedules messages for soon, and others for tomorrow that it cancels."""

    def step(self) -> None:
        self._schedule([self.ledger.sending() for _ in range(3)], self.random.randint(200, 2000))
        gone = [self.ledger.sending() for _ in range(2)]
        numbers = self._schedule(gone, 86_400_000, keep=False)
        body = {"sequence-numbers": Array.of(Long, numbers)}
        self.connection.management(self.queue).request("com.microsoft:cancel-scheduled-message", body)
        for uid in gone:  # from now on a delivery breaks the ledger
            self.ledger.completing(uid)
            self.ledger.completed(uid)
        self.receive(20, 0.1)

    def _schedule(self, uids: list[int], after_ms: int, *, keep: bool = True) -> list[int]:
        """Schedule messages; return their numbers. Those that are not kept count as sent once cancelled."""
        due = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(now_ms() + after_ms)}
        messages = [
            {"message-id": str(uid), "message": self.message(uid, message_annotations=due)} for uid in uids
        ]
        answer = self.connection.management(self.queue).request(
            "com.microsoft:schedule-message", {"messages": messages}
        )
        if keep:
            for uid in uids:
                self.ledger.answered(uid, None)
        return [int(number) for number in answer.body["sequence-numbers"]]


class Expiring(Feature):
    """Lets messages expire, and finds them in the dead-letter queue."""

    def step(self) -> None:
        self.send([self.ledger.sending() for _ in range(4)])
        self.last_step()

    def last_step(self) -> None:
        dead = f"{self.queue}/$DeadLetterQueue"
        receiver = self.connection.receiver(dead, ReceiveMode.PEEK_LOCK)
        deliveries = receiver.receive(50, 0.1)
        for delivery in deliveries:
            self.deliver(delivery)
            reason = scan(delivery.payload).decode_application_properties()["DeadLetterReason"]
            if reason != "TTLExpiredException":
                raise Broken(f"{self.queue}: dead-lettered for {reason}")
        self.complete(receiver, deliveries)
        receiver.close()


class Taking(Feature):
    """Receives and deletes: at most once. Only what was on the way when a connection broke is lost."""

    def step(self) -> None:
        self.send([self.ledger.sending() for _ in range(8)])
        self.last_step()

    def last_step(self) -> None:
        receiver = self.connection.receiver(self.queue, ReceiveMode.RECEIVE_AND_DELETE)
        for delivery in receiver.receive(50, 0.1):
            uid = self.deliver(delivery)
            self.ledger.completing(uid)
            self.ledger.completed(uid)
        self.breaks += receiver._opening - 1  # it opens itself again after a break
        receiver.close()
        self._last = len(self.ledger.fates)

    def is_drained(self) -> bool:
        browsed = self.connection.management(self.queue).request(
            "com.microsoft:peek-message", {"from-sequence-number": Long(0), "message-count": Int(1)}
        )
        return browsed.status == 204

    def judge(self) -> dict[str, int]:
        """Check the ledger; the losses are at most those of one receive each break. Raises: Broken."""
        lost = [fate for fate in self.ledger.fates.values() if fate.accepted and not fate.seen]
        if len(lost) > 50 * self.breaks:
            raise Broken(f"{self.queue}: {len(lost)} were lost in {self.breaks} breaks: {lost[:3]}")
        for fate in lost:
            fate.completing = True
        return self.ledger.finish() | {"lost on the way": len(lost)}


class Large(Feature):
    """Messages of 200 KB, and batches."""

    pause_s = 2.0

    def step(self) -> None:
        uid = self.ledger.sending()
        sender = self.connection.sender(self.queue)
        sender.send(self.message(uid, body=self._body(uid)))
        group = self.ledger.sending()
        self.ledger.fates[group].group = group
        uids = [group, *(self.ledger.sending(group) for _ in range(4))]
        sender.send_batch([self.message(one, body=self._body(one, 20_000)) for one in uids])
        sender.flush()
        for one in (uid, *uids):
            self.ledger.answered(one, None)
        sender.close()
        self.receive(10, 0.2)

    def deliver(self, delivery: Delivery) -> int:
        uid = super().deliver(delivery)
        [(_, body)] = scan(delivery.payload).decode_body()
        if body not in (self._body(uid), self._body(uid, 20_000)):
            raise Broken(f"{self.queue}: the body of {uid} is another: {len(body)} bytes")
        return uid

    @staticmethod
    def _body(uid: int, size: int = 200_000) -> bytes:
        return (b"uid=%08d;" % uid) * (size // 13)


class Browsing(Feature):
    """Peeks at the busiest queue: numbers ascend."""

    pause_s = 1.0
    peeks = 0

    def step(self) -> None:
        self.peeks += 1
        found = self.connection.management("work").request(
            "com.microsoft:peek-message", {"from-sequence-number": Long(0), "message-count": Int(250)}
        )
        if found.status == 204:
            return
        numbers = [number_of(one["message"]) for one in found.body["messages"]]
        if numbers != sorted(set(numbers)):
            raise Broken(f"a peek shows the numbers {numbers}")

    def is_drained(self) -> bool:
        return True

    def last_step(self) -> None:
        """Nothing is left by it."""

    def judge(self) -> dict[str, int]:
        """Return the number of peeks."""
        return {"peeks": self.peeks}


class Turning(Feature):
    """Sends and receives with a key that is replaced."""

    def step(self) -> None:
        self.send([self.ledger.sending() for _ in range(2)])
        self.receive(20, 0.1)
