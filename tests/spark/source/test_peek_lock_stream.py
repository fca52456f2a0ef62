"""Streams of peek-lock mode, driven as Spark drives them and stopped between any two of its calls."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

from peeklock.amqp.types import Array, Long, UInt
from peeklock.client.connection import connection
from peeklock.client.errors import OptionError
from peeklock.client.links import ABANDON, COMPLETE, RELEASE, ReceiveMode
from peeklock.spark.options import Options
from peeklock.spark.source.cursor import CursorStreamReader
from peeklock.spark.source.deferred import Released, release_deferred
from peeklock.spark.source.offsets import CheckpointMismatch
from peeklock.spark.source.peek_lock import PeekLockStreamReader
from peeklock.spark.source.rows import record_batch
from peeklock.spark.source.schema import row_schema
from peeklock.testing.served import ServedBroker
from tests.spark.engine import SCHEMA, Checkpoint, Query, Stopped
from tests.spark.streams import LossyRelay, Namespace, numbered

pytestmark = pytest.mark.spark

POINTS = ["log", "commit", "partitions", "read", "sink", "done"]
LOCK = timedelta(seconds=60)


@pytest.fixture(scope="module")
def namespace(broker: ServedBroker, administration: Any) -> Namespace:
    return Namespace(broker, administration)


def start(options: Options, checkpoint: Checkpoint, **how: Any) -> Query:
    return Query(lambda: PeekLockStreamReader(options, SCHEMA), checkpoint, **how)


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
    """Locks of the dead driver lapse before the next one begins, or while it is at work. Req: X-01, X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(100))
    options = namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="30", minPartitions="3")
    checkpoint = Checkpoint()
    with pytest.raises(Stopped):
        start(options, checkpoint, stop_at=point, stop_in_batch=batch).run()
    start(options, checkpoint).trigger()
    namespace.broker.advance(LOCK)
    namespace.send(queue, numbered(20, 100))
    drain(options, checkpoint)
    assert sorted(map(int, checkpoint.bodies)) == [*range(120)]
    assert namespace.states(queue) == []


def test_nothing_is_deferred_before_the_offset_log_has_it(namespace: Namespace) -> None:
    """So every message that a crash leaves deferred is in a checkpoint. Req: X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(3))
    options = namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="2")
    with pytest.raises(Stopped):
        start(options, Checkpoint(), stop_at="log").run()
    assert namespace.states(queue) == ["0 active", "1 active", "2 active"]
    namespace.broker.advance(LOCK)
    with pytest.raises(Stopped):
        start(options, Checkpoint(), stop_at="read").run()
    assert namespace.states(queue) == ["0 deferred", "1 deferred", "2 active"]


def dead_letters(namespace: Namespace, queue: str) -> list[str]:
    """Return the bodies in the dead-letter queue that their last delivery attempt brought there."""
    options = namespace.options(queue, subQueue="deadLetter")
    management = connection(options.settings).management(f"{queue}/$DeadLetterQueue")
    body = {"from-sequence-number": 0, "message-count": 1000}
    found = management.request("com.microsoft:peek-message", body).body.get("messages") or []
    if not found:
        return []
    rows = record_batch([one["message"] for one in found], queue, row_schema()).to_pylist()
    assert {row["deadLetterReason"] for row in rows} == {"MaxDeliveryCountExceeded"}
    return [row["body"].decode() for row in rows]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_what_its_deferral_dead_letters_is_in_no_batch_and_told_once(
    namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Source: wire contract, correction C2. Req: X-02, L-08."""
    queue = namespace.queue(max_delivery_count=1)
    namespace.send(queue, numbered(6))
    options = namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="2")
    with caplog.at_level("INFO", "peeklock.spark"):
        checkpoint = drain(options)
    assert checkpoint.rows == []
    assert namespace.states(queue) == []
    assert sorted(dead_letters(namespace, queue)) == numbered(6)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"entity '{queue}': MaxDeliveryCount is 1, ")
    assert "6 of all batches" in caplog.text
    settled = [json.loads(offset)["settle"] for offset in checkpoint.offsets]
    assert settled == [{}, {}, {}], "nothing is to be removed"


def test_only_what_has_been_delivered_before_is_dead_lettered_by_its_deferral(
    namespace: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Source: wire contract, correction C2. Req: X-02, L-08."""
    queue = namespace.queue(max_delivery_count=2)
    namespace.send(queue, numbered(10))
    options = namespace.options(queue, mode="peekLock")
    receiver = connection(options.settings).receiver(queue, ReceiveMode.PEEK_LOCK)
    deliveries = [one for _ in range(10) for one in receiver.receive(1, 5)]
    for at, delivery in enumerate(deliveries):
        receiver.settle(delivery, ABANDON if at % 3 == 0 else RELEASE)
    receiver.flush()
    checkpoint = drain(options)
    assert checkpoint.bodies == [body for body in numbered(10) if int(body) % 3]
    assert namespace.states(queue) == []
    assert dead_letters(namespace, queue) == ["0", "3", "6", "9"]
    (warning,) = warnings_of(caplog)
    assert f"entity '{queue}': MaxDeliveryCount is 2, " in warning
    assert "4 messages of batch 1 " in warning


@pytest.mark.parametrize("attempts_max", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_with_few_deliveries_allowed_nothing_is_lost_or_read_twice_wherever_the_driver_dies(
    namespace: Namespace, point: str, attempts_max: int
) -> None:
    """What is not in the stream is in the dead-letter queue. Req: X-02, L-08."""
    queue = namespace.queue(max_delivery_count=attempts_max)
    namespace.send(queue, numbered(20))
    options = namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="8")
    checkpoint = Checkpoint()
    with pytest.raises(Stopped):
        start(options, checkpoint, stop_at=point, stop_in_batch=1).run()
    namespace.broker.advance(LOCK)
    drain(options, checkpoint)
    dead = dead_letters(namespace, queue)
    assert sorted(map(int, [*checkpoint.bodies, *dead])) == [*range(20)]
    assert namespace.states(queue) == []
    if attempts_max == 1:
        assert len(dead) == 20
    elif point in ("log", "commit", "partitions"):
        assert len(dead) == 8, "they were locked when the driver died, and that was one delivery"
    else:
        assert dead == [], "a batch that is deferred is read again"


def test_messages_between_those_of_others_are_found(namespace: Namespace) -> None:
    """Other receivers take part of the messages: an offset is many short runs then."""
    queue = namespace.queue()
    namespace.send(queue, numbered(300))
    options = namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="40")
    receiver = connection(options.settings).receiver(queue, ReceiveMode.PEEK_LOCK)
    deliveries = [one for _ in range(300) for one in receiver.receive(1, 5)]
    for at, delivery in enumerate(deliveries):
        receiver.settle(delivery, ABANDON if at % 7 == 0 or at % 11 == 0 else COMPLETE)
    receiver.flush()
    checkpoint = drain(options)
    assert sorted(map(int, checkpoint.bodies)) == [at for at in range(300) if at % 7 == 0 or at % 11 == 0]
    assert namespace.states(queue) == []


def test_a_lock_that_lapsed_before_the_deferral_leaves_its_message_to_a_later_batch(
    namespace: Namespace,
) -> None:
    """Req: X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(5))
    options = namespace.options(queue, mode="peekLock")
    checkpoint = Checkpoint()
    query = start(options, checkpoint)
    query.on_call = lambda number: namespace.broker.advance(LOCK) if number == 1 else None
    query.trigger()
    assert checkpoint.bodies == []
    query.on_call = lambda number: None
    query.trigger()
    drain(options, checkpoint)
    assert checkpoint.bodies == numbered(5)
    assert namespace.states(queue) == []


def test_the_last_batch_is_settled_when_nothing_comes(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: X-01."""
    queue = namespace.queue()
    namespace.send(queue, numbered(5))
    checkpoint = Checkpoint()
    query = start(namespace.options(queue, mode="peekLock"), checkpoint)
    assert query.trigger()
    assert not query.trigger()
    monkeypatch.setattr("peeklock.spark.source.peek_lock.IDLE_S", 0.0)
    assert query.trigger()
    assert not query.trigger()
    assert namespace.states(queue) == []
    assert [len(rows) for rows in checkpoint.sink.values()] == [5, 0]


def test_available_now_stops_at_what_was_there_and_gives_back_the_rest(namespace: Namespace) -> None:
    """Req: X-01."""
    queue = namespace.queue()
    namespace.send(queue, numbered(10))
    checkpoint = Checkpoint()
    options = namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="4")
    query = start(options, checkpoint, available_now=True)
    namespace.send(queue, numbered(5, 10))
    query.run()
    assert checkpoint.bodies == numbered(10)
    receiver = connection(options.settings).receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
    found = record_batch([one.payload for one in receiver.receive(10, 5)], queue, row_schema()).to_pylist()
    assert [row["body"].decode() for row in found] == numbered(5, 10)
    assert {row["deliveryCount"] for row in found} == {0}


def test_batches_keep_to_their_limits(namespace: Namespace) -> None:
    """Req: X-01."""
    queue = namespace.queue()
    namespace.send(queue, numbered(60), size=1000)
    checkpoint = Checkpoint()
    query = start(namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="15"), checkpoint)
    query.trigger()
    assert len(checkpoint.rows) == 15
    checkpoint = Checkpoint()
    query = start(namespace.options(queue, mode="peekLock", maxBytesPerTrigger="20k"), checkpoint)
    query.trigger()
    query.trigger()
    assert all(0 < len(rows) <= 20 for rows in checkpoint.sink.values())


def test_dead_letter_queue_subscription_partitioned_queue_and_several_entities(namespace: Namespace) -> None:
    """Req: X-01."""
    queue = namespace.queue(
        default_message_time_to_live=timedelta(seconds=1), dead_lettering_on_message_expiration=True
    )
    namespace.send(queue, numbered(10))
    namespace.broker.advance(timedelta(seconds=5))
    found = drain(namespace.options(queue, mode="peekLock", subQueue="deadLetter"))
    assert found.bodies == numbered(10)

    administration = namespace.administration
    administration.create_topic("news")
    administration.create_subscription("news", "audit")
    namespace.send("news", numbered(10))
    partitioned = namespace.queue(enable_partitioning=True)
    namespace.send(partitioned, numbered(100, 10))
    options = namespace.options(
        "news/Subscriptions/audit", partitioned, mode="peekLock", maxMessagesPerTrigger="30"
    )
    found = drain(options)
    assert sorted(map(int, found.bodies)) == [*range(110)]
    assert namespace.states(partitioned) == []


@pytest.mark.parametrize("point", POINTS)
def test_sessions_arrive_at_least_once_and_in_order(namespace: Namespace, point: str) -> None:
    """Sessions are held, not deferred: what the dead driver had not completed comes again. Req: X-02."""
    queue = namespace.queue(requires_session=True)
    for session in "abc":
        namespace.send(queue, numbered(20), session)
    options = namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="17", minPartitions="1")
    checkpoint = Checkpoint()
    dying = start(options, checkpoint, stop_at=point, stop_in_batch=1)
    with pytest.raises(Stopped):
        dying.run()
    for entity in dying.reader._opened().values():
        entity.close_sessions(())  # as the end of its process would
    for session in "abc":
        namespace.send(queue, numbered(5, 20), session)
    drain(options, checkpoint)
    for session in "abc":
        bodies = [int(row["body"]) for row in checkpoint.rows if row["sessionId"] == session]
        assert [*dict.fromkeys(bodies)] == [*range(25)]  # the first time each comes
        assert max(Counter(bodies).values()) <= 2
    assert namespace.states(queue) == []


def test_sessions_without_a_crash_arrive_once(namespace: Namespace) -> None:
    """Req: X-01."""
    queue = namespace.queue(requires_session=True)
    for session in "abc":
        namespace.send(queue, numbered(30), session)
    found = drain(namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="17"))
    for session in "abc":
        bodies = [row["body"].decode() for row in found.rows if row["sessionId"] == session]
        assert bodies == numbered(30)
    assert namespace.states(queue) == []


@pytest.mark.parametrize("lost", range(8))
def test_a_lost_answer_loses_and_repeats_nothing(namespace: Namespace, lost: int) -> None:
    """The connection breaks in one of the calls, with the answer that comes next. Req: X-02."""
    queue = namespace.queue()
    namespace.send(queue, numbered(60))
    with LossyRelay(namespace.broker.port) as relay:
        text = namespace.broker.connection_string.replace(str(namespace.broker.port), str(relay.port))
        options = namespace.options(
            queue, connection_string=text, mode="peekLock", maxMessagesPerTrigger="20"
        )
        checkpoint = Checkpoint()
        query = start(options, checkpoint)
        query.on_call = lambda number: relay.loses.set() if number == lost else None
        query.run()
        namespace.broker.advance(LOCK)
        drain(options, checkpoint)
    assert sorted(map(int, checkpoint.bodies)) == [*range(60)]
    assert namespace.states(queue) == []


def test_checkpoint_of_cursor_mode_is_refused_by_name(namespace: Namespace) -> None:
    queue = namespace.queue()
    namespace.send(queue, numbered(3))
    checkpoint = drain(namespace.options(queue, mode="peekLock"))
    with pytest.raises(CheckpointMismatch, match=r"mode=peekLock; this one has mode=cursor"):
        Query(lambda: CursorStreamReader(namespace.options(queue), SCHEMA), checkpoint).run()


def test_deferred_messages_that_a_lost_checkpoint_leaves_are_released(namespace: Namespace) -> None:
    """They go to the dead-letter queue: nothing can make them active again. Req: X-04."""
    queue = namespace.queue()
    namespace.send(queue, numbered(50))
    options = namespace.options(queue, mode="peekLock", maxMessagesPerTrigger="30")
    start(options, Checkpoint()).trigger()
    assert release_deferred(options.settings, queue, dry_run=True) == Released(30, 0)
    assert release_deferred(options.settings, queue) == Released(30, 0)
    assert namespace.states(queue) == [f"{body} active" for body in numbered(20, 30)]
    dead = drain(namespace.options(queue, subQueue="deadLetter"))
    assert dead.bodies == numbered(30)


def test_release_tells_of_messages_that_another_receiver_has_locked(namespace: Namespace) -> None:
    """Such as a run that was killed: its locks outlast it. Req: X-04."""
    queue = namespace.queue()
    namespace.send(queue, numbered(30))
    options = namespace.options(queue, mode="peekLock")
    start(options, Checkpoint()).trigger()
    management = connection(options.settings).management(queue)
    body = {"sequence-numbers": Array(Long, [3, 25]), "receiver-settle-mode": UInt(1)}
    management.request("com.microsoft:receive-by-sequence-number", body)
    assert release_deferred(options.settings, queue) == Released(28, 2)
    namespace.broker.advance(LOCK)
    assert release_deferred(options.settings, queue) == Released(2, 0)
    assert namespace.states(queue) == []


def test_release_refuses_what_it_cannot_do(namespace: Namespace) -> None:
    settings = namespace.options("any").settings
    with pytest.raises(OptionError, match="is a dead-letter queue"):
        release_deferred(settings, "orders/$DeadLetterQueue")
    queue = namespace.queue(requires_session=True)
    with pytest.raises(OptionError, match=f"'{queue}' has sessions"):
        release_deferred(settings, queue)
