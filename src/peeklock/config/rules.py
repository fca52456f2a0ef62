"""The rules of a subscription in a configuration file, read and written.

Source: the emulator's `Schema/Config-schema.json`. Beyond it there are the filter types `True` and `False`,
`Parameters` of expressions, and values of types that JSON lacks, as `{"Type": "guid", "Value": "..."}` with
the type names of the administration API: everything that its clients can make can be written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from peeklock.admin.typed_texts import READERS, written
from peeklock.broker.entities.validation import PART_NAME_LENGTH_MAX, is_part_name
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.config.form import Form, join, none_of, shown
from peeklock.rules.filters import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Pairs,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
)

SHORT_NAME_RULE = f"a name: 1 to {PART_NAME_LENGTH_MAX} of A-Z, a-z, 0-9 and ._-, and neither '.' nor '..'"
_RULE_NAME_RULE = f"{SHORT_NAME_RULE}; a $ may come before a letter or digit"


def is_short_name(text: str) -> bool:
    """Return whether this may be the name of a subscription."""
    return is_part_name(text) and not text.startswith("$")


_PROPERTIES = ("FilterType", "CorrelationFilter", "SqlFilter", "Action")


def read_rule(form: Form, value: Any, path: str) -> RuleDescription | None:
    """Return a rule; None = the form has a problem with it."""
    rule = form.object(value, path, ("Name", "Properties"), required=("Name", "Properties"))
    if rule is None:
        return None
    name = form.name(rule, path, is_part_name, _RULE_NAME_RULE)
    if "Properties" not in rule:
        return None
    where = f"{path}.Properties"
    properties = form.object(rule["Properties"], where, _PROPERTIES, required=("FilterType",))
    if properties is None:
        return None
    filtered = _read_filter(form, properties, where)
    action = None
    if "Action" in properties:
        action = _read_expression(form, properties["Action"], f"{where}.Action", SqlAction)
    return None if name is None or filtered is None else RuleDescription(name, filtered, action)


def write_rule(rule: RuleDescription) -> dict[str, Any]:
    """Return the entry of a rule."""
    properties: dict[str, Any]
    match rule.filter:
        case TrueFilter():
            properties = {"FilterType": "True"}
        case FalseFilter():
            properties = {"FilterType": "False"}
        case SqlFilter():
            properties = {"FilterType": "Sql", "SqlFilter": _write_expression(rule.filter)}
        case CorrelationFilter():
            properties = {"FilterType": "Correlation", "CorrelationFilter": _write_correlation(rule.filter)}
    if rule.action is not None:
        properties["Action"] = _write_expression(rule.action)
    return {"Name": rule.name, "Properties": properties}


# Filters and actions

_Expression = TypeVar("_Expression", SqlFilter, SqlAction)

_CONSTANT_FILTERS: Mapping[str, Filter] = {"True": TrueFilter(), "False": FalseFilter()}
_FILTER_KEYS = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}
_FILTER_TYPES = (*_FILTER_KEYS, *_CONSTANT_FILTERS)


def _read_filter(form: Form, properties: Mapping[str, Any], path: str) -> Filter | None:
    kind = properties.get("FilterType")
    if kind not in _FILTER_TYPES:
        if "FilterType" in properties:
            form.problem(f"{path}.FilterType", none_of(kind, _FILTER_TYPES))
        return None
    wanted = _FILTER_KEYS.get(kind)
    for key in _FILTER_KEYS.values():
        if key in properties and key != wanted:
            form.problem(f"{path}.{key}", f"does not go with FilterType {kind!r}")
    if wanted is None:
        return _CONSTANT_FILTERS[kind]
    where = f"{path}.{wanted}"
    if wanted not in properties:
        form.problem(where, "missing")
        return None
    if kind == "Sql":
        return _read_expression(form, properties[wanted], where, SqlFilter)
    return _read_correlation(form, properties[wanted], where)


def _read_expression(form: Form, value: Any, path: str, make: type[_Expression]) -> _Expression | None:
    given = form.object(value, path, ("SqlExpression", "Parameters"), required=("SqlExpression",))
    if given is None or "SqlExpression" not in given:
        return None
    expression = form.value(_text, given["SqlExpression"], f"{path}.SqlExpression")
    parameters = _read_pairs(form, given, "Parameters", path)
    return None if expression is None else make(expression, parameters)


def _write_expression(given: SqlFilter | SqlAction) -> dict[str, Any]:
    entry: dict[str, Any] = {"SqlExpression": given.expression}
    if given.parameters:
        entry["Parameters"] = _write_pairs(given.parameters)
    return entry


def _read_correlation(form: Form, value: Any, path: str) -> CorrelationFilter | None:
    known = (*CORRELATION_FIELDS.values(), "Properties")
    given = form.object(value, path, known, other_words={"subject": "Label"})  # newer clients say so
    if given is None:
        return None
    texts = {
        field: form.value(_text, given[key], f"{path}.{key}")
        for field, key in CORRELATION_FIELDS.items()
        if key in given
    }
    return CorrelationFilter(**texts, properties=_read_pairs(form, given, "Properties", path))


def _write_correlation(given: CorrelationFilter) -> dict[str, Any]:
    entry: dict[str, Any] = {
        key: text for field, key in CORRELATION_FIELDS.items() if (text := getattr(given, field)) is not None
    }
    if given.properties:
        entry["Properties"] = _write_pairs(given.properties)
    return entry


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a string")
    return value


# Values

_EXAMPLES = {
    "base64Binary": "AAE=",
    "dateTime": "2024-01-31T12:00:00Z",
    "decimal": "9.90",
    "double": "INF",
    "duration": "P1DT30.5S",
    "guid": "00000000-0000-0000-0000-000000000001",
}
"""Types of values that JSON lacks, with an example. JSON has strings, booleans, integers and finite
doubles."""


def _read_pairs(form: Form, holder: Mapping[str, Any], key: str, path: str) -> Pairs:
    where = f"{path}.{key}"
    pairs = form.pairs(holder[key], where) if key in holder else None
    return tuple(
        (name, form.value(_read_value, value, join(where, name))) for name, value in (pairs or {}).items()
    )


def _write_pairs(pairs: Pairs) -> dict[str, Any]:
    return {name: _write_value(value) for name, value in pairs}


def _read_value(value: Any) -> Value | None:
    match value:
        case None | bool() | str():
            return value
        case int():
            if not -(2**63) <= value < 2**64:
                raise ValueError(f"{shown(value)} does not fit into 64 bits")
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError("the number is too large for a double")
            return value
        case {"Type": str() as kind, "Value": str() as text} if len(value) == 2 and kind in _EXAMPLES:
            try:
                return READERS[kind](text)
            except (ValueError, ArithmeticError) as failure:
                raise ValueError(f"{shown(text)} is not a {kind} such as {_EXAMPLES[kind]}") from failure
    raise ValueError(
        f"{shown(value)} is not a value: a string, a number, true, false, null, or "
        f'{{"Type": "...", "Value": "..."}} with one of the types {", ".join(_EXAMPLES)}'
    )


def _write_value(value: Value | None) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    kind, text = written(value)
    return {"Type": kind, "Value": text}
