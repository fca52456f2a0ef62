"""Streams as Spark 4.0 and 4.1 drive them: the start of a batch is remembered, or done without.

The calls are those of `tests.spark.engine`; the real Sparks run in the matrix of versions.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from peeklock.client.claims import release_cursor
from peeklock.spark.options import Options
from peeklock.spark.source.browse_stream import BrowseStreamReader
from peeklock.spark.source.cursor import CursorStreamReader
from peeklock.spark.source.offsets import DataLoss
from peeklock.spark.source.peek_lock import PeekLockStreamReader
from peeklock.spark.versions import arrow_batches
from peeklock.testing.served import ServedBroker
from tests.spark.engine import SCHEMA, Checkpoint, Query, Stopped
from tests.spark.streams import Namespace, numbered

pytestmark = pytest.mark.spark

READERS: dict[str, Callable[[Options, Any], Any]] = {
    "cursor": CursorStreamReader,
    "peekLock": PeekLockStreamReader,
    "browse": BrowseStreamReader,
}
LOCK = timedelta(seconds=60)
"""What the locks of a dead driver take to lapse."""

POINTS = ["latest", "log", "commit", "partitions", "read", "sink", "done"]


@pytest.fixture(scope="module")
def namespace(broker: ServedBroker, administration: Any) -> Namespace:
    return Namespace(broker, administration)


@pytest.fixture(autouse=True)
def older(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settle at once, too."""
    monkeypatch.setattr("peeklock.spark.source.cursor.HANDS_START_IN", False)
    for module in ("cursor", "peek_lock"):
        monkeypatch.setattr(f"peeklock.spark.source.{module}.IDLE_S", 0.0)


def start(options: Options, checkpoint: Checkpoint, **how: Any) -> Query:
    reader = READERS[options.mode.value]
    return Query(lambda: reader(options, SCHEMA), checkpoint, older=True, **how)


def options_of(namespace: Namespace, queue: str, mode: str = "cursor", **given: str) -> Options:
    named = {"consumerName": "lake"} if mode == "cursor" else {}
    return namespace.options(queue, mode=mode, **named, **given)


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("mode", READERS)
def test_every_message_arrives_once_wherever_the_driver_dies(
    namespace: Namespace, mode: str, point: str, batch: int
) -> None:
    """Also where it dies twice, and where messages came while nobody ran. Req: X-01, X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(100))
    options = options_of(namespace, queue, mode=mode, maxMessagesPerTrigger="30", minPartitions="3")
    checkpoint = Checkpoint()
    with pytest.raises(Stopped):
        start(options, checkpoint, stop_at=point, stop_in_batch=batch).run()
    namespace.send(queue, numbered(20, 100))
    with pytest.raises(Stopped):
        start(options, checkpoint, stop_at=point, stop_in_batch=len(checkpoint.offsets)).run()
    namespace.broker.advance(LOCK)
    start(options, checkpoint).run()
    namespace.send(queue, numbered(5, 120))
    start(options, checkpoint).run()
    assert sorted(checkpoint.bodies, key=int) == numbered(125)
    assert mode == "browse" or namespace.left(queue) == 0


def test_a_batch_keeps_to_its_limit_once_the_start_is_known(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.send(queue, numbered(50))
    checkpoint = Checkpoint()
    start(options_of(namespace, queue, maxMessagesPerTrigger="20"), checkpoint).run()
    assert [len(rows) for rows in checkpoint.sink.values() if rows] == [20, 20, 10]


def test_the_end_may_be_asked_for_before_the_beginning(namespace: Namespace) -> None:
    """As with the trigger AvailableNow: what was there comes as one batch."""
    queue = namespace.queue()
    namespace.send(queue, numbered(7))
    query = start(options_of(namespace, queue), Checkpoint())
    end = query.reader.latestOffset()
    first = query.reader.initialOffset()
    parts = [query.worker.read(one) for one in query.reader.partitions(first, end)]
    assert sum(batch.num_rows for part in parts for batch in part) == 7


def test_a_released_cursor_is_data_loss(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.send(queue, numbered(50))
    options = options_of(namespace, queue, maxMessagesPerTrigger="10")
    checkpoint = Checkpoint()
    start(options, checkpoint).run()
    release_cursor(options.settings, queue, "lake")
    namespace.send(queue, numbered(5, 50))
    with pytest.raises(DataLoss, match="claims of the checkpoint"):
        start(options, checkpoint).run()
    relaxed = options_of(namespace, queue, maxMessagesPerTrigger="10", failOnDataLoss="false")
    start(relaxed, checkpoint).run()
    assert checkpoint.bodies == numbered(55)


def test_rows_of_a_stream_become_batches_where_spark_hands_rows_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import Row
    from pyspark.sql.datasource import DataSourceStreamWriter

    monkeypatch.setattr("peeklock.spark.versions.DataSourceStreamArrowWriter", DataSourceStreamWriter)
    rows = [Row(body=b"%d" % at, entity="q", sequenceNumber=at, sessionId=None) for at in range(1500)]
    batches = list(arrow_batches(iter(rows), SCHEMA))
    assert [batch.num_rows for batch in batches] == [1000, 500]
    assert [row for batch in batches for row in batch.to_pylist()] == [row.asDict() for row in rows]
