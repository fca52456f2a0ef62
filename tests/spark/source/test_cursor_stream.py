"""Streams of cursor mode, driven as Spark drives them and stopped between any two of its calls."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from peeklock.client.claims import release_cursor
from peeklock.client.connection import connection
from peeklock.client.errors import OptionError, ServiceBusError
from peeklock.spark.options import Options, Use, read_options
from peeklock.spark.source.cursor import CursorStreamReader
from peeklock.spark.source.offsets import CheckpointMismatch, DataLoss
from peeklock.testing.served import ServedBroker
from tests.server.waiting import until
from tests.spark.engine import SCHEMA, Checkpoint, Query, Stopped
from tests.spark.streams import LossyRelay, Namespace, numbered

pytestmark = pytest.mark.spark

POINTS = ["log", "commit", "partitions", "read", "sink", "done"]


@pytest.fixture(scope="module")
def namespace(broker: ServedBroker, administration: Any) -> Namespace:
    return Namespace(broker, administration)


def start(options: Options, checkpoint: Checkpoint, **how: Any) -> Query:
    return Query(lambda: CursorStreamReader(options, SCHEMA), checkpoint, **how)


def drain(options: Options, checkpoint: Checkpoint | None = None) -> Checkpoint:
    """Run a query as AvailableNow does."""
    checkpoint = checkpoint or Checkpoint()
    start(options, checkpoint, available_now=True).run()
    return checkpoint


@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("point", POINTS)
def test_every_message_arrives_once_wherever_the_driver_dies(
    namespace: Namespace, point: str, batch: int
) -> None:
    """Req: X-01, X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(100))
    options = namespace.options(queue, maxMessagesPerTrigger="30", minPartitions="3", fetchSize="7")
    checkpoint = Checkpoint()
    with pytest.raises(Stopped):
        start(options, checkpoint, stop_at=point, stop_in_batch=batch).run()
    namespace.send(queue, numbered(20, 100))
    drain(options, checkpoint)
    assert checkpoint.bodies == numbered(120)
    assert namespace.left(queue) == 0


def test_claims_are_hidden_from_receivers_and_shown_by_a_peek(namespace: Namespace) -> None:
    """Req: X-06."""
    queue = namespace.queue()
    namespace.send(queue, numbered(3))
    query = start(namespace.options(queue, maxMessagesPerTrigger="2"), Checkpoint())
    query.trigger()
    assert namespace.states(queue) == ["0 claimed", "1 claimed", "2 active"]


def test_the_last_batch_is_settled_by_one_batch_without_rows_when_nothing_comes(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: X-01."""
    queue = namespace.queue()
    namespace.send(queue, numbered(5))
    checkpoint = Checkpoint()
    query = start(namespace.options(queue), checkpoint)
    assert query.trigger()
    assert not query.trigger()
    assert namespace.left(queue) == 5
    monkeypatch.setattr("peeklock.spark.source.cursor.IDLE_S", 0.0)
    assert query.trigger()
    assert not query.trigger()
    assert namespace.left(queue) == 0
    assert [len(rows) for rows in checkpoint.sink.values()] == [5, 0]


def test_a_batch_left_unsettled_is_settled_by_the_next_start(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.send(queue, numbered(5))
    checkpoint = Checkpoint()
    options = namespace.options(queue)
    start(options, checkpoint).trigger()
    drain(options, checkpoint)
    assert namespace.left(queue) == 0
    assert checkpoint.bodies == numbered(5)


def test_a_lost_checkpoint_brings_back_what_was_not_committed(namespace: Namespace) -> None:
    """Nothing is lost; what the sink had and Spark had not committed comes again. Req: X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(50))
    options = namespace.options(queue, maxMessagesPerTrigger="20")
    with pytest.raises(Stopped):
        start(options, Checkpoint(), stop_at="done", stop_in_batch=1).run()
    options = namespace.options(queue, maxMessagesPerTrigger="20", takeOver="true")
    assert drain(options).bodies == numbered(30, 20)


def test_available_now_stops_at_what_was_there(namespace: Namespace) -> None:
    """Req: X-01."""
    queue = namespace.queue()
    namespace.send(queue, numbered(10))
    checkpoint = Checkpoint()
    query = start(namespace.options(queue, maxMessagesPerTrigger="4"), checkpoint, available_now=True)
    namespace.broker.advance(timedelta(milliseconds=1))
    namespace.send(queue, numbered(5, 10))
    query.run()
    assert checkpoint.bodies == numbered(10)
    assert namespace.states(queue) == [f"{body} active" for body in numbered(5, 10)]


def test_batches_keep_to_their_limits(namespace: Namespace) -> None:
    """Req: X-01."""
    queue = namespace.queue()
    namespace.send(queue, numbered(40), size=1000)
    by_count = Checkpoint()
    query = start(namespace.options(queue, maxMessagesPerTrigger="15"), by_count)
    query.trigger()
    assert len(by_count.rows) == 15
    by_size = Checkpoint()
    query = start(namespace.options(queue, consumerName="b", maxBytesPerTrigger="10k"), by_size)
    query.trigger()
    assert 8 <= len(by_size.rows) <= 10
    one = Checkpoint()
    query = start(namespace.options(queue, consumerName="c", maxBytesPerTrigger="100"), one)
    query.trigger()
    assert len(one.rows) == 1


def test_without_a_limit_all_comes_in_one_batch(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.send(queue, numbered(5000))
    checkpoint = Checkpoint()
    options = namespace.options(queue, maxMessagesPerTrigger="10")
    start(options, checkpoint, unlimited=True).trigger()
    assert checkpoint.bodies == numbered(5000)


def test_entities_share_a_batch_and_none_starves(namespace: Namespace) -> None:
    """Req: X-01."""
    full, small, empty = namespace.queue(), namespace.queue(), namespace.queue()
    namespace.send(full, numbered(100))
    namespace.send(small, numbered(5, 1000))
    options = namespace.options(full, small, empty, maxMessagesPerTrigger="30")
    checkpoint = Checkpoint()
    query = start(options, checkpoint)
    query.trigger()
    assert len(checkpoint.rows) == 30
    assert sum(row["entity"] == small for row in checkpoint.rows) == 5
    drain(options, checkpoint)
    assert sorted(map(int, checkpoint.bodies)) == [*range(100), *range(1000, 1005)]
    assert {row["entity"] for row in checkpoint.rows} == {full, small}


def test_an_entity_can_join_a_checkpoint_and_leaving_it_is_refused(namespace: Namespace) -> None:
    first, second = namespace.queue(), namespace.queue()
    namespace.send(first, numbered(3))
    namespace.send(second, numbered(3, 3))
    checkpoint = drain(namespace.options(first))
    drain(namespace.options(first, second), checkpoint)
    assert checkpoint.bodies == numbered(6)
    with pytest.raises(CheckpointMismatch, match=f"which leaves {first} unread"):
        drain(namespace.options(second), checkpoint)


def test_dead_letter_queue_subscription_and_partitioned_queue_are_streamed(namespace: Namespace) -> None:
    """Req: X-01."""
    queue = namespace.queue(
        default_message_time_to_live=timedelta(seconds=1), dead_lettering_on_message_expiration=True
    )
    namespace.send(queue, numbered(10))
    namespace.broker.advance(timedelta(seconds=5))
    assert drain(namespace.options(queue, subQueue="deadLetter")).bodies == numbered(10)

    administration = namespace.administration
    administration.create_topic("events")
    administration.create_subscription("events", "audit")
    namespace.send("events", numbered(10))
    assert drain(namespace.options("events/Subscriptions/audit")).bodies == numbered(10)

    partitioned = namespace.queue(enable_partitioning=True)
    namespace.send(partitioned, numbered(100))
    found = drain(namespace.options(partitioned, maxMessagesPerTrigger="30"))
    assert sorted(map(int, found.bodies)) == [*range(100)]
    assert namespace.left(partitioned) == 0


@pytest.mark.parametrize("point", POINTS)
def test_sessions_arrive_in_order_and_once(namespace: Namespace, point: str) -> None:
    """Req: X-01."""
    queue = namespace.queue(requires_session=True)
    for session in "abc":
        namespace.send(queue, numbered(20), session)
    options = namespace.options(queue, maxMessagesPerTrigger="17", minPartitions="1")
    checkpoint = Checkpoint()
    with pytest.raises(Stopped):
        start(options, checkpoint, stop_at=point, stop_in_batch=1).run()
    for session in "abc":
        namespace.send(queue, numbered(5, 20), session)
    drain(options, checkpoint)
    for session in "abc":
        assert [row["body"].decode() for row in checkpoint.rows if row["sessionId"] == session] == numbered(
            25
        )
    assert namespace.left(queue) == 0


@pytest.mark.parametrize("messages", [0, 10])
def test_a_second_query_with_the_same_cursor_is_refused_and_the_first_goes_on(
    namespace: Namespace, messages: int
) -> None:
    """Also before there are messages. Req: X-01, X-06."""
    queue = namespace.queue()
    namespace.send(queue, numbered(messages))
    options = namespace.options(queue, maxMessagesPerTrigger="2")
    first, checkpoint = Checkpoint(), Checkpoint()
    one = start(options, first)
    one.first()
    namespace.broker.advance(timedelta(seconds=7))
    text = rf"cursor 'spark' of '{queue}' belongs to the reader '.+', which used it 7 s ago.*takeOver=true"
    with pytest.raises(ServiceBusError, match=text):
        start(options, checkpoint).trigger()
    assert checkpoint.offsets == []
    namespace.send(queue, numbered(20, messages))
    one.run()
    assert first.bodies == numbered(messages + 20)


def test_taking_over_ends_the_first_query_and_brings_back_what_it_had_not_committed(
    namespace: Namespace,
) -> None:
    """Req: X-01, X-06."""
    queue = namespace.queue()
    namespace.send(queue, numbered(10))
    first, second = Checkpoint(), Checkpoint()
    one = start(namespace.options(queue, maxMessagesPerTrigger="2"), first)
    one.trigger()
    taking = namespace.options(queue, maxMessagesPerTrigger="2", takeOver="true")
    two = start(taking, second)
    two.trigger()
    with pytest.raises(ServiceBusError, match="peeklock:cursor-owned"):
        one.trigger()
    with pytest.raises(ServiceBusError, match="peeklock:cursor-owned"):
        start(namespace.options(queue), first).trigger()
    two.run()
    assert second.bodies == numbered(10)


@pytest.mark.parametrize("point", ["latest", "log", "commit", "partitions"])
def test_a_query_that_died_before_its_first_read_holds_nobody_back(namespace: Namespace, point: str) -> None:
    """With its checkpoint or without. Req: X-02, X-06."""
    queue = namespace.queue()
    namespace.send(queue, numbered(10))
    options = namespace.options(queue, maxMessagesPerTrigger="4")
    checkpoint = Checkpoint()
    with pytest.raises(Stopped):
        start(options, checkpoint, stop_at=point).trigger()
    other = Checkpoint()
    start(options, other).trigger()
    assert other.bodies == numbered(4)
    if checkpoint.offsets:  # it was logged, and its claims went to the other
        with pytest.raises(ServiceBusError, match="peeklock:cursor-owned"):
            start(options, checkpoint)
    assert drain(options, other).bodies == numbered(10)
    assert namespace.left(queue) == 0


def test_queries_without_a_name_have_cursors_of_their_own_and_keep_them(namespace: Namespace) -> None:
    """Req: X-01, X-06."""
    queue = namespace.queue()
    namespace.send(queue, numbered(8))
    settings = {"connectionString": namespace.broker.connection_string, "entity": queue}
    options = read_options({**settings, "maxMessagesPerTrigger": "2"}, Use.STREAM_READ)
    one, two = Checkpoint(), Checkpoint()
    start(options, one).trigger()
    start(options, two).trigger()
    start(options, one).trigger()
    drain(options, two)
    drain(options, one)
    assert sorted(map(int, one.bodies + two.bodies)) == [*range(8)]
    assert namespace.left(queue) == 0


def test_what_a_query_without_a_name_claimed_and_never_logged_is_free_after_ten_minutes(
    namespace: Namespace,
) -> None:
    """Nobody knows its cursor. Req: X-02, X-06."""
    queue = namespace.queue()
    namespace.send(queue, numbered(3))
    settings = {"connectionString": namespace.broker.connection_string, "entity": queue}
    options = read_options(settings, Use.STREAM_READ)
    with pytest.raises(Stopped):
        start(options, Checkpoint(), stop_at="log").trigger()
    assert namespace.states(queue) == [f"{body} claimed" for body in numbered(3)]
    logged, checkpoint = namespace.queue(), Checkpoint()
    namespace.send(logged, numbered(3))
    other = read_options({**settings, "entity": logged}, Use.STREAM_READ)
    start(other, checkpoint).trigger()
    namespace.broker.advance(timedelta(minutes=11))
    assert namespace.states(queue) == [f"{body} active" for body in numbered(3)]
    assert drain(other, checkpoint).bodies == numbered(3)  # after a read it is kept for a week


GOLDEN = Path(__file__).parents[2] / "golden" / "checkpoints"


def test_a_checkpoint_without_owners_goes_on_and_then_has_one(namespace: Namespace) -> None:
    """Spark wrote it with a release that had none: batch 1 is logged and not done. Req: X-01, X-02."""
    golden = Checkpoint.of(GOLDEN / "cursor-1")
    assert (len(golden.offsets), golden.commits) == (2, 1)
    golden.sink[0] = []  # it is in a table of that time
    namespace.administration.create_queue("orders")
    namespace.send("orders", numbered(10))
    claims = {"cursor": "spark", "max-messages": 3, "max-bytes": 1 << 20}
    node = connection(namespace.options("orders").settings).management("orders")
    for _ in range(2):
        node.request("peeklock:cursor-claim", claims)
    node.request("peeklock:cursor-commit", {"cursor": "spark", "claim": 1})
    options = namespace.options("orders", maxMessagesPerTrigger="3", failOnDataLoss="false")
    with pytest.raises(Stopped):
        start(options, golden, stop_at="log").trigger()  # its owner is not logged
    assert drain(options, golden).bodies == numbered(7, 3)
    assert namespace.left("orders") == 0
    assert '"owner": ' in golden.offsets[-1]
    with pytest.raises(ServiceBusError, match="peeklock:cursor-owned"):
        drain(options)


def test_a_rate_spreads_the_batches_over_time(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = namespace.queue()
    namespace.send(queue, numbered(100))
    now_s = 1000.0

    def pause(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    # Of this module alone: other threads sleep too.
    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=pause)
    monkeypatch.setattr("peeklock.spark.source.cursor.time", clock)
    checkpoint = Checkpoint()
    query = start(namespace.options(queue, maxMessagesPerSecond="20"), checkpoint, available_now=True)
    query.run()
    assert checkpoint.bodies == numbered(100)
    assert 4.0 <= now_s - 1000.0 <= 6.0


def test_the_report_has_backlog_and_age_of_each_entity_and_is_at_most_a_second_old(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: X-01."""
    busy, empty = namespace.queue(), namespace.queue()
    namespace.send(busy, numbered(10))
    namespace.broker.advance(timedelta(seconds=5))
    query = start(namespace.options(busy, empty, maxMessagesPerTrigger="4"), Checkpoint())
    assert query.reader.reportLatestOffset() is None
    query.trigger()
    report = until(query.reader.reportLatestOffset)  # None while the broker takes longer than it waits
    assert report[empty] == {"claim": 0, "backlog": 0, "oldestAgeSeconds": None}
    assert report[busy]["backlog"] == 10
    assert 5.0 <= report[busy]["oldestAgeSeconds"] < 60.0
    query.trigger()
    assert query.reader.reportLatestOffset() is report
    monkeypatch.setattr("peeklock.spark.source.cursor.REPORT_S", 0.0)
    later = query.reader.reportLatestOffset()[busy]
    assert later["claim"] > report[busy]["claim"]
    assert later["backlog"] < 10  # the first batch is committed


def test_a_released_cursor_is_data_loss_or_goes_on_without(
    namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Req: X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(10))
    options = namespace.options(queue, maxMessagesPerTrigger="4")
    checkpoint = Checkpoint()
    start(options, checkpoint).trigger()
    assert release_cursor(options.settings, queue, "spark", dry_run=True) == 4
    assert release_cursor(options.settings, queue, "spark") == 4
    assert namespace.states(queue) == [f"{body} active" for body in numbered(10)]
    with pytest.raises(OptionError, match=f"'{queue}' has no cursor 'spark'; its cursors: none"):
        release_cursor(options.settings, queue, "spark")
    with pytest.raises(DataLoss, match=rf"'{queue}'.*checkpoint is at claim 1.*at claim 0.*failOnDataLoss"):
        drain(options, checkpoint)
    lenient = namespace.options(queue, maxMessagesPerTrigger="4", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "peeklock.spark"):
        drain(lenient, checkpoint)
    assert sum("skipped" in record.message for record in caplog.records) == 1
    assert checkpoint.bodies == numbered(4) + numbered(10)  # what was given back comes again
    assert namespace.left(queue) == 0
    drain(options, checkpoint)  # and the checkpoint fits again


def test_a_checkpoint_older_than_what_is_committed_is_data_loss(
    namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Req: X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(20))
    options = namespace.options(queue, maxMessagesPerTrigger="5")
    checkpoint = drain(options)
    old = Checkpoint(checkpoint.offsets[:1], 1)
    with pytest.raises(DataLoss, match="claims 2 to 4"):
        drain(options, old)
    in_batch = Checkpoint(checkpoint.offsets[:2], 1)
    with pytest.raises(DataLoss, match="claims 2 to 2 of its next batch"):
        drain(options, in_batch)
    namespace.send(queue, numbered(3, 20))
    with caplog.at_level(logging.WARNING, "peeklock.spark"):
        drain(namespace.options(queue, failOnDataLoss="false"), old)
    assert "claims 2 to 4" in caplog.text
    assert old.bodies == numbered(3, 20)


def test_checkpoint_of_another_entity_is_refused_by_name(namespace: Namespace) -> None:
    """Req: X-01."""
    queue, other = namespace.queue(), namespace.queue()
    namespace.send(queue, numbered(3))
    checkpoint = drain(namespace.options(queue))
    with pytest.raises(CheckpointMismatch, match=rf"entities {queue}; option entity has {other}"):
        drain(namespace.options(other), checkpoint)


def test_a_deleted_entity_ends_the_query_by_name(namespace: Namespace) -> None:
    """Req: X-01."""
    queue = namespace.queue()
    namespace.send(queue, numbered(3))
    query = start(namespace.options(queue), Checkpoint())
    query.trigger()
    namespace.administration.delete_queue(queue)
    with pytest.raises(ServiceBusError, match=rf"{queue}.*amqp:not-found"):
        query.trigger()


@pytest.mark.parametrize("lost", range(12))
def test_a_lost_answer_loses_and_repeats_nothing(namespace: Namespace, lost: int) -> None:
    """The connection breaks in one of the calls, with the answer that comes next. Req: X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(60))
    with LossyRelay(namespace.broker.port) as relay:
        text = namespace.broker.connection_string.replace(str(namespace.broker.port), str(relay.port))
        options = namespace.options(queue, connection_string=text, maxMessagesPerTrigger="20")
        checkpoint = Checkpoint()
        query = start(options, checkpoint)
        query.on_call = lambda number: relay.loses.set() if number == lost else None
        query.run()
        assert not relay.loses.is_set()
        drain(options, checkpoint)
    assert checkpoint.bodies == numbered(60)
    assert namespace.left(queue) == 0
