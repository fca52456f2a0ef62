"""The search for how one step can have led to the records that it has put into new places (P-01, P-02, C15).

Owns: what topics make of a message, by the rules of their subscriptions and the evaluator of `rulebook`, and
which record each copy is. Must not know: the uids of copies (`copies`), the broker's structures, and how it
divides the limit of copies.

Theory of operation. In a circle one step may be dozens of copies, each of which may rest in several places or
become copies again. So the alternatives are not listed: the search assigns one copy after the other to a
record of this step, and backtracks from a dead end. Rules and descriptions that changed in the same batch
give alternatives too, the same for all copies of a step. Copies that may be duplicates may be missing, as few
as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from peeklock.broker.vocabulary.descriptions import Description, RuleDescription
from tests.simulation.oracle.facts import Facts
from tests.simulation.oracle.records import Commit, Record
from tests.simulation.oracle.routes import FAN_OUT, End, Routes
from tests.simulation.oracle.rulebook import Rulebook, Traits, Undecidable

EVALUATION_FAILED = "FilterEvaluationException"

STEPS_MAX = 50_000
"""More are not tried: rules that change all the time, on all subscriptions, in one batch."""

Key = tuple[tuple[int, str], ...]
"""The way of a copy: (subscription, what chose it) for each topic that it came through."""

Passed = tuple[tuple[Key, int], ...]
"""Which entities have numbered what a copy was before, in which stage."""

Choice = tuple[Description, list[RuleDescription]] | None
"""What may have held for a subscription; None: it did not exist."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A message between two topics."""

    key: Key
    traits: Traits
    dead_from: str | None


@dataclass(frozen=True, slots=True)
class Variant:
    """One copy that a subscription must get."""

    chosen_by: str
    """The rule, when it has an action."""
    traits: Traits
    reason: str | None = None
    """Why it is a dead letter from the start."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One record that must exist, unless it is dropped as a duplicate on its way."""

    stage: Stage
    ends: tuple[End, ...]
    passed: Passed

    def end(self, record: Record) -> End | None:
        """Return the end that a record may be at."""
        reason = record.dead_letter_reason()
        for end in self.ends:
            if (
                (end.entity_id, end.sub, end.hops, end.dead_from or self.stage.dead_from)
                == (record.entity_id, record.sub, record.hops, record.dead_letter_source)
                and (end.reason is None or end.reason == reason)
            ):  # fmt: skip
                return end
        return None


@dataclass(frozen=True, slots=True)
class _Way:
    """A message, or a copy of it, that must be at one of its ends."""

    stage: Stage
    ends: tuple[End, ...]
    passed: Passed


@dataclass(frozen=True, slots=True)
class _Share:
    """What one subscription must get of a message that its topic distributes."""

    entity_id: int
    hops: int
    stage: Stage
    passed: Passed


_Pending = tuple[_Way | _Share, "_Pending"] | None
"""What is still to be found, the next one first."""


class Search:
    """One search. Its result, once `find` returned true: the slot of each record, in order, and those of the
    missing copies."""

    def __init__(
        self,
        facts: Facts,
        rulebook: Rulebook,
        born: list[Record],
        first: Traits,
        commit: Commit,
        may_be_missing: Callable[[Slot], bool],
    ) -> None:
        """Prepare the search; `first`: what rules saw of the message when it was sent."""
        self._facts = facts
        self._routes = Routes(facts)
        self._rulebook = rulebook
        self._commit = commit
        self._born = born
        self._traits = [record.traits(first) for record in born]
        self._may_be_missing = may_be_missing
        self._missing_max = 0
        self._wants_more = False
        self._held: dict[int, list[Choice]] = {}
        self._steps = 0
        self._found: list[Slot | None] = [None] * len(born)
        self.missing: list[Slot] = []

    @property
    def found(self) -> list[Slot]:
        return [slot for slot in self._found if slot is not None]

    def find(self, ends: Iterable[End], stage: Stage) -> bool:
        """Find how a message with these ends can have led to the records."""
        while True:
            self._wants_more = False
            if self._solve((_Way(stage, tuple(ends), ()), None)):
                return True
            if not self._wants_more:
                return False
            self._missing_max += 1

    def _solve(self, pending: _Pending) -> bool:
        if pending is None:
            return None not in self._found
        self._steps += 1
        if self._steps > STEPS_MAX:
            return False
        task, rest = pending
        return self._go(task, rest) if isinstance(task, _Way) else self._share(task, rest)

    def _go(self, way: _Way, rest: _Pending) -> bool:
        slot = Slot(way.stage, tuple(end for end in way.ends if end.sub != FAN_OUT), way.passed)
        if slot.ends and self._rest(slot, rest):
            return True
        if any(self._give_out(end, way, rest) for end in way.ends if end.sub == FAN_OUT):
            return True
        return bool(slot.ends) and self._miss(slot, rest)

    def _rest(self, slot: Slot, rest: _Pending) -> bool:
        """Try each record that a copy may be; of those that look alike, one."""
        tried: set[tuple[object, ...]] = set()
        for index, record in enumerate(self._born):
            if self._found[index] is not None or self._traits[index] != slot.stage.traits:
                continue
            looks = record.queue_id, record.hops, record.dead_letter_source, record.dead_letter_reason()
            if looks in tried or slot.end(record) is None:
                continue
            tried.add(looks)
            self._found[index] = slot
            if self._solve(rest):
                return True
            self._found[index] = None
        return False

    def _miss(self, slot: Slot, rest: _Pending) -> bool:
        if not slot.stage.key or not self._may_be_missing(slot):
            return False
        if len(self.missing) >= self._missing_max:
            self._wants_more = True
            return False
        self.missing.append(slot)
        if self._solve(rest):
            return True
        self.missing.pop()
        return False

    def _give_out(self, end: End, way: _Way, rest: _Pending) -> bool:
        stage = replace(way.stage, dead_from=end.dead_from or way.stage.dead_from)
        passed = (*way.passed, *((stage.key, entity_id) for entity_id in end.numbered))
        for entity_id in reversed(self._facts.subscriptions(end.entity_id)):
            if self._routes.may_be_there(entity_id, self._commit):
                rest = _Share(entity_id, end.hops, stage, passed), rest
        return self._solve(rest)

    def _share(self, share: _Share, rest: _Pending) -> bool:
        entity_id = share.entity_id
        before = self._held.get(entity_id)
        alternatives: list[tuple[list[Variant], list[Choice]]] = []
        for choice in self._choices(entity_id) if before is None else before:
            variants = [] if choice is None else self._variants(*choice, share.stage.traits)
            alike = next((choices for known, choices in alternatives if known == variants), None)
            if alike is None:
                alternatives.append((variants, [choice]))
            else:
                alike.append(choice)
        for variants, choices in alternatives:
            self._held[entity_id] = choices
            pending = rest
            for variant in reversed(variants):
                pending = self._way(share, variant), pending
            if self._solve(pending):
                return True
        if before is None:
            self._held.pop(entity_id, None)
        else:
            self._held[entity_id] = before
        return False

    def _way(self, share: _Share, variant: Variant) -> _Way:
        """Return the way of a copy from the subscription on that chose it."""
        entity_id, traits, dead_from = share.entity_id, variant.traits, share.stage.dead_from
        stage = Stage((*share.stage.key, (entity_id, variant.chosen_by)), traits, dead_from)
        if variant.reason is None:
            ends = self._routes.of_copy(entity_id, share.hops, traits.session_id, self._commit, dead_from)
        else:
            ends = self._routes.of_buried_copy(
                entity_id, share.hops, traits.session_id, self._commit, dead_from, variant.reason
            )
        return _Way(stage, tuple(ends), share.passed)

    def _choices(self, entity_id: int) -> list[Choice]:
        choices: list[Choice] = [
            (description, rules)
            for description in self._facts.possible(entity_id, self._commit)
            for rules in self._facts.possible_rules(entity_id, self._commit)
        ]
        return choices if self._routes.surely_there(entity_id, self._commit) else [*choices, None]

    def _variants(
        self, description: Description, rules: Iterable[RuleDescription], traits: Traits
    ) -> list[Variant]:
        """Return the copies that a subscription with these rules must get."""
        buries = getattr(description, "dead_lettering_on_filter_errors", False)
        found: dict[str, Variant] = {}
        failed = False
        for rule in rules:
            ruling = self._rulebook.meaning(rule)
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
