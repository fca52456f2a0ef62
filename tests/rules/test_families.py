"""Many rules that compare: the index finds what each of them says alone."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.rules.ast import And, Comparison, Property
from peeklock.rules.compiled import CompiledFilter, compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.expression import Fixed, bind, compile_expression
from peeklock.rules.families import FEW, MANY
from peeklock.rules.filters import CorrelationFilter, Filter, SqlFilter, TrueFilter, Value
from peeklock.rules.index import RuleIndex
from peeklock.rules.parser import parse_filter
from peeklock.rules.predicate import compile_test
from peeklock.rules.ranges import BLOCK, Ranges
from peeklock.rules.values import equals_itself
from tests.rules.subjects import FakeMessage

NAMES = ("a", "A", "b", "c", "sys.Label", "sys.Size")
"""Few, so that rules have terms in common."""
INSTANT = datetime(2024, 5, 17, tzinfo=UTC)
A_GUID = UUID(int=1 << 100)
"""None that `newid()` makes in tests."""
PARAMETERS = (
    ("@instant", INSTANT),
    ("@later", INSTANT + timedelta(1)),
    ("@hour", timedelta(hours=1)),
    ("@half", Decimal("0.5")),
    ("@huge", (1 << 64) - 1),
    ("@nan", math.nan),
    ("@dnan", Decimal("NaN")),
    ("@snan", Decimal("sNaN")),
    ("@inf", math.inf),
    ("@one", 1),
    ("@onef", 1.0),
    ("@yes", True),
    ("@id", A_GUID),
    ("@none", None),
    ("@pattern", "b%"),
)
CONSTANTS = st.sampled_from(
    ["0", "1", "1.0", "2", "3", "-1", "0.5", "TRUE", "FALSE", "NULL", "''", "'b'", "'bl'", "'blue'"]
    + [name for name, _ in PARAMETERS]
)
COMPARED = (
    "0",
    "1",
    "1.5",
    "TRUE",
    "2",
    "@half",
    "@huge",
    "@inf",
    "@nan",
    "@dnan",
    "@instant",
    "@hour",
    "'b'",
    "'blue'",
)
PROPERTIES = st.sampled_from(NAMES)
SIGNS = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
EXPRESSIONS = PROPERTIES | st.sampled_from(
    [
        "a + b",
        "a * b",
        "10 / a",
        "a % b",
        "-a",
        "a - @hour",
        "a + 'x'",
        "property('a')",
        "property(b)",
        "newid()",
    ]
)
PATTERNS = st.sampled_from(["b%", "%e", "bl%e", "b_ue", "blue", "%", "", "bl%", "\U0010ffff%", "b!%%", "b!%"])
TERMS = (
    st.builds("{} {} {}".format, EXPRESSIONS, SIGNS, CONSTANTS)
    | st.builds("{1} {2} {0}".format, EXPRESSIONS, CONSTANTS, SIGNS)
    | st.builds("{0} >= {1} AND {0} < {2}".format, EXPRESSIONS, CONSTANTS, CONSTANTS)
    | st.builds("{} LIKE '{}' ESCAPE '!'".format, EXPRESSIONS, PATTERNS)
    | st.builds("{} LIKE {}".format, PROPERTIES, st.sampled_from(["@pattern", "b", "'b%'"]))
    | st.builds("{} IN ({}, {})".format, EXPRESSIONS, CONSTANTS, CONSTANTS | PROPERTIES)
    | st.builds("{} IS NULL".format, PROPERTIES)
    | st.builds("EXISTS({})".format, PROPERTIES)
    | st.builds("{} {} {}".format, PROPERTIES, SIGNS, PROPERTIES)
    | PROPERTIES
)
PARTS = (
    TERMS
    | st.builds("NOT ({})".format, TERMS)
    | st.builds("({} OR {})".format, TERMS, TERMS)
    | st.builds("NOT ({} AND {})".format, TERMS, TERMS)
)
SQL = st.lists(PARTS, min_size=1, max_size=4).map(" AND ".join)
CORRELATIONS = st.builds(
    lambda label, properties: CorrelationFilter(label=label, properties=tuple(properties.items())),
    st.sampled_from([None, "blue"]),
    st.dictionaries(st.sampled_from(["a", "b"]), st.sampled_from([1, True, "blue"]), max_size=2),
)
FILTERS = st.builds(SqlFilter, SQL, st.just(PARAMETERS)) | CORRELATIONS | st.just(TrueFilter())
ALL_VALUES: list[Value] = [
    0, 1, 2, 3, -1, 1.0, 0.5, 2.5, True, False, "", "b", "bl", "blue", "blu\U0010ffff", "bm", "x", b"b",
    math.nan, math.inf, -math.inf, Decimal(1), Decimal("0.5"), Decimal("NaN"), Decimal("sNaN"),
    (1 << 63) - 1, (1 << 64) - 1, A_GUID, INSTANT, INSTANT + timedelta(1), timedelta(hours=1),
    timedelta(0),
]  # fmt: skip
VALUES = st.sampled_from(ALL_VALUES)
MESSAGES = st.builds(
    FakeMessage,
    st.dictionaries(st.sampled_from(["a", "A", "b", "c"]), VALUES | st.none()),
    st.dictionaries(st.sampled_from(["label", "size"]), VALUES),
)


def compiled(filter: Any) -> CompiledFilter | None:
    try:
        return compile_filter(filter)
    except RuleError:
        return None  # such as LIKE 'b!': constants that no message makes right


def said(rule: CompiledFilter, message: FakeMessage) -> str:
    try:
        return str(rule.matches(message))
    except EvaluationError as error:
        return f"error: {error}"


def found_by(index: RuleIndex[int], message: FakeMessage) -> dict[int, str]:
    found, failed = index.match(message)
    assert found == sorted(found)
    assert [key for key, _ in failed] == sorted(key for key, _ in failed)
    assert not set(found) & {key for key, _ in failed}
    return dict.fromkeys(found, "True") | {key: f"error: {error}" for key, error in failed}


@settings(max_examples=300, deadline=None)
@given(
    st.lists(FILTERS.filter(compiled), min_size=1, max_size=12),
    st.lists(st.integers(0, 11), min_size=10, max_size=60),
    st.lists(st.integers(0, 59), max_size=60),
    st.lists(MESSAGES, min_size=1, max_size=6),
)
def test_many_rules_that_share_terms_are_found_as_each_says_alone(
    filters: list[Filter], given: list[int], removed: list[int], messages: list[FakeMessage]
) -> None:
    """Req: P-02, P-04, P-05"""
    index: RuleIndex[int] = RuleIndex()
    rules = {key: compile_filter(filters[which % len(filters)]) for key, which in enumerate(given)}
    for key, rule in rules.items():
        index.add(key, rule)

    def check() -> None:
        for message in messages:
            expected = {key: said(rule, message) for key, rule in rules.items()}
            assert found_by(index, message) == {k: text for k, text in expected.items() if text != "False"}

    check()
    for key in removed:
        if rules.pop(key, None) is not None:
            index.remove(key)
    check()
    for key in list(rules):
        index.remove(key)
    assert nothing_is_left(index)


def nothing_is_left(index: RuleIndex[int]) -> bool:
    rules = index._places, index._always, index._never, index._others._few, index._others._many
    return not any(rules) and not any(index._tables.values())


@settings(max_examples=500, deadline=None)
@given(SQL, MESSAGES)
def test_the_order_of_terms_changes_nothing(text: str, message: FakeMessage) -> None:
    """Equalities first, all others from left to right: the documented order, evaluated plainly.

    Req: P-02, P-04
    """
    rule = compiled(SqlFilter(text, PARAMETERS))
    if rule is None:
        return
    tree, parameters = parse_filter(text), bind(PARAMETERS)

    def is_equality(node: Any) -> bool:
        if not isinstance(node, Comparison) or node.operator != "=":
            return False
        sides = node.left, node.right
        values = [
            each.value
            for each in (compile_expression(side, parameters) for side in sides)
            if isinstance(each, Fixed)
        ]
        equals_nothing = not values or values[0] is None or not equals_itself(values[0])
        return any(isinstance(side, Property) for side in sides) and not equals_nothing

    terms = tree.terms if isinstance(tree, And) else (tree,)
    tests = [compile_test(term, parameters) for term in sorted(terms, key=lambda term: not is_equality(term))]
    expected = "True"
    if False in tests:
        expected, tests = "False", []  # known without a message
    for test in tests:
        try:
            if not isinstance(test, bool) and test(message) is not True:
                expected = "False"
                break
        except EvaluationError as error:
            expected = f"error: {error}"
            break
    if "newid()" not in text:
        assert said(rule, message) == expected


@pytest.mark.parametrize(
    "expressions",
    [
        [f"a {sign} {constant}" for sign in ("<", "<=", ">", ">=") for constant in COMPARED],
        [f"a >= {low} AND a < {high}" for low in COMPARED for high in COMPARED],
        [f"{constant} > a AND b IS NULL" for constant in COMPARED],
        [f"10 / a > {constant}" for constant in COMPARED],
        [f"c <> {number} AND 10 / a > 1" for number in range(20)],
        [f"c <> 8 AND 10 / a > {number} AND 10 / a < 6 AND 10 / b > {number}" for number in range(20)],
        [f"10 / a > {number} AND b IN (1, 'blue')" for number in range(20)],
        [f"b IN (1, TRUE, 'blue', {number}) AND a > {number}" for number in range(20)],
        [f"a LIKE '{pattern}'" for pattern in ("b%", "bl%", "blu%", "blue%", "\U0010ffff%", "%", "b_u%") * 2],
        [f"a > {number} AND a >= 1 AND a < 2 AND a <= {number} + 1" for number in range(20)],
        [f"(b = 1 OR 10 / a > 2) AND a < {number}" for number in range(20)],
        [f"NOT (a > {number} AND b > 1) AND a <= @inf" for number in range(20)],
        [f"a > {number} AND b > {number} AND c > 1" for number in range(20)],
    ],
    ids=lambda expressions: expressions[0],
)
def test_families_say_of_each_value_what_their_rules_say_alone(expressions: list[str]) -> None:
    """Req: P-02, P-04, P-05"""
    rules = dict(enumerate(map(sql, expressions)))
    index: RuleIndex[int] = RuleIndex()
    for key, rule in rules.items():
        index.add(key, rule)
    values = [None, *ALL_VALUES]
    for a, b in itertools.product(values, values):
        message = FakeMessage({"a": a, "b": b, "c": 7})
        expected = {key: said(rule, message) for key, rule in rules.items()}
        assert found_by(index, message) == {k: text for k, text in expected.items() if text != "False"}


@pytest.mark.parametrize(
    "expression", ["a - @one > 0", "a > 0 AND b <> @one", "a > 0 AND NOT b = property(@one)"]
)
def test_equal_texts_with_other_parameters_are_not_taken_for_one(expression: str) -> None:
    given: list[Value] = [1, 1.0, True, "1", "b", Decimal(1), Decimal("1.0"), INSTANT, 2, -1] * 5
    rules: dict[int, CompiledFilter] = {}
    index: RuleIndex[int] = RuleIndex()
    for key, value in enumerate(given):
        rule = compiled(SqlFilter(expression, (("@one", value),)))
        if rule is not None:
            rules[key] = rule
            index.add(key, rule)
    for a, b in itertools.product(ALL_VALUES, ALL_VALUES):
        message = FakeMessage({"a": a, "b": b})
        expected = {key: said(rule, message) for key, rule in rules.items()}
        assert found_by(index, message) == {k: text for k, text in expected.items() if text != "False"}


def sql(expression: str) -> CompiledFilter:
    return compile_filter(SqlFilter(expression, PARAMETERS))


def test_the_cheapest_terms_come_first_where_the_order_makes_no_difference() -> None:
    message = FakeMessage()
    message.user = noting = Noting({"a": "x", "b": 1, "c": 1, "d": 1})
    rule = sql("(a LIKE 'y%' OR a LIKE 'z') AND b > 1 AND 10 / c = 0 AND d = 0")
    assert not rule.matches(message)
    assert noting.asked == {"d": 1}
    noting["d"] = 0
    assert not rule.matches(message)
    assert noting.asked == {"d": 2, "b": 1}
    noting["b"] = 2
    assert not rule.matches(message)
    assert noting.asked == {"d": 3, "b": 2, "a": 2}


class Noting(dict[str, Value]):
    """Properties of a message that count how often each is asked for."""

    def __init__(self, values: dict[str, Value]) -> None:
        super().__init__(values)
        self.asked: Counter[str] = Counter()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked[name] += 1
        return super().get(name, default)


def asked_of(expressions: list[str], properties: dict[str, Value]) -> tuple[list[int], dict[str, int]]:
    """Return which expressions match, and how often each property was asked for."""
    index: RuleIndex[int] = RuleIndex()
    for number, expression in enumerate(expressions):
        index.add(number, sql(expression))
    message = FakeMessage()
    message.user = noting = Noting(properties)
    found, failed = index.match(message)
    assert not failed
    return found, dict(noting.asked)


@pytest.mark.parametrize(
    ("pattern", "properties", "found", "asked"),
    [
        ("a > {}", {"a": 3}, [0, 1, 2], {"a": 1}),
        ("a >= {} AND a < {} + 1", {"a": 500}, [500], {"a": 1}),
        ("a LIKE 'x{}y%'", {"a": "x500yz"}, [500], {"a": 1}),
        ("a IN ({}, -1)", {"a": 500}, [500], {"a": 1}),
        ("a IN ({}," + ",".join(str(n) for n in range(1000, 1020)) + ")", {"a": 3}, [3], {"a": 1000}),
        ("a * b > {}", {"a": 2, "b": 2}, [0, 1, 2, 3], {"a": 1, "b": 1}),
        ("a * b = {}", {"a": 2, "b": 2}, [4], {"a": 1, "b": 1}),
        ("a = 1 AND b > {}", {"a": 1, "b": 2}, [0, 1], {"a": 1, "b": 1}),
    ],
)
def test_a_term_that_tells_rules_apart_is_searched(
    pattern: str, properties: dict[str, Value], found: list[int], asked: dict[str, int]
) -> None:
    """Req: P-05"""
    expressions = [pattern.format(number, number) for number in range(1000)]
    assert asked_of(expressions, properties) == (found, asked)


def test_a_term_that_many_rules_have_is_asked_once() -> None:
    """Req: P-05"""
    expressions = [f"a > {number} AND c LIKE '%x' AND b <> {number}" for number in range(1000)]
    assert asked_of(expressions, {"a": 5000, "b": -1, "c": "y"}) == ([], {"c": 1})
    found, asked = asked_of(expressions, {"a": 3, "b": 1, "c": "x"})
    assert (found, asked) == ([0, 2], {"a": 1, "b": 3, "c": 1})


def test_a_term_becomes_common_while_rules_come() -> None:
    """Rules that came when few had it are asked for it by themselves."""
    different = [f"b > {number}" for number in range(FEW + 1)]
    common = [f"c LIKE '%x' AND a > {number}" for number in range(1000)]
    found, asked = asked_of(different + common, {"a": 2000, "c": "y"})
    assert (found, asked) == ([], {"a": 1, "b": 1, "c": MANY})


def test_a_source_that_fails_fails_for_each_rule_that_comes_to_it() -> None:
    """Req: P-04"""
    index: RuleIndex[int] = RuleIndex()
    for number in range(100):
        index.add(number, sql(f"b IS NULL AND 10 / a > {number}"))
    index.add(100, sql("c > 5 AND 10 / a > 3"))
    index.add(101, sql("10 / a > 3 AND c > 5"))
    assert found_by(index, FakeMessage({"a": 0, "b": 1})) == {101: "error: 10 / 0: a division by zero"}
    assert list(found_by(index, FakeMessage({"a": 0}))) == [*range(100), 101]
    assert list(found_by(index, FakeMessage({"a": 5}))) == [0, 1]


def test_a_new_id_is_made_for_each_rule() -> None:
    """Two rules that ask for one must not be given the same."""
    index: RuleIndex[int] = RuleIndex()
    for number in range(50):
        index.add(number, sql("'' + newid() > ''"))
    message = FakeMessage()
    assert len(index.match(message)[0]) == 50
    assert message.new_id() == UUID(int=51)


def test_ranges_find_what_is_for_a_value() -> None:
    chance = random.Random(5)

    def bound() -> tuple[int, int] | None:
        return None if chance.random() < 0.2 else (chance.randrange(500), chance.randrange(2))

    def is_in(bounds: tuple[Any, Any], at: tuple[int, int]) -> bool:
        low, high = bounds
        return (low is None or low <= at) and (high is None or at < high)

    ranges: Ranges[int] = Ranges()
    left: dict[int, Any] = {}
    for thing in range(8 * BLOCK):
        low, high = bound(), bound()
        if chance.random() < 0.4:
            gone = chance.choice(list(left or [0]))
            if gone in left:
                since, until = left.pop(gone)
                ranges.remove(since, until, gone)
        if low is not None or high is not None:
            ranges.add(low, high, thing)
            left[thing] = low, high
        value = chance.randrange(-1, 501)
        at = (value, 0)
        assert sorted(ranges.around(value)) == [thing for thing, each in left.items() if is_in(each, at)]
    assert sorted(ranges.all()) == list(left)
    assert len(ranges) == len(left) > BLOCK
    for thing in list(left):
        since, until = left.pop(thing)
        ranges.remove(since, until, thing)
        for value in range(0, 500, 10):
            at = (value, 0)
            assert sorted(ranges.around(value)) == [thing for thing, each in left.items() if is_in(each, at)]
    assert len(ranges) == 0
    assert ranges.around(1) == ranges.all() == []
