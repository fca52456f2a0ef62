"""A stream with state of its own, `transformWithState`, over the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import LongType, StructType

from peeklock.testing.served import ServedBroker
from tests.spark.streams import Namespace

pytestmark = pytest.mark.spark


class Counting(StatefulProcessor):
    """Counts the messages of each customer, over all batches."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", StructType().add("count", LongType()))

    def handleInputRows(  # noqa: N802  # Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803  # Spark's name
    ) -> Iterator[Row]:
        before = self._count.get() if self._count.exists() else None
        count = (before[0] if before else 0) + sum(1 for _ in rows)
        self._count.update((count,))
        yield Row(customer=key[0], count=count)

    def close(self) -> None:
        pass


def test_state_counts_each_message_once(
    spark: Any, broker: ServedBroker, administration: Any, tmp_path: Path
) -> None:
    """Two runs over one checkpoint; the counts are those of what was sent. Req: X-01"""
    namespace = Namespace(broker, administration)
    queue = namespace.queue()
    random = Random(24)
    sent: Counter[str] = Counter()
    provider = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(provider, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    try:
        for _ in range(2):
            bodies = [f"customer-{random.randrange(5)}" for _ in range(60)]
            namespace.send(queue, bodies)
            sent.update(bodies)
            query = (
                spark.readStream.format("servicebus")
                .option("connectionString", broker.connection_string)
                .option("entity", queue)
                .option("consumerName", "counts")
                .option("maxMessagesPerTrigger", 25)
                .load()
                .selectExpr("CAST(body AS STRING) AS customer")
                .groupBy("customer")
                .transformWithState(Counting(), "customer string, count bigint", "Append", "None")
                .writeStream.format("parquet")
                .outputMode("append")
                .option("path", str(tmp_path / "counts"))
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
    finally:
        spark.conf.unset(provider)
    counts = spark.read.parquet(str(tmp_path / "counts")).groupBy("customer").max("count").collect()
    assert {row[0]: row[1] for row in counts} == sent
    assert namespace.left(queue) == 0
