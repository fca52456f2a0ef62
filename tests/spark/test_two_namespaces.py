"""Spark on two namespaces of one process, which share an address and the names of their entities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peeklock.demo.broker import BrokerProcess
from tests.server.sides import ENTITIES, Side, sides

pytestmark = pytest.mark.spark


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Side]]:
    with BrokerProcess(tmp_path, ["--durability=os"]) as broker, sides(broker, ENTITIES, ENTITIES) as made:
        yield made


def options(side: Side, **given: str) -> dict[str, str]:
    return {"connectionString": side.text, "entity": "orders", **given}


def test_each_has_its_rows_its_cursors_and_its_sink(spark: Any, two: list[Side], tmp_path: Path) -> None:
    """Also with the same name of a consumer in both. Req: X-01, X-06."""
    a, b = two

    def stream(side: Side) -> list[str]:
        """Return what a stream of a namespace has brought in all."""
        place = tmp_path / side.name
        frame = spark.readStream.format("servicebus").options(**options(side, consumerName="same")).load()
        query = (
            frame.selectExpr("cast(body as string) as body")
            .writeStream.format("parquet")
            .option("path", str(place / "table"))
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(row.body for row in spark.read.parquet(str(place / "table")).collect())

    for side in two:
        side.send("orders", *[f"{number} of {side.name}" for number in range(3)])
    for side in two:
        rows = spark.read.format("servicebus").options(**options(side)).load()
        assert sorted(bytes(row.body).decode() for row in rows.collect()) == side.peek("orders")
    before = b.content()
    assert stream(a) == [f"{number} of {a.name}" for number in range(3)]
    assert b.content() == before
    assert (a.peek("orders"), len(b.peek("orders"))) == ([], 3)
    assert stream(b) == [f"{number} of {b.name}" for number in range(3)]
    for side in two:
        frame = spark.createDataFrame([(f"sunk in {side.name}",)], "body string")
        frame.write.format("servicebus").options(**options(side)).mode("append").save()
    assert [side.peek("orders") for side in two] == [[f"sunk in {side.name}"] for side in two]
    assert stream(a)[-1] == f"sunk in {a.name}"
    assert b.peek("orders") == [f"sunk in {b.name}"]
