"""From queue to queue through Spark: with option partitionBy, each key keeps its order over several tasks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from peeklock.spark.options import Use, read_options
from peeklock.spark.source.browse import BrowseReader
from peeklock.testing.served import ServedBroker
from tests.spark.engine import SCHEMA
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
    return numbered_queue(namespace)


def numbered_queue(namespace: Namespace) -> str:
    queue = namespace.queue()
    namespace.send_to_sessions(queue, [(f"s{number % SESSIONS}", str(number)) for number in range(MESSAGES)])
    return queue


def numbers_by_session(namespace: Namespace, queue: str) -> dict[str, list[int]]:
    """Return the numbers of each session, in the order of the queue."""
    given = {"connectionString": namespace.broker.connection_string, "entity": queue}
    reader = BrowseReader(read_options(given, Use.BATCH_READ), SCHEMA)
    found: dict[str, list[int]] = defaultdict(list)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            for row in batch.to_pylist():
                found[row["sessionId"]].append(int(row["body"]))
    return found


EXPECTED = {f"s{no}": [*range(no, MESSAGES, SESSIONS)] for no in range(SESSIONS)}


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
    assert numbers_by_session(namespace, target) == EXPECTED


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
    assert numbers_by_session(namespace, target) == EXPECTED
