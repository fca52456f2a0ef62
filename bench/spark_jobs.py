"""`python -m bench.spark_jobs`: audit and metrics over a long event log, and the sink with a broker.

Owns: a synthetic log of some millions of events, rows of 1 KiB for the sink, a local Spark of two workers.
Each job runs in a fresh session, as a user starts it, without Spark's own start.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from bench.process_memory import PeakMemory
from bench.spark_browse import QUEUE
from peeklock.demo.broker import BrokerProcess
from peeklock.pipeline.audit.job import AuditOptions, run
from peeklock.pipeline.command import pipeline
from peeklock.pipeline.events import read_events
from peeklock.spark.session import spark_session
from tests.pipeline.synthetic import write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AUDIT_S_AIM = 60
"""For ten million events. Source: figures of the pipeline."""

AUDIT_RATIO_AIM = 3
"""Times a count of the events of each life, which reads, exchanges and groups the same rows. Our choice."""

AUDIT_GIB_AIM = 3
"""Of Java and Python together. Our choice."""

METRICS_AIM = 200_000
"""Events a second. Source: figures of the pipeline."""

SINK_AIM = 10_000
"""Messages a second, acknowledged. Source: figures of the pipeline."""


def audit(log: Path) -> None:
    """Audit the log, which is clean, beside a count of the events of each life, before and after it."""
    spark = spark_session("audit", "local[2]", **{"spark.driver.memory": "1500m"})
    counted_s = [count_lives(spark, log)]
    marks = [("start", time.perf_counter())]
    with PeakMemory() as peak:
        verdict = run(
            spark, AuditOptions((str(log),)), step=lambda name: marks.append((name, time.perf_counter()))
        )
    marks.append(("end", time.perf_counter()))
    counted_s.append(count_lives(spark, log))
    spark.stop()
    assert not verdict.findings, verdict
    for (name, began), (_, ended) in pairwise(marks):
        print(f"  {name}: {ended - began:.1f} s", flush=True)
    seconds = marks[-1][1] - marks[0][1]
    ratio = seconds / (sum(counted_s) / len(counted_s))
    counts = " and ".join(f"{each:.1f}" for each in counted_s)
    of_ten_millions = seconds / verdict.events * 1e7
    print(
        f"audit of {verdict.events} events: {seconds:.1f} s, {of_ten_millions:.1f} s for 10 M (aim "
        f"{AUDIT_S_AIM}); count of the events of each life: {counts} s; ratio {ratio:.2f} (aim "
        f"{AUDIT_RATIO_AIM}); peak {peak.bytes / 2**30:.2f} GiB (aim {AUDIT_GIB_AIM})",
        flush=True,
    )


def count_lives(spark: SparkSession, log: Path) -> float:
    """Count the events of each life; return how long it takes."""
    started = time.perf_counter()
    lives = read_events(spark, str(log)).groupBy("namespace", "entity", "sequence_number").count()
    lives.selectExpr("count(*)", "sum(count)").collect()
    return time.perf_counter() - started


def metrics(log: Path, events: int, folder: Path) -> None:
    """Write the table of figures per minute, without a plot."""
    spark = spark_session("metrics", "local[2]", **{"spark.driver.memory": "2g"})
    started = time.perf_counter()
    arguments = ["metrics", "--from", str(log), "--to", str(folder / "metrics"), "--no-plot"]
    pipeline.main(arguments, standalone_mode=False)
    rate = events / (time.perf_counter() - started)
    spark.stop()
    print(f"metrics: {rate:,.0f} events/s (aim {METRICS_AIM:,})", flush=True)


def sink(folder: Path, messages: int, rounds: int) -> None:
    """Write a table of bodies of 1 KiB into a queue."""
    configuration = folder / "broker.json"
    configuration.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": [{"Name": QUEUE}]}]}})
    )
    with BrokerProcess(folder, (f"--config={configuration}",)) as broker:
        spark = spark_session("sink", "local[2]", **{"spark.driver.memory": "1g"})
        rows = spark.range(messages).selectExpr(
            "CAST(repeat('x', 1024) AS BINARY) AS body", "CAST(id AS STRING) AS messageId"
        )
        for number in range(rounds):
            started = time.perf_counter()
            writer = rows.write.format("servicebus").mode("append")
            writer.options(connectionString=broker.connection_string, entity=QUEUE).save()
            rate = messages / (time.perf_counter() - started)
            print(
                f"sink, round {number + 1}: {rate:,.0f} messages/s acknowledged (aim {SINK_AIM:,})",
                flush=True,
            )
        spark.stop()


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log-messages", type=int, default=2_600_000, help="four events each, about")
    parser.add_argument("--messages", type=int, default=200_000, help="for the sink")
    parser.add_argument("--rounds", type=int, default=3, help="of the sink")
    parser.add_argument("--audit", type=Path, metavar="LOG", help="audit this clean event log, and no more")
    arguments = parser.parse_args()
    if arguments.audit is not None:
        audit(arguments.audit)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        events = len(write_log(folder / "log", messages=arguments.log_messages))
        audit(folder / "log")
        metrics(folder / "log", events, folder)
        sink(folder, arguments.messages, arguments.rounds)


if __name__ == "__main__":
    main()
