"""Random trees, values and messages."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from peeklock.rules.ast import (
    And,
    Arithmetic,
    Comparison,
    Constant,
    Exists,
    In,
    IsNull,
    Like,
    NamedProperty,
    Negative,
    NewId,
    Not,
    Or,
    Parameter,
    Positive,
    Property,
)
from tests.rules.subjects import FakeMessage

USER_NAMES = ("a", "b", "Color", "größe", "sys", "user", "p", "in", "set", "a b", "]", '"', "x.y", "1")
SYSTEM_NAMES = ("Label", "to", "SIZE", "Subject", "TimeToLive")

CONSTANTS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False).map(lambda value: value + 0.0)
    | st.text(max_size=4)
    | st.sampled_from(["blue", "b%", "_", "o'clock"])
)
PROPERTIES = st.builds(Property, st.just("user"), st.sampled_from(USER_NAMES)) | st.builds(
    Property, st.just("sys"), st.sampled_from(SYSTEM_NAMES)
)
PARAMETERS = st.sampled_from(["@one", "@Text", "@none"]).map(Parameter)


def _arithmetic(first: Any, rest: list[tuple[str, Any]], signs: str) -> Arithmetic:
    chain = tuple((signs[ord(sign) % len(signs)], operand) for sign, operand in rest)
    if isinstance(first, Arithmetic) and (first.rest[0][0] in "+-") == (signs == "+-"):
        return Arithmetic(first.first, first.rest + chain)
    return Arithmetic(first, chain)


def _is_number(node: Any) -> bool:
    return isinstance(node, Constant) and type(node.value) in (int, float)


def _compound(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    rest = st.lists(st.tuples(st.characters(), children), min_size=1, max_size=2)
    operands = children.filter(lambda node: not _is_number(node))
    return (
        st.builds(_arithmetic, children, rest, st.sampled_from(["+-", "*/%"]))
        | st.builds(Negative, operands)
        | st.builds(Positive, operands)
        | st.builds(NamedProperty, children)
    )


EXPRESSIONS = st.recursive(
    st.builds(Constant, CONSTANTS) | PROPERTIES | PARAMETERS | st.just(NewId()), _compound, max_leaves=5
)

LOOKED_AT = PROPERTIES | st.builds(NamedProperty, EXPRESSIONS)
FLAGS = (
    st.builds(Constant, st.none() | st.booleans())
    | PROPERTIES
    | PARAMETERS
    | st.builds(NamedProperty, EXPRESSIONS)
)
COMPARISONS = st.builds(
    Comparison, st.sampled_from(["=", "=", "<>", "<", "<=", ">", ">="]), EXPRESSIONS, EXPRESSIONS
)
TESTS = (
    COMPARISONS
    | st.builds(Comparison, st.just("="), PROPERTIES, st.builds(Constant, CONSTANTS))
    | st.builds(IsNull, LOOKED_AT)
    | st.builds(Exists, LOOKED_AT)
    | st.builds(In, EXPRESSIONS, st.lists(EXPRESSIONS, min_size=1, max_size=3).map(tuple))
    | st.builds(Like, EXPRESSIONS, EXPRESSIONS, st.none() | EXPRESSIONS)
    | FLAGS
)


def _flat(kind: Any, terms: list[Any]) -> Any:
    found: list[Any] = []
    for term in terms:
        found.extend(term.terms if isinstance(term, kind) else (term,))
    return kind(tuple(found))


PREDICATES = st.recursive(
    TESTS,
    lambda children: (
        st.builds(Not, children)
        | st.lists(children, min_size=2, max_size=3).map(lambda terms: _flat(And, terms))
        | st.lists(children, min_size=2, max_size=3).map(lambda terms: _flat(Or, terms))
    ),
    max_leaves=6,
)
"""Trees as the parser makes them; what they ask may still be refused when it is compiled."""

INSTANT = datetime(2024, 5, 17, tzinfo=UTC)
VALUES = st.sampled_from(
    [
        True, False, 0, 1, 2, -1, 1.0, 0.5, Decimal(1), Decimal("0.5"), (1 << 63) - 1, 1 << 63, math.nan,
        math.inf, Decimal("NaN"), Decimal("sNaN"), "", "1", "blue", "b%", "Blue", b"blue", b"",
        UUID(int=1 << 99), UUID(int=2 << 99), INSTANT, INSTANT + timedelta(1), timedelta(1), timedelta(0),
    ]
)  # fmt: skip

MESSAGES = st.builds(
    FakeMessage,
    st.dictionaries(st.sampled_from(USER_NAMES), VALUES | st.none(), max_size=6),
    st.dictionaries(st.sampled_from(["label", "to", "size", "timetolive"]), VALUES, max_size=3),
)
