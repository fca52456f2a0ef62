"""ARM templates, which Bicep compiles to: their Service Bus resources as entities.

Settings have the names of Config.json with a small first letter; ARM compares names in any case. In a name of
an entity ARM writes `~` for a slash. With a rule of its own a subscription loses `$Default`, as in Azure.
Source: Learn, "Microsoft.ServiceBus resource types" 2024-01-01.
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
from peeklock.config.form import Form, shown
from peeklock.rules.filters import CORRELATION_FIELDS, CorrelationFilter, Filter, SqlAction
from peeklock.templates.arm_expressions import readable, unknown_in
from peeklock.templates.arm_resources import Resource, Resources
from peeklock.templates.arm_scope import Scope, parameter_values, why_unknown
from peeklock.templates.found import Builder, Found, keys_by, sql_filter

PROVIDER: Final = "microsoft.servicebus/"

SLASH: Final = "~"
"""For a slash in a name of an entity. Source: Learn, "Service Bus queues, topics: naming"."""

ENTITIES: Final[Mapping[str, type[Description]]] = {
    "namespaces/queues": QueueDescription,
    "namespaces/topics": TopicDescription,
    "namespaces/topics/subscriptions": SubscriptionDescription,
}
"""Type of a resource after the provider, in lower case -> kind of entity."""

_KEYS = keys_by(str.lower)

_FIGURES: Final = frozenset(
    [
        "accessedat",
        "countdetails",
        "createdat",
        "messagecount",
        "sizeinbytes",
        "subscriptioncount",
        "updatedat",
    ]
)
"""Properties that Azure exports and ignores when it deploys."""

_CORRELATION: Final = {name.lower(): field for field, name in CORRELATION_FIELDS.items()}

_NAMESPACE_DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "disablelocalauth": (False,),
    "publicnetworkaccess": ("Enabled",),
    "zoneredundant": (False, True),
    "minimumtlsversion": ("1.2",),
    "premiummessagingpartitions": (0, 1),
    "provisioningstate": ("Succeeded",),
    "status": ("Active",),
}
"""Properties of a namespace -> values that need no note."""


def is_template(top: Any) -> bool:
    """Return whether a JSON value is a deployment template."""
    return isinstance(top, dict) and (
        "deploymenttemplate" in str(top.get("$schema", "")).lower()
        or ("resources" in top and "contentVersion" in top)
    )


def read_template(top: Mapping[str, Any], texts: Mapping[str, str], parameters: Any = None) -> Found:
    """Return what a template defines.

    Args:
        top: the template.
        texts: values of parameters from the command line.
        parameters: a parameters file, as JSON; None = there is none.

    Raises: ConfigError with all problems.
    """
    builder = Builder()
    values = parameter_values(top, texts, parameters, builder.form)
    walk = Resources(builder.form, builder.notes)
    for resource in walk.of_template(top, Scope(top, values, "")):
        _Reading(builder, resource).read()
    return builder.found(lambda place: re.sub(r"\.([A-Z])", lambda found: found[0].lower(), place))


class _Reading:
    """One resource of Service Bus."""

    def __init__(self, builder: Builder, resource: Resource) -> None:
        self._builder = builder
        self._form: Form = builder.form
        self._resource = resource
        self._path = resource.path
        properties = resource.content.get("properties")
        self._properties = _without_nulls(properties) if isinstance(properties, dict) else {}
        self._spelled = {key.lower(): key for key in self._properties}

    def read(self) -> None:
        """Add it, or note that it is not offered."""
        kind = self._resource.kind.removeprefix(PROVIDER)
        namespace, *names = self._resource.names
        for name in names:
            if (expression := unknown_in(name)) is not None:
                self._form.problem(f"{self._path}.name", why_unknown(expression))
                return
        names = [names[0].replace(SLASH, "/"), *names[1:]] if names else names
        match kind, names:
            case "namespaces", []:
                self._namespace(namespace)
            case "namespaces/topics/subscriptions/rules", [topic, subscription, rule]:
                self._rule(namespace, topic, subscription, rule)
            case "namespaces/authorizationrules", [name]:
                self._authorization_rule(namespace, None, name)
            case (
                ("namespaces/queues/authorizationrules" | "namespaces/topics/authorizationrules"),
                [of, name],
            ):
                self._authorization_rule(namespace, of, name)
            case _ if kind in ENTITIES:
                self._entity(namespace, ENTITIES[kind], tuple(names))
            case _:
                self._builder.note(self._path, f"{self._resource.shown} is not offered")

    def _namespace(self, name: str) -> None:
        sku = self._resource.content.get("sku")
        tier = sku.get("name") if isinstance(sku, dict) else None
        if (expression := unknown_in(tier)) is not None:
            self._builder.note(f"{self._path}.sku.name", f"{why_unknown(expression)}; the tier is not read")
            tier = None
        self._builder.namespace(readable(name), f"{self._path}.sku.name", tier)
        for key, value in self._properties.items():
            known = _NAMESPACE_DEFAULTS.get(key.lower(), ())
            if key.lower() not in _FIGURES and value not in known:
                self._builder.note(f"{self._path}.properties.{key}", "is not offered for a namespace")

    def _entity(self, namespace: str, kind: type[Description], names: tuple[str, ...]) -> None:
        given: dict[str, Any] = {}
        for spelled, value in self._properties.items():
            where = f"{self._path}.properties.{spelled}"
            key = _KEYS[kind].get(spelled.lower())
            if key is not None:
                if (expression := unknown_in(value)) is not None:
                    self._form.problem(where, why_unknown(expression))
                else:
                    given[key] = value
            elif spelled.lower() not in _FIGURES and not (spelled == "isClientAffine" and value is False):
                self._builder.note(
                    where, f"is not a setting that is offered for a {kind.__name__[:-11].lower()}"
                )
        self._builder.entity(
            readable(namespace),
            kind,
            names,
            self._path,
            given,
            lambda key: f"{self._path}.properties.{self._spelled[key.lower()]}",
        )

    def _authorization_rule(self, namespace: str, entity: str | None, name: str) -> None:
        rights = self._properties.get("rights")
        if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
            self._form.problem(f"{self._path}.properties.rights", f"{shown(rights)} is not a list of rights")
            return
        # Azure makes the keys.
        rule = AuthorizationRule(name, tuple(rights), "", "")
        self._builder.authorization_rule(readable(namespace), entity, rule, self._path)

    # Rules

    def _rule(self, namespace: str, topic: str, subscription: str, name: str) -> None:
        where = f"{self._path}.properties"
        if (expression := unknown_in(self._properties)) is not None:
            self._form.problem(where, why_unknown(expression))
            return
        filtered = self._filter(where)
        action = self._part("action")
        expression = _sql_of(action)
        if filtered is not None:
            made = None if expression is None else SqlAction(expression)
            rule = RuleDescription(name, filtered, made)
            self._builder.rule(readable(namespace), topic, subscription, rule, self._path)

    def _filter(self, where: str) -> Filter | None:
        sql, correlation = self._part("sqlfilter"), self._part("correlationfilter")
        kind = self._value("filterType")
        if kind is None and sql is None and correlation is None:
            return sql_filter("1=1")
        wanted = {"sqlfilter": sql, "correlationfilter": correlation}.get(str(kind).lower())
        if wanted is None:
            self._form.problem(
                f"{where}.filterType", f"{shown(kind)} is not SqlFilter or CorrelationFilter with its object"
            )
            return None
        if wanted is correlation:
            return self._correlation(correlation, f"{where}.{self._spelled['correlationfilter']}")
        expression = _sql_of(sql)
        if expression is None:
            self._form.problem(f"{where}.sqlFilter.sqlExpression", "is not a string")
            return None
        return sql_filter(expression)

    def _correlation(self, given: Mapping[str, Any], where: str) -> Filter | None:
        texts: dict[str, Any] = {}
        pairs: dict[str, Any] = {}
        for spelled, value in given.items():
            if spelled.lower() == "properties" and isinstance(value, dict):
                pairs = value
            elif spelled.lower() in _CORRELATION and isinstance(value, str):
                texts[_CORRELATION[spelled.lower()]] = value
            elif spelled.lower() != "requirespreprocessing":
                self._form.problem(
                    f"{where}.{spelled}", f"{shown(value)} is not a string of a known property"
                )
                return None
        for name, value in pairs.items():
            if not isinstance(value, str | int | float | bool):
                self._form.problem(f"{where}.properties.{name}", f"{shown(value)} is not a value")
                return None
        return CorrelationFilter(**texts, properties=tuple(pairs.items()))

    def _value(self, key: str) -> Any:
        return self._properties.get(self._spelled.get(key.lower(), ""))

    def _part(self, key: str) -> dict[str, Any] | None:
        """Return a property that is an object with content; Azure exports empty ones."""
        found = self._value(key)
        return _without_nulls(found) if isinstance(found, dict) and _without_nulls(found) else None


def _sql_of(held: Mapping[str, Any] | None) -> str | None:
    for key, value in (held or {}).items():
        if key.lower() == "sqlexpression" and isinstance(value, str):
            return value
    return None


def _without_nulls(held: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in held.items() if value is not None}
