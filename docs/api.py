"""`python -m docs.api [--check]`: write the reference part of docs/reference/api.md.

The API's table of operations is the source. The text before the mark on the page is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from docs.generated import GeneratedPage
from peeklock.api.api import TABLE
from peeklock.api.openapi import problems_of
from peeklock.api.schema import Schema
from peeklock.api.table import PATH_PARAMETERS, ROOT, Operation


def _reference() -> Iterator[str]:
    yield "## Operations"
    yield ""
    yield f"Paths are below `{ROOT}`. Every operation can answer 400, 401, 403 or 503; others are listed."
    for operation in TABLE.operations:
        yield ""
        yield from _operation(operation)
    yield ""
    yield "### Parameters of paths"
    yield ""
    yield from _table(
        (f"`{name}`", parameter.description) for name, parameter in sorted(PATH_PARAMETERS.items())
    )
    yield ""
    yield "### Values"
    for name, schema in sorted(TABLE.named.items()):
        yield ""
        yield f"#### {name}"
        yield ""
        if "description" in schema:
            yield str(schema["description"])
            yield ""
        required = set(schema.get("required", ()))
        yield from _table(_members(schema["properties"], required), "member", "what it is")


def _operation(operation: Operation) -> Iterator[str]:
    yield f"### {operation.method} {operation.path}"
    yield ""
    yield f"{operation.summary}. Right: {_right(operation)}."
    if operation.description:
        yield operation.description
    notes = []
    if operation.body is not None:
        optional = "" if operation.body_required else ", or none"
        notes.append(f"Body: {_type(operation.body)}{optional}.")
    answer = "a stream of events" if operation.streams else _type(operation.answer or {})
    notes.append(
        f"Answer: {operation.status}{', ' + answer if operation.streams or operation.answer else ''}."
    )
    further = [str(status) for status in problems_of(operation) if status not in (400, 401, 403, 503)]
    if further:
        notes.append(f"Refusals: {', '.join(further)}.")
    yield ""
    yield " ".join(notes)
    parameters = [(parameter, "") for parameter in operation.query]
    parameters += [(parameter, ", a header") for parameter in operation.headers]
    if parameters:
        yield ""
        yield from _table(
            (
                f"`{each.name}`{kind}{', required' if each.required else ''}",
                f"{_type(each.schema)}. {each.description}",
            )
            for each, kind in parameters
        )


def _right(operation: Operation) -> str:
    right = operation.right
    if right is None:
        return "any"
    if "{entity}" in operation.path:
        rights = [right.value for right in (operation.right, operation.or_right) if right is not None]
        return f"{' or '.join(rights)} on the entity"
    if operation.finds_entity is not None or any(each.name == "entity" for each in operation.query):
        return f"Manage on the namespace; with `entity`, {right.value} on that"
    return "Manage on the namespace"


def _members(properties: Schema, required: set[str], above: str = "") -> Iterator[tuple[str, str]]:
    for name, schema in properties.items():
        path = f"{above}{name}"
        always = "" if name not in required or above else ", always present"
        text = _type(schema)
        description = schema.get("description", "")
        yield f"`{path}`{always}", f"{text}. {description}".rstrip()
        if schema.get("type") == "object" and "properties" in schema:
            yield from _members(schema["properties"], set(), f"{path}.")
        items = schema.get("items", {})
        if "properties" in items:
            yield from _members(items["properties"], set(), f"{path}[].")


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"array of {_type(schema['items'])}"
    kinds = schema.get("type", "anything")
    text = kinds if isinstance(kinds, str) else ", ".join(kinds)
    if "format" in schema and schema["format"] != "int64":
        text = str(schema["format"])
    bounds = [words.format(schema[key]) for key, words in _BOUNDS.items() if _is_telling(schema, key)]
    if "default" in schema:
        bounds.append(f"default {schema['default']}")
    return ", ".join([text, *bounds])


_BOUNDS = {
    "exclusiveMinimum": "above {:,}",
    "minimum": "at least {:,}",
    "maximum": "at most {:,}",
    "maxLength": "at most {:,} characters",
    "maxItems": "at most {:,} items",
}


def _is_telling(schema: Schema, key: str) -> bool:
    return key in schema and schema[key] not in (0 if key == "minimum" else None, (1 << 63) - 1)


def _table(rows: Any, left: str = "parameter", right: str = "what it is") -> Iterator[str]:
    yield f"| {left} | {right} |"
    yield "|---|---|"
    for name, text in rows:
        yield f"| {name} | {text.replace('|', chr(92) + '|')} |"


PAGE = GeneratedPage("api", _reference)

if __name__ == "__main__":
    raise SystemExit(PAGE.main(sys.argv[1:]))
