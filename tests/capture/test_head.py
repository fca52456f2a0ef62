"""The head of a log: which exporter goes on, whatever the lock and the listing of the folder say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peeklock.capture.exporter import Exporter, ExportOptions
from peeklock.capture.folder import LogFolder
from peeklock.capture.head import Head, LogTaken
from peeklock.capture.source import FolderSource
from peeklock.store.base import StoreFailed
from tests.capture.stores import EPOCH, Told, enqueued, rows, segments, write_store


class Text:
    """A text that is kept in memory."""

    def __init__(self) -> None:
        self.text: str | None = None

    def read(self) -> str | None:
        return self.text

    def replace(self, old: str | None, new: str) -> bool:
        if self.text != old:
            return False
        self.text = new
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
def owner(data: Path, log: Path) -> Iterator[Owner]:
    """Make an exporter of an owner, by its epoch, and what it tells."""
    text, made = Text(), []

    def make(epoch: int) -> tuple[Exporter, Told]:
        told = Told()
        exporter = Exporter(ExportOptions(Source(data, text, epoch), log, "here", interval_s=1.0), told)
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


def test_an_earlier_owner_ends_once_a_later_one_has_its_log(owner: Owner, data: Path, log: Path) -> None:
    """Its exporter was slow, and holds the lock of the folder. Req: X-04"""
    first, told = owner(1)
    first.step(0.0)
    later, _ = owner(2)
    later.step(0.0)
    later.step(10.0)
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
    first, _ = owner(1)
    first.step(0.0)
    later, _ = owner(2)
    later.step(0.0)
    later.step(10.0)
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
    first, _ = owner(1)
    first.step(0.0)
    later, _ = owner(2)
    later.step(0.0)
    later.step(10.0)
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
    first, _ = owner(1)
    first.step(0.0)
    later, _ = owner(2)
    later.step(0.0)
    later.step(10.0)
    later.rest()
    write_store(data, [enqueued(2)])
    later.step(12.0)
    assert later.is_open
