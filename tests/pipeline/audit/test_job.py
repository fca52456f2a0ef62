"""The audit over made-up logs: nothing in a clean one, and each fault by its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from peeklock.pipeline.audit.checks import (
    ALWAYS,
    CLEAN,
    NOT_PROVEN,
    VIOLATED,
    Check,
    Verdict,
)
from tests.pipeline.event_rows import LOCK, EventRows
from tests.pipeline.faults import FAULTS
from tests.pipeline.synthetic import make_log, write_log, write_segments

pytestmark = pytest.mark.spark

MESSAGES = 1_500


@pytest.fixture(scope="module")
def clean() -> pa.Table:
    return make_log(messages=MESSAGES, seed=11)


def audit(spark: Any, *folders: Path | str, **options: Any) -> Verdict:
    """Audit logs."""
    from peeklock.pipeline.audit.job import AuditOptions, run

    return run(spark, AuditOptions(tuple(str(folder) for folder in folders), **options))


def found(verdict: Verdict) -> dict[str, set[Check]]:
    """Return by namespace what was found."""
    result: dict[str, set[Check]] = {}
    for check, finding in verdict.findings.items():
        for namespace in finding.by_namespace:
            result.setdefault(namespace, set()).add(check)
    return result


@pytest.mark.long
class TestClean:
    def test_nothing_is_found_in_a_clean_log(self, spark: Any, tmp_path: Path) -> None:
        """Req: X-04"""
        table = write_log(tmp_path / "log", messages=6_000, seed=3)
        verdict = audit(spark, tmp_path / "log")
        assert verdict.findings == {}, verdict.report()
        assert verdict.exit_status == CLEAN
        assert verdict.events == len(table)
        assert verdict.lives > 6_000
        assert 0 < verdict.open_lives < verdict.lives

    def test_what_it_could_not_see_is_excused_and_told(
        self, spark: Any, tmp_path: Path, clean: pa.Table
    ) -> None:
        """Retention, late capture, gaps that the exporter reports, restarts, entities created again.
        Req: X-04"""
        for name, change in EXCUSED.items():
            log = EventRows(clean)
            change(log)
            write_segments(tmp_path / name, log.table(name))
        verdict = audit(spark, *tmp_path.iterdir())
        assert found(verdict) == {}, verdict.report()
        assert verdict.exit_status == NOT_PROVEN
        assert len(verdict.not_proven) == 1
        assert "'a-gap'" in verdict.not_proven[0]
        assert "given up" in verdict.not_proven[0]
        told = " ".join(verdict.notes)
        assert "'retained' begins" in told
        assert "'begun-late' begins" in told


def _retained(log: EventRows) -> None:
    half = log.rows[len(log.rows) // 2]["batch_no"]
    log.remove(row for row in log.rows if row["batch_no"] < half)


def _begun_late(log: EventRows) -> None:
    """As an exporter says it that begins with a store that has 500 batches."""
    for row in log.rows:
        row["batch_no"] += 500
        row["broker_epoch"] += 500
    half = log.rows[len(log.rows) // 2]["batch_no"]
    told = [row for row in log.rows if row["event_type"] in ("epoch_started", "entity_present")]
    first = dict.fromkeys(log.rows[0]) | {
        "batch_no": 1, "event_type": "gap", "sequence_number": 1, "related_sequence_number": half - 1,
        "reason": "capture was off", "shard": 0, "delivery_count": 0, "size_bytes": 0,
        "event_time": log.rows[0]["event_time"],
    }  # fmt: skip
    log.rows = [
        first,
        *({**row, "batch_no": half} for row in told),
        *(r for r in log.rows if r["batch_no"] > half),
    ]


def _a_gap(log: EventRows) -> None:
    first, last = (log.rows[len(log.rows) * part // 10]["batch_no"] for part in (4, 5))
    gap = {**log.rows[0], "batch_no": first, "event_type": "gap", "reason": "given up: too much waited"}
    gap.update(sequence_number=first, related_sequence_number=last, broker_epoch=None)
    at = next(place for place, row in enumerate(log.rows) if row["batch_no"] >= first)
    gap["event_time"] = log.rows[at]["event_time"]
    log.remove(row for row in log.rows if first <= row["batch_no"] <= last)
    log.rows.insert(at, gap)
    for row in log.rows[at:]:
        row["broker_epoch"] = None


def _restarted(log: EventRows) -> None:
    """All locks end, and what was held is delivered again, not counted."""
    at = len(log.rows) // 2
    while log.rows[at]["batch_no"] == log.rows[at - 1]["batch_no"]:
        at += 1
    cut = log.rows[at]
    locked: dict[tuple[str, int], dict[str, Any]] = {}
    for row in log.rows[:at]:
        key = (row["entity"], row["sequence_number"])
        if row["event_type"] in ("delivered", "renewed") and row["lock_token"]:
            locked[key] = row
        elif row["event_type"] != "duplicate_dropped":
            locked.pop(key, None)
    holders = {}
    for row in log.rows[:at]:
        if row["event_type"] in ("session_locked", "session_released"):
            holders[row["session_id"]] = row if row["event_type"] == "session_locked" else None
    for row in log.rows[at:]:
        row["batch_no"] += 1
        row["broker_epoch"] = cut["batch_no"] - 1
    again = {**log.rows[0], "batch_no": cut["batch_no"] - 1, "event_time": cut["event_time"]}
    held = [row for row in holders.values() if row]
    begun = [again, *({**row, "batch_no": again["batch_no"]} for row in [*held, *locked.values()])]
    for row in begun:
        row.update(broker_epoch=again["batch_no"], event_time=cut["event_time"])
        if row["event_type"] == "renewed":
            row["event_type"] = "delivered"
    for key, row in locked.items():
        _shift_after_lapse(log.rows[at:], key, cut["event_time"] + LOCK)
        if row["session_id"] is None:
            next(r for r in begun if (r["entity"], r["sequence_number"]) == key)["locked_until"] = (
                cut["event_time"] + LOCK
            )
    tokens = {row["lock_token"] for row in locked.values()}
    for row in log.rows[:at]:
        if row["lock_token"] in tokens:
            row["lock_token"] = "00" * 8
    log.rows[at:at] = begun


def _shift_after_lapse(rows: list[dict[str, Any]], key: tuple[str, int], until: datetime) -> None:
    """Let a lock that lapses next lapse at another time, and what follows be as much later."""
    life = [row for row in rows if (row["entity"], row["sequence_number"]) == key]
    if life and life[0]["event_type"] == "lock_lapsed":
        later = until - life[0]["event_time"]
        for row in life:
            for name in ("event_time", "locked_until"):
                row[name] = row[name] and row[name] + later


def _id_is_free_again(log: EventRows) -> None:
    """The message that had it was cancelled."""
    begin, end = log.life("scheduled", "cancelled", nth=0)
    behind = log.rows[next(at for at, row in enumerate(log.rows) if row is end) :]
    again = next(row for row in behind if row["entity"] == begin["entity"] and row["message_id"])
    again["message_id"] = begin["message_id"]


def _created_again(log: EventRows) -> None:
    """All queues are deleted, and made again; the same happens again an hour later."""
    again = EventRows(log.table("again")).rows
    last = log.rows[-1]
    present = [row for row in log.rows if row["event_type"] == "entity_present"]
    for kind in ("entity_deleted", "entity_created"):
        for row in present:
            log.rows.append(
                {
                    **row,
                    "event_type": kind,
                    "batch_no": last["batch_no"] + 1,
                    "event_time": last["event_time"],
                }
            )
    for row in again:
        if row["event_type"] in ("epoch_started", "entity_present"):
            continue
        row["batch_no"] += last["batch_no"]
        for name in ("event_time", "enqueued_time", "expires_at", "scheduled_time", "locked_until"):
            if row[name] is not None:
                row[name] += timedelta(hours=1)
        if row["transaction_id"]:
            row["transaction_id"] = "a" + row["transaction_id"][1:]
        log.rows.append(row)


EXCUSED: dict[str, Callable[[EventRows], None]] = {
    "retained": _retained,
    "begun-late": _begun_late,
    "a-gap": _a_gap,
    "restarted": _restarted,
    "id-is-free-again": _id_is_free_again,
    "created-again": _created_again,
}


@pytest.mark.long
class TestFaults:
    def test_each_fault_is_found_and_named_and_nothing_else(
        self, spark: Any, tmp_path: Path, clean: pa.Table
    ) -> None:
        """Req: X-04"""
        for name, fault in FAULTS.items():
            log = EventRows(clean)
            fault.spoil(log)
            write_segments(tmp_path / name, log.table(name))
        write_segments(tmp_path / "clean", EventRows(clean).table("clean"))
        paths = write_segments(tmp_path / "missing-file", EventRows(clean).table("missing-file"), rows=1_500)
        paths[1].unlink()
        verdict = audit(spark, *tmp_path.iterdir())
        assert found(verdict) == {
            **{name: set(fault.found_by) for name, fault in FAULTS.items()},
            "missing-file": {Check.SEGMENT_GAP},
        }
        assert verdict.exit_status == VIOLATED
        for finding in verdict.findings.values():
            assert finding.samples

    def test_every_check_has_two_faults_that_only_it_finds(self) -> None:
        planted = Counter(
            check for fault in FAULTS.values() if len(fault.found_by) == 1 for check in fault.found_by
        )
        for check in [check for check in ALWAYS if check > Check.MANIFEST_DAMAGED]:
            assert planted[check] >= 2, check
