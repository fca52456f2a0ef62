"""Streams of cursor and peek-lock mode in a real Spark, into Parquet."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from peeklock.testing.served import ServedBroker
from tests.spark.streams import Namespace, numbered

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def namespace(broker: ServedBroker, administration: Any) -> Namespace:
    return Namespace(broker, administration)


@pytest.fixture
def stream(spark: Any, namespace: Namespace, tmp_path: Path) -> Callable[..., Any]:
    """Start a stream of an entity into `tmp_path/table`, over a checkpoint beside it."""

    def start(entity: str, *, once: bool = True, **options: str) -> Any:
        frame = (
            spark.readStream.format("servicebus")
            .option("connectionString", namespace.broker.connection_string)
            .option("entity", entity)
            .options(**options)
            .load()
        )
        writer = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "table"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        if not once:
            return writer.start()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return start


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Callable[[], list[int]]:
    """Return what arrived, as numbers."""
    return lambda: [
        int(row.body) for row in spark.read.parquet(str(tmp_path / "table")).select("body").collect()
    ]


@pytest.mark.parametrize("mode", ["cursor", "peekLock"])
def test_queue_arrives_in_a_table_once_over_several_starts(
    namespace: Namespace, stream: Callable[..., Any], table: Callable[[], list[int]], mode: str
) -> None:
    """Req: X-01, X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(250))
    stream(queue, mode=mode, maxMessagesPerTrigger="100", minPartitions="2")
    assert sorted(table()) == [*range(250)]
    assert namespace.states(queue) == []
    namespace.send(queue, numbered(50, 250))
    stream(queue, mode=mode)
    assert sorted(table()) == [*range(300)]
    assert namespace.states(queue) == []


@pytest.mark.parametrize("mode", ["cursor", "peekLock"])
def test_running_stream_settles_when_idle_and_goes_on_after_a_stop(
    namespace: Namespace, stream: Callable[..., Any], table: Callable[[], list[int]], mode: str
) -> None:
    """Req: X-01, X-02."""
    queue = namespace.queue()
    query = stream(queue, once=False, mode=mode)
    namespace.send(queue, numbered(100))
    deadline = time.monotonic() + 60
    while namespace.states(queue) and time.monotonic() < deadline:
        time.sleep(0.1)  # Spark's triggers have no clock that could be moved
    assert namespace.states(queue) == []
    namespace.send(queue, numbered(100, 100))
    query.processAllAvailable()
    query.stop()
    stream(queue, mode=mode)
    assert sorted(table()) == [*range(200)]
    assert namespace.states(queue) == []


def test_dead_letters_of_several_queues_arrive_with_their_columns(
    spark: Any, namespace: Namespace, stream: Callable[..., Any], tmp_path: Path
) -> None:
    """Req: X-01."""
    queues = [
        namespace.queue(
            default_message_time_to_live=timedelta(seconds=1), dead_lettering_on_message_expiration=True
        )
        for _ in range(2)
    ]
    for queue in queues:
        namespace.send(queue, numbered(5))
    namespace.broker.advance(timedelta(seconds=5))
    stream(",".join(queues), subQueue="deadLetter")
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert {(row.entity, row.state, row.deadLetterReason) for row in rows} == {
        (f"{queue}/$DeadLetterQueue", "claimed", "TTLExpiredException") for queue in queues
    }
    assert len(rows) == 10


def test_errors_name_entity_and_option(
    namespace: Namespace, stream: Callable[..., Any], table: Callable[[], list[int]]
) -> None:
    """Req: X-01."""
    queue, other = namespace.queue(), namespace.queue()
    namespace.send(queue, numbered(5))
    stream(queue, consumerName="spark")
    with pytest.raises(Exception, match=f"entities {queue}; option entity has {other}"):
        stream(other)
    with pytest.raises(Exception, match="consumerName=spark; this one has consumerName=lake"):
        stream(queue, consumerName="lake")
    namespace.administration.delete_queue(queue)
    with pytest.raises(Exception, match=rf"{queue}.*amqp:not-found"):
        stream(queue)
    namespace.administration.create_queue(queue)
    with pytest.raises(Exception, match=rf"'{queue}'.*checkpoint is at claim 1.*failOnDataLoss"):
        stream(queue)
    assert sorted(table()) == [*range(5)]


def test_second_query_is_refused_and_the_first_goes_on_until_it_is_taken_over(
    spark: Any, namespace: Namespace, stream: Callable[..., Any], table: Callable[[], list[int]]
) -> None:
    """The progress of a query says how far it is behind. Req: X-01, X-06."""
    queue = namespace.queue()
    query = stream(queue, once=False, consumerName="lake", maxMessagesPerTrigger="10")
    query.processAllAvailable()
    frame = (
        spark.readStream.format("servicebus")
        .option("connectionString", namespace.broker.connection_string)
        .option("entity", queue)
        .option("consumerName", "lake")
    )
    namespace.send(queue, numbered(30))
    with pytest.raises(Exception, match=rf"cursor 'lake' of '{queue}' belongs to the reader .*takeOver=true"):
        frame.load().writeStream.format("noop").start().awaitTermination()
    query.processAllAvailable()
    assert sorted(table()) == [*range(30)]
    offsets = [each.sources[0].latestOffset for each in query.recentProgress]
    assert {"claim", "backlog", "oldestAgeSeconds"} == set(json.loads(offsets[-1])[queue])
    taking = frame.option("takeOver", "true").load().writeStream.format("noop").start()
    with pytest.raises(Exception, match="peeklock:cursor-owned"):
        query.awaitTermination(60)
    taking.stop()
