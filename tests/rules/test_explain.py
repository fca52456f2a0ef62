"""Why a filter matches a message, or does not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given

from peeklock.rules.compiled import compile_filter
from peeklock.rules.errors import EvaluationError, RuleError
from peeklock.rules.explain import explain
from peeklock.rules.filters import CorrelationFilter, FalseFilter, Filter, SqlFilter, TrueFilter
from peeklock.rules.subject import Subject
from tests.rules.strategies import MESSAGES
from tests.rules.subjects import FakeMessage
from tests.rules.test_index import FILTERS

MESSAGE = FakeMessage(
    {"priority": "low", "n": 5, "text5": "5", "none": None, "flag": True, "raw": b"\x01\x02", "odd name": 1},
    {"label": "pizza", "enqueuedtimeutc": datetime(2024, 1, 31, tzinfo=UTC)},
)

CASES: list[tuple[Filter, bool, str]] = [
    (TrueFilter(), True, "The filter matches all messages."),
    (FalseFilter(), False, "The filter matches no message."),
    (SqlFilter("1 = 1"), True, "The filter matches all messages."),
    (SqlFilter("priority = 'high'"), False, "priority = 'high' is false: priority is 'low', a text."),
    (SqlFilter("priority = 'low'"), True, "priority = 'low' is true: priority is 'low', a text."),
    (SqlFilter("colour = 'red'"), False, "colour = 'red' is unknown: the message has no colour."),
    (
        SqlFilter("none = 'red'"),
        False,
        "none = 'red' is unknown: none is null, or of a type that no filter compares.",
    ),
    (
        SqlFilter("n = '5'"),
        False,
        "n = '5' is unknown: n is 5, a number; a number is not compared with a text.",
    ),
    (
        SqlFilter("n = text5"),
        False,
        "n = text5 is unknown: n is 5, a number, text5 is '5', a text; a number is not compared with a text.",
    ),
    (SqlFilter("n > 1 AND priority LIKE 'h%' AND n > 9"), False, "priority LIKE 'h%' is false"),
    (
        SqlFilter("n > 7 OR sys.Label = 'cake'"),
        False,
        "n > 7 OR sys.Label = 'cake' is false: n is 5, a number",
    ),
    (SqlFilter("flag"), True, "flag is true: flag is TRUE, a boolean."),
    (SqlFilter("[odd name] = 2"), False, "[odd name] = 2 is false: [odd name] is 1, a number."),
    (SqlFilter("raw = 1"), False, "raw is 2 bytes, bytes"),
    (SqlFilter("EXISTS(colour)"), False, "EXISTS(colour) is false: the message has no colour."),
    (SqlFilter("property('n') = 6"), False, "property('n') = 6 is false: n is 5, a number."),
    (SqlFilter("n = @a", (("@a", 6),)), False, "n = @a is false: n is 5, a number."),
    (SqlFilter("n / 0 = 1"), False, "The filter cannot be evaluated: "),
    (SqlFilter("n ="), False, "The filter is not valid: "),
    (CorrelationFilter(label="pizza"), True, "All conditions are true: sys.Label is 'pizza'."),
    (CorrelationFilter(label="cake"), False, "sys.Label is 'pizza', not 'cake'."),
    (CorrelationFilter(to="me"), False, "the message has no sys.To; it must be 'me'."),
    (
        CorrelationFilter(label="pizza", properties=(("N", 6),)),
        False,
        "N is 5, not 6.",
    ),
    (
        CorrelationFilter(properties=(("n", "5"),)),
        False,
        "n is 5, a number; it must be '5', a text.",
    ),
    (
        CorrelationFilter(properties=(("colour", "red"),)),
        False,
        "the message has no colour; it must be 'red'.",
    ),
]


@pytest.mark.parametrize(("filter", "is_matched", "reason"), CASES, ids=range(len(CASES)))
def test_the_reason_names_what_decides(filter: Filter, is_matched: bool, reason: str) -> None:
    found = explain(filter, MESSAGE)
    assert found.is_matched is is_matched
    assert reason in found.reason


def test_an_error_is_said_to_be_one() -> None:
    assert explain(SqlFilter("n / 0 = 1"), MESSAGE).is_error
    assert explain(SqlFilter("n ="), MESSAGE).is_error
    assert not explain(SqlFilter("n = 1"), MESSAGE).is_error


def test_long_texts_are_cut_and_long_lists_too() -> None:
    long = FakeMessage({"a": "x" * 500})
    assert len(explain(SqlFilter("a = 'y'"), long).reason) < 150
    many = SqlFilter(" OR ".join(f"p{number} = 1" for number in range(50)))
    reason = explain(many, long).reason
    assert reason.endswith("and 40 more.")
    assert len(reason) < 600


@given(FILTERS, MESSAGES)
def test_what_is_explained_is_what_the_filter_says(filter: Filter, subject: Subject) -> None:
    found = explain(filter, subject)
    assert found.reason
    try:
        wanted = compile_filter(filter, stored=True).matches(subject)
    except (EvaluationError, RuleError):
        assert found.is_error
    else:
        assert found.is_matched is wanted or "newid" in str(filter)
