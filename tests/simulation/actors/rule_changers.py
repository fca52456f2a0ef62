"""Clients that change rules while messages come: over the management node of a subscription, and by the
administration (P-03).

Owns: which rules change, by the world's random source. Must not know: the effect of a rule, the broker's
internals.
"""

from __future__ import annotations

from typing import Any

from peeklock.amqp.types import Described, Int
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    RuleDescription,
    SubscriptionDescription,
)
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlAction, SqlFilter, TrueFilter
from tests.simulation.actors.actors import Actor, Shared
from tests.simulation.actors.requests import refused
from tests.simulation.oracle.records import Violation
from tests.simulation.oracle.rulebook import draw
from tests.simulation.oracle.rulings import EXISTS, MISSING

NAMES = (DEFAULT_RULE_NAME, "first", "Second", "third")

_EMPTY_ACTION = 0x0000013700000005
_SQL_FILTER, _TRUE_FILTER, _FALSE_FILTER = 0x1370000006, 0x1370000007, 0x1370000008
"""Descriptors. Source: wire contract 5.2."""


class RuleChanger(Actor):
    """Adds, changes, removes and lists the rules of all subscriptions."""

    def __init__(self, shared: Shared, name: str, subscriptions: list[SubscriptionDescription]) -> None:
        super().__init__(shared, name)
        self._subscriptions = subscriptions

    def ready(self) -> None:
        self.next_time(self.random.randint(0, 1_000), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        random = self.random
        self.next_time(random.choice((0, 5, 400, 3_000)), self._act)
        subscription = random.choice(self._subscriptions)
        path, name = subscription.name, random.choice(NAMES)
        roll = random.random()
        if roll < 0.35:
            self._add(path, self._made(subscription, name))
        elif roll < 0.5:
            self._remove(path, name)
        elif roll < 0.65:
            self._list(path)
        elif roll < 0.95:
            kind = random.choice(("add", "update", "remove"))
            rule = None if kind == "remove" else self._made(subscription, name)
            self.shared.tenant.rule(path, name, rule, kind)
        else:
            self.leave()

    def _made(self, subscription: SubscriptionDescription, name: str) -> RuleDescription:
        ruling = draw(self.random, sessions=subscription.requires_session)
        return self.checker.rulings.rulebook.describe(ruling, name)

    def _add(self, path: str, rule: RuleDescription) -> None:
        described: dict[str, Any] = _filter(rule.filter)
        if rule.action is not None:
            described["sql-rule-action"] = {"expression": rule.action.expression}
        body = {"rule-name": rule.name, "rule-description": described}
        self._change("com.microsoft:add-rule", path, rule.name, rule, body)

    def _remove(self, path: str, name: str) -> None:
        self._change("com.microsoft:remove-rule", path, name, None, {"rule-name": name})

    def _change(
        self, operation: str, path: str, name: str, rule: RuleDescription | None, body: dict[str, Any]
    ) -> None:
        assert self.peer is not None
        request = self.checker.rulings.asking(path, name, rule)
        self.world.note(f"{self.name}: {operation} {name} of {path}: {rule}")

        def answered(status: int, condition: str | None, body: Any) -> None:
            if status == 0:
                return
            self.world.note(f"{self.name}: {operation} {name} of {path} {status} {condition}")
            if condition in (None, EXISTS, MISSING):
                self.checker.rulings.answered(request, condition)
            elif refused(self, path, operation, condition):
                request.refused = True

        self.peer.ask(path, operation, body, answered)

    def _list(self, path: str) -> None:
        assert self.peer is not None
        asked_ms = self.now_ms

        def answered(status: int, condition: str | None, body: Any) -> None:
            if status == 0:
                return
            none = condition == "com.microsoft:rules-not-found"
            if not none and refused(self, path, "listing rules", condition):
                return
            found = [] if none else [_read(entry["rule-description"]) for entry in body["rules"]]
            self.world.note(f"{self.name}: rules of {path}: {found}")
            self.checker.rulings.listed(path, asked_ms, found)

        self.peer.ask(path, "com.microsoft:enumerate-rules", {"top": Int(100), "skip": Int(0)}, answered)


def _filter(wanted: Filter) -> dict[str, Any]:
    """Encode a filter as clients do."""
    if isinstance(wanted, SqlFilter):
        return {"sql-filter": {"expression": wanted.expression}}
    if isinstance(wanted, TrueFilter):
        return {"true-filter": {}}
    if isinstance(wanted, FalseFilter):
        return {"false-filter": {}}
    fields: dict[str, Any] = {} if wanted.label is None else {"label": wanted.label}
    pairs = {name: Int(value) if isinstance(value, int) else value for name, value in wanted.properties}
    return {"correlation-filter": {**fields, "properties": pairs}}


def _read(described: Described) -> RuleDescription:
    """Decode a rule as clients do."""
    found, action, name = described.value[:3]
    wanted: Filter
    if found.descriptor == _SQL_FILTER:
        wanted = SqlFilter(found.value[0])
    elif found.descriptor == _TRUE_FILTER:
        wanted = TrueFilter()
    elif found.descriptor == _FALSE_FILTER:
        wanted = FalseFilter()
    else:
        label, pairs = found.value[4], found.value[8]
        if any(found.value[no] is not None for no in (0, 1, 2, 3, 5, 6, 7)):
            raise Violation(f"a filter has another form than it was created with: {found}")
        wanted = CorrelationFilter(label=label, properties=tuple(pairs.items()))
    if action.descriptor == _EMPTY_ACTION:
        return RuleDescription(name, wanted)
    return RuleDescription(name, wanted, SqlAction(action.value[0]))
