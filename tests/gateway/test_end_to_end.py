"""Gateway, engine, namespace and store together, driven as a client drives them: over AMQP, in one thread."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkDetached, LinkDrained
from peeklock.amqp.messaging import BATCH_FORMAT, Properties, scan
from peeklock.amqp.performatives import ACCEPTED, RELEASED, Modified, Rejected
from peeklock.amqp.types import Array, Int, Long, Role, Symbol, Timestamp, UInt
from peeklock.auth import generate
from peeklock.broker.queue.graces import LOCK_GRACE_MS
from peeklock.broker.vocabulary.commands import DeleteEntity, UpdateEntity
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.effects import ScheduledShifted
from peeklock.broker.vocabulary.extension_commands import ShiftScheduled
from peeklock.broker.vocabulary.quotas import PREMIUM
from peeklock.gateway.context import GatewayLimits
from peeklock.rules.filters import TrueFilter
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import KEY, KEY_NAME, LiveHarness, message_bytes, section

LOCK_MS = 30_000


@pytest.fixture
def broker() -> InProcessBroker:
    broker = InProcessBroker()
    broker.create_queue("orders", lock_duration_ms=LOCK_MS, max_delivery_count=3)
    return broker


@pytest.fixture
def rig(broker: InProcessBroker) -> LiveHarness:
    return LiveHarness(broker)


def send(rig: LiveHarness, *bodies: bytes) -> None:
    sender = rig.sender()
    for body in bodies:
        rig.transfer(sender, message_bytes(body))
    outcomes = [event for event in rig.events if isinstance(event, DispositionReceived)]
    assert sum(event.last - event.first + 1 for event in outcomes) == len(bodies)
    assert all(event.state == ACCEPTED for event in outcomes)
    rig.events.clear()


def bodies(deliveries: list[DeliveryReceived]) -> list[bytes]:
    return [scan(event.payload).decode_body()[0][1] for event in deliveries]


def delivery_count(event: DeliveryReceived) -> int:
    return scan(event.payload).decode_header().delivery_count


def test_sent_received_and_completed(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: T-01, L-02, L-05, S-01."""
    send(rig, b"1", b"2", b"3")
    rig.listen(credit=10)
    got = rig.deliveries()
    assert bodies(got) == [b"1", b"2", b"3"]
    numbers = [scan(event.payload).decode_message_annotations()["x-opt-sequence-number"] for event in got]
    assert numbers == [1, 2, 3]
    rig.settle(got[0].delivery_id, got[2].delivery_id, ACCEPTED)
    answer = rig.take_event(DispositionReceived)
    assert (answer.first, answer.last, answer.settled, answer.state) == (0, 2, True, ACCEPTED)
    assert broker.queue("orders").active_count == 0
    broker.advance(LOCK_MS * 2)
    rig.pump()
    assert rig.deliveries() == []


def test_what_was_accepted_survives_a_restart(broker: InProcessBroker) -> None:
    """Req: R-01, L-12. Locks do not survive, counts do."""
    rig = LiveHarness(broker)
    send(rig, b"kept", b"done")
    rig.listen(credit=2)
    first, second = rig.deliveries()
    rig.settle(second.delivery_id, second.delivery_id, ACCEPTED)
    again = LiveHarness(InProcessBroker(clock=broker.clock, store=broker.store, seed=1))
    again.listen(credit=5)
    [kept] = again.deliveries()
    assert bodies([kept]) == [b"kept"]
    assert delivery_count(kept) == 0
    assert kept.delivery_tag != first.delivery_tag


def test_a_batch_is_stored_as_its_members(rig: LiveHarness) -> None:
    """Req: T-07."""
    members = [message_bytes(b"a"), message_bytes(b"b", header=[True, None, UInt(60_000)])]
    batch = b"".join(section(0x75, member) for member in members)
    rig.transfer(rig.sender(), batch, message_format=BATCH_FORMAT)
    assert rig.take_event(DispositionReceived).state == ACCEPTED
    rig.listen(credit=5)
    got = rig.deliveries()
    assert bodies(got) == [b"a", b"b"]
    assert [scan(event.payload).decode_header().ttl for event in got] == [None, 60_000]
    assert scan(got[1].payload).decode_header().durable is True


def test_an_entity_s_time_to_live_beyond_the_header_s_reach_as_it_is_now(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: C29, E-04, E-05, E-07. To who receives, by number too; not to who peeks, nor of a dead letter."""
    day_ms = 86_400_000
    broker.create_topic("news", default_ttl_ms=100 * day_ms)
    about = broker.create_subscription("news", "all", rule=RuleDescription("r", TrueFilter()))
    address = "news/Subscriptions/all"
    rig.transfer(rig.sender("news"), message_bytes(b"x"))
    enqueued_ms = broker.clock.now_ms

    def told(payload: bytes) -> tuple[int | None, ...]:
        sections = scan(payload)
        found = sections.decode_properties() if sections.properties else Properties()
        ttl_ms = sections.decode_header().ttl
        return ttl_ms, found.absolute_expiry_time, found.creation_time

    rig.listen(address, credit=1)
    [got] = rig.deliveries()
    assert told(got.payload) == (2**32 - 1, enqueued_ms + 100 * day_ms, enqueued_ms)
    rig.settle(got.delivery_id, got.delivery_id, Modified(True, True))
    pair = rig.pair(f"{address}/$management")
    rig.request(pair[0], "com.microsoft:peek-message", {"from-sequence-number": Long(1), "message-count": 1})
    assert told(rig.response().body["messages"][0]["message"]) == (None, None, None)
    shorter = replace(about.description, default_ttl_ms=90 * day_ms)
    broker.ask(lambda reply_to: UpdateEntity(shorter, reply_to))
    body = {"sequence-numbers": Array.of(Long, [1]), "receiver-settle-mode": UInt(1)}
    rig.request(pair[0], "com.microsoft:receive-by-sequence-number", body)
    [item] = rig.response().body["messages"]
    assert told(item["message"]) == (2**32 - 1, enqueued_ms + 90 * day_ms, enqueued_ms)
    settled = {"disposition-status": "suspended", "lock-tokens": Array.of(uuid.UUID, [item["lock-token"]])}
    rig.request(pair[0], "com.microsoft:update-disposition", settled)
    dead_letters = rig.listen(f"{address}/$DeadLetterQueue", credit=1)
    [dead] = [event for event in rig.deliveries() if event.handle == dead_letters]
    assert told(dead.payload) == (None, None, None)


def test_abandoned_at_its_place_with_changed_properties_until_dead_lettered(rig: LiveHarness) -> None:
    """Req: L-06, L-07, L-08. Delivered exactly MaxDeliveryCount times."""
    send(rig, b"1", b"2")
    rig.listen(credit=1)
    for attempt in range(3):
        [got] = rig.deliveries()
        assert (bodies([got]), delivery_count(got)) == ([b"1"], attempt)
        properties = scan(got.payload).decode_application_properties()
        assert properties == ({} if attempt == 0 else {"attempt": attempt - 1})
        rig.settle(got.delivery_id, got.delivery_id, Modified(True, False, {Symbol("attempt"): attempt}))
        assert isinstance(rig.take_event(DispositionReceived).state, Modified)
        rig.client.flow(rig.channel, 1, 1)
        rig.pump()
    assert bodies(rig.deliveries()) == [b"2"]
    rig.listen("orders/$DeadLetterQueue", credit=5)
    [dead] = rig.deliveries()
    properties = scan(dead.payload).decode_application_properties()
    assert properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert properties["attempt"] == 2


def test_released_leaves_the_count_alone(rig: LiveHarness) -> None:
    """Req: L-08, L-07."""
    send(rig, b"1")
    rig.listen(credit=1)
    [got] = rig.deliveries()
    rig.settle(got.delivery_id, got.delivery_id, RELEASED, settled=True)
    rig.client.flow(rig.channel, 1, 1)
    rig.pump()
    [again] = rig.deliveries()
    assert delivery_count(again) == 0
    assert again.delivery_tag != got.delivery_tag


def test_dead_lettered_with_reason_and_read_from_its_queue(rig: LiveHarness) -> None:
    """Req: L-09, L-17."""
    send(rig, b"bad")
    rig.listen(credit=1)
    [got] = rig.deliveries()
    info = {
        Symbol("DeadLetterReason"): "why",
        Symbol("DeadLetterErrorDescription"): "because",
        Symbol("more"): 1,
    }
    rig.settle(got.delivery_id, got.delivery_id, Rejected(AmqpError("com.microsoft:dead-letter", "", info)))
    outcome = rig.take_event(DispositionReceived)
    assert outcome.state == Rejected(None)
    handle = rig.listen("orders/$DeadLetterQueue", credit=1)
    [dead] = rig.deliveries()
    assert scan(dead.payload).decode_application_properties() == {
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "because",
        "more": 1,
    }
    # Its queue of dead letters has none of its own: an honest refusal, and the lock is still held.
    rig.settle(dead.delivery_id, dead.delivery_id, Rejected())
    assert str(rig.rejection(dead.delivery_id).condition) == "amqp:not-allowed"
    assert rig.client.credit(rig.channel, handle) == 0


def test_settlement_after_the_lock_lapsed_is_lock_lost(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-11, L-08."""
    send(rig, b"1")
    rig.listen(credit=1)
    [got] = rig.deliveries()
    broker.advance(LOCK_MS)
    rig.settle(got.delivery_id, got.delivery_id, ACCEPTED)
    error = rig.rejection(got.delivery_id)
    assert str(error.condition) == "com.microsoft:message-lock-lost"
    assert "TrackingId:" in error.description
    rig.client.flow(rig.channel, 1, 1)
    rig.pump()
    [again] = rig.deliveries()
    assert delivery_count(again) == 1


def test_a_broken_connection_drops_its_locks_and_a_closed_one_keeps_them(broker: InProcessBroker) -> None:
    """Req: L-13, L-14."""
    for close, expected in ((False, 1), (True, None)):
        rig = LiveHarness(broker)
        if not close:
            send(rig, b"1")
        rig.listen(credit=1)
        [got] = rig.deliveries()
        if close:
            rig.client.close()
            rig.pump()
        rig.cut()
        broker.advance(LOCK_GRACE_MS)
        other = LiveHarness(broker)
        other.listen(credit=1)
        again = other.deliveries()
        assert [delivery_count(event) for event in again] == ([] if expected is None else [expected])
        if expected is None:
            # Still held: settled by its token from another connection.
            sender, _ = other.pair("orders/$management")
            token = uuid.UUID(bytes_le=got.delivery_tag)
            body = {"disposition-status": "completed", "lock-tokens": [token]}
            for status in (200, 410):
                other.request(sender, "com.microsoft:update-disposition", body)
                assert other.response().status == status
        other.cut()
        broker.advance(LOCK_GRACE_MS)
    assert broker.queue("orders").active_count == 0


def test_receive_and_delete_leaves_nothing_behind(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-01."""
    send(rig, b"1", b"2")
    rig.listen(credit=5, snd_settle_mode=1, rcv_settle_mode=0)
    got = rig.deliveries()
    assert bodies(got) == [b"1", b"2"]
    assert all(event.settled for event in got)
    assert broker.queue("orders").active_count == 0


def test_a_drain_gives_what_is_there_and_the_credit_back(rig: LiveHarness) -> None:
    """Req: L-16."""
    send(rig, b"1")
    handle = rig.listen()
    rig.client.flow(rig.channel, handle, 10, drain=True)
    rig.pump()
    assert bodies(rig.deliveries()) == [b"1"]
    rig.take_event(LinkDrained)
    rig.client.flow(rig.channel, handle, 0, drain=True)
    rig.pump()
    rig.take_event(LinkDrained)
    send(rig, b"2")
    assert rig.deliveries() == []
    rig.client.flow(rig.channel, handle, 1)
    rig.pump()
    assert bodies(rig.deliveries()) == [b"2"]


def test_credit_bounds_what_is_locked(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-02."""
    send(rig, b"1", b"2", b"3")
    handle = rig.listen(credit=2)
    other = LiveHarness(broker)
    other.listen(credit=5)
    assert bodies(rig.deliveries()) == [b"1", b"2"]
    assert bodies(other.deliveries()) == [b"3"]
    rig.client.detach(rig.channel, handle)
    rig.pump()
    broker.advance(LOCK_MS)
    other.pump()
    assert bodies(other.deliveries()) == [b"1", b"2", b"3"]


def test_bodies_that_left_memory_are_read_back_in_order() -> None:
    """Req: L-16. A backlog beyond the body cache."""
    broker = InProcessBroker(body_cache_bytes=2000, gateway_limits=GatewayLimits(output_bytes_max=1_000_000))
    broker.create_queue("orders")
    rig = LiveHarness(broker)
    sent = [str(number).encode() * 300 for number in range(10)]
    send(rig, *sent)
    rig.listen(credit=50)
    assert bodies(rig.deliveries()) == sent
    sender, _ = rig.pair("orders/$management")
    rig.request(
        sender, "com.microsoft:peek-message", {"from-sequence-number": Long(0), "message-count": Int(50)}
    )
    messages = rig.response().body["messages"]
    assert [scan(item["message"]).decode_body()[0][1] for item in messages] == sent


def test_the_output_budget_never_stalls_a_link() -> None:
    """Req: T-08. Far more bytes than the budget pass through it."""
    broker = InProcessBroker(gateway_limits=GatewayLimits(output_bytes_max=5_000))
    broker.create_queue("orders")
    rig = LiveHarness(broker)
    sent = [bytes([65 + number]) * 1000 for number in range(26)]
    send(rig, *sent)
    rig.listen(credit=100)
    got = rig.deliveries()
    assert bodies(got) == sent
    rig.settle(got[0].delivery_id, got[-1].delivery_id, Modified(True))
    assert bodies(rig.deliveries()) == sent


def test_the_management_node_end_to_end(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-03, L-10, L-14, S-06, S-11, A-06."""
    sender, _ = rig.pair("orders/$management")

    def ask(operation: str, body: object) -> tuple[int, dict[str, Any]]:
        rig.request(sender, f"com.microsoft:{operation}", body)
        assert rig.take_event(DispositionReceived).state == ACCEPTED
        response = rig.response()
        return response.status, response.body

    send(rig, b"1", b"2")
    rig.listen(credit=1)
    [got] = rig.deliveries()
    token = uuid.UUID(bytes_le=got.delivery_tag)
    broker.advance(LOCK_MS - 1)
    assert ask("renew-lock", {"lock-tokens": Array.of(uuid.UUID, [token])}) == (
        200,
        {"expirations": [broker.clock.now_ms + LOCK_MS]},
    )
    broker.advance(LOCK_MS - 1)
    rig.settle(got.delivery_id, got.delivery_id, Modified(True, True))
    assert isinstance(rig.take_event(DispositionReceived).state, Modified)
    assert ask("renew-lock", {"lock-tokens": [token]})[0] == 410
    status, body = ask(
        "receive-by-sequence-number", {"sequence-numbers": [1], "receiver-settle-mode": UInt(1)}
    )
    assert status == 200
    [item] = body["messages"]
    assert isinstance(item, dict)
    assert scan(item["message"]).decode_message_annotations()["x-opt-message-state"] == 1
    done = {"disposition-status": "completed", "lock-tokens": [item["lock-token"]]}
    assert ask("update-disposition", done) == (200, {})
    assert ask("receive-by-sequence-number", {"sequence-numbers": [1]})[0] == 404

    due = broker.clock.now_ms + 5_000
    later = message_bytes(b"later", annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due)})
    assert ask("schedule-message", {"messages": [{"message": later}, {"message": later}]}) == (
        200,
        {"sequence-numbers": [3, 4]},
    )
    assert ask("cancel-scheduled-message", {"sequence-numbers": [3]}) == (200, {})
    assert ask("cancel-scheduled-message", {"sequence-numbers": [3]})[0] == 404
    status, body = ask("peek-message", {"from-sequence-number": 0, "message-count": 10})
    found = [scan(item["message"]).decode_message_annotations() for item in body["messages"]]
    assert [(each["x-opt-sequence-number"], each["x-opt-message-state"]) for each in found] == [
        (2, 0),
        (4, 2),
    ]
    assert found[1]["x-opt-scheduled-enqueue-time"] == due
    due -= 2_000
    shifted = broker.ask(lambda to: ShiftScheduled(to, None, None, -2_000))
    assert isinstance(shifted, ScheduledShifted)
    status, body = ask("peek-message", {"from-sequence-number": 3, "message-count": 10})
    [item] = body["messages"]
    annotations = scan(item["message"]).decode_message_annotations()
    assert annotations["x-opt-scheduled-enqueue-time"] == due
    assert isinstance(annotations["x-opt-scheduled-enqueue-time"], Timestamp)
    broker.advance(3_000)
    status, body = ask("peek-message", {"from-sequence-number": 3, "message-count": 10})
    [item] = body["messages"]
    annotations = scan(item["message"]).decode_message_annotations()
    assert annotations["x-opt-enqueued-time"] == due
    assert annotations["x-opt-message-state"] == 0
    assert ask("batch-delete-messages", {"message-count": 10, "enqueued-time-utc": Timestamp(due)}) == (
        200,
        {"message-count": 2},
    )
    assert ask("peek-message", {"from-sequence-number": 0, "message-count": 10}) == (204, {})
    assert broker.queue("orders").active_count == 0


def test_a_message_that_was_scheduled_says_so_on_links_alone(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: S-06. Source: wire contract C10."""
    sender, _ = rig.pair("orders/$management")

    def states(operation: str, body: dict[str, Any]) -> list[Any]:
        rig.request(sender, f"com.microsoft:{operation}", body)
        items = rig.response().body["messages"]
        return [state_of(item["message"]) for item in items]

    def state_of(payload: bytes) -> Any:
        return scan(payload).decode_message_annotations()["x-opt-message-state"]

    due = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(broker.clock.now_ms + 5_000)}
    messages = [{"message": message_bytes(b"later", annotations=due)} for _ in range(3)]
    rig.request(sender, "com.microsoft:schedule-message", {"messages": messages})
    assert rig.response().status == 200
    peek = {"from-sequence-number": 0, "message-count": 10}
    assert states("peek-message", peek) == [2, 2, 2]
    broker.advance(5_000)
    assert states("peek-message", peek) == [0, 0, 0]
    rig.listen(credit=3)
    deferred, dead, given_back = rig.deliveries()
    assert [state_of(each.payload) for each in (deferred, dead, given_back)] == [2, 2, 2]
    rig.settle(deferred.delivery_id, deferred.delivery_id, Modified(True, True))
    rig.settle(dead.delivery_id, dead.delivery_id, Rejected(AmqpError("com.microsoft:dead-letter")))
    rig.settle(given_back.delivery_id, given_back.delivery_id, ACCEPTED)
    body = {"sequence-numbers": Array.of(Long, [4]), "receiver-settle-mode": UInt(1)}
    assert states("receive-by-sequence-number", body) == [1]
    rig.listen("orders/$DeadLetterQueue", credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    [received] = rig.deliveries()
    assert state_of(received.payload) == 2


def test_cbs_end_to_end(broker: InProcessBroker) -> None:
    """Req: R-04, T-03."""
    rig = LiveHarness(broker, mechanism="ANONYMOUS")
    sender, _ = rig.pair("$cbs")
    token = generate("sb://localhost/orders", KEY_NAME, KEY, broker.clock.now_ms + 60_000)
    rig.put_token(sender, "sb://localhost/orders", token)
    assert rig.response().status == 202
    rig.put_token(sender, "sb://localhost/nowhere")
    response = rig.response()
    assert response.status == 404
    assert "could not be found" in response.description
    rig.events.clear()
    send(rig, b"1")
    rig.attach(Role.SENDER, "nowhere")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"
    broker.advance(60_000)
    rig.pump()
    detached = rig.take_event(LinkDetached)
    assert detached.error is not None
    assert detached.error.description.startswith("ExpiredToken:")


def test_links_of_a_deleted_queue_are_detached_and_nothing_lives_on(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: L-11."""
    send(rig, b"1")
    rig.listen(credit=1)
    [got] = rig.deliveries()
    broker.ask(lambda reply_to: DeleteEntity("orders", reply_to))
    rig.pump()
    detached = [event for event in rig.events if isinstance(event, LinkDetached)]
    assert {str(event.error.condition) for event in detached if event.error} == {"amqp:resource-deleted"}
    assert len(detached) == 2
    rig.settle(got.delivery_id, got.delivery_id, ACCEPTED)
    assert str(rig.rejection(got.delivery_id).condition) == "amqp:resource-deleted"
    rig.events.clear()
    rig.attach(Role.SENDER, "orders")
    assert str(rig.refusal().condition) == "amqp:not-found"


def test_a_large_message_passes_in_many_frames_both_ways() -> None:
    """Req: T-10. Premium tier: far beyond the frame size of 64 KiB, at the limit, and one past it."""
    broker = InProcessBroker(tier=PREMIUM)
    broker.create_queue("large", max_message_size_kb=2048)
    rig = LiveHarness(broker)
    sender = rig.sender("large")
    overhead = len(message_bytes(b"x" * 1000)) - 1000
    body = bytes(range(256)) * ((2 << 20) // 256)
    rig.transfer(sender, message_bytes(body[overhead:]))
    assert rig.take_event(DispositionReceived).state == ACCEPTED
    delivery_id = rig.transfer(sender, message_bytes(body[overhead - 1 :]))
    assert str(rig.rejection(delivery_id).condition) == "amqp:link:message-size-exceeded"
    rig.listen("large", credit=1)
    [got] = rig.deliveries()
    assert bodies([got]) == [body[overhead:]]
    rig.settle(got.delivery_id, got.delivery_id, ACCEPTED)
    assert broker.queue("large").size_bytes == 0


def test_nothing_is_scheduled_into_a_dead_letter_queue(rig: LiveHarness) -> None:
    """Req: L-17."""
    sender, _ = rig.pair("orders/$DeadLetterQueue/$management")
    body = {"messages": [{"message": message_bytes()}]}
    rig.request(sender, "com.microsoft:schedule-message", body)
    assert rig.response().condition == "amqp:not-allowed"


def test_duplicates_are_accepted_and_dropped(broker: InProcessBroker) -> None:
    """Req: D-01."""
    broker.create_queue("once", requires_duplicate_detection=True)
    rig = LiveHarness(broker)
    sender = rig.sender("once")
    for message_id in ("a", "a", uuid.UUID(int=1), uuid.UUID(int=1), "b"):
        rig.transfer(sender, message_bytes(properties=[message_id]))
        assert rig.take_event(DispositionReceived).state == ACCEPTED
    assert broker.queue("once").active_count == 3


def test_a_stop_tells_clients_and_keeps_what_was_accepted(broker: InProcessBroker) -> None:
    """Req: R-01."""
    rig = LiveHarness(broker)
    send(rig, b"1")
    broker.close()
    rig.pump()
    assert "amqp:connection:forced" in repr(rig.events)
    restarted = InProcessBroker(clock=broker.clock, store=broker.store)
    assert restarted.queue("orders").active_count == 1


def test_the_playbook_s_key_is_the_development_key() -> None:
    rig = LiveHarness(InProcessBroker(), response=f"\0{KEY_NAME}\0{KEY}".encode())
    assert not rig.gateway.closing
