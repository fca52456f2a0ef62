"""The made-up logs keep what a broker promises; without this, tests of the audit would prove nothing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from peeklock.broker.vocabulary.events import ENDS, NUMBERED_AHEAD, EventType
from peeklock.capture.schema import EVENTS
from tests.pipeline.synthetic import make_log, write_segments


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return make_log(messages=6_000, seed=3)


def test_every_kind_of_life_is_in_it(log: pa.Table) -> None:
    there = set(log["event_type"].cast(pa.string()).to_pylist())
    silent = {
        EventType.CLAIM_RELEASED,
        EventType.SESSION_RENEWED,
        EventType.SESSION_STATE_SET,
        EventType.ENTITY_CREATED,
        EventType.ENTITY_UPDATED,
        EventType.ENTITY_DELETED,
        EventType.CONNECTION_LOST,
        EventType.CLOCK_STEPPED,
        EventType.GAP,
        EventType.RESTORED,
    }
    assert there == {kind.name.lower() for kind in set(EventType) - silent}


def test_events_are_in_order_and_batches_without_gaps(log: pa.Table) -> None:
    batch, index = log["batch_no"].to_pylist(), log["index"].to_pylist()
    last = (1, -1)
    for now in zip(batch, index, strict=True):
        assert now in {(last[0], last[1] + 1), (last[0] + 1, 0)}
        last = now
    times = log["event_time"].to_pylist()
    assert times == sorted(times)


def test_lives_begin_once_end_once_and_hold_one_lock_at_a_time(log: pa.Table) -> None:
    begins = {"enqueued", "scheduled"}
    frees = {"abandoned", "released", "lock_lapsed", "deferred"}
    ends = {kind.name.lower() for kind in ENDS}
    aside = {"duplicate_dropped"}
    state: dict[tuple[str, int], str] = {}
    for row in log.filter(pc.is_valid(log["sequence_number"])).to_pylist():
        key, what = (row["entity"], row["sequence_number"]), row["event_type"]
        before = state.get(key)
        if what in begins:
            assert before is None, key
            state[key] = "free"
        elif what in aside:
            assert before is not None, key
        elif what == "delivered":
            assert before == "free", key
            state[key] = "held"
        elif what in frees:
            assert before == "held", key
            state[key] = "free"
        elif what in ends:
            assert before in {"free", "held"}, key
            state[key] = "ended"
        assert what != "delivered" or row["expires_at"] is None or row["event_time"] < row["expires_at"]


def test_numbers_have_no_gaps(log: pa.Table) -> None:
    begun: dict[tuple[str, int | None], list[int]] = {}
    for row in log.to_pylist():
        given = row["event_type"] in {"enqueued", "scheduled", "number_issued"}
        if given and row["reason"] != NUMBERED_AHEAD and "$dead" not in row["entity"]:
            numbers = begun.setdefault((row["entity"], row["partition_id"]), [])
            numbers.append(row["sequence_number"] & (1 << 48) - 1)
    assert len(begun) > 20
    for numbers in begun.values():
        assert numbers == list(range(1, len(numbers) + 1))


def test_segments_hold_all_of_it_in_the_schema(log: pa.Table, tmp_path: Path) -> None:
    paths = write_segments(tmp_path, log, rows=5_000)
    assert len(paths) > 3
    assert pa.concat_tables(pq.read_table(path) for path in paths).equals(log)
    assert pq.read_schema(paths[0]).remove_metadata() == EVENTS


def test_a_drained_log_leaves_no_life_open() -> None:
    log = make_log(messages=2_000, seed=4, drained=True)
    ends = [kind.name.lower() for kind in ENDS]
    begun = log.filter(pc.is_in(log["event_type"].cast(pa.string()), pa.array(["enqueued", "scheduled"])))
    ended = log.filter(pc.is_in(log["event_type"].cast(pa.string()), pa.array(ends)))

    def keys(rows: pa.Table) -> set[tuple[str, int]]:
        return set(zip(rows["entity"].to_pylist(), rows["sequence_number"].to_pylist(), strict=True))

    open_lives = keys(begun) - keys(ended)
    assert open_lives
    assert all("$deadletterqueue" in entity for entity, _ in open_lives)
