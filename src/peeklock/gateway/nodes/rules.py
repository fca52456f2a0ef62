"""Rules of subscriptions on the wire: the maps of `add-rule`, the described lists of `enumerate-rules`.

Source: wire contract 5.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from peeklock.amqp.decimals import decimal128_of
from peeklock.amqp.encoding import encode
from peeklock.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Encoded,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from peeklock.broker.content.overlay import wire_value
from peeklock.broker.content.subject import value_of
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.gateway.nodes.fields import Body, text
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

# Descriptors of the lists. Filters and the rest have different numbers of digits.
_RULE = ULong(0x0000013700000004)
_EMPTY_ACTION = ULong(0x0000013700000005)
_SQL_ACTION = ULong(0x0000013700000006)
_SQL_FILTER = ULong(0x0000001370000006)
_TRUE_FILTER = ULong(0x0000001370000007)
_FALSE_FILTER = ULong(0x0000001370000008)
_CORRELATION_FILTER = ULong(0x0000001370000009)

_COMPATIBILITY_LEVEL = Int(20)
"""The only level of the language; a client's is ignored."""

NOTATION = "amqp"
"""Of AMQP's types, in `AsGiven`."""

_TYPE_NAMES: dict[type, str] = {
    **dict.fromkeys((Decimal32, Decimal64, Decimal128), "decimal"),
    **{
        kind: kind.__name__.lower()
        for kind in (Byte, Short, Int, Long, UByte, UShort, UInt, ULong, Float, Char, Symbol, UUID, Timestamp)
    },
}
_OF_ADMINISTRATION: dict[str, Callable[[Any], Any]] = {
    "byte": Byte,
    "short": Short,
    "int": Int,
    "long": Long,
    "unsignedByte": UByte,
    "unsignedShort": UShort,
    "unsignedInt": UInt,
    "unsignedLong": ULong,
    "float": Float,
    "decimal": decimal128_of,
}
"""Type of the administration API -> AMQP's of that name, where it does not follow from the value."""

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1


def read_rule(body: Body) -> RuleDescription:
    """Read the rule of an `add-rule`. Raises: ArgumentInvalid: the text names the field."""
    described = body.get("rule-description")
    if not isinstance(described, dict):
        raise ArgumentInvalid("'rule-description' is not a map.")
    name = text(body, "rule-name")
    if name is None:
        name = text(described, "rule-name")
    if name is None:
        raise ArgumentInvalid("'rule-name' is missing.")
    return RuleDescription(name, _read_filter(described), _read_action(described))


def read_name(body: Body) -> str:
    """Read the name of a rule. Raises: ArgumentInvalid."""
    name = text(body, "rule-name")
    if name is None:
        raise ArgumentInvalid("'rule-name' is missing.")
    return name


def encode_rules(rules: Iterable[RuleDescription], bytes_max: int) -> list[Encoded]:
    """Encode the elements of an enumeration: the first rule, and those after it that fit into `bytes_max`."""
    found: list[Encoded] = []
    size = 0
    for rule in rules:
        item = Encoded(encode({"rule-description": _described(rule)}))
        size += len(item)
        if found and size > bytes_max:
            break
        found.append(item)
    return found


# What clients write


def _read_filter(described: Body) -> Filter:
    present = [key for key in _FILTERS if described.get(key) is not None]
    if len(present) != 1:
        raise ArgumentInvalid(
            f"'rule-description' holds {' and '.join(present) or 'no filter'}; it must hold one of "
            f"{', '.join(_FILTERS)}."
        )
    [key] = present
    return _FILTERS[key](_map(described, key))


def _read_sql(fields: Body) -> SqlFilter:
    return SqlFilter(_expression(fields, "sql-filter"), *_pairs(fields, "parameters"))


def _read_correlation(fields: Body) -> CorrelationFilter:
    system = {field: text(fields, field.replace("_", "-")) for field in CORRELATION_FIELDS}
    properties, as_given = _pairs(fields, "properties")
    return CorrelationFilter(**system, properties=properties, as_given=as_given)


_FILTERS: dict[str, Callable[[Body], Filter]] = {
    "sql-filter": _read_sql,
    "correlation-filter": _read_correlation,
    "true-filter": lambda fields: TrueFilter(),
    "false-filter": lambda fields: FalseFilter(),
}


def _read_action(described: Body) -> SqlAction | None:
    if described.get("sql-rule-action") is None:
        return None
    fields = _map(described, "sql-rule-action")
    return SqlAction(_expression(fields, "sql-rule-action"), *_pairs(fields, "parameters"))


def _map(body: Body, key: str) -> Body:
    value = body[key]
    if not isinstance(value, dict):
        raise ArgumentInvalid(f"'{key}' is not a map.")
    return value


def _expression(fields: Body, key: str) -> str:
    expression = text(fields, "expression")
    if expression is None:
        raise ArgumentInvalid(f"'{key}' holds no 'expression'.")
    return expression


def _pairs(fields: Body, key: str) -> tuple[Pairs, AllAsGiven]:
    if fields.get(key) is None:
        return (), ()
    return split_given((_name(name, key), *_value(name, value)) for name, value in _map(fields, key).items())


def _name(name: object, key: str) -> str:
    if not isinstance(name, str):
        raise ArgumentInvalid(f"A name in '{key}' is not a string.")
    return str(name)


def _value(name: str, raw: Any) -> tuple[Value | None, AsGiven | None]:
    if raw is None:
        return None, None
    value = value_of(raw)
    if value is None:
        raise ArgumentInvalid(f"The value of '{name[:64]}' is of a type that no rule can compare.")
    encoded = encode(raw)
    if encoded == encode(_shown(value, None)) and not isinstance(value, UUID):
        return value, None  # the type follows from the value, here and in the administration API
    return value, AsGiven(f"{NOTATION}:{_type_name(raw)}", encoded.hex())


def _type_name(raw: Any) -> str:
    """Return the name of a type that is not the usual one of its values."""
    if isinstance(raw, Described):
        return str(raw.descriptor).rpartition(":")[2]
    return _TYPE_NAMES[type(raw)]


# What they read


def _described(rule: RuleDescription) -> Described:
    action = Described(_EMPTY_ACTION, [])  # never null: JavaScript looks into it
    if rule.action is not None:
        action = Described(_SQL_ACTION, [rule.action.expression, _COMPATIBILITY_LEVEL])
    return Described(_RULE, [_filter(rule.filter), action, rule.name, Timestamp(rule.created_at_ms)])


def _filter(found: Filter) -> Described:
    if isinstance(found, SqlFilter):
        return Described(_SQL_FILTER, [found.expression, _COMPATIBILITY_LEVEL])
    if isinstance(found, TrueFilter):
        return Described(_TRUE_FILTER, [])
    if isinstance(found, FalseFilter):
        return Described(_FALSE_FILTER, [])
    return Described(
        _CORRELATION_FILTER,
        [
            *(getattr(found, field) for field in CORRELATION_FIELDS),
            {
                name: _shown(value, given)
                for name, value, given in join_given(found.properties, found.as_given)
            },
        ],
    )


def _shown(value: Value | None, given: AsGiven | None) -> Any:
    """Return a value in the type in which it was given; where that is not known, a small integer as an int,
    as most clients have it. Source: wire contract C35."""
    if given is not None:
        if given.name_in(NOTATION):
            return Encoded(bytes.fromhex(given.text))
        if same_named := _OF_ADMINISTRATION.get(given.name_in("d") or ""):
            return same_named(value)
    if type(value) is int and _INT32_MIN <= value <= _INT32_MAX:
        return Int(value)
    return wire_value(value)
