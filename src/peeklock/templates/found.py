"""What a file defines: a configuration for each namespace, and notes of what is not offered.

`Builder` is filled by the readers. They name settings as Config.json does; `PROPERTIES` is the one table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from peeklock.broker.entities.validation import (
    MAX_SIZE_MB_MIN,
    MESSAGE_SIZE_KB_MIN,
    is_name,
    is_part_name,
)
from peeklock.broker.queue.sequence_numbers import PARTITION_COUNT
from peeklock.broker.vocabulary.descriptions import (
    GIVEN_FORWARDS,
    UNLIMITED_MS,
    AuthorizationRule,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    subscription_path,
)
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.file import Config, EntityConfig, RuleConfig
from peeklock.config.form import ConfigError, Form, Taken, shown
from peeklock.config.namespace_limits import NamespaceLimits
from peeklock.config.rules import SHORT_NAME_RULE, is_short_name
from peeklock.config.settings import NAME_RULE, PROPERTIES, read_settings
from peeklock.rules.filters import FalseFilter, Filter, SqlFilter, TrueFilter

NEVER_MS = 10_675_198 * 86_400_000
"""From here on a duration means "never": Azure exports AutoDeleteOnIdle as P10675198DT2H48M5.477S."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a source defines."""

    configs: tuple[Config, ...]
    """One for each namespace, in the order in which they come."""
    notes: tuple[str, ...] = ()
    """What the source has and is not offered here, each with its place and what to do."""
    spelled: Callable[[str], str] = str
    """Returns a place below an entity, such as `.Properties.LockDuration`, as the source spells it."""

    def place(self, problem: str) -> str:
        """Return a problem of the configuration with its place as the source spells it."""
        path, separator, what = problem.partition(": ")
        entity, below, keys = path.partition(".Properties")
        return f"{entity}{self.spelled(below + keys) if below else ''}{separator}{what}"


@dataclass(slots=True)
class _Namespace:
    name: str
    tier: str | None = None
    entities: dict[str, EntityConfig] = field(default_factory=dict)
    """By path in lower case."""
    rules: dict[str, list[RuleConfig]] = field(default_factory=dict)
    shared: dict[str, list[AuthorizationRule]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """Path of an entity in lower case -> place of its first rule or authorization rule."""


class Builder:
    """Gathers the entities of a source, in any order."""

    def __init__(self) -> None:
        self.form = Form()
        self.notes: list[str] = []
        self._namespaces: dict[str, _Namespace] = {}

    def note(self, path: str, what: str) -> None:
        """Add a note: what is at `path` is not offered."""
        self.notes.append(f"{path}: {what}")

    def namespace(self, name: str, path: str, tier: Any = None) -> None:
        """Add a namespace, or set its tier."""
        found = self._of(name)
        if isinstance(tier, str) and tier.lower() in TIERS:
            found.tier = tier.lower()
        elif tier is not None:
            self.form.problem(path, f"{shown(tier)} is none of the tiers Basic, Standard, Premium")

    def entity(
        self,
        namespace: str,
        kind: type[Description],
        names: tuple[str, ...],
        path: str,
        given: Mapping[str, Any],
        place: Callable[[str], str],
    ) -> None:
        """Add an entity.

        Args:
            namespace: that it is in.
            kind: of its description.
            names: its name; of a subscription, first the topic's.
            path: its place.
            given: key of Config.json -> value, as far as the source names it.
            place: returns the place of a key's value.
        """
        settings = as_set(
            read_settings(given, kind, lambda read, key: self.form.value(read, given[key], place(key)))
        )
        bare = _bare(kind, names)
        is_valid = is_short_name if kind is SubscriptionDescription else is_name
        if bare is None or not is_valid(names[-1]):
            rule = SHORT_NAME_RULE if kind is SubscriptionDescription else NAME_RULE
            self.form.problem(path, f"{shown('/'.join(names))} is not {rule}")
            return
        entities = self._of(namespace).entities
        first = entities.setdefault(bare.name.lower(), EntityConfig(path, bare, settings))
        if first.path != path:
            self.form.problem(path, f"{bare.name!r} is the name of {first.path} already")

    def rule(self, namespace: str, topic: str, subscription: str, rule: RuleDescription, path: str) -> None:
        """Add a rule of a subscription."""
        if not is_part_name(rule.name):
            self.form.problem(path, f"{shown(rule.name)} is not {SHORT_NAME_RULE}")
            return
        owner = subscription_path(topic, subscription)
        self._of(namespace).rules.setdefault(owner.lower(), []).append(RuleConfig(path, rule))
        self._of(namespace).places.setdefault(owner.lower(), path)

    def authorization_rule(
        self, namespace: str, entity: str | None, rule: AuthorizationRule, path: str
    ) -> None:
        """Add an authorization rule of an entity; None = of the namespace, which is noted."""
        if entity is not None:
            self._of(namespace).shared.setdefault(entity.lower(), []).append(rule)
            self._of(namespace).places.setdefault(entity.lower(), path)
        elif rule.name != "RootManageSharedAccessKey":
            rights = "Manage" if "Manage" in rule.rights else ",".join(rule.rights)
            self.note(
                path,
                f"the key '{rule.name}' of the namespace is not imported; make one with "
                f"`peeklock keys add DIR {rule.name} --rights {rights or 'Send,Listen'}`",
            )

    def found(self, spelled: Callable[[str], str]) -> Found:
        """Return what was found; `spelled` as of `Found`. Raises: ConfigError with all problems."""
        configs = tuple(self._config(each) for each in self._namespaces.values())
        if self.form.problems:
            raise ConfigError(*self.form.problems)
        return Found(configs, tuple(self.notes), spelled)

    def _of(self, name: str) -> _Namespace:
        return self._namespaces.setdefault(name.lower(), _Namespace(name))

    def _config(self, namespace: _Namespace) -> Config:
        for name, path in namespace.places.items():
            if name not in namespace.entities:
                self.form.problem(path, f"its owner {name!r} is not defined here; add it")
        entities = []
        for name, entity in namespace.entities.items():
            rules = namespace.rules.get(name, [])
            taken = Taken(self.form)
            for rule in rules:
                taken.take(rule.rule.name, rule.path)
            settings = dict(entity.settings)
            if shared := namespace.shared.get(name):
                settings["authorization_rules"] = tuple(shared)
            entities.append(replace(entity, settings=settings, rules=tuple(rules) or None))
        entities.sort(key=lambda entity: isinstance(entity.bare, SubscriptionDescription))  # topics first
        return Config(namespace.name, tuple(entities), NamespaceLimits(tier=namespace.tier))


def _bare(kind: type[Description], names: tuple[str, ...]) -> Description | None:
    """Return an entity with the default of every setting; None = these are not its names."""
    match names:
        case [topic, name] if kind is SubscriptionDescription:
            return SubscriptionDescription(topic, name)
        case [name] if kind is TopicDescription:
            return TopicDescription(name)
        case [name] if kind is QueueDescription:
            return QueueDescription(name)
    return None


def as_set(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as one sets them, from settings as Azure shows and exports them.

    - A forward is an address of the namespace: it becomes the name.
    - The size of a partitioned entity is that of all its partitions.
    - A message size up to 1 MiB is the tier's default, which cannot be set.
    - "Never" has several texts.
    """
    found = dict(settings)
    for given in GIVEN_FORWARDS.values():
        if given in found:
            found[given] = None
    if (found.get("max_message_size_kb") or MESSAGE_SIZE_KB_MIN + 1) <= MESSAGE_SIZE_KB_MIN:
        found["max_message_size_kb"] = None
    size_mb = found.get("max_size_mb") or 0
    is_total = size_mb >= MAX_SIZE_MB_MIN * PARTITION_COUNT and size_mb % PARTITION_COUNT == 0
    if found.get("enable_partitioning") and is_total:
        found["max_size_mb"] = size_mb // PARTITION_COUNT
    for key in ("auto_delete_on_idle_ms", "default_ttl_ms"):
        if (found.get(key) or 0) >= NEVER_MS:
            found[key] = UNLIMITED_MS
    return found


def sql_filter(expression: str) -> Filter:
    """Return the filter of an expression: `1=1` and `1=0` are how true and false filters are shown."""
    constants: Mapping[str, Filter] = {"1=1": TrueFilter(), "1=0": FalseFilter()}
    return constants.get(expression.replace(" ", ""), SqlFilter(expression))


def keys_by(spelling: Callable[[str], str]) -> Mapping[type[Description], Mapping[str, str]]:
    """Return, for each kind, the settings as another tool spells them -> key of Config.json."""
    return {kind: {spelling(key): key for key in known} for kind, known in PROPERTIES.items()}
