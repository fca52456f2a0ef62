"""The process that writes all event logs: killed, its logs are told, added again, and complete."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from peeklock.server import exporter_process
from peeklock.server.exporter_process import ExporterProcess
from tests.capture.stores import EPOCH, enqueued, write_store
from tests.capture.test_logs import sequence_numbers


class Log:
    """One log, added to a process."""

    def __init__(self, folder: Path, name: str, process: ExporterProcess) -> None:
        self.data, self.to = folder / f"data-{name}", folder / f"log-{name}"
        self._name = name
        self._process = process
        self.exported_to = 0
        self.why: list[str | None] = []
        self.told = asyncio.Event()
        self.log_id = 0

    def add(self) -> None:
        self.told.clear()
        request = {"source": {"data": str(self.data)}, "to": str(self.to), "namespace": self._name}
        self.log_id = self._process.add({**request, "interval_s": 0.1}, self)

    def exported(self, no: int) -> None:
        self.exported_to = no
        self.told.set()

    def ended(self, why: str | None) -> None:
        self.why.append(why)
        self.told.set()

    async def next(self) -> None:
        """Wait until something is told."""
        await asyncio.wait_for(self.told.wait(), 60)
        self.told.clear()


def test_a_killed_process_is_started_again_and_nothing_is_missing_or_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter_process, "RETRY_S_MIN", 0.05)

    async def test() -> None:
        process = ExporterProcess()
        logs = [Log(tmp_path, name, process) for name in ("a", "b")]
        for log in logs:
            log.add()
        for log in logs:
            while not log.exported_to:
                await log.next()
        assert process.pid is not None
        first = process.pid
        os.kill(first, signal.SIGKILL)
        for log in logs:
            while not log.why:
                await log.next()
            assert log.why == ["it ended with status -9"]
            log.add()
            log.exported_to = 0
        for log in logs:
            process.remove(log.log_id)
        for log in logs:
            while len(log.why) < 2:
                await log.next()
            assert log.why[1] is None
        await process.stop()

    for name in ("a", "b"):
        write_store(tmp_path / f"data-{name}", [EPOCH, enqueued(1)], [enqueued(2)])
    asyncio.run(test())
    for name in ("a", "b"):
        assert sequence_numbers(tmp_path / f"log-{name}") == [1, 2]


def test_a_log_that_fails_is_told_and_the_other_goes_on(tmp_path: Path) -> None:
    async def test() -> None:
        process = ExporterProcess()
        bad, good = (Log(tmp_path, name, process) for name in ("bad", "good"))
        bad.to.touch()  # no folder
        bad.add()
        good.add()
        await bad.next()
        [why] = bad.why
        assert why is not None
        assert str(bad.to) in why
        process.remove(good.log_id)
        while not good.why:
            await good.next()
        assert good.why == [None]
        await process.stop()

    for name in ("bad", "good"):
        write_store(tmp_path / f"data-{name}", [EPOCH, enqueued(1)])
    asyncio.run(test())
    assert sequence_numbers(tmp_path / "log-good") == [1]


def test_no_process_runs_before_the_first_log() -> None:
    async def test() -> None:
        process = ExporterProcess(["/nowhere/no such program"])
        assert process.pid is None
        await process.stop()

    asyncio.run(test())


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        process = ExporterProcess(["/nowhere/no such program"])
        log = Log(tmp_path, "a", process)
        log.add()
        await log.next()
        assert log.why == ["cannot start /nowhere/no such program: No such file or directory"]
        await process.stop()

    asyncio.run(test())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_process_that_ends_before_its_first_request_is_told(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.create_subprocess_exec

    async def start_late(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        await process.wait()  # the loop was busy while it ended
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_late)

    async def test() -> None:
        process = ExporterProcess(["sh", "-c", "exit 3"])
        log = Log(tmp_path, "a", process)
        log.add()
        await log.next()
        assert log.why == ["it ended with status 3"]
        await process.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(test())
