"""Figures of each entity and minute, whole or in a stream; a picture of them."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peeklock.pipeline.metrics import advance_metrics
from peeklock.pipeline.plots import draw_minutes
from peeklock.pipeline.running import Table, run_batch, run_stream
from tests.pipeline.folds import fold_lives, fold_minutes
from tests.pipeline.handmade import Hand
from tests.pipeline.synthetic import make_log, write_segments

pytestmark = pytest.mark.spark

COUNTED = {
    "delivered": "delivered",
    "completed": "completed",
    "dead_lettered": "dead_lettered",
    "expired": "expired",
    "forwarded": "forwarded",
    "abandoned": "abandoned",
    "deferred": "deferred",
    "duplicates_dropped": "duplicate_dropped",
    "locks_lost": "lock_lapsed",
    "sent": "sent",
    "redelivered": "redelivered",
    "bytes_sent": "bytes_sent",
    "depth": "depth",
}


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return make_log(messages=3_000, seed=6)


def run_whole(spark: Any, log: Path, to: Path) -> Any:
    table = Table(str(to))
    run_batch(
        spark,
        advance_metrics,
        str(log),
        table,
        date="minute_date",
        overwrite=False,
        entities=(),
        tell=lambda _: None,
    )
    return table.read_if_there(spark)


def read(spark: Any, folder: Path) -> list[Any]:
    found = Table(str(folder)).read_if_there(spark)
    assert found is not None
    return list(found.collect())


def of_minutes(rows: list[Any], columns: list[str]) -> dict[tuple[str, datetime], tuple[Any, ...]]:
    found = {(row.entity, row.minute): tuple(row[name] for name in columns) for row in rows}
    assert len(found) == len(rows)
    return found


def test_each_minute_counts_what_happened_in_it(spark: Any, log: pa.Table, tmp_path: Path) -> None:
    """Req: X-04"""
    write_segments(tmp_path / "log", log)
    table = run_whole(spark, tmp_path / "log", tmp_path / "metrics")
    rows = table.collect()
    assert of_minutes(rows, [*COUNTED]) == {
        (entity, minute.replace(tzinfo=None)): tuple(figures[name] for name in COUNTED.values())
        for (entity, minute), figures in fold_minutes(log).items()
    }
    waits: dict[tuple[str, datetime], list[int]] = {}
    for (entity, _), life in fold_lives(log).items():
        if life.first is not None and life.begun is not None:
            minute = life.first.replace(second=0, microsecond=0, tzinfo=None)
            waited = round((life.first - life.begun).total_seconds() * 1000)
            waits.setdefault((entity, minute), []).append(waited)
    assert len(waits) > 20
    for row in rows:
        found = (row.time_in_queue_ms_p50, row.time_in_queue_ms_p99)
        told = sorted(waits.get((row.entity, row.minute), []))
        if told:
            assert found == (told[(len(told) - 1) // 2], told[-(-len(told) * 99 // 100) - 1])
        else:
            assert found == (None, None)
    draw_minutes(table, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_stream_tells_the_minutes_that_are_over(spark: Any, log: pa.Table, tmp_path: Path) -> None:
    """Req: X-04"""
    segments = write_segments(tmp_path / "all", log, rows=4_000)
    assert len(segments) > 2
    for segment in segments:
        place = tmp_path / "log" / segment.relative_to(tmp_path / "all")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(segment, place)
        run_stream(
            spark,
            advance_metrics,
            "metrics",
            str(tmp_path / "log"),
            Table(str(tmp_path / "stream")),
            date="minute_date",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
            entities=(),
            tell=lambda _: None,
        )
    whole = run_whole(spark, tmp_path / "log", tmp_path / "whole").collect()
    columns = [name for name in whole[0].asDict() if name not in {"entity", "minute"}]
    streamed = read(spark, tmp_path / "stream")
    last = max(row.minute for row in whole)
    assert of_minutes(streamed, columns) == of_minutes([row for row in whole if row.minute < last], columns)


def test_a_redelivery_is_one_of_the_same_queue(spark: Any, tmp_path: Path) -> None:
    """A message takes its delivery count along into the dead-letter queue, and is delivered there again."""
    hand = Hand()
    hand.add("enqueued", "jobs", 1)
    hand.add("delivered", "jobs", 1, lock_token="a")
    hand.add("abandoned", "jobs", 1, lock_token="a", delivery_count=1)
    hand.add("delivered", "jobs", 1, lock_token="b", delivery_count=1)
    hand.add("dead_lettered", "jobs", 1, lock_token="b", delivery_count=2)
    hand.add("enqueued", "jobs/$deadletterqueue", 1, delivery_count=2)
    hand.batch += 60
    hand.add("delivered", "jobs/$deadletterqueue", 1, lock_token="c", delivery_count=2)
    hand.write(tmp_path / "log")
    rows = run_whole(spark, tmp_path / "log", tmp_path / "metrics").collect()
    told = {row.entity: (row.delivered, row.redelivered) for row in rows if row.delivered}
    assert told == {"jobs": (2, 1), "jobs/$deadletterqueue": (1, 0)}


@pytest.mark.long
def test_a_stream_knows_first_deliveries_of_what_was_deleted(spark: Any, tmp_path: Path) -> None:
    hand = Hand()
    hand.add("enqueued", "jobs", 1)
    hand.add("delivered", "jobs", 1, lock_token="a")
    hand.add("entity_deleted", "jobs")
    hand.add("enqueued", "jobs", 1)
    hand.add("delivered", "jobs", 1, lock_token="b")
    for _ in range(2):  # the second time with what ends the minute
        hand.write(tmp_path / "log")
        run_stream(
            spark,
            advance_metrics,
            "metrics",
            str(tmp_path / "log"),
            Table(str(tmp_path / "stream")),
            date="minute_date",
            checkpoint=str(tmp_path / "checkpoint"),
            once=True,
            entities=(),
            tell=lambda _: None,
        )
        hand.rows.clear()
        hand.batch += 60
        hand.add("enqueued", "jobs", 2)
    rows = read(spark, tmp_path / "stream")
    assert [(row.delivered, row.redelivered) for row in rows] == [(2, 0)]


def test_a_deleted_entity_is_empty(spark: Any, tmp_path: Path) -> None:
    hand = Hand()
    for number in range(1, 4):
        hand.add("enqueued", "jobs", number)
    hand.batch += 60
    hand.add("entity_deleted", "jobs")
    hand.batch += 60
    hand.add("enqueued", "jobs", 1)
    hand.write(tmp_path / "log")
    rows = run_whole(spark, tmp_path / "log", tmp_path / "metrics").orderBy("minute").collect()
    assert [(row.sent, row.depth) for row in rows] == [(3, 3), (0, 0), (1, 1)]


def test_a_log_that_begins_late_has_no_depth_below_zero(spark: Any, tmp_path: Path) -> None:
    hand = Hand()
    for number in range(1, 4):
        hand.add("completed", "jobs", number)
    hand.batch += 60
    hand.add("enqueued", "jobs", 4)
    hand.write(tmp_path / "log")
    rows = run_whole(spark, tmp_path / "log", tmp_path / "metrics").orderBy("minute").collect()
    assert [row.depth for row in rows] == [0, 1]
