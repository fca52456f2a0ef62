"""Rules of subscriptions as JSON. Expressions are checked by the broker.

Values of types that JSON lacks are `{"type": "guid", "value": "..."}`, with the type names of the
administration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from peeklock.admin.typed_texts import READERS, written
from peeklock.api.instants import written as written_instants
from peeklock.api.model import INSTANT
from peeklock.api.schema import Schema, record, ref
from peeklock.broker.entities.validation import RULE_BYTES_MAX
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rest.names import shortened
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

_CONSTANTS: Mapping[str, Filter] = {"1=1": TrueFilter(), "1=0": FalseFilter()}
"""Filters that match all messages or none, as the administration shows them."""

_LABEL = {"label": "subject"}
_FIELDS = {field: _LABEL.get(field, name[0].lower() + name[1:]) for field, name in CORRELATION_FIELDS.items()}
"""Field of a correlation filter -> member, as in messages."""

_TYPES = ("base64Binary", "dateTime", "decimal", "double", "duration", "guid")
"""Of values that JSON lacks."""

_EXPRESSION: Schema = {"type": "string", "minLength": 1, "maxLength": RULE_BYTES_MAX}

TYPED_VALUE: Schema = record(
    {
        "type": {"type": "string", "enum": list(_TYPES)},
        "value": {"type": "string", "maxLength": RULE_BYTES_MAX},
    },
    description="A value of a type that JSON lacks.",
    examples=[{"type": "guid", "value": "00000000-0000-0000-0000-000000000001"}],
)

_VALUES: Schema = {
    "type": "object",
    "maxProperties": 1000,
    "additionalProperties": {
        "anyOf": [
            {"type": "string", "maxLength": RULE_BYTES_MAX},
            {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 64) - 1},
            {"type": "number"},
            {"type": "boolean"},
            {"type": "null"},
            ref("TypedValue"),
        ]
    },
}

FILTER: Schema = record(
    {
        "sql": {**_EXPRESSION, "description": "An expression. `1=1` matches all messages."},
        "parameters": {**_VALUES, "description": "Values of the names with `@` in the expression."},
        "correlation": record(
            {
                **{member: {"type": "string", "maxLength": RULE_BYTES_MAX} for member in _FIELDS.values()},
                "properties": {**_VALUES, "description": "Application properties."},
            },
            (),
            description="What a message must have, all of it.",
        ),
    },
    (),
    description="The filter of a rule: `sql` or `correlation`.",
    examples=[{"sql": "priority = 'high'"}],
)

_ACTION: dict[str, Schema] = {
    "action": {**_EXPRESSION, "description": "Statements that change the copy, such as `SET priority = 1`."},
    "actionParameters": {**_VALUES, "description": "Values of the names with `@` in the action."},
}

RULE_TO_PUT: Schema = record(
    {"filter": ref("Filter"), **_ACTION},
    ["filter"],
    description="A rule. Without an action, the copy is like the message.",
    examples=[{"filter": {"sql": "priority = 'high'"}, "action": "SET sys.Label = 'urgent'"}],
)

RULE: Schema = record(
    {"name": {"type": "string"}, "filter": ref("Filter"), **_ACTION, "createdAt": INSTANT},
    ["name", "filter"],
    description="A rule of a subscription.",
)

NAMED = {"Filter": FILTER, "Rule": RULE, "RuleToPut": RULE_TO_PUT, "TypedValue": TYPED_VALUE}


def read_rule(name: str, given: Mapping[str, Any], where: str = "") -> RuleDescription:
    """Read a rule whose JSON the schema allows; without a filter it matches all messages.

    Raises: ArgumentInvalid.
    """
    filter = read_filter(given["filter"], f"{where}filter") if "filter" in given else TrueFilter()
    return RuleDescription(name, filter, read_action(given, where))


def read_filter(given: Mapping[str, Any], where: str) -> Filter:
    """Read a filter. Raises: ArgumentInvalid."""
    correlation = given.get("correlation")
    if ("sql" in given) == (correlation is not None):
        raise ArgumentInvalid(f"The member '{where}' has not one of 'sql' and 'correlation'.")
    if correlation is None:
        constant = _CONSTANTS.get(given["sql"])
        if constant is not None and not given.get("parameters"):
            return constant
        return SqlFilter(given["sql"], _read_pairs(given, "parameters", where))
    if "parameters" in given:
        raise ArgumentInvalid(f"The member '{where}.parameters' is for 'sql' alone.")
    texts = {field: correlation[member] for field, member in _FIELDS.items() if member in correlation}
    return CorrelationFilter(
        **texts, properties=_read_pairs(correlation, "properties", f"{where}.correlation")
    )


def read_action(given: Mapping[str, Any], where: str) -> SqlAction | None:
    """Read the action of a rule; None = it has none. Raises: ArgumentInvalid."""
    if "action" in given:
        return SqlAction(given["action"], _read_pairs(given, "actionParameters", where.rstrip(".")))
    if "actionParameters" in given:
        raise ArgumentInvalid(f"The member '{where}actionParameters' goes with 'action'.")
    return None


def rule_json(rule: RuleDescription) -> dict[str, Any]:
    """Return a rule as JSON."""
    action = rule.action
    found: dict[str, Any] = {"name": rule.name, "filter": filter_json(rule.filter)}
    if action is not None:
        found["action"] = action.expression
        if action.parameters:
            found["actionParameters"] = _write_pairs(action.parameters)
    return {**found, **written_instants({"createdAt": rule.created_at_ms})}


def filter_json(given: Filter) -> dict[str, Any]:
    """Return a filter as JSON."""
    if isinstance(given, SqlFilter):
        parameters = {"parameters": _write_pairs(given.parameters)} if given.parameters else {}
        return {"sql": given.expression, **parameters}
    if isinstance(given, CorrelationFilter):
        found: dict[str, Any] = {
            member: text for field, member in _FIELDS.items() if (text := getattr(given, field)) is not None
        }
        if given.properties:
            found["properties"] = _write_pairs(given.properties)
        return {"correlation": found}
    return {"sql": next(text for text, constant in _CONSTANTS.items() if constant == given)}


def _read_pairs(holder: Mapping[str, Any], member: str, where: str) -> Pairs:
    given = holder.get(member, {})
    path = f"{where}.{member}".lstrip(".")
    return tuple((name, _read_value(value, f"{path}.{shortened(name)}")) for name, value in given.items())


def _write_pairs(pairs: Pairs) -> dict[str, Any]:
    return {name: _write_value(value) for name, value in pairs}


def _read_value(given: Any, where: str) -> Value | None:
    if not isinstance(given, dict):
        found: Value | None = given
        return found
    kind, text = given["type"], given["value"]
    try:
        return READERS[kind](text)
    except (ValueError, ArithmeticError) as failure:
        raise ArgumentInvalid(f"The member '{where}' is not a valid {kind}: {failure}.") from failure


def _write_value(value: Value | None) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    kind, text = written(value)
    return {"type": kind, "value": text}
