"""The audit names files that are not as the exporter wrote them, and blames nothing of it on the broker."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from peeklock.capture.manifest import MANIFEST_NAME
from peeklock.capture.manifest_file import ManifestFile
from peeklock.pipeline.audit.checks import NOT_PROVEN, VIOLATED, Check
from tests.pipeline.event_rows import EventRows
from tests.pipeline.synthetic import make_log, write_segments

pytestmark = pytest.mark.spark

Files = list[Path]


def write(folder: Path, table: pa.Table, *, listed: bool = True) -> Files:
    """Write a log of some files, with a manifest if they are `listed`."""
    paths = write_segments(folder, EventRows(table).table(folder.name), rows=500)
    if listed:
        manifest = ManifestFile(folder)
        manifest.open([], 1)
        for path in paths:
            manifest.append(path)
    return paths


def _one_is_removed(files: Files) -> None:
    files[1].unlink()


def _the_last_one_is_removed(files: Files) -> None:
    files[-1].unlink()


def _the_first_one_is_removed(files: Files) -> None:
    files[0].unlink()


def _one_is_older(files: Files) -> None:
    table = pq.read_table(files[1], partitioning=None)
    pq.write_table(table.slice(0, len(table) // 2), files[1])


def _one_is_cut(files: Files) -> None:
    os.truncate(files[2], files[2].stat().st_size // 2)


def _one_is_empty(files: Files) -> None:
    os.truncate(files[2], 0)


def _a_bit_is_flipped(files: Files) -> None:
    data = bytearray(files[1].read_bytes())
    data[len(data) // 2] ^= 1
    files[1].write_bytes(data)


def _one_is_added(files: Files) -> None:
    """It has the batches of the middle of another one."""
    first, last = _batches(files[1])
    shutil.copy(files[1], files[1].with_name(f"events-{first + 1:020}-{last - 1:020}.parquet"))


def _one_is_renamed(files: Files) -> None:
    """Its old name is missing too."""
    first, last = _batches(files[1])
    files[1].rename(files[1].with_name(f"events-{first:020}-{last - 1:020}.parquet"))


def _names_are_swapped(files: Files) -> None:
    files[1].rename(files[1].with_name("kept"))
    files[2].rename(files[1])
    files[1].with_name("kept").rename(files[2])


def _one_has_batches_of_the_next(files: Files) -> None:
    first, last = _batches(files[1])
    files[1].rename(files[1].with_name(f"events-{first:020}-{last - 2:020}.parquet"))


def _a_line_is_removed(files: Files) -> None:
    _edit(files, lambda lines: lines[:2] + lines[3:])


def _a_line_is_changed(files: Files) -> None:
    _edit(files, lambda lines: [line.replace('"sha256": "', '"sha256": "0') for line in lines])


def _edit(files: Files, change: Callable[[list[str]], list[str]]) -> None:
    path = files[0].parents[2] / MANIFEST_NAME
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def _batches(path: Path) -> tuple[int, int]:
    _, first, last = path.stem.split("-")
    return int(first), int(last)


LISTED: dict[Callable[[Files], None], set[Check]] = {
    _one_is_removed: {Check.FILE_REMOVED},
    _the_last_one_is_removed: {Check.FILE_REMOVED},
    _the_first_one_is_removed: {Check.FILE_REMOVED},
    _one_is_older: {Check.FILE_CHANGED},
    _one_is_cut: {Check.FILE_CHANGED},
    _one_is_empty: {Check.FILE_CHANGED},
    _a_bit_is_flipped: {Check.FILE_CHANGED},
    _names_are_swapped: {Check.FILE_CHANGED},
    _one_is_added: {Check.FILE_ADDED},
    _one_is_renamed: {Check.FILE_ADDED, Check.FILE_REMOVED},
    _a_line_is_removed: {Check.MANIFEST_DAMAGED},
    _a_line_is_changed: {Check.MANIFEST_DAMAGED},
}
"""Faults of logs with a manifest."""

UNLISTED: dict[Callable[[Files], None], set[Check]] = {
    _one_is_removed: {Check.SEGMENT_GAP},
    _one_is_added: {Check.SEGMENT_GAP, Check.FILE_MISNAMED},
    _names_are_swapped: {Check.FILE_MISNAMED},
    _one_has_batches_of_the_next: {Check.FILE_MISNAMED, Check.SEGMENT_GAP},
}
"""Faults of logs of older releases, which have none."""


def audit(spark: Any, *folders: Path) -> Any:
    from peeklock.pipeline.audit.job import AuditOptions, run

    return run(spark, AuditOptions(tuple(str(folder) for folder in sorted(folders))))


@pytest.mark.long
def test_files_that_are_not_as_they_were_written_are_named_and_nothing_is_blamed_on_the_broker(
    spark: Any, tmp_path: Path
) -> None:
    """Req: X-04"""
    table = make_log(messages=800, seed=7)
    wanted: dict[str, set[Check]] = {}
    for faults, listed in ((LISTED, True), (UNLISTED, False)):
        for spoil, checks in faults.items():
            name = spoil.__name__.strip("_").replace("_", "-") + ("" if listed else "-unlisted")
            spoil(write(tmp_path / name, table, listed=listed))
            wanted[name] = checks
    verdict = audit(spark, *tmp_path.iterdir())
    found: dict[str, set[Check]] = {}
    for check, finding in verdict.findings.items():
        for namespace in finding.by_namespace:
            found.setdefault(namespace, set()).add(check)
    assert found == wanted
    assert verdict.exit_status == VIOLATED
    shown = " ".join(str(sample) for finding in verdict.findings.values() for sample in finding.samples)
    assert "the exporter wrote" in shown
    assert "is not there" in shown


@pytest.mark.long
def test_a_log_with_its_manifest_is_clean_also_after_retention_and_while_it_grows(
    spark: Any, tmp_path: Path
) -> None:
    """Req: X-04"""
    table = make_log(messages=800, seed=7)
    write(tmp_path / "whole", table)
    paths = write(tmp_path / "retained", table)
    manifest = ManifestFile(tmp_path / "retained")
    manifest.open([], 1)
    manifest.remove(_batches(paths[1])[1])
    paths[0].unlink()  # the other one is about to go
    paths = write(tmp_path / "growing", table)
    _edit(paths, lambda lines: lines[:-1])  # the newest is not listed yet
    paths = write(tmp_path / "older-manifest", table)
    _edit(paths, lambda lines: lines[:-3])
    begun = write(tmp_path / "begun-late", table, listed=False)
    manifest = ManifestFile(tmp_path / "begun-late")
    manifest.open([], _batches(begun[2])[0])
    for path in begun[2:]:
        manifest.append(path)
    verdict = audit(spark, *tmp_path.iterdir())
    assert verdict.findings == {}, verdict.report()
    assert verdict.exit_status == NOT_PROVEN
    assert [told for told in verdict.not_proven if "older-manifest" not in told] == []
    assert "does not list the last 3 files" in verdict.not_proven[0]


def test_a_log_without_a_manifest_is_audited_and_the_report_says_so(spark: Any, tmp_path: Path) -> None:
    """Req: X-04"""
    table = make_log(messages=100, seed=7)
    write(tmp_path / "older", table, listed=False)
    verdict = audit(spark, tmp_path / "older")
    assert verdict.findings == {}
    assert "has no manifest" in json.dumps(verdict.notes)


def test_each_check_of_files_has_two_faults() -> None:
    planted = Counter(
        check for faults in (LISTED, UNLISTED) for checks in faults.values() for check in checks
    )
    of_files = [check for check in Check if check <= Check.MANIFEST_DAMAGED]
    assert all(planted[check] >= 2 for check in of_files), planted
