"""A broker that writes an event log: complete after any end, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from peeklock.capture.folder import LOCK_NAME, LogFolder
from peeklock.capture.source import FolderSource
from peeklock.cli import main
from peeklock.demo.broker import BrokerProcess
from tests.capture.broker import capturing, counts, health, health_when, wait_for_exporter
from tests.capture.stores import EPOCH, rows, segments, write_store
from tests.kill.clients import Receiver, Sender
from tests.kill.ledger import Ledger
from tests.kill.loop import FORWARDING, QUEUE, broker_on
from tests.kill.test_kill import until
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.kill

SERVER_BUSY = "com.microsoft:server-busy"

Story = Callable[[BrokerProcess, "Work"], Coroutine[Any, Any, None]]


class Work:
    """Messages that are sent and received."""

    def __init__(self, broker: BrokerProcess, ledger: Ledger) -> None:
        self.ledger = ledger
        self._broker = broker
        self._names = 0

    async def send(self, count: int) -> set[str | None]:
        """Send messages; answer why some were refused."""
        self._names += 1
        sender = Sender(f"sender-{self._names}", self.ledger, Random(1), QUEUE, sends_max=count)
        before = set(self.ledger.fates)
        await sender.connect(self._broker.amqp_port)
        # A batch counts as one send.
        await until(lambda: sender.outcomes >= count and not sender.in_flight, sender, what="all outcomes")
        sender.close()
        return {self.ledger.fates[uid].rejected for uid in set(self.ledger.fates) - before}

    async def receive(self) -> None:
        """Receive and complete all that is there."""
        self._names += 1
        receiver = Receiver(f"receiver-{self._names}", self.ledger, Random(2), QUEUE, careless=False)
        await receiver.connect(self._broker.amqp_port)
        await until(
            lambda: all(f.completed for f in self.ledger.fates.values() if f.accepted),
            receiver,
            what="all is completed",
        )
        receiver.close()

    def check(self, log: Path) -> None:
        """Hold a log without gaps against what clients were told."""
        found = counts(log)
        for fate in self.ledger.fates.values():
            if fate.accepted:
                assert found["enqueued", fate.number] == 1, fate
                assert found["completed", fate.number] == int(fate.completed), fate
        accepted = sum(fate.accepted for fate in self.ledger.fates.values())
        assert sum(n for (kind, _), n in found.items() if kind == "enqueued") == accepted


def run(folder: Path, story: Story, *options: str, ledger: Ledger | None = None) -> Work:
    """Run a story with a broker that writes a log, and is ended in any case."""
    with capturing(folder, *options) as broker:
        work = Work(broker, ledger or Ledger())
        asyncio.run(story(broker, work))
    return work


async def stop(broker: BrokerProcess) -> None:
    assert await asyncio.to_thread(broker.stop) == 0, broker.log.read_text()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_after_a_clean_stop_the_log_is_complete(tmp_path: Path, log: Path) -> None:
    """Also of what happened in the last moment. Req: X-03"""

    async def story(broker: BrokerProcess, work: Work) -> None:
        await work.send(100)
        await work.receive()
        await stop(broker)

    run(tmp_path, story).check(log)
    kinds = {row["event_type"] for row in rows(log)}
    assert {"epoch_started", "entity_created", "enqueued", "delivered", "completed"} <= kinds


def test_after_a_kill_of_the_broker_the_exporter_finishes_by_itself(tmp_path: Path, log: Path) -> None:
    """Req: X-03"""

    async def story(broker: BrokerProcess, work: Work) -> None:
        await health_when(broker, lambda found: found["state"] == "running", "the exporter runs")
        await work.send(200)
        await work.receive()
        broker.kill()
        await asyncio.to_thread(wait_for_exporter, log)

    run(tmp_path, story).check(log)


def test_over_a_database_another_node_goes_on_with_the_log(
    tmp_path: Path, log: Path, postgres: PostgresServer
) -> None:
    """The folder of the log is one that both nodes reach. Req: X-03"""
    store = f"--store={postgres.new_database(f'log{uuid.uuid4().hex}')}"

    async def before(broker: BrokerProcess, work: Work) -> None:
        await health_when(broker, lambda found: found["state"] == "running", "the exporter runs")
        await work.send(200)
        await work.receive()
        broker.kill()
        await asyncio.to_thread(wait_for_exporter, log)

    async def after(broker: BrokerProcess, work: Work) -> None:
        await work.send(100)
        await work.receive()
        await stop(broker)

    first = run(tmp_path, before, store)
    first.check(log)
    (other := tmp_path / "other").mkdir()
    second = run(other, after, store, f"--capture={log}", ledger=first.ledger)
    assert "gap" not in {row["event_type"] for row in rows(log)}
    second.check(log)


def test_a_killed_exporter_is_started_again(tmp_path: Path, log: Path) -> None:
    """Req: X-03"""

    async def story(broker: BrokerProcess, work: Work) -> None:
        found = await health_when(broker, lambda found: found["state"] == "running", "it runs")
        os.kill(found["pid"], signal.SIGKILL)
        failed = await health_when(broker, lambda found: found["state"] == "failed", "its end is told")
        assert failed["reason"] == "it ended with status -9"
        await work.send(10)
        again = await health_when(
            broker,
            lambda found: found["state"] == "running" and found["exported_to"] and not found["lag_s"],
            "all is exported",
        )
        assert again["pid"] != found["pid"]
        assert again["reason"] is None
        os.kill(again["pid"], signal.SIGKILL)
        await work.send(10)
        await work.receive()
        await stop(broker)  # once more then, so that the log is complete

    run(tmp_path, story).check(log)


def test_what_was_exported_is_forgotten_by_the_store(tmp_path: Path) -> None:
    async def story(broker: BrokerProcess, work: Work) -> None:
        await work.send(500)
        await work.receive()
        await health_when(
            broker, lambda found: found["exported_to"] and found["backlog_bytes"] < 1000, "it is forgotten"
        )

    run(tmp_path, story)


def test_a_segment_that_cannot_be_written_is_told_and_written_later(tmp_path: Path, log: Path) -> None:
    """No file of the exporter may grow beyond 2 kB: as on a full disk. Req: X-03"""

    async def story(broker: BrokerProcess, work: Work) -> None:
        found = await health_when(broker, lambda found: found["state"] == "running", "it runs")
        soft, hard = resource.prlimit(found["pid"], resource.RLIMIT_FSIZE)
        resource.prlimit(found["pid"], resource.RLIMIT_FSIZE, (2000, hard))
        await work.send(100)
        failed = await health_when(broker, lambda found: found["state"] == "failed", "it is told")
        assert "cannot write the event log" in failed["reason"]
        assert failed["pid"] == found["pid"]
        await work.receive()
        resource.prlimit(found["pid"], resource.RLIMIT_FSIZE, (soft, hard))
        await health_when(broker, lambda found: not found["lag_s"], "the next try has written it")
        await stop(broker)

    run(tmp_path, story).check(log)
    assert not list(log.glob(".events-*"))
    assert '"the event log cannot be written"' in (tmp_path / "broker.log").read_text()


def test_a_stop_waits_for_the_exporter_only_so_long_and_says_so(tmp_path: Path, log: Path) -> None:
    """One that stands still has all of the log to write; it does that when it goes on. Req: X-03"""
    pids = []

    async def story(broker: BrokerProcess, work: Work) -> None:
        found = await health_when(broker, lambda found: found["state"] == "running", "it runs")
        pids.append(found["pid"])
        await work.send(20)
        await work.receive()
        os.kill(found["pid"], signal.SIGSTOP)
        await stop(broker)

    try:
        work = run(tmp_path, story)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    wait_for_exporter(log)
    work.check(log)
    assert '"the event log is not complete yet' in (tmp_path / "broker.log").read_text()


def test_bodies_are_captured_of_the_entities_that_were_named(tmp_path: Path, log: Path) -> None:
    """Req: X-03"""

    async def story(broker: BrokerProcess, work: Work) -> None:
        await work.send(5)
        other = Sender("other", work.ledger, Random(3), FORWARDING, sends_max=5)
        await other.connect(broker.amqp_port)
        await until(lambda: other.outcomes == 5, other, what="all outcomes")
        await stop(broker)

    run(tmp_path, story, "--capture-bodies=WORK")
    sent = [row for row in rows(log) if "message_id" in row]
    assert {row["entity"] for row in sent} == {QUEUE, FORWARDING}
    for row in sent:
        if row["entity"] == QUEUE:
            assert row["body"].startswith(b"uid=%08d;" % int(row["message_id"]))
        else:
            assert "body" not in row


def test_time_without_capture_is_a_gap(tmp_path: Path, log: Path) -> None:
    """Req: X-03"""

    async def send(broker: BrokerProcess, work: Work) -> None:
        await work.send(20)
        await stop(broker)

    run(tmp_path, send)
    with broker_on(tmp_path) as uncaptured:
        work = Work(uncaptured, Ledger())
        for _ in range(200):
            work.ledger.sending()  # ids that the queue does not know: it detects duplicates
        asyncio.run(send(uncaptured, work))
    run(tmp_path, send)
    found = rows(log)
    [at] = [n for n, row in enumerate(found) if row["event_type"] == "gap"]
    assert found[at]["reason"] == "capture was off"
    assert found[at]["sequence_number"] > found[at - 1]["batch_no"]
    assert found[at]["related_sequence_number"] == found[at + 1]["batch_no"] - 1
    assert found[at + 1]["event_type"] == "epoch_started"


def test_old_segments_are_removed_when_all_are_too_large(tmp_path: Path, log: Path) -> None:
    """Req: X-03"""

    async def story(broker: BrokerProcess, work: Work) -> None:
        for _ in range(2):
            await work.send(20)
            await health_when(broker, lambda found: found["exported_to"] and not found["lag_s"], "a segment")
        await stop(broker)

    run(tmp_path, story, "--capture-keep-bytes=1")
    assert len(segments(log)) == 1


class TestALogThatCannotBeWritten:
    """A folder stands where its lock file should be."""

    @pytest.fixture
    def obstacle(self, log: Path) -> Path:
        obstacle = log / LOCK_NAME
        obstacle.mkdir(parents=True)
        return obstacle

    async def send_until(self, work: Work, true: Callable[[set[str | None]], Awaitable[bool]]) -> None:
        """Send, a bit at a time, until something is true of why sends were refused."""
        for _ in range(400):
            if await true(await work.send(300)):
                return
            await asyncio.sleep(0.05)
        raise AssertionError("it did not come to that")

    def test_block_refuses_sends_and_takes_settlements_until_it_can_be_written(
        self, tmp_path: Path, log: Path, obstacle: Path
    ) -> None:
        """Req: X-03"""

        async def story(broker: BrokerProcess, work: Work) -> None:
            async def refused(why: set[str | None]) -> bool:
                return SERVER_BUSY in why

            await self.send_until(work, refused)
            found = await asyncio.to_thread(health, broker)
            assert "event log" in found["status"]
            assert str(obstacle) in found["capture"]["reason"]
            assert found["capture"]["lag_s"] > 0
            await work.receive()
            await asyncio.to_thread(obstacle.rmdir)

            async def taken(why: set[str | None]) -> bool:
                return why == {None}

            await self.send_until(work, taken)
            await work.receive()
            await stop(broker)

        work = run(tmp_path, story, "--capture-backlog=65536")
        work.check(log)
        assert "gap" not in {row["event_type"] for row in rows(log)}
        log_lines = (tmp_path / "broker.log").read_text()
        assert '"sending is limited"' in log_lines
        assert '"sending is open again"' in log_lines

    def test_drop_and_say_gives_up_the_oldest_events_and_says_which(
        self, tmp_path: Path, log: Path, obstacle: Path
    ) -> None:
        """Req: X-03"""

        async def story(broker: BrokerProcess, work: Work) -> None:
            async def dropped(why: set[str | None]) -> bool:
                assert why == {None}
                found = (await asyncio.to_thread(health, broker))["capture"]
                return bool(found["dropped_batches"] > 20)

            await self.send_until(work, dropped)
            await work.receive()
            await asyncio.to_thread(obstacle.rmdir)
            await stop(broker)

        run(tmp_path, story, "--capture-backlog=65536", "--capture-policy=drop-and-say")
        first, *others = rows(log)
        assert first["event_type"] == "gap"
        assert first["sequence_number"] == 1
        assert first["related_sequence_number"] > 20
        assert first["reason"].startswith("given up")
        assert "gap" not in {row["event_type"] for row in others}
        numbers = sorted({row["batch_no"] for row in others})
        assert numbers[0] > first["related_sequence_number"]
        assert '"events were given up' in (tmp_path / "broker.log").read_text()


class TestRefusedOptions:
    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (["--durability", "memory", "--capture", "log"], "keeps nothing"),
            (["--data", "d", "--capture-policy", "block"], "--capture-policy .*--capture"),
            (["--data", "d", "--capture-bodies", "*"], "--capture-bodies .*--capture"),
            (["--data", "d", "--capture", "log", "--capture-backlog", "65535"], "65536"),
            (["--data", "d", "--capture", "log", "--capture-keep-days", "0"], "--capture-keep-days"),
            (["--data", "d", "--capture", ""], "the name of the folder is empty"),
        ],
    )
    def test_they_say_what_to_do(self, options: list[str], why: str) -> None:
        """Req: X-03"""
        result = CliRunner().invoke(main, ["serve", *options], terminal_width=200)
        assert result.exit_code == 2
        assert pytest.RaisesExc(ValueError, match=why).matches(ValueError(" ".join(result.output.split())))


class TestRefusedAtStart:
    """What the exporter could only say again and again is told before anything listens. Req: X-03"""

    def start(self, data: Path, log: Path) -> str:
        """Start a broker, which must be refused; answer the one line that it says."""
        ports = ["--amqp-port=0", "--http-port=0"]
        result = CliRunner().invoke(main, ["serve", f"--data={data}", f"--capture={log}", *ports])
        assert (result.exit_code, result.stdout) == (1, "")
        (line,) = result.stderr.splitlines()
        assert line.startswith("peeklock: ")
        assert not data.exists()
        return line

    def test_a_folder_that_cannot_be_made_or_written(self, tmp_path: Path, log: Path) -> None:
        log.write_text("no folder")
        for folder in (log / "below", Path("/proc/nowrite")):
            line = self.start(tmp_path / "data", folder)
            assert f"cannot write the event log at {folder}: " in line

    @pytest.mark.parametrize(
        ("data", "to", "how"),
        [
            ("data", "data", "are the same folder"),
            ("data", "other/../data", "are the same folder"),
            ("data", "data/log", "are nested"),
            ("log/data", "log", "are nested"),
        ],
    )
    def test_log_and_data_that_are_not_apart(self, tmp_path: Path, data: str, to: str, how: str) -> None:
        line = self.start(tmp_path / data, tmp_path / to)
        assert f"the event log {tmp_path / to} and the data {tmp_path / data} {how}" in line

    def test_the_log_of_another_store(self, tmp_path: Path, log: Path) -> None:
        """Also while that one's exporter writes there, which is not disturbed."""
        (tmp_path / "first").mkdir()
        folder = LogFolder(log)
        assert folder.take(FolderSource(tmp_path / "first"))
        before = sorted(log.iterdir())
        line = self.start(tmp_path / "second", log)
        assert f"{log} is the event log of another store than the store {tmp_path / 'second'}: " in line
        assert sorted(log.iterdir()) == before
        LogFolder(log).check(tmp_path / "first", FolderSource(tmp_path / "first"))
        folder.release()

    def test_segments_that_say_not_whose_they_are(self, tmp_path: Path, log: Path) -> None:
        hour = log / "event_date=2026-11-22" / "event_hour=03"
        hour.mkdir(parents=True)
        (hour / f"events-{1:020}-{1:020}.parquet").touch()
        assert "that names its store" in self.start(tmp_path / "second", log)

    def test_no_pyarrow(self, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        assert "pip install 'peeklock[capture]'" in self.start(tmp_path / "data", log)
        assert not log.exists()

    def test_what_is_checked_needs_no_pyarrow_in_the_broker(self) -> None:
        code = "import sys, peeklock.capture.folder; sys.exit('pyarrow' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path) -> None:
    """Req: X-03"""
    write_store(tmp_path / "data", [EPOCH])
    (tmp_path / "pyarrow.py").write_text("raise ImportError('no pyarrow here')")
    exporter = subprocess.run(
        [sys.executable, "-m", "peeklock.capture", f"--data={tmp_path / 'data'}", f"--to={tmp_path / 'log'}"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert exporter.returncode == 1
    assert exporter.stdout.startswith("failed no pyarrow here: ")
    assert "pip install 'peeklock[capture]'" in exporter.stdout
    assert '"level": "error"' in exporter.stderr
