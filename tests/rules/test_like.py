"""LIKE against a second opinion, and its limits."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peeklock.rules.like import PATTERN_LENGTH_MAX, PatternError, compile_like
from tests.rules.effort import least_cpu_s

LETTERS = st.text("ab", max_size=12)
PATTERNS = st.text("ab%_", max_size=8)


def as_regex(pattern: str) -> re.Pattern[str]:
    parts = {"%": ".*", "_": "."}
    return re.compile("".join(parts.get(character, re.escape(character)) for character in pattern), re.DOTALL)


@given(PATTERNS, LETTERS)
@example("%a_%_a", "ababaa")
@example("a%_%b", "ab")
@example("%_a%a_%", "aaa")
def test_like_agrees_with_regular_expressions(pattern: str, text: str) -> None:
    """Req: P-02"""
    assert compile_like(pattern)(text) is bool(as_regex(pattern).fullmatch(text))


@given(st.text("ab%_!", max_size=6))
def test_an_escaped_text_is_like_itself_only(text: str) -> None:
    escaped = re.sub("([%_!])", r"!\1", text)
    assert compile_like(escaped, "!")(text)
    assert compile_like(f"%{escaped}", "!")(f"x{text}")
    assert not compile_like(escaped, "!")(f"x{text}")


@given(
    st.text("aé漢\x01?0_%", max_size=6),
    st.text("aé漢\x01?0", max_size=10) | st.text("a漢\x01", min_size=90, max_size=200),
)
def test_like_agrees_with_regular_expressions_on_all_characters(pattern: str, text: str) -> None:
    for whole in (pattern, f"%{pattern}%"):
        assert compile_like(whole)(text) is bool(as_regex(whole).fullmatch(text))


@given(st.text(max_size=5), st.text(max_size=20))
def test_any_characters_can_be_looked_for(inner: str, text: str) -> None:
    pattern = re.sub("([%_!])", r"!\1", inner)
    assert compile_like(f"%{pattern}%", "!")(text) is (inner in text)


def test_a_pattern_at_the_limit_is_compiled_and_one_past_it_is_not() -> None:
    assert compile_like("a" * PATTERN_LENGTH_MAX)("a" * PATTERN_LENGTH_MAX)
    with pytest.raises(PatternError, match=r"1025 characters; the limit is 1024"):
        compile_like("a" * (PATTERN_LENGTH_MAX + 1))


@pytest.mark.parametrize("text", ["a" * 32_768, "漢a" * 16_384], ids=["letters", "more than ASCII"])
@pytest.mark.parametrize(
    "pattern",
    [
        "%a" * 512,
        "%" + "a_" * 511 + "b",
        "%" + "_" * 1000 + "b%",
        "%" + "a_" * 254 + "b%" + "a_" * 254 + "b%",
        "%_a_b" * 200 + "%",
        "%" * 1024,
        "_%" * 512,
        "%a%" * 300 + "b",
        "%" + "".join(f"{chr(code)}_" for code in range(0x4E00, 0x4E00 + 500)) + "%",
    ],
)
def test_no_pattern_takes_long(pattern: str, text: str) -> None:
    """Longest pattern, longest text of a property: one pass, where backtracking would never end."""
    assert least_cpu_s(lambda: compile_like(pattern)(text)) < 0.25  # some 5 ms here
