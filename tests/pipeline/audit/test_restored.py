"""A log that goes on after a restore: what the broker skipped and undid is no violation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from peeklock.broker.vocabulary.events import Event, EventType
from peeklock.capture.folder import STORE_MARK_NAME
from peeklock.pipeline.audit.checks import NOT_PROVEN, ReturnedMessage
from peeklock.store.sqlite.filler import SqliteFiller
from peeklock.store.sqlite.reader import SqliteReader
from tests.capture.stores import AT_MS, EPOCH, enqueued, export, write_store
from tests.capture.test_restored import restored_log
from tests.pipeline.audit.test_files import audit
from tests.store.backup.files import back_up, restore

pytestmark = pytest.mark.spark


def test_both_sides_of_a_restore_are_judged_and_nothing_between(spark: Any, tmp_path: Path) -> None:
    log, _ = restored_log(tmp_path, 10**12 + 2)
    verdict = audit(spark, log)
    assert verdict.findings == {}
    assert verdict.exit_status == NOT_PROVEN
    assert any("was restored" in sentence for sentence in verdict.not_proven), verdict.not_proven


def purged(number: int, at_ms: int = AT_MS) -> Event:
    return enqueued(number, type=EventType.PURGED, at_ms=at_ms)


def log_of(folder: Path) -> Path:
    """Write a log with a restore of a store that had messages 1 to 4, of which 1 was gone already.

    After the back-up 2 and 3 were purged, and 5 came and went. After the restore 3 is purged again.
    """
    data, log, target = folder / "data", folder / "log", folder / "target"
    write_store(data, [EPOCH], [enqueued(number) for number in (1, 2, 3, 4)], [purged(1)])
    reader = SqliteReader(data)
    backup = back_up(reader, folder / "file")
    reader.close()
    write_store(data, [purged(2, AT_MS + 5), purged(3, AT_MS + 7)], [enqueued(5)], [purged(5)])
    export(data, log)
    restore([backup], SqliteFiller(target))
    (target / STORE_MARK_NAME).write_bytes((data / STORE_MARK_NAME).read_bytes())
    write_store(target, [EPOCH], [purged(3)])
    export(target, log)
    return log


def test_what_was_settled_after_the_back_up_and_came_back_is_listed(spark: Any, tmp_path: Path) -> None:
    """Req: X-04."""
    from peeklock.pipeline.audit.job import show

    verdict = audit(spark, log_of(tmp_path))
    assert verdict.findings == {}
    assert (verdict.returned_count, verdict.returned_live) == (2, 1)
    assert verdict.returned == [
        ReturnedMessage("here", "work", 2, "purged", AT_MS + 5, 4, None),
        ReturnedMessage("here", "work", 3, "purged", AT_MS + 7, 4, "purged"),
    ]
    assert verdict.report()["returned"]["messages"][1]["settled_since"] == "purged"
    console = Console(record=True, width=100)
    show(verdict, console)
    said = console.export_text()
    assert "Settled after the back-up, and restored" in said
    assert "│ work   │               2 │ purged  │ 2026-09-21 14:13:20.005 │ live " in said
    assert "2 messages were settled after the back-up and came back with the restore" in said
