"""What a namespace has, read over its administration: as definitions of a target, as a configuration of a
source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from peeklock.broker.vocabulary.descriptions import (
    AuthorizationRule,
    Description,
    RuleDescription,
    SubscriptionDescription,
)
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.client.requests import AdministrationError
from peeklock.config.file import Config, EntityConfig, RuleConfig
from peeklock.config.namespace_limits import NamespaceLimits
from peeklock.config.settings import PROPERTIES
from peeklock.moving.administration import Administration
from peeklock.templates.found import Found, as_set


@dataclass(frozen=True, slots=True)
class Definitions:
    """All entities and rules of a namespace, with settings as one sets them."""

    name: str
    tier: str
    """Key of `TIERS`."""
    entities: dict[str, Description]
    """By path in lower case; a topic before its subscriptions."""
    rules: dict[str, tuple[RuleDescription, ...]]
    """By path of a subscription in lower case."""


def read_definitions(
    administration: Administration, progress: Callable[[int], None] = lambda count: None
) -> Definitions:
    """Read all definitions; `progress` is called with the number of entities so far.

    Raises: AdministrationError.
    """
    name, tier = administration.info()
    if tier not in TIERS:
        raise AdministrationError(f"the tier {tier!r} of {administration.where} is not known")
    found = Definitions(name, tier, {}, {})

    def add(description: Description) -> None:
        found.entities[description.name.lower()] = _as_set(description)
        progress(len(found.entities))

    for queue in administration.queues():
        add(queue)
    for topic in list(administration.topics()) if TIERS[tier].topics else ():
        add(topic)
        for subscription in list(administration.subscriptions(topic.name)):
            add(subscription)
            rules = administration.rules(topic.name, subscription.subscription_name)
            found.rules[subscription.name.lower()] = tuple(replace(rule, created_at_ms=0) for rule in rules)
    return found


def as_source(found: Definitions) -> Found:
    """Return the configuration that makes another namespace agree with this one."""
    entities = []
    for key, description in found.entities.items():
        settings = {field: getattr(description, field) for field, _ in PROPERTIES[type(description)].values()}
        if not isinstance(description, SubscriptionDescription) and description.authorization_rules:
            settings["authorization_rules"] = description.authorization_rules
        path = f"'{description.name}'"
        rules = None
        if isinstance(description, SubscriptionDescription):
            bare: Description = SubscriptionDescription(description.topic_name, description.subscription_name)
            rules = tuple(RuleConfig(f"{path} rule '{rule.name}'", rule) for rule in found.rules[key])
        else:
            bare = type(description)(description.name)
        entities.append(EntityConfig(path, bare, settings, rules))
    note = (
        "the keys of the namespace itself cannot be read: make those that clients use with `peeklock keys "
        "add`, and give the clients the new ones"
    )
    return Found((Config(found.name, tuple(entities), NamespaceLimits(tier=found.tier)),), (note,))


def _as_set(description: Description) -> Description:
    """Return an entity as it was set: sizes of one partition, forwards by name, keys without times."""
    settings = {field.name: getattr(description, field.name) for field in fields(description)}
    made = replace(description, **as_set(settings))
    if isinstance(made, SubscriptionDescription) or not made.authorization_rules:
        return made
    return replace(made, authorization_rules=tuple(_without_times(rule) for rule in made.authorization_rules))


def _without_times(rule: AuthorizationRule) -> AuthorizationRule:
    return replace(rule, created_at_ms=0, modified_at_ms=0)
