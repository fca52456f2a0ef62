"""The Spark source beside Spark's own Kafka source: `bench.spark_sources` in an environment of its own.

Owns: the version of Spark, its environment, and what is reported. Must not know: how a source is read.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.kafka import FETCH_S_MAX, kafka_missing
from bench.loadgen import BUILD
from bench.run import Run
from bench.systems import StartFailed

SPARK = "4.2.0"
"""The newest whose Kafka source could be fetched: 4.2.1 and 4.3.0 were refused. Both sources run on it."""

NEEDS = (f"pyspark[sql]=={SPARK}", "pandas<3", "pyarrow>=21")

ROOT = Path(__file__).resolve().parent.parent

MESSAGES = 200_000
PASSES = 5

FEWER = ", 7 columns"
"""Ends the name of a read with as many columns as Kafka's source has."""

_AIMS = {"batch": 0.9, "browse stream": 0.75, "cursor stream": 0.9}
AIMS = _AIMS | {f"{name}{FEWER}": aim for name, aim in _AIMS.items()}
"""Of the rates, as ratios to Kafka's."""

BESIDE = {name: "Kafka batch" if name.startswith("batch") else "Kafka stream" for name in AIMS}
"""What each of our reads is compared with."""

Figures = dict[str, float]
"""Of one read: rows a second (`rate`), and microseconds of CPU a row by process."""


def spark(run: Run) -> None:
    """Read 200,000 messages of 1 KiB into Parquet by Spark, in each mode, beside Spark's own Kafka source."""
    if missing := kafka_missing(SPARK):
        raise StartFailed(missing)
    arguments = [
        "--json",
        "--messages",
        str(run.scaled(MESSAGES)),
        "--passes",
        str(1 if run.quick else PASSES),
    ]
    command = [str(environment()), "-m", "bench.spark_sources", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise StartFailed(
            f"{' '.join(command[1:3])} ended with status {done.returncode}; see its output above"
        )
    passes: list[dict[str, Figures]] = json.loads(done.stdout.splitlines()[-1])
    for name, other in BESIDE.items():
        for each in passes:
            ours, theirs = each[name], each[other]
            scenario, add, of = f"Spark: {name}", run.results.add, "peeklock"
            add(scenario, "rate", "rows/s", of, ours["rate"], better="higher")
            add(scenario, "rate of Kafka", "rows/s", of, theirs["rate"], better="higher")
            ratio = ours["rate"] / theirs["rate"]
            add(scenario, "rate / Kafka's", "", of, ratio, better="higher", aim=AIMS[name])
            add(scenario, "CPU", "us/row", of, cpu_us(ours))
            add(scenario, "CPU of Kafka", "us/row", of, cpu_us(theirs))


def environment() -> Path:
    """Return the Python of the environment; make it the first time. Raises: StartFailed."""
    folder = BUILD / f"spark-{SPARK}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"bench: installing Spark {SPARK} (the first time takes some minutes)", flush=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [*pip, "--editable", str(ROOT), *NEEDS],
        ):
            try:
                subprocess.run(command, cwd=ROOT, check=True, timeout=2 * FETCH_S_MAX)
            except (OSError, subprocess.SubprocessError) as error:
                raise StartFailed(f"Spark {SPARK} was not installed: {error}") from error
        done.touch()
    return python


def ratios(passes: list[dict[str, Figures]]) -> dict[str, tuple[float, float, float, float]]:
    """Return of each of our reads rows a second, Kafka's, the ratio of the two, and that of the CPU times.

    All are medians of the passes that have both; a read above 1 is better than Kafka's.
    """
    found = {}
    for name, other in BESIDE.items():
        pairs = [(each[name], each[other]) for each in passes if name in each and other in each]
        if pairs:
            found[name] = (
                statistics.median(ours["rate"] for ours, _ in pairs),
                statistics.median(theirs["rate"] for _, theirs in pairs),
                statistics.median(ours["rate"] / theirs["rate"] for ours, theirs in pairs),
                statistics.median(cpu_us(theirs) / cpu_us(ours) for ours, theirs in pairs),
            )
    return found


def cpu_us(figures: Figures) -> float:
    """Return the CPU time of a row in all processes."""
    return sum(us for name, us in figures.items() if name != "rate")


SCENARIOS: dict[str, Callable[[Run], None]] = {"spark": spark}
