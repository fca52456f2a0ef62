"""The functions of template expressions that need no deployment. Source: Learn, "ARM template functions"."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from peeklock.templates.arm_expressions import NotEvaluated, Unknown, text_of, unknown_in

SIZE_MAX: Final = 1 << 17
"""Characters of a text. Our choice: no setting is so long, and a text cannot grow with each call."""

ITEMS_MAX: Final = 10_000
"""Of an array. Our choice: more than the entities of a namespace."""

_DEPLOYMENT: Final = frozenset(
    "deployment deployer environment extensionResourceId getSecret guid listAccountSas listKeys list "
    "managementGroup newGuid pickZones providers reference references resourceGroup subscription tenant "
    "toLogicalZone toPhysicalZone uniqueString utcNow dateTimeAdd managementGroupResourceId".lower().split()
)
"""Functions whose value only a deployment knows."""


def call(name: str, arguments: list[Any], text: str) -> Any:
    """Return the value of a function; `text` is the source of the call. Raises: NotEvaluated."""
    key = name.lower()
    if key in _DEPLOYMENT or key.startswith("list"):
        return Unknown(text)
    if key not in _FUNCTIONS:
        raise NotEvaluated(
            f"the function {name}() is not offered: replace {text[:80]} in the template by its value"
        )
    if _needs_unknown(key, arguments):
        return Unknown(text)
    try:
        value = _FUNCTIONS[key](*arguments)
    except NotEvaluated:
        raise
    except (TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError) as failure:
        raise NotEvaluated(f"{text[:80]}: wrong arguments ({failure})") from failure
    if isinstance(value, list | dict) and len(value) > ITEMS_MAX:
        raise NotEvaluated(f"{text[:80]}: it has more than {ITEMS_MAX} items")
    return value


def _needs_unknown(key: str, arguments: list[Any]) -> bool:
    """Return whether the value depends on an unknown one that the function cannot keep."""
    if key in _KEEP_UNKNOWN:
        return False
    if key in _OF_ITEMS:
        arguments = [each for each in arguments if isinstance(each, Unknown | str)]
    return unknown_in(arguments) is not None


def _joined(parts: Iterable[str]) -> str:
    """Return texts as one. Raises: NotEvaluated: it is too long."""
    pieces: list[str] = []
    size = 0
    for piece in parts:
        size += len(piece)
        if size > SIZE_MAX:
            raise NotEvaluated(f"a text is longer than {SIZE_MAX} characters")
        pieces.append(piece)
    return "".join(pieces)


def _concat(*parts: Any) -> Any:
    if parts and all(isinstance(part, list) for part in parts):
        return [item for part in parts for item in part]
    return _joined(string(part) for part in parts)


_PLACE = re.compile(r"\{\{|\}\}|\{(\d{1,3})(?::([^}]*))?\}")


def _format(pattern: str, *values: Any) -> str:
    def put(found: re.Match[str]) -> str:
        """Return the value of a place."""
        if found[1] is None:
            return found[0][0]
        value = values[int(found[1])]
        if found[2] is None:
            return string(value)
        padded = re.fullmatch(r"[dD](\d{1,3})|(0+)", found[2])
        if padded is None or not isinstance(value, int):
            raise NotEvaluated(f"the format {found[0]} is not offered")
        return str(value).rjust(int(padded[1]) if padded[1] else len(padded[2]), "0")

    pieces: list[str] = []
    end = 0
    for found in _PLACE.finditer(pattern):
        pieces += (pattern[end : found.start()], put(found))
        end = found.end()
    return _joined([*pieces, pattern[end:]])


def string(value: Any) -> str:
    """Return the text of a value, as the function string() does."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, dict | list):
        return _joined(json.JSONEncoder(separators=(",", ":"), default=text_of).iterencode(value))
    return "" if value is None else text_of(value)


def _boolean(value: Any) -> bool:
    text = str(value).lower()
    if text in ("true", "1"):
        return True
    if text in ("false", "0"):
        return False
    raise ValueError(f"{value!r} is not a boolean")


def _equals(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _join(held: list[Any], by: str) -> str:
    return _joined(text for each in held for text in (by, string(each)))[len(by) :]


def _split(text: str, by: str | list[str]) -> list[str]:
    by = [by] if isinstance(by, str) else by
    return re.split("|".join(map(re.escape, by)), text)


def _contains(held: Any, item: Any) -> bool:
    if isinstance(held, str):
        return string(item) in held
    if isinstance(held, dict):
        return string(item).lower() in (key.lower() for key in held)
    return any(_equals(each, item) for each in held)


def _union(*parts: Any) -> Any:
    if all(isinstance(part, dict) for part in parts):
        return {key: value for part in parts for key, value in part.items()}
    found: list[Any] = []
    for item in _concat(*parts):
        if not any(_equals(item, each) for each in found):
            found.append(item)
    return found


def _intersection(first: Any, *others: Any) -> Any:
    if isinstance(first, dict):
        kept = first.items()
        return {key: value for key, value in kept if all(other.get(key) == value for other in others)}
    return [item for item in first if all(_contains(other, item) for other in others)]


def _substring(text: str, start: int, length: int | None = None) -> str:
    end = len(text) if length is None else start + length
    if not 0 <= start <= end <= len(text):
        raise ValueError(f"{text!r} has {len(text)} characters")
    return text[start:end]


def _range(start: int, count: int) -> list[int]:
    if not 0 <= count <= ITEMS_MAX:
        raise ValueError(f"{count} is not from 0 to {ITEMS_MAX}")
    return list(range(start, start + count))


def _pad(text: Any, width: int, by: str = " ") -> str:
    if not 0 <= width <= SIZE_MAX:
        raise ValueError(f"{width} is not from 0 to {SIZE_MAX}")
    return string(text).rjust(width, by)


def _resource_id(*parts: Any) -> str:
    """Return the id of a resource; subscription and resource group are left out."""
    texts = [string(part) for part in parts]
    at = next(index for index, text in enumerate(texts) if "/" in text)
    provider, *kinds = texts[at].split("/")
    pairs = zip(kinds, texts[at + 1 :], strict=True)
    return f"/providers/{provider}" + "".join(f"/{kind}/{name}" for kind, name in pairs)


def _items(held: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": held[key]} for key in sorted(held)]


def _uri_component(text: str) -> str:
    return quote(text, safe="!'()*-._~")


def _flatten(held: list[Any]) -> list[Any]:
    return [item for part in held for item in part]


def _smallest(choose: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: choose(given[0] if isinstance(given[0], list) else given)


def _try_get(held: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(held, dict):
            held = held.get(key)
        elif isinstance(held, list) and isinstance(key, int) and 0 <= key < len(held):
            held = held[key]
        else:
            return None
    return held


_NAMED: Mapping[str, Callable[..., Any]] = {
    "add": lambda one, other: one + other,
    "array": lambda value: value if isinstance(value, list) else [value],
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64ToString": lambda text: base64.b64decode(text).decode(),
    "bool": _boolean,
    "coalesce": lambda *given: next((each for each in given if each is not None), None),
    "concat": _concat,
    "contains": _contains,
    "createArray": lambda *given: list(given),
    "createObject": lambda *given: dict(zip(given[::2], given[1::2], strict=True)),
    "div": lambda one, other: int(one / other) if abs(one) < 1 << 52 else one // other,
    "empty": lambda value: not value,
    "endsWith": lambda text, end: text.lower().endswith(end.lower()),
    "equals": _equals,
    "false": lambda: False,
    "first": lambda held: held[0] if held else "" if isinstance(held, str) else None,
    "flatten": _flatten,
    "format": _format,
    "greater": lambda one, other: one > other,
    "greaterOrEquals": lambda one, other: one >= other,
    "indexOf": lambda held, item: (
        held.lower().find(item.lower())
        if isinstance(held, str)
        else next((at for at, each in enumerate(held) if _equals(each, item)), -1)
    ),
    "int": lambda value: int(value),
    "intersection": _intersection,
    "items": _items,
    "join": _join,
    "json": lambda text: json.loads(text),
    "last": lambda held: held[-1] if held else "" if isinstance(held, str) else None,
    "length": lambda held: len(held),
    "less": lambda one, other: one < other,
    "lessOrEquals": lambda one, other: one <= other,
    "max": _smallest(max),
    "min": _smallest(min),
    "mod": lambda one, other: one - other * int(one / other),
    "mul": lambda one, other: one * other,
    "not": lambda value: not _boolean(value),
    "null": lambda: None,
    "objectKeys": lambda held: sorted(held),
    "padLeft": _pad,
    "range": _range,
    "replace": lambda text, old, new: _join(text.split(old), new),
    "resourceId": _resource_id,
    "shallowMerge": lambda held: _union(*held),
    "skip": lambda held, count: held[max(0, count) :],
    "split": _split,
    "startsWith": lambda text, start: text.lower().startswith(start.lower()),
    "string": string,
    "sub": lambda one, other: one - other,
    "subscriptionResourceId": _resource_id,
    "substring": _substring,
    "take": lambda held, count: held[: max(0, count)],
    "toLower": lambda text: text.lower(),
    "toUpper": lambda text: text.upper(),
    "trim": lambda text: text.strip(),
    "true": lambda: True,
    "tryGet": _try_get,
    "union": _union,
    "uriComponent": _uri_component,
    "uriComponentToString": lambda text: unquote(text),
}

_FUNCTIONS: Mapping[str, Callable[..., Any]] = {name.lower(): function for name, function in _NAMED.items()}

_KEEP_UNKNOWN: Final = frozenset(
    [
        "array",
        "concat",
        "createarray",
        "createobject",
        "format",
        "resourceid",
        "subscriptionresourceid",
        "string",
    ]
)
"""Functions that need not know their arguments."""

_OF_ITEMS: Final = frozenset(
    [
        "coalesce",
        "empty",
        "first",
        "flatten",
        "items",
        "last",
        "length",
        "objectkeys",
        "shallowmerge",
        "skip",
        "take",
        "tryget",
        "union",
    ]
)
"""Functions of an array or object that need not know its items."""
