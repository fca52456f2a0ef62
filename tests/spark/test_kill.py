"""Streaming queries whose driver, workers and broker are killed at random instants."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kill.ledger import Broken
from tests.kill.spark_loop import SparkLoop, has_delta, kill_stream, lane_of, require_once
from tests.kill.spark_targets import Delta, EachBatch, Queue

pytestmark = pytest.mark.spark


@pytest.mark.long
@pytest.mark.timeout(480)  # two starts of Java, on cores that others use
def test_every_message_comes_once_however_driver_workers_and_broker_are_killed(tmp_path: Path) -> None:
    """Two modes, into a table and a queue by `foreachBatch`, and into a queue under ids that the sink makes.
    All modes and targets: `./run soak`.

    Req: X-02, X-06
    """
    lanes = [lane_of("cursor", EachBatch), lane_of("peekLock", Queue)]
    loop = SparkLoop(tmp_path, seed=11, lanes=lanes)
    figures = asyncio.run(loop.run(1))
    assert figures["messages"] >= 100
    assert figures["driver kills"] == 1
    assert figures["broker kills"] >= 1
    assert figures["worker kills"] >= 1


@pytest.mark.soak
@pytest.mark.timeout(480)
@pytest.mark.skipif(not has_delta(), reason="Delta's jars are not among Spark's")
def test_every_message_comes_once_into_a_delta_table(tmp_path: Path) -> None:
    """Req: X-02"""
    kill_stream(tmp_path, "cursor", Delta, seed=3)


class TestJudge:
    """The judge itself."""

    @pytest.mark.parametrize(
        ("bodies", "text"),
        [
            (["a"], "1 of 2 messages are missing"),
            (["a", "b", "b"], "more than once"),
            (["a", "b", "c"], "never sent"),
        ],
    )
    def test_what_is_not_once_is_found(self, bodies: list[str], text: str) -> None:
        with pytest.raises(Broken, match=text):
            require_once("lane", {"a", "b"}, bodies)

    def test_once_is_fine(self) -> None:
        require_once("lane", {"a", "b"}, ["b", "a"])
