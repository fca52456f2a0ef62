"""Messages moved in transactions: they arrive once and leave their source, or nothing happens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.performatives import Rejected
from peeklock.amqp.types import Int, Long
from peeklock.client.administration import Administration
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.entities import Value
from peeklock.client.errors import MESSAGE_LOCK_LOST, MESSAGE_SIZE_EXCEEDED, SERVER_BUSY, ServiceBusError
from peeklock.client.links import COMPLETE, NEXT, RELEASE, Delivery, ReceiveMode
from peeklock.client.transactions import FORWARD_MAX, Forwarder
from peeklock.demo.broker import BrokerProcess
from peeklock.testing.served import ServedBroker
from tests.spark.relay import Relay

PEEK = "com.microsoft:peek-message"
MakeQueue = Callable[..., str]

DISABLED = "com.microsoft:entity-disabled"
FULL = "amqp:resource-limit-exceeded"


@pytest.fixture(scope="module")
def ours(broker: ServedBroker) -> Administration:
    return Administration.of(ConnectionString.parse(broker.connection_string))


@pytest.fixture
def relay(broker: ServedBroker) -> Iterator[Relay]:
    with Relay(broker.port) as made:
        yield made


@pytest.fixture
def relayed(relay: Relay, broker: ServedBroker) -> Iterator[BlockingConnection]:
    """A connection that can be cut."""
    text = broker.connection_string.replace(f":{broker.port};", f":{relay.port};")
    made = BlockingConnection(ConnectionString.parse(text, timeout_s=10))
    yield made
    made.close()


def message(number: int, *, size: int = 10, session_id: str | None = None) -> bytes:
    properties = Properties(message_id=str(number), group_id=session_id)
    return encode_message(properties=properties, data=str(number).encode().ljust(size))


def fill(connection: BlockingConnection, path: str, count: int, **further: Any) -> list[str]:
    sender = connection.sender(path)
    for number in range(count):
        sender.send(message(number, **further))
    sender.flush()
    sender.close()
    return [str(number) for number in range(count)]


def found(connection: BlockingConnection, path: str) -> list[str]:
    """Return the ids of the messages in an entity."""
    ids: list[str] = []
    number = 0
    while True:
        body = {"from-sequence-number": Long(number), "message-count": Int(250)}
        payloads = connection.management(path).request(PEEK, body).messages
        if not payloads:
            return ids
        for payload in payloads:
            sections = scan(payload)
            ids.append(sections.decode_properties().message_id)
            number = sections.decode_message_annotations()["x-opt-sequence-number"] + 1


def group(deliveries: list[Delivery]) -> list[tuple[Delivery, bytes]]:
    return [(delivery, delivery.payload) for delivery in deliveries]


def move_all(forwarder: Forwarder, size: int = FORWARD_MAX) -> int:
    moved = 0
    while deliveries := forwarder.receive(size, 0):
        forwarder.forward(group(deliveries))
        moved += len(deliveries)
    forwarder.flush()
    return moved


def available(connection: BlockingConnection, path: str) -> list[str]:
    """Return the ids of the messages that are not locked; they are released again."""
    receiver = connection.receiver(path, ReceiveMode.PEEK_LOCK)
    deliveries = receiver.receive(1000, 0)
    for delivery in deliveries:
        receiver.settle(delivery, RELEASE)
    receiver.flush()
    receiver.close()
    return [scan(delivery.payload).decode_properties().message_id for delivery in deliveries]


@pytest.mark.parametrize("size", [1, 7, FORWARD_MAX])
def test_messages_leave_their_source_and_arrive_once(
    own: BlockingConnection, make_queue: MakeQueue, size: int
) -> None:
    """Many transactions are under way. Req: F-03."""
    source, target = make_queue(), make_queue()
    sent = fill(own, source, 230)
    assert move_all(own.forwarder(source, target), size) == 230
    assert sorted(found(own, target)) == sorted(sent)
    assert found(own, source) == []


def test_other_payloads_may_be_sent_and_the_order_is_kept(
    own: BlockingConnection, make_queue: MakeQueue
) -> None:
    source, target = make_queue(), make_queue()
    fill(own, source, 20)
    forwarder = own.forwarder(source, target)
    deliveries = forwarder.receive(20, 1)
    forwarder.forward([(each, message(100 + place)) for place, each in enumerate(deliveries)])
    forwarder.forward([])
    forwarder.flush()
    assert found(own, target) == [str(100 + place) for place in range(20)]


def test_more_than_a_transaction_takes_is_refused_at_once(
    own: BlockingConnection, make_queue: MakeQueue
) -> None:
    source, target = make_queue(), make_queue()
    fill(own, source, FORWARD_MAX + 1)
    forwarder = own.forwarder(source, target)
    deliveries = forwarder.receive(FORWARD_MAX + 1, 1)
    with pytest.raises(ValueError, match="101 messages in a transaction, at most 100"):
        forwarder.forward(group(deliveries))
    forwarder.forward(group(deliveries[:FORWARD_MAX]))
    forwarder.forward(group(deliveries[FORWARD_MAX:]))
    forwarder.flush()
    assert (len(found(own, target)), found(own, source)) == (FORWARD_MAX + 1, [])


def test_more_bytes_than_may_be_under_way_are_moved(own: BlockingConnection, make_queue: MakeQueue) -> None:
    """Groups of 20 MiB, each of which goes alone."""
    source, target = make_queue(), make_queue()
    sent = fill(own, source, 200, size=200_000)
    assert move_all(own.forwarder(source, target)) == 200
    assert sorted(found(own, target)) == sorted(sent)
    assert found(own, source) == []


def test_single_deliveries_are_settled_outside_of_transactions(
    own: BlockingConnection, make_queue: MakeQueue
) -> None:
    source, target = make_queue(), make_queue()
    fill(own, source, 3)
    forwarder = own.forwarder(source, target)
    first, second, third = forwarder.receive(3, 1)
    forwarder.settle(first, COMPLETE)
    forwarder.forward(group([second]))
    forwarder.settle(third, RELEASE)
    forwarder.flush()
    assert (found(own, target), found(own, source), available(own, source)) == (["1"], ["2"], ["2"])


def test_dead_letters_of_a_subscription_move_to_a_topic(
    own: BlockingConnection, ours: Administration
) -> None:
    for topic in ("origin", "destination"):
        ours.create("topic", topic, {})
        ours.create("subscription", f"{topic}/Subscriptions/all", {})
    sent = fill(own, "origin", 30)
    moved = own.forwarder("origin/Subscriptions/all", "destination")
    assert move_all(moved, 10) == 30
    receiver = own.receiver("destination/Subscriptions/all", ReceiveMode.PEEK_LOCK)
    for delivery in receiver.receive(30, 1):
        receiver.settle(delivery, Rejected())
    receiver.flush()
    dead = "destination/Subscriptions/all/$DeadLetterQueue"
    assert len(found(own, dead)) == 30
    assert move_all(own.forwarder(dead, "origin"), 10) == 30
    assert sorted(found(own, "origin/Subscriptions/all")) == sorted(sent)
    assert found(own, dead) == []


def test_a_dead_letter_moves_back_to_its_own_queue(own: BlockingConnection, make_queue: MakeQueue) -> None:
    queue = make_queue()
    fill(own, queue, 5)
    receiver = own.receiver(queue, ReceiveMode.PEEK_LOCK)
    for delivery in receiver.receive(5, 1):
        receiver.settle(delivery, Rejected())
    receiver.flush()
    assert move_all(own.forwarder(f"{queue}/$DeadLetterQueue", queue), 2) == 5
    assert (len(found(own, queue)), found(own, f"{queue}/$DeadLetterQueue")) == (5, [])


def test_messages_of_sessions_move_with_their_session(own: BlockingConnection, make_queue: MakeQueue) -> None:
    source, target = make_queue(requires_session=True), make_queue(requires_session=True)
    fill(own, source, 5, session_id="ann")
    fill(own, source, 6, session_id="bob")
    forwarder = own.forwarder(source, target, "bob")
    assert move_all(forwarder, 4) == 6
    assert forwarder.session_id == "bob"
    forwarder.close()
    assert move_all(own.forwarder(source, target, NEXT)) == 5
    assert (len(found(own, target)), found(own, source)) == (11, [])


def test_partitions_that_differ_are_the_broker_s_refusal(
    own: BlockingConnection, make_queue: MakeQueue
) -> None:
    """Req: F-03."""
    source, target = make_queue(enable_partitioning=True), make_queue()
    fill(own, source, 50)
    forwarder = own.forwarder(source, target)
    deliveries = forwarder.receive(50, 1)
    forwarder.forward(group(deliveries))
    with pytest.raises(ServiceBusError) as refused:
        forwarder.flush()
    assert refused.value.condition == "amqp:not-allowed"
    assert found(own, target) == []
    assert forwarder.rolled_back == deliveries
    for delivery in deliveries:  # one by one each has its own partition
        forwarder.forward(group([delivery]))
    forwarder.flush()
    assert (len(found(own, target)), found(own, source)) == (50, [])


# Refused


def test_a_message_too_large_for_the_target_is_named_and_stays_locked(
    own: BlockingConnection, make_queue: MakeQueue, ours: Administration
) -> None:
    source, target = make_queue(), make_queue()
    fill(own, source, 3)
    forwarder = own.forwarder(source, target)
    first, second, third = forwarder.receive(3, 1)
    forwarder.forward(group([first]))
    with pytest.raises(ServiceBusError) as refused:
        forwarder.forward([(second, second.payload), (third, message(3, size=300_000))])
    assert refused.value.condition == MESSAGE_SIZE_EXCEEDED
    assert refused.value.index == 2
    assert (refused.value.entity, "Nothing of its transaction was done" in str(refused.value)) == (
        target,
        True,
    )
    assert available(own, source) == []
    for delivery in (second, third):
        forwarder.settle(delivery, RELEASE)
    forwarder.flush()
    assert (found(own, target), available(own, source)) == (["0"], ["1", "2"])


def test_a_target_that_is_disabled_or_missing_is_named(
    own: BlockingConnection, make_queue: MakeQueue, ours: Administration
) -> None:
    source, target = make_queue(), make_queue(status="Disabled")
    with pytest.raises(ServiceBusError) as refused:
        own.forwarder(source, target).receive(1, 0)
    assert (refused.value.condition, refused.value.entity) == (DISABLED, target)
    with pytest.raises(ServiceBusError) as refused:
        own.forwarder(source, "missing").receive(1, 0)
    assert (refused.value.condition, refused.value.entity) == ("amqp:not-found", "missing")


def test_a_target_disabled_meanwhile_leaves_the_locks(
    own: BlockingConnection, make_queue: MakeQueue, ours: Administration
) -> None:
    source, target = make_queue(), make_queue()
    fill(own, source, 4)
    forwarder = own.forwarder(source, target)
    deliveries = forwarder.receive(4, 1)
    set_status(ours, target, "Disabled")
    for _ in range(2):
        forwarder.forward(group(deliveries[:2]))
        with pytest.raises(ServiceBusError) as refused:
            forwarder.flush()
        assert (refused.value.condition, refused.value.entity) == (DISABLED, target)
    assert available(own, source) == []
    set_status(ours, target, "Active")
    forwarder.forward(group(deliveries[:2]))
    for delivery in deliveries[2:]:
        forwarder.settle(delivery, RELEASE)
    forwarder.flush()
    assert (found(own, target), available(own, source)) == (["0", "1"], ["2", "3"])


def test_a_target_deleted_meanwhile_leaves_the_locks_and_may_come_back(
    own: BlockingConnection, make_queue: MakeQueue, ours: Administration
) -> None:
    source, target = make_queue(), make_queue()
    fill(own, source, 3)
    forwarder = own.forwarder(source, target)
    deliveries = forwarder.receive(3, 1)
    forwarder.forward(group(deliveries[:1]))
    forwarder.flush()
    ours.delete(target)
    for _ in range(2):
        with pytest.raises(ServiceBusError) as refused:  # noqa: PT012 - either of both tells
            forwarder.forward(group(deliveries[1:]))
            forwarder.flush()
        assert (refused.value.condition, refused.value.entity) in (
            ("amqp:resource-deleted", target),
            ("amqp:not-found", target),
        )
    assert available(own, source) == []
    ours.create("queue", target, {})
    forwarder.forward(group(deliveries[1:]))
    forwarder.flush()
    assert (found(own, target), found(own, source)) == (["1", "2"], [])


def set_status(ours: Administration, path: str, status: Value) -> None:
    entity = ours.entity(path)
    assert entity is not None
    ours.update(entity, {"Status": status})


def test_a_lock_that_lapsed_rolls_its_group_back_alone(
    own: BlockingConnection, make_queue: MakeQueue, broker: ServedBroker
) -> None:
    source, target = make_queue(lock_duration=timedelta(seconds=30)), make_queue()
    fill(own, source, 4)
    forwarder = own.forwarder(source, target)
    late = forwarder.receive(2, 1)
    broker.advance(timedelta(seconds=31))
    fresh = forwarder.receive(2, 1)
    forwarder.forward(group(late))
    with pytest.raises(ServiceBusError) as refused:
        forwarder.flush()
    assert (refused.value.condition, refused.value.entity) == (MESSAGE_LOCK_LOST, source)
    assert forwarder.rolled_back == late
    forwarder.forward(group(fresh))
    forwarder.flush()
    assert len(found(own, target)) == len(found(own, source)) == 2


# Breaks


def test_deliveries_of_a_lost_link_are_refused(
    relayed: BlockingConnection, relay: Relay, make_queue: MakeQueue
) -> None:
    source, target = make_queue(), make_queue()
    fill(relayed, source, 2)
    forwarder = relayed.forwarder(source, target)
    [first] = forwarder.receive(1, 1)
    relay.cut()
    forwarder.receive(1, 0)
    with pytest.raises(ServiceBusError) as refused:
        forwarder.forward(group([first]))
    assert refused.value.condition == MESSAGE_LOCK_LOST


def test_a_break_says_what_is_known(relayed: BlockingConnection, relay: Relay, make_queue: MakeQueue) -> None:
    source, target = make_queue(), make_queue()
    fill(relayed, source, 300)
    forwarder = relayed.forwarder(source, target)
    for _ in range(3):
        forwarder.forward(group(forwarder.receive(100, 1)))
    relay.cut()
    with pytest.raises(ServiceBusError, match=rf"on their way to '{target}', \d+ are at the source") as lost:
        forwarder.flush()
    assert lost.value.retryable
    forwarder.flush()
    deadline = time.monotonic() + 20
    while len(found(relayed, target)) < 300:
        move_all(forwarder)
        assert time.monotonic() < deadline
    assert (len({*found(relayed, target)}), found(relayed, source)) == (300, [])


def test_closing_with_transactions_under_way_is_an_error(
    own: BlockingConnection, make_queue: MakeQueue
) -> None:
    source, target = make_queue(), make_queue()
    fill(own, source, 10)
    forwarder = own.forwarder(source, target)
    forwarder.forward(group(forwarder.receive(10, 1)))
    forwarder.close()
    with pytest.raises(ServiceBusError, match="the links were closed"):
        forwarder.flush()
    assert len(found(own, source)) + len(found(own, target)) == 10


def connected(process: BrokerProcess) -> BlockingConnection:
    return BlockingConnection(ConnectionString.parse(process.connection_string, timeout_s=2))


def administration_of(process: BrokerProcess) -> Administration:
    text = process.connection_string.replace(f":{process.amqp_port};", f":{process.http_port};")
    return Administration.of(ConnectionString.parse(text))


def test_each_message_is_in_one_place_after_a_kill(tmp_path: Path) -> None:
    """Req: F-03, D-01."""
    with BrokerProcess(tmp_path) as process:
        ours = administration_of(process)
        for name in ("here", "there"):
            ours.create("queue", name, {"LockDuration": timedelta(seconds=5)})
        connection = connected(process)
        sent = fill(connection, "here", 3000)
        for after_s in (0.05, 0.2):
            forwarder = connection.forwarder("here", "there")
            killing = threading.Timer(after_s, process.kill)
            killing.start()
            with pytest.raises(ServiceBusError):
                move_all(forwarder, 10)
            killing.join()
            process.start()
            left, moved = found(connection, "here"), found(connection, "there")
            assert sorted(left + moved) == sorted(sent)
            assert moved
        move_all(connection.forwarder("here", "there"))
        assert (sorted(found(connection, "there")), found(connection, "here")) == (sorted(sent), [])
        connection.close()
        assert process.stop() == 0


def test_a_quota_is_passed_on(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as process:
        ours = administration_of(process)
        for name in ("here", "there"):
            ours.create("queue", name, {})
        connection = connected(process)
        sent = fill(connection, "here", 20)
        connection.close()
        assert process.stop() == 0
    with BrokerProcess(tmp_path, [f"--min-free={1 << 60}"]) as process:
        connection = connected(process)
        forwarder = connection.forwarder("here", "there")
        deliveries = forwarder.receive(20, 1)
        forwarder.forward(group(deliveries))
        with pytest.raises(ServiceBusError) as refused:
            forwarder.flush()
        assert (refused.value.condition, refused.value.entity) == (FULL, "there")
        for delivery in forwarder.rolled_back:
            forwarder.settle(delivery, RELEASE)
        forwarder.flush()
        assert (found(connection, "there"), available(connection, "here")) == ([], sent)
        connection.close()


def test_a_busy_broker_is_waited_for(tmp_path: Path) -> None:
    queues = [{"Name": "here"}, {"Name": "there"}]
    namespace = {"Name": "slow", "Properties": {"MaxMessagesPerSecond": 50}, "Queues": queues}
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    with BrokerProcess(tmp_path, [f"--config={config}"]) as process:
        connection = BlockingConnection(ConnectionString.parse(process.connection_string, timeout_s=20))
        sent = fill(connection, "here", 200)
        assert move_all(connection.forwarder("here", "there"), 20) == 200
        assert (sorted(found(connection, "there")), found(connection, "here")) == (sorted(sent), [])
        connection.close()


def test_a_broker_that_stays_busy_is_given_up(tmp_path: Path) -> None:
    queues = [{"Name": "here"}, {"Name": "there"}]
    namespace = {"Name": "slow", "Properties": {"MaxMessagesPerSecond": 5}, "Queues": queues}
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    with BrokerProcess(tmp_path, [f"--config={config}"]) as process:
        connection = BlockingConnection(ConnectionString.parse(process.connection_string, timeout_s=20))
        fill(connection, "here", 20)
        connection.close()
        connection = BlockingConnection(ConnectionString.parse(process.connection_string, timeout_s=1))
        forwarder = connection.forwarder("here", "there")
        deliveries = forwarder.receive(20, 1)
        forwarder.forward(group(deliveries))
        with pytest.raises(ServiceBusError) as refused:
            forwarder.flush()
        assert (refused.value.condition, forwarder.rolled_back) == (SERVER_BUSY, deliveries)
        connection.close()
