"""Requests about rules, and their results (P-03).

Owns: each request to add, change or remove a rule, and each list of rules that a client read. Must not know:
the effect of a rule (`copies`). An acknowledged rule is durable, and judges each message sent after that; a
rule without a request must not exist.
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
    """A request to set or remove a rule."""

    path: str
    name: str
    rule: RuleDescription | None
    """None = remove it."""
    asked_ms: int
    refused: bool = False


class Rulings:
    """All requests about rules."""

    def __init__(self, history: History, rulebook: Rulebook) -> None:
        self._history = history
        self.rulebook = rulebook
        self._requests: dict[tuple[str, str], list[RuleRequest]] = {}
        self.answered_count = 0

    def asking(self, path: str, name: str, rule: RuleDescription | None) -> RuleRequest:
        """Record a request to set or remove a rule of a subscription."""
        request = RuleRequest(path, name, rule, self._history.now_ms())
        self._requests.setdefault((path, name.lower()), []).append(request)
        return request

    def answered(self, request: RuleRequest, condition: str | None) -> None:
        """Check the answer; `condition` None = done. Raises: Violation."""
        states = self._states(request.path, request.asked_ms)
        rule = request.rule
        if condition is None:
            self.answered_count += 1
            if rule is None:
                kept = any(all(known.name.lower() != request.name.lower() for known in s) for s in states)
            else:
                kept = any(same(known, rule) for s in states for known in s)
            if not kept:
                raise Violation(
                    f"a change of a rule is acknowledged, yet is not on stable storage: {request}"
                )
            return
        request.refused = True
        there = [any(known.name.lower() == request.name.lower() for known in s) for s in states]
        justified = any(there) if condition == EXISTS else condition == MISSING and not all(there)
        if condition == EXISTS and rule is None:
            justified = False
        if not justified and not (condition == MISSING and self._history.may_be_gone(request.path)):
            raise Violation(f"a change of a rule was refused with {condition}: {request}, {states}")

    def listed(self, path: str, asked_ms: int, found: list[RuleDescription]) -> None:
        """Check a list of all rules of a subscription. Raises: Violation."""
        names = [rule.name for rule in found]
        if names != sorted(names):
            raise Violation(f"the rules of {path} are out of order: {names}")
        for rules in self._states(path, asked_ms):
            expected = sorted(rules, key=lambda rule: rule.name)
            if len(expected) == len(found) and all(map(same, expected, found)):
                return
        raise Violation(f"{path} never had these rules together since {asked_ms}: {found}")

    def _states(self, path: str, since_ms: int) -> list[list[RuleDescription]]:
        """Return the rules that a subscription had at any time since then."""
        found: list[list[RuleDescription]] = []
        for entity_id in self._history.facts.named(path):
            known = self._history.facts.rule_sets.get(entity_id, [])
            before = [rules for when, rules in known if when.taken_ms < since_ms]
            found += before[-1:] + [rules for when, rules in known if when.taken_ms >= since_ms]
        return found

    def explain(self, path: str, change: RuleStored | RuleRemoved, commit: Commit) -> str | None:
        """Return why a subscription may have got a rule, or lost it."""
        name = change.name if isinstance(change, RuleRemoved) else change.rule.name
        for request in self._requests.get((path, name.lower()), ()):
            if request.refused or request.asked_ms > commit.taken_ms:
                continue
            if isinstance(change, RuleRemoved):
                if request.rule is None:
                    return "removed"
            elif request.rule is not None and same(request.rule, change.rule):
                return "asked for"
        return None
