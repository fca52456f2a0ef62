"""The configuration file: the emulator's Config.json, read strictly, and written.

The form is that of the public Service Bus emulator (its `Schema/Config-schema.json`):
`UserConfig.Namespaces[].{Name, Queues[], Topics[].Subscriptions[].Rules[]}`, each but the rules with `Name`
and `Properties`, and `UserConfig.Logging.Type`. There are four deliberate differences: there may be several
namespaces, of which the first is the default one; a setting that
the file leaves out gets the service's default (MaxDeliveryCount 10, not the emulator's 3) unless the caller
asks for the emulator's; ranges are the service's, so that an entity is the same here as in Azure; settings
that the emulator's schema lacks have their names in the administration API. `Logging` is checked and has no
effect: logs go to standard error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from peeklock.broker.entities.validation import is_name
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    KINDS,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.config.form import ConfigError, Form, Object, Taken, load, none_of, shown
from peeklock.config.hosts import HOST_LABEL_RULE, is_host_label
from peeklock.config.namespace_limits import (
    NO_LIMITS,
    OTHER_WORDS,
    NamespaceLimits,
    read_limits,
    write_limits,
)
from peeklock.config.rules import (
    SHORT_NAME_RULE,
    is_short_name,
    read_rule,
    write_rule,
)
from peeklock.config.settings import NAME_RULE, PROPERTIES, read_settings, write_settings

FILE_BYTES_MAX = 64 * 1024 * 1024
"""10,000 entities, the service's limit, at 6 KiB each: every setting, and metadata of 1,024 characters of 4
bytes. Our choice."""

EMULATOR_NAMESPACE = "sbemulatorns"
"""The only namespace that the emulator accepts, and our default."""

EMULATOR_DEFAULTS: Mapping[str, Any] = {"default_ttl_ms": 3_600_000, "max_delivery_count": 3}
"""Defaults of the emulator that are not the service's, by field of a description."""

NO_RULES = "None"
"""Value of `Rules` for a subscription without any. Our choice: for the emulator an empty list means the
default rule, and programs that write its file write empty lists."""


@dataclass(frozen=True, slots=True)
class RuleConfig:
    """One rule of the file."""

    path: str
    rule: RuleDescription


@dataclass(frozen=True, slots=True)
class EntityConfig:
    """One queue, topic or subscription of the file."""

    path: str
    """Its JSON path: `UserConfig.Namespaces[0].Queues[1]`."""
    bare: Description
    """Its name and kind, with the default of every setting: what a new one gets."""
    settings: Mapping[str, Any]
    """Field of the description -> value, as far as the file names them."""
    rules: tuple[RuleConfig, ...] | None = None
    """Of a subscription; None = unchanged, and the default rule for a new one."""

    @property
    def name(self) -> str:
        """The path by which clients name it."""
        return self.bare.name

    @property
    def description(self) -> Description:
        """The entity as a new one would be."""
        if isinstance(self.bare, TopicDescription):
            # As over the administration: a topic cannot keep an order across its partitions.
            ordering = {"support_ordering": not self.settings.get("enable_partitioning", False)}
            return replace(self.bare, **(ordering | {**self.settings}))
        return replace(self.bare, **self.settings)


@dataclass(frozen=True, slots=True)
class Config:
    """What a configuration file says of one namespace."""

    namespace: str
    entities: tuple[EntityConfig, ...]
    """In the order of the file; a topic comes before its subscriptions."""
    limits: NamespaceLimits = NO_LIMITS
    """What is the namespace's own."""

    def counts(self) -> dict[str, int]:
        """Return how many of each kind the file names, and how many rules."""
        counts = Counter(KINDS[type(entity.bare)].value for entity in self.entities)
        rules = sum(len(entity.rules or ()) for entity in self.entities)
        return {**counts, "rule": rules} if rules else dict(counts)


def read_config(file: Path, defaults: Mapping[str, Any] | None = None) -> tuple[Config, ...]:
    """Return the content of a file; see `parse_config`. Raises: ConfigError, also for OSError."""
    try:
        with file.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as failure:
        raise ConfigError(f"cannot be read: {failure.strerror or failure}") from failure
    return parse_config(data, defaults)


def parse_config(data: bytes, defaults: Mapping[str, Any] | None = None) -> tuple[Config, ...]:
    """Return a configuration for each namespace, the default one first.

    Raises: ConfigError with all problems.

    Args:
        data: the file's content.
        defaults: settings of new entities that leave them out, by field, as `EMULATOR_DEFAULTS`; a kind
            without such a setting is left alone. None = the service's.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"is larger than {FILE_BYTES_MAX} bytes")
    return _Reader(defaults or {}).read(load(data))


# Writing


def format_config(
    entities: Iterable[Description],
    rules: Mapping[str, Iterable[RuleDescription]],
    name: str = EMULATOR_NAMESPACE,
    limits: NamespaceLimits = NO_LIMITS,
) -> str:
    """Return the configuration file of these entities, sorted by name.

    Defaults are left out: the file shows what was set, and fits the emulator's schema, which allows neither
    the largest time span nor a duplicate window of 10 minutes.

    Args:
        entities: with a subscription also its topic.
        rules: path of a subscription -> its rules; without an entry it has none.
        name: of the namespace.
        limits: its own; without any the file has no Properties of the namespace.
    """
    queues: list[dict[str, Any]] = []
    topics: list[dict[str, Any]] = []
    subscriptions: dict[str, list[dict[str, Any]]] = {}
    for entity in sorted(entities, key=lambda entity: (entity.name.lower(), entity.name)):
        match entity:
            case QueueDescription():
                queues.append(_entry(entity.name, entity, QueueDescription(entity.name)))
            case TopicDescription():
                bare_topic = TopicDescription(entity.name, support_ordering=not entity.enable_partitioning)
                entry = _entry(entity.name, entity, bare_topic)
                entry["Subscriptions"] = subscriptions.setdefault(entity.name.lower(), [])
                topics.append(entry)
            case SubscriptionDescription():
                bare = SubscriptionDescription(entity.topic_name, entity.subscription_name)
                entry = _entry(entity.subscription_name, entity, bare)
                entry |= _rules_entry(rules.get(entity.name, ()))
                subscriptions.setdefault(entity.topic_name.lower(), []).append(entry)
    properties = write_limits(limits)
    shown_properties = {"Properties": properties} if properties else {}
    namespace = {"Name": name, **shown_properties, "Queues": queues, "Topics": topics}
    user = {"Namespaces": [namespace], "Logging": {"Type": "Console"}}
    return json.dumps({"UserConfig": user}, indent=2, ensure_ascii=False) + "\n"


def _entry(name: str, entity: Description, default: Description) -> dict[str, Any]:
    return {"Name": name, "Properties": write_settings(entity, default)}


def _rules_entry(rules: Iterable[RuleDescription]) -> dict[str, Any]:
    named = sorted(rules, key=attrgetter("name"))
    if not named:
        return {"Rules": NO_RULES}
    if [replace(rule, created_at_ms=0) for rule in named] == [RuleDescription(DEFAULT_RULE_NAME)]:
        return {}
    return {"Rules": [write_rule(rule) for rule in named]}


# Reading

_LOGGING_TYPES = ("File", "Console", "File,Console", "Console,File")


class _Reader:
    """Walks the file and collects its problems."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._defaults = defaults
        self._form = Form()
        self._entities: list[EntityConfig] = []
        self._names = Taken(self._form)

    def read(self, top: Any) -> tuple[Config, ...]:
        form = self._form
        user: Mapping[str, Any] = {}
        if (root := form.object(top, "", ("UserConfig",), required=("UserConfig",))) is not None:
            if "UserConfig" in root:
                known = ("Namespaces", "Logging")
                user = form.object(root["UserConfig"], "UserConfig", known, required=("Namespaces",)) or {}
        found: list[Config] = []
        taken = Taken(form)
        if "Namespaces" in user:
            namespaces = form.array(user["Namespaces"], "UserConfig.Namespaces")
            if namespaces is not None and not namespaces:
                form.problem("UserConfig.Namespaces", "holds no namespace; name one at least")
            for number, given in enumerate(namespaces or ()):
                path = f"UserConfig.Namespaces[{number}]"
                name, limits = self._namespace(given, path, is_further=number > 0)
                if name is not None:
                    taken.take(name, path)
                    found.append(Config(name, tuple(self._entities), limits))
            self._check_hosts(found)
        if "Logging" in user:
            self._logging(user["Logging"], "UserConfig.Logging")
        if form.problems:
            raise ConfigError(*form.problems)
        return tuple(found)

    def _check_hosts(self, found: list[Config]) -> None:
        """Report a host name that means two namespaces."""
        taken: dict[str, str] = {}
        for number, config in enumerate(found):
            for host in (config.namespace.lower(), *config.limits.host_names):
                first = taken.setdefault(host, config.namespace)
                if first != config.namespace:
                    path = f"UserConfig.Namespaces[{number}].Properties.HostNames"
                    self._form.problem(path, f"{shown(host)} means the namespace {shown(first)} already")

    def _namespace(self, value: Any, path: str, *, is_further: bool) -> tuple[str | None, NamespaceLimits]:
        self._entities, self._names = [], Taken(self._form)
        known = ("Name", "Properties", "Queues", "Topics")
        namespace = self._form.object(value, path, known, ("Name",), OTHER_WORDS)
        if namespace is None:
            return None, NO_LIMITS
        limits = read_limits(self._form, namespace, path)
        for item, where in self._items(namespace, "Queues", path):
            self._entity(item, where, QueueDescription)
        for item, where in self._items(namespace, "Topics", path):
            topic, name = self._entity(item, where, TopicDescription, "Subscriptions")
            for subscription, below in self._items(topic, "Subscriptions", where):
                self._subscription(subscription, below, name)
        if is_further:
            return self._form.name(namespace, path, is_host_label, HOST_LABEL_RULE), limits
        return self._form.name(namespace, path, is_name, NAME_RULE), limits

    def _entity(
        self, value: Any, path: str, kind: type[QueueDescription | TopicDescription], *more: str
    ) -> tuple[Mapping[str, Any], str | None]:
        """Add a queue or topic; return its object, which may have `more` keys, and its name."""
        entity = self._form.object(value, path, ("Name", "Properties", *more), required=("Name",))
        if entity is None:
            return {}, None
        name = self._form.name(entity, path, is_name, NAME_RULE)
        settings = self._settings(entity, path, kind)
        if name is not None:
            self._names.take(name, path)
            self._entities.append(EntityConfig(path, self._with_defaults(kind(name)), settings))
        return entity, name

    def _subscription(self, value: Any, path: str, topic_name: str | None) -> None:
        given = self._form.object(value, path, ("Name", "Properties", "Rules"), required=("Name",))
        if given is None:
            return
        name = self._form.name(given, path, is_short_name, SHORT_NAME_RULE)
        settings = self._settings(given, path, SubscriptionDescription)
        rules = self._rules(given, path)
        if name is not None and topic_name is not None:
            bare = SubscriptionDescription(topic_name, name)
            self._names.take(name, path, within=bare.name.removesuffix(name))
            self._entities.append(EntityConfig(path, self._with_defaults(bare), settings, rules))

    def _with_defaults(self, bare: Description) -> Description:
        has = {field.name for field in fields(bare)}
        return replace(bare, **{name: value for name, value in self._defaults.items() if name in has})

    def _rules(self, subscription: Mapping[str, Any], path: str) -> tuple[RuleConfig, ...] | None:
        if subscription.get("Rules") == NO_RULES:
            return ()
        names = Taken(self._form)
        rules = []
        for item, where in self._items(subscription, "Rules", path):
            rule = read_rule(self._form, item, where)
            if rule is not None:
                names.take(rule.name, where)
                rules.append(RuleConfig(where, rule))
        return tuple(rules) or None

    def _items(self, holder: Mapping[str, Any], key: str, path: str) -> list[tuple[Any, str]]:
        """Return the members of a list, each with its path; none if it is left out."""
        where = f"{path}.{key}"
        items = self._form.array(holder.get(key, []), where) or ()
        return [(item, f"{where}[{index}]") for index, item in enumerate(items)]

    def _settings(self, holder: Mapping[str, Any], path: str, kind: type[Description]) -> dict[str, Any]:
        form, where = self._form, f"{path}.Properties"
        given = form.object(holder.get("Properties", Object([])), where, tuple(PROPERTIES[kind])) or {}
        return read_settings(given, kind, lambda read, key: form.value(read, given[key], f"{where}.{key}"))

    def _logging(self, value: Any, path: str) -> None:
        logging = self._form.object(value, path, ("Type",), required=("Type",))
        if logging is not None and "Type" in logging and logging["Type"] not in _LOGGING_TYPES:
            self._form.problem(f"{path}.Type", none_of(logging["Type"], _LOGGING_TYPES))
