"""The jobs, the source and the sink over Spark Connect: no Java in the process of the job.

One process runs all jobs of a test, since a process that has had a session of its own Java cannot have one of
Spark Connect.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from peeklock.client.connection import BlockingConnection
from peeklock.testing.served import ServedBroker
from tests.pipeline.folds import fold_lives
from tests.pipeline.lake import committed_rows
from tests.pipeline.synthetic import make_log, write_segments
from tests.pipeline.test_queue_jobs import dead_letter, ids, receive, send
from tests.spark.connect_server import connect_server
from tests.spark.processes import listening, needs_proc, tree

pytestmark = [pytest.mark.spark, pytest.mark.soak]

PROGRAM = """
import json, sys
from click.testing import CliRunner
from peeklock.cli import main

for arguments in json.loads(sys.stdin.read()):
    done = CliRunner().invoke(main, ["pipeline", *arguments])
    print(json.dumps([done.exit_code, f"{done.output} {done.exception!r}"]))
import pyspark
assert pyspark.SparkContext._active_spark_context is None, "a Java was started here"
"""

STREAM = """
import sys
from pyspark.sql import SparkSession

connection, source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
rows = spark.readStream.format("servicebus").option("connectionString", connection).option("entity", source)
rows = rows.option("consumerName", "connected").load().select("body", "messageId")
sink = rows.writeStream.format("servicebus").option("connectionString", connection).option("entity", target)
query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
assert query.awaitTermination(60)
assert query.exception() is None, query.exception()
"""


@dataclass
class Connected:
    """A server of Spark Connect, and a broker that it reaches."""

    address: str
    broker: ServedBroker

    def environment(self) -> dict[str, str]:
        """Return what a process needs to find server and broker."""
        return {
            **os.environ,
            "SPARK_REMOTE": self.address,
            "SERVICEBUS_CONNECTION_STRING": self.broker.connection_string,
        }

    def python(self, program: str, *arguments: object, given: str = "") -> str:
        """Run a program whose default session is one of the server."""
        done = subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env=self.environment(),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, *jobs: list[object]) -> list[tuple[int, str]]:
        """Run jobs in a process; return their exit statuses and outputs."""
        given = json.dumps([[str(argument) for argument in job] for job in jobs])
        lines = self.python(PROGRAM, given=given).splitlines()
        return [tuple(json.loads(line)) for line in lines]

    def do(self, *jobs: list[object]) -> list[str]:
        """Run jobs that must succeed; return their outputs."""
        done = self.run(*jobs)
        assert [output for status, output in done if status] == []
        return [output for _, output in done]


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory, broker: ServedBroker) -> Iterator[Connected]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield Connected(address, broker)


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, without its checkpoint."""
    files = [file for file in folder.rglob("*.parquet") if "_checkpoint" not in file.parts]
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def test_jobs_over_the_event_log(connected: Connected, tmp_path: Path) -> None:
    """A whole run, and a stream that goes on where it was, have the lives of a fold.

    Req: X-05
    """
    log = make_log(messages=600, seed=30)
    early, late = write_segments(tmp_path / "all", log, rows=len(log) // 2 + 1)
    folder = tmp_path / "events"
    bring(early, tmp_path / "all", folder)
    following = ["lives", "--from", folder, "--to", tmp_path / "followed", "--once", "--no-plot"]
    connected.do(following)
    bring(late, tmp_path / "all", folder)
    _, _, _, audit, dead = connected.do(
        following,
        ["lives", "--from", folder, "--to", tmp_path / "lives"],
        ["metrics", "--from", folder, "--to", tmp_path / "metrics", "--no-plot"],
        ["audit", "--from", folder],
        ["deadletters", "--from", folder],
    )
    expected = {key: life.end for key, life in fold_lives(log).items()}
    whole = {life_of(row): row["end_type"] for row in rows(tmp_path / "lives")}
    assert whole == expected
    followed = [life_of(row) for row in rows(tmp_path / "followed")]
    assert sorted(followed) == sorted(key for key, end in expected.items() if end is not None)
    assert (tmp_path / "lives.png").exists()
    assert rows(tmp_path / "metrics")
    assert "No violation in" in audit
    assert "Dead letters" in dead


def bring(segment: Path, source: Path, target: Path) -> None:
    """Copy a segment into a log."""
    place = target / segment.relative_to(source)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(segment, place)


def life_of(row: dict[str, Any]) -> tuple[str, int]:
    return row["entity"], row["sequence_number"]


@needs_proc
def test_the_server_listens_on_loopback_alone(connected: Connected) -> None:
    ports = set.union(*map(listening, tree(os.getpid())[1:]))
    assert int(connected.address.rpartition(":")[2]) in {each.port for each in ports}
    assert [each for each in ports if not each.is_on_loopback] == []


def test_what_cannot_run_says_why(connected: Connected, tmp_path: Path) -> None:
    log = tmp_path / "events"
    write_segments(log, make_log(messages=50, seed=3), rows=2_000)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    done = connected.run(
        ["lives", "--from", tmp_path / "nowhere", "--to", tmp_path / "a"],
        ["lives", "--from", log, "--to", tmp_path / "full"],
        ["lives", "--from", log, "--to", "gopher://host/folder"],
        ["metrics", "--from", log, "--to", tmp_path / "b", "--once", "--entity", "gone"],
    )
    told = (
        "there is no folder",
        "is not empty",
        "a Python worker of the Spark Connect server cannot use 'gopher://host/folder'",
        "the event log has no entity 'gone'",
    )
    for (status, output), text in zip(done, told, strict=True):
        assert status == 1
        assert text in output


def test_a_server_that_does_not_answer_is_named() -> None:
    job = subprocess.Popen(
        [sys.executable, "-m", "peeklock", "pipeline", "audit", "--from=x", "--remote=sc://127.0.0.1:1"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert job.stderr is not None
    try:
        line = job.stderr.readline()
    finally:
        job.kill()
        job.communicate()
    assert line.startswith("peeklock: no answer yet from sc://127.0.0.1:1;")


def test_jobs_over_queues(
    connected: Connected,
    own: BlockingConnection,
    make_queue: Callable[..., str],
    client: Any,
    tmp_path: Path,
) -> None:
    """Req: X-04"""
    source, target, copies = make_queue(), make_queue(), make_queue()
    send(own, source, 60)
    lake = tmp_path / "lake"
    capture = ["capture", "--entity", source, "--to", lake, "--encoded", "--max-messages", 20]
    first, again, sent = connected.do(capture, capture, ["replay", "--from", lake, "--entity", target])
    assert "captured up to batch" in first
    assert "nothing new" in again
    assert f"60 messages sent to {target}" in sent
    assert receive(own, source) == []
    assert len(committed_rows(lake)) == 60
    dead_letter(client, target, 10, "tired")
    grouped, resent = connected.do(
        ["deadletters", "--entity", target], ["resubmit", "--entity", target, "--reason", "tired"]
    )
    assert "tired" in grouped
    assert f"10 messages sent to {target}" in resent
    connected.python(STREAM, connected.broker.connection_string, target, copies, tmp_path / "checkpoint")
    assert receive(own, target) == []
    arrived = ids(receive(own, copies))
    assert len(arrived) == len(set(arrived)) == 60


def test_a_killed_job_goes_on_where_it_was(
    connected: Connected, own: BlockingConnection, make_queue: Callable[..., str], tmp_path: Path
) -> None:
    """The server runs the query of a job that is gone; the next run of the job ends it and goes on.

    Req: X-02
    """
    source, lake = make_queue(), tmp_path / "lake"
    send(own, source, 40)
    capture = ["capture", "--entity", source, "--to", lake, "--max-messages", 10]
    ends_s = time.monotonic() + 200
    while not committed_rows(lake) and time.monotonic() < ends_s:
        job = subprocess.Popen(
            [sys.executable, "-m", "peeklock", "pipeline", *map(str, capture), "--stream"],
            env=connected.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not committed_rows(lake) and job.poll() is None and time.monotonic() < ends_s:
            time.sleep(0.05)
        status = job.poll()
        job.kill()
        output, _ = job.communicate()
        assert status is None, output
    assert committed_rows(lake)
    send(own, source, 40, kind="b")
    connected.do(capture)
    numbers = [row["sequenceNumber"] for row in committed_rows(lake)]
    assert sorted(numbers) == sorted(set(numbers))
    assert len(numbers) == 80
    assert receive(own, source) == []
