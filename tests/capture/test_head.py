"""The head of a log: which exporter goes on, whatever the lock and the listing of the folder say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peeklock.capture import manifest_file
from peeklock.capture.exporter import Exporter, ExportOptions
from peeklock.capture.folder import LogFolder
from peeklock.capture.head import Head, LogTaken
from peeklock.capture.manifest import MANIFEST_NAME, parse
from peeklock.capture.source import FolderSource
from peeklock.store.base import StoreFailed
from tests.capture.stores import EPOCH, Told, enqueued, rows, segments, write_store


class Text:
    """A text that is kept in memory."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.on_removal: Callable[[], None] | None = None
        """Is called once, after the removal of segments was published."""

    def read(self) -> str | None:
        return self.text

    def replace(self, old: str | None, new: str) -> bool:
        if self.text != old:
            return False
        self.text = new
        if self.on_removal is not None and json.loads(new)["removed_to"]:
            then, self.on_removal = self.on_removal, None
            then()
        return True


class Source(FolderSource):
    """A store in a folder whose log has a head, for one owner."""

    def __init__(self, folder: Path, text: Text, epoch: int) -> None:
        super().__init__(folder)
        self.heads = self
        self._text = text
        self._epoch = epoch

    def head(self, folder_id: str, writer: str, shown: str) -> Head:
        return Head(self._text, self._epoch, writer, shown)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store with an event in batch 2."""
    write_store(tmp_path / "data", [EPOCH], [enqueued(1)])
    return tmp_path / "data"


Owner = Callable[..., tuple[Exporter, Told]]


@pytest.fixture
def text() -> Text:
    return Text()


@pytest.fixture
def owner(data: Path, log: Path, text: Text) -> Iterator[Owner]:
    """Make an exporter of an owner, by its epoch, and what it tells."""
    made = []

    def make(epoch: int, **options: Any) -> tuple[Exporter, Told]:
        told = Told()
        source = Source(data, text, epoch)
        exporter = Exporter(ExportOptions(source, log, "here", interval_s=1.0, **options), told)
        made.append(exporter)
        return exporter, told

    yield make
    for exporter in made:
        exporter.close()


def finish(exporter: Exporter, now_s: float = 100.0) -> None:
    exporter.finish()
    while exporter.step(now_s) is not None:
        pass


def numbers(log: Path) -> list[int]:
    return [row["sequence_number"] for row in rows(log) if row.get("sequence_number")]


def test_a_listing_that_is_behind_is_read_again(
    owner: Owner, data: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of NFS, for half a minute: going on behind it would export rows twice. Req: X-04"""
    first, _ = owner(1)
    finish(first)
    first.close()
    write_store(data, [enqueued(2)])
    second, _ = owner(2)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", lambda path, pattern: iter(()))
        with pytest.raises(StoreFailed, match=r"lacks event_date=.*\.parquet, which is there"):
            finish(second)
    second.close()
    third, _ = owner(2)
    finish(third)
    assert numbers(log) == [1, 2]
    assert len(segments(log)) == 2


def two_owners(owner: Owner) -> tuple[Exporter, Told, Exporter]:
    """Return an owner's exporter, which has the lock, and that of the next, which has waited for it."""
    first, told = owner(1)
    first.step(0.0)
    later, _ = owner(2)
    later.step(0.0)
    later.step(10.0)
    return first, told, later


def test_an_earlier_owner_ends_once_a_later_one_has_its_log(owner: Owner, data: Path, log: Path) -> None:
    """Its exporter was slow, and holds the lock of the folder. Req: X-04"""
    first, told, later = two_owners(owner)
    assert later.is_open
    first.finish()
    assert first.step(11.0) is None
    assert told.numbers == [0]
    assert "another exporter has taken the event log" in told.notes[-1][1]
    assert told.notes[-1][0] == "info"
    first.close()
    write_store(data, [enqueued(2)])
    finish(later)
    assert numbers(log) == [1, 2]


def test_an_earlier_owner_that_begins_again_takes_nothing_back(owner: Owner, log: Path) -> None:
    """Neither while it writes, nor when it ends; the lock does not matter. Req: X-04"""
    first, _, later = two_owners(owner)
    first.close()  # nobody has the lock
    again, _ = owner(1)
    with pytest.raises(LogTaken):
        again.step(11.0)
    again.close()
    last, told = owner(1)
    finish(last)
    assert told.numbers == []
    last.close()
    finish(later)
    assert numbers(log) == [1]


def test_who_has_no_lock_takes_it_once_it_is_free(owner: Owner, data: Path, log: Path) -> None:
    """Then an earlier owner that ends learns at once that the log is another's, and waits for nothing."""
    first, _, later = two_owners(owner)
    first.close()
    later.step(11.0)
    other = LogFolder(log)
    assert not other.take(FolderSource(data))
    again, told = owner(1)
    again.finish()
    assert again.step(11.0) is None
    assert "another exporter has taken the event log" in told.notes[-1][1]


def test_who_has_the_log_waits_for_the_lock_once(owner: Owner, data: Path) -> None:
    """Between its steps it may have closed all files."""
    _first, _, later = two_owners(owner)
    later.rest()
    write_store(data, [enqueued(2)])
    later.step(12.0)
    assert later.is_open


@pytest.mark.parametrize("dead_lines_max", [0, 1000])
def test_an_exporter_that_was_frozen_in_a_removal_damages_no_manifest(
    owner: Owner, data: Path, log: Path, text: Text, monkeypatch: pytest.MonkeyPatch, dead_lines_max: int
) -> None:
    """Its line comes behind those of the next one, which may have written the manifest anew. Req: X-04"""
    for number in (2, 3):
        exporter, _ = owner(1)
        finish(exporter)
        exporter.close()
        write_store(data, [enqueued(number)])

    removed_to = []

    def take_over() -> None:
        removed_to.append(parse((log / MANIFEST_NAME).read_text()).removed_to)
        with monkeypatch.context() as patched:
            patched.setattr(manifest_file, "DEAD_LINES_MAX", dead_lines_max)
            later, _ = owner(2)
            later.step(0.0)
            later.step(10.0)
            finish(later)
            later.close()

    text.on_removal = take_over
    frozen, _ = owner(1, keep_bytes=1)
    frozen.finish()
    frozen.step(50.0)
    frozen.close()
    assert removed_to == [0]
    found = parse((log / MANIFEST_NAME).read_text())
    assert max(found.removed_to, found.begins - 1) == 3
    assert numbers(log) == [3]
    write_store(data, [enqueued(4)])
    last, _ = owner(3)
    finish(last)
    assert numbers(log) == [3, 4]
