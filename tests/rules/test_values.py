"""Values of all kinds against each other."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from peeklock.rules.errors import EvaluationError
from peeklock.rules.values import (
    COMBINERS,
    COMPARERS,
    INT64_MAX,
    INT64_MIN,
    MIRRORED,
    affirm,
    as_text,
    equal,
    equals_itself,
    index_key,
    kind,
    negate,
)

VALUES: list[Any] = [
    True, False, 0, 1, -1, 2, INT64_MAX, INT64_MIN, INT64_MAX + 1, (1 << 64) - 1, 0.0, -0.0, 1.0, 0.1, 1e308,
    -1e308, 5e-324, math.inf, -math.inf, math.nan, Decimal(0), Decimal(1), Decimal("0.1"), Decimal("1E+6144"),
    Decimal("1E-6143"), Decimal("Infinity"), Decimal("NaN"), Decimal("sNaN"), "", "1", "True", "x" * 32_768,
    b"", b"1", UUID(int=1), datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), timedelta.min,
    timedelta.max, timedelta(0),
]  # fmt: skip
PAIRS = list(itertools.product(VALUES, repeat=2))


def test_the_key_of_a_value_is_equal_where_the_values_are() -> None:
    """Req: P-05. The index and `=` agree."""
    for left, right in PAIRS:
        if equals_itself(left):  # the value of a rule; that of a message is on the right
            assert (index_key(left) == index_key(right)) is (equal(left, right) is True), (left, right)
            if index_key(left) == index_key(right):
                assert hash(index_key(left)) == hash(index_key(right))


def test_a_comparison_of_two_kinds_is_unknown() -> None:
    """Req: P-02"""
    for left, right in PAIRS:
        for compare in COMPARERS.values():
            if kind(left) != kind(right):
                assert compare(left, right) is None
    assert all(compare(None, 1) is None and compare(1, None) is None for compare in COMPARERS.values())


def test_operators_have_their_mirror_images_and_opposites() -> None:
    for left, right in PAIRS:
        for sign, compare in COMPARERS.items():
            assert compare(left, right) is COMPARERS[MIRRORED[sign]](right, left)
        same = COMPARERS["="](left, right)
        assert COMPARERS["<>"](left, right) is (None if same is None else not same)


def test_operators_give_a_value_that_can_be_used_or_an_evaluation_error() -> None:
    """Req: P-02, P-04"""
    for left, right in PAIRS:
        for combine in COMBINERS.values():
            try:
                result = combine(left, right)
            except EvaluationError as error:
                assert len(str(error)) < 100  # noqa: PT017 - most pairs give a value
            else:
                assert kind(result) is not None
                assert not isinstance(result, int) or INT64_MIN <= result <= INT64_MAX
    for value in VALUES:
        for apply in (negate, affirm, as_text):
            try:
                assert kind(apply(value)) is not None
            except EvaluationError:
                assert kind(value) != "a number" or type(value) in (int, Decimal)


def test_a_number_that_remembers_its_type_is_a_number() -> None:
    class ULong(int):
        pass

    assert kind(ULong(1)) == kind(1)
    assert equal(ULong(1), 1) is True
    assert COMBINERS["+"](ULong(1), 1) == 2
    assert kind(object()) is None
    assert kind(None) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "True"),
        (5, "5"),
        (2.0, "2"),
        (2.5, "2.5"),
        (1e300, "1E+300"),
        (Decimal("0.50"), "0.50"),
        (UUID(int=10), "00000000-0000-0000-0000-00000000000a"),
    ],
)
def test_the_text_of_a_value(value: bool | int | float | Decimal | UUID, text: str) -> None:
    assert as_text(value) == text
