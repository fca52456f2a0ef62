"""The scope of one template: its parameters and variables, and values with expressions, evaluated.

A nested deployment has a scope of its own. Property copies (`"copy": [...]` in an object) and those of
variables become arrays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from peeklock.config.form import Form, join, shown
from peeklock.templates.arm_expressions import Call, NotEvaluated, Unknown, evaluate, parse, unknown_in
from peeklock.templates.arm_functions import call

COPIES_MAX: Final = 10_000
"""Of one loop. Our choice: more than the entities of a namespace. Azure allows 800 resources."""

_OF_DEPLOYMENT = "only Azure knows {0}: write its value into the template"
_OF_PARAMETER = "{0} has no value: give --parameter {1}=VALUE"


class Misplaced(Exception):
    """A value that cannot be had, with its place."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what


class Scope:
    """Parameters and variables of one template, evaluated when they are used."""

    def __init__(self, template: Mapping[str, Any], given: Mapping[str, Any], path: str) -> None:
        """`given`: values of parameters by name in lower case; `path`: of the template."""
        self._path = f"{path}." if path else ""
        self._parameters = _by_lower(template.get("parameters"))
        self._variables = _by_lower(template.get("variables"))
        self._given = given
        self._values: dict[tuple[str, str], Any] = {}
        self._under_way: list[tuple[str, str]] = []
        self._copies: list[tuple[str, int]] = []
        copies = self._variables.pop("copy", None)
        self._arrays = {
            str(each.get("name")).lower(): (each, f"{self._path}variables.copy[{number}]")
            for number, each in enumerate(copies if isinstance(copies, list) else ())
            if isinstance(each, dict)
        }
        """Variables that a loop makes, by name in lower case, with their places."""

    def evaluated(self, value: Any, path: str) -> Any:
        """Return a value with its expressions replaced by their values. Raises: Misplaced."""
        match value:
            case str():
                return self._text(value, path)
            case list():
                return [self.evaluated(each, f"{path}[{at}]") for at, each in enumerate(value)]
            case dict():
                return self._object(value, path)
        return value

    def needed(self, value: Any, path: str) -> Any:
        """Return an evaluated value that contains nothing unknown. Raises: Misplaced."""
        found = self.evaluated(value, path)
        if (expression := unknown_in(found)) is not None:
            raise Misplaced(path, why_unknown(expression))
        return found

    @contextmanager
    def copy(self, name: str, index: int) -> Iterator[None]:
        """Set the index of a loop for as long as the context lasts."""
        self._copies.append((name.lower(), index))
        try:
            yield
        finally:
            self._copies.pop()

    def count_of(self, copy: Any, path: str) -> tuple[str, int]:
        """Return name and count of a loop. Raises: Misplaced."""
        if not isinstance(copy, dict) or not isinstance(copy.get("name"), str):
            raise Misplaced(path, "is not a loop with a name and a count")
        count = self.needed(copy.get("count"), f"{path}.count")
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= COPIES_MAX:
            raise Misplaced(f"{path}.count", f"{shown(count)} is not a count from 0 to {COPIES_MAX}")
        return copy["name"], count

    def _object(self, value: dict[str, Any], path: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, part in value.items():
            where = join(path, key)
            if key == "copy" and isinstance(part, list):
                for number, each in enumerate(part):
                    name, made = self._copied(each, f"{where}[{number}]")
                    found[name] = made
            else:
                name = self._text(key, where)
                found[name if isinstance(name, str) else key] = self.evaluated(part, where)
        return found

    def _copied(self, copy: Any, path: str) -> tuple[str, list[Any]]:
        name, count = self.count_of(copy, path)
        made = []
        for index in range(count):
            with self.copy(name, index):
                made.append(self.evaluated(copy.get("input"), f"{path}.input"))
        return name, made

    def _text(self, text: str, path: str) -> Any:
        if not text.startswith("[") or not text.endswith("]"):
            return text
        if text.startswith("[["):
            return text[1:]
        try:
            return evaluate(parse(text[1:-1]), self._call)
        except NotEvaluated as failure:
            raise Misplaced(path, str(failure)) from failure

    def _call(self, node: Call) -> Any:
        """Return the value of a call. Raises: NotEvaluated."""
        name = node.name.lower()
        match name:
            case "if":
                return self._if(node)
            case "and" | "or":
                return self._all_or_any(node, stops_at=name == "or")
        arguments = [evaluate(each, self._call) for each in node.arguments]
        match name, arguments:
            case "parameters", [str(of)]:
                return self._once("parameters", of)
            case "variables", [str(of)]:
                return self._once("variables", of)
            case "copyindex", _:
                return self._index(arguments, node.text)
        return call(node.name, arguments, node.text)

    def _if(self, node: Call) -> Any:
        if len(node.arguments) != 3:
            raise NotEvaluated(f"{node.text[:80]}: if() takes three arguments")
        condition = evaluate(node.arguments[0], self._call)
        if isinstance(condition, Unknown):
            return Unknown(node.text)
        return evaluate(node.arguments[1 if condition is True else 2], self._call)

    def _all_or_any(self, node: Call, *, stops_at: bool) -> Any:
        is_unknown = False
        for each in node.arguments:
            value = evaluate(each, self._call)
            if isinstance(value, Unknown):
                is_unknown = True
            elif value is stops_at:
                return stops_at
        return Unknown(node.text) if is_unknown else not stops_at

    def _index(self, arguments: list[Any], text: str) -> int:
        named = [each.lower() for each in arguments if isinstance(each, str)]
        offset = sum(each for each in arguments if isinstance(each, int))
        for name, index in reversed(self._copies):
            if not named or name == named[0]:
                return index + offset
        raise NotEvaluated(f"{text}: there is no such loop around it")

    def _once(self, kind: str, name: str) -> Any:
        """Return the value of a parameter or variable, evaluated once. Raises: NotEvaluated."""
        at = (kind, name.lower())
        if at in self._values:
            return self._values[at]
        if at in self._under_way:
            raise NotEvaluated(f"{kind}('{name}') needs itself")
        self._under_way.append(at)
        copies, self._copies = self._copies, []
        try:
            self._values[at] = self._found(kind, name)
        except Misplaced as failure:
            raise NotEvaluated(f"{kind}('{name}') cannot be evaluated: {failure}") from failure
        finally:
            self._copies = copies
            self._under_way.pop()
        return self._values[at]

    def _found(self, kind: str, name: str) -> Any:
        if kind == "variables" and name.lower() in self._arrays:
            return self._copied(*self._arrays[name.lower()])[1]
        known = self._parameters if kind == "parameters" else self._variables
        if name.lower() not in known:
            raise NotEvaluated(f"{kind}('{name}'): the template has none of this name")
        held, path = known[name.lower()], f"{self._path}{kind}.{name}"
        if kind == "variables":
            return self.evaluated(held, path)
        if name.lower() in self._given:
            return self._given[name.lower()]
        if isinstance(held, dict) and "defaultValue" in held:
            return self.evaluated(held["defaultValue"], f"{path}.defaultValue")
        if isinstance(held, dict) and held.get("nullable") is True:
            return None
        return Unknown(f"parameters('{name}')")


def why_unknown(expression: str) -> str:
    """Return why an expression has no value, and what to do."""
    if expression.startswith("parameters('"):
        name = expression.removeprefix("parameters('").removesuffix("')")
        return _OF_PARAMETER.format(expression, name)
    return _OF_DEPLOYMENT.format(expression)


def read_parameter(text: str) -> tuple[str, str]:
    """Return name and text of `NAME=VALUE`. Raises: ValueError."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise ValueError(f"{text!r} is not NAME=VALUE.")
    return name, value


def parameter_values(
    template: Mapping[str, Any], texts: Mapping[str, str], file: Any, form: Form
) -> dict[str, Any]:
    """Return the values of parameters by name in lower case.

    Args:
        template: declares them.
        texts: of the command line; JSON where the template does not declare a string.
        file: a parameters file, as JSON; None = there is none.
        form: takes problems.
    """
    declared = _by_lower(template.get("parameters"))
    found: dict[str, Any] = {}
    given = file.get("parameters") if isinstance(file, dict) else None
    if file is not None and not isinstance(given, dict):
        form.problem("the parameters file", "has no object 'parameters'")
    for name, entry in (given if isinstance(given, dict) else {}).items():
        if isinstance(entry, dict) and "value" in entry:
            found[name.lower()] = entry["value"]
        elif name.lower() in declared:
            found[name.lower()] = Unknown(f"parameters('{name}')")  # of a key vault
    for name, text in texts.items():
        if name.lower() not in declared:
            form.problem(f"--parameter {name}", f"the template has no such parameter; {_those(declared)}")
            continue
        held = declared[name.lower()]
        kind = str(held.get("type", "string")).lower() if isinstance(held, dict) else "string"
        found[name.lower()] = text
        if kind not in ("string", "securestring"):
            try:
                found[name.lower()] = json.loads(text)
            except ValueError:
                value = "the value" if kind.startswith("secure") else shown(text)
                form.problem(f"--parameter {name}", f"{value} is not JSON of the type {kind}")
    return found


def _those(declared: Mapping[str, Any]) -> str:
    return f"it has {', '.join(sorted(declared))}" if declared else "it has none"


def _by_lower(held: Any) -> dict[str, Any]:
    return {key.lower(): value for key, value in held.items()} if isinstance(held, dict) else {}
