"""Patterns for names: the useful ones are taken, those that could stop the broker are refused."""

from __future__ import annotations

import time

import pytest

from peeklock.metrics.matching import NAME_LENGTH_MAX, PATTERN_LENGTH_MAX, PatternRefused, compile_pattern


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("orders", "Orders"),
        ("orders.*", "orders/subscriptions/a"),
        (".*eu.*", "orders-eu-1"),
        ("(orders|prices)-[0-9]+", "prices-12"),
        ("q[0-9]{1,4}", "q1234"),
        ("a?b??c", "bc"),
        (r"(?:a|b)\.\w", "a.x"),
        ("(?i:x)|y", "X"),
    ],
)
def test_a_pattern_is_for_the_whole_name_in_any_case(pattern: str, name: str) -> None:
    compiled = compile_pattern(pattern)
    assert compiled.fullmatch(name)
    assert not compiled.fullmatch(f"{name}!\n")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+b",
        "(a|a)*b",
        "(a|aa)+",
        ".*.*.*x",
        "(.*)(.*)(.*)x",
        "(a|a)" * 40,
        "(?:a?){40}",
        r"(a)\1",
        "(?=a)a",
        "(?<!a)b",
        "(.*a){9}",
    ],
)
def test_a_pattern_that_may_take_too_long_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused, match="it may take too long: use at most two of"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "it is not a regular expression: missing ), unterminated subpattern at position 0"),
        ("*", "it is not a regular expression: nothing to repeat at position 0"),
        ("a" * (PATTERN_LENGTH_MAX + 1), "it is longer than 200 characters"),
    ],
)
def test_a_broken_pattern_is_told_by_its_place(pattern: str, said: str) -> None:
    with pytest.raises(PatternRefused, match=said.replace("(", r"\(").replace(")", r"\)")):
        compile_pattern(pattern)


def test_the_worst_of_the_patterns_that_are_taken_ends_soon() -> None:
    """Two repetitions over the longest name: an exponential one would never end."""
    compiled = compile_pattern(".*a.*b")
    began = time.process_time()
    assert not compiled.fullmatch("a" * NAME_LENGTH_MAX)
    assert time.process_time() - began < 1
