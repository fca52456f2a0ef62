"""Values: their kinds, comparison, arithmetic, joining of texts.

None is unknown (SQL's three-valued logic) in every result; arguments of arithmetic are never None. Operators
follow C#: integers have 64 bits and do not wrap, division of integers truncates, and an inexact operand makes
the result a double.
Source: wire contract 9.3; Learn "Subscription Rule SQL Filter Syntax", "Operator binding semantics". Where
values of two kinds meet: our choice, docs/choices.toml.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, DecimalException
from typing import Any, TypeAlias
from uuid import UUID

from peeklock.rules.errors import EvaluationError
from peeklock.rules.filters import Value

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
UINT64_MAX = (1 << 64) - 1
"""Of a given value; computed ones are signed."""
TEXT_LENGTH_MAX = 32_768
"""Characters of a computed text, as many as Azure allows bytes of a property. Without it, 32 statements that
double a text would exhaust memory."""

Truth: TypeAlias = bool | None
"""None is unknown."""
Comparer: TypeAlias = Callable[[Any, Any], Truth]
Combiner: TypeAlias = Callable[[Value, Value], Value]

BOOLEAN, NUMBER, TEXT = "a boolean", "a number", "a text"
BYTES, GUID, TIME, DURATION = "bytes", "a GUID", "a point in time", "a time span"

_KINDS: dict[type, str] = {
    bool: BOOLEAN,
    int: NUMBER,
    float: NUMBER,
    Decimal: NUMBER,
    str: TEXT,
    bytes: BYTES,
    UUID: GUID,
    datetime: TIME,
    timedelta: DURATION,
}
ORDERED = {NUMBER, TEXT, TIME, DURATION}
"""Kinds with an order."""

# The precision of C#'s decimal; the context of the thread may be changed elsewhere.
_DECIMAL = Context(prec=28)


def kind(value: object) -> str | None:
    """Return the kind of a value in words; None if no expression can use it."""
    found = _KINDS.get(type(value))
    if found is None:
        # A subclass, such as a number with its AMQP type; bool comes before int.
        found = next((name for known, name in _KINDS.items() if isinstance(value, known)), None)
    return found


def in_utc(value: Value | None) -> Value | None:
    """Return a value with UTC added to a point in time without zone."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def index_key(value: Value) -> Hashable:
    """Return a key that is equal for two values exactly if `=` is true of them."""
    found = type(value)
    if found is bool:
        return (value,)  # 1 == True in Python
    if found is Decimal and not equals_itself(value):
        return None  # equals no value of a rule; a signalling one has no hash
    return value


def equals_itself(value: Value) -> bool:
    """Whether a value equals itself; NaN does not."""
    if isinstance(value, Decimal):
        return not value.is_nan()
    return value == value


def _comparer(compare: Callable[[Any, Any], bool], of_any_kind: bool) -> Comparer:
    def compared(left: object, right: object) -> Truth:
        shared = kind(left)
        if shared is None or shared != kind(right) or not (of_any_kind or shared in ORDERED):
            return None
        try:
            truth: bool = compare(left, right)
        except DecimalException:
            return None  # NaN, which decimals refuse to order
        return truth

    return compared


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""In Python, for two values of one kind."""
COMPARERS: dict[str, Comparer] = {
    sign: _comparer(compare, of_any_kind=sign in ("=", "<>")) for sign, compare in OPERATORS.items()
}
equal = COMPARERS["="]
MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The operator for swapped operands."""


def negate(value: Value) -> Value:
    """Return a number or time span with its sign changed. Raises: EvaluationError."""
    match value:
        case bool():
            pass
        case int():
            return _int64(-value)
        case float() | timedelta():
            return _checked("-", lambda: -value)
        case Decimal():
            return _checked("-", lambda: _DECIMAL.minus(value))
    raise EvaluationError(f"- cannot be applied to {kind(value)}")


def affirm(value: Value) -> Value:
    """Return a number or time span unchanged. Raises: EvaluationError for anything else."""
    if kind(value) not in (NUMBER, DURATION):
        raise EvaluationError(f"+ cannot be applied to {kind(value)}")
    return value


def _divided(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


_INTEGER: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divided,
    "%": _remainder,
}
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
}
_EXACT: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": _DECIMAL.add,
    "-": _DECIMAL.subtract,
    "*": _DECIMAL.multiply,
    "/": _DECIMAL.divide,
    "%": _DECIMAL.remainder,
}
_TIMES = {
    ("+", TIME, DURATION),
    ("+", DURATION, TIME),
    ("+", DURATION, DURATION),
    ("-", TIME, TIME),
    ("-", TIME, DURATION),
    ("-", DURATION, DURATION),
}


def _combiner(sign: str) -> Combiner:
    whole, inexact, exact = _INTEGER[sign], _FLOAT[sign], _EXACT[sign]
    of_times: Callable[[Any, Any], Value] = operator.add if sign == "+" else operator.sub

    def combined(left: Value, right: Value) -> Value:
        left_kind, right_kind = kind(left), kind(right)
        if left_kind == right_kind == NUMBER:
            assert not isinstance(left, str | bytes | UUID | datetime | timedelta)
            assert not isinstance(right, str | bytes | UUID | datetime | timedelta)
            if sign in "/%" and equal(right, 0):
                raise EvaluationError(f"{as_text(left)} {sign} 0: a division by zero")
            if isinstance(left, int) and isinstance(right, int):
                return _int64(whole(left, right))
            if isinstance(left, float) or isinstance(right, float):
                return _checked(sign, lambda: inexact(float(left), float(right)))
            return _checked(sign, lambda: exact(Decimal(left), Decimal(right)))
        if sign == "+" and TEXT in (left_kind, right_kind):
            return _joined(as_text(left), as_text(right))
        if (sign, left_kind, right_kind) in _TIMES:
            return _checked(sign, lambda: of_times(left, right))
        raise EvaluationError(f"{sign} cannot be applied to {left_kind} and {right_kind}")

    return combined


COMBINERS: dict[str, Combiner] = {sign: _combiner(sign) for sign in _INTEGER}


def _int64(value: int) -> int:
    if INT64_MIN <= value <= INT64_MAX:
        return value
    raise EvaluationError(f"the result {value} has more than 64 bits")


def _checked(sign: str, compute: Callable[[], Value]) -> Value:
    try:
        return compute()
    except (ArithmeticError, ValueError):
        raise EvaluationError(f"the result of {sign} is out of range") from None


def as_text(value: Value) -> str:
    """Return a value as C# writes it when joined to a text.

    Raises:
        EvaluationError: times, time spans and bytes, whose text in C# depends on the machine's culture.
    """
    match value:
        case str():
            return value
        case bool():
            return "True" if value else "False"
        case int() | UUID():
            return str(value)
        case float() | Decimal():
            return str(value).upper().removesuffix(".0")
    raise EvaluationError(f"{kind(value)} cannot be joined to a text")


def _joined(left: str, right: str) -> str:
    if len(left) + len(right) > TEXT_LENGTH_MAX:
        raise EvaluationError(
            f"the joined text has {len(left) + len(right)} characters; the limit is {TEXT_LENGTH_MAX}"
        )
    return left + right
