"""The part of JSON Schema that the API uses: values are checked by the schemas of the OpenAPI document.

Source: JSON Schema 2020-12, which OpenAPI 3.1 uses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rest.broker_properties import has_surrogate
from peeklock.rest.names import shortened, unknown

Schema: TypeAlias = Mapping[str, Any]

_INTEGER = re.compile("-?[0-9]{1,19}", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


def ref(name: str) -> Schema:
    """Return a reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def record(properties: Mapping[str, Schema], required: Collection[str] | None = None, **more: Any) -> Schema:
    """Return the schema of an object with these members and no others; `required`: None = all."""
    names = list(properties if required is None else required)
    return {
        "type": "object",
        **({"required": names} if names else {}),
        "properties": properties,
        "additionalProperties": False,
        **more,
    }


def page(name: str, items: Schema, *, may_be_empty: bool = False, **more: Any) -> Schema:
    """Return the schema of a page of a list; `may_be_empty`: the next page may."""
    text = f"The cursor of the next page{', which may be empty' if may_be_empty else ''}. Absent at the end."
    following = {"type": "string", "description": text}
    return record({name: {"type": "array", "items": items, **more}, "next": following}, [name])


def resolved(schema: Schema, named: Mapping[str, Schema]) -> Schema:
    """Return the schema that a reference names; any other schema as it is."""
    while "$ref" in schema:
        schema = named[schema["$ref"].rpartition("/")[2]]
    return schema


def check(value: Any, schema: Schema, named: Mapping[str, Schema], where: str = "The body") -> Any:
    """Return a JSON value that a schema allows; a number without a fraction becomes an integer.

    Args:
        named: the schemas that `$ref` can name.
        where: the value's name in a refusal.

    Raises: ArgumentInvalid.
    """
    schema = resolved(schema, named)
    if "anyOf" in schema:
        return _check_any(value, schema["anyOf"], named, where)
    kinds = schema.get("type")
    if kinds is not None:
        names = [kinds] if isinstance(kinds, str) else list(kinds)
        is_whole = isinstance(value, float) and value.is_integer()
        if is_whole and "integer" in names and "number" not in names:  # a property keeps 5.0
            value = int(value)
        if not any(_KINDS[name](value) for name in names):
            raise ArgumentInvalid(f"{where} is not {_a(' or '.join(names))}.")
    if "enum" in schema and value not in schema["enum"]:
        raise ArgumentInvalid(f"{where} is not one of {', '.join(map(str, schema['enum']))}.")
    if isinstance(value, str):
        _check_text(value, schema, where)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(value, schema, where)
    elif isinstance(value, list):
        return _checked_items(value, schema, named, where)
    elif isinstance(value, dict):
        return _checked_members(value, schema, named, where)
    return value


def read_text(text: str, schema: Schema, where: str) -> Any:
    """Read and check the text of a parameter. Raises: ArgumentInvalid."""
    value: Any = text
    kind = schema.get("type")
    if kind == "integer":
        if not _INTEGER.fullmatch(text):
            raise ArgumentInvalid(f"{where} is not a whole number.")
        value = int(text)
    elif kind == "number":
        try:
            value = float(text)
        except ValueError:
            raise ArgumentInvalid(f"{where} is not a number.") from None
    elif kind == "boolean":
        if text not in _BOOLEANS:
            raise ArgumentInvalid(f"{where} is neither true nor false.")
        value = _BOOLEANS[text]
    return check(value, schema, {}, where)


def _check_any(value: Any, choices: list[Schema], named: Mapping[str, Schema], where: str) -> Any:
    """Check a value by the first choice of its type."""
    for choice in choices:
        kind = resolved(choice, named).get("type")
        if isinstance(kind, str) and _KINDS[kind](value):
            return check(value, choice, named, where)
    kinds = [str(resolved(choice, named).get("type")) for choice in choices]
    raise ArgumentInvalid(f"{where} is not {_a(' or '.join(kinds))}.")


def _check_text(value: str, schema: Schema, where: str) -> None:
    if has_surrogate(value):
        raise ArgumentInvalid(f"{where} contains an unpaired surrogate.")
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    if not least <= len(value) <= most:
        raise ArgumentInvalid(f"{where} has {len(value)} characters, not {_range(least, most)}.")
    if "pattern" in schema and not re.search(schema["pattern"], value, re.ASCII):
        raise ArgumentInvalid(f"{where} does not match {schema['pattern']}.")


def _check_number(value: int | float, schema: Schema, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentInvalid(f"{where} is not a finite number.")
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above = schema.get("exclusiveMinimum", -math.inf)
    if not least <= value <= most or value <= above:
        raise ArgumentInvalid(
            f"{where} is not above {above}." if value <= above else f"{where} is not {_range(least, most)}."
        )


def _checked_items(value: list[Any], schema: Schema, named: Mapping[str, Schema], where: str) -> list[Any]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise ArgumentInvalid(f"{where} has {len(value)} items, not {_range(least, most)}.")
    items = schema.get("items", {})
    path = _path(where)
    return [check(item, items, named, f"The member '{path}[{at}]'") for at, item in enumerate(value)]


def _checked_members(
    value: dict[str, Any], schema: Schema, named: Mapping[str, Schema], where: str
) -> dict[str, Any]:
    for name in schema.get("required", ()):
        if name not in value:
            raise ArgumentInvalid(f"{where} lacks the member '{name}'.")
    most = schema.get("maxProperties", math.inf)
    if len(value) > most:
        raise ArgumentInvalid(f"{where} has {len(value)} members, not {_range(0, most)}.")
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    found = {}
    for name, member in value.items():
        shown = shortened(name)
        inner = known.get(name, others)
        if inner is False:
            raise ArgumentInvalid(f"{where} has {unknown('member', name, known)}")
        _check_text(name, {}, f"The name of the member '{shown}'")
        path = f"{_path(where)}.{shown}".lstrip(".")
        found[name] = member if inner is True else check(member, inner, named, f"The member '{path}'")
    return found


def _path(where: str) -> str:
    """Return the path of a member within the body; empty = the body itself."""
    return where.removeprefix("The member '").removesuffix("'") if "'" in where else ""


def _range(least: float, most: float) -> str:
    if most == math.inf:
        return f"at least {least}"
    return f"up to {most}" if not least else f"{least} to {most}"


def _a(text: str) -> str:
    return f"an {text}" if text[0] in "aeiou" else f"a {text}"


_KINDS: dict[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}
