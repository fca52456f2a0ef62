"""The manifest of an event log: what it lists, in which order it is written, and what it notices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peeklock.capture import manifest_file
from peeklock.capture.folder import LogFolder, LogRefused, Segment
from peeklock.capture.manifest import MANIFEST_NAME, Manifest, ManifestDamaged, digest_of, parse
from peeklock.capture.source import FolderSource
from tests.capture.stores import EPOCH, enqueued, export, write_store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def read(log: Path) -> Manifest:
    return parse((log / MANIFEST_NAME).read_text())


def segments(log: Path) -> list[Path]:
    return sorted(log.glob("event_date=*/*/*.parquet"), key=lambda path: path.name)


def write_two(data: Path, log: Path) -> None:
    write_store(data, [EPOCH], [enqueued(1)])
    export(data, log)
    write_store(data, [enqueued(2)])
    export(data, log)


def test_each_segment_is_listed_with_the_digest_of_its_bytes(data: Path, log: Path) -> None:
    """Req: X-04"""
    write_two(data, log)
    found = read(log)
    assert found.begins == 1
    assert list(found.entries) == [path.relative_to(log).as_posix() for path in segments(log)]
    for path, entry in zip(segments(log), found.entries.values(), strict=True):
        assert entry.sha256 == digest_of(path)
        assert entry.size_bytes == path.stat().st_size
    assert found.listed_to == 3


def test_a_line_that_a_frozen_exporter_writes_again_counts_once(data: Path, log: Path) -> None:
    """Another one had listed the segment meanwhile, and went on. Req: X-04"""
    write_two(data, log)
    before = read(log)
    with (log / MANIFEST_NAME).open("a") as file:
        file.write((log / MANIFEST_NAME).read_text().splitlines(keepends=True)[1])
    assert read(log) == before
    write_store(data, [enqueued(3)])
    export(data, log)
    assert len(read(log).entries) == 3


def test_a_log_of_an_older_release_is_listed_from_its_next_segment_on(data: Path, log: Path) -> None:
    """Its segments stay. Req: X-04"""
    write_two(data, log)
    (log / MANIFEST_NAME).unlink()
    older = segments(log)
    for number in (3, 4):
        write_store(data, [enqueued(number)])
        export(data, log)
        assert segments(log)[:2] == older
    found = read(log)
    assert found.begins == 4
    assert [entry.first_no for entry in found.entries.values()] == [4, 5]


def test_what_a_killed_exporter_wrote_and_did_not_list_is_listed_later(data: Path, log: Path) -> None:
    """The last line was cut too."""
    write_two(data, log)
    path = log / MANIFEST_NAME
    before = path.read_text()
    path.write_text(before[:-20])
    assert len(read(log).entries) == 1
    write_store(data, [enqueued(3)])
    export(data, log)
    assert path.read_text().startswith(before)
    assert len(read(log).entries) == 3


def test_a_segment_that_retention_removed_is_told_before_it_goes(
    data: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: X-04"""
    write_two(data, log)
    told: list[int] = []
    unlink = LogFolder._unlink

    def look(segment: Segment) -> None:
        told.append(read(log).removed_to)
        unlink(segment)

    monkeypatch.setattr(LogFolder, "_unlink", staticmethod(look))
    write_store(data, [enqueued(3)])
    export(data, log, keep_bytes=1)
    assert told == [3, 3]
    assert read(log).removed_to == 3
    assert len(segments(log)) == 1


def test_a_removal_that_was_begun_is_ended(data: Path, log: Path, tmp_path: Path) -> None:
    write_two(data, log)
    first = segments(log)[0]
    shutil.copy(first, tmp_path / "copy")
    write_store(data, [enqueued(3)])
    export(data, log, keep_bytes=1)
    first.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(tmp_path / "copy", first)
    export(data, log)
    assert not first.exists()


def test_lines_of_removed_segments_go_in_the_end(
    data: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_file, "DEAD_LINES_MAX", 3)
    write_two(data, log)
    for number in range(3, 12):
        write_store(data, [enqueued(number)])
        export(data, log, keep_bytes=1)
    found = read(log)
    assert len(found.entries) < 6
    assert found.begins > 1
    assert found.listed_to == 12


@pytest.mark.parametrize("change", ["gone", "changed", "moved", "not-json"])
def test_a_line_that_is_not_as_it_was_written_is_noticed(data: Path, log: Path, change: str) -> None:
    """Req: X-04"""
    write_two(data, log)
    head, first, second = (log / MANIFEST_NAME).read_text().splitlines(keepends=True)
    changed = json.dumps({**json.loads(first), "sha256": "0" * 64}) + "\n"
    text = {
        "gone": head + second,
        "changed": head + changed + second,
        "moved": head + second + first,
        "not-json": head + "{\n" + second,
    }[change]
    with pytest.raises(ManifestDamaged, match="line 2"):
        parse(text)
    (log / MANIFEST_NAME).write_text(text)
    with pytest.raises(LogRefused, match="move it away"):
        LogFolder(log).take(FolderSource(data))
