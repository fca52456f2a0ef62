"""The index finds the rules that asking each of them finds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.rules.ast import unparse
from peeklock.rules.compiled import CompiledFilter, compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.filters import CorrelationFilter, FalseFilter, SqlFilter, TrueFilter
from peeklock.rules.index import RuleIndex
from peeklock.rules.subject import Subject
from peeklock.rules.terms import Equality, Term, equality_term
from tests.rules.strategies import MESSAGES, PREDICATES, USER_NAMES, VALUES
from tests.rules.subjects import FakeMessage

PARAMETERS = st.tuples(
    st.tuples(st.just("@one"), VALUES),
    st.tuples(st.just("@text"), VALUES),
    st.tuples(st.just("@none"), st.none()),
)
EQUALITIES = st.tuples(st.sampled_from(["a", "A", "b", "sys.Label", "sys.to"]), st.just("@one"))
CONJUNCTIONS = st.lists(EQUALITIES | PREDICATES, min_size=1, max_size=4).map(
    lambda terms: " AND ".join(
        f"{term[0]} = {term[1]}" if isinstance(term, tuple) else f"({unparse(term)})" for term in terms
    )
)
FIELDS = ("label", "to", "message_id")
CORRELATIONS = st.builds(
    lambda fields, properties: CorrelationFilter(**fields, properties=tuple(properties.items())),
    st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(["", "blue", "1"]), max_size=2),
    st.dictionaries(st.sampled_from(USER_NAMES), VALUES, max_size=3),
)
FILTERS = (
    st.builds(SqlFilter, PREDICATES.map(unparse), PARAMETERS)
    | st.builds(SqlFilter, CONJUNCTIONS, PARAMETERS)
    | CORRELATIONS
    | st.sampled_from([TrueFilter(), FalseFilter()])
)


def compiled(filter: Any) -> CompiledFilter | None:
    try:
        return compile_filter(filter)
    except RuleError:
        return None  # such as 1 / 0: constants that no message makes right


def asked_one_by_one(rules: dict[int, CompiledFilter], message: FakeMessage) -> tuple[list[int], list[int]]:
    found, failed = [], []
    for key, rule in rules.items():
        try:
            if rule.matches(message):
                found.append(key)
        except EvaluationError:
            failed.append(key)
    return found, failed


@settings(max_examples=300)
@given(
    st.lists(FILTERS.map(compiled), max_size=12),
    st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=12),
    st.lists(MESSAGES, min_size=1, max_size=4),
)
def test_the_index_finds_what_asking_each_rule_finds(
    filters: list[CompiledFilter | None], changes: list[tuple[bool, int]], messages: list[FakeMessage]
) -> None:
    """Req: P-02, P-05"""
    index: RuleIndex[int] = RuleIndex()
    rules: dict[int, CompiledFilter] = {}

    def add(key: int) -> None:
        rule = filters[key] if key < len(filters) else None
        if rule is not None and key not in rules:
            rules[key] = rule
            index.add(key, rule)

    for key in range(len(filters)):
        add(key)
    for removes, key in changes:
        if removes and key in rules:
            del rules[key]
            index.remove(key)
        elif not removes:
            add(key)
    assert len(index) == len(rules)
    for message in messages:
        found, failed = index.match(message)
        assert (found, [key for key, _ in failed]) == asked_one_by_one(rules, message)
    for key in list(rules):
        index.remove(key)
    assert len(index) == 0
    assert index.match(messages[0]) == ([], [])
    assert not any(index._tables.values())


@given(FILTERS.map(compiled), MESSAGES)
def test_what_a_filter_says_of_itself_is_so(rule: CompiledFilter | None, message: FakeMessage) -> None:
    if rule is not None and (rule.always or rule.never):
        assert rule.matches(message) is rule.always
        assert rule.terms == ()


def sql(expression: str, **parameters: Any) -> CompiledFilter:
    return compile_filter(SqlFilter(expression, tuple((f"@{name}", v) for name, v in parameters.items())))


def equalities(expression: str, **parameters: Any) -> list[list[Equality]]:
    return [list(term.one_of) for term in sql(expression, **parameters).terms]


def test_equalities_are_found_in_the_terms_of_and() -> None:
    """Req: P-05"""
    expression = "weight > 2 AND Color = 'blue' AND 10 = quantity AND sys.Subject = @label"
    assert equalities(expression, label="order") == [
        [Equality("user", "color", "blue")],
        [Equality("user", "quantity", 10)],
        [Equality("system", "label", "order")],
        [],
    ]
    assert equalities("a = 1 AND (b = 2 AND c = 3)") == [
        [Equality("user", "a", 1)],
        [Equality("user", "b", 2)],
        [Equality("user", "c", 3)],
    ]
    assert equalities("a IN (1, NULL, 'x', TRUE, 1.0)") == [
        [Equality("user", "a", 1), Equality("user", "a", "x"), Equality("user", "a", (True,))]
    ]
    for expression in ("a = 1 OR b = 2", "NOT a = 1", "a <> 1", "a = b", "a = newid()", "a IN (1, b)", "a"):
        assert equalities(expression) == [[]]


def test_a_filter_of_one_equality_is_not_asked() -> None:
    """Req: P-05"""

    def asked(subject: object) -> bool:
        raise AssertionError("the look-up says it all")

    index: RuleIndex[str] = RuleIndex()
    index.add("one", CompiledFilter((equality_term(Equality("system", "label", "order"), asked),)))
    assert index.match(FakeMessage({}, {"label": "order"})) == (["one"], [])
    assert index.match(FakeMessage({}, {"label": "other"})) == ([], [])


def test_a_rule_stands_under_the_equality_that_fewest_share() -> None:
    """P-05: 1,000 rules for one label and as many customers ask one rule, not 1,000."""
    index: RuleIndex[int] = RuleIndex()
    asked: list[int] = []

    def noting(number: int, term: Term) -> Term:
        def note(subject: Subject) -> bool | None:
            asked.append(number)
            return term.is_true(subject)

        return term._replace(is_true=note)

    for number in range(1000):
        rule = sql(f"sys.Label = 'order' AND customer = {number}")
        index.add(number, CompiledFilter(tuple(noting(number, term) for term in rule.terms)))
    assert index.match(FakeMessage({"customer": 567}, {"label": "order"})) == ([567], [])
    assert asked in ([567], [0, 567])  # the first stood where none had been before


def test_rules_come_in_the_order_of_adding() -> None:
    index: RuleIndex[str] = RuleIndex()
    index.add("z", sql("a = 1"))
    index.add("y", compile_filter(TrueFilter()))
    index.add("x", sql("a > 0"))
    index.add("w", compile_filter(CorrelationFilter(properties=(("a", 1),))))
    index.add("v", compile_filter(FalseFilter()))
    message = FakeMessage({"a": 1})
    assert index.match(message) == (["z", "y", "x", "w"], [])
    index.remove("y")
    index.add("y", compile_filter(TrueFilter()))
    assert index.match(message) == (["z", "x", "w", "y"], [])
    assert len(index) == 5


def test_rules_that_cannot_be_evaluated_are_told_apart() -> None:
    """Req: P-04"""
    index: RuleIndex[str] = RuleIndex()
    index.add("divides", sql("10 / zero = 1"))
    index.add("matches", sql("zero = 0"))
    index.add("adds", sql("big + 1 > 0"))
    found, failed = index.match(FakeMessage({"zero": 0, "big": (1 << 63) - 1}))
    assert found == ["matches"]
    assert [(key, str(error)) for key, error in failed] == [
        ("divides", "10 / 0: a division by zero"),
        ("adds", "the result 9223372036854775808 has more than 64 bits"),
    ]


def test_a_message_without_the_values_of_a_rule_is_no_error_of_it() -> None:
    """The equalities come first, wherever they stand: so the index need not ask the rule."""
    rule = sql("10 / zero = 1 AND color = 'blue'")
    assert not rule.matches(FakeMessage({"zero": 0, "color": "red"}))
    with pytest.raises(EvaluationError):
        rule.matches(FakeMessage({"zero": 0, "color": "blue"}))


def test_a_key_is_added_once_and_removed_once() -> None:
    index: RuleIndex[str] = RuleIndex()
    index.add("a", sql("a = 1"))
    with pytest.raises(ValueError, match="already"):
        index.add("a", sql("a = 2"))
    index.remove("a")
    with pytest.raises(KeyError):
        index.remove("a")
