"""The jobs over the event log as commands: what they print, their statuses, their words for what is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from peeklock.amqp.message_writing import encode_message
from peeklock.cli import main
from peeklock.client.connection import BlockingConnection
from peeklock.pipeline.command import pipeline
from peeklock.testing.served import ServedBroker
from tests.pipeline.handmade import Hand
from tests.pipeline.synthetic import make_log, write_segments
from tests.spark_session import QUICK_JAVA

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/pipeline.md"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["pipeline", *map(str, arguments)])


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("events")
    write_segments(folder, make_log(messages=1_500, seed=8), rows=2_000)
    return folder


def test_help_needs_no_spark() -> None:
    code = "import sys; from click.testing import CliRunner; from peeklock.cli import main; "
    code += "print(CliRunner().invoke(main, ['pipeline', '--help']).output); print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lives" in done.stdout
    assert done.stdout.rstrip().endswith("False")


def test_serve_loads_nothing_of_the_jobs() -> None:
    code = "import sys, peeklock.cli; print([name for name in sys.modules if 'pipeline' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["lives", "--from", "x", "--to", "y"], 1),
        (["metrics", "--from", "x", "--to", "y"], 1),
        (["deadletters", "--from", "x"], 1),
        (["audit", "--from", "x"], 2),
        (["capture", "--entity", "q", "--to", "y"], 1),
        (["replay", "--from", "x", "--entity", "q"], 1),
        (["resubmit", "--entity", "q"], 1),
    ],
)
def test_a_job_without_spark_says_how_to_get_it(arguments: list[str], status: int) -> None:
    done = without_spark(*arguments)
    assert done.returncode == status, done.stderr
    assert re.fullmatch(
        r"peeklock: Spark is not installed .*: run pip install 'peeklock\[spark\]'\n", done.stderr
    )


def test_release_does_without_spark() -> None:
    done = without_spark("release", "--entity", "q", "--connection-string", "nonsense")
    assert done.returncode == 1
    assert re.fullmatch(r"peeklock: the connection string .*\n", done.stderr)


def test_cursors_shows_whose_they_are_and_what_they_hold(
    broker: ServedBroker, own: BlockingConnection, make_queue: Callable[..., str]
) -> None:
    """Req: X-06"""
    queue = make_queue()
    sender = own.sender(queue)
    for number in range(5):
        sender.send(encode_message(data=b"%d" % number))
    sender.flush()
    broker.advance(timedelta(minutes=3))
    node = own.management(queue)
    node.request("peeklock:cursor-take", {"cursor": "lake", "owner": "host:1"})
    asked = {"cursor": "lake", "owner": "host:1", "max-messages": 3, "max-bytes": 1 << 20}
    node.request("peeklock:cursor-claim", asked)
    settings = {"SERVICEBUS_CONNECTION_STRING": broker.connection_string}
    done = CliRunner().invoke(main, ["pipeline", "cursors", "--entity", queue], env=settings)
    assert done.exit_code == 0, done.output
    for text in ("lake", "host:1 (has not read)", "0 s ago", " 1 ", " 3 ", " 5 ", "3 min"):
        assert text in done.output
    none = CliRunner().invoke(main, ["pipeline", "cursors", "--entity", make_queue()], env=settings)
    assert "has no cursors." in none.output
    gone = CliRunner().invoke(main, ["pipeline", "cursors", "--entity", "gone"], env=settings)
    assert gone.exit_code == 1
    assert "amqp:not-found" in gone.output


def test_cursors_does_without_spark() -> None:
    done = without_spark("cursors", "--entity", "q", "--connection-string", "nonsense")
    assert done.returncode == 1
    assert re.fullmatch(r"peeklock: the connection string .*\n", done.stderr)


def without_spark(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None; "
    code += "from peeklock.cli import main; main(['pipeline', *sys.argv[1:]])"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SERVICEBUS_CONNECTION_STRING": "ignored"},
    )


@pytest.mark.parametrize("name", sorted(pipeline.commands))
def test_each_job_and_option_is_on_its_page(name: str) -> None:
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    told = sections["Common options"] + sections[f"`peeklock pipeline {name}`"]
    options = [one for one in pipeline.commands[name].params if isinstance(one, click.Option)]
    assert [one.opts[0] for one in options if f"`{one.opts[0]}" not in told] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["lives", "--from", "x"], "Missing option '--to'"),
        (
            ["lives", "--from", "x", "--to", "y", "--stream", "--once"],
            "--stream and --once exclude each other",
        ),
        (["lives", "--from", "x", "--to", "y", "--checkpoint", "z"], "requires --stream or --once"),
        (["lives", "--from", "x", "--to", "y", "--once", "--overwrite"], "only add"),
        (["lives", "--from", "x", "--to", ""], "the name of the folder is empty"),
        (["metrics", "--from", "x", "--to", "y", "--conf", "memory"], "is not NAME=VALUE"),
        (["metrics", "--from", "x", "--to", "y", "--plot", "a", "--no-plot"], "exclude each other"),
        (["deadletters"], "give --from LOG, or --connection-string"),
        (["deadletters", "--from", "x", "--once"], "need --to DIR"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments: list[str], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in re.sub(r"\s+", " ", result.output)


@pytest.mark.spark
@pytest.mark.parametrize(
    "job", ["lives", *(pytest.param(job, marks=pytest.mark.long) for job in ("metrics", "deadletters"))]
)
def test_a_job_writes_a_table_and_a_picture_and_prints_a_summary(
    spark: Any, log: Path, tmp_path: Path, job: str
) -> None:
    """Req: X-04"""
    result = run(job, "--from", log, "--to", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "orders" in result.output
    assert "3 segments, batches 1 to" in result.output
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert spark.read.parquet(str(tmp_path / "out")).count() > 10
    again = run(job, "--from", log, "--to", tmp_path / "out", "--no-plot")
    assert (again.exit_code, "is not empty: give another --to" in again.output) == (1, True)
    assert run(job, "--from", log, "--to", tmp_path / "out", "--no-plot", "--overwrite").exit_code == 0


@pytest.mark.spark
def test_one_entity_is_told_with_its_sub_queues(spark: Any, log: Path, tmp_path: Path) -> None:
    result = run("lives", "--from", log, "--to", tmp_path / "out", "--entity", "orders", "--no-plot")
    assert result.exit_code == 0, result.output
    found = {row.entity for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert found == {"orders", "orders/$deadletterqueue"}


@pytest.mark.spark
def test_triage_needs_no_table(spark: Any, log: Path) -> None:
    result = run("deadletters", "--from", log)
    assert result.exit_code == 0, result.output
    assert re.search(r"entity .* orders ", result.output)  # wider than the console, so turned
    assert re.search(r"reason .*(BadAddress|NoSuchCustomer|AmountMismatch)", result.output)


@pytest.mark.spark
def test_once_goes_on_where_it_ended(spark: Any, log: Path, tmp_path: Path) -> None:
    arguments = ["lives", "--from", log, "--to", tmp_path / "out", "--once", "--no-plot"]
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    count = spark.read.parquet(str(tmp_path / "out")).count()
    assert count > 100
    assert run(*arguments).exit_code == 0
    assert spark.read.parquet(str(tmp_path / "out")).count() == count


@pytest.mark.spark
def test_bad_logs_are_told_by_name(spark: Any, log: Path, tmp_path: Path) -> None:
    to = tmp_path / "out"
    missing = run("lives", "--from", tmp_path / "none", "--to", to)
    assert (missing.exit_code, "there is no folder" in missing.output) == (1, True)
    (tmp_path / "empty").mkdir()
    empty = run("lives", "--from", tmp_path / "empty", "--to", to)
    assert (empty.exit_code, "is empty: no events-*.parquet" in empty.output) == (1, True)
    unknown = run("lives", "--from", log, "--to", to, "--entity", "order")
    assert (unknown.exit_code, "has no entity 'order'; it has" in unknown.output) == (1, True)
    inside = run("lives", "--from", log, "--to", log / "lives")
    assert (inside.exit_code, "are nested" in inside.output) == (1, True)


@pytest.mark.spark
@pytest.mark.parametrize("how", ["cut", "spoilt", "zeroed", "emptied"])
def test_a_damaged_segment_is_named_and_not_skipped(spark: Any, tmp_path: Path, how: str) -> None:
    paths = write_segments(tmp_path / "log", make_log(messages=1_500, seed=8), rows=2_000)
    path, data = paths[1], paths[1].read_bytes()
    damaged = {
        "cut": data[: len(data) // 2],
        "spoilt": data[:30_000] + bytes([data[30_000] ^ 1]) + data[30_001:],
        "zeroed": bytes(len(data)),
        "emptied": b"",
    }
    path.write_bytes(damaged[how])
    for mode in ([], ["--once"]):
        to = tmp_path / f"out{len(mode)}"
        result = run("lives", "--from", tmp_path / "log", "--to", to, "--no-plot", *mode)
        assert result.exit_code == 1, result.output
        assert f"segment {path} is damaged" in result.output
    audited = run("audit", "--from", tmp_path / "log")
    assert (audited.exit_code, f"segment {path} is damaged" in audited.output) == (2, True)


@pytest.mark.spark
@pytest.mark.long
def test_standard_error_holds_our_lines_alone(tmp_path: Path) -> None:
    """In a separate process, whose Java and Python workers would write there too."""
    paths = write_segments(tmp_path / "log", make_log(messages=1_500, seed=8), rows=2_000)
    data = bytearray(paths[1].read_bytes())
    data[30_000] ^= 1
    paths[1].write_bytes(data)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "peeklock.pipeline", "lives", "--from", tmp_path / "log"),
            *("--to", tmp_path / "out", "--no-plot"),
            *("--master", "local[1]", "--conf", "spark.driver.memory=1g"),
        ],
        capture_output=True,
        text=True,
        check=False,
        # A session of this process has noted its own logging configuration there.
        env={**os.environ, "SPARK_SUBMIT_OPTS": QUICK_JAVA},
    )
    assert done.returncode == 1
    progress, told = done.stderr.splitlines()
    assert progress.startswith("3 segments, batches 1 to")
    assert told.startswith(f"peeklock: segment {paths[1]} is damaged")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("nonsense = 3", "name `nonsense` cannot be resolved"),
        ("entity = = 3", "Syntax error at or near '='"),
        ("entity", "Filter expression"),
    ],
)
def test_a_condition_that_spark_refuses_is_told_in_a_line(
    spark: Any, tmp_path: Path, where: str, told: str
) -> None:
    log = make_log(messages=60, seed=2, bodies=True, topics=(), session_entities=())
    write_segments(tmp_path / "log", log)
    result = run(
        *("replay", "--from", tmp_path / "log", "--entity", "q", "--where", where),
        *("--dry-run", "--connection-string", "ignored"),
    )
    assert result.exit_code == 1
    ours = [line for line in result.output.splitlines() if line.startswith("peeklock: ")]
    assert len(ours) == 1
    assert ours[0].startswith(f"peeklock: --where {where!r}: ")
    assert told in ours[0]
    assert "SQLSTATE" not in ours[0]


@pytest.mark.spark
def test_missing_segments_are_told(spark: Any, tmp_path: Path) -> None:
    paths = write_segments(tmp_path / "log", make_log(messages=1_500, seed=8), rows=2_000)
    paths[1].unlink()
    result = run("metrics", "--from", tmp_path / "log", "--to", tmp_path / "out", "--no-plot")
    assert result.exit_code == 0, result.output
    assert re.search(r"batches \d+ to \d+ are missing: no segment has them", result.output)


@pytest.mark.spark
def test_the_audit_is_a_command(spark: Any, log: Path, tmp_path: Path) -> None:
    result = run("audit", "--from", log, "--report", tmp_path / "verdict.json")
    assert result.exit_code == 0, result.output
    assert '"exit_status": 0' in (tmp_path / "verdict.json").read_text()


@pytest.mark.spark
def test_a_gap_is_told(spark: Any, tmp_path: Path) -> None:
    hand = Hand()
    hand.add("enqueued", "jobs", 1)
    hand.add("gap", sequence_number=3, related_sequence_number=9, reason="drop-and-say")
    hand.write(tmp_path / "log")
    result = run("lives", "--from", tmp_path / "log", "--to", tmp_path / "out", "--no-plot")
    assert "batches 3 to 9 were not captured: drop-and-say" in result.output
