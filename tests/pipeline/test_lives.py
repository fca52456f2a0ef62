"""A row for each life, with the right figures, whole or in a stream that is cut off anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peeklock.pipeline.lives import advance_lives
from peeklock.pipeline.running import JobError, Table, run_batch, run_stream
from tests.pipeline.folds import fold_lives
from tests.pipeline.handmade import Hand
from tests.pipeline.synthetic import make_log, write_segments

pytestmark = pytest.mark.spark


def run_whole(spark: Any, log: Path, to: Path) -> list[Any]:
    table = Table(str(to))
    run_batch(
        spark,
        advance_lives,
        str(log),
        table,
        date="enqueued_date",
        overwrite=False,
        entities=(),
        tell=lambda _: None,
    )
    found = table.read_if_there(spark)
    assert found is not None
    return list(found.collect())


def run_once(spark: Any, log: Path, to: Path, **given: Any) -> list[Any]:
    table = Table(str(to))
    wanted = {"entities": (), "checkpoint": f"{to}/_checkpoint", **given}
    run_stream(
        spark,
        advance_lives,
        "lives",
        str(log),
        table,
        date="enqueued_date",
        once=True,
        tell=lambda _: None,
        **wanted,
    )
    found = table.read_if_there(spark)
    assert found is not None
    return list(found.collect())


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return make_log(messages=2_500, seed=30)


def test_each_life_is_one_row_with_its_figures(spark: Any, log: pa.Table, tmp_path: Path) -> None:
    """Req: X-04"""
    write_segments(tmp_path / "log", log, rows=2_500)
    rows = run_whole(spark, tmp_path / "log", tmp_path / "lives")
    expected = fold_lives(log)
    assert {(row.entity, row.sequence_number) for row in rows} == set(expected)
    assert len(rows) == len(expected)
    for row in rows:
        life = expected[row.entity, row.sequence_number]
        found = (row.end_type, row.message_id, row.deliveries, row.abandons, row.lock_lapses, row.deferrals)
        counts = (life.counts[kind] for kind in ("abandoned", "lock_lapsed", "deferred"))
        assert found == (life.end, life.message_id, life.deliveries, *counts), row
        assert (row.enqueued_at, row.first_delivered_at, row.ended_at) == tuple(
            at and at.replace(tzinfo=None) for at in (life.begun, life.first, life.ended)
        ), row
        origin = None if row.origin_entity is None else (row.origin_entity, row.origin_sequence_number)
        assert origin == life.origin, row
        if life.first is not None and life.begun is not None:
            waited = life.first - life.begun
            assert row.time_in_queue_ms == round(waited.total_seconds() * 1000)
        known = life.under_lock_ms and life.held_since is None
        assert row.time_under_lock_ms == (life.under_lock_ms if known else None), row
        assert row.state == "ended" if life.end else row.state != "ended"
    assert {row.state for row in rows} == {"ended", "active", "locked", "scheduled", "deferred"}
    assert all(row.message_id is not None for row in rows)
    assert (tmp_path / "lives/enqueued_date=2026-08-29").is_dir()


@pytest.mark.long
def test_a_stream_tells_each_life_once_wherever_it_is_cut_off(
    spark: Any, log: pa.Table, tmp_path: Path
) -> None:
    """Spark repeats a batch whose end it did not note; here its notes are taken away. Req: X-04"""
    segments = write_segments(tmp_path / "all", log, rows=len(log) // 3 + 1)
    assert len(segments) == 3
    for segment in segments:
        place = tmp_path / "log" / segment.relative_to(tmp_path / "all")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(segment, place)
        rows = run_once(spark, tmp_path / "log", tmp_path / "lives")
        commits = tmp_path / "lives/_checkpoint/commits"
        for noted in sorted(commits.glob("[0-9]*"), key=lambda path: int(path.name))[-1:]:
            noted.unlink()
            noted.with_name(f".{noted.name}.crc").unlink()
    rows = run_once(spark, tmp_path / "log", tmp_path / "lives")
    ended = {key: life for key, life in fold_lives(log).items() if life.end is not None}
    assert len(rows) == len(ended)
    assert {(row.entity, row.sequence_number): row.message_id for row in rows} == {
        key: life.message_id for key, life in ended.items()
    }
    whole = run_whole(spark, tmp_path / "log", tmp_path / "whole")
    columns = [name for name in whole[0].asDict() if name != "state"]
    assert {tuple(row[name] for name in columns) for row in rows} == {
        tuple(row[name] for name in columns) for row in whole if row.end_type is not None
    }


def test_a_checkpoint_of_another_run_is_refused(spark: Any, log: pa.Table, tmp_path: Path) -> None:
    write_segments(tmp_path / "log", log)
    run_once(spark, tmp_path / "log", tmp_path / "lives")
    with pytest.raises(JobError, match=r"belongs to another run: entities was \[\] and is \['orders'\] now"):
        run_once(spark, tmp_path / "log", tmp_path / "lives", entities=("orders",))
    with pytest.raises(JobError, match="has no checkpoint for it"):
        run_once(spark, tmp_path / "log", tmp_path / "lives", checkpoint=str(tmp_path / "other"))


def test_a_deletion_ends_all_lives_and_numbers_begin_again(spark: Any, tmp_path: Path) -> None:
    hand = Hand()
    hand.add("enqueued", "jobs", 1, message_id="old-1")
    hand.add("enqueued", "jobs", 2, message_id="old-2")
    hand.add("completed", "jobs", 1)
    hand.add("enqueued", "jobs/$deadletterqueue", 7, message_id="dead")
    hand.add("enqueued", "jobs-2", 1, message_id="neighbour")
    hand.add("entity_deleted", "jobs")
    hand.add("entity_created", "jobs")
    hand.add("enqueued", "jobs", 1, message_id="new-1")
    hand.write(tmp_path / "log")
    found = {row.message_id: row.end_type for row in run_whole(spark, tmp_path / "log", tmp_path / "lives")}
    assert found == {
        "old-1": "completed",
        "old-2": "entity_deleted",
        "dead": "entity_deleted",
        "neighbour": None,
        "new-1": None,
    }


def test_a_restart_frees_what_was_locked(spark: Any, tmp_path: Path) -> None:
    hand = Hand()
    hand.add("epoch_started")
    hand.add("enqueued", "jobs", 1)
    hand.add("delivered", "jobs", 1, lock_token="aa")
    hand.add("enqueued", "jobs", 2)
    hand.epoch = hand.batch
    hand.add("epoch_started")
    hand.add("delivered", "jobs", 2, lock_token="bb")
    hand.write(tmp_path / "log")
    rows = run_whole(spark, tmp_path / "log", tmp_path / "lives")
    assert {row.sequence_number: row.state for row in rows} == {1: "active", 2: "locked"}


def test_a_log_that_begins_late_tells_what_it_knows(spark: Any, tmp_path: Path) -> None:
    hand = Hand()
    hand.add("delivered", "jobs", 5, lock_token="aa")
    hand.add("completed", "jobs", 5, lock_token="aa")
    hand.write(tmp_path / "log")
    (row,) = run_whole(spark, tmp_path / "log", tmp_path / "lives")
    assert (row.begins_in_log, row.message_id, row.end_type, row.deliveries) == (False, None, "completed", 1)
