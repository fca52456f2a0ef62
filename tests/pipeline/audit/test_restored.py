"""A log that goes on after a restore: what the broker skipped and undid is no violation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peeklock.capture.folder import STORE_MARK_NAME
from peeklock.pipeline.audit.checks import NOT_PROVEN
from peeklock.store.sqlite.filler import SqliteFiller
from peeklock.store.sqlite.reader import SqliteReader
from tests.capture.stores import EPOCH, enqueued, export, write_store
from tests.pipeline.audit.test_files import audit
from tests.store.backup.files import back_up, restore

pytestmark = pytest.mark.spark


def test_both_sides_of_a_restore_are_judged_and_nothing_between(spark: Any, tmp_path: Path) -> None:
    data, log, target = tmp_path / "data", tmp_path / "log", tmp_path / "target"
    write_store(data, [EPOCH], [enqueued(1)])
    reader = SqliteReader(data)
    backup = back_up(reader, tmp_path / "file")
    reader.close()
    write_store(data, [enqueued(2)])
    export(data, log)
    filler = SqliteFiller(target)
    restore([backup], filler)
    (target / STORE_MARK_NAME).write_bytes((data / STORE_MARK_NAME).read_bytes())
    write_store(target, [EPOCH], [enqueued(10**12 + 2)])
    export(target, log)
    verdict = audit(spark, log)
    assert verdict.findings == {}
    assert verdict.exit_status == NOT_PROVEN
    assert any("was restored" in sentence for sentence in verdict.not_proven), verdict.not_proven
