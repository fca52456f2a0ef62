"""Rules of subscriptions as JSON texts.

A value of a JSON type is written as it is; any other is an object of one member that names its type, so that
it is read as the same Python type. A pair is `[name, value]`, or `[name, value, type, text]` if the form
in which the value was given is known (since format 6).
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, assert_never
from uuid import UUID

from peeklock.broker.vocabulary.changes import RuleStored
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.rules.filters import (
    CORRELATION_FIELDS,
    AllAsGiven,
    AsGiven,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Pairs,
    SqlAction,
    SqlFilter,
    TrueFilter,
    Value,
    join_given,
    split_given,
)
from peeklock.store.encoding.entities import check_key, dump, reading

KEY_PREFIX = "rule/"

_MICROSECOND = timedelta(microseconds=1)


def key_of(entity_id: int, name: str) -> str:
    """Return the key of a rule: the rules of an entity sort by name without regard to case."""
    return f"{KEY_PREFIX}{entity_id:012}/{name.lower()}"


def encode(stored: RuleStored) -> str:
    """Return the text of a rule."""
    rule = stored.rule
    action = rule.action
    return dump(
        {
            "entity_id": stored.entity_id,
            "name": rule.name,
            "created_at_ms": rule.created_at_ms,
            "filter": _encode_filter(rule.filter),
            "action": None if action is None else _encode_sql(action),
        }
    )


def decode(key: str, text: str) -> RuleStored:
    """Return the rule of a text. Raises: StoreDamaged."""
    with reading("rule", key):
        record = json.loads(text)
        action = record["action"]
        stored = RuleStored(
            int(record["entity_id"]),
            RuleDescription(
                str(record["name"]),
                _decode_filter(record["filter"]),
                None
                if action is None
                else SqlAction(action["expression"], *_decode_pairs(action["parameters"])),
                int(record["created_at_ms"]),
            ),
        )
    check_key("rule", key, key_of(stored.entity_id, stored.rule.name))
    return stored


def _encode_filter(filter_: Filter) -> dict[str, Any]:
    match filter_:
        case SqlFilter():
            return {"kind": "sql", **_encode_sql(filter_)}
        case TrueFilter():
            return {"kind": "true"}
        case FalseFilter():
            return {"kind": "false"}
        case CorrelationFilter():
            given = {name: getattr(filter_, name) for name in CORRELATION_FIELDS}
            return {
                "kind": "correlation",
                **{name: value for name, value in given.items() if value is not None},
                "properties": _encode_pairs(filter_.properties, filter_.as_given),
            }
        case _:
            assert_never(filter_)


def _decode_filter(record: dict[str, Any]) -> Filter:
    match record["kind"]:
        case "sql":
            return SqlFilter(record["expression"], *_decode_pairs(record["parameters"]))
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
        case "correlation":
            given = {name: record[name] for name in CORRELATION_FIELDS if name in record}
            properties, as_given = _decode_pairs(record["properties"])
            return CorrelationFilter(**given, properties=properties, as_given=as_given)
        case kind:
            raise ValueError(f"its filter is of the unknown kind '{kind}'")


def _encode_sql(sql: SqlFilter | SqlAction) -> dict[str, Any]:
    return {"expression": sql.expression, "parameters": _encode_pairs(sql.parameters, sql.as_given)}


def _encode_pairs(pairs: Pairs, as_given: AllAsGiven) -> list[list[object]]:
    encoded: list[list[object]] = []
    for name, value, given in join_given(pairs, as_given):
        pair: list[object] = [name, None if value is None else _encode_value(value)]
        encoded.append(pair if given is None else [*pair, given.type, given.text])
    return encoded


def _decode_pairs(encoded: list[list[Any]]) -> tuple[Pairs, AllAsGiven]:
    return split_given(
        (name, _decode_value(value), AsGiven(*map(str, given)) if given else None)
        for name, value, *given in encoded
    )


def _encode_value(value: Value) -> object:
    match value:
        case bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"float": str(value)}
        case bytes():
            return {"bytes": value.hex()}
        case UUID():
            return {"uuid": str(value)}
        case datetime():
            return {"datetime": value.isoformat()}
        case timedelta():
            return {"timedelta_us": value // _MICROSECOND}
        case Decimal():
            return {"decimal": str(value)}
        case _:
            assert_never(value)


def _decode_value(value: Any) -> Value | None:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    [(kind, text)] = dict(value).items()
    match kind:
        case "float":
            return float(text)
        case "bytes":
            return bytes.fromhex(text)
        case "uuid":
            return UUID(text)
        case "datetime":
            found = datetime.fromisoformat(text)
            return found if found.tzinfo is None else found.astimezone(UTC)
        case "timedelta_us":
            return timedelta(microseconds=text)
        case "decimal":
            return Decimal(text)
        case _:
            raise ValueError(f"it has a value of the unknown type '{kind}'")
