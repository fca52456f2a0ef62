"""The audit against what clients say, and what is there at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peeklock.pipeline.audit.checks import CLEAN, VIOLATED, Check, Verdict
from tests.pipeline.event_rows import EventRows
from tests.pipeline.folds import NO_LIFE
from tests.pipeline.synthetic import make_log, write_segments

pytestmark = [pytest.mark.spark, pytest.mark.long]

Said = list[dict[str, Any]]


@pytest.fixture(scope="module")
def log() -> EventRows:
    return EventRows(make_log(messages=800, seed=4, drained=True))


@pytest.fixture(scope="module")
def folder(log: EventRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("log")
    write_segments(folder, log.table("test"))
    return folder


def said(log: EventRows) -> Said:
    """What clients say that saw all of it."""
    rows: Said = []
    for row in log.rows:
        kind = row["event_type"]
        told = {"client": "one", "entity": row["entity"], "at": row["event_time"].isoformat()}
        if row["message_id"] and kind in ("enqueued", "scheduled", "duplicate_dropped"):
            rows.append({**told, "action": "sent", "message_id": row["message_id"]})
        elif kind == "delivered":
            rows.append({**told, "action": "received", "sequence_number": row["sequence_number"]})
        elif kind == "completed" and row["reason"] is None:
            rows.append({**told, "action": "completed", "sequence_number": row["sequence_number"]})
    return rows


def audit(spark: Any, folder: Path, **options: Any) -> Verdict:
    from peeklock.pipeline.audit.job import AuditOptions, run

    return run(spark, AuditOptions((str(folder),), **options))


def write_lines(path: Path, rows: Said) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def living(log: EventRows) -> tuple[dict[tuple[str, int], None], set[tuple[str, int]]]:
    """Return the messages that are there at the end, and those that have ended: entity and number."""
    ends = {
        "completed", "cancelled", "purged", "unmatched", "expired", "dead_lettered", "activated", "forwarded",
    }  # fmt: skip
    ended: set[tuple[str, int]] = set()
    alive: dict[tuple[str, int], None] = {}
    for row in log.rows:
        key = (row["entity"], row["sequence_number"])
        if row["sequence_number"] is None or row["event_type"] in NO_LIFE:
            continue
        alive[key] = None
        if row["event_type"] in ends:
            ended.add(key)
            del alive[key]
    return alive, ended


class TestLedger:
    def test_clients_that_say_what_happened_are_believed(
        self, spark: Any, tmp_path: Path, log: EventRows, folder: Path
    ) -> None:
        """Req: X-04"""
        rows = said(log)
        verdict = audit(spark, folder, ledger=write_lines(tmp_path / "ledger.jsonl", rows))
        assert verdict.findings == {}, verdict.report()
        assert verdict.exit_status == CLEAN
        assert verdict.ledger_rows == len(rows)

    def test_what_clients_were_told_and_is_not_so_is_found(
        self, spark: Any, tmp_path: Path, log: EventRows, folder: Path
    ) -> None:
        """Req: X-04"""
        rows = said(log)
        sent = next(row for row in rows if row["action"] == "sent")
        received = next(row for row in rows if row["action"] == "received")
        number = {"sequence_number": 1_000_000}
        rows += [
            {**sent, "message_id": "lost"},
            {**sent, "message_id": "refused", "action": "send_refused"},
            {**sent, "message_id": "no answer, and not there", "action": "send_unknown"},
            {**sent, "message_id": "after the log", "at": "2099-01-01T00:00:00Z"},
            {**received, **number},
        ]
        twice = next(row for row in rows[10:] if row["action"] == "sent")
        twice["action"] = "send_refused"
        still = next(
            row for row in log.rows if row["event_type"] == "expired" and row["related_entity"] is None
        )
        rows.append(
            {
                "client": "two",
                "action": "completed",
                "entity": still["entity"],
                "sequence_number": still["sequence_number"],
            }
        )
        names = ("client", "action", "entity", "message_id", "sequence_number", "at")
        table = pa.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
        pq.write_table(table, tmp_path / "ledger.parquet")
        verdict = audit(spark, folder, ledger=str(tmp_path / "ledger.parquet"))
        assert {check: finding.count for check, finding in verdict.findings.items()} == {
            Check.SENT_LOST: 1,
            Check.SENT_TWICE: 1,
            Check.RECEIVED_UNKNOWN: 1,
            Check.COMPLETION_LOST: 1,
        }
        assert "'lost'" in verdict.findings[Check.SENT_LOST].samples[0].detail
        assert "'two'" in verdict.findings[Check.COMPLETION_LOST].samples[0].detail
        assert verdict.exit_status == VIOLATED

    def test_the_same_checks_find_other_faults(
        self, spark: Any, tmp_path: Path, log: EventRows, folder: Path
    ) -> None:
        """Req: X-04"""
        rows = said(log)
        first = next(row for row in rows if row["action"] == "sent")
        rows.append(dict(first))  # accepted twice, and there once
        scheduled = next(row["message_id"] for row in log.rows if row["event_type"] == "scheduled")
        next(row for row in rows if row.get("message_id") == scheduled)["action"] = "send_refused"
        entity, number = next(reversed(living(log)[0]))
        rows += [
            {"action": "completed", "entity": entity, "sequence_number": number},
            {"action": "completed", "entity": entity, "sequence_number": 1_000_000},
        ]
        verdict = audit(spark, folder, ledger=write_lines(tmp_path / "ledger.jsonl", rows))
        assert {check: finding.count for check, finding in verdict.findings.items()} == {
            Check.SENT_LOST: 1,
            Check.SENT_TWICE: 1,
            Check.RECEIVED_UNKNOWN: 1,
            Check.COMPLETION_LOST: 1,
        }

    @pytest.mark.parametrize(
        ("lines", "problem"),
        [
            ('{"action": "sent"}\n', "1 rows of .* have no entity"),
            ('{"action": "sent", "entity": "orders"\n', "cannot be read"),
            ('{"action": "eaten", "entity": "orders"}\n', "'eaten'"),
        ],
        ids=["without-entity", "not-json", "unknown-action"],
    )
    def test_a_ledger_that_cannot_be_used_is_refused_by_name(
        self, spark: Any, tmp_path: Path, folder: Path, lines: str, problem: str
    ) -> None:
        from peeklock.pipeline.audit.checks import AuditInput

        (tmp_path / "ledger.jsonl").write_text(lines)
        with pytest.raises(AuditInput, match=problem) as refused:
            audit(spark, folder, ledger=str(tmp_path / "ledger.jsonl"))
        assert "ledger.jsonl" in str(refused.value)


class TestLeft:
    def test_what_is_open_and_not_there_is_lost_and_what_ended_and_is_there_is_left_behind(
        self, spark: Any, tmp_path: Path, log: EventRows, folder: Path
    ) -> None:
        """Req: X-04"""
        alive, ended = living(log)
        there = [{"entity": entity, "sequence_number": number} for entity, number in alive]
        verdict = audit(spark, folder, left=write_lines(tmp_path / "left.jsonl", there))
        assert verdict.findings == {}, verdict.report()
        assert verdict.open_lives == len(there) > 0

        entity, number = min(ended)
        wrong = [*there[1:], {"entity": entity, "sequence_number": number}]
        verdict = audit(spark, folder, left=write_lines(tmp_path / "wrong.jsonl", wrong))
        assert {check: finding.count for check, finding in verdict.findings.items()} == {
            Check.LOST: 1,
            Check.LEFT_BEHIND: 1,
        }
        lost = verdict.findings[Check.LOST].samples[0]
        assert [lost.entity, lost.sequence_number] == list(there[0].values())

        entity, number = max(ended)
        wrong = [*there[:-1], {"entity": entity, "sequence_number": number}]
        verdict = audit(spark, folder, left=write_lines(tmp_path / "wrong-too.jsonl", wrong))
        assert {check: finding.count for check, finding in verdict.findings.items()} == {
            Check.LOST: 1,
            Check.LEFT_BEHIND: 1,
        }

        verdict = audit(spark, folder, drained=True)
        assert {check: finding.count for check, finding in verdict.findings.items()} == {
            Check.LOST: len(there)
        }

    def test_an_entity_that_the_log_does_not_have_is_refused(
        self, spark: Any, tmp_path: Path, folder: Path
    ) -> None:
        from peeklock.pipeline.audit.checks import AuditInput

        left = write_lines(tmp_path / "left.jsonl", [{"entity": "nowhere", "sequence_number": 1}])
        with pytest.raises(AuditInput, match="an entity that is not in the log"):
            audit(spark, folder, left=left)


class TestVerdict:
    def test_it_is_printed_and_written(self, spark: Any, tmp_path: Path, folder: Path) -> None:
        from rich.console import Console

        from peeklock.pipeline.audit.job import show

        verdict = audit(spark, folder, drained=True, report=str(tmp_path / "verdict.json"))
        console = Console(width=160, record=True, file=(tmp_path / "printed").open("w"))
        show(verdict, console)
        printed = console.export_text()
        assert "lost: " in printed
        assert "sequence number" in printed
        assert verdict.outcome in printed.replace("\n", " ")
        told = json.loads((tmp_path / "verdict.json").read_text())
        assert told["exit_status"] == VIOLATED
        lost = next(check for check in told["checks"] if check["check"] == "lost")
        assert lost["violations"] == verdict.findings[Check.LOST].count
        assert lost["samples"][0]["entity"]
        assert lost["promise"] == "A message that has not ended is in its entity at the end."
