"""What a topic makes of a message: which copies must exist, and which of them a record is (P-01, P-02, P-04).

Owns: the uids of copies, how many may follow from one message (C15), and which may leave no trace. Must not
know: the broker's structures, and how it divides the limit among copies. The expected result of one step (a
send, a forward, a message that waited in a topic) is worked out (`search`) from the descriptions and rules
that were durable then; where some changed in the same batch, there are alternatives, and one of them must fit
as a whole: so no copy is lost, none is made twice, and all are in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.simulation.oracle.arrivals import Arrivals
from tests.simulation.oracle.facts import Facts
from tests.simulation.oracle.history import History, Sent
from tests.simulation.oracle.records import Commit, Record, Violation
from tests.simulation.oracle.routes import FAN_OUT, HOPS_MAX, TOO_MANY_HOPS, End, Routes
from tests.simulation.oracle.rulebook import Rulebook
from tests.simulation.oracle.search import EVALUATION_FAILED, Key, Search, Slot, Stage
from tests.simulation.world.sizes import COPIES_FOLLOWING_MAX

FIRST_COPY = 10_000_000
"""Uids of copies begin here; those in bodies have eight digits and are far lower."""


@dataclass(slots=True)
class Born:
    """How a record has come to its place."""

    end: End
    parent: Record | None
    numbered: tuple[int, ...]
    """Entities that numbered a message on the way to this record, the first one first."""
    passed: list[int]
    """Those of them that no earlier record of the step had."""
    arrivals: list[tuple[Sent, int]]
    """What arrived there, for duplicate detection."""


@dataclass(slots=True)
class Copies:
    """All copies of all messages."""

    history: History
    routes: Routes
    arrivals: Arrivals
    rulebook: Rulebook
    most: int = COPIES_FOLLOWING_MAX
    """How many may follow from one message."""
    count: int = 0
    buried: int = 0
    born: dict[tuple[int, int], Born] = field(default_factory=dict)
    """Of the records of this batch that came over a topic."""
    drops: list[tuple[Sent, list[str]]] = field(default_factory=list)
    """Copies of this batch that must have been dropped as duplicates, and the names of where that may be."""
    over: int = 0
    """Dead letters that would have become more copies than may follow from one message."""
    following: dict[int, int] = field(default_factory=dict)
    """uid -> how many copies have followed from it."""
    _first: dict[int, tuple[int, int]] = field(default_factory=dict)
    """uid of a copy -> the message from which it follows, and how many topics are between; a copy without an
    entry counts from itself."""

    @property
    def _facts(self) -> Facts:
        return self.history.facts

    # Births

    def identify(self, body_uid: int, parent: Record | None, born: list[Record], commit: Commit) -> list[int]:
        """Return which messages the records of one step are. Raises: Violation, if they are not those that
        must exist."""
        base = body_uid if parent is None else parent.uid
        sent = self.history.sent.get(base)
        if sent is None or not self._facts.has_topics:
            return [base] * len(born)
        starts = self.routes.starts(parent, sent, commit)
        if not any(end.sub == FAN_OUT for end in starts):
            return [base] * len(born)
        search = self._search(sent, born, commit)
        if search.find(starts, _root(sent, parent)):
            return self._take(search.found, search.missing, parent, born, sent, commit)
        raise Violation(
            f"not the copies that the rules choose of uid {base}, {sent.traits}:"
            f" {[str(record) for record in born]}; {self._rules(starts)};"
            f" {self.history.story(base)}"
        )

    def _search(self, sent: Sent, born: list[Record], commit: Commit) -> Search:
        first = self.history.sent[self._facts.origin(sent.uid)].traits
        return Search(
            self._facts, self.rulebook, born, first, commit, lambda slot: self._may_be_duplicate(slot, sent)
        )

    def _take(
        self,
        found: list[Slot],
        missing: list[Slot],
        parent: Record | None,
        born: list[Record],
        sent: Sent,
        commit: Commit,
    ) -> list[int]:
        if not missing and found[0].stage.key == ():
            return [sent.uid]  # it rests before the topic, or in it
        life = self._facts.life(sent.uid)
        if life.copies or (parent is None and life.records):
            raise Violation(f"uid {sent.uid} was copied again: {born[0]}; {self.history.story(sent.uid)}")
        if len({(record.row, record.slot) for record in born}) > 1:
            raise Violation(f"copies of uid {sent.uid} do not share one body: {born}")
        if len({record.enqueued_sequence_number for record in born}) > 1:
            raise Violation(f"copies of uid {sent.uid} have different enqueued numbers: {born}")
        life.copied = commit
        stages: dict[Key, Sent] = {(): sent}
        told: set[tuple[Key, int]] = set()
        for record, slot in zip(born, found, strict=True):
            end = slot.end(record)
            assert end is not None
            self._sent(slot.stage, stages, commit)
            passed = [*slot.passed, *((slot.stage.key, entity_id) for entity_id in end.numbered)]
            news = [step for step in dict.fromkeys(passed) if step not in told]
            told.update(news)
            arrivals = [(stages[key], entity_id) for key, entity_id in news]
            if sent.via is not None and parent is None and () in [key for key, _ in news]:
                del arrivals[0]  # ids do not matter to what it only passes
            if record.sub == 0:
                arrivals.append((stages[slot.stage.key], record.entity_id))
            copy = stages[slot.stage.key]
            self.born[record.key()] = Born(
                end,
                parent,
                tuple(entity_id for _, entity_id in passed),
                [entity_id for _, entity_id in news],
                arrivals,
            )
            life.copies.append(copy.uid)
            self.count += 1
            self.buried += record.dead_letter_reason() == EVALUATION_FAILED
            self.check_refused(copy.uid, end, record)
        for slot in missing:
            self.drops.append((self._sent(slot.stage, stages, commit), self._names(slot)))
        return [stages[slot.stage.key].uid for slot in found]

    def _sent(self, stage: Stage, stages: dict[Key, Sent], commit: Commit) -> Sent:
        """Return the stand-in for a copy: as if it had been sent to its subscription."""
        for length in range(1, len(stage.key) + 1):
            key = stage.key[:length]
            if key not in stages:
                before = stages[key[:-1]]
                uid = FIRST_COPY + len(self.history.sent)
                stages[key] = self.history.sent[uid] = replace(
                    before,
                    uid=uid,
                    queue=self._facts.name(key[-1][0]),
                    via=None,
                    unit=None,
                    group=0,
                    outcome=None,
                    reasons=set(),
                    units=[],
                    copy_of=before.uid,
                )
                self._facts.add_copy(uid, self._facts.origin(before.uid))
                self._count(uid, before.uid, key[-1][0], commit)
        sent = stages[stage.key]
        sent.traits, sent.session_id = stage.traits, stage.traits.session_id
        return sent

    def _count(self, uid: int, before_uid: int, entity_id: int, commit: Commit) -> None:
        """Count a copy among those that follow from one message. One from which no way leads to a topic
        counts from itself, should an update open one."""
        first, topics = self._first.get(before_uid, (before_uid, 0))
        self.following[first] = self.following.get(first, 0) + 1
        if self.following[first] > self.most:
            raise Violation(f"more than {self.most} copies follow from uid {first}")
        if self.routes.leads_to_topic(entity_id, commit):
            self._first[uid] = first, topics + 1

    def check_refused(self, uid: int, end: End, record: Record) -> None:
        """Check whether a message is a dead letter since it would have become too many copies: what a topic
        leaves of the limit is divided among its copies, in portions of what the next one may make."""
        if (
            end.reason != TOO_MANY_HOPS
            or record.dead_letter_reason() != TOO_MANY_HOPS
            or end.hops >= HOPS_MAX
        ):
            return
        self.over += 1
        if uid not in self._first and self.history.sent[uid].copy_of is not None:
            return  # when it was made, there was no way to a topic, or perhaps none
        _, topics = self._first.get(uid, (uid, 0))
        rules = max(self._facts.most_rules(), 1)
        least = self.most
        for _ in range(topics):
            least = (least - rules) // rules - rules
        if least >= rules:
            raise Violation(
                f"refused, though {least} copies may follow from it: {record}; {self.history.story(uid)}"
            )

    # What leaves no trace

    def leaves_nothing(self, before: Record | None, sent: Sent, commit: Commit) -> bool:
        """Return whether no rule may have chosen a message, when something in a commit was decided, or all of
        its copies may have been dropped."""
        if not self._facts.has_topics:
            return False
        starts = [end for end in self.routes.starts(before, sent, commit) if end.sub == FAN_OUT]
        return self._search(sent, [], commit).find(starts, _root(sent, before))

    def may_have_left_nothing(self, sent: Sent, since_ms: int) -> bool:
        """Return the same for a message that was sent at some time since then, up to now."""
        commits = [commit for commit in self._facts.commits if commit.taken_ms >= since_ms][:1]
        commits += [commit for commit in self._facts.redefining if commit.taken_ms >= since_ms]
        return any(self.leaves_nothing(None, sent, commit) for commit in commits)

    def passes_topic(self, name: str) -> bool:
        """Return whether messages for a name may come to a topic."""
        if not self._facts.has_topics:
            return False
        return any(
            self._facts.is_topic(i) for n in self.arrivals.names_from(name) for i in self._facts.named(n)
        )

    def _may_be_duplicate(self, slot: Slot, sent: Sent) -> bool:
        if sent.message_id is None:
            return False
        return any(
            self._facts.description(entity_id * 4).requires_duplicate_detection
            for name in self._names(slot)
            for entity_id in self._facts.named(name)
        )

    def _names(self, slot: Slot) -> list[str]:
        return self.arrivals.names_from(self._facts.name(slot.stage.key[0][0]))

    # For a report

    def _rules(self, starts: list[End]) -> str:
        facts = self._facts
        topics = [end.entity_id for end in starts if end.sub == FAN_OUT]
        known = [i for topic in topics for i in facts.subscriptions(topic) if i in facts.rules]
        return "; ".join(
            f"{facts.name(i)} ({i}): {[(r.name, r.filter, r.action) for r in facts.rules[i].values()]}"
            for i in known
        )


def _root(sent: Sent, parent: Record | None) -> Stage:
    return Stage((), sent.traits, None if parent is None else parent.dead_letter_source)
