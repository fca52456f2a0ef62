"""Commands about entities and rules. Each is answered to `reply_to`, or by Failed(reply_to, error)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from peeklock.broker.vocabulary.descriptions import Description, EntityKind, RuleDescription

if TYPE_CHECKING:
    from peeklock.broker.vocabulary.commands import Address, ReplyTo

IfMatch: TypeAlias = tuple[str, ...] | None
"""Accepted current versions (If-Match), else PreconditionFailed; None = any. See `EntityView.version` and
`RuleDescription.version`."""


@dataclass(slots=True)
class LookUp:
    """Ask whether an entity is there -> EntityFound | Failed(EntityNotFound). For CBS (404) and the like."""

    address: Address
    reply_to: ReplyTo


@dataclass(slots=True)
class CreateEntity:
    """-> EntityFound of the new entity."""

    description: Description
    reply_to: ReplyTo
    rule: RuleDescription | None = None
    """First rule of a subscription; None = `$Default`, which takes all messages."""


@dataclass(slots=True)
class UpdateEntity:
    """Replace the mutable settings of an entity, live (A-07); held locks drop (L-12) if something changed ->
    EntityFound."""

    description: Description
    reply_to: ReplyTo
    if_match: IfMatch = None


@dataclass(slots=True)
class DeleteEntity:
    """-> Done. Its links are detached; a topic goes with its subscriptions."""

    path: str
    reply_to: ReplyTo
    if_match: IfMatch = None


@dataclass(slots=True)
class ListEntities:
    """-> EntitiesFound, sorted by name."""

    kind: EntityKind
    skip: int
    top: int
    reply_to: ReplyTo
    topic: str | None = None
    """Of which topic subscriptions are listed."""


# Rules of subscriptions. `path` is the subscription's; names of rules compare without regard to case.


@dataclass(slots=True)
class AddRule:
    """-> RulesFound of the new rule. A message that is sent from now on is judged by it."""

    path: str
    rule: RuleDescription
    reply_to: ReplyTo


@dataclass(slots=True)
class UpdateRule:
    """Replace filter and action of a rule -> RulesFound of it."""

    path: str
    rule: RuleDescription
    reply_to: ReplyTo
    if_match: IfMatch = None


@dataclass(slots=True)
class RemoveRule:
    """-> Done. What the subscription holds already stays."""

    path: str
    name: str
    reply_to: ReplyTo
    if_match: IfMatch = None


@dataclass(slots=True)
class FindRule:
    """-> RulesFound of one rule."""

    path: str
    name: str
    reply_to: ReplyTo


@dataclass(slots=True)
class ListRules:
    """-> RulesFound, sorted by name; may be empty."""

    path: str
    skip: int
    top: int
    reply_to: ReplyTo


DefinitionCommand: TypeAlias = (
    LookUp | CreateEntity | UpdateEntity | DeleteEntity | ListEntities | AddRule | UpdateRule | RemoveRule |
    FindRule | ListRules
)  # fmt: skip
