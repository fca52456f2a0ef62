"""What clients saw, compared with the durable facts and with what the requirements promise.

Owns: the promises. Sees only what clients did and saw (each method below is called by a client at that
moment), what the store holds (`facts`), and what the world did (crashes, clocks, updates). Must not know: any
structure of the broker.

All times are in world ms unless a name says `broker`; the broker's clock is the world's plus `offset_ms`,
which changes at a restart only. Where a client cannot know what happened (an answer lost on the wire), both
outcomes are allowed; the checks are exact where it can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from peeklock.broker.descriptions import UNLIMITED_MS
from peeklock.broker.message import NEVER_MS, MessageState
from tests.simulation.facts import Commit, Facts, Record, Snapshot, Violation

WIRE_MS_MAX = 5_000
"""The longest that anything is under way on the simulated network, either direction."""

COMMIT_MS_MAX = 3_000
"""The longest from an offered command to its durable batch: a slow commit in flight, then a slow one of its
own."""

FOREVER = 1 << 62

DISABLED = "com.microsoft:entity-disabled"
LIMITED = ("amqp:resource-limit-exceeded", "com.microsoft:server-busy")
"""How sends are refused while space is low or the broker lags (R-06)."""


@dataclass(slots=True)
class Sent:
    """One message that a client sent, scheduled or not."""

    uid: int
    queue: str
    message_id: str | None
    ttl_ms: int | None
    scheduled_broker_ms: int | None
    group: int
    """Members of a batch share it; 0 = sent alone."""
    sent_ms: int
    wrong: bool = False
    """It breaks a rule: it must be refused, with all its batch."""
    outcome: str | None = None
    """None = never told; else `accepted`, `dropped` (accepted as a duplicate), or the condition of the
    rejection."""
    reasons: set[str] = field(default_factory=set)
    """What clients have asked for that would remove it: complete, cancel, or `dead-letter <reason>`."""


@dataclass(slots=True)
class Lock:
    """One peek-lock as its receiver knows it."""

    token: bytes
    uid: int
    queue_id: int
    connection: int
    count: int
    taken_ms: int
    until_ms: int
    """The latest end that the client was told."""
    ends: list[tuple[int, str]] = field(default_factory=list)
    """When and by what it may have ended before: `settle complete`, `crash`, `cut`, `update`..."""
    renewals_open: int = 0
    """Renewals asked for and not answered: `until_ms` may be later than known."""
    renewed: bool = False
    settled: str | None = None
    """The settlement that was answered with success."""
    settled_ms: int = 0

    def may_end_ms(self) -> int:
        """The earliest instant at which it can have ended."""
        return min([self.until_ms, *(at for at, _ in self.ends)])

    def surely_live(self, now_ms: int, but: int = 0) -> bool:
        """Nothing but the last `but` events in `ends` can have ended it by `now_ms`."""
        return len(self.ends) <= but and now_ms < self.until_ms and self.settled is None


class Checker:
    """Raises `Violation` at the moment a promise is broken, as far as one moment can tell; `finish` does the
    rest."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.facts = Facts(self._explain)
        self.offset_ms = 0
        self.sent: dict[int, Sent] = {}
        self.groups: dict[int, list[int]] = {}
        self.locks: dict[bytes, Lock] = {}
        self.locks_of: dict[int, list[Lock]] = {}
        self.queue_ids: dict[str, int] = {}
        self.crashes: list[int] = []
        self.jumps: list[int] = []
        self.was_disabled = False
        """An entity's status was not active at some time: links may be refused or detached for it."""
        self._connections: dict[int, tuple[int, int]] = {}
        """When each was made, and the broker's clock then relative to the world's."""
        self._lost: dict[int, tuple[int, str]] = {}
        self.updates: dict[int, list[int]] = {}
        self.losses: list[int] = []
        """When deliveries may have been lost between broker and client."""
        self.delete_budget: dict[int, int] = {}
        """By queue id: how many messages receive-and-delete and batch deletion may have taken away unseen."""
        self.taken: dict[int, int] = {}
        """uid -> when it was received by receive-and-delete."""
        self.counts = {"sent": 0, "accepted": 0, "rejected": 0, "delivered": 0, "settled": 0, "lock lost": 0}

    # The world

    def committed(self, batch: Snapshot, landed_ms: int) -> None:
        """A batch has become durable."""
        commit = Commit(batch.no, batch.opened_ms, batch.taken_ms, landed_ms, self.offset_ms)
        born = self.facts.apply(batch, commit)
        for entity in self.facts.entities.values():
            self.queue_ids[entity.description.name] = entity.entity_id * 4
        by_group: dict[int, int] = {}
        for record in born:
            self._check_birth(record, commit)
            sent = self.sent[record.uid]
            if sent.group and len(self.facts.life(record.uid).records) == 1:
                by_group[sent.group] = by_group.get(sent.group, 0) + 1
        for group in by_group:
            for uid in self.groups[group]:
                if not self.facts.life(uid).records and not self._is_duplicate(
                    self.sent[uid], commit.landed_ms
                ):
                    raise Violation(
                        f"a batched send was stored without its member uid {uid}: {self.groups[group]}"
                    )

    def crashed(self) -> None:
        """The broker's process died."""
        now = self._now_ms()
        self.crashes.append(now)
        self.losses.append(now)
        for lock in self.locks.values():
            lock.ends.append((now, "crash"))

    def updated(self, queue: str) -> None:
        """An entity's properties are being changed: its locks drop."""
        now = self._now_ms()
        queue_id = self.queue_ids[queue]
        self.updates.setdefault(queue_id // 4, []).append(now)
        for lock in self.locks.values():
            if lock.queue_id // 4 == queue_id // 4:
                lock.ends.append((now, "update"))

    def jumped(self) -> None:
        """The world's clock jumps: connections may time out, locks lapse at once."""
        self.jumps.append(self._now_ms())

    def may_be_disabled(self, condition: str | None) -> bool:
        """Tell whether a refusal is due to an entity's status."""
        return condition == DISABLED and self.was_disabled

    def connected(self, connection: int) -> None:
        """A connection was made."""
        self._connections[connection] = self._now_ms(), self.offset_ms

    def excused(self, connection: int) -> bool:
        """Tell whether something has happened since that may end a connection or its links from the broker's
        side."""
        since = self._connections[connection][0]
        return connection in self._lost or any(at >= since for at in (*self.jumps[-1:], *self.crashes[-1:]))

    def connection_lost(self, connection: int, how: str) -> None:
        """A connection is over: `cut` (its locks drop), `drop` (they drop, now or later), `close` (they
        stay)."""
        now = self._now_ms()
        self.losses.append(now)
        if how != "close" and connection not in self._lost:
            self._lost[connection] = now, how
            for lock in self.locks.values():
                if lock.connection == connection:
                    lock.ends.append((now, how))

    def link_lost(self) -> None:
        """A receiver link was detached: deliveries under way on it are lost, their locks lapse."""
        self.losses.append(self._now_ms())

    # Sending

    def sending(self, messages: list[Sent]) -> None:
        """A client is about to send; several messages make one batch."""
        for message in messages:
            self.sent[message.uid] = message
            self.groups.setdefault(message.group, []).append(message.uid)
        self.counts["sent"] += len(messages)

    def send_answered(self, uids: list[int], outcome: str) -> None:
        """The outcome has arrived: `accepted` or the condition of the rejection."""
        accepted = outcome == "accepted"
        if any(self.sent[uid].wrong for uid in uids) if accepted else not self._may_refuse(uids, outcome):
            raise Violation(f"a send was answered with {outcome}: {[self.sent[uid] for uid in uids]}")
        self.counts["accepted" if accepted else "rejected"] += len(uids)
        for uid in uids:
            sent = self.sent[uid]
            if sent.outcome is not None:
                raise Violation(f"uid {uid} was answered twice: {sent.outcome}, then {outcome}")
            stored = bool(self.facts.life(uid).records)
            if not accepted and stored:
                raise Violation(f"uid {uid} was refused with {outcome}, yet stored: {self.story(uid)}")
            if accepted and not stored:
                if not self._is_duplicate(sent, self._now_ms()):
                    raise Violation(f"uid {uid} was accepted, yet is not on stable storage")
                outcome = "dropped"
            sent.outcome = outcome

    def _may_refuse(self, uids: list[int], condition: str) -> bool:
        if condition == "com.microsoft:argument-error":
            return any(self.sent[uid].wrong for uid in uids)
        return condition in LIMITED or (condition == DISABLED and self.was_disabled)

    def scheduled(self, uids: list[int], numbers: list[int]) -> None:
        """The schedule operation answered with sequence numbers."""
        self.send_answered(uids, "accepted")
        for uid, number in zip(uids, numbers, strict=True):
            if self.sent[uid].outcome == "dropped":
                continue
            first = self.facts.life(uid).records[0][0]
            if first.sequence_number != number:
                raise Violation(
                    f"uid {uid} was scheduled as {first.sequence_number}, but the answer said {number}"
                )

    # Receiving

    def delivered(
        self, uid: int, queue_id: int, sequence_number: int, count: int, token: bytes,
        until_broker_ms: int | None,
        connection: int,
    ) -> Lock | None:  # fmt: skip
        """A message has arrived at a receiver; without `until_broker_ms` it was receive-and-delete."""
        self.counts["delivered"] += 1
        now = self._now_ms()
        life = self.facts.life(uid)
        known = [record for record, _ in life.records if record.queue_id == queue_id]
        if not any(record.sequence_number == sequence_number for record in known):
            raise Violation(
                f"uid {uid} was delivered from {queue_id} as {sequence_number}, not on stable storage there"
            )
        if count > max(record.delivery_count for record in known):
            raise Violation(
                f"uid {uid} was delivered with count {count}, not on stable storage: {self.story(uid)}"
            )
        if queue_id % 4 == 0 and count >= max(d.max_delivery_count for d in self.facts.history(queue_id)):
            raise Violation(f"uid {uid} was delivered {count + 1} times, past MaxDeliveryCount")
        if until_broker_ms is None:
            if uid in self.taken:
                raise Violation(f"uid {uid} was received and deleted twice")
            self.taken[uid] = now
            if life.removed is None:
                raise Violation(
                    f"uid {uid} was given to receive-and-delete, yet its removal is not on stable storage"
                )
            return None
        duration_ms = self.facts.description(queue_id).lock_duration_ms
        offset_ms = self._connections[connection][1]
        until_ms = until_broker_ms - offset_ms
        lock = Lock(token, uid, queue_id, connection, count, until_ms - duration_ms, until_ms)
        lock.ends += [(at, "crash") for at in self.crashes if at >= lock.taken_ms]
        lock.ends += [(at, "update") for at in self.updates.get(queue_id // 4, ()) if at >= lock.taken_ms]
        lock.ends += [self._lost[connection]] if connection in self._lost else []
        self._check_lock(lock, life.removed, known[-1], lock.taken_ms + offset_ms)
        self.locks[token] = lock
        self.locks_of.setdefault(uid, []).append(lock)
        return lock

    def _check_lock(self, lock: Lock, removed: Commit | None, record: Record, taken_broker_ms: int) -> None:
        uid = lock.uid
        if lock.taken_ms > self._now_ms():
            raise Violation(f"uid {uid} is locked from a time to come: {lock}")
        if lock.token in self.locks:
            raise Violation(
                f"lock token {lock.token.hex()} was given twice: {lock}, {self.locks[lock.token]}"
            )
        if removed is not None and lock.taken_ms > removed.landed_ms:
            raise Violation(f"uid {uid} was locked after it was gone: {lock}; {self.story(uid)}")
        for other in self.locks_of.get(uid, ()):
            first, second = (other, lock) if other.taken_ms <= lock.taken_ms else (lock, other)
            either = second.taken_ms == first.taken_ms and second.may_end_ms() <= first.taken_ms
            if second.taken_ms < first.may_end_ms() and not either:
                raise Violation(f"uid {uid} has two live locks: {first} and {second}")
            if other.settled in ("complete", "dead-letter") and other.queue_id == lock.queue_id:
                raise Violation(f"uid {uid} came back after {other.settled} was acknowledged: {lock}")
        if lock.queue_id % 4 == 0:
            expires = self.expires_broker_ms(record, max)
            if record.state is MessageState.ACTIVE and taken_broker_ms > expires:
                raise Violation(
                    f"uid {uid} was delivered after its time-to-live: {lock}, expired at {expires}"
                )

    # Settling

    def settling(self, lock: Lock, kind: str, reason: str | None = None) -> None:
        """A client sends a settlement: complete, abandon, defer, dead-letter, release."""
        lock.ends.append((self._now_ms(), f"settle {kind}"))
        if kind == "complete":
            self.sent[lock.uid].reasons.add("complete")
        elif kind == "dead-letter":
            self.sent[lock.uid].reasons.add(f"dead-letter {reason}")

    def settle_answered(self, lock: Lock, kind: str, asked_ms: int, condition: str | None) -> None:
        """The answer to a settlement has arrived; `condition` None = performed."""
        now = self._now_ms()
        if condition is not None:
            self.counts["lock lost"] += condition.endswith("lock-lost")
            if condition != "com.microsoft:message-lock-lost" and not self.may_be_disabled(condition):
                raise Violation(f"{kind} was refused with {condition}: {lock}")
            if condition.endswith("lock-lost") and lock.surely_live(now, but=1):
                raise Violation(f"{kind} was refused with {condition}, yet the lock is live: {lock}")
            return
        self.counts["settled"] += 1
        self._check_held(lock, kind, asked_ms)
        lock.settled, lock.settled_ms = kind, now
        life = self.facts.life(lock.uid)
        here = [record for record, _ in life.records if record.queue_id == lock.queue_id]
        dead = [record for record, _ in life.records if record.in_dead_letter_queue]
        if kind == "complete" and life.removed is None:
            raise Violation(
                f"complete was acknowledged, yet is not on stable storage: {self.story(lock.uid)}"
            )
        if (
            kind == "abandon"
            and not any(r.delivery_count > lock.count for r in here)
            and not dead
            and not life.removed
        ):
            raise Violation(f"abandon was acknowledged, yet is not on stable storage: {self.story(lock.uid)}")
        if kind == "defer" and here[-1].state is not MessageState.DEFERRED:
            raise Violation(f"defer was acknowledged, yet is not on stable storage: {self.story(lock.uid)}")
        if kind == "dead-letter" and not dead:
            raise Violation(
                f"dead-letter was acknowledged, yet is not on stable storage: {self.story(lock.uid)}"
            )

    def _check_held(self, lock: Lock, kind: str, asked_ms: int) -> None:
        """Check that a lock whose settlement or renewal succeeded can have been held when it was asked
        for."""
        if lock.settled is not None and (kind != "renewal" or lock.settled_ms < asked_ms):
            raise Violation(f"{kind} succeeded on a lock settled before: {lock}")
        if asked_ms >= lock.until_ms and not lock.renewals_open:
            raise Violation(f"{kind} at {asked_ms} succeeded on a lapsed lock: {lock}")
        for at, what in lock.ends:
            if what in ("crash", "update") and lock.taken_ms < at < asked_ms:
                raise Violation(f"{kind} at {asked_ms} succeeded on a lock from before: {lock}")
            if what == "cut" and at + WIRE_MS_MAX + COMMIT_MS_MAX < asked_ms:
                raise Violation(f"{kind} at {asked_ms} succeeded on a lock of a broken connection: {lock}")

    def renewing(self, lock: Lock) -> None:
        """A client asks to renew a lock."""
        lock.renewals_open += 1

    def renew_answered(self, lock: Lock, asked_ms: int, until_broker_ms: int | None) -> None:
        """The answer to a renewal; None = lock lost."""
        if until_broker_ms is None:
            if lock.surely_live(self._now_ms()):
                raise Violation(f"renewal was refused, yet the lock is live: {lock}")
        else:
            self._check_held(lock, "renewal", asked_ms)
            renewed_ms = until_broker_ms - self.offset_ms - (lock.until_ms - lock.taken_ms)
            if not lock.renewed and not asked_ms <= renewed_ms <= self._now_ms():
                raise Violation(f"a renewal between {asked_ms} and now gave {until_broker_ms}: {lock}")
            lock.renewed = True
            lock.until_ms = max(lock.until_ms, until_broker_ms - self.offset_ms)
        lock.renewals_open -= 1

    def cancelling(self, uid: int) -> None:
        """A client asks to cancel a scheduled message."""
        self.sent[uid].reasons.add("cancel")

    def cancelled(self, uid: int) -> None:
        """The cancellation was acknowledged."""
        if self.facts.life(uid).removed is None:
            raise Violation(f"cancel was acknowledged, yet is not on stable storage: {self.story(uid)}")

    def may_delete(self, queue_id: int, count: int) -> None:
        """A client lets the broker remove messages by itself: receive-and-delete credit, batch deletion."""
        self.delete_budget[queue_id] = self.delete_budget.get(queue_id, 0) + count

    def peeked(self, queue_id: int, from_number: int, found: list[tuple[int, int, int]]) -> None:
        """A peek answered with (sequence number, uid, state)."""
        last = from_number - 1
        for number, uid, state in found:
            if number <= last:
                raise Violation(f"peek of {queue_id} from {from_number} is out of order: {found}")
            last = number
            known = [record for record, _ in self.facts.life(uid).records if record.queue_id == queue_id]
            if not any(record.sequence_number == number and record.state == state for record in known):
                raise Violation(
                    f"peek shows uid {uid} as {number} in state {state}, never on stable storage so"
                )

    # Reasons

    def _check_birth(self, record: Record, commit: Commit) -> None:
        sent = self.sent.get(record.uid)
        if sent is None:
            raise Violation(f"a message nobody sent: {record}")
        if sent.outcome is not None and sent.outcome != "accepted" and sent.outcome != "dropped":
            raise Violation(f"uid {sent.uid} was refused with {sent.outcome}, and stored later")
        if record.in_dead_letter_queue:
            self._check_reason(record, commit)
            return
        description = self.facts.description(record.queue_id)
        if sent.scheduled_broker_ms is not None and record.state is MessageState.ACTIVE:
            if commit.taken_broker_ms < sent.scheduled_broker_ms:
                raise Violation(f"activated before its time {sent.scheduled_broker_ms}: {record}")
            if record.enqueued_at_ms < sent.scheduled_broker_ms:
                raise Violation(
                    f"enqueued at {record.enqueued_at_ms}, before its time {sent.scheduled_broker_ms}"
                )
        if record.state is MessageState.ACTIVE and sent.ttl_ms is not None:
            limits = {min(sent.ttl_ms, d.default_ttl_ms) for d in self.facts.history(record.queue_id)}
            if record.expires_at_ms - record.enqueued_at_ms not in limits:
                raise Violation(
                    f"expires {record.expires_at_ms - record.enqueued_at_ms} ms after, not {limits}: {record}"
                )
        if description.requires_duplicate_detection and sent.message_id is not None:
            self._check_duplicates(sent, record, commit)

    def _check_duplicates(self, sent: Sent, record: Record, commit: Commit) -> None:
        if len(self.facts.life(sent.uid).records) > 1:
            return  # an activation, not an arrival
        window_ms = self.facts.description(record.queue_id).duplicate_window_ms
        for other, first in self._same_id(sent):
            # The first one counts from some instant in its batch on, this one was let in at some in its own.
            lag_ms = commit.taken_broker_ms - first.opened_broker_ms
            if 0 <= lag_ms < window_ms and other != sent.uid:
                raise Violation(
                    f"uid {sent.uid} is a duplicate of uid {other}, {lag_ms} ms older, and was stored"
                )

    def _same_id(self, sent: Sent) -> list[tuple[int, Commit]]:
        return [
            (other.uid, self.facts.life(other.uid).records[0][1])
            for other in self.sent.values()
            if other.message_id == sent.message_id and other.queue == sent.queue and other.uid != sent.uid
            and self.facts.life(other.uid).records
        ]  # fmt: skip

    def _is_duplicate(self, sent: Sent, now_ms: int) -> bool:
        """Tell whether a message that is not stored may have been dropped as a duplicate."""
        description = self.facts.description(self.queue_ids[sent.queue])
        if not description.requires_duplicate_detection or sent.message_id is None:
            return False
        window_ms = description.duplicate_window_ms
        at_broker_ms = sent.sent_ms + self.offset_ms
        return any(at_broker_ms <= first.taken_broker_ms + window_ms for _, first in self._same_id(sent))

    def _check_reason(self, record: Record, commit: Commit) -> None:
        reason = record.dead_letter_reason()
        sent = self.sent[record.uid]
        main = [r for r, _ in self.facts.life(record.uid).records if not r.in_dead_letter_queue]
        if not main:
            raise Violation(f"in a dead-letter queue without ever having been in the main queue: {record}")
        if record.sequence_number != main[-1].sequence_number:
            raise Violation(
                f"the sequence number changed on the way to the dead-letter queue: {main[-1]} -> {record}"
            )
        if f"dead-letter {reason}" in sent.reasons:
            return
        history = self.facts.history(record.queue_id)
        if reason == "TTLExpiredException":
            self._check_unlocked(main[-1], commit)
        if reason == "MaxDeliveryCountExceeded":
            if record.delivery_count < min(d.max_delivery_count for d in history):
                raise Violation(f"dead-lettered for MaxDeliveryCount too early: {record}")
            if (
                main[-1].state is MessageState.ACTIVE
                and self.expires_broker_ms(main[-1], max) < commit.opened_broker_ms
            ):
                raise Violation(f"expired, yet dead-lettered for MaxDeliveryCount: {record}")
        elif reason == "TTLExpiredException":
            if not any(d.dead_lettering_on_expiration for d in history):
                raise Violation(f"dead-lettered on expiration where that is off: {record}")
            if self.expires_broker_ms(main[-1], min) > commit.taken_broker_ms:
                raise Violation(f"dead-lettered for expiration before it: {record}")
        else:
            raise Violation(f"dead-lettered for a reason nobody gave: {reason}, {record}")

    def _explain(self, record: Record, elsewhere: list[Record], commit: Commit) -> str | None:
        """Why may this message be gone from its queue?"""
        sent = self.sent[record.uid]
        if not record.in_dead_letter_queue:
            if any(other.in_dead_letter_queue for other in elsewhere):
                return "dead-lettered"  # for which reason is checked at its arrival there
            if record.state is MessageState.SCHEDULED:
                if any(other.position > record.position for other in elsewhere):
                    return "activated"
                return "cancelled" if "cancel" in sent.reasons else None
        if "complete" in sent.reasons:
            return "completed"
        self._check_unlocked(record, commit)
        if record.state is MessageState.ACTIVE and not record.in_dead_letter_queue:
            if self.expires_broker_ms(record, min) <= commit.taken_broker_ms:
                return "expired"
        budget = self.delete_budget.get(record.queue_id, 0)
        if budget > 0:
            self.delete_budget[record.queue_id] = budget - 1
            return "received and deleted"
        return None

    def _check_unlocked(self, record: Record, commit: Commit) -> None:
        """Check that a message which nobody settled was not taken away under a live lock (E-03, A-06)."""
        for lock in self.locks_of.get(record.uid, ()):
            if lock.queue_id != record.queue_id or lock.ends or lock.settled is not None:
                continue
            if lock.taken_ms < commit.opened_ms and commit.taken_ms < lock.until_ms:
                raise Violation(f"a message is gone while it was locked: {record}, {lock}")

    def expires_broker_ms(self, record: Record, choose: Callable[[list[int]], int]) -> int:
        """When a message expires: the earliest (`min`) or latest (`max`) instant that the entity's settings
        allow."""
        if record.expires_at_ms != NEVER_MS:
            return record.expires_at_ms
        ttl_ms = choose([d.default_ttl_ms for d in self.facts.history(record.queue_id)])
        return FOREVER if ttl_ms >= UNLIMITED_MS else record.enqueued_at_ms + ttl_ms

    # The end

    def finish(self) -> None:
        """Check what only the whole story can tell. Raises: Violation."""
        for uid, sent in self.sent.items():
            life = self.facts.life(uid)
            if sent.outcome == "accepted" and not life.records:
                raise Violation(f"uid {uid} was accepted and is nowhere")
            if uid in self.facts.where and life.removed is not None:
                raise Violation(f"uid {uid} is there and gone: {self.story(uid)}")
        for uid, locks in self.locks_of.items():
            for queue_id in {lock.queue_id for lock in locks}:
                of_queue = sorted(
                    (k for k in locks if k.queue_id == queue_id), key=lambda k: (k.taken_ms, k.count)
                )
                for first, second in pairwise(of_queue):
                    self._check_count(uid, first, second)

    def _check_count(self, uid: int, first: Lock, second: Lock) -> None:
        """Check the delivery count from one delivery to the next that was seen (L-08)."""
        between = second.count - first.count
        kinds = {what for _, what in first.ends if what.startswith("settle")}
        crashed = any(first.taken_ms <= at <= second.taken_ms for at in self.crashes)
        updated = any(
            first.taken_ms <= at <= second.taken_ms for at in self.updates.get(first.queue_id // 4, ())
        )
        lost = any(first.taken_ms <= at <= second.taken_ms + WIRE_MS_MAX for at in self.losses)
        kept = kinds & {"settle release", "settle defer"}
        if between < 0:
            raise Violation(f"uid {uid}: the delivery count went down: {first} -> {second}")
        if between == 0 and not crashed and not updated and not kept:
            raise Violation(f"uid {uid}: the delivery count did not go up: {first} -> {second}")
        if between > 1 and not lost and not crashed:
            raise Violation(
                f"uid {uid}: the delivery count went up by {between} at once: {first} -> {second}"
            )
        released_in_time = any(
            what == "settle release" and at + WIRE_MS_MAX + COMMIT_MS_MAX < first.until_ms
            for at, what in first.ends
        )
        if (
            between > 0
            and released_in_time
            and len(first.ends) == 1
            and not lost
            and not crashed
            and not updated
        ):
            raise Violation(f"uid {uid}: released, yet the delivery count went up: {first} -> {second}")

    def story(self, uid: int) -> str:
        """Tell what was ever durable about a uid, and its locks."""
        life = self.facts.life(uid)
        lines = [f"{self.sent.get(uid)}"]
        lines += [
            f"  batch {commit.no} landed {commit.landed_ms}: {record}" for record, commit in life.records
        ]
        lines += (
            [f"  gone with batch {life.removed.no} landed {life.removed.landed_ms}"] if life.removed else []
        )
        lines += [f"  {lock}" for lock in self.locks_of.get(uid, ())]
        return "\n".join(lines)
