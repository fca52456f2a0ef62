"""The resources of a template, flat: children, loops, conditions and nested deployments resolved.

Resources are a list, or an object by symbolic name (languageVersion 2.0). A child has its full type and name
either by itself (`.../queues`, `ns/orders`), or from the resource that it is in (`queues`, `orders`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from peeklock.config.form import Form, join, shown
from peeklock.templates.arm_expressions import Unknown, readable
from peeklock.templates.arm_scope import Misplaced, Scope, why_unknown

DEPLOYMENTS: Final = "microsoft.resources/deployments"
NESTED_MAX: Final = 20
"""Deployments in deployments. Our choice."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, evaluated but for its content."""

    type: str
    """As it is spelled: `Microsoft.ServiceBus/namespaces/queues`."""
    names: tuple[str, ...]
    """A name for each part of the type after the provider; may have unknown parts."""
    path: str
    content: Mapping[str, Any]
    """Evaluated; may have unknown values."""

    @property
    def kind(self) -> str:
        """The type in lower case: types compare in any case."""
        return self.type.lower()

    @property
    def shown(self) -> str:
        """Type and name, for texts."""
        return f"{self.type} '{readable('/'.join(self.names))}'"


class Resources:
    """Walks the resources of a template."""

    def __init__(self, form: Form, notes: list[str]) -> None:
        """`form` takes problems, `notes` what was left out."""
        self._form = form
        self._notes = notes

    def of_template(
        self, template: Mapping[str, Any], scope: Scope, path: str = "", depth: int = 0
    ) -> Iterator[Resource]:
        """Yield the resources of a template."""
        where = f"{path}.resources" if path else "resources"
        yield from self._all(template.get("resources"), scope, where, None, depth)

    def _all(
        self, held: Any, scope: Scope, path: str, parent: Resource | None, depth: int
    ) -> Iterator[Resource]:
        items: list[tuple[Any, str]] = []
        if isinstance(held, dict):
            items = [(each, join(path, name)) for name, each in held.items()]
        elif isinstance(held, list):
            items = [(each, f"{path}[{number}]") for number, each in enumerate(held)]
        elif held is not None:
            self._form.problem(path, f"{shown(held)} is neither a list nor an object of resources")
        for each, where in items:
            if not isinstance(each, dict):
                self._form.problem(where, f"{shown(each)} is not a resource")
                continue
            try:
                yield from self._copies(each, scope, where, parent, depth)
            except Misplaced as failure:
                self._form.problem(failure.path, failure.what)

    def _copies(
        self, held: Mapping[str, Any], scope: Scope, path: str, parent: Resource | None, depth: int
    ) -> Iterator[Resource]:
        if "copy" not in held:
            yield from self._one(held, scope, path, parent, depth)
            return
        name, count = scope.count_of(held["copy"], f"{path}.copy")
        for index in range(count):
            with scope.copy(name, index):
                yield from self._one(held, scope, f"{path}#{index}", parent, depth)

    def _one(
        self, held: Mapping[str, Any], scope: Scope, path: str, parent: Resource | None, depth: int
    ) -> Iterator[Resource]:
        if not self._is_deployed(held, scope, path):
            return
        found = Resource(*self._identity(held, scope, path, parent), path, {})
        if found.kind == DEPLOYMENTS:
            yield from self._deployment(held, scope, path, depth)
            return
        is_ours = found.kind.startswith("microsoft.servicebus/")
        if not is_ours:
            self._notes.append(f"{path}: {found.shown} is not a resource of Service Bus")
        elif held.get("existing") is not True:
            content = {key: held[key] for key in ("sku", "properties") if key in held}
            values = {key: scope.evaluated(value, f"{path}.{key}") for key, value in content.items()}
            yield replace(found, content=values)
        if is_ours:
            yield from self._all(held.get("resources"), scope, f"{path}.resources", found, depth)

    def _is_deployed(self, held: Mapping[str, Any], scope: Scope, path: str) -> bool:
        condition = scope.evaluated(held.get("condition", True), f"{path}.condition")
        if isinstance(condition, Unknown):
            raise Misplaced(f"{path}.condition", why_unknown(condition.expression))
        if condition is not True:
            self._notes.append(f"{path}: left out, since its condition is not true")
        return condition is True

    def _identity(
        self, held: Mapping[str, Any], scope: Scope, path: str, parent: Resource | None
    ) -> tuple[str, tuple[str, ...]]:
        """Return full type and names. Raises: Misplaced."""
        kind = scope.needed(held.get("type"), f"{path}.type")
        name = scope.evaluated(held.get("name"), f"{path}.name")
        if isinstance(name, Unknown):
            name = name.mark
        if not isinstance(kind, str) or not isinstance(name, str) or not name:
            raise Misplaced(path, "is not a resource with a type and a name")
        names = tuple(name.split("/"))
        if parent is not None and "/" not in kind:
            kind, names = f"{parent.type}/{kind}", (*parent.names, *names)
        if kind.lower().startswith("microsoft.servicebus/") and len(names) != kind.count("/"):
            raise Misplaced(
                f"{path}.name", f"{shown(readable(name))} has not a name for each part of the type {kind}"
            )
        return kind, names

    def _deployment(self, held: Mapping[str, Any], scope: Scope, path: str, depth: int) -> Iterator[Resource]:
        """Yield the resources of a nested deployment, such as a Bicep module. Raises: Misplaced."""
        properties = held.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        template = properties.get("template")
        where = f"{path}.properties.template"
        if not isinstance(template, dict):
            self._notes.append(
                f"{path}: the template of this deployment is elsewhere: build it into this file, as "
                f"`bicep build` does"
            )
            return
        if depth >= NESTED_MAX:
            raise Misplaced(path, f"is nested deeper than {NESTED_MAX} deployments")
        options = properties.get("expressionEvaluationOptions")
        if isinstance(options, dict) and str(options.get("scope")).lower() == "inner":
            given = properties.get("parameters")
            values: dict[str, Any] = {}
            for name, entry in (given if isinstance(given, dict) else {}).items():
                at = f"{path}.properties.parameters.{name}"
                entry = scope.evaluated(entry, at)
                if isinstance(entry, dict) and "value" in entry:
                    values[name.lower()] = entry["value"]
                else:
                    values[name.lower()] = Unknown(f"the value at {at}")
            scope = Scope(template, values, where)
        yield from self.of_template(template, scope, where, depth + 1)
