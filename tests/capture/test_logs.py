"""Several event logs in one thread: each gets its turn, and one that fails ends alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peeklock.capture.logs import Logs
from tests.capture.stores import EPOCH, enqueued, rows, write_store


class Said:
    """Takes down what is said of each log."""

    def __init__(self) -> None:
        self.words: list[tuple[str, int, str]] = []
        self.now_s = 0.0

    def say(self, word: str, log_id: int, text: str) -> None:
        self.words.append((word, log_id, text))

    def note(self, level: str, event: str, **fields: object) -> None:
        pass

    def of(self, log_id: int) -> list[tuple[str, str]]:
        return [(word, text) for word, each, text in self.words if each == log_id]


@pytest.fixture
def said() -> Said:
    return Said()


def logs_of(said: Said, **limits: Any) -> Logs:
    return Logs(said.say, said.note, clock_s=lambda: said.now_s, **limits)


def serve(logs: Logs, said: Said) -> None:
    """Serve all logs to their end, as quickly as the clock can be moved."""
    while (wait_s := logs.serve()) is not None:
        said.now_s += wait_s


def add(logs: Logs, folder: Path, log_id: int) -> None:
    data, to = folder / f"data{log_id}", folder / f"log{log_id}"
    logs.add(log_id, str(data), str(to), f"ns{log_id}")


def sequence_numbers(log: Path) -> list[int]:
    return [row["sequence_number"] for row in rows(log) if row["event_type"] == "enqueued"]


def test_one_that_fails_ends_alone(tmp_path: Path, said: Said) -> None:
    logs = logs_of(said)
    (tmp_path / "log3").touch()  # no folder
    for log_id in (2, 3):
        write_store(tmp_path / f"data{log_id}", [EPOCH, enqueued(1)])
        add(logs, tmp_path, log_id)
    logs.finish()
    serve(logs, said)
    assert said.of(2)[-1] == ("removed", "")
    assert sequence_numbers(tmp_path / "log2") == [1]
    [failed] = said.of(3)
    assert failed[0] == "failed"
    assert str(tmp_path / "log3") in failed[1]


def test_a_log_is_removed_when_all_of_it_is_exported(tmp_path: Path, said: Said) -> None:
    for log_id in (1, 2):
        write_store(tmp_path / f"data{log_id}", [EPOCH, enqueued(1)])
    logs = logs_of(said)
    for log_id in (1, 2):
        add(logs, tmp_path, log_id)
    while logs.serve() == 0.0:
        pass
    write_store(tmp_path / "data1", [enqueued(2)])
    logs.remove(1)
    while len(logs) > 1:
        said.now_s += logs.serve() or 0.0
    assert sequence_numbers(tmp_path / "log1") == [1, 2]
    assert said.of(1)[-1] == ("removed", "")
    assert ("removed", "") not in said.of(2)
    logs.remove(1)  # it is gone: nothing happens
    logs.finish()
    serve(logs, said)
    assert sequence_numbers(tmp_path / "log2") == [1]


def test_no_more_logs_are_open_than_may_be(tmp_path: Path, said: Said) -> None:
    logs = logs_of(said, open_max=2)
    for log_id in range(1, 6):
        write_store(tmp_path / f"data{log_id}", [EPOCH, enqueued(1)])
        add(logs, tmp_path, log_id)
    for _ in range(50):
        said.now_s += logs.serve() or 0.0
        assert logs.open_count <= 2
    for log_id in range(1, 6):
        write_store(tmp_path / f"data{log_id}", [enqueued(2)])
    logs.finish()
    serve(logs, said)
    for log_id in range(1, 6):
        assert sequence_numbers(tmp_path / f"log{log_id}") == [1, 2]


def test_rows_are_written_early_where_memory_is_short(tmp_path: Path, said: Said) -> None:
    """The largest log gives way; what it has written is not written again."""
    logs = logs_of(said, memory_bytes_max=1)
    for log_id in (1, 2):
        write_store(tmp_path / f"data{log_id}", [EPOCH, *(enqueued(number) for number in range(1, 50))])
        add(logs, tmp_path, log_id)
    logs.finish()
    serve(logs, said)
    for log_id in (1, 2):
        assert sequence_numbers(tmp_path / f"log{log_id}") == list(range(1, 50))
