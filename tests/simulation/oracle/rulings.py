"""What was asked about rules, and what became of it (P-03).

Owns: each wish to add, change or remove a rule, and each list of them that a client read. Must not know: what
a rule does (`copies`). A rule that is answered for is durable, and judges each message sent after that; one
that nobody asked for must not be there.
"""

from __future__ import annotations

from dataclasses import dataclass

from peeklock.broker.vocabulary.changes import RuleRemoved, RuleStored
from peeklock.broker.vocabulary.descriptions import RuleDescription
from tests.simulation.oracle.history import History
from tests.simulation.oracle.records import Commit, Violation
from tests.simulation.oracle.rulebook import Rulebook, same

EXISTS = "com.microsoft:entity-already-exists"
MISSING = "amqp:not-found"


@dataclass(slots=True, eq=False)
class RuleRequest:
    """Somebody wants a rule, or wants it no more."""

    path: str
    name: str
    rule: RuleDescription | None
    """None = it is to be removed."""
    asked_ms: int
    refused: bool = False


class Rulings:
    """All wishes."""

    def __init__(self, history: History, rulebook: Rulebook) -> None:
        self._history = history
        self.rulebook = rulebook
        self._wishes: dict[tuple[str, str], list[RuleRequest]] = {}
        self.answered_count = 0

    def asking(self, path: str, name: str, rule: RuleDescription | None) -> RuleRequest:
        """Somebody asks for a rule of a subscription, or for its removal."""
        wish = RuleRequest(path, name, rule, self._history.now_ms())
        self._wishes.setdefault((path, name.lower()), []).append(wish)
        return wish

    def answered(self, wish: RuleRequest, condition: str | None) -> None:
        """The answer has come; `condition` None = done. Raises: Violation."""
        states = self._states(wish.path, wish.asked_ms)
        rule = wish.rule
        if condition is None:
            self.answered_count += 1
            if rule is None:
                kept = any(all(known.name.lower() != wish.name.lower() for known in s) for s in states)
            else:
                kept = any(same(known, rule) for s in states for known in s)
            if not kept:
                raise Violation(f"a change of a rule is acknowledged, yet is not on stable storage: {wish}")
            return
        wish.refused = True
        there = [any(known.name.lower() == wish.name.lower() for known in s) for s in states]
        justified = any(there) if condition == EXISTS else condition == MISSING and not all(there)
        if condition == EXISTS and rule is None:
            justified = False
        if not justified and not (condition == MISSING and self._history.may_be_gone(wish.path)):
            raise Violation(f"a change of a rule was refused with {condition}: {wish}, {states}")

    def listed(self, path: str, asked_ms: int, found: list[RuleDescription]) -> None:
        """A client has read all rules of a subscription. Raises: Violation."""
        names = [rule.name for rule in found]
        if names != sorted(names):
            raise Violation(f"the rules of {path} are out of order: {names}")
        for rules in self._states(path, asked_ms):
            expected = sorted(rules, key=lambda rule: rule.name)
            if len(expected) == len(found) and all(map(same, expected, found)):
                return
        raise Violation(f"{path} never had these rules together since {asked_ms}: {found}")

    def _states(self, path: str, since_ms: int) -> list[list[RuleDescription]]:
        """Give the rules that a subscription had at any time since then."""
        found: list[list[RuleDescription]] = []
        for entity_id in self._history.facts.named(path):
            known = self._history.facts.rule_sets.get(entity_id, [])
            before = [rules for when, rules in known if when.taken_ms < since_ms]
            found += before[-1:] + [rules for when, rules in known if when.taken_ms >= since_ms]
        return found

    def explain(self, path: str, change: RuleStored | RuleRemoved, commit: Commit) -> str | None:
        """Say why a subscription may have got a rule, or lost it."""
        name = change.name if isinstance(change, RuleRemoved) else change.rule.name
        for wish in self._wishes.get((path, name.lower()), ()):
            if wish.refused or wish.asked_ms > commit.taken_ms:
                continue
            if isinstance(change, RuleRemoved):
                if wish.rule is None:
                    return "removed"
            elif wish.rule is not None and same(wish.rule, change.rule):
                return "asked for"
        return None
