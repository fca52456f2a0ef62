"""What a topic makes of a message: which copies there must be, and which of them a record is (P-01, P-02,
P-04).

Owns: the rules of subscriptions as messages meet them, by the evaluator of `rulebook`. Must not know: the
broker's structures. What is expected of one step (a send, a forward, what waited in a topic) is worked out
from the descriptions and rules that were durable then; where some changed in the same batch, there are
alternatives, and one of them must fit, as a whole: so no copy is lost, none is made twice, and all are in one
batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import Any

from peeklock.broker.descriptions import Description, RuleDescription
from tests.simulation.arrivals import Arrivals
from tests.simulation.facts import Facts
from tests.simulation.history import History, Sent
from tests.simulation.records import Commit, Record, Violation
from tests.simulation.routes import FAN_OUT, End, Routes
from tests.simulation.rulebook import Rulebook, Traits, Undecidable

EVALUATION_FAILED = "FilterEvaluationException"

ALTERNATIVES_MAX = 5_000
"""More are not looked at: rules that change all the time, on all subscriptions, in one batch."""

FIRST_COPY = 10_000_000
"""Uids of copies begin here; those in bodies have eight digits and are far lower."""

Key = tuple[tuple[int, str], ...]
"""The way of a copy: (subscription, what chose it) for each topic that it came through."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A message between two topics."""

    key: Key
    traits: Traits
    dead_from: str | None


@dataclass(frozen=True, slots=True)
class Variant:
    """One copy that a subscription is to have."""

    chosen_by: str
    """The rule, when it has an action."""
    traits: Traits
    reason: str | None = None
    """Why it is a dead letter from the start."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One record that there must be, unless it is dropped as a duplicate on its way."""

    stage: Stage
    ends: tuple[End, ...]
    passed: tuple[tuple[Key, int], ...]
    """Which entities have numbered what it was before, in which stage."""


@dataclass(slots=True)
class Born:
    """How a record has come to its place."""

    end: End
    parent: Record | None
    numbered: tuple[int, ...]
    """Entities that numbered a message on the way to this record, the first one first."""
    passed: list[int]
    """Those of them that were not told of with a record before."""
    arrivals: list[tuple[Sent, int]]
    """What arrived there, for duplicate detection."""


@dataclass(slots=True)
class Copies:
    """All copies of all messages."""

    history: History
    routes: Routes
    arrivals: Arrivals
    rulebook: Rulebook
    count: int = 0
    buried: int = 0
    born: dict[tuple[int, int], Born] = field(default_factory=dict)
    """Of the records of this batch that came over a topic."""
    drops: list[tuple[Sent, list[str]]] = field(default_factory=list)
    """Copies of this batch that must have been dropped as duplicates, and the names of where that may be."""

    @property
    def _facts(self) -> Facts:
        return self.history.facts

    # Births

    def identify(self, body_uid: int, parent: Record | None, born: list[Record], commit: Commit) -> list[int]:
        """Tell which messages the records of one step are. Raises: Violation, if they are not those that
        there must be."""
        base = body_uid if parent is None else parent.uid
        sent = self.history.sent.get(base)
        if sent is None or not self._facts.has_topics:
            return [base] * len(born)
        starts = self.routes.starts(parent, sent, commit)
        if not any(end.sub == FAN_OUT for end in starts):
            return [base] * len(born)
        best: tuple[list[Slot], list[Slot]] | None = None
        for slots in self._expand(starts, _root(sent, parent), (), commit):
            found = self._match(slots, born, sent)
            if found is not None and (best is None or len(slots) < len(best[1])):
                best = found, slots
                if len(slots) == len(born):
                    break  # else some would have to be duplicates
        if best is not None:
            return self._take(*best, parent, born, sent, commit)
        first = next(iter(self._expand(starts, _root(sent, parent), (), commit)), [])
        raise Violation(
            f"not the copies that the rules choose of uid {base}, {sent.traits}:"
            f" {[str(record) for record in born]}, expected {self._told(first)}; {self._rules(starts)};"
            f" {self.history.story(base)}"
        )

    def _take(
        self,
        found: list[Slot],
        slots: list[Slot],
        parent: Record | None,
        born: list[Record],
        sent: Sent,
        commit: Commit,
    ) -> list[int]:
        if found == slots and found[0].stage.key == ():
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
            end = _end(slot, record)
            assert end is not None
            self._sent(slot.stage, stages)
            passed = [*slot.passed, *((slot.stage.key, entity_id) for entity_id in end.numbered)]
            news = [step for step in dict.fromkeys(passed) if step not in told]
            told.update(news)
            arrivals = [(stages[key], entity_id) for key, entity_id in news]
            if sent.via is not None and parent is None and () in [key for key, _ in news]:
                del arrivals[0]  # ids are no concern of what it only passes
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
        for slot in slots:
            if slot not in found:
                self.drops.append((self._sent(slot.stage, stages), self._names(slot)))
        return [stages[slot.stage.key].uid for slot in found]

    def _sent(self, stage: Stage, stages: dict[Key, Sent]) -> Sent:
        """Give what stands for a copy: it is as if it had been sent to its subscription."""
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
        sent = stages[stage.key]
        sent.traits, sent.session_id = stage.traits, stage.traits.session_id
        return sent

    def _match(self, slots: list[Slot], born: list[Record], sent: Sent) -> list[Slot] | None:
        """Give the slot of each record; None when they do not fit: one is left over, or missing."""
        if len(born) > len(slots):
            return None
        chosen: list[int] = []
        first = self.history.sent[self._facts.origin(sent.uid)].traits
        traits = [record.traits(first) for record in born]

        def choose(index: int) -> bool:
            if index == len(born):
                left = [slot for no, slot in enumerate(slots) if no not in chosen]
                return all(self._may_be_duplicate(slot, sent) for slot in left)
            for no, slot in enumerate(slots):
                if no not in chosen and slot.stage.traits == traits[index] and _end(slot, born[index]):
                    chosen.append(no)
                    if choose(index + 1):
                        return True
                    chosen.pop()
            return False

        return [slots[no] for no in chosen] if choose(0) else None

    # What leaves no trace

    def leaves_nothing(self, before: Record | None, sent: Sent, commit: Commit) -> bool:
        """Tell whether no rule may have chosen a message, when something in a commit was decided, or all of
        its copies may have been dropped."""
        if not self._facts.has_topics:
            return False
        starts = [end for end in self.routes.starts(before, sent, commit) if end.sub == FAN_OUT]
        return any(
            all(self._may_be_duplicate(slot, sent) for slot in slots)
            for slots in self._expand(starts, _root(sent, before), (), commit)
        )

    def may_have_left_nothing(self, sent: Sent, since_ms: int) -> bool:
        """Tell the same of a message that was sent at some time since then, up to now."""
        commits = [commit for commit in self._facts.commits if commit.taken_ms >= since_ms][:1]
        commits += [commit for commit in self._facts.redefining if commit.taken_ms >= since_ms]
        return any(self.leaves_nothing(None, sent, commit) for commit in commits)

    def passes_topic(self, name: str) -> bool:
        """Tell whether what is sent to a name may come to a topic."""
        if not self._facts.has_topics:
            return False
        return any(
            self._facts.is_topic(i) for n in self.arrivals.names_from(name) for i in self._facts.named(n)
        )

    def _may_be_duplicate(self, slot: Slot, sent: Sent) -> bool:
        if sent.message_id is None or not slot.stage.key:
            return False
        return any(
            self._facts.description(entity_id * 4).requires_duplicate_detection
            for name in self._names(slot)
            for entity_id in self._facts.named(name)
        )

    def _names(self, slot: Slot) -> list[str]:
        return self.arrivals.names_from(self._facts.name(slot.stage.key[0][0]))

    # What there must be

    def _expand(
        self, ends: list[End], stage: Stage, passed: tuple[tuple[Key, int], ...], commit: Commit
    ) -> Iterator[list[Slot]]:
        """Give all that may become of a message with these ends: each answer is one alternative."""
        places = tuple(end for end in ends if end.sub != FAN_OUT)
        if places:
            yield [Slot(stage, places, passed)]
        for end in ends:
            if end.sub == FAN_OUT:
                so_far = (*passed, *((stage.key, entity_id) for entity_id in end.numbered))
                yield from self._fan_out(end, stage, so_far, commit)

    def _fan_out(
        self, end: End, stage: Stage, passed: tuple[tuple[Key, int], ...], commit: Commit
    ) -> Iterator[list[Slot]]:
        dead_from = end.dead_from or stage.dead_from
        choices: list[list[list[Slot]]] = []
        for entity_id in self._facts.subscriptions(end.entity_id):
            if self.routes.may_be_there(entity_id, commit):
                came = replace(stage, dead_from=dead_from)
                found = list(islice(self._of(entity_id, end.hops, came, passed, commit), ALTERNATIVES_MAX))
                if not self.routes.surely_there(entity_id, commit):
                    found.append([])
                choices.append(_distinct(found))
        for chosen in islice(product(*choices), ALTERNATIVES_MAX):
            yield [slot for slots in chosen for slot in slots]

    def _of(
        self, entity_id: int, hops: int, stage: Stage, passed: tuple[tuple[Key, int], ...], commit: Commit
    ) -> Iterator[list[Slot]]:
        """Give what may become of a message in one subscription of a topic."""
        for description in self._facts.possible(entity_id, commit):
            for rules in self._facts.possible_rules(entity_id, commit):
                alternatives: list[list[list[Slot]]] = []
                for variant in self.variants(description, rules, stage.traits):
                    key = (*stage.key, (entity_id, variant.chosen_by))
                    next_stage = Stage(key, variant.traits, stage.dead_from)
                    session_id = variant.traits.session_id
                    if variant.reason is None:
                        ends = self.routes.of_copy(entity_id, hops, session_id, commit, stage.dead_from)
                    else:
                        ends = self.routes.of_buried_copy(
                            entity_id, hops, session_id, commit, stage.dead_from, variant.reason
                        )
                    alternatives.append(list(self._expand(ends, next_stage, passed, commit)))
                for chosen in product(*alternatives):
                    yield [slot for slots in chosen for slot in slots]

    def variants(
        self, description: Description, rules: Iterable[RuleDescription], traits: Traits
    ) -> list[Variant]:
        """Give the copies that a subscription with these rules is to have."""
        buries = getattr(description, "dead_lettering_on_filter_errors", False)
        found: dict[str, Variant] = {}
        failed = False
        for rule in rules:
            ruling = self.rulebook.meaning(rule)
            assert ruling is not None, rule
            try:
                if ruling.condition.judge(traits) is not True:
                    continue
                if ruling.statements:
                    found[rule.name] = Variant(rule.name, ruling.act(traits, rule.name))
                else:
                    found[""] = Variant("", traits)
            except Undecidable:
                failed = True
        if failed and buries:
            return [Variant("", traits, EVALUATION_FAILED)]
        return list(found.values())

    # For a report

    def _told(self, slots: list[Slot]) -> list[Any]:
        return [
            (slot.stage.key, [(e.entity_id, e.sub, e.hops, e.reason) for e in slot.ends]) for slot in slots
        ]

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


def _end(slot: Slot, record: Record) -> End | None:
    """Give the end of a slot that a record may be at."""
    reason = record.dead_letter_reason()
    for end in slot.ends:
        if (
            (end.entity_id, end.sub, end.hops, end.dead_from or slot.stage.dead_from)
            == (record.entity_id, record.sub, record.hops, record.dead_letter_source)
            and (end.reason is None or end.reason == reason)
        ):  # fmt: skip
            return end
    return None


def _distinct(alternatives: list[list[Slot]]) -> list[list[Slot]]:
    found: list[list[Slot]] = []
    for slots in alternatives:
        if slots not in found:
            found.append(slots)
    return found
