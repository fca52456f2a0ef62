"""Pictures: each point can be seen."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("values", "alone"),
    [
        ([], []),
        ([3.0], [0]),
        ([3.0, None, None], [0]),
        ([None, 1.0, None, 2.0, 3.0, None, 4.0], [1, 6]),
        ([1.0, 2.0, 3.0], []),
    ],
)
def test_a_point_without_neighbours_is_marked(values: list[float | None], alone: list[int]) -> None:
    pytest.importorskip("pyspark")
    from peeklock.pipeline.plots import _dots

    assert _dots(values).get("markevery", []) == alone
