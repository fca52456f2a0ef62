"""The durable facts, folded from the committed batches, and the invariants that hold whatever clients do.

Owns: a second, naive reading of `Change`: last record wins per key. Must not know: the broker's own
structures, or why a change was made: `Judge`, which the checker implements, knows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from peeklock.broker.vocabulary.changes import (
    QUEUES_PER_ENTITY,
    ClaimRemoved,
    ClaimStored,
    CursorRemoved,
    CursorStored,
    EntityRemoved,
    EntityStored,
    MessageIdSeen,
    MessageRemoved,
    MessageStored,
    NumbersIssued,
    RuleRemoved,
    RuleStored,
)
from peeklock.broker.vocabulary.descriptions import (
    UNLIMITED_MS,
    Description,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.message import MessageState
from peeklock.store.base import Definitions, Frame
from tests.simulation.oracle.cursors import CursorFacts
from tests.simulation.oracle.records import (
    MAIN,
    PARTITION_SHIFT,
    Commit,
    Key,
    Life,
    Record,
    Snapshot,
    Violation,
    copied,
    require_own,
    uid_of,
)


class Judge(Protocol):
    """Knows why something may have happened."""

    def explain(self, record: Record, elsewhere: list[Record], commit: Commit) -> str | None:
        """Return why a removed record may be gone, given the records of the same uid that the commit has put
        elsewhere; None = there is no reason."""

    def explain_entity(self, entity: EntityStored, commit: Commit) -> str | None:
        """Return why an entity may be gone."""

    def explain_rule(self, path: str, change: RuleStored | RuleRemoved, commit: Commit) -> str | None:
        """Return why a subscription may have got a rule, or lost it."""

    def identify(self, body_uid: int, parent: Record | None, born: list[Record], commit: Commit) -> list[int]:
        """Return which messages the records are that one step has put into new places: their uids, in order.

        Args:
            parent: the record that had to go for it; None = it was sent in this commit.
        """


@dataclass(slots=True)
class Outcome:
    """What a batch did beyond its records."""

    born: list[Record] = field(default_factory=list)
    """The records that it has put in a new place."""
    removed: list[Record] = field(default_factory=list)
    unrecorded: dict[int, list[int]] = field(default_factory=dict)
    """Queue id -> sequence numbers that were issued, without a record of that queue that has them."""
    late: list[Record] = field(default_factory=list)
    """Those of `born` that have a number which was issued before others that were stored."""


class Facts:
    """What is on stable storage."""

    def __init__(self, judge: Judge, first_uid: int = 0) -> None:
        self._judge = judge
        self._first_uid = first_uid
        self.live: dict[Key, Record] = {}
        self.where: dict[int, Key] = {}
        self.rows: dict[int, list[int]] = {}
        self.numbers: dict[int, NumbersIssued] = {}
        self.entities: dict[int, EntityStored] = {}
        self.descriptions: dict[int, list[tuple[int, Description]]] = {}
        """Every description an entity ever had with the number of its batch, by entity id."""
        self.rules: dict[int, dict[str, RuleDescription]] = {}
        """The rules of each subscription, by name in lower case."""
        self.rule_sets: dict[int, list[tuple[Commit, list[RuleDescription]]]] = {}
        """All rules that a subscription had after each change of one."""
        self.commits: list[Commit] = []
        self.redefining: list[Commit] = []
        """The batches among them that changed entities or rules."""
        self.gone: dict[int, Commit] = {}
        """Entities that were removed."""
        self.lives: dict[int, Life] = {}
        self.states: dict[tuple[int, str], Record] = {}
        """(entity id, session id) -> the record of the session's state."""
        self.cursors = CursorFacts()
        self.last_no = 0
        self.has_topics = False
        """There is a topic, or was one."""
        self._subscriptions: dict[int, list[int]] = {}
        self._topics: dict[int, int] = {}
        """Entity id of a subscription -> that of its topic."""
        self._origins: dict[int, int] = {}
        self._identities: dict[int, list[int]] = {}
        self._bodies: dict[int, int] = {}
        """uid -> in how many rows its body is stored."""
        self._of_gone: set[Key] = set()
        """Messages that went with their entity."""
        self._next_position: dict[int, int] = {}
        self._next_in_partition: dict[tuple[int, int], int] = {}
        self._free: dict[int, set[int]] = {}
        """Queue id -> positions that were issued and have no record yet: each may get one scheduled
        message."""
        self._last_enqueued_ms: dict[int, int] = {}

    def description(self, queue_id: int) -> Description:
        """Return the latest description of an entity, also of one that is gone."""
        return self.descriptions[queue_id // QUEUES_PER_ENTITY][-1][1]

    def history(self, queue_id: int) -> list[Description]:
        return [description for _, description in self.descriptions[queue_id // QUEUES_PER_ENTITY]]

    def name(self, entity_id: int) -> str:
        return self.descriptions[entity_id][0][1].name

    def is_topic(self, entity_id: int) -> bool:
        return isinstance(self.descriptions[entity_id][0][1], TopicDescription)

    def topic(self, entity_id: int) -> int | None:
        """Return the topic of a subscription."""
        return self._topics.get(entity_id)

    def subscriptions(self, entity_id: int) -> list[int]:
        """Return all subscriptions that a topic ever had."""
        return self._subscriptions.get(entity_id, [])

    def is_partitioned(self, entity_id: int) -> bool:
        return self.description(self._topics.get(entity_id, entity_id) * 4).enable_partitioning

    def default_ttls_ms(self, queue_id: int) -> set[int]:
        """Return the times to live that an entity's settings ever allowed; a topic's may be shorter (E-07).
        It counts in the subscriptions only."""
        entity_id = queue_id // QUEUES_PER_ENTITY
        if self.is_topic(entity_id):
            return {UNLIMITED_MS}
        above = self._topics.get(entity_id)
        limits = [UNLIMITED_MS] if above is None else [d.default_ttl_ms for d in self.history(above * 4)]
        return {min(d.default_ttl_ms, limit) for d in self.history(queue_id) for limit in limits}

    def possible_rules(self, entity_id: int, commit: Commit) -> list[list[RuleDescription]]:
        """Return the rules of a subscription that may have held when something in a commit was decided."""
        known = self.rule_sets.get(entity_id, [])
        before = [rules for when, rules in known if when.no < commit.no] or [[]]
        return before[-1:] + [rules for when, rules in known if when.no == commit.no]

    def most_rules(self) -> int:
        """Return how many rules all subscriptions of a topic ever had together, at most."""
        return max(
            (
                sum(max((len(r) for _, r in self.rule_sets.get(i, ())), default=0) for i in behind)
                for behind in self._subscriptions.values()
            ),
            default=0,
        )

    def identities(self, body_uid: int) -> list[int]:
        """Return the uid in a body and those of all copies that have this body."""
        return [body_uid, *self._identities.get(body_uid, ())]

    def origin(self, uid: int) -> int:
        """Return the uid in the body of a message."""
        return self._origins.get(uid, uid)

    def add_copy(self, uid: int, body_uid: int) -> None:
        """Register a uid as that of a copy."""
        self._origins[uid] = body_uid
        self._identities.setdefault(body_uid, []).append(uid)

    def possible(self, entity_id: int, commit: Commit) -> list[Description]:
        """Return the descriptions that may have held when something in a commit was decided."""
        before = [d for no, d in self.descriptions.get(entity_id, ()) if no < commit.no]
        return before[-1:] + [d for no, d in self.descriptions.get(entity_id, ()) if no == commit.no]

    def in_force(self, entity_id: int, from_ms: int, to_ms: int) -> list[Description]:
        """Return the descriptions that may have held at some time from an instant to another."""
        known = [(self.commits[no - 1], description) for no, description in self.descriptions[entity_id]]
        since = [index for index, (commit, _) in enumerate(known) if commit.taken_ms < from_ms]
        return [
            description
            for index, (commit, description) in enumerate(known)
            if index >= max(since, default=0) and commit.opened_ms <= to_ms
        ]

    def named(self, name: str) -> list[int]:
        """Return the ids of all entities that ever had a name, the latest last."""
        return [i for i, held in self.descriptions.items() if held[0][1].name == name]

    def life(self, uid: int) -> Life:
        life = self.lives.get(uid)
        if life is None:
            life = self.lives[uid] = Life()
        return life

    def messages(self) -> list[Record]:
        """Return all live records, except the states of sessions."""
        return [record for record in self.live.values() if not record.is_state]

    # A batch has become durable

    def apply(self, batch: Snapshot, commit: Commit) -> Outcome:
        """Fold a batch in. Raises: Violation."""
        if batch.no != self.last_no + 1:
            raise Violation(f"batch {batch.no} follows batch {self.last_no}")
        self.last_no = batch.no
        self.commits.append(commit)
        self._place_bodies(batch)
        for change in batch.changes:
            if isinstance(change, EntityStored | EntityRemoved | RuleStored | RuleRemoved):
                self._define(change, commit)
        self._identify(batch, commit)
        outcome = Outcome()
        issued: list[tuple[NumbersIssued | None, NumbersIssued]] = []
        for change in batch.changes:
            if isinstance(change, Record):
                self._stored(change, outcome, commit)
            elif isinstance(change, tuple):
                self._removed(change[0], outcome)
            elif isinstance(change, NumbersIssued):
                issued.append((self._numbers(change), change))
            elif isinstance(change, EntityStored):
                self.entities[change.entity_id] = change
            elif isinstance(change, EntityRemoved):
                self._entity_removed(change.entity_id, commit)
            elif isinstance(change, RuleStored | RuleRemoved):
                path = self.name(change.entity_id)
                if self._judge.explain_rule(path, change, commit) is None:
                    raise Violation(f"a rule of {path} without a request: {change}")
            elif isinstance(change, CursorStored | CursorRemoved | ClaimStored | ClaimRemoved):
                self.cursors.take(change, self.live, commit)
            else:
                assert isinstance(change, MessageIdSeen)
        self.cursors.check(self.live)
        for before, after in issued:
            self._count(before, after, outcome)
        self._moves(outcome, commit)
        self._check_rows(batch, outcome)
        return outcome

    # Entities and rules, which are known before anything in a batch is judged

    def _define(
        self, change: EntityStored | EntityRemoved | RuleStored | RuleRemoved, commit: Commit
    ) -> None:
        entity_id = change.entity_id
        if self.redefining[-1:] != [commit]:
            self.redefining.append(commit)
        if isinstance(change, EntityStored):
            description = change.description
            if isinstance(description, SubscriptionDescription) and entity_id not in self._topics:
                above = self.named(description.topic_name)[-1]
                self._topics[entity_id] = above
                self._subscriptions.setdefault(above, []).append(entity_id)
                self.rules[entity_id] = {}
            self.descriptions.setdefault(entity_id, []).append((commit.no, description))
            self.has_topics |= isinstance(description, TopicDescription)
        elif isinstance(change, EntityRemoved):
            if entity_id in self.entities or self.descriptions[entity_id][0][0] == commit.no:
                self.gone[entity_id] = commit
            self.rules.pop(entity_id, None)
            if any(i in self.entities and i not in self.gone for i in self.subscriptions(entity_id)):
                raise Violation(f"a topic is gone, and its subscriptions are not: {self.name(entity_id)}")
        else:
            rules = self.rules.get(entity_id)
            if rules is None:
                raise Violation(f"a rule of an entity that is no subscription, or is gone: {change}")
            if isinstance(change, RuleStored):
                rules[change.rule.name.lower()] = change.rule
            elif rules.pop(change.name.lower(), None) is None:
                raise Violation(f"a rule is removed that was not there: {change}")
            self.rule_sets.setdefault(entity_id, []).append((commit, list(rules.values())))

    # Bodies

    def _place_bodies(self, batch: Snapshot) -> None:
        for row, payloads in batch.rows.items():
            if row in self.rows:
                raise Violation(f"body row {row} is written twice")
            self.rows[row] = uids = [uid_of(payload) for payload in payloads]
            if len(set(uids)) < len(uids):
                raise Violation(f"a body is stored twice in row {row}: {uids}")
            for uid in uids:
                require_own(uid, self._first_uid, "stored")
                self._bodies[uid] = self._bodies.get(uid, 0) + 1

    # Which message a record is

    def _identify(self, batch: Snapshot, commit: Commit) -> None:
        """Assign each record its uid. The records that one step has put into new places follow each other,
        after the removal of the record that they replace, if there was one."""
        now: dict[Key, Record | None] = {}
        left: dict[int, Record] = {}
        born: list[Record] = []

        def close() -> None:
            if born:
                body_uid = born[0].body_uid
                uids = self._judge.identify(body_uid, left.pop(body_uid, None), born, commit)
                for record, uid in zip(born, uids, strict=True):
                    record.uid = uid
                born.clear()

        for change in batch.changes:
            if isinstance(change, Record):
                row = self.rows.get(change.row)
                if change.key() in self._of_gone or row is None or change.slot >= len(row):
                    continue
                change.body_uid = change.uid = row[change.slot]
                known = now.get(change.key(), self.live.get(change.key()))
                if known is not None and self.origin(known.uid or known.body_uid) == change.body_uid:
                    if known in born:
                        close()
                    change.uid = known.uid
                elif known is None and not change.is_state:
                    if born and born[0].body_uid != change.body_uid:
                        close()
                    born.append(change)
                now[change.key()] = change
            elif isinstance(change, tuple):
                close()
                gone = now.get(change[0], self.live.get(change[0]))
                now[change[0]] = None
                if gone is not None:
                    left[gone.body_uid] = gone
        close()

    def _stored(self, record: Record, outcome: Outcome, commit: Commit) -> None:
        if record.key() in self._of_gone:
            return  # copied forward before its space is won back: no one reads it any more
        if record.entity_id not in self.entities:
            raise Violation(f"a message is stored in an entity that does not exist: {record}")
        row = self.rows.get(record.row)
        if row is None or record.slot >= len(row):
            raise Violation(f"a record names a body that is not stored: {record}")
        before = self.live.get(record.key())
        if before is not None:
            self._changed(before, record)
        else:
            self._born(record, outcome)
            outcome.born.append(record)
        self.live[record.key()] = record
        life = self.life(record.uid)
        life.records.append((record, commit))
        life.removed = None
        if record.is_state:
            assert record.session is not None
            self.states[record.entity_id, record.session] = record

    def _removed(self, key: Key, outcome: Outcome) -> None:
        gone = self.live.pop(key, None)
        if gone is None:
            return
        self.cursors.message_removed(key)
        outcome.removed.append(gone)
        if gone.is_state:
            assert gone.session is not None
            if self.states.get((gone.entity_id, gone.session)) is gone:
                del self.states[gone.entity_id, gone.session]

    def _entity_removed(self, entity_id: int, commit: Commit) -> None:
        entity = self.entities.pop(entity_id, None)
        if entity is None or self._judge.explain_entity(entity, commit) is None:
            raise Violation(f"an entity is gone without a request: {entity}")
        self.cursors.entity_removed(entity_id, commit)
        for record in [record for record in self.live.values() if record.entity_id == entity_id]:
            del self.live[record.key()]
            self._of_gone.add(record.key())
            self.life(record.uid).removed = commit
            self.where.pop(record.uid, None)
        for key in [key for key in self.states if key[0] == entity_id]:
            del self.states[key]

    def _changed(self, before: Record, record: Record) -> None:
        if (before.uid, before.sequence_number, before.enqueued_at_ms, before.session_id) != (
            record.uid, record.sequence_number, record.enqueued_at_ms, record.session_id,
        ):  # fmt: skip
            raise Violation(f"a message became another: {before} -> {record}")
        if record.delivery_count < before.delivery_count:
            raise Violation(f"the delivery count went down: {before} -> {record}")
        if record.is_dead and record.delivery_count != before.delivery_count:
            raise Violation(f"the delivery count of a dead letter went up: {before} -> {record}")
        deferred = record.state is MessageState.DEFERRED and before.state is not MessageState.DEFERRED
        if deferred and not record.is_dead and record.delivery_count == before.delivery_count:
            raise Violation(f"deferred, yet the delivery count did not go up: {before} -> {record}")
        if record.state is not before.state and (before.state, record.state) != (
            MessageState.ACTIVE, MessageState.DEFERRED,
        ):  # fmt: skip
            raise Violation(f"no message may change its state so: {before} -> {record}")

    # Numbers

    def _born(self, record: Record, outcome: Outcome) -> None:
        """Check numbers: positions and sequence numbers are issued in order and never again."""
        queue_id = record.queue_id
        expected = self._next_position.get(queue_id, 1)
        free = self._free.setdefault(queue_id, set())
        if record.position in free and record.state is MessageState.SCHEDULED:
            free.remove(record.position)
            outcome.late.append(record)
            return
        if record.position < expected:
            raise Violation(f"a number is used again: {record}, expected position {expected}")
        if record.position > expected and (record.is_dead or record.is_state):
            raise Violation(f"a number is skipped: {record}, expected position {expected}")
        self._next_position[queue_id] = record.position + 1
        if record.sub != MAIN:
            return
        free.update(range(expected, record.position))
        if self.is_partitioned(record.entity_id):
            partition, order = record.sequence_number >> PARTITION_SHIFT, record.sequence_number
            if not 0 <= partition < 16:
                raise Violation(f"no partition has this number: {record}")
            expected = self._next_in_partition.get((queue_id, partition), partition << PARTITION_SHIFT | 1)
            if order < expected:
                raise Violation(f"a partition's number is used again: {record}, expected {expected:#x}")
            self._next_in_partition[queue_id, partition] = order + 1
        elif record.sequence_number != record.position:
            raise Violation(f"sequence number and position differ: {record}")
        if record.state is MessageState.ACTIVE:
            if record.enqueued_at_ms < self._last_enqueued_ms.get(queue_id, 0):
                raise Violation(f"enqueued time goes backwards: {record} at {record.enqueued_at_ms}")
            self._last_enqueued_ms[queue_id] = record.enqueued_at_ms

    def _numbers(self, change: NumbersIssued) -> NumbersIssued | None:
        before = self.numbers.get(change.queue_id)
        if before is not None and (
            change.next_position < before.next_position
            or change.next_sequence_number < before.next_sequence_number
            or change.last_enqueued_at_ms < before.last_enqueued_at_ms
            or any(new < old for new, old in zip(change.partitions, before.partitions, strict=True))
        ):
            raise Violation(f"counters go backwards: {before} -> {change}")
        self.numbers[change.queue_id] = change
        return before

    def _count(self, before: NumbersIssued | None, after: NumbersIssued, outcome: Outcome) -> None:
        """Find the numbers that a batch issued without a record."""
        queue_id = after.queue_id
        if queue_id % QUEUES_PER_ENTITY != MAIN or queue_id // QUEUES_PER_ENTITY not in self.entities:
            return
        used = {record.sequence_number for record in outcome.born if record.queue_id == queue_id}
        if after.partitions:
            issued = [
                partition << PARTITION_SHIFT | order
                for partition, next_order in enumerate(after.partitions)
                for order in range(1 if before is None else before.partitions[partition], next_order)
            ]
            if after.next_position - (1 if before is None else before.next_position) != len(issued):
                raise Violation(f"positions and numbers were not issued together: {before} -> {after}")
            for partition, next_order in enumerate(after.partitions):
                self._next_in_partition[queue_id, partition] = partition << PARTITION_SHIFT | next_order
        else:
            issued = list(range(1 if before is None else before.next_position, after.next_position))
        known = self._next_position.get(queue_id, 1)
        self._free.setdefault(queue_id, set()).update(range(known, after.next_position))
        self._next_position[queue_id] = max(known, after.next_position)
        if unrecorded := [number for number in issued if number not in used]:
            outcome.unrecorded.setdefault(queue_id, []).extend(unrecorded)

    # Places

    def _moves(self, outcome: Outcome, commit: Commit) -> None:
        """Check that each uid is in one place, and that each removal has a reason."""
        placed: dict[int, list[Record]] = {}
        for record in outcome.born:
            placed.setdefault(record.uid, []).append(record)
        for record in outcome.removed:
            elsewhere = [other for other in placed.get(record.uid, ()) if other.key() != record.key()]
            if self._judge.explain(record, elsewhere, commit) is None:
                raise Violation(f"a message is gone without a request: {record}")
            if self.where.get(record.uid) == record.key():
                del self.where[record.uid]
            if not any(other.key() in self.live for other in elsewhere):
                self.life(record.uid).removed = commit
        for record in outcome.born:
            if record.key() not in self.live:
                continue
            place = self.where.get(record.uid)
            if place is not None and place != record.key():
                raise Violation(f"a message is in two places: {record} and {self.live[place]}")
            self.where[record.uid] = record.key()
        for queue_id in {record.queue_id for record in outcome.born if record.entity_id in self.entities}:
            issued = self.numbers.get(queue_id)
            if issued is None or issued.next_position < self._next_position[queue_id]:
                raise Violation(f"numbers were issued that the batch does not record: {issued}")

    def _check_rows(self, batch: Snapshot, outcome: Outcome) -> None:
        for row in batch.dropped:
            for uid in self.rows.pop(row, ()):
                self._bodies[uid] -= 1
        for record in outcome.born:
            if record.key() in self.live and record.row not in self.rows:
                raise Violation(f"the body of a live message is not stored: {record}")
        if batch.dropped:
            dropped = set(batch.dropped)
            for record in self.live.values():
                if record.row in dropped:
                    raise Violation(f"body row {record.row} was dropped with a live message in it: {record}")
        written = {uid for payloads in batch.rows.values() for uid in map(uid_of, payloads)}
        shared = [uid for uid in written if uid in self._identities and self._bodies[uid] > 1]
        for uid in shared:
            places = {(r.row, r.slot) for r in self.live.values() if r.body_uid == uid}
            if len(places) > 1:
                raise Violation(f"the body of uid {uid} is stored for each of its copies: {places}")

    # Recovery

    def compare_definitions(self, found: Definitions) -> None:
        """Check that the store returns the entities and rules that were committed. Raises: Violation."""
        if {entity.entity_id: entity for entity in found.entities} != self.entities:
            raise Violation(f"the store returns other entities: {found.entities} for {self.entities}")
        rules: dict[int, dict[str, RuleDescription]] = {entity_id: {} for entity_id in self.rules}
        for stored in found.rules:
            rules.setdefault(stored.entity_id, {})[stored.rule.name.lower()] = stored.rule
        if rules != self.rules:
            raise Violation(f"the store returns other rules: {rules} for {self.rules}")
        self.cursors.compare(found)

    def compare(self, frames: Iterable[Frame], bodies: Mapping[int, Sequence[bytes]]) -> None:
        """Check that the store returns at a restart what was committed. Raises: Violation."""
        live: dict[Key, Record] = {}
        numbers: dict[int, NumbersIssued] = {}
        for frame in frames:
            for change in frame.changes:
                if isinstance(change, MessageStored):
                    record = copied(change)
                    assert isinstance(record, Record)
                    live[record.key()] = record
                elif isinstance(change, MessageRemoved):
                    live.pop((change.queue_id, change.message.position), None)
                elif isinstance(change, NumbersIssued):
                    numbers[change.queue_id] = change
        for key, record in live.items():
            if record.entity_id not in self.entities:
                continue  # its entity was removed
            expected = self.live.get(key)
            if expected is None:
                raise Violation(f"the store returns a message that was removed: {record}")
            if record.row not in bodies:
                raise Violation(f"the store returns a record with another body: {record} for {expected}")
            record.body_uid = uid_of(bodies[record.row][record.slot])
            record.uid = expected.uid if record.body_uid == expected.body_uid else record.body_uid
            if record != expected:
                raise Violation(f"the store returns another record: {record} for {expected}")
        for key, expected in self.live.items():
            if key not in live:
                raise Violation(f"the store has lost a message: {expected}")
        for queue_id, issued in self.numbers.items():
            if queue_id // QUEUES_PER_ENTITY in self.entities and numbers.get(queue_id) != issued:
                raise Violation(f"the store has lost counters: {numbers.get(queue_id)} for {issued}")
