"""What is done through the management nodes, and somebody who does it all the time.

Owns: the requests and what their answers may be. Must not know: the broker's insides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Array, Int, Long, Timestamp
from tests.simulation.actors import Actor, Shared
from tests.simulation.checker import Lock
from tests.simulation.facts import Violation, uid_of
from tests.simulation.peer import lock_uuid

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
