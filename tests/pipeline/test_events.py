"""The log as a table in Spark: segments of older releases beside new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peeklock.pipeline.events import read_events, stream_events
from tests.pipeline.handmade import Hand
from tests.pipeline.synthetic import write_segments

pytestmark = pytest.mark.spark

ADDED = ["session_key", "connection_lost"]
"""Columns that version 1 of the log has not."""


def test_columns_that_an_older_segment_lacks_are_null(spark: Any, tmp_path: Path) -> None:
    """In a table and in a stream. Req: X-03, R-07."""
    hand = Hand()
    hand.add("enqueued", "work", 1, session_id="s", event_version=1)
    write_segments(tmp_path / "log", hand.table().drop_columns(ADDED))
    hand.rows.clear()
    hand.add("lock_lapsed", "work", 1, session_id="s", session_key="s", connection_lost=True)
    hand.add("completed", "work", 1, session_id="s", session_key="s")
    hand.write(tmp_path / "log")
    expected = [(1, "s", None, None), (2, "s", "s", True), (2, "s", "s", None)]
    columns = ["event_version", "session_id", *ADDED]
    found = read_events(spark, str(tmp_path / "log")).orderBy("batch_no").select(columns)
    assert [tuple(row) for row in found.collect()] == expected

    followed: list[tuple[Any, ...]] = []
    stream = stream_events(spark, str(tmp_path / "log")).select("batch_no", *columns)
    query = (
        stream.writeStream.foreachBatch(lambda rows, _: followed.extend(map(tuple, rows.collect())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert [row[1:] for row in sorted(followed, key=lambda row: row[0])] == expected
