"""The demo's last act: Spark over the event log that the broker wrote meanwhile.

Owns: which jobs are run, in which order, and how that is told. Must not know: what the jobs compute.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

JOBS = (
    ("lives", "one row for the life of each message"),
    ("metrics", "percentiles for each queue and minute"),
    ("audit", "does the log bear out what the broker promises?"),
)


class SparkUnusable(Exception):
    """There is no Spark, or no Java for it; the text says what to do."""


def check_spark() -> None:
    """Find out at the start whether the last act can be played. Raises: SparkUnusable."""
    try:
        import pyspark  # noqa: F401  # only asked whether it is there

        from peeklock.spark.java import JavaMissing, find_java
    except ImportError as error:
        raise SparkUnusable(
            f"the demo ends with Spark, which is not installed ({error}): run pip install 'peeklock[spark]', "
            f"or leave that part out with --broker-only"
        ) from None
    try:
        find_java()
    except JavaMissing as error:
        raise SparkUnusable(f"{error} Or leave Spark out with --broker-only.") from None


def prove(events: Path, folder: Path, console: Console) -> list[str]:
    """Run the jobs over an event log and let them print; answer what is wrong, nothing if all is well.

    Their tables go to `folder`. The plot is kept beyond it.
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
        f"the log and the tables go with the demo's folder; the plot stays: {plot}",
        highlight=False,
        soft_wrap=True,
    )
    return faults
