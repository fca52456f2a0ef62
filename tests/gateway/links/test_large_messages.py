"""Messages at the limit, and above it once they grew, from a sender to a receiver over a whole broker."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DeliveryReceived, DispositionReceived
from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import ACCEPTED, Modified, Rejected
from peeklock.amqp.types import Array, Int, Long, Symbol, UInt
from peeklock.broker.vocabulary.quotas import PREMIUM, STANDARD
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness, message_bytes
from tests.gateway.live import request

LIMIT = 262_144
MODES = [pytest.param(False, id="peek-lock"), pytest.param(True, id="receive-and-delete")]


def broker_with(tier: Any = STANDARD, *, cache: int = 0) -> InProcessBroker:
    broker = InProcessBroker(tier=tier, body_cache_bytes=cache)
    broker.create_queue("orders", max_delivery_count=3)
    broker.create_topic("news")
    broker.create_subscription("news", "all")
    return broker


def exactly(size: int, message_id: str = "m", **options: Any) -> bytes:
    """Encode a message of exactly `size` bytes."""
    payload = message_bytes(bytes(70_000), properties=[message_id], **options)
    whole = message_bytes(bytes(70_000 + size - len(payload)), properties=[message_id], **options)
    assert len(whole) == size
    return whole


def put(rig: LiveHarness, payload: bytes, to: str = "orders") -> None:
    rig.transfer(rig.sender(to), payload)
    assert rig.take_event(DispositionReceived).state == ACCEPTED


def listen(rig: LiveHarness, address: str, *, deletes: bool = False) -> DeliveryReceived:
    """Attach a receiver and take the one message that it gets."""
    rig.listen(address, credit=1, snd_settle_mode=1 if deletes else 0, rcv_settle_mode=0 if deletes else 1)
    [got] = rig.deliveries()
    assert got.settled is deletes
    return got


def body(payload: bytes) -> bytes:
    [(_, found)] = scan(payload).decode_body()
    return bytes(found)


@pytest.mark.parametrize("deletes", MODES)
@pytest.mark.parametrize(
    ("to", "address"), [("orders", "orders"), ("news", "news/Subscriptions/all"), ("orders", None)]
)
def test_a_message_of_exactly_the_limit_arrives(to: str, address: str | None, deletes: bool) -> None:
    """Req: C24, T-10. Over a queue, a subscription and a dead-letter queue; nothing is lost."""
    broker = broker_with()
    rig = LiveHarness(broker)
    payload = exactly(LIMIT)
    put(rig, payload, to)
    if address is None:
        first = listen(rig, "orders")
        reasons = {"DeadLetterReason": "r" * 4_000, "DeadLetterErrorDescription": "d" * 4_000}
        rejected = Rejected(AmqpError(Symbol("com.microsoft:dead-letter"), "", reasons))
        rig.settle(first.delivery_id, first.delivery_id, rejected)
        address = "orders/$DeadLetterQueue"
    got = listen(rig, address, deletes=deletes)
    assert body(got.payload) == body(payload)
    assert len(got.payload) > LIMIT  # it has annotations now
    if not deletes:
        rig.settle(got.delivery_id, got.delivery_id, ACCEPTED)
    assert broker.namespace.totals().active_messages == 0


@pytest.mark.parametrize("deletes", MODES)
def test_a_message_that_grew_by_changed_properties_arrives(deletes: bool) -> None:
    """Req: C24."""
    rig = LiveHarness(broker_with())
    put(rig, exactly(LIMIT))
    for change in ("a", "b"):
        got = listen(rig, "orders")
        changed = Modified(True, False, {change: "x" * 10_000})
        rig.settle(got.delivery_id, got.delivery_id, changed)
    got = listen(rig, "orders", deletes=deletes)
    properties = scan(got.payload).decode_application_properties()
    assert {key: len(value) for key, value in properties.items()} == {"a": 10_000, "b": 10_000}
    assert len(got.payload) > LIMIT + 20_000


@pytest.mark.parametrize("deletes", [0, 1])
def test_many_large_deferred_messages_come_in_one_answer(deletes: int) -> None:
    """Req: C24, C25. Eight of 250 kB; bodies are not in memory."""
    rig = LiveHarness(broker_with())
    for number in range(8):
        put(rig, exactly(250_000, f"m{number}"))
    rig.listen("orders", credit=8)
    got: list[DeliveryReceived] = []
    while len(got) < 8:  # more come as the output has room
        more = rig.deliveries()
        rig.settle(more[0].delivery_id, more[-1].delivery_id, Modified(undeliverable_here=True))
        got += more
    numbers = Array.of(Long, range(1, 9))
    asked = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(1 - deletes)}
    answer = request(rig, "orders", "receive-by-sequence-number", asked)
    assert answer.status == 200
    assert [len(body(found["message"])) for found in answer.body["messages"]] == [
        len(body(event.payload)) for event in got
    ]


@pytest.mark.parametrize("size", [3_000_000, 20_000_000])
def test_a_large_message_is_scheduled_peeked_deferred_and_received(size: int) -> None:
    """Req: C25, T-10. A request has room for the largest message, an answer for any."""
    broker = InProcessBroker(tier=PREMIUM)
    broker.create_queue("orders", max_message_size_kb=102_400)
    rig = LiveHarness(broker)
    payload = exactly(size)
    later = {"message": payload, "message-id": "m"}  # its time is in the message; without one it is due now
    scheduled = request(rig, "orders", "schedule-message", {"messages": [later]})
    assert scheduled.status == 200
    peek = {"from-sequence-number": Long(0), "message-count": Int(5)}
    peeked = request(rig, "orders", "peek-message", peek)
    assert [len(body(found["message"])) for found in peeked.body["messages"]] == [len(body(payload))]
    got = listen(rig, "orders")
    rig.settle(got.delivery_id, got.delivery_id, Modified(undeliverable_here=True))
    number = scan(got.payload).decode_message_annotations()["x-opt-sequence-number"]
    asked = {"sequence-numbers": Array.of(Long, [number]), "receiver-settle-mode": UInt(0)}
    deferred = request(rig, "orders", "receive-by-sequence-number", asked)
    [found] = deferred.body["messages"]
    assert body(found["message"]) == body(payload)
    assert broker.namespace.totals().deferred_messages == 0
