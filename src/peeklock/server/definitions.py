"""What became of entities and rules, in the log.

Owns: the log lines of created, changed and deleted entities and rules, whoever asked for it: the
administration, a client, or nobody, when an entity was idle for too long. Must not know: who asked (`http`
logs the administration's requests).
"""

from __future__ import annotations

from collections.abc import Iterable

from peeklock.broker.changes import Change, EntityRemoved, EntityStored, RuleRemoved, RuleStored
from peeklock.broker.descriptions import KINDS
from peeklock.broker.effects import EntityView
from peeklock.server import log

DEFINITIONS = frozenset({EntityStored, EntityRemoved, RuleStored, RuleRemoved})
"""Facts that are told."""


class DefinitionLog:
    """Tells of definitions from the moment on in which it is told what there is."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, str]] | None = None  # kind and name by entity id

    def begin(self, entities: Iterable[EntityView]) -> None:
        """Tell from now on; what a start changes is told as a whole."""
        self._known = {
            view.entity_id: (KINDS[type(view.description)].value, view.description.name) for view in entities
        }

    def take(self, facts: Iterable[Change]) -> None:
        """Tell of facts that are durable now, in their order."""
        known = self._known
        if known is None:
            return
        for fact in facts:
            match fact:
                case EntityStored():
                    event = "entity changed" if fact.entity_id in known else "entity created"
                    kind, name = KINDS[type(fact.description)].value, fact.description.name
                    known[fact.entity_id] = (kind, name)
                    log.info(event, {"kind": kind, "name": name})
                case EntityRemoved() if fact.entity_id in known:  # else it went while the broker started
                    kind, name = known.pop(fact.entity_id)
                    log.info("entity deleted", {"kind": kind, "name": name})
                case RuleStored():
                    subscription = known[fact.entity_id][1]
                    log.info("rule set", {"subscription": subscription, "rule": fact.rule.name})
                case RuleRemoved():
                    subscription = known[fact.entity_id][1]
                    log.info("rule removed", {"subscription": subscription, "rule": fact.name})
