"""`python -m bench.spark_browse`: rows a second of a batch read in mode browse, with the broker on the same
machine.

Owns: one queue of rich messages of 1 KiB in a broker process, and reads of all its columns by a local Spark
of two workers. The figure is the best of several rounds: the rest is noise of the machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.demo.broker import BrokerProcess
from peeklock.spark.session import spark_session

QUEUE = "browsed"
BODY = b"x" * 1024
AIM = 30_000
"""Rows a second. Source: figures of the pipeline."""


def fill(connection_string: str, count: int, queue: str = QUEUE) -> None:
    """Put messages into a queue."""
    connection = BlockingConnection(ConnectionString.parse(connection_string))
    sender = connection.sender(queue)
    for number in range(count):
        sender.send(
            encode_message(
                message_annotations={"x-opt-partition-key": "pk-0001"},
                properties=Properties(message_id=f"{number:032x}", content_type="application/json"),
                application_properties={"kind": "order", "tenant": number % 100},
                data=BODY,
            )
        )
    sender.flush()
    connection.close()


def main() -> None:
    """Measure, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "broker.json"
        configuration.write_text(
            json.dumps({"UserConfig": {"Namespaces": [{"Name": "bench", "Queues": [{"Name": QUEUE}]}]}})
        )
        with BrokerProcess(Path(folder), (f"--config={configuration}",)) as broker:
            print(f"filling {arguments.messages} messages of 1 KiB", flush=True)
            fill(broker.connection_string, arguments.messages)
            spark = spark_session("browse", "local[2]", **{"spark.driver.memory": "1g"})
            rows = (
                spark.read.format("servicebus")
                .options(connectionString=broker.connection_string, entity=QUEUE, minPartitions="2")
                .load()
            )
            best = 0.0
            for number in range(arguments.rounds):
                started = time.perf_counter()
                rows.write.format("noop").mode("overwrite").save()
                rate = arguments.messages / (time.perf_counter() - started)
                best = max(best, rate)
                print(f"round {number + 1}: {rate:,.0f} rows/s", flush=True)
            assert rows.count() == arguments.messages
            print(f"browse: {best:,.0f} rows/s (aim {AIM:,})")
            spark.stop()
            broker.stop()


if __name__ == "__main__":
    main()
