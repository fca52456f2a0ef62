"""The event log of a store that was restored: it goes on, and says what was undone."""

from __future__ import annotations

import json
from pathlib import Path

from peeklock.capture.exporter import RESTORED
from peeklock.capture.folder import STORE_MARK_NAME
from peeklock.store.backup.restoring import SKIPPED_BATCHES, SKIPPED_NUMBERS
from peeklock.store.sqlite.filler import SqliteFiller
from peeklock.store.sqlite.reader import SqliteReader
from tests.capture.stores import EPOCH, enqueued, export, rows, write_store
from tests.store.backup.files import NOW_MS, back_up, restore


def restored_log(folder: Path, number: int) -> tuple[Path, int]:
    """Write a log with a restore; return its folder, and the first batch of the new life.

    It has two messages before, the second one later than the back-up, and one with `number` after.
    """
    data, log, target = folder / "data", folder / "log", folder / "target"
    write_store(data, [EPOCH], [enqueued(1)])
    reader = SqliteReader(data)
    backup = back_up(reader, folder / "file")
    reader.close()
    write_store(data, [enqueued(2)])
    export(data, log)
    assert [row["batch_no"] for row in rows(log)] == [1, 2, 3]
    first_no = restore([backup], SqliteFiller(target)).first_no
    (target / STORE_MARK_NAME).write_bytes((data / STORE_MARK_NAME).read_bytes())
    write_store(target, [EPOCH], [enqueued(number)])
    export(target, log)
    return log, first_no


def test_the_log_goes_on_behind_a_restore_and_says_what_was_undone(tmp_path: Path) -> None:
    """Batch 3 is in the log and in no store any more. Req: X-03."""
    log, first_no = restored_log(tmp_path, 3)
    gap, restored, epoch, later = rows(log)[3:]
    assert first_no == 2 + SKIPPED_BATCHES
    assert (gap["event_type"], gap["reason"]) == ("gap", RESTORED)
    assert (gap["sequence_number"], gap["related_sequence_number"]) == (4, first_no - 1)
    assert (restored["event_type"], restored["batch_no"]) == ("restored", first_no)
    assert (restored["sequence_number"], restored["related_sequence_number"]) == (2, first_no)
    assert json.loads(restored["reason"]) == {
        "backed_up_at": "2023-11-14T22:13:20Z",
        "skipped_batches": SKIPPED_BATCHES,
        "skipped_numbers": SKIPPED_NUMBERS,
    }
    assert round(restored["event_time"].timestamp() * 1000) == NOW_MS
    assert (epoch["batch_no"], epoch["broker_epoch"]) == (first_no + 1, first_no + 1)
    assert (later["event_type"], later["batch_no"]) == ("enqueued", first_no + 2)
