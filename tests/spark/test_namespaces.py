"""Spark reads and writes the namespace of its key, beside another one with the same entities and cursor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peeklock.testing.served import ServedBroker
from tests.server.sides import Side, sides

pytestmark = pytest.mark.spark

ENTITIES = {"Queues": [{"Name": "orders"}, {"Name": "results"}]}
CURSOR = "reader"


def options(side: Side, entity: str) -> dict[str, str]:
    return {"connectionString": side.text, "entity": entity}


def streamed(spark: Any, side: Side, folder: Path) -> list[str]:
    """Run a stream of `orders` to its end; return the bodies that it has read."""
    where = folder / side.name
    frame = spark.readStream.format("servicebus").options(**options(side, "orders"), consumerName=CURSOR)
    writer = frame.load().writeStream.format("parquet").option("path", str(where / "table"))
    writer = writer.option("checkpointLocation", str(where / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return sorted(bytes(row.body).decode() for row in spark.read.parquet(str(where / "table")).collect())


def test_stream_and_sink_stay_in_their_namespace(spark: Any, broker: ServedBroker, tmp_path: Path) -> None:
    """The same name of a consumer is a cursor of each. Req: X-01, X-06."""
    with sides(broker.port, ENTITIES, ENTITIES) as (a, b):
        for side in (a, b):
            side.send("orders", f"1 of {side.name}")
        assert streamed(spark, b, tmp_path) == [f"1 of {b.name}"]
        assert a.peek("orders") == [f"1 of {a.name}"]
        assert a.ask("orders", "peeklock:cursor-list", {})["cursors"] == []
        assert streamed(spark, a, tmp_path) == [f"1 of {a.name}"]
        cursors = [side.ask("orders", "peeklock:cursor-list", {})["cursors"] for side in (a, b)]
        assert [[found["cursor"] for found in each] for each in cursors] == [[CURSOR], [CURSOR]]
        rows = spark.sql("SELECT 'written' AS body").write.format("servicebus")
        rows.options(**options(b, "results")).mode("append").save()
        assert (a.peek("results"), b.peek("results")) == ([], ["written"])
