"""What clients saw, compared with the durable facts and with the promises of the requirements.

Owns: the promises about sending, receiving and settling; `reasons` has those about places, `holds` sessions,
`states` their states, `units` transactions. It sees only what clients did and saw (a client calls each method
below at that moment), what the store holds (`facts`), and what the world did (crashes, clocks, updates). Must
not know: any structure of the broker.

Where a client cannot know what happened (an answer was lost on the wire), both outcomes are allowed; where it
can, the checks are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY
from peeklock.broker.vocabulary.message import MessageState
from tests.simulation.oracle.facts import Facts
from tests.simulation.oracle.graces import Graces
from tests.simulation.oracle.history import (
    COMMIT_MS_MAX,
    DISABLED,
    GONE,
    HALF_OPEN_MS_MAX,
    LIMITED,
    WIRE_MS_MAX,
    History,
    Hold,
    Lock,
    Purge,
    Renewal,
    Seen,
    Sent,
    Unit,
)
from tests.simulation.oracle.holds import Holds
from tests.simulation.oracle.http_deletes import Deletions
from tests.simulation.oracle.reasons import Reasons
from tests.simulation.oracle.records import MAIN, PARTITION_SHIFT, Commit, Record, Snapshot, Violation
from tests.simulation.oracle.rulebook import Rulebook, ruled
from tests.simulation.oracle.rulings import Rulings
from tests.simulation.oracle.spellings import session_of
from tests.simulation.oracle.states import States
from tests.simulation.oracle.units import Units
from tests.simulation.world.clocks import FOREVER

END_OF_TIME_MS = 253_402_300_799_999
"""The end of a session delivery's lock, as it is shown (C28): the end of the year 9999."""

LOCK_LOST = ("com.microsoft:message-lock-lost", "com.microsoft:session-lock-lost")


class Checker:
    """Raises `Violation` at the moment a promise is broken, as far as one moment shows it; `finish` checks
    the rest."""

    def __init__(self, now_ms: Callable[[], int], first_uid: int = 0) -> None:
        """Begin to check.

        Args:
            now_ms: time as it passes at the broker.
            first_uid: which namespace it is; see `UIDS_OF_A_NAMESPACE`.
        """
        self._now_ms = now_ms
        self.history = history = History(now_ms, first_uid)
        self.states = States(history)
        self.reasons = Reasons(history, self.states)
        self.facts = history.facts = Facts(self.reasons, first_uid)
        self.units = Units(history, self.reasons.is_dropped, self.states)
        self.rulings = Rulings(history, Rulebook())
        self.reasons.connect(self.units, self.rulings)
        self.holds = Holds(history, self.reasons)
        self.graces = Graces(history)
        self.deletions = Deletions(history)
        self.sent = history.sent
        self.taken: dict[int, int] = {}
        """uid -> when it was received by receive-and-delete."""
        self.counts = {
            "sent": 0,
            "accepted": 0,
            "rejected": 0,
            "delivered": 0,
            "settled": 0,
            "lock lost": 0,
            "steps": 0,
        }

    # The world

    def committed(self, batch: Snapshot, landed_ms: int) -> None:
        """Record that a batch has become durable."""
        clocks = self.history.clocks
        instants = (
            clocks.earliest_ms(batch.opened_ms, batch.taken_ms),
            clocks.latest_ms(batch.opened_ms, batch.taken_ms),
        )
        commit = Commit(batch.no, batch.opened_ms, batch.taken_ms, landed_ms, clocks.now, *instants)
        outcome = self.facts.apply(batch, commit)
        self.reasons.check(outcome, commit)
        self.units.check()
        self.holds.note_sessions(outcome.born)
        self.holds.note_sessions(outcome.removed)
        for entity_id, gone in self.facts.gone.items():
            if gone is commit:
                self.history.end_claims(
                    "deleted",
                    commit.opened_ms,
                    lambda claim, it=entity_id: claim.entity_id == it,  # type: ignore[misc]  # mypy infers no type for the default
                )

    def started(self, offset_ms: int) -> None:
        """Record the start of a process, with the offsets of its clocks."""
        self.history.clocks.started(self._now_ms(), offset_ms)
        self.reasons.forget_receivers()

    def clock_stepped(self, step_ms: int) -> None:
        """Record that the broker finds a step of its wall clock."""
        self.counts["steps"] += 1
        self.history.clocks.stepped(self._now_ms(), step_ms)

    def clock_accepted(self) -> None:
        """Record that the broker accepts its wall clock."""
        self.history.clocks.accepted(self._now_ms())

    def crashed(self) -> None:
        """Record the death of the broker's process."""
        now = self._now_ms()
        history = self.history
        history.crashes.append(now)
        history.losses.append(now)
        history.end_claims("crash", now, lambda claim: True)
        for purge in history.purges:
            purge.latest_ms = min(purge.latest_ms, now)
        self.reasons.forget_receivers()

    def updated(self, name: str, *, drops_locks: bool = True, sure: bool = True) -> None:
        """Record a change of an entity's properties: its locks drop, unless only user metadata changes.
        Without `sure` the change may be refused."""
        now = self._now_ms()
        for entity_id in self.facts.named(name)[-1:]:
            self.reasons.active(entity_id)
            if drops_locks:
                what = "update" if sure else "update perhaps"
                self.history.updates.setdefault(entity_id, []).append((now, what))
                self.history.end_claims(what, now, lambda claim: claim.entity_id == entity_id)  # noqa: B023 -- called at once

    def deleting(self, name: str) -> None:
        """Record that the administration deletes an entity."""
        self.history.deletions.setdefault(name, []).append(self._now_ms())

    def jumped(self) -> None:
        """Record a jump of the world's clock: connections may time out, locks lapse at once."""
        self.history.jumps.append(self._now_ms())
        self.reasons.forget_receivers()

    def limited(self) -> None:
        """Record that sending is limited, or not any more, or that the status of an entity changes."""
        self.history.limited.append(self._now_ms())

    def may_refuse(self, condition: str | None, name: str) -> bool:
        """Return whether an entity's status, or its absence, is the reason of a refusal."""
        if condition in GONE:
            return self.history.may_be_gone(name)
        if condition == "amqp:not-allowed":  # nothing can be received from an entity that forwards
            return any(d.forward_to for i in self.facts.named(name) for _, d in self.facts.descriptions[i])
        return condition == DISABLED and self.history.was_disabled

    def exists(self, name: str) -> bool:
        """Return whether an entity exists, as far as facts show it."""
        return any(entity_id in self.facts.entities for entity_id in self.facts.named(name)[-1:])

    def connected(self, connection: int) -> None:
        """Record a new connection."""
        self.history.connections[connection] = self._now_ms(), self.history.clocks.now.epoch

    def excused(self, connection: int) -> bool:
        """Return whether something has happened that may end a connection from the broker's side."""
        return self.history.excused(connection)

    def connection_lost(self, connection: int, how: str) -> None:
        """Record the end of a connection: `cut` (its locks end with the grace), `drop` (now or later),
        `close` (they stay)."""
        now = self._now_ms()
        history = self.history
        history.losses.append(now)
        self.holds.connection_lost(connection, how)
        if how == "close":
            self.graces.link_ended(connection)
        if how != "close" and connection not in history.lost:
            history.lost[connection] = now, how
            history.end_claims(
                how,
                now,
                lambda claim: (
                    claim.connection == connection
                    and (isinstance(claim, Hold) or (isinstance(claim, Lock) and claim.hold is not None))
                ),
            )
            self.graces.lost(connection)

    def link_lost(self, connection: int) -> None:
        """Record that a receiver link was detached: deliveries in flight on it are lost, their locks
        lapse."""
        self.history.losses.append(self._now_ms())
        self.graces.link_ended(connection)

    def answer_lost(self) -> None:
        """Record that an answer over HTTP was lost, and perhaps a delivery with it."""
        self.history.losses.append(self._now_ms())

    def used_up(self, link: object) -> None:
        """Record that a delivery has used up a receiver's credit."""
        self.reasons.used_up(link)

    def receiving(self, name: str, link: object, on: bool) -> None:
        """Record that a receiver of an entity has credit by now, or has none any more."""
        jumped = any(self._now_ms() - at < WIRE_MS_MAX + COMMIT_MS_MAX for at in self.history.jumps[-1:])
        if not (on and jumped):  # its connection may have timed out, and the client does not know yet
            self.reasons.receiving(self.facts.named(name)[-1], link, on)

    # Sending

    def sending(self, messages: list[Sent], unit: Unit | None = None, *, silent: bool = False) -> None:
        """Record that a client is about to send; several messages make one batch. `silent`: it wants no
        answer."""
        for message in messages:
            message.unit = unit
            self.sent[message.uid] = message
            self.history.groups.setdefault(message.group, []).append(message.uid)
            self.reasons.arrivals.sending(message)
            if message.via is not None:
                self.history.vias.setdefault(message.via, []).append(message.queue)
        if unit is not None:
            self.units.sending(unit, [message.uid for message in messages], silent=silent)
        self.counts["sent"] += len(messages)

    def send_answered(self, uids: list[int], outcome: str) -> None:
        """Check the outcome of a send: `accepted` or the condition of the rejection."""
        accepted = outcome == "accepted"
        unit = self.sent[uids[0]].unit
        if any(self.sent[uid].wrong for uid in uids) if accepted else not self._may_refuse(uids, outcome):
            raise Violation(f"a send was answered with {outcome}: {[self.sent[uid] for uid in uids]}")
        self.counts["accepted" if accepted else "rejected"] += len(uids)
        if accepted and unit is not None:
            self.units.enlisted(unit, uids)
            return  # the discharge of the transaction decides what becomes of it
        if unit is not None:
            unit.denied.update(uids)
        for uid in uids:
            sent = self.sent[uid]
            if sent.outcome not in (None, "rolled back"):
                raise Violation(f"uid {uid} was answered twice: {sent.outcome}, then {outcome}")
            stored = self.facts.life(uid).has_trace
            if not accepted and stored:
                raise Violation(f"uid {uid} was refused with {outcome}, yet stored: {self.story(uid)}")
            if accepted and not stored:
                if not self.reasons.is_dropped(uid, self._now_ms()):
                    raise Violation(f"uid {uid} was accepted, yet is not on stable storage")
                outcome = "dropped"
            sent.outcome, sent.answered_ms = outcome, self._now_ms()
        if accepted and (records := self.facts.life(uids[0]).records):
            self._active(records[0][0].queue_id, self.sent[uids[0]].sent_ms)
        elif accepted and self.facts.life(uids[0]).copies:
            sent = self.sent[uids[0]]
            self._active(self.history.queue_id(sent.via or sent.queue, MAIN), sent.sent_ms)

    def _active(self, queue_id: int, since_ms: int) -> None:
        """Record that an entity was used at some time since then."""
        self.reasons.active(queue_id // 4, since_ms)

    def _may_refuse(self, uids: list[int], condition: str) -> bool:
        sent = self.sent[uids[0]]
        if condition in [self.sent[uid].wrong for uid in uids]:
            return True
        if condition in LIMITED and self.history.limited:
            return True
        if sent.unit is not None and condition.startswith("amqp:transaction:"):
            return self.units.may_be_over(sent.unit)
        if sent.unit is not None and sent.via is None and condition == "amqp:not-allowed":
            return self.units.may_be_parted(sent.unit, sent.queue)
        return any(self.may_refuse(condition, name) for name in (sent.queue, sent.via or sent.queue))

    def scheduled(self, uids: list[int], numbers: list[int]) -> None:
        """Check the sequence numbers in the answer to a schedule operation."""
        self.send_answered(uids, "accepted")
        for uid, number in zip(uids, numbers, strict=True):
            if self.sent[uid].outcome == "dropped":
                continue
            life = self.facts.life(uid)
            first = (life.records or self.facts.life(life.copies[0]).records)[0][0]
            if first.enqueued_sequence_number != number:
                raise Violation(
                    f"uid {uid} was scheduled as {first.sequence_number}, but the answer said {number}"
                )

    def numbered(self, uids: list[int], numbers: list[int]) -> None:
        """Check the sequence numbers in the answer to a schedule operation in a transaction."""
        self.send_answered(uids, "accepted")
        name = self.sent[uids[0]].queue
        entity_id = self.facts.named(name)[-1]
        if self.history.may_be_gone(name):
            return
        issued = self.facts.numbers.get(entity_id * 4)
        for uid, number in zip(uids, numbers, strict=True):
            if self.reasons.is_dropped(uid, self._now_ms()):
                continue  # the number may be that of the first message with its id
            partition, order = number >> PARTITION_SHIFT, number & (1 << PARTITION_SHIFT) - 1
            if issued is None or number >= issued.next_sequence_number:
                if issued is None or not issued.partitions or order >= issued.partitions[partition]:
                    raise Violation(
                        f"number {number} of uid {uid} was answered, yet is not durable: {issued}"
                    )
            if self.history.answered.setdefault((entity_id, number), uid) != uid:
                raise Violation(f"number {number} was answered again, for uid {uid}")
            self.sent[uid].number = number

    # Receiving

    def delivered(
        self,
        seen: Seen,
        address: str,
        token: bytes,
        connection: int,
        *,
        deletes: bool = False,
        hold: Hold | None = None,
        by_number: bool = False,
        by_http: bool = False,
    ) -> Lock | None:
        """Check a message that has arrived at a receiver.

        Args:
            deletes: it was received and deleted.
            hold: the session under whose lock it is.
            by_number: it was deferred, and asked for.
            by_http: it came over HTTP.
        """
        self.counts["delivered"] += 1
        now = self._now_ms()
        name, sub = split(address)
        body_uid = seen.uid
        seen = self.history.identified(seen, name, sub)
        uid, count = seen.uid, seen.count
        queue_id = self.history.queue_id_with(name, sub, uid)
        life = self.facts.life(uid)
        known = [record for record, _ in life.records if record.queue_id == queue_id and _shows(seen, record)]
        if not known:
            raise Violation(
                f"{seen} was delivered from {address}, not on stable storage so: {self.story(uid)}"
            )
        if count > max(record.delivery_count for record in known):
            raise Violation(
                f"uid {uid} was delivered with count {count}, not on stable storage: {self.story(uid)}"
            )
        if seen.session_id != self.sent[uid].session_id:
            raise Violation(f"{seen} was sent to session {self.sent[uid].session_id!r}")
        self._check_traits(seen, shows_null=not by_http)
        if by_http and seen.state != MessageState.ACTIVE:  # it does not show that it was scheduled (C10)
            raise Violation(f"{seen} is not shown as active")
        if not (by_number or by_http):
            self._check_state(seen, body_uid)
        if deletes:
            if uid in self.taken:
                raise Violation(f"uid {uid} was received and deleted twice")
            self.taken[uid] = now
            if life.removed is None:
                raise Violation(
                    f"uid {uid} was given to receive-and-delete, yet its removal is not on stable storage"
                )
            self._check_maximum(uid, queue_id, count, life.removed.opened_ms, life.removed.taken_ms)
            self._active(queue_id, life.removed.opened_ms)
            return None
        if seen.until_broker_ms is None:
            raise Violation(f"uid {uid} was delivered under {hold} and does not say until when it is locked")
        if hold is not None and by_number:
            self.holds.check_end(hold, seen.until_broker_ms)
        elif (seen.until_broker_ms == END_OF_TIME_MS) != (hold is not None):
            raise Violation(f"uid {uid} is locked until {seen.until_broker_ms}, under {hold}")
        lock = self._lock(seen, queue_id, token, connection, hold)
        # When exactly a message of a session was locked is not known.
        self._check_maximum(uid, queue_id, count, lock.taken_ms, lock.taken_ms if hold is None else now)
        self.facts.cursors.check_taken(known[-1].key(), lock.taken_ms)
        self._check_lock(lock, life.removed, known[-1])
        self.history.locks[token] = lock
        self.history.locks_of.setdefault(uid, []).append(lock)
        if hold is not None and not by_number:
            self.holds.delivered(hold, lock, known[-1])
        self._active(queue_id, lock.taken_ms)
        return lock

    def _check_maximum(self, uid: int, queue_id: int, count: int, from_ms: int, to_ms: int) -> None:
        """Check that a message was delivered no more often than the MaxDeliveryCount of then allows (L-08,
        C23)."""
        if queue_id % QUEUES_PER_ENTITY != MAIN:
            return
        most = max(
            d.max_delivery_count for d in self.facts.in_force(queue_id // QUEUES_PER_ENTITY, from_ms, to_ms)
        )
        if count >= most:
            raise Violation(f"uid {uid} was delivered {count + 1} times, past MaxDeliveryCount {most}")

    def _check_state(self, seen: Seen, body_uid: int) -> None:
        """Check that a delivery over a link shows whether the message, or its original, was scheduled
        (S-06)."""
        records = [record for each in {seen.uid, body_uid} for record, _ in self.facts.life(each).records]
        was_scheduled = any(record.state is MessageState.SCHEDULED for record in records)
        if seen.state != (MessageState.SCHEDULED if was_scheduled else MessageState.ACTIVE):
            what = "was scheduled" if was_scheduled else "was never scheduled"
            raise Violation(f"{seen} {what}: {self.story(seen.uid)}")

    def _check_traits(self, seen: Seen, *, shows_null: bool = True) -> None:
        """Check that a receiver sees what the rules made of a message, and no more (P-02). No header
        expresses null."""
        traits = self.sent[seen.uid].traits
        expected = {
            name: value for name, value in ruled(traits.properties).items() if shows_null or value is not None
        }
        if (seen.properties, seen.label) != (expected, traits.label):
            raise Violation(f"{seen} is not what a rule made of it: {traits}")

    def _lock(self, seen: Seen, queue_id: int, token: bytes, connection: int, hold: Hold | None) -> Lock:
        now = self._now_ms()
        if hold is not None:
            return Lock(
                connection,
                queue_id,
                hold.taken_ms,
                FOREVER,
                token,
                seen.uid,
                seen.count,
                now,
                hold,
                seen.number,
            )
        assert seen.until_broker_ms is not None
        duration_ms = self.facts.description(queue_id).lock_duration_ms
        until_ms = self.history.passed_ms(connection, seen.until_broker_ms, duration_ms)
        taken_ms = until_ms - duration_ms
        if taken_ms < self.history.connections[connection][0]:
            raise Violation(f"uid {seen.uid} is locked from before its connection: {seen}, {taken_ms}")
        lock = Lock(
            connection, queue_id, taken_ms, until_ms, token, seen.uid, seen.count, now, None, seen.number
        )
        lock.ends += self.history.ends_since(lock)
        self.graces.seen(lock)
        return lock

    def _check_lock(self, lock: Lock, removed: Commit | None, record: Record) -> None:
        uid = lock.uid
        if lock.taken_ms > self._now_ms():
            raise Violation(f"uid {uid} is locked from a time to come: {lock}")
        if lock.token in self.history.locks:
            raise Violation(
                f"lock token {lock.token.hex()} was given twice: {lock}, {self.history.locks[lock.token]}"
            )
        if removed is not None and lock.taken_ms > removed.landed_ms:
            raise Violation(f"uid {uid} was locked after it was gone: {lock}; {self.story(uid)}")
        for other in self.history.locks_of.get(uid, ()):
            if _overlap(other, lock):
                raise Violation(f"uid {uid} has two live locks: {other} and {lock}")
            same = (other.queue_id, other.number) == (lock.queue_id, lock.number)
            if other.settled in ("complete", "dead-letter") and same:
                raise Violation(f"uid {uid} came back after {other.settled} was acknowledged: {lock}")
        if lock.queue_id % 4 == MAIN and lock.hold is None:
            expires = self.reasons.expires_broker_ms(record, max)
            taken_broker_ms = self.history.clocks.earliest_ms(lock.taken_ms, lock.taken_ms)
            if record.state is MessageState.ACTIVE and taken_broker_ms > expires:
                raise Violation(
                    f"uid {uid} was delivered after its time-to-live: {lock}, expired at {expires}"
                )

    # Settling

    def settling(self, lock: Lock, kind: str, reason: str = "", unit: Unit | None = None) -> None:
        """Record that a client sends a settlement: complete, abandon, defer, dead-letter, release."""
        if lock.hold is not None:
            self.holds.using(lock.hold)
        if unit is not None:
            self.units.settling(unit, lock, kind, reason)
            return
        lock.ends.append((self._now_ms(), f"settle {kind}"))
        if kind in ("complete", "defer"):
            self.sent[lock.uid].reasons.add(kind)
        elif kind == "dead-letter":
            self.sent[lock.uid].reasons.add(f"dead-letter {reason}")

    def settle_answered(
        self, lock: Lock, kind: str, asked_ms: int, condition: str | None, unit: Unit | None = None
    ) -> None:
        """Check the answer to a settlement; `condition` None = performed, or enlisted."""
        now = self._now_ms()
        if condition is not None:
            self._check_refusal(lock, kind, asked_ms, condition, unit)
            return
        self._check_held(lock, kind, asked_ms, once=unit is None)
        if unit is not None:
            self.units.enlisted(unit, [lock.token])
            return
        self.counts["settled"] += 1
        lock.settled, lock.settled_ms = kind, now
        life = self.facts.life(lock.uid)
        records = [record for record, _ in life.records]
        place = lock.queue_id, lock.number
        here = [record for record in records if (record.queue_id, record.sequence_number) == place]
        moved = records[records.index(here[-1]) + 1 :]  # perhaps to its queue again, in a circle
        # In a dead-letter queue the count does not change.
        counted = lock.queue_id % 4 != MAIN or any(r.delivery_count > lock.count for r in here)
        kept = {
            "complete": life.removed is not None,
            "abandon": counted or bool(moved or life.removed),
            "defer": (counted and here[-1].state is MessageState.DEFERRED) or bool(moved or life.removed),
            "dead-letter": bool(moved or life.removed),
        }
        if not kept.get(kind, True):
            raise Violation(f"{kind} was acknowledged, yet is not on stable storage: {self.story(lock.uid)}")

    def _check_refusal(self, lock: Lock, kind: str, asked_ms: int, condition: str, unit: Unit | None) -> None:
        self.counts["lock lost"] += condition in LOCK_LOST
        if unit is not None:
            unit.denied.add(lock.token)
        name = self.facts.description(lock.queue_id).name
        if unit is not None and condition.startswith("amqp:transaction:") and self.units.may_be_over(unit):
            return
        if unit is not None and condition == "amqp:not-allowed" and self.units.may_be_parted(unit, name):
            self.units.not_enlisted(unit, lock)
            return
        if condition != LOCK_LOST[lock.hold is not None] and not self.may_refuse(condition, name):
            raise Violation(f"{kind} was refused with {condition}: {lock}")
        if condition in LOCK_LOST and lock.surely_live(self._now_ms(), 1, asked_ms):
            raise Violation(f"{kind} was refused with {condition}, yet the lock is live: {lock}")

    def _check_held(self, lock: Lock, kind: str, asked_ms: int, *, once: bool) -> None:
        """Check that a lock whose settlement or renewal succeeded can have been held when it was requested.
        With `once` it can be settled only once; else it may have been renewed, or enlisted and rolled back,
        before."""
        if lock.settled is not None and (once or lock.settled_ms < asked_ms):
            raise Violation(f"{kind} succeeded on a lock settled before: {lock}")
        if lock.hold is not None:
            self.holds.check_held(lock.hold, kind, asked_ms)
            return
        if asked_ms >= lock.until_ms and not lock.renewals_open:
            raise Violation(f"{kind} at {asked_ms} succeeded on a lapsed lock: {lock}")
        for at, what in lock.ends:
            if what in ("crash", "update") and lock.taken_ms < at < asked_ms:
                raise Violation(f"{kind} at {asked_ms} succeeded on a lock from before: {lock}")
        self.graces.check_held(lock, kind, asked_ms)

    def renewing(self, lock: Lock | Hold, connection: int) -> Renewal | None:
        """Record that a client asks over a connection to renew the lock of a message or a session."""
        lock.renewals_open += 1
        if isinstance(lock, Lock):
            return self.graces.renewing(lock, connection)
        self.holds.using(lock)
        return None

    def renew_answered(
        self,
        lock: Lock | Hold,
        asked_ms: int,
        until_broker_ms: int | None,
        connection: int,
        renewal: Renewal | None = None,
    ) -> None:
        """Check the answer to a renewal over a connection; without `until_broker_ms` the lock is lost."""
        if isinstance(lock, Hold):
            self.holds.using(lock)  # the request may have waited long for its links
        if until_broker_ms is None:
            if isinstance(lock, Lock) and renewal is not None:
                self.graces.refused(lock, renewal)
            if lock.surely_live(self._now_ms()):
                raise Violation(f"renewal was refused, yet the lock is live: {lock}")
        else:
            if isinstance(lock, Hold):
                self.holds.check_holder(lock, "renewal", asked_ms)
            else:
                self._check_held(lock, "renewal", asked_ms, once=False)
            duration_ms = self.facts.description(lock.queue_id).lock_duration_ms
            until_ms = self.history.passed_ms(connection, until_broker_ms, duration_ms, asked_ms)
            if not asked_ms <= until_ms - duration_ms <= self._now_ms():
                raise Violation(f"a renewal between {asked_ms} and now gave {until_broker_ms}: {lock}")
            held = lock if isinstance(lock, Lock) else self.holds.held_again(lock)[-1]
            if isinstance(lock, Lock) and renewal is not None:
                self.graces.renewed(lock, renewal)
            held.until_ms = max(held.until_ms, until_ms)
        lock.renewals_open -= 1

    # Cancelling and deleting

    def cancelling(self, name: str, number: int) -> None:
        """Record that a client asks to cancel the scheduled message with a number, whichever that is."""
        self.history.cancels.add((name, number))

    def cancelled(self, name: str, number: int) -> None:
        """Check an acknowledged cancellation."""
        queue_id = self.history.queue_id(name, MAIN)
        for record in self.facts.live.values():
            if record.queue_id == queue_id and record.sequence_number == number:
                raise Violation(
                    f"cancel was acknowledged, yet is not on stable storage: {self.story(record.uid)}"
                )

    def may_delete(self, address: str, count: int) -> None:
        """Record that a client lets the broker remove messages by itself: receive-and-delete credit, batch
        deletion."""
        budget = self.history.delete_budget
        budget[split(address)] = budget.get(split(address), 0) + count

    def purging(self, address: str, before_broker_ms: int) -> tuple[Purge, set[int]]:
        """Record a request to delete all messages; return it, and the uids that must go."""
        name, sub = split(address)
        queue_id = self.history.queue_id(name, sub)
        purge = Purge(queue_id, before_broker_ms, self._now_ms())
        self.history.purges.append(purge)
        return purge, {
            record.uid
            for record in self.facts.live.values()
            if record.queue_id == queue_id
            and record.state is not MessageState.SCHEDULED
            and record.enqueued_at_ms <= before_broker_ms
        }

    def purged(self, purge: Purge, there: set[int], count: int) -> None:
        """Check the answer to a purge."""
        now = self._now_ms()
        purge.latest_ms = now
        for uid in there:
            if self.history.facts.life(uid).removed is not None or self.facts.where[uid][0] != purge.queue_id:
                continue
            if self.facts.cursors.may_hold(self.facts.where[uid], purge.asked_ms):
                continue
            if not any(
                lock.queue_id == purge.queue_id and (lock.until_ms >= purge.asked_ms or lock.hold is not None)
                for lock in self.history.locks_of.get(uid, ())
            ) and not any(at >= purge.asked_ms - 60_000 for at in self.history.losses):
                raise Violation(f"a purge of {purge.queue_id} has left uid {uid}: {self.story(uid)}")
        if count < 0:
            raise Violation(f"a purge of {purge.queue_id} answered {count}")

    def purge_lost(self, purge: Purge) -> None:
        """Record that the answer to a purge will not come."""
        purge.latest_ms = min(purge.latest_ms, self._now_ms() + WIRE_MS_MAX + COMMIT_MS_MAX)

    def peeked(self, address: str, from_number: int, found: list[Seen], session_id: str | None) -> None:
        """Check the answer to a peek."""
        last = from_number - 1
        name, sub = split(address)
        for seen in [self.history.identified(seen, name, sub) for seen in found]:
            if seen.number <= last:
                raise Violation(f"peek of {address} from {from_number} is out of order: {found}")
            last = seen.number
            self._check_traits(seen)
            if session_id is not None and session_of(seen.session_id or "") != session_of(session_id):
                raise Violation(f"peek of session {session_id!r} shows {seen}")
            queue_id = self.history.queue_id_with(name, sub, seen.uid)
            known = [record for record, _ in self.facts.life(seen.uid).records if record.queue_id == queue_id]
            if not any(_shows(seen, record) and record.state == seen.state for record in known):
                raise Violation(f"peek of {address} shows {seen}, never on stable storage so")

    # The end

    def figures(self) -> dict[str, int]:
        """Return counts of what clients have seen."""
        lives = self.facts.lives.values()
        return {
            **self.counts,
            "sessions": len(self.history.holds),
            "transactions": self.units.committed,
            "forwarded": sum(any(record.hops for record, _ in life.records) for life in lives),
            "deleted queues": len(self.facts.gone),
            "claims": len(self.facts.cursors.made),
            "committed": len(self.facts.cursors.removed),
            "copies": self.reasons.copies.count,
            "buried copies": self.reasons.copies.buried,
            "refused copies": self.reasons.copies.over,
            "rule changes": self.rulings.answered_count,
        }

    def finish(self) -> None:
        """Check what only the whole history shows. Raises: Violation."""
        for uid, sent in self.sent.items():
            life = self.facts.life(uid)
            if sent.outcome == "accepted" and not life.has_trace:
                raise Violation(f"uid {uid} was accepted and is nowhere")
            if uid in self.facts.where and life.removed is not None:
                raise Violation(f"uid {uid} is there and gone: {self.story(uid)}")
        for uid, locks in self.history.locks_of.items():
            for place in {(lock.queue_id, lock.number) for lock in locks}:
                of_queue = sorted(
                    (k for k in locks if (k.queue_id, k.number) == place),
                    key=lambda k: (k.taken_ms, k.count, k.seen_ms),
                )
                for first, second in pairwise(of_queue):
                    self._check_count(uid, first, second)

    def _check_count(self, uid: int, first: Lock, second: Lock) -> None:
        """Check the delivery count from one observed delivery to the next (L-08)."""
        between = second.count - first.count
        if first.queue_id % 4 != MAIN:
            if between:
                raise Violation(
                    f"uid {uid}: the delivery count of a dead letter changed: {first} -> {second}"
                )
            return
        ends = first.all_ends()
        kinds = {what for _, what in ends}
        # When exactly a message of a session was locked is not known.
        until_ms = second.taken_ms if second.hold is None else second.seen_ms
        updates = self.history.updates.get(first.entity_id, ())
        crashed = any(first.taken_ms <= at <= until_ms for at in self.history.crashes)
        updated = any(first.taken_ms <= at <= until_ms for at, _ in updates)
        lost = any(first.taken_ms <= at <= until_ms + WIRE_MS_MAX for at in self.history.losses)
        lost |= any(
            how == "drop" and first.taken_ms - HALF_OPEN_MS_MAX <= at <= until_ms
            for at, how in self.history.lost.values()
        )
        kept = kinds & {"settle release", "detach", "close"}
        kept |= {what for what in kinds if what.startswith("enlist")}
        if between < 0:
            raise Violation(f"uid {uid}: the delivery count went down: {first} -> {second}")
        if between == 0 and not crashed and not updated and not kept:
            raise Violation(f"uid {uid}: the delivery count did not go up: {first} -> {second}")
        if between > 1 and not lost and not crashed:
            raise Violation(
                f"uid {uid}: the delivery count went up by {between} at once: {first} -> {second}"
            )
        released_in_time = any(
            what in ("settle release", "detach") and at + WIRE_MS_MAX + COMMIT_MS_MAX < first.until_ms
            and (first.hold is None or at + WIRE_MS_MAX + COMMIT_MS_MAX < first.hold.until_ms)
            for at, what in ends
        )  # fmt: skip
        if between > 0 and released_in_time and len(ends) == 1 and not lost and not crashed and not updated:
            raise Violation(f"uid {uid}: released, yet the delivery count went up: {first} -> {second}")

    def story(self, uid: int) -> str:
        """Return what was ever durable about a uid, and its locks."""
        return self.history.story(uid)


def _overlap(other: Lock, lock: Lock) -> bool:
    """Return whether two locks of a message were surely held at the same time. Those of one session follow
    each other under its own lock; when exactly one of them was taken is not known."""
    if lock.hold is not None or other.hold is not None:
        if lock.hold is not None and other.hold is not None:
            return False
        plain, other = (other, lock) if other.hold is None else (lock, other)
        return plain.taken_ms < other.taken_ms and other.seen_ms < plain.may_end_ms()
    first, second = (other, lock) if other.taken_ms <= lock.taken_ms else (lock, other)
    either = second.taken_ms == first.taken_ms and second.may_end_ms() <= first.taken_ms
    return second.taken_ms < first.may_end_ms() and not either


def _shows(seen: Seen, record: Record) -> bool:
    """Return whether a receiver's view agrees with a record."""
    source = record.dead_letter_source
    if source is not None and "/Subscriptions/" not in source:
        source = source.lower()
    return (seen.number, seen.enqueued_number, seen.source) == (
        record.sequence_number, record.enqueued_sequence_number, source,
    )  # fmt: skip


def split(address: str) -> tuple[str, int]:
    """Split an address into the entity's name and the kind of queue."""
    for end, sub in (("/$Transfer/$DeadLetterQueue", 2), ("/$DeadLetterQueue", 1)):
        if address.endswith(end):
            return address.removesuffix(end), sub
    return address, MAIN
