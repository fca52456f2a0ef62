"""The state of Terraform's provider `azurerm`: its Service Bus resources as entities.

A resource is known by its id, `.../namespaces/NS/topics/T/subscriptions/S/rules/R`. Attributes have the names
of Config.json in lower case with underscores, but for some. A state has the keys of authorization rules, so
that connection strings of entities stay valid.
Source: state format 4 of Terraform 0.12 and later, `terraform state pull`; azurerm 3 and 4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from peeklock.broker.vocabulary.descriptions import (
    AuthorizationRule,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.config.form import ConfigError, shown
from peeklock.rules.filters import CORRELATION_FIELDS, CorrelationFilter, Filter, SqlAction
from peeklock.templates.found import Builder, Found, keys_by, sql_filter

VERSION: Final = 4

_PREFIX: Final = "azurerm_servicebus_"

_KINDS: Final[Mapping[str, type[Description]]] = {
    "queue": QueueDescription,
    "topic": TopicDescription,
    "subscription": SubscriptionDescription,
}

_RENAMED: Final = {
    "batched_operations_enabled": "EnableBatchedOperations",
    "dead_lettering_on_filter_evaluation_error": "DeadLetteringOnFilterEvaluationExceptions",
    "default_message_ttl": "DefaultMessageTimeToLive",
    "express_enabled": "EnableExpress",
    "partitioning_enabled": "EnablePartitioning",
}
"""Attributes whose names do not follow from the setting's; azurerm 4 renamed three of them."""

_IDENTITIES: Final = frozenset(
    [
        "id",
        "name",
        "namespace_id",
        "namespace_name",
        "resource_group_name",
        "timeouts",
        "topic_id",
        "topic_name",
    ]
)
"""Attributes that say where an entity is."""

_UNSET: Final[tuple[Any, ...]] = (None, "", False, [], {})


def _snake(key: str) -> str:
    return re.sub("(?<!^)([A-Z])", r"_\1", key).lower()


_KEYS = keys_by(_snake)


def is_state(top: Any) -> bool:
    """Return whether a JSON value is a state, or the answer of `terraform show -json`."""
    return isinstance(top, dict) and ("terraform_version" in top or "lineage" in top)


def read_state(top: Mapping[str, Any]) -> Found:
    """Return what a state defines. Raises: ConfigError with all problems."""
    if top.get("version") != VERSION:
        raise ConfigError(
            f"version: {shown(top.get('version'))} is not {VERSION}: write the state with "
            f"`terraform state pull`, by Terraform 0.12 or later"
        )
    builder = Builder()
    resources = top.get("resources")
    for number, resource in enumerate(resources if isinstance(resources, list) else ()):
        if not isinstance(resource, dict):
            builder.form.problem(f"resources[{number}]", f"{shown(resource)} is not a resource")
            continue
        kind = str(resource.get("type"))
        instances = resource.get("instances")
        for instance in instances if isinstance(instances, list) else ():
            path = _address(resource, instance)
            if not kind.startswith(_PREFIX) or resource.get("mode") != "managed":
                continue  # data, and what other providers made
            attributes = instance.get("attributes") if isinstance(instance, dict) else None
            if not isinstance(attributes, dict):
                builder.form.problem(path, "has no object 'attributes'")
            else:
                _Reading(builder, path, attributes).read(kind.removeprefix(_PREFIX))
    return builder.found(_attribute)


def _attribute(place: str) -> str:
    """Return the attribute of `.Properties.LockDuration`."""
    names = {key: attribute for attribute, key in _RENAMED.items()}
    keys = place.split(".")[2:]
    return "".join(f".{names.get(key) or _snake(key)}" for key in keys)


def _address(resource: Mapping[str, Any], instance: Any) -> str:
    """Return the address by which Terraform names an instance."""
    module = f"{resource['module']}." if isinstance(resource.get("module"), str) else ""
    key = instance.get("index_key") if isinstance(instance, dict) else None
    index = "" if key is None else f'["{key}"]' if isinstance(key, str) else f"[{key}]"
    return f"{module}{resource.get('type')}.{resource.get('name')}{index}"


class _Reading:
    """One instance of a resource."""

    def __init__(self, builder: Builder, path: str, attributes: Mapping[str, Any]) -> None:
        self._builder = builder
        self._path = path
        self._attributes = attributes

    def read(self, kind: str) -> None:
        """Add it, or note that it is not offered."""
        names = self._names()
        if names is None:
            return
        match kind, names:
            case "namespace", [namespace]:
                self._builder.namespace(namespace, f"{self._path}.sku", self._attributes.get("sku"))
            case "subscription_rule", [namespace, topic, subscription, name]:
                if (rule := self._rule(name)) is not None:
                    self._builder.rule(namespace, topic, subscription, rule, self._path)
            case "namespace_authorization_rule", [namespace, name]:
                self._builder.authorization_rule(namespace, None, self._shared(name), self._path)
            case (("queue_authorization_rule" | "topic_authorization_rule"), [namespace, entity, name]):
                self._builder.authorization_rule(namespace, entity, self._shared(name), self._path)
            case _ if kind in _KINDS and len(names) > 1:
                self._entity(names[0], _KINDS[kind], tuple(names[1:]))
            case _:
                self._builder.note(self._path, "is not offered")

    def _names(self) -> list[str] | None:
        """Return the names in the id: the namespace's, and those of what is in it."""
        text = self._attributes.get("id")
        parts = text.split("/") if isinstance(text, str) else []
        lower = [part.lower() for part in parts]
        if "namespaces" not in lower:
            self._builder.form.problem(f"{self._path}.id", f"{shown(text)} names no namespace of Service Bus")
            return None
        names = parts[lower.index("namespaces") + 1 :: 2]
        return [names[0], *(name.replace("~", "/") for name in names[1:])]

    def _entity(self, namespace: str, kind: type[Description], names: tuple[str, ...]) -> None:
        given: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for attribute, value in self._attributes.items():
            key = _RENAMED.get(attribute) or _KEYS[kind].get(attribute)
            if key is not None:
                if value is not None:
                    given[key], spelled[key] = value, attribute
            elif attribute not in _IDENTITIES and value not in _UNSET:
                self._builder.note(f"{self._path}.{attribute}", "is not a setting that is offered")
        self._builder.entity(
            namespace, kind, names, self._path, given, lambda key: f"{self._path}.{spelled[key]}"
        )

    def _shared(self, name: str) -> AuthorizationRule:
        rights = tuple(right for right in ("Manage", "Send", "Listen") if self._attributes.get(right.lower()))
        primary, secondary = (
            str(self._attributes.get(f"{each}_key") or "") for each in ("primary", "secondary")
        )
        return AuthorizationRule(name, rights, primary, secondary)

    def _rule(self, name: str) -> RuleDescription | None:
        filtered = self._filter()
        action = self._attributes.get("action")
        made = SqlAction(action) if isinstance(action, str) and action else None
        return None if filtered is None else RuleDescription(name, filtered, made)

    def _filter(self) -> Filter | None:
        kind = self._attributes.get("filter_type")
        if kind == "SqlFilter" and isinstance(expression := self._attributes.get("sql_filter"), str):
            return sql_filter(expression)
        blocks = self._attributes.get("correlation_filter")
        if (
            kind == "CorrelationFilter"
            and isinstance(blocks, list)
            and blocks
            and isinstance(blocks[0], dict)
        ):
            [block] = blocks[:1]
            texts = {
                field: block[_snake(key)]
                for field, key in CORRELATION_FIELDS.items()
                if block.get(_snake(key))
            }
            pairs = block.get("properties")
            return CorrelationFilter(
                **texts, properties=tuple(pairs.items()) if isinstance(pairs, dict) else ()
            )
        self._builder.form.problem(
            f"{self._path}.filter_type",
            f"{shown(kind)} is not SqlFilter or CorrelationFilter with its filter",
        )
        return None
