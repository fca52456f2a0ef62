"""`python -m tests.golden.checkpoints.make FOLDER`: let Spark write the checkpoint of each form of offset.

Run once when a form is new; the folder is never written again. The stream reads the queue `orders` in mode
cursor with the cursor `spark`, three messages a batch, and ends without warning after the second batch:
its claims are made, and the broker has committed the first one only.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from peeklock.testing.served import ServedBroker
from tests.spark.streams import Namespace, numbered

SENT = numbered(10)


def make(folder: Path) -> None:
    """Write the checkpoint into a new folder."""
    from azure.servicebus.management import ServiceBusAdministrationClient

    from peeklock.spark.session import spark_session

    with ServedBroker() as broker:
        administration: Any = ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=False
        )
        administration.create_queue("orders")
        Namespace(broker, administration).send("orders", SENT)
        spark = spark_session("golden checkpoint", "local[1]")
        frame = (
            spark.readStream.format("servicebus")
            .option("connectionString", broker.connection_string)
            .option("entity", "orders")
            .option("consumerName", "spark")
            .option("maxMessagesPerTrigger", "3")
            .load()
        )
        writer = frame.writeStream.option("checkpointLocation", str(folder))

        def stop_in_second(rows: Any, batch: int) -> None:
            if batch == 1:
                raise RuntimeError("ends here, after the offset is logged")

        with contextlib.suppress(Exception):  # the one above
            writer.foreachBatch(stop_in_second).start().awaitTermination()
        spark.stop()


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
