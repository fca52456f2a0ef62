"""Columns of numbers keep their values through packing."""

from __future__ import annotations

import numpy as np

from peeklock.pipeline.audit.packing import NONE, join, split


def test_rows_come_to_their_destination_with_all_values() -> None:
    """Near and far numbers, the largest and the smallest, and none."""
    rng, count = np.random.default_rng(3), 1_000
    columns = {
        "none": np.full(count, NONE),
        "same": np.full(count, 7),
        "near": rng.integers(10**12, 10**12 + 254, count),
        "nearer-or-none": np.where(rng.random(count) < 0.5, NONE, rng.integers(-300, 300, count)),
        "far": rng.integers(NONE + 1, -NONE - 1, count),
        "edges": np.where(rng.random(count) < 0.5, NONE + 1, -(NONE + 1)),
        "of-32-bits": np.where(rng.random(count) < 0.5, 0, 2**32 - 2),
        "of-33-bits": np.where(rng.random(count) < 0.5, NONE, np.arange(count) * 2**32),
    }
    to = rng.integers(0, 5, count)
    to[to == 3] = 4
    packed = dict(split(columns, to, 5))
    assert set(packed) == {0, 1, 2, 4}
    for place, data in packed.items():
        found = join([data])
        for name, values in columns.items():
            assert found[name].dtype == np.int64
            assert (found[name] == values[to == place]).all(), name
    both = join([packed[0], packed[4]])
    assert (both["far"] == np.concatenate([columns["far"][to == 0], columns["far"][to == 4]])).all()
