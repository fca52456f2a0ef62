"""Commands about entities and rules. Each is answered to `reply_to`, or by Failed(reply_to, error)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from peeklock.broker.vocabulary.addresses import Address, ReplyTo
from peeklock.broker.vocabulary.descriptions import Description, EntityKind, RuleDescription

IfMatch: TypeAlias = tuple[str, ...] | None
"""Accepted current versions (If-Match), else PreconditionFailed; None = any. See `EntityView.version` and
`RuleDescription.version`."""


@dataclass(slots=True)
class LookUp:
    """-> EntityFound | Failed(EntityNotFound)."""

    address: Address
    reply_to: ReplyTo


@dataclass(slots=True)
class CreateEntity:
    """-> EntityFound, the new entity."""

    description: Description
    reply_to: ReplyTo
    rule: RuleDescription | None = None
    """First rule of a subscription; None = `$Default`, which matches all messages."""


@dataclass(slots=True)
class UpdateEntity:
    """Replace the mutable settings of an entity in use (A-07) -> EntityFound. A change drops locks (L-12)."""

    description: Description
    reply_to: ReplyTo
    if_match: IfMatch = None


@dataclass(slots=True)
class DeleteEntity:
    """-> Done. Detaches its links; a topic is deleted with its subscriptions."""

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
    """Topic whose subscriptions are listed."""


# Rules of subscriptions. `path` is the subscription's; names of rules compare case-insensitively.


@dataclass(slots=True)
class AddRule:
    """-> RulesFound, the new rule. It applies to messages that are sent from now on."""

    path: str
    rule: RuleDescription
    reply_to: ReplyTo


@dataclass(slots=True)
class UpdateRule:
    """Replace filter and action of a rule -> RulesFound, that rule."""

    path: str
    rule: RuleDescription
    reply_to: ReplyTo
    if_match: IfMatch = None


@dataclass(slots=True)
class RemoveRule:
    """-> Done. Messages in the subscription stay."""

    path: str
    name: str
    reply_to: ReplyTo
    if_match: IfMatch = None


@dataclass(slots=True)
class FindRule:
    """-> RulesFound, one rule."""

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
