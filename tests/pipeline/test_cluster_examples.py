"""The jobs under spark-submit, and the declared pipeline of examples/pipeline."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import peeklock.pipeline
from tests.pipeline.folds import fold_lives, fold_minutes
from tests.pipeline.synthetic import make_log, write_segments
from tests.spark.processes import Socket, listening, needs_proc
from tests.spark_session import QUICK_JAVA

pytestmark = [
    pytest.mark.spark,
    needs_proc,
]

EXAMPLES = Path(__file__).parents[2] / "examples/pipeline"
PROGRAMS = Path(sys.executable).parent
RUN_S_MAX = 140.0


def start(*command: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; require that it and all that it starts listen on loopback alone."""
    from peeklock.spark.java import use_java

    use_java()
    output = folder / "output.log"
    ports: set[Socket] = set()
    with output.open("wb") as out:
        process = subprocess.Popen(
            [*map(str, command)],
            cwd=folder,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    ends_s = time.monotonic() + RUN_S_MAX
    while process.poll() is None:
        if time.monotonic() > ends_s:
            process.kill()
        ports |= listening(process.pid)
        time.sleep(1)  # the program has no clock that could be moved
    assert ports
    assert [each for each in ports if not each.is_on_loopback] == []
    return subprocess.CompletedProcess([*map(str, command)], process.returncode, output.read_text(), "")


@pytest.fixture(scope="module")
def log() -> pa.Table:
    return make_log(messages=1_000, seed=9)


@pytest.mark.long
def test_a_job_runs_under_spark_submit(log: pa.Table, tmp_path: Path) -> None:
    """Req: X-05"""
    write_segments(tmp_path / "events", log)
    done = start(
        PROGRAMS / "spark-submit",
        *("--master", "local[2]", "--driver-memory", "1g", "--driver-java-options", QUICK_JAVA),
        *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"),
        Path(peeklock.pipeline.__file__).with_name("__main__.py"),
        *("metrics", "--from", tmp_path / "events", "--to", tmp_path / "metrics"),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    assert "Totals" in done.stdout
    assert (tmp_path / "metrics.png").exists()
    assert pq.ParquetDataset(tmp_path / "metrics").read().num_rows == len(fold_minutes(log))


@pytest.mark.soak
@pytest.mark.timeout(300)  # two starts of a Spark with a catalog, 20 s each on an idle machine
def test_the_declared_pipeline_adds_what_is_new(log: pa.Table, tmp_path: Path) -> None:
    """Req: X-04"""
    pytest.importorskip("grpc", reason="needs pip install 'pyspark[pipelines]'")
    segments = write_segments(tmp_path / "events", log, rows=2_000)
    late = segments[-1].read_bytes()
    segments[-1].unlink()
    project = shutil.copytree(EXAMPLES, tmp_path / "project")
    spec = (project / "spark-pipeline.yml").read_text()
    spec = spec.replace("/tmp/events", str(tmp_path / "events"))
    spec = spec.replace("/tmp/peeklock-pipeline-storage", str(tmp_path / "storage"))
    (project / "spark-pipeline.yml").write_text(spec)
    for _ in range(2):
        lasting = ("--conf", "spark.sql.catalogImplementation=hive")
        # It starts a server of Spark Connect, by default on every interface.
        loopback = ("--conf", "spark.connect.grpc.binding.address=127.0.0.1")
        done = start(PROGRAMS / "spark-pipelines", "run", *lasting, *loopback, folder=project)
        assert done.returncode == 0, done.stdout
        segments[-1].write_bytes(late)
    warehouse = project / "spark-warehouse"
    assert pq.ParquetDataset(warehouse / "events").read().num_rows == len(log)
    assert pq.ParquetDataset(warehouse / "lives").read().num_rows == len(fold_lives(log))
    reasons = pq.ParquetDataset(warehouse / "dead_letter_reasons").read()
    dead = sum(life.end == "dead_lettered" for life in fold_lives(log).values())
    assert sum(reasons["messages"].to_pylist()) == dead
