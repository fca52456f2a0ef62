"""Streams that browse: every message once, over restarts; limits; what cannot be promised is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.client.connection import BlockingConnection
from peeklock.client.errors import OptionError
from peeklock.client.links import ReceiveMode
from peeklock.spark.options import Use, read_options
from peeklock.spark.source.browse_stream import BrowseStreamReader
from peeklock.spark.source.schema import row_ddl
from peeklock.testing.served import ServedBroker

pytestmark = pytest.mark.spark

MakeQueue = Callable[..., str]


def fill(own: BlockingConnection, path: str, count: int, *, size: int = 10, start: int = 0) -> None:
    sender = own.sender(path)
    for number in range(start, start + count):
        body = str(number).encode().ljust(size)
        sender.send(encode_message(properties=Properties(message_id=str(number)), data=body))
    sender.flush()
    sender.close()


@pytest.fixture
def reader(broker: ServedBroker, spark: Any) -> Callable[..., BrowseStreamReader]:
    """Make readers as Spark makes them."""

    def make(**given: str) -> BrowseStreamReader:
        options = read_options(
            {"connectionString": broker.connection_string, "mode": "browse", **given}, Use.STREAM_READ
        )
        return BrowseStreamReader(options, spark.createDataFrame([], row_ddl()).schema)

    return make


@pytest.fixture
def run(spark: Any, broker: ServedBroker, tmp_path: Path) -> Callable[..., list[int]]:
    """Run a query until it has read what is there; give all that its table holds, as numbers."""

    def run(entity: str, name: str = "one", **given: str) -> list[int]:
        query = (
            spark.readStream.format("servicebus")
            .options(connectionString=broker.connection_string, mode="browse", entity=entity, **given)
            .load()
            .select("messageId", "entity", "sequenceNumber")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start(str(tmp_path / name))
        )
        query.awaitTermination()
        return sorted(int(row.messageId) for row in spark.read.parquet(str(tmp_path / name)).collect())

    return run


def read(reader: BrowseStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Return what a micro-batch holds."""
    found: list[int] = []
    for partition in reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end))):
        for batch in reader.read(partition):
            found += map(int, batch.column("messageId").to_pylist())
    return found


@pytest.mark.soak
def test_every_message_once_over_restarts(
    run: Callable[..., list[int]], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    """Req: X-01, X-02"""
    queue = make_queue()
    fill(own, queue, 300)
    assert run(queue, maxMessagesPerTrigger="100") == [*range(300)]
    fill(own, queue, 50, start=300)
    assert run(queue, maxMessagesPerTrigger="100") == [*range(350)]
    assert run(queue) == [*range(350)]


@pytest.mark.soak
def test_several_entities_and_partitions(
    run: Callable[..., list[int]], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    first, second = make_queue(), make_queue(enable_partitioning=True)
    fill(own, first, 100)
    fill(own, second, 200, start=100)
    assert run(f"{first},{second}", maxMessagesPerTrigger="70") == [*range(300)]
    fill(own, second, 60, start=300)
    assert run(f"{first},{second}") == [*range(360)]


def test_a_checkpoint_of_another_entity_is_refused_by_name(
    run: Callable[..., list[int]], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    first, second = make_queue(), make_queue()
    fill(own, first, 3)
    run(first)
    with pytest.raises(Exception, match=rf"the checkpoint is of other entities \({first}\)"):
        run(second)


def test_a_micro_batch_is_limited_by_rows(
    reader: Callable[..., BrowseStreamReader], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    fill(own, queue, 1000)
    made = reader(entity=queue, maxMessagesPerTrigger="300")
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    start = made.initialOffset()
    sizes = []
    while (end := made.latestOffset(start, limit)) != start:
        sizes.append(len(read(made, start, end)))
        start = end
    assert sizes == [300, 300, 300, 100]


def test_a_micro_batch_is_limited_by_bytes(
    reader: Callable[..., BrowseStreamReader], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    """A message that is larger than the limit comes alone."""
    queue = make_queue()
    fill(own, queue, 20, size=10_000)
    made = reader(entity=queue, maxBytesPerTrigger="50000")
    limit = made.getDefaultReadLimit()
    assert limit == ReadMaxBytes(50_000)
    start = made.initialOffset()
    sizes = []
    while (end := made.latestOffset(start, limit)) != start:
        sizes.append(len(read(made, start, end)))
        start = end
    assert sizes == [4] * 5
    tiny = reader(entity=queue, maxBytesPerTrigger="1")
    start = tiny.initialOffset()
    assert read(tiny, start, tiny.latestOffset(start, tiny.getDefaultReadLimit())) == [0]
    assert len(read(tiny, start, tiny.latestOffset(start, ReadAllAvailable()))) == 20


def test_available_now_ends_at_what_was_there(
    reader: Callable[..., BrowseStreamReader], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    fill(own, queue, 100)
    made = reader(entity=queue)
    start = made.initialOffset()
    made.prepareForTriggerAvailableNow()
    fill(own, queue, 100, start=100)
    end = made.latestOffset(start, ReadMaxRows(60))
    last = made.latestOffset(end, ReadAllAvailable())
    assert read(made, start, end) == [*range(60)]
    assert read(made, end, last) == [*range(60, 100)]
    assert made.latestOffset(last, ReadAllAvailable()) == last


def test_a_range_reads_the_same_again(
    reader: Callable[..., BrowseStreamReader], own: BlockingConnection, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    fill(own, queue, 500)
    made = reader(entity=queue, minPartitions="3")
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    fill(own, queue, 10, start=500)
    assert len(made.partitions(start, end)) == 3
    assert read(made, start, end) == read(made, start, end) == [*range(500)]


def test_starting_places(
    reader: Callable[..., BrowseStreamReader],
    own: BlockingConnection,
    make_queue: MakeQueue,
    broker: ServedBroker,
) -> None:
    queue = make_queue()
    fill(own, queue, 10)
    broker.advance(timedelta(hours=1))
    since_ms = broker.now_ms()
    fill(own, queue, 10, start=10)

    def found(**given: str) -> list[int]:
        made = reader(entity=queue, **given)
        start = made.initialOffset()
        return read(made, start, made.latestOffset(start, ReadAllAvailable()))

    assert found() == found(startingOffsets="earliest") == [*range(20)]
    assert found(startingOffsets="latest") == []
    assert found(startingOffsets=f'{{"{queue}": 16}}') == [*range(15, 20)]
    assert found(startingEnqueuedTime=str(since_ms)) == [*range(10, 20)]
    receiver = own.receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
    assert len(receiver.receive(5, 5)) == 5
    with pytest.raises(
        OptionError, match=rf"startingOffsets asks for sequence number 2 of entity '{queue}'.* 6"
    ):
        found(startingOffsets=f'{{"{queue}": 2}}')
    assert found(startingOffsets=f'{{"{queue}": 2}}', failOnDataLoss="false") == [*range(5, 20)]


def test_an_entity_that_was_created_again_is_told_from_the_one_before(
    reader: Callable[..., BrowseStreamReader],
    own: BlockingConnection,
    make_queue: MakeQueue,
    administration: Any,
    broker: ServedBroker,
) -> None:
    queue = make_queue()
    fill(own, queue, 10)
    made = reader(entity=queue)
    offset = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    assert made.latestOffset(offset, ReadAllAvailable()) == offset
    administration.delete_queue(queue)
    with pytest.raises(Exception, match=f"{queue}.*could not be found"):
        made.latestOffset(offset, ReadAllAvailable())
    administration.create_queue(queue)
    broker.advance(timedelta(seconds=1))
    fill(own, queue, 3)
    with pytest.raises(OptionError, match=f"entity '{queue}' is not the one of the checkpoint"):
        made.latestOffset(offset, ReadAllAvailable())


def test_what_is_consumed_meanwhile_does_no_harm(
    reader: Callable[..., BrowseStreamReader],
    own: BlockingConnection,
    make_queue: MakeQueue,
    broker: ServedBroker,
) -> None:
    queue = make_queue()
    fill(own, queue, 10)
    made = reader(entity=queue)
    start = made.latestOffset(made.initialOffset(), ReadMaxRows(5))
    broker.advance(timedelta(minutes=1))
    receiver = own.receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
    receiver.receive(10, 5)
    assert made.latestOffset(start, ReadAllAvailable()) == start
    fill(own, queue, 2, start=10)
    end = made.latestOffset(start, ReadAllAvailable())
    assert read(made, start, end) == [10, 11]


def test_a_dead_letter_queue_is_refused_with_the_way_out(reader: Callable[..., BrowseStreamReader]) -> None:
    for given in ({"entity": "q", "subQueue": "deadLetter"}, {"entity": "q/$deadletterqueue"}):
        with pytest.raises(OptionError, match=r"come in another order.*mode=cursor or mode=peekLock"):
            reader(**given)


def test_a_foreign_namespace_is_refused(
    reader: Callable[..., BrowseStreamReader], make_queue: MakeQueue
) -> None:
    made = reader(entity=make_queue())
    offset = {**made.initialOffset(), "namespace": "elsewhere"}
    with pytest.raises(OptionError, match="the checkpoint is of namespace 'elsewhere'"):
        made.latestOffset(offset, ReadAllAvailable())


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (
            {"mode": "cursor", "claims": {}},
            r"option mode=cursor; this one has mode=browse .*at offset .*claims",
        ),
        ({"version": 9}, r"newer release.*Install that release"),
        ({"entities": {"{queue}": {"0": "x"}}}, r"cannot be read .*at offset .*'x'.*checkpointLocation"),
        ({"entities": {"other": {}}}, r"'{queue}' is only in one of them .*at offset|'other' is only in one"),
    ],
)
def test_a_checkpoint_of_another_query_or_release_is_refused_by_name(
    reader: Callable[..., BrowseStreamReader], make_queue: MakeQueue, offset: dict[str, Any], says: str
) -> None:
    queue = make_queue()
    made = reader(entity=queue)
    own = made.initialOffset()
    if "claims" in offset:
        own = {"namespace": own["namespace"]}
    given = json.loads(json.dumps({**own, **offset}).replace("{queue}", queue))
    with pytest.raises(OptionError, match=says.replace("{queue}", queue)) as raised:
        made.latestOffset(given, ReadAllAvailable())
    assert queue in str(raised.value)
