"""What became of entities and rules, in the log.

Owns: the log lines of created, changed and deleted entities and rules, whoever asked for it: the
administration, a client, or nobody, when an entity was idle for too long. Must not know: who asked (`http`
logs the administration's requests).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from peeklock.broker.vocabulary.changes import Change, EntityRemoved, EntityStored, RuleRemoved, RuleStored
from peeklock.broker.vocabulary.descriptions import KINDS, RuleDescription
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.config.rules import write_rule
from peeklock.rules.filters import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from peeklock.server import log

DEFINITIONS = frozenset({EntityStored, EntityRemoved, RuleStored, RuleRemoved})
"""Facts that are told."""

EXPRESSION_CHARACTERS_MAX = 200
"""Of a filter or action. Our choice: a rule may have 64 KiB."""

LINES_MAX = 600
WINDOW_MS = 60_000
"""Lines, and in which time. Our choice: enough for a deployment; whoever may receive may also change rules,
and a client that does so in a loop must not bury the log."""


class DefinitionLog:
    """Tells of definitions from the moment on in which it is told what there is."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, str]] | None = None  # kind and name by entity id
        self._window_ends_ms = 0
        self._lines = 0
        self._left_out = 0

    def begin(self, entities: Iterable[EntityView]) -> None:
        """Tell from now on; what a start changes is told as a whole."""
        self._known = {
            view.entity_id: (KINDS[type(view.description)].value, view.description.name) for view in entities
        }

    def take(self, facts: Iterable[Change], now_ms: int) -> None:
        """Tell of facts that are durable now, in their order, or count them."""
        known = self._known
        if known is None:
            return
        if now_ms >= self._window_ends_ms:
            self.finish()
            self._window_ends_ms = now_ms + WINDOW_MS
        for fact in facts:
            match fact:
                case EntityStored() if fact.deleting:
                    pass  # told when it is gone
                case EntityStored():
                    event = "entity changed" if fact.entity_id in known else "entity created"
                    kind, name = KINDS[type(fact.description)].value, fact.description.name
                    known[fact.entity_id] = (kind, name)
                    self._tell(event, {"kind": kind, "name": name})
                case EntityRemoved() if fact.entity_id in known:  # else it went while the broker started
                    kind, name = known.pop(fact.entity_id)
                    self._tell("entity deleted", {"kind": kind, "name": name})
                case RuleStored():
                    subscription = known[fact.entity_id][1]
                    rule = {"rule": fact.rule.name, **_expressions(fact.rule)}
                    self._tell("rule set", {"subscription": subscription, **rule})
                case RuleRemoved():
                    subscription = known[fact.entity_id][1]
                    self._tell("rule removed", {"subscription": subscription, "rule": fact.name})

    def tick(self, now_ms: int) -> None:
        """Let time pass: say how much was left out, once the window is over."""
        if self._left_out and now_ms >= self._window_ends_ms:
            self.finish()

    def finish(self) -> None:
        """Say now how much was left out."""
        if self._left_out:
            log.info("lines about entities and rules left out", {"count": self._left_out})
        self._lines = self._left_out = 0

    def _tell(self, event: str, fields: Mapping[str, str]) -> None:
        if self._lines < LINES_MAX:
            self._lines += 1
            log.info(event, fields)
        else:
            self._left_out += 1


def _expressions(rule: RuleDescription) -> dict[str, str]:
    """Say what a rule's filter is, and its action if it has one, as Config.json does."""
    match rule.filter:
        case SqlFilter():
            filtered = rule.filter.expression
        case CorrelationFilter():
            filtered = json.dumps(write_rule(rule)["Properties"]["CorrelationFilter"], ensure_ascii=False)
        case TrueFilter() | FalseFilter():
            filtered = write_rule(rule)["Properties"]["FilterType"]
    texts = {"filter": filtered} | ({} if rule.action is None else {"action": rule.action.expression})
    return {key: _cut(text) for key, text in texts.items()}


def _cut(text: str) -> str:
    return text if len(text) <= EXPRESSION_CHARACTERS_MAX else f"{text[:EXPRESSION_CHARACTERS_MAX]}..."
