"""A standalone cluster of Spark on loopback: a master, and workers with a core each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from peeklock.spark.java import use_java
from tests.spark_session import QUICK_JAVA

ROOT = Path(__file__).parents[2]
START_S_MAX = 120.0


@dataclass(frozen=True)
class Standalone:
    """A cluster that runs."""

    url: str
    master: int
    workers: tuple[int, ...]
    """Process ids."""
    environment: dict[str, str]
    """For drivers."""


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Standalone]:
    """Run a cluster."""
    use_java()
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",  # executors start in folders of their own
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
    }
    with ExitStack() as stack:

        def start(name: str, kind: str, *arguments: str, ready: str) -> tuple[int, re.Match[str]]:
            """Start a daemon; return its process id, and the line that says that it is ready."""
            log = folder / f"{name}.log"
            own = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
            with log.open("wb") as out:
                process = subprocess.Popen(
                    [Path(pyspark.__file__).parent / "bin/spark-class", kind, *own, *arguments],
                    cwd=folder,
                    env=environment,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            return process.pid, _line(log, ready)

        master, line = start(
            "master", "org.apache.spark.deploy.master.Master", ready=r"spark://127\.0\.0\.1:\d+"
        )
        pids = []
        for number in range(workers):
            name = f"worker-{number}"
            limits = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / name))
            kind = "org.apache.spark.deploy.worker.Worker"
            ready = "Successfully registered with master"
            pids.append(start(name, kind, *limits, line[0], ready=ready)[0])
        yield Standalone(line[0], master, tuple(pids), environment)


def _line(log: Path, pattern: str) -> re.Match[str]:
    """Wait until a daemon of another process has logged a line."""
    ends_s = time.monotonic() + START_S_MAX
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < ends_s, log.read_text()
        time.sleep(0.05)
    return found
