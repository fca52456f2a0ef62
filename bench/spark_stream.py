"""`python -m bench.spark_stream`: a queue streamed into Parquet in cursor mode, with the broker on the same
machine.

Owns: one queue of rich messages of 1 KiB in a broker process, a local Spark of two workers, two figures: how
many messages a second arrive and are settled, and how long a trigger with 500 messages takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.spark_browse import QUEUE, fill
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.demo.broker import BrokerProcess
from peeklock.spark.session import spark_session

RATE_AIM = 10_000
"""Messages a second, settled. Source: figures of the pipeline."""

TRIGGER_MESSAGES = 500
TRIGGER_MS_AIM = 400
"""Median. Source: figures of the pipeline, which say "until the first row"; this is the whole trigger, into a
sink that keeps nothing."""


def left(connection_string: str) -> int:
    """Return how many messages the cursor still holds."""
    connection = BlockingConnection(ConnectionString.parse(connection_string))
    cursors = connection.management(QUEUE).request("peeklock:cursor-list", {}).body["cursors"]
    connection.close()
    return sum(count for cursor in cursors for _, count, _ in cursor["claims"])


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mode", default="cursor")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "broker.json"
        configuration.write_text(
            json.dumps({"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": [{"Name": QUEUE}]}]}})
        )
        with BrokerProcess(Path(folder), (f"--config={configuration}",)) as broker:
            spark = spark_session("stream", "local[2]", **{"spark.driver.memory": "1g"})
            rows = (
                spark.readStream.format("servicebus")
                .options(connectionString=broker.connection_string, entity=QUEUE, mode=arguments.mode)
                .load()
            )
            writer = (
                rows.writeStream.format("parquet")
                .option("path", f"{folder}/table")
                .option("checkpointLocation", f"{folder}/checkpoint")
            )
            best = 0.0
            for number in range(arguments.rounds):
                fill(broker.connection_string, arguments.messages)
                started = time.perf_counter()
                query = writer.trigger(availableNow=True).start()
                query.awaitTermination()
                rate = arguments.messages / (time.perf_counter() - started)
                best = max(best, rate)
                print(f"round {number + 1}: {rate:,.0f} messages/s settled", flush=True)
                show(query)
                assert left(broker.connection_string) == 0
            assert spark.read.parquet(f"{folder}/table").count() == arguments.messages * arguments.rounds
            print(f"cursor stream to Parquet: {best:,.0f} messages/s settled (aim {RATE_AIM:,})")

            query = (
                rows.writeStream.format("noop").option("checkpointLocation", f"{folder}/of-triggers").start()
            )
            spent_ms: list[int] = []
            for _ in range(21):
                fill(broker.connection_string, TRIGGER_MESSAGES)
                query.processAllAvailable()
                spent_ms += [
                    progress["durationMs"]["triggerExecution"]
                    for progress in query.recentProgress[-3:]
                    if progress["numInputRows"]
                ]
            query.stop()
            middle = statistics.median(spent_ms[2:])
            print(f"trigger of {TRIGGER_MESSAGES}: {middle:,.0f} ms p50 (aim {TRIGGER_MS_AIM})")
            spark.stop()
            broker.stop()


def show(query: Any) -> None:
    """Print the time of each phase of the triggers."""
    for progress in query.recentProgress:
        spent = {name: ms for name, ms in progress["durationMs"].items() if ms > 20}
        print(f"  {progress['numInputRows']:>7} rows {spent}", flush=True)


if __name__ == "__main__":
    main()
