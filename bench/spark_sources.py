"""`python -m bench.spark_sources`: rows a second into Parquet beside Spark's own Kafka source, in one run.

Owns: a queue and a topic of as many messages of 1 KiB, and a local Spark of two workers that reads both in
turns, whose order alternates: as a batch, and as a stream with the trigger AvailableNow. A pass gives the
ratio of each of our modes to Kafka's. Each source has its own defaults, ours 21 columns and Kafka's 7; so
ours is also read with a schema of 7 columns that are alike. A message has an id, a content type and two
properties here, and a key and two headers in Kafka. The CPU time of the processes shows where a row costs,
and does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from bench.kafka import Kafka, source_jars
from bench.spark import AIMS, FEWER, MESSAGES, PASSES, Figures, ratios
from bench.spark_browse import BODY, QUEUE, fill
from peeklock.demo.broker import BrokerProcess
from peeklock.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS = 2

AS_KAFKA = (
    "body binary, sessionId string, entity string, partitionKey string, sequenceNumber bigint, "
    "enqueuedTime timestamp, state string"
)
"""As value, key, topic, partition, offset, timestamp and type of the timestamp."""


class Processes:
    """Those that share the work: the two brokers, Spark's Java, and its Python workers."""

    def __init__(self, java: int, brokers: Sequence[int]) -> None:
        self._java = java
        self._brokers = brokers

    def cpu_us(self) -> Figures:
        """Return the CPU time so far, with that of workers that have ended."""
        java, workers = _cpu_us(self._java)
        for pid in _below(self._java):
            with suppress(OSError):  # it has just ended
                workers += sum(_cpu_us(pid))
        return {"broker": sum(sum(_cpu_us(pid)) for pid in self._brokers), "Java": java, "workers": workers}


def _cpu_us(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process, and that of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, of_children, in_system = map(int, fields[11:15])  # man 5 proc
    tick_us = 1e6 / os.sysconf("SC_CLK_TCK")
    return (user + system) * tick_us, (of_children + in_system) * tick_us


def _below(pid: int) -> Iterator[int]:
    """Yield the processes that a process and its children have started, and that run."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from _below(child)


class Reads:
    """The reads of one session: each writes all messages into a new table and returns the seconds."""

    def __init__(self, spark: SparkSession, folder: Path, messages: int) -> None:
        self._spark = spark
        self._folder = folder
        self._messages = messages
        self.progress: list[Any] = []
        """Of the last stream."""

    def batch(self, source: str, options: dict[str, str], schema: str = "") -> float:
        """Read a batch, of all columns without a schema."""
        self.progress = []
        reader = self._spark.read.format(source).options(**options)
        rows = (reader.schema(schema) if schema else reader).load()
        started = time.perf_counter()
        rows.write.parquet(str(self._folder / "table"))
        return self._checked(time.perf_counter() - started)

    def stream(self, source: str, options: dict[str, str], schema: str = "") -> float:
        """Read a stream up to what is there, of all columns without a schema."""
        reader = self._spark.readStream.format(source).options(**options)
        rows = (reader.schema(schema) if schema else reader).load()
        writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{self._folder}/checkpoint")
        started = time.perf_counter()
        query = writer.trigger(availableNow=True).start(str(self._folder / "table"))
        query.awaitTermination()
        seconds = time.perf_counter() - started
        self.progress = query.recentProgress
        shutil.rmtree(self._folder / "checkpoint")
        return self._checked(seconds)

    def _checked(self, seconds: float) -> float:
        found = self._spark.read.parquet(str(self._folder / "table")).count()
        assert found == self._messages, f"{found} rows of {self._messages} messages"
        shutil.rmtree(self._folder / "table")
        return seconds


def measure(
    folder: Path, messages: int, passes: int, only: str, *, verbose: bool
) -> list[dict[str, Figures]]:
    """Return the figures of each read, by pass."""
    configuration = folder / "broker.json"
    queues = [{"Name": QUEUE}, {"Name": f"{QUEUE}-by-cursor"}]
    configuration.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": queues}]}})
    )
    jars = ",".join(map(str, sorted(source_jars(pyspark.__version__).glob("*.jar"))))
    with (
        BrokerProcess(folder, (f"--config={configuration}",)) as broker,
        Kafka(folder / "kafka", TASKS) as kafka,
    ):
        at = {"connectionString": broker.connection_string, "entity": QUEUE}
        there = {"kafka.bootstrap.servers": kafka.address, "subscribe": QUEUE, "startingOffsets": "earliest"}
        claimed = at | {"entity": f"{QUEUE}-by-cursor", "mode": "cursor"}
        spark = spark_session(
            "sources", f"local[{TASKS}]", **{"spark.driver.memory": "1g", "spark.jars": jars}
        )
        fill(broker.connection_string, messages)
        fill_topic(spark, kafka.address, messages)
        reads = Reads(spark, folder, messages)
        kinds: dict[str, Callable[[], float]] = {
            "Kafka batch": lambda: reads.batch("kafka", there),
            "batch": lambda: reads.batch("servicebus", at),
            "Kafka stream": lambda: reads.stream("kafka", there),
            "browse stream": lambda: reads.stream("servicebus", at | {"mode": "browse"}),
            "cursor stream": lambda: reads.stream("servicebus", claimed),
            f"batch{FEWER}": lambda: reads.batch("servicebus", at, AS_KAFKA),
            f"browse stream{FEWER}": lambda: reads.stream("servicebus", at | {"mode": "browse"}, AS_KAFKA),
            f"cursor stream{FEWER}": lambda: reads.stream("servicebus", claimed, AS_KAFKA),
        }
        assert broker.pid is not None
        processes = Processes(_java_pid(spark), (broker.pid, kafka.pid))
        found: list[dict[str, Figures]] = []
        for number in range(passes):
            found.append({})
            for name in [*kinds][:: 1 if number % 2 == 0 else -1]:
                if only not in name:
                    continue
                if name.startswith("cursor stream"):
                    fill(broker.connection_string, messages, f"{QUEUE}-by-cursor")
                before = processes.cpu_us()
                rate = messages / kinds[name]()
                # Less than before: a worker has ended for which nobody waited, so its time is lost.
                spent = {
                    each: max(0.0, us - before[each]) / messages for each, us in processes.cpu_us().items()
                }
                found[-1][name] = {"rate": rate, **spent}
                if verbose:
                    show(f"pass {number + 1}: {name}", found[-1][name], reads.progress)
        spark.stop()
        return found


def _java_pid(spark: SparkSession) -> int:
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.proc.pid)


def show(title: str, figures: Figures, progress: list[Any]) -> None:
    """Print the figures of one read, and the time of each phase of its triggers."""
    spent = ", ".join(f"{name} {us:.1f}" for name, us in figures.items() if name != "rate")
    print(f"{title}: {figures['rate']:,.0f} rows/s; us of CPU a row: {spent}", flush=True)
    for one in progress:
        phases = {name: ms for name, ms in one["durationMs"].items() if ms > 20}
        print(f"  {one['numInputRows']:>7} rows {phases}", flush=True)


def fill_topic(spark: SparkSession, address: str, messages: int) -> None:
    """Put messages into the topic, as many into each partition."""
    rows = spark.range(messages).selectExpr(
        f"CAST(id % {TASKS} AS INT) AS partition",
        "CAST('pk-0001' AS BINARY) AS key",
        f"CAST(repeat('x', {len(BODY)}) AS BINARY) AS value",
        "array(named_struct('key', 'kind', 'value', CAST('order' AS BINARY)),"
        " named_struct('key', 'tenant', 'value', CAST(CAST(id % 100 AS STRING) AS BINARY))) AS headers",
    )
    rows.write.format("kafka").options(**{"kafka.bootstrap.servers": address, "topic": QUEUE}).save()


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--only", default="", help="leave out the reads whose name lacks this text")
    parser.add_argument("--json", action="store_true", help="print the figures of each pass, no text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        passes = measure(
            Path(folder), arguments.messages, arguments.passes, arguments.only, verbose=not arguments.json
        )
    if arguments.json:
        print(json.dumps(passes))
        return
    for name, (ours, theirs, ratio, by_cpu) in ratios(passes).items():
        print(
            f"{name}: {ours:,.0f} rows/s, Kafka {theirs:,.0f}, ratio {ratio:.2f}, of CPU times {by_cpu:.2f} "
            f"(aim {AIMS[name]})"
        )


if __name__ == "__main__":
    main()
