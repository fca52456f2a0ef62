"""Management of sessions, partitions and forwards as a client sees them: a whole broker over AMQP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import ACCEPTED, Modified, Rejected
from peeklock.amqp.types import Array, Int, Long, Symbol, Timestamp, UInt
from peeklock.broker.vocabulary.quotas import PREMIUM
from peeklock.gateway.rewriting import INSTANT_MS_MAX
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness
from tests.gateway.live import (
    LOCK_MS,
    SETTINGS,
    accept,
    ask_for,
    bodies,
    got,
    message,
    request,
    send,
)

ALL = Timestamp(253_402_300_800_000)


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    broker = InProcessBroker()
    broker.create_queue("orders", **SETTINGS)
    yield broker
    broker.namespace.check(broker.clock.now_ms)


@pytest.fixture
def rig(broker: InProcessBroker) -> LiveHarness:
    return LiveHarness(broker)


# Through the management node


def test_deferred_messages_are_received_under_their_session_s_lock(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: G-05, L-10. Source: wire contract C4."""
    send(rig, message("1", "s"))
    accept(rig, "s", credit=1)
    [delivery] = rig.deliveries()
    number = scan(delivery.payload).decode_message_annotations()["x-opt-sequence-number"]
    rig.settle(delivery.delivery_id, delivery.delivery_id, Modified(True, True))
    body = {"sequence-numbers": Array.of(Long, [number]), "receiver-settle-mode": UInt(1)}
    other = LiveHarness(broker)
    for asker, session_id in ((other, "s"), (rig, "t")):
        response = request(asker, "orders", "receive-by-sequence-number", {**body, "session-id": session_id})
        assert (response.status, str(response.condition)) == (410, "com.microsoft:session-lock-lost")
    assert request(rig, "orders", "receive-by-sequence-number", body).status == 400
    response = request(rig, "orders", "receive-by-sequence-number", {**body, "session-id": "s"})
    [item] = response.body["messages"]
    annotations = scan(item["message"]).decode_message_annotations()
    assert annotations["x-opt-message-state"] == 1
    assert annotations["x-opt-locked-until"] == broker.clock.now_ms + LOCK_MS
    settle = {"disposition-status": "completed", "lock-tokens": [item["lock-token"]], "session-id": "s"}
    assert request(rig, "orders", "update-disposition", settle).status == 200
    assert broker.queue("orders").active_count == 0


def test_scheduled_messages_join_their_session_when_they_are_due(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: G-05, S-05. A session with scheduled messages only is not next."""
    at = Timestamp(broker.clock.now_ms + 5_000)
    later = message("later", "s", annotations={Symbol("x-opt-scheduled-enqueue-time"): at})
    response = request(rig, "orders", "schedule-message", {"messages": [{"message": later}]})
    assert response.status == 200
    handle = ask_for(rig, None, credit=1)
    assert got(rig, handle) is None
    broker.advance(5_000)
    rig.pump()
    assert got(rig, handle) == "s"
    assert bodies(rig.deliveries()) == ["later"]
    unnamed = message("x", annotations={Symbol("x-opt-scheduled-enqueue-time"): at})
    response = request(rig, "orders", "schedule-message", {"messages": [{"message": unnamed}]})
    assert (response.status, str(response.condition)) == (400, "amqp:not-allowed")


def test_peek_shows_one_session_or_all(rig: LiveHarness) -> None:
    """Req: S-11, G-01. Whether it is held or not."""
    send(rig, *(message(f"{name}{number}", name) for number in range(2) for name in "ab"))
    accept(rig, "a", credit=1)
    for session_id, expected in (("a", ["a0", "a1"]), ("b", ["b0", "b1"]), (None, ["a0", "b0", "a1", "b1"])):
        body = {"from-sequence-number": Long(0), "message-count": Int(9), "session-id": session_id}
        found = request(rig, "orders", "peek-message", body).body["messages"]
        assert [scan(item["message"]).decode_body()[0][1].decode() for item in found] == expected
    body = {"from-sequence-number": Long(0), "message-count": Int(9), "session-id": "nobody"}
    assert request(rig, "orders", "peek-message", body).status == 204


def test_the_state_of_a_session(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: G-03, A-05. At the limit of the tier, and one past it."""
    accept(rig, "s")
    get = {"session-id": "s"}
    assert request(rig, "orders", "get-session-state", get).body == {"session-state": None}
    limit = 262_144
    for state in (b"first", b"", bytes(limit), None, b"last"):
        body = {**get, "session-state": state}
        assert request(rig, "orders", "set-session-state", body).status == 200
        # The empty state is none.
        assert request(rig, "orders", "get-session-state", get).body == {"session-state": state or None}
    too_large = request(rig, "orders", "set-session-state", {**get, "session-state": bytes(limit + 1)})
    assert too_large.status == 403
    assert request(rig, "orders", "get-session-state", get).body == {"session-state": b"last"}
    other = LiveHarness(broker)
    assert request(other, "orders", "get-session-state", get).status == 410


def test_a_state_of_a_megabyte_in_the_premium_tier() -> None:
    """Req: G-03, A-05."""
    broker = InProcessBroker(tier=PREMIUM, body_cache_bytes=1)
    broker.create_queue("orders", requires_session=True)
    rig = LiveHarness(broker)
    accept(rig, "s")
    state = bytes(range(256)) * 4096
    body = {"session-id": "s", "session-state": state}
    assert request(rig, "orders", "set-session-state", body).status == 200
    assert request(rig, "orders", "get-session-state", {"session-id": "s"}).body == {"session-state": state}


def test_sessions_are_listed_in_pages(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: G-07. With messages, deferred ones too, or with a state; or those whose state was set since."""
    broker.create_queue("plain")
    everything = {"last-updated-time": ALL, "skip": Int(0), "top": Int(100)}
    response = request(rig, "orders", "get-message-sessions", everything)
    assert (response.status, str(response.condition)) == (204, "com.microsoft:session-not-found")
    response = request(rig, "plain", "get-message-sessions", everything)
    assert (response.status, str(response.condition)) == (400, "amqp:not-allowed")
    send(rig, *(message(f"m{number}", f"s{number}") for number in range(3)))
    accept(rig, "stateful")
    request(rig, "orders", "set-session-state", {"session-id": "stateful", "session-state": b"x"})
    before = broker.clock.now_ms
    accept(rig, "later")
    broker.advance(1_000)
    request(rig, "orders", "set-session-state", {"session-id": "later", "session-state": b"x"})
    found = []
    skip = 0
    while True:
        page = {"last-updated-time": ALL, "skip": Int(skip), "top": Int(2)}
        response = request(rig, "orders", "get-message-sessions", page)
        if response.status == 204:
            break
        assert len(response.body["sessions-ids"]) <= 2
        found += response.body["sessions-ids"]
        skip = response.body["skip"]
    assert sorted(found) == ["later", "s0", "s1", "s2", "stateful"]
    since = {**everything, "last-updated-time": Timestamp(before)}
    assert request(rig, "orders", "get-message-sessions", since).body["sessions-ids"] == ["later"]


# Many messages at once


def test_purge_takes_what_is_active_or_deferred_and_nothing_else(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: A-06. All of it in one request; none is 200 too."""
    broker.create_queue("plain")
    purge = "peeklock:purge-messages"
    assert request(rig, "plain", purge, {}).body == {"message-count": 0}
    send(rig, message("held"), message("later"), message("old"), to="plain")
    rig.listen("plain", credit=2)
    held, later = rig.deliveries()
    rig.settle(later.delivery_id, later.delivery_id, Modified(True, True))
    due = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(broker.clock.now_ms + 99_000)}
    scheduled = {"messages": [{"message": message("scheduled", annotations=due)}]}
    assert request(rig, "plain", "schedule-message", scheduled).status == 200
    until = Timestamp(broker.clock.now_ms)
    broker.advance(1)
    send(rig, *(message(f"new {number}") for number in range(3000)), to="plain")
    response = request(rig, "plain", purge, {"enqueued-time-utc": until})
    assert (response.status, response.body) == (200, {"message-count": 2})
    assert request(rig, "plain", purge, {}).body == {"message-count": 3000}
    view = broker.queue("plain")
    assert (view.active_count, view.scheduled_count) == (1, 1)
    rig.settle(held.delivery_id, held.delivery_id, ACCEPTED)
    assert broker.queue("plain").active_count == 0


def test_purge_of_sessions_partitions_and_dead_letters(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: A-06, G-01, S-02, L-17."""
    broker.create_queue("wide", enable_partitioning=True, **SETTINGS)
    for address in ("orders", "wide"):
        send(rig, *(message(str(number), f"s{number}") for number in range(9)), to=address)
        accept(rig, "s0", credit=1, address=address)
        [delivery] = rig.deliveries()
        rig.settle(delivery.delivery_id, delivery.delivery_id, Rejected(AmqpError(Symbol("x"), "")))
        assert request(rig, address, "peeklock:purge-messages", {}).body == {"message-count": 8}
        dead = f"{address}/$DeadLetterQueue"
        assert request(rig, dead, "peeklock:purge-messages", {}).body == {"message-count": 1}
        view = broker.queue(address)
        assert (view.active_count, view.dead_letter_count) == (0, 0)
        rig.events.clear()
        ask_for(rig, None, address=address, wait_ms=0)
        assert str(rig.refusal().condition) == "com.microsoft:timeout"


def test_batch_delete_of_one_session(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: A-06, G-01."""
    send(rig, *(message(f"{name}{number}", name) for number in range(3) for name in "ab"))
    body = {"message-count": Int(2), "enqueued-time-utc": Timestamp(2**50), "session-id": "b"}
    assert request(rig, "orders", "batch-delete-messages", body).body == {"message-count": 2}
    assert broker.queue("orders").active_count == 4
    accept(rig, "b", credit=5)
    assert bodies(rig.deliveries()) == ["b2"]


# Partitions


def test_a_partitioned_queue_shows_its_partitions(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: S-02. Wherever a message is shown."""
    broker.create_queue("wide", enable_partitioning=True)
    key = Symbol("x-opt-partition-key")
    send(
        rig,
        *(message(str(number), annotations={key: f"k{number % 3}"}) for number in range(9)),
        to="wide",
    )
    rig.listen("wide", credit=20)
    deliveries = rig.deliveries()
    assert bodies(deliveries) == [str(number) for number in range(9)]
    peeked = request(rig, "wide", "peek-message", {"from-sequence-number": Long(0), "message-count": Int(20)})
    shown = [item["message"] for item in peeked.body["messages"]]
    for payload in [*(event.payload for event in deliveries), *shown]:
        annotations = scan(payload).decode_message_annotations()
        assert annotations["x-opt-partition-id"] == annotations["x-opt-sequence-number"] >> 48
    numbers: dict[str, list[int]] = {}
    for event in deliveries:
        annotations = scan(event.payload).decode_message_annotations()
        numbers.setdefault(annotations[key], []).append(annotations["x-opt-sequence-number"])
    assert {len({number >> 48 for number in found}) for found in numbers.values()} == {1}


def test_batch_delete_in_a_partitioned_queue(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: A-06, S-02."""
    broker.create_queue("wide", enable_partitioning=True)
    key = Symbol("x-opt-partition-key")
    send(rig, *(message(str(number), annotations={key: f"k{number}"}) for number in range(7)), to="wide")
    body = {"message-count": Int(5), "enqueued-time-utc": Timestamp(2**50)}
    assert request(rig, "wide", "batch-delete-messages", body).body == {"message-count": 5}
    rig.listen("wide", credit=9)
    assert bodies(rig.deliveries()) == ["5", "6"]


def test_a_partitioned_queue_of_sessions(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: S-02, G-01."""
    broker.create_queue("wide", enable_partitioning=True, **SETTINGS)
    send(rig, *(message(f"{number}", f"s{number % 4}") for number in range(12)), to="wide")
    for number in range(4):
        handle, session_id = accept(rig, address="wide", credit=9)
        assert session_id == f"s{number}"
        deliveries = rig.deliveries()
        assert bodies(deliveries) == [str(number), str(number + 4), str(number + 8)]
        for event in deliveries:
            annotations = scan(event.payload).decode_message_annotations()
            assert annotations["x-opt-partition-id"] == annotations["x-opt-sequence-number"] >> 48
            assert annotations["x-opt-locked-until"] == INSTANT_MS_MAX
        rig.settle(deliveries[0].delivery_id, deliveries[-1].delivery_id, ACCEPTED)
        rig.client.detach(rig.channel, handle)
        rig.pump()
    assert broker.queue("wide").active_count == 0


# Forwarding


def test_a_forwarded_dead_letter_tells_where_it_came_from(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: F-02, C37. In lower case on the wire alone."""
    broker.create_queue("graves")
    broker.create_queue("Work", forward_dead_lettered_to="graves")
    send(rig, message("bad"), to="work")
    rig.listen("work", credit=1)
    [delivery] = rig.deliveries()
    rig.settle(delivery.delivery_id, delivery.delivery_id, Rejected(AmqpError(Symbol("x"), "")))
    rig.listen("graves", credit=1)
    [dead] = rig.deliveries()
    annotations = scan(dead.payload).decode_message_annotations()
    assert annotations["x-opt-deadletter-source"] == "work"


@pytest.mark.parametrize("body_cache_bytes", [1, 100_000])
def test_a_stored_message_is_forwarded_into_a_queue_of_sessions(body_cache_bytes: int) -> None:
    """Req: F-01, G-01. Its routing is read again from the body, in memory or not."""
    broker = InProcessBroker(body_cache_bytes=body_cache_bytes)
    broker.create_queue("graves", **SETTINGS)
    broker.create_queue("work", forward_dead_lettered_to="graves")
    rig = LiveHarness(broker)
    send(rig, message("bad", "s"), message("worse"), to="work")
    rig.listen("work", credit=2)
    deliveries = rig.deliveries()
    rig.settle(0, 1, Rejected(AmqpError(Symbol("x"), "")))
    assert len(deliveries) == 2
    accept(rig, credit=1, address="graves")
    [dead] = rig.deliveries()
    assert bodies([dead]) == ["bad"]
    broker.namespace.check(broker.clock.now_ms)
