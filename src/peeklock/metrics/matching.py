"""Patterns for names of entities: regular expressions whose cost is known before they run.

Python's `re` may need exponential time, and nothing else is served meanwhile. So a pattern is refused if its
worst case over a name needs too many steps: a bound that follows from its form, as each repetition multiplies
the ways to divide a name, and each alternative adds some.
"""

from __future__ import annotations

import re
from re import _constants as kinds  # there is no public parser of patterns
from re import _parser as parser
from typing import Any

PATTERN_LENGTH_MAX = 200
"""Characters. Our choice."""

NAME_LENGTH_MAX = 520
"""Characters: more than the longest path, a topic's 260 with a subscription's 50."""

STEPS_MAX = 1_000_000
"""For one name, 10 ms. Our choice: two repetitions without an upper bound, of one character each."""


class PatternRefused(Exception):
    """The pattern cannot be used; the message says why."""


def compile_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern for `fullmatch`, case-insensitive as names are. Raises: PatternRefused."""
    if len(text) > PATTERN_LENGTH_MAX:
        raise PatternRefused(f"it is longer than {PATTERN_LENGTH_MAX} characters")
    try:
        steps = _steps(parser.parse(text))
        compiled = re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as failure:
        raise PatternRefused(f"it is not a regular expression: {failure}") from failure
    if steps > STEPS_MAX:
        raise PatternRefused(
            "it may take too long: use at most two of '*', '+' and '{n,}', each after one character or class"
        )
    return compiled


def _steps(items: Any) -> int:
    """Return a bound for the ways in which a sequence can match the beginning of a name."""
    steps = 1
    for kind, value in items:
        steps = min(steps * _ways(kind, value), STEPS_MAX + 1)
    return steps


def _ways(kind: Any, value: Any) -> int:
    if kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT):
        low, high, item = value
        high = min(int(high), NAME_LENGTH_MAX)
        inner = _steps(item)
        if inner == 1 and len(item) == 1 and item[0][0] in _ONE_CHARACTER:
            return int(high - min(int(low), high) + 1)
        return int(inner + 1) ** high if high <= 1 else STEPS_MAX + 1
    if kind is kinds.SUBPATTERN:
        return _steps(value[3])
    if kind is kinds.BRANCH:
        return sum(_steps(branch) for branch in value[1])
    if kind in _ONE_CHARACTER or kind is kinds.AT:
        return 1
    return STEPS_MAX + 1  # a reference to a group, or a look ahead or behind


_ONE_CHARACTER = (kinds.LITERAL, kinds.NOT_LITERAL, kinds.ANY, kinds.IN)
