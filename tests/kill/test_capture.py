"""The event log when the broker and the exporter are killed, and the judge of that."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kill.capture_loop import CaptureLoop, judge, read_log
from tests.kill.ledger import Broken, Ledger

pytestmark = pytest.mark.kill


def test_the_log_is_complete_and_without_duplicates_after_kills(tmp_path: Path) -> None:
    """Req: X-03"""
    figures = asyncio.run(CaptureLoop(tmp_path, seed=3).run(5))
    assert figures["accepted"] > 200
    assert figures["completed"] > 100
    assert figures["segments"] > 2


class TestJudge:
    """The judge itself."""

    def ledger(self) -> Ledger:
        ledger = Ledger()
        uid = ledger.sending()
        ledger.answered(uid, None)
        ledger.delivered(uid, 7)
        ledger.completing(uid)
        ledger.completed(uid)
        return ledger

    def rows(self, *kinds: str, number: int = 7) -> list[dict[str, Any]]:
        return [
            {"batch_no": 1, "index": n, "event_type": kind, "entity": "work", "sequence_number": number}
            for n, kind in enumerate(kinds)
        ]

    def test_a_log_that_says_what_clients_were_told_passes(self) -> None:
        judge(self.rows("enqueued", "delivered", "completed"), self.ledger())

    @pytest.mark.parametrize(
        ("kinds", "why"),
        [
            (("completed",), "0 rows record that it was enqueued"),
            (("enqueued", "enqueued", "completed"), "2 rows record that it was enqueued"),
            (("enqueued",), "0 rows record that it was completed"),
            (("enqueued", "completed", "completed"), "2 rows record that it was completed"),
            (("enqueued", "completed", "gap"), "batches are missing"),
        ],
    )
    def test_what_is_wrong_is_found(self, kinds: tuple[str, ...], why: str) -> None:
        with pytest.raises(Broken, match=why):
            judge(self.rows(*kinds), self.ledger())

    def test_a_row_that_is_there_twice_is_found(self) -> None:
        rows = self.rows("enqueued", "completed")
        with pytest.raises(Broken, match="twice"):
            judge([*rows, rows[0]], self.ledger())

    def test_a_message_that_no_client_saw_is_found(self) -> None:
        rows = self.rows("enqueued", "completed") + [
            row | {"batch_no": 2} for row in self.rows("enqueued", number=8)
        ]
        with pytest.raises(Broken, match="no client ever saw"):
            judge(rows, self.ledger())

    def test_a_missing_segment_is_found(self, tmp_path: Path) -> None:
        folder = tmp_path / "event_date=2026-01-01/event_hour=00"
        folder.mkdir(parents=True)
        (folder / f"events-{2:020}-{3:020}.parquet").touch()
        with pytest.raises(Broken, match="batch 1 "):
            read_log(tmp_path)
