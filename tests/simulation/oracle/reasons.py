"""Why a message may be where it is, and why it may be gone.

Owns: the reasons, judged at the moment a batch becomes durable. Must not know: any structure of the broker.
Each record in a new place must have come there by a send, an activation, a forward or a dead-lettering that a
client or a setting caused; each that is gone must have been settled, expired, moved, cancelled, deleted or
dropped as a duplicate on its way.
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, EntityStored, RuleRemoved, RuleStored
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.message import NEVER_MS, MessageState
from tests.simulation.oracle.arrivals import Arrivals
from tests.simulation.oracle.copies import Born, Copies
from tests.simulation.oracle.facts import Outcome
from tests.simulation.oracle.history import History, Sent, Unit
from tests.simulation.oracle.records import MAIN, PARTITION_SHIFT, Commit, Record, Violation
from tests.simulation.oracle.routes import HOPS_MAX, TOO_MANY_HOPS, End, Routes
from tests.simulation.oracle.rulings import Rulings
from tests.simulation.oracle.states import States
from tests.simulation.oracle.units import Units
from tests.simulation.world.clocks import FOREVER

SCHEDULED = MessageState.SCHEDULED


class Reasons:
    """The judge of the facts."""

    def __init__(self, history: History, states: States) -> None:
        self._history = history
        self._states = states
        self.units: Units
        self.arrivals: Arrivals
        self.routes: Routes
        self.copies: Copies
        self.rulings: Rulings
        self._partitions: dict[tuple[int, str], int] = {}
        """(entity id, key) -> the partition of all messages with that key."""
        self._drops: list[tuple[Record, list[str]]] = []
        """Messages that are gone if they were duplicates where they were forwarded to, and the names of where
        that may be."""
        self._settled: list[tuple[Record, Unit]] = []
        """Messages that are gone if a transaction completed them."""
        self._activity: dict[int, int] = {}
        self._receiving: dict[object, int] = {}

    def connect(self, units: Units, rulings: Rulings) -> None:
        """Connect to the facts, once they exist."""
        self.routes = Routes(self._history.facts)
        self.arrivals = Arrivals(self._history, self.routes)
        self.copies = Copies(self._history, self.routes, self.arrivals, rulings.rulebook)
        self.rulings = rulings
        self.units = units

    # Activity, which keeps an entity from being idle

    def active(self, entity_id: int, since_ms: int | None = None) -> None:
        """Record activity of an entity (A-03), now or at some time since then."""
        at_ms = self._history.now_ms() if since_ms is None else since_ms
        self._activity[entity_id] = max(at_ms, self._activity.get(entity_id, 0))

    def receiving(self, entity_id: int, link: object, on: bool) -> None:
        """Record a receiver with credit, or its end."""
        if on:
            self._receiving[link] = entity_id
        elif (served := self._receiving.pop(link, None)) is not None:
            self.active(served)

    def used_up(self, link: object) -> None:
        """Record that a delivery has taken a receiver's last credit, which counts as activity itself."""
        self._receiving.pop(link, None)

    def forget_receivers(self) -> None:
        """Record that all receivers may be gone from now on: the process died, or time jumps."""
        for entity_id in self._receiving.values():
            self.active(entity_id)
        self._receiving.clear()

    def explain_entity(self, entity: EntityStored, commit: Commit) -> str | None:
        """Return why an entity may be gone."""
        description = entity.description
        if any(at <= commit.landed_ms for at in self._history.deletions.get(description.name, ())):
            return "deleted"
        facts = self._history.facts
        if facts.gone.get(facts.topic(entity.entity_id) or 0) is commit:
            return "with its topic"
        # What is done with a subscription counts for its topic too.
        family = {entity.entity_id, *facts.subscriptions(entity.entity_id)}
        waits = any(
            record.entity_id in family and record.state is SCHEDULED for record in facts.live.values()
        )
        forwards = any(
            all(d.forward_to is not None for d in facts.possible(i, commit))
            for i in family
            if facts.gone.get(i) in (None, commit)
        )
        if waits or forwards or family & set(self._receiving.values()):
            return None
        since_ms = max(*(self._activity.get(i, 0) for i in family), *self._history.crashes[-1:], 0)
        return "idle" if commit.taken_ms - since_ms >= description.auto_delete_on_idle_ms else None

    def explain_rule(self, path: str, change: RuleStored | RuleRemoved, commit: Commit) -> str | None:
        """Return why a subscription may have got a rule, or lost it."""
        return self.rulings.explain(path, change, commit)

    # Births

    def identify(self, body_uid: int, parent: Record | None, born: list[Record], commit: Commit) -> list[int]:
        """Return which messages the records are that one step has put into new places."""
        return self.copies.identify(body_uid, parent, born, commit)

    def check(self, outcome: Outcome, commit: Commit) -> None:
        """Judge what a batch has put into new places, and the numbers it took. Raises: Violation."""
        # By name: in one batch an entity may go and another come under its name, and their records do not
        # tell which of the two a message passed.
        numbered: dict[str, int] = {}
        groups: set[int] = set()
        for record in outcome.born:
            if record.is_state:
                self._states.born(record, commit)
                continue
            for entity_id in self._check_birth(record, outcome, commit):
                name = self._history.facts.description(entity_id * QUEUES_PER_ENTITY).name
                numbered[name] = numbered.get(name, 0) + 1
            sent = self._history.sent[self._history.facts.origin(record.uid)]
            if sent.group and len(self._history.facts.life(sent.uid).records) <= 1:
                groups.add(sent.group)
        self._check_drops(commit)
        self._check_settled(commit)
        for record in outcome.late:
            if not self._history.sent[record.uid].ahead:
                raise Violation(f"a number is used again, or late: {record}")
        for group in groups:
            self._check_group(group, commit)
        unrecorded: dict[str, list[tuple[int, list[int]]]] = {}
        for queue_id, numbers in outcome.unrecorded.items():
            name = self._history.facts.description(queue_id).name
            unrecorded.setdefault(name, []).append((queue_id, numbers))
        for name, namesakes in unrecorded.items():
            numbers = [number for _, some in namesakes for number in some]
            self._check_unrecorded(namesakes[-1][0], numbers, numbered.get(name, 0), commit)

    def _check_group(self, group: int, commit: Commit) -> None:
        for uid in self._history.groups[group]:
            if not self._history.facts.life(uid).has_trace and not self.is_dropped(uid, commit.landed_ms):
                members = self._history.groups[group]
                raise Violation(f"a batched send was stored without its member uid {uid}: {members}")

    def _check_unrecorded(self, queue_id: int, numbers: list[int], passed: int, commit: Commit) -> None:
        """Check that each number without a record was that of a message which moved on at once."""
        entity_id = queue_id // QUEUES_PER_ENTITY
        descriptions = self._history.facts.possible(entity_id, commit)
        if passed > len(numbers):
            raise Violation(f"{passed} messages passed {descriptions[-1].name}, which issued only {numbers}")
        paths = [d.forward_to for d in descriptions if d.forward_to is not None]
        paths += self._history.vias.get(descriptions[-1].name, [])
        if self._history.facts.topic(entity_id) is not None:  # dead letters from the start
            paths += [
                d.forward_dead_lettered_to for d in descriptions if d.forward_dead_lettered_to is not None
            ]
        if passed < len(numbers):
            drops = any(
                target.requires_duplicate_detection for path in paths for target in self.routes.targets(path)
            )
            drops |= any(self.copies.passes_topic(path) for path in paths)
            if self._history.facts.is_topic(entity_id) and not drops:
                drops = self.routes.is_target(descriptions[-1].name)  # what is forwarded is not counted here
            if self._history.facts.is_topic(entity_id) and not drops:
                drops = len(numbers) - passed <= self._vanished_count(descriptions[-1].name, commit)
            if not drops and not self.units.numbered_ahead(descriptions[-1].name, len(numbers) - passed):
                raise Violation(
                    f"a number is skipped: {descriptions[-1].name} has issued {numbers}, {passed} passed on"
                )

    def _vanished_count(self, topic: str, commit: Commit) -> int:
        """Count the messages that no rule may have chosen when something in a commit was decided."""
        facts = self._history.facts
        return sum(
            not facts.life(sent.uid).has_trace
            and sent.copy_of is None
            and sent.sent_ms <= commit.taken_ms
            and sent.answered_ms >= commit.taken_ms
            and (
                self.copies.leaves_nothing(None, sent, commit)
                if sent.queue == topic
                else topic in self.arrivals.names_from(sent.queue)
            )
            for sent in self._history.sent.values()
        )

    def _check_birth(self, record: Record, outcome: Outcome, commit: Commit) -> list[int]:
        """Judge a record that is new in its place; return the entities that numbered it on its way."""
        sent = self._history.sent.get(record.uid)
        if sent is None:
            raise Violation(f"a message without a send: {record}")
        if sent.outcome is not None and sent.outcome not in ("accepted", "dropped"):
            raise Violation(f"uid {sent.uid} was refused with {sent.outcome}, and stored later")
        came = self.copies.born.pop(record.key(), None)
        if came is not None:
            return self._check_copy(record, came, sent, outcome, commit)
        if sent.unit is not None:
            self.units.stored(sent.unit, sent.uid, commit)
        before = self._before(record)
        end = self._way(record, before, sent, commit)
        self.copies.check_refused(sent.uid, end, record)
        self._check_numbers(record, before, end.numbered, end, outcome)
        arrived = [*end.numbered, *([record.entity_id] if record.sub == MAIN else [])]
        if before is None and sent.via is not None:
            del arrived[0]  # ids do not matter to what it only passes
        if before is not None and before.state is SCHEDULED:
            arrived = [entity_id for entity_id in arrived if entity_id != before.entity_id]
        for entity_id in arrived:
            self.arrivals.arrived(sent, entity_id, commit)
        if record.sub != MAIN:
            if before is not None and end.reason is None and before.sub == MAIN:
                self._check_reason(record, before, commit)
            return list(end.numbered)
        if end.dead_from is not None and end.reason is None and before is not None and before.sub == MAIN:
            self._check_reason(record, before, commit)
        if before is None or before.state is SCHEDULED:
            self._check_enqueued(record, sent, commit)
        self._check_session(record, sent)
        self._check_partition(record, sent)
        return list(end.numbered)

    def _check_copy(
        self, record: Record, came: Born, sent: Sent, outcome: Outcome, commit: Commit
    ) -> list[int]:
        """Judge a record that came over a topic."""
        parent, end = came.parent, came.end
        facts = self._history.facts
        origin = self._history.sent[facts.origin(record.uid)]
        if parent is None and origin.unit is not None:
            self.units.stored(origin.unit, origin.uid, commit)
        self._check_numbers(record, parent, came.numbered, end, outcome)
        for arrived, entity_id in came.arrivals:
            if parent is None or parent.state is not SCHEDULED or parent.entity_id != entity_id:
                self.arrivals.arrived(arrived, entity_id, commit)
        if end.reason is None and parent is not None and parent.sub == MAIN:
            name = facts.name(parent.entity_id)
            if record.dead_letter_source == name and parent.dead_letter_source != name:
                self._check_reason(record, parent, commit)
        if record.sub != MAIN:
            return came.passed
        if parent is None or facts.is_topic(parent.entity_id):
            self._check_enqueued(record, sent, commit, waited=parent is not None)
        self._check_session(record, sent)
        if record.hops == 0 and facts.is_partitioned(record.entity_id) and record.session_id is None:
            # The topic's partition, whatever an action made of the key.
            if (
                record.sequence_number >> PARTITION_SHIFT
                != record.enqueued_sequence_number >> PARTITION_SHIFT
            ):
                raise Violation(
                    f"a copy is in another partition than the topic put it in: {record}, {origin}"
                )
        else:
            self._check_partition(record, sent)
        return came.passed

    def _before(self, record: Record) -> Record | None:
        """Return the record that a message had before this one."""
        before = None
        for known, _ in self._history.facts.life(record.uid).records:
            if known is record:
                return before
            before = known
        raise AssertionError(f"not in its life: {record}")

    def _way(self, record: Record, before: Record | None, sent: Sent, commit: Commit) -> End:
        """Return how a message has come to its place. Raises: Violation, if there is no way."""
        reason = record.dead_letter_reason()
        for end in self.routes.starts(before, sent, commit):
            source = end.dead_from or (None if before is None else before.dead_letter_source)
            if (
                (end.entity_id, end.sub, end.hops, source)
                == (record.entity_id, record.sub, record.hops, record.dead_letter_source)
                and (end.reason is None or end.reason == reason)
            ):  # fmt: skip
                return end
        raise Violation(
            f"no way leads there: {before} -> {record}, from {record.dead_letter_source}, for {reason};"
            f" of {self._history.story(record.uid)}"
        )

    def _check_numbers(
        self,
        record: Record,
        before: Record | None,
        numbered: tuple[int, ...],
        end: End,
        outcome: Outcome,
    ) -> None:
        """Check the sequence number in a dead-letter queue, and the number that a message had first;
        `numbered` by others on its way."""
        first = record.sequence_number if before is None else before.enqueued_sequence_number
        if any(entity_id in self._history.facts.gone for entity_id in numbered):
            return  # the batch that removes an entity does not record what it issued there
        if before is None and numbered:
            issued = outcome.unrecorded.get(numbered[0] * QUEUES_PER_ENTITY, [])
            first = record.enqueued_sequence_number
            if first not in issued:
                raise Violation(f"enqueued number {first} was not issued just now: {record}, {issued}")
        if record.enqueued_sequence_number != first:
            raise Violation(f"the enqueued number changed: {before} -> {record}, {first}")
        if record.sub == MAIN:
            return
        if end.numbered:
            if record.sequence_number not in outcome.unrecorded.get(record.entity_id * QUEUES_PER_ENTITY, []):
                raise Violation(f"a number that its entity did not issue: {record}")
        elif before is None or record.sequence_number != before.sequence_number:
            raise Violation(
                f"the sequence number changed on the way to the dead-letter queue: {before} -> {record}"
            )

    def _check_enqueued(self, record: Record, sent: Sent, commit: Commit, *, waited: bool = False) -> None:
        """Check when a message was enqueued; `waited`: it was active before, in a topic."""
        if record.state is not MessageState.ACTIVE:
            return
        at_ms = sent.scheduled_broker_ms
        if at_ms is not None:
            if commit.latest_ms < at_ms and not waited:
                raise Violation(f"activated before its time {at_ms}: {record}")
            if record.enqueued_at_ms < at_ms and not waited:  # the clock may have been set back meanwhile
                raise Violation(f"enqueued at {record.enqueued_at_ms}, before its time {at_ms}: {record}")
        if sent.ttl_ms is not None:
            facts = self._history.facts
            queues = (
                [record.queue_id] if not record.hops else [i * QUEUES_PER_ENTITY for i in facts.descriptions]
            )
            limits = {min(sent.ttl_ms, ttl_ms) for q in queues for ttl_ms in facts.default_ttls_ms(q)}
            own_ms = record.expires_at_ms - record.enqueued_at_ms
            if own_ms not in limits:
                raise Violation(f"expires {own_ms} ms after, not {limits}: {record}")

    def _check_session(self, record: Record, sent: Sent) -> None:
        requires = self._history.facts.description(record.queue_id).requires_session
        if record.session_id != (sent.session_id if requires else None):
            raise Violation(f"sent to session {sent.session_id!r}, stored in another: {record}")
        if requires and sent.session_id is None:
            raise Violation(f"a message without session id where sessions are required: {record}")

    def _check_partition(self, record: Record, sent: Sent) -> None:
        """Check that equal keys are in one partition (S-02), and a batch without keys too (S-03)."""
        description = self._history.facts.description(record.queue_id)
        if not self._history.facts.is_partitioned(record.entity_id):
            return
        key = sent.key(description)
        if key is None and sent.unit is not None:
            return  # it follows the partition of its transaction
        if key is None and description.requires_duplicate_detection:
            key = sent.message_id
        if key is None:
            # Forwarded one by one, the members of a batch go to partitions in turn.
            if not sent.group or record.hops or record.state is SCHEDULED:
                return
            if sent.scheduled_broker_ms is not None:
                return
            key = f"batch {sent.group}"
        partition = record.sequence_number >> PARTITION_SHIFT
        expected = self._partitions.setdefault((record.entity_id, key), partition)
        if partition != expected:
            raise Violation(f"key {key!r} was in partition {expected} before: {record}")

    def _check_reason(self, record: Record, before: Record, commit: Commit) -> None:
        """Check why a message was dead-lettered."""
        reason = record.dead_letter_reason()
        sent = self._history.sent[before.uid]
        if f"dead-letter {reason}" in sent.reasons:
            return
        unit = self.units.may_have_settled(sent, before, "dead-letter", reason, commit)
        if unit is not None:
            self.units.touch(unit, commit)
            return
        history = self._history.facts.history(before.queue_id)
        if reason == "TTLExpiredException":
            self._check_unlocked(before, commit)
        if reason == "MaxDeliveryCountExceeded":
            least = min(d.max_delivery_count for d in self._history.facts.possible(before.entity_id, commit))
            here = record.entity_id == before.entity_id and record.is_dead  # elsewhere the count begins again
            if here and record.delivery_count < least:
                raise Violation(f"dead-lettered for MaxDeliveryCount too early: {record}")
            # A deferred message does not expire, nor one whose last attempt was a deferral.
            deferred = "defer" in sent.reasons or any(kind == "defer" for _, _, kind, _ in sent.units)
            if (
                before.state is MessageState.ACTIVE
                and not deferred
                and self.expires_broker_ms(before, max) < commit.earliest_ms
            ):
                raise Violation(f"expired, yet dead-lettered for MaxDeliveryCount: {record}")
        elif reason == "TTLExpiredException":
            if not any(d.dead_lettering_on_expiration for d in history):
                raise Violation(f"dead-lettered on expiration where that is off: {record}")
            if self.expires_broker_ms(before, min) > commit.latest_ms:
                raise Violation(f"dead-lettered for expiration before it: {record}")
        elif reason != TOO_MANY_HOPS or record.hops < HOPS_MAX:
            raise Violation(f"dead-lettered for a reason that no client gave: {reason}, {record}")

    # Removals

    def explain(self, record: Record, elsewhere: list[Record], commit: Commit) -> str | None:
        """Return why a message may be gone from its queue."""
        if record.is_state:
            return self._states.explain(record, commit)
        sent = self._history.sent[record.uid]
        if elsewhere:
            return "moved"  # how and why is judged at its arrival there
        if self._history.facts.life(record.uid).copied is commit:
            return "copied"
        if record.key() in self._history.facts.cursors.removed:
            self._check_unlocked(record, commit)
            return "committed by a cursor"
        if "complete" in sent.reasons:
            return "completed"
        if record.sub == MAIN and record.state is SCHEDULED:
            name = self._history.facts.description(record.queue_id).name
            if (name, record.sequence_number) in self._history.cancels:
                return "cancelled"
            return self._explain_drop(record, sent, commit, known=False)
        self._check_unlocked(record, commit)
        waits = self._history.facts.is_topic(record.entity_id)  # nothing expires there
        if record.state is MessageState.ACTIVE and record.sub == MAIN and not waits:
            if self.expires_broker_ms(record, min) <= commit.latest_ms:
                return "expired"
        if drop := self._explain_drop(record, sent, commit, known=True):
            return drop
        if self.copies.leaves_nothing(record, sent, commit):
            return "chosen by no rule"
        for purge in self._history.purges:
            if (
                purge.queue_id == record.queue_id
                and record.enqueued_at_ms <= purge.before_broker_ms
                and purge.asked_ms <= commit.landed_ms
                and commit.opened_ms <= purge.latest_ms
            ):
                return "purged"
        unit = self.units.may_have_settled(sent, record, "complete", None, commit)
        if unit is not None:
            self._settled.append((record, unit))
            return "completed in a transaction"
        queue = self._history.facts.description(record.queue_id).name, record.sub
        if (budget := self._history.delete_budget.get(queue, 0)) > 0:
            self._history.delete_budget[queue] = budget - 1
            self._history.charged.setdefault(queue, []).append(record.uid)
            return "received and deleted"
        return self._explain_drop(record, sent, commit, known=False)

    def _check_settled(self, commit: Commit) -> None:
        """Settle the doubts of this batch: of what may be gone by a transaction without another effect in it,
        some may be gone for another reason."""
        settled, self._settled = self._settled, []
        for record, unit in settled:
            queue = self._history.facts.description(record.queue_id).name, record.sub
            if unit.applied is not commit and not self._history.delete_budget.get(queue):
                self.units.touch(unit, commit)

    def _explain_drop(self, record: Record, sent: Sent, commit: Commit, *, known: bool) -> str | None:
        """Return whether a message that is passed on may be dropped as a duplicate where it arrives. Without
        `known` the first one may have arrived in the same batch: that is checked once all of it is judged."""
        names: list[str] = []
        for description in self._history.facts.possible(record.entity_id, commit):
            for path in (description.forward_to, description.forward_dead_lettered_to):
                if path is not None:
                    names += self.arrivals.names_from(path)
        if known:
            dropped = self.arrivals.may_be_dropped(sent, names, commit.opened_ms)
        else:
            dropped = bool(names)
            self._drops.append((record, names))
        return "dropped as a duplicate" if dropped else None

    def _check_drops(self, commit: Commit) -> None:
        drops, self._drops = self._drops, []
        for record, names in drops:
            sent = self._history.sent[record.uid]
            if not self.arrivals.may_be_dropped(sent, names, commit.opened_ms):
                raise Violation(f"a message is gone without a request: {record}")
        missing, self.copies.drops = self.copies.drops, []
        for sent, names in missing:
            if not self.arrivals.may_be_dropped(sent, names, commit.opened_ms):
                raise Violation(f"a copy is missing and is no duplicate: {sent}")

    def is_dropped(self, uid: int, now_ms: int) -> bool:
        """Return whether a message that is not stored may have been dropped as a duplicate, or may have been
        chosen by no rule."""
        sent = self._history.sent[uid]
        names = self.arrivals.names_from(sent.queue)
        late = sent.unit is not None and not sent.ahead  # what is numbered ahead is checked twice
        at_ms = min(sent.unit.asked_ms if late and sent.unit is not None else sent.sent_ms, now_ms)
        if self.arrivals.may_be_dropped(sent, names, at_ms):
            return True
        return self.copies.passes_topic(sent.queue) and self.copies.may_have_left_nothing(sent, at_ms)

    def _check_unlocked(self, record: Record, commit: Commit) -> None:
        """Check that a message without a settlement was not removed under a live lock (E-03, A-06)."""
        if record.entity_id in self._history.facts.gone:
            return  # with its entity
        for lock in self._history.locks_of.get(record.uid, ()):
            if lock.queue_id != record.queue_id or lock.all_ends() or lock.settled is not None:
                continue
            taken_ms = lock.taken_ms if lock.hold is None else lock.seen_ms
            if taken_ms < commit.opened_ms and commit.taken_ms < lock.may_end_ms():
                raise Violation(f"a message is gone while it was locked: {record}, {lock}")

    def expires_broker_ms(self, record: Record, choose: Callable[[list[int]], int]) -> int:
        """Return when a message expires: the earliest (`min`) or latest (`max`) instant that the entity's
        settings allow. Where the clock went back, enqueued times do not move and it counts from the arrival,
        which a restart forgets."""
        lead_ms = 0
        if choose is min:
            facts = self._history.facts
            places = ((each, commit) for each, commit in facts.life(record.uid).records)
            born = [
                commit.earliest_ms
                for each, commit in places
                if (each.queue_id, each.position) == (record.queue_id, record.position)
            ]
            lead_ms = max(0, record.enqueued_at_ms - born[0]) if born else 0
        if record.expires_at_ms != NEVER_MS:
            return record.expires_at_ms - lead_ms
        ttl_ms = choose(list(self._history.facts.default_ttls_ms(record.queue_id)))
        return FOREVER if ttl_ms >= UNLIMITED_MS else record.enqueued_at_ms + ttl_ms - lead_ms
