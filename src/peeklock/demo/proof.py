"""Runs Spark's jobs over the event log that the broker wrote during the demo."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

JOBS = (
    ("lives", "one row for the life of each message"),
    ("metrics", "percentiles for each queue and minute"),
    ("audit", "does the log agree with the broker's guarantees?"),
)


class SparkUnusable(Exception):
    """Spark or Java is missing; the text says what to do."""


def check_spark() -> None:
    """Check that Spark can run. Raises: SparkUnusable."""
    try:
        import pyspark  # noqa: F401  # is it installed?

        from peeklock.spark.java import JavaMissing, find_java
    except ImportError as error:
        raise SparkUnusable(
            f"the demo ends with Spark, which is not installed ({error}): run pip install 'peeklock[spark]', "
            f"or skip that part with --broker-only"
        ) from None
    try:
        find_java()
    except JavaMissing as error:
        raise SparkUnusable(f"{error} Or skip Spark with --broker-only.") from None


def prove(events: Path, folder: Path, console: Console) -> list[str]:
    """Run the jobs over an event log; they print their results. Return what is wrong, as texts.

    Their tables go to `folder`, the plot to a folder that stays.
    """
    from peeklock.pipeline.command import pipeline
    from peeklock.spark.session import spark_session

    plot = Path(tempfile.mkdtemp(prefix="peeklock-plot-")) / "queues.png"
    arguments = {
        "lives": ["--to", str(folder / "lives"), "--plot", str(plot)],
        "metrics": ["--to", str(folder / "metrics"), "--no-plot"],
        "audit": [],
    }
    faults = []
    spark = spark_session("peeklock demo", "local[*]")
    try:
        for job, purpose in JOBS:
            console.print(
                f"[bold]peeklock pipeline {job}[/] --from {events}: {purpose}",
                highlight=False,
                soft_wrap=True,
            )
            try:
                pipeline.main([job, "--from", str(events), *arguments[job]], standalone_mode=False)
            except SystemExit as end:
                if end.code:
                    faults.append(f"peeklock pipeline {job} ended with status {end.code}")
    finally:
        spark.stop()
    console.print(
        f"the log and the tables are deleted with the demo's folder; the plot stays: {plot}",
        highlight=False,
        soft_wrap=True,
    )
    return faults
