"""Counts of observations by bucket."""

from __future__ import annotations

from peeklock.metrics.histogram import BYTES, SECONDS, Histogram
from peeklock.server.shard.measures import Measures


def test_an_observation_counts_in_the_first_bucket_whose_bound_it_does_not_pass() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    histogram.observe(1.5, 10)
    assert histogram.counts == [2, 12, 1]
    assert histogram.sum == 29.0


def test_the_bounds_ascend() -> None:
    for bounds in (SECONDS, BYTES):
        assert list(bounds) == sorted(set(bounds))


def test_a_send_has_the_time_of_its_batch() -> None:
    """Commands that come during a commit are of the next batch."""
    now_s, received = 10.0, 0
    measures = Measures(lambda: received, lambda: now_s)
    measures.offered()
    received, now_s = 3, 10.04
    measures.offered()
    measures.committing()
    now_s = 10.05
    measures.offered()
    received = 5
    now_s = 10.09
    measures.committed(1000)
    assert (sum(measures.send_seconds.counts), round(measures.send_seconds.sum, 6)) == (3, 0.27)
    assert (sum(measures.commit_seconds.counts), round(measures.commit_seconds.sum, 6)) == (1, 0.05)
    assert measures.batch_bytes.sum == 1000
    measures.committing()
    now_s = 10.10
    measures.committed(500)
    assert (sum(measures.send_seconds.counts), round(measures.send_seconds.sum, 6)) == (5, 0.37)


def test_a_commit_without_a_send_counts_none() -> None:
    measures = Measures(lambda: 0, lambda: 1.0)
    measures.committing()
    measures.committed(100)
    assert sum(measures.send_seconds.counts) == 0
    assert sum(measures.commit_seconds.counts) == 1
