"""Batch reads: what is in a queue becomes a table, and stays in the queue."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.client.connection import BlockingConnection
from peeklock.client.errors import OptionError
from peeklock.client.links import ABANDON, COMPLETE, DEFER, ReceiveMode
from peeklock.spark.options import Use, read_options
from peeklock.spark.source.browse import PARTITION_SHIFT, Browser, BrowseReader, cut
from peeklock.spark.source.schema import row_ddl
from peeklock.testing.served import ServedBroker

pytestmark = pytest.mark.spark

MakeQueue = Callable[..., str]


def fill(
    own: BlockingConnection, path: str, count: int, *, size: int = 10, start: int = 0, **properties: Any
) -> None:
    sender = own.sender(path)
    for number in range(start, start + count):
        body = str(number).encode().ljust(size)
        sender.send(encode_message(properties=Properties(message_id=str(number), **properties), data=body))
    sender.flush()
    sender.close()


def drop(own: BlockingConnection, path: str, count: int) -> None:
    """Receive messages for good."""
    receiver = own.receiver(path, ReceiveMode.RECEIVE_AND_DELETE)
    left = count
    while left:
        left -= len(receiver.receive(left, 5))
    receiver.close()


@pytest.fixture
def load(spark: Any, broker: ServedBroker) -> Callable[..., Any]:
    def load(**options: str) -> Any:
        return (
            spark.read.format("servicebus")
            .option("connectionString", broker.connection_string)
            .options(**options)
            .load()
        )

    return load


def numbers(rows: Any) -> list[int]:
    return sorted(row.sequenceNumber for row in rows.select("sequenceNumber").collect())


def test_a_queue_is_a_table_and_stays_as_it_is(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    """Req: X-01"""
    queue = make_queue()
    fill(own, queue, 5000)
    for _ in range(2):
        rows = load(entity=queue, minPartitions="3")
        assert rows.rdd.getNumPartitions() == 3
        assert numbers(rows) == [*range(1, 5001)]
    assert {row.deliveryCount for row in rows.select("deliveryCount").distinct().collect()} == {0}
    assert rows.where("cast(string(body) as int) = cast(messageId as int)").count() == 5000


def test_an_empty_queue_is_an_empty_table(load: Callable[..., Any], make_queue: MakeQueue) -> None:
    assert load(entity=make_queue()).collect() == []


def test_sql_and_path(
    spark: Any, broker: ServedBroker, own: BlockingConnection, make_queue: MakeQueue
) -> None:
    """Req: X-01"""
    queue = make_queue()
    fill(own, queue, 10)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING servicebus OPTIONS ("
        f"connectionString '{broker.connection_string}', entity '{queue}')"
    )
    assert spark.sql("SELECT count(*) FROM messages WHERE state = 'active'").first()[0] == 10
    loaded = spark.read.format("servicebus").option("connectionString", broker.connection_string).load(queue)
    assert loaded.count() == 10
    spark.catalog.dropTempView("messages")


def test_holes_are_left_out_and_tasks_are_equal(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue, broker: ServedBroker
) -> None:
    """One old message stands far below the others."""
    queue = make_queue()
    fill(own, queue, 1)
    receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK)
    receiver.settle(receiver.receive(1, 5)[0], DEFER)
    receiver.flush()
    fill(own, queue, 20_000)
    drop(own, queue, 18_000)
    rows = load(entity=queue, minPartitions="4")
    counts = [len(part) for part in rows.select("sequenceNumber").rdd.glom().collect()]
    assert sum(counts) == 2001
    assert max(counts) < 700


def test_several_entities_dead_letters_and_subscriptions(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue, administration: Any
) -> None:
    """Req: X-01"""
    first, second = make_queue(max_delivery_count=1), make_queue()
    administration.create_topic("news")
    administration.create_subscription("news", "all")
    fill(own, first, 3)
    fill(own, second, 4)
    fill(own, "news", 5)
    both = {
        row.entity: row["count"]
        for row in load(entity=f"{first},{second}").groupBy("entity").count().collect()
    }
    assert both == {first: 3, second: 4}
    assert load(topicName="news", subscriptionName="all").count() == 5
    receiver = own.receiver(first, ReceiveMode.PEEK_LOCK)
    receiver.settle(receiver.receive(1, 5)[0], ABANDON)
    receiver.flush()
    (dead,) = load(entity=first, subQueue="deadLetter").collect()
    assert dead.entity == f"{first}/$DeadLetterQueue"
    assert dead.deadLetterReason == "MaxDeliveryCountExceeded"
    assert dead.body.strip() == b"0"
    assert load(entity=first).count() == 2


def test_every_state_is_shown(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue, client: Any
) -> None:
    from azure.servicebus import ServiceBusMessage

    queue = make_queue()
    fill(own, queue, 2)
    with client.get_queue_sender(queue) as sender:
        sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))
    receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK)
    receiver.settle(receiver.receive(1, 5)[0], DEFER)
    receiver.receive(1, 5)
    receiver.flush()
    rows = load(entity=queue).orderBy("sequenceNumber").collect()
    assert [row.state for row in rows] == ["deferred", "active", "scheduled"]
    assert rows[2].scheduledEnqueueTime is not None


def test_a_partitioned_queue_is_read_by_its_partitions(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue(enable_partitioning=True)
    fill(own, queue, 2000)
    rows = load(entity=queue)
    ids = {row.messageId for row in rows.select("messageId").collect()}
    assert ids == {str(number) for number in range(2000)}
    partitions = {number >> PARTITION_SHIFT for number in numbers(rows)}
    assert len(partitions) > 1
    one = max(partitions)
    start = one << PARTITION_SHIFT
    offsets = {queue: {str(other): -1 for other in partitions if other != one}}
    of_one = numbers(load(entity=queue, startingOffsets=json.dumps(offsets)))
    assert of_one
    assert all(number > start for number in of_one)


def test_one_session(load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_session=True)
    fill(own, queue, 10, group_id="a")
    fill(own, queue, 20, group_id="b")
    fill(own, queue, 5, group_id="a")
    assert load(entity=queue).count() == 35
    rows = load(entity=queue, sessionId="a")
    assert rows.count() == 15
    assert [row.sessionId for row in rows.select("sessionId").distinct().collect()] == ["a"]


def test_offsets_and_times_bound_a_read(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue, broker: ServedBroker
) -> None:
    queue = make_queue()
    fill(own, queue, 100)
    broker.advance(timedelta(hours=2))
    middle = datetime.fromtimestamp(broker.now_ms() / 1000, UTC) - timedelta(hours=1)
    fill(own, queue, 50)
    between = load(entity=queue, startingOffsets=f'{{"{queue}": 20}}', endingOffsets=f'{{"{queue}": 30}}')
    assert numbers(between) == [*range(20, 30)]
    assert numbers(load(entity=queue, startingOffsets="latest")) == []
    assert numbers(load(entity=queue, startingEnqueuedTime=middle.isoformat())) == [*range(101, 151)]
    after = middle + timedelta(hours=5)
    assert numbers(load(entity=queue, startingEnqueuedTime=after.isoformat())) == []


def test_a_start_before_the_earliest_kept_is_an_error_or_is_counted(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    fill(own, queue, 50)
    drop(own, queue, 20)
    given = {"entity": queue, "startingOffsets": f'{{"{queue}": 5}}'}
    with pytest.raises(
        Exception, match=f"option startingOffsets asks for sequence number 5 of entity '{queue}'"
    ):
        load(**given).collect()
    assert numbers(load(**given, failOnDataLoss="false")) == [*range(21, 51)]


def test_the_whole_message_comes_along_when_asked_for(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    fill(own, queue, 1, subject="s")
    (row,) = load(entity=queue, includeEncoded="true", includeBody="false").collect()
    assert row.body is None
    assert b"0".ljust(10) in row.encoded
    assert "encoded" not in load(entity=queue).columns


def test_columns_can_be_chosen(
    spark: Any, broker: ServedBroker, own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    fill(own, queue, 3)
    reader = spark.read.format("servicebus").options(connectionString=broker.connection_string, entity=queue)
    rows = reader.schema("messageId string, body binary").load()
    assert sorted(tuple(row) for row in rows.collect())[0] == ("0", bytearray(b"0".ljust(10)))
    with pytest.raises(Exception, match="the schema has the column 'id', which messages do not have"):
        reader.schema("id string").load().collect()
    assert sorted(row.body for row in reader.schema("body string").load().collect())[0] == "0".ljust(10)
    with pytest.raises(Exception, match="column messageId is binary in the schema, and string in messages"):
        reader.schema("messageId binary").load().collect()


def test_mistakes_are_named_before_anything_runs(
    spark: Any, load: Callable[..., Any], broker: ServedBroker, make_queue: MakeQueue
) -> None:
    """Req: X-01"""
    queue = make_queue()
    with pytest.raises(Exception, match=r"option entitty is not known .* did you mean entity"):
        load(entitty=queue).collect()
    with pytest.raises(
        Exception, match=r"sb://localhost:[0-9]+/missing: .*could not be found.*correct its path"
    ):
        load(entity="missing").collect()
    with pytest.raises(Exception, match="a batch read has no commit"):
        load(entity=queue, mode="cursor").collect()
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "verysecret")
    rows = spark.read.format("servicebus").options(connectionString=wrong, entity=queue).load()
    with pytest.raises(Exception, match="the connection string: the key must match") as raised:
        rows.collect()
    assert "verysecret" not in str(raised.value)


def test_the_key_is_not_in_a_plan(
    spark: Any, broker: ServedBroker, load: Callable[..., Any], make_queue: MakeQueue
) -> None:
    rows = load(entity=make_queue())
    plan = rows._jdf.queryExecution().toString()
    assert "SAS_KEY_VALUE" not in plan


# Without Spark


def browser(broker: ServedBroker, path: str) -> Browser:
    options = read_options({"connectionString": broker.connection_string, "entity": path}, Use.BATCH_READ)
    return Browser(options, path)


@pytest.mark.parametrize("count", [1, 2, 9, 300])
def test_the_ends_of_a_queue_are_found(
    broker: ServedBroker, own: BlockingConnection, make_queue: MakeQueue, count: int
) -> None:
    queue = make_queue()
    look = browser(broker, queue)
    assert look.firsts() == {}
    fill(own, queue, 7 + count)
    drop(own, queue, 7)
    first = look.firsts()[0]
    assert first.number == 8
    assert look.last(first).number == 7 + count
    assert look.last(first, 9).number == 8
    for below in (10, 100, 5000):
        assert look.last(first, below).number == min(below - 1, 7 + count)


def test_the_memory_of_a_reader_does_not_grow_with_the_backlog(
    spark: Any, broker: ServedBroker, own: BlockingConnection, make_queue: MakeQueue
) -> None:
    """It holds an answer or two and one batch of rows, however much there is.

    Req: X-01
    """
    queue = make_queue()
    fill(own, queue, 16_000, size=4096)
    options = read_options(
        {"connectionString": broker.connection_string, "entity": queue, "minPartitions": "1"}, Use.BATCH_READ
    )
    reader = BrowseReader(options, spark.createDataFrame([], row_ddl()).schema)
    (partition,) = reader.partitions()
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    most_rows = rows = 0
    for batch in reader.read(partition):
        rows += batch.num_rows
        most_rows = max(most_rows, pa.total_allocated_bytes() - before)
    most_objects = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 16_000
    assert most_rows < 16 << 20
    assert most_objects < 24 << 20


def test_ranges_are_cut_into_equal_parts() -> None:
    assert cut([(0, 10)], 3) == [((0, 4),), ((4, 7),), ((7, 10),)]
    assert cut([(0, 1), (100, 109)], 2) == [((0, 1), (100, 104)), ((104, 109),)]
    assert cut([(0, 2)], 5) == [((0, 1),), ((1, 2),)]
    assert cut([(0, 3), (3, 6)], 1) == [((0, 6),)]
    assert cut([], 3) == []


def test_options_are_checked_without_a_broker() -> None:
    with pytest.raises(OptionError, match="connectionString is missing"):
        read_options({"entity": "q"}, Use.BATCH_READ)


def test_completed_messages_are_not_read(
    load: Callable[..., Any], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    fill(own, queue, 10)
    receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK)
    for one in receiver.receive(4, 5):
        receiver.settle(one, COMPLETE)
    receiver.flush()
    assert numbers(load(entity=queue)) == [*range(5, 11)]
