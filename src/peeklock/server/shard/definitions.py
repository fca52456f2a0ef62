"""Log lines of created, changed and deleted entities and rules, whatever caused the change."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from peeklock.broker.vocabulary.changes import Change, EntityRemoved, EntityStored, RuleRemoved, RuleStored
from peeklock.broker.vocabulary.descriptions import KINDS, RuleDescription
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.config.rules import write_rule
from peeklock.rules.filters import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from peeklock.server import log
from peeklock.server.line_limits import LineLimit

DEFINITIONS = frozenset({EntityStored, EntityRemoved, RuleStored, RuleRemoved})
"""Changes that have a line."""

EXPRESSION_CHARACTERS_MAX = 200
"""Of a filter or action. Our choice: a rule may have 64 KiB."""

LINES_MAX = 600
"""A minute. Our choice: enough for a deployment; a client with the right to receive may also change rules in
a loop, and must not fill the log."""


class DefinitionLog(LineLimit):
    """Logs definitions from `begin` on."""

    def __init__(self) -> None:
        super().__init__(LINES_MAX, "lines about entities and rules left out", log.info)
        self._known: dict[int, tuple[str, str]] | None = None  # kind and name by entity id

    def begin(self, entities: Iterable[EntityView]) -> None:
        """Log changes to these entities from now on; what the start changed is logged as a whole."""
        self._known = {
            view.entity_id: (KINDS[type(view.description)].value, view.description.name) for view in entities
        }

    def take(self, changes: Iterable[Change], now_ms: int) -> None:
        """Log changes that have become durable, in their order, or count them."""
        known = self._known
        if known is None:
            return
        for change in changes:
            match change:
                case EntityStored() if change.deleting:
                    pass  # logged when it is gone
                case EntityStored():
                    event = "entity changed" if change.entity_id in known else "entity created"
                    kind, name = KINDS[type(change.description)].value, change.description.name
                    known[change.entity_id] = (kind, name)
                    self._log(event, {"kind": kind, "name": name}, now_ms)
                case EntityRemoved() if change.entity_id in known:  # else removed during the start
                    kind, name = known.pop(change.entity_id)
                    self._log("entity deleted", {"kind": kind, "name": name}, now_ms)
                case RuleStored():
                    rule = {"rule": change.rule.name, **_expressions(change.rule)}
                    self._log("rule set", {"subscription": known[change.entity_id][1], **rule}, now_ms)
                case RuleRemoved():
                    fields = {"subscription": known[change.entity_id][1], "rule": change.name}
                    self._log("rule removed", fields, now_ms)

    def _log(self, event: str, fields: Mapping[str, str], now_ms: int) -> None:
        if self.admits(now_ms):
            log.info(event, fields)


def _expressions(rule: RuleDescription) -> dict[str, str]:
    """Return a rule's filter, and its action if it has one, as in Config.json."""
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
