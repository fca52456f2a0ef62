"""From queue to queue through Spark: with option partitionBy, each key keeps its order over several tasks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from peeklock.testing.served import ServedBroker
from tests.spark.streams import Namespace

pytestmark = pytest.mark.spark

SESSIONS = 6
MESSAGES = 1200


@pytest.fixture(scope="module")
def namespace(broker: ServedBroker, administration: Any) -> Namespace:
    return Namespace(broker, administration)


@pytest.fixture
def source(namespace: Namespace) -> str:
    """A queue of numbers, each of a session in turn."""
    queue = namespace.queue()
    namespace.send_to_sessions(queue, [(f"s{number % SESSIONS}", str(number)) for number in range(MESSAGES)])
    return queue


def require_order(spark: Any, namespace: Namespace, target: str) -> None:
    """Require that a queue has each session's numbers in their order, and all of them."""
    rows = spark.read.format("servicebus").option("connectionString", namespace.broker.connection_string)
    found = rows.load(target).select("sequenceNumber", "sessionId", "body").collect()
    by_session: dict[str, list[int]] = defaultdict(list)
    for row in sorted(found, key=lambda row: row.sequenceNumber):
        by_session[row.sessionId].append(int(row.body))
    assert by_session == {f"s{no}": [*range(no, MESSAGES, SESSIONS)] for no in range(SESSIONS)}


@pytest.mark.parametrize("mode", ["cursor", "peekLock", "browse"])
def test_a_stream_keeps_the_order_of_each_session(
    spark: Any, namespace: Namespace, source: str, mode: str, tmp_path: Path
) -> None:
    """Req: X-01, X-02"""
    target = namespace.queue()
    rows = (
        spark.readStream.format("servicebus")
        .options(connectionString=namespace.broker.connection_string, entity=source, mode=mode)
        .options(partitionBy="sessionId", minPartitions="3", maxMessagesPerTrigger="500")
        .load()
        .select("body", "sessionId")
    )
    query = (
        rows.writeStream.format("servicebus")
        .options(connectionString=namespace.broker.connection_string, entity=target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    require_order(spark, namespace, target)


def test_a_batch_keeps_the_order_of_each_session(spark: Any, namespace: Namespace, source: str) -> None:
    """Req: X-01, X-02"""
    target = namespace.queue()
    rows = (
        spark.read.format("servicebus")
        .options(connectionString=namespace.broker.connection_string, entity=source)
        .options(partitionBy="sessionId", minPartitions="3")
        .load()
        .select("body", "sessionId")
    )
    assert rows.rdd.getNumPartitions() == 3
    written = rows.write.format("servicebus").mode("append")
    written.options(connectionString=namespace.broker.connection_string, entity=target).save()
    require_order(spark, namespace, target)
