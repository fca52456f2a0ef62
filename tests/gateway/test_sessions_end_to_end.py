"""Message sessions as a client sees them: gateway, engine, namespace and store over AMQP, in one thread."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import (
    DispositionReceived,
    LinkAttached,
    LinkDetached,
)
from peeklock.amqp.messaging import BATCH_FORMAT, scan
from peeklock.amqp.performatives import ACCEPTED, RELEASED, Modified, Rejected, Source
from peeklock.amqp.types import Array, Described, Int, Long, Role, Symbol, Timestamp, ULong
from peeklock.broker.queue.lapsed_sessions import DETACH_AFTER_MS
from peeklock.broker.vocabulary.commands import DeleteEntity, UpdateEntity
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.gateway.rewriting import INSTANT_MS_MAX
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness, message_bytes, section
from tests.gateway.live import (
    FILTER,
    LOCK_MS,
    SETTINGS,
    accept,
    ask_for,
    bodies,
    counts,
    got,
    message,
    request,
    send,
)

LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    broker = InProcessBroker()
    broker.create_queue("orders", **SETTINGS)
    yield broker
    broker.namespace.check(broker.clock.now_ms)


@pytest.fixture
def rig(broker: InProcessBroker) -> LiveHarness:
    return LiveHarness(broker)


def lost(rig: LiveHarness) -> str:
    """Return the condition with which the client's link was detached."""
    error = rig.take_event(LinkDetached).error
    assert error is not None
    return str(error.condition)


# Accepting


def test_a_session_is_received_in_order_by_one_receiver_alone(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: G-01, G-02, C28."""
    send(rig, *(message(f"{name}{number}", name) for number in range(3) for name in "ab"))
    handle = ask_for(rig, "a", credit=10)
    attached = rig.take_event(LinkAttached)
    assert attached.properties == {LOCKED_UNTIL: (broker.clock.now_ms + LOCK_MS) * 10_000 + 621355968 * 10**9}
    deliveries = rig.deliveries()
    assert bodies(deliveries) == ["a0", "a1", "a2"]
    for event in deliveries:
        sections = scan(event.payload)
        assert sections.decode_properties().group_id == "a"
        assert sections.decode_message_annotations()["x-opt-locked-until"] == INSTANT_MS_MAX
        assert sections.decode_delivery_annotations() == {
            "x-opt-lock-token": uuid.UUID(bytes_le=event.delivery_tag)
        }
    other = LiveHarness(broker)
    ask_for(other, "a")
    assert str(other.refusal().condition) == "com.microsoft:session-cannot-be-locked"
    accept(other, "b", credit=1)
    assert bodies(other.deliveries()) == ["b0"]
    rig.settle(0, 2, ACCEPTED)
    assert rig.take_event(DispositionReceived).state == ACCEPTED
    assert broker.queue("orders").active_count == 3
    send(rig, message("a3", "a"))
    assert bodies(rig.deliveries()) == ["a3"]
    rig.client.detach(rig.channel, handle)
    rig.pump()
    accept(other, "a", credit=1)
    assert bodies(other.deliveries()) == ["a3"]


def test_a_peek_shows_the_lock_of_a_deferred_message_of_a_session(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: C28, S-11. The same value as a delivery; others show none, in the dead-letter queue too."""
    send(rig, message("set aside", "s"), message("waits", "s"), message("dead", "s"))
    accept(rig, "s", credit=3)
    first, _, last = rig.deliveries()
    rig.settle(first.delivery_id, first.delivery_id, Modified(True, True))
    rig.settle(last.delivery_id, last.delivery_id, Rejected(AmqpError(Symbol("x"), "")))
    broker.create_queue("plain")
    send(rig, message("set aside"), to="plain")
    for address in ("plain", "orders/$DeadLetterQueue"):
        rig.listen(address, credit=1)
        [event] = rig.deliveries()
        rig.settle(event.delivery_id, event.delivery_id, Modified(True, True))

    def peek(node: str) -> list[int | None]:
        body = {"from-sequence-number": Long(0), "message-count": 5}
        found = [scan(item["message"]) for item in request(rig, node, "peek-message", body).body["messages"]]
        return [each.decode_message_annotations().get("x-opt-locked-until") for each in found]

    assert peek("orders") == [INSTANT_MS_MAX, None]
    assert peek("plain") == peek("orders/$DeadLetterQueue") == [None]


def test_a_session_may_be_empty_or_named_by_the_empty_text(rig: LiveHarness) -> None:
    """Req: G-01."""
    send(rig, message("m", ""))
    assert accept(rig, "", credit=1)[1] == ""
    assert bodies(rig.deliveries()) == ["m"]
    assert accept(rig, "nothing yet", credit=1)[1] == "nothing yet"
    assert rig.deliveries() == []


def test_a_session_by_any_spelling_of_its_id(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: C27. The answer is in the spelling asked for, described as the Go client has it."""
    send(rig, message("1", "Ab"), message("2", "aB"), message("other", "c"))
    handle = ask_for(rig, Described(ULong(0x137000000C), "AB"), credit=9)  # type: ignore[arg-type]  # not a session id on purpose
    attached = rig.take_event(LinkAttached)
    assert isinstance(attached.source, Source)
    assert attached.source.filter == {FILTER: Described(ULong(0x137000000C), "AB")}
    first, second = rig.deliveries()
    assert [scan(each.payload).decode_properties().group_id for each in (first, second)] == ["Ab", "aB"]
    other = LiveHarness(broker)
    ask_for(other, "ab")
    assert "'ab'" in str(other.refusal().description)
    for session_id in ("ab", "AB"):
        body: dict[str, Any] = {"session-id": session_id, "session-state": session_id.encode()}
        assert request(rig, "orders", "renew-session-lock", body).status == 200
        assert request(rig, "orders", "set-session-state", body).status == 200
    state = request(rig, "orders", "get-session-state", {"session-id": "aB"})
    assert state.body["session-state"] == b"AB"
    body = {"from-sequence-number": Long(0), "message-count": 5, "session-id": "AB"}
    assert len(request(rig, "orders", "peek-message", body).body["messages"]) == 2
    rig.settle(first.delivery_id, second.delivery_id, ACCEPTED)
    rig.client.detach(rig.channel, handle)
    rig.pump()
    asked = {"last-updated-time": Timestamp(INSTANT_MS_MAX), "skip": Int(0), "top": Int(9)}
    found = request(rig, "orders", "get-message-sessions", asked).body["sessions-ids"]
    assert list(found) == ["AB", "c"]


def test_who_may_attach_where(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: G-01, L-17. Source: wire contract 2.6."""
    broker.create_queue("plain")
    for address, filters in (
        ("orders", None),
        ("plain", {FILTER: "s"}),
        ("plain", {FILTER: None}),
        ("orders/$DeadLetterQueue", {FILTER: "s"}),
        ("orders/$Transfer/$DeadLetterQueue", {FILTER: None}),
    ):
        rig.listen(address, filter=filters)
        assert str(rig.refusal().condition) == "amqp:not-allowed"
    rig.listen("orders/$DeadLetterQueue")
    assert isinstance(rig.take_event(LinkAttached).source, Source)


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (message_bytes(b"no properties"), "amqp:not-allowed"),
        (message("none"), "amqp:not-allowed"),
        (message_bytes(b"x", properties=[None] * 10 + [7]), "com.microsoft:argument-error"),
        (message("long", "s" * 129), "com.microsoft:argument-error"),
        (message("two", "s", annotations={Symbol("x-opt-partition-key"): "p"}), "amqp:not-allowed"),
    ],
)
def test_a_message_without_a_session_is_refused(rig: LiveHarness, payload: bytes, condition: str) -> None:
    """Req: G-01, R-05. One in a batch refuses the batch. Source: wire contract 3.3."""
    handle = rig.sender()
    assert str(rig.rejection(rig.transfer(handle, payload)).condition) == condition
    batch = section(0x75, message("good", "s")) + section(0x75, payload)
    delivery_id = rig.transfer(handle, batch, message_format=BATCH_FORMAT)
    assert str(rig.rejection(delivery_id).condition) == condition
    accept(rig, "s", credit=5)
    assert rig.deliveries() == []


def test_the_next_session_is_the_one_that_has_been_available_longest(rig: LiveHarness) -> None:
    """Req: G-06."""
    send(rig, message("1", "b"), message("2", "a"), message("3", "b"), message("4", "c"))
    assert [accept(rig)[1] for _ in range(3)] == ["b", "a", "c"]
    assert got(rig, ask_for(rig, None)) is None


def test_a_receiver_waits_for_the_next_session_until_its_time_is_up(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: G-04. 65 s, or what the client says."""
    start = broker.clock.now_ms
    for wait_ms in (65_000, 10_000):
        handle = ask_for(rig, None, wait_ms=None if wait_ms == 65_000 else wait_ms)
        broker.advance(wait_ms - 1)
        rig.pump()
        assert got(rig, handle) is None
        broker.advance(1)
        rig.pump()
        assert str(rig.refusal().condition) == "com.microsoft:timeout"
    assert broker.clock.now_ms == start + 75_000
    send(rig, message("m", "s"))
    assert accept(rig)[1] == "s"


def test_a_message_of_a_new_session_ends_the_wait_of_the_first_that_waits(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: G-04, G-06. Other links of the connection go on meanwhile."""
    others = [LiveHarness(broker) for _ in range(2)]
    first = ask_for(rig, None, credit=5)
    second = ask_for(others[0], None, credit=5)
    send(rig, message("m", "s"))  # over the same connection and AMQP session
    assert got(rig, first) == "s"
    assert bodies(rig.deliveries()) == ["m"]
    assert got(others[0], second) is None
    send(others[1], message("n", "t"))
    others[0].pump()
    assert got(others[0], second) == "t"
    assert bodies(others[0].deliveries()) == ["n"]
    rig.client.detach(rig.channel, first)
    rig.pump()
    handle = ask_for(others[1], None, credit=5)
    assert got(others[1], handle) == "s"
    assert bodies(others[1].deliveries()) == ["m"]


@pytest.mark.parametrize("end", ["detach", "detach unclosed", "end", "close", "cut"])
def test_a_wait_that_was_given_up_gets_no_session(
    rig: LiveHarness, broker: InProcessBroker, end: str
) -> None:
    """Req: G-04, L-13, L-16. Nor does its handle's next owner by mistake."""
    handle = ask_for(rig, None, name="waits", credit=5)
    if end.startswith("detach"):
        rig.client.detach(rig.channel, handle, closed=end == "detach")
        source = Source("orders", filter={FILTER: "other"})
        rig.client.attach(rig.channel, "again", Role.RECEIVER, source, None)
    elif end == "end":
        rig.client.end(rig.channel)
    elif end == "close":
        rig.client.close()
    else:
        rig.cut()
    rig.pump()
    other = LiveHarness(broker)
    send(other, message("m", "s"))
    assert accept(other, credit=1)[1] == "s"
    assert bodies(other.deliveries()) == ["m"]
    if end.startswith("detach"):
        rig.pump()
        attached = [event for event in rig.events if isinstance(event, LinkAttached) and event.source]
        assert [event.name for event in attached] == ["again"]


def test_a_wait_ends_with_its_entity(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: G-04, A-07."""
    ask_for(rig, None)
    broker.ask(lambda reply_to: DeleteEntity("orders", reply_to))
    rig.pump()
    error = rig.refusal()
    assert str(error.condition) == "amqp:resource-deleted"
    broker.advance(100_000)


# Locks


def is_attached(rig: LiveHarness) -> bool:
    rig.pump()
    return not any(isinstance(event, LinkDetached) for event in rig.events)


def test_who_waits_out_a_session_lock_ends_the_wait_in_peace(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """The drain finds nothing, although others send; the link goes 3 s later.

    Req: G-02, T-08, C40. Source: wire contract C7.
    """
    handle, _ = accept(rig, "s", credit=5)
    broker.advance(LOCK_MS)
    other = LiveHarness(broker)
    send(other, message("1", "s"))
    rig.client.flow(rig.channel, handle, 5, drain=True)
    assert is_attached(rig)
    assert rig.client.credit(rig.channel, handle) == 0
    assert rig.deliveries() == []
    rig.client.flow(rig.channel, handle, 5, echo=True)
    response = request(rig, "orders", "peek-message", {"from-sequence-number": Long(0), "message-count": 5})
    assert response.status == 200
    broker.advance(DETACH_AFTER_MS - 1)
    assert is_attached(rig)
    broker.advance(1)
    rig.pump()
    assert lost(rig) == "com.microsoft:session-lock-lost"
    assert rig.deliveries() == []


def test_a_lapsed_session_that_somebody_else_accepts_costs_the_holder_the_link(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: G-02. Source: wire contract C7."""
    send(rig, message("1", "s"))
    accept(rig, "s", credit=1)
    broker.advance(LOCK_MS)
    assert is_attached(rig)
    other = LiveHarness(broker)
    accept(other, "s", credit=1)
    assert counts(other.deliveries()) == [1]
    rig.pump()
    assert lost(rig) == "com.microsoft:session-lock-lost"


@pytest.mark.parametrize("settled", [False, True])
def test_a_settlement_in_a_lapsed_session_costs_the_link(
    rig: LiveHarness, broker: InProcessBroker, settled: bool
) -> None:
    """Python settles on its own side, without waiting for an answer. Req: G-02, L-11."""
    send(rig, message("1", "s"))
    accept(rig, "s", credit=1)
    broker.advance(LOCK_MS)
    assert is_attached(rig)
    rig.settle(0, 0, ACCEPTED, settled=settled)
    if not settled:
        assert str(rig.rejection(0).condition) == "com.microsoft:session-lock-lost"
    assert lost(rig) == "com.microsoft:session-lock-lost"


def test_a_lapsed_session_is_lost_and_its_messages_return_counted(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: G-02, L-08, L-11. Source: wire contract 2.6, 10.4, C7."""
    send(rig, message("1", "s"), message("2", "s"), message("3", "s"))
    accept(rig, "s", credit=2)
    deliveries = rig.deliveries()
    tokens = [uuid.UUID(bytes_le=event.delivery_tag) for event in deliveries]
    broker.advance(LOCK_MS - 1)
    assert is_attached(rig)
    broker.advance(1)
    assert is_attached(rig)
    rig.settle(0, 0, ACCEPTED)
    assert str(rig.rejection(0).condition) == "com.microsoft:session-lock-lost"
    assert lost(rig) == "com.microsoft:session-lock-lost"
    rig.settle(1, 1, ACCEPTED)
    assert str(rig.rejection(1).condition) == "com.microsoft:session-lock-lost"
    for operation, body in (
        ("update-disposition", {"disposition-status": "completed", "lock-tokens": tokens, "session-id": "s"}),
        ("renew-session-lock", {"session-id": "s"}),
        ("get-session-state", {"session-id": "s"}),
        ("set-session-state", {"session-id": "s", "session-state": b"x"}),
    ):
        response = request(rig, "orders", operation, body)
        assert (response.status, str(response.condition)) == (410, "com.microsoft:session-lock-lost")
    accept(rig, credit=5)
    again = rig.deliveries()
    assert (bodies(again), counts(again)) == (["1", "2", "3"], [1, 1, 0])


def test_a_renewed_session_is_kept(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: G-02. Only for the connection that holds it; traffic alone renews nothing."""
    send(rig, message("1", "s"))
    accept(rig, "s", credit=1)
    broker.advance(LOCK_MS - 1)
    response = request(rig, "orders", "renew-session-lock", {"session-id": "s"})
    assert (response.status, response.body) == (200, {"expiration": broker.clock.now_ms + LOCK_MS})
    other = LiveHarness(broker)
    for session_id in ("s", "unknown"):
        response = request(other, "orders", "renew-session-lock", {"session-id": session_id})
        assert (response.status, str(response.condition)) == (410, "com.microsoft:session-lock-lost")
    broker.advance(LOCK_MS - 1)
    rig.pump()
    assert not any(isinstance(event, LinkDetached) for event in rig.events)
    rig.settle(0, 0, ACCEPTED)
    assert rig.take_event(DispositionReceived).state == ACCEPTED


@pytest.mark.parametrize(
    ("end", "count"), [("detach", 0), ("detach unclosed", 0), ("end", 0), ("close", 0), ("cut", 1)]
)
def test_the_end_of_a_link_frees_its_session(
    rig: LiveHarness, broker: InProcessBroker, end: str, count: int
) -> None:
    """Req: L-13, L-08, G-02. At once; only a broken connection counts."""
    send(rig, message("1", "s"), message("2", "s"))
    handle, _ = accept(rig, "s", credit=2)
    assert len(rig.deliveries()) == 2
    if end.startswith("detach"):
        rig.client.detach(rig.channel, handle, closed=end == "detach")
    elif end == "end":
        rig.client.end(rig.channel)
    elif end == "close":
        rig.client.close(AmqpError(Symbol("amqp:connection:forced"), "bye"))
    else:
        rig.cut()
    rig.pump()
    other = LiveHarness(broker)
    accept(other, "s", credit=5)
    again = other.deliveries()
    assert (bodies(again), counts(again)) == (["1", "2"], [count, count])


def test_what_was_detached_before_the_connection_broke_is_not_counted(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: L-13."""
    send(rig, message("1", "s"), message("2", "t"))
    handle, _ = accept(rig, "s", credit=1)
    accept(rig, "t", credit=1)
    rig.client.detach(rig.channel, handle)
    rig.pump()
    rig.cut()
    other = LiveHarness(broker)
    for session_id, count in (("s", 0), ("t", 1)):
        accept(other, session_id, credit=1)
        assert counts(other.deliveries()) == [count]


def test_a_change_of_the_entity_takes_sessions_away_uncounted(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: L-12."""
    send(rig, message("1", "s"))
    accept(rig, "s", credit=1)
    rig.deliveries()
    changed = QueueDescription("orders", **{**SETTINGS, "max_delivery_count": 7})
    broker.ask(lambda reply_to: UpdateEntity(changed, reply_to))
    rig.pump()
    assert lost(rig) == "com.microsoft:session-lock-lost"
    accept(rig, "s", credit=1)
    assert counts(rig.deliveries()) == [0]


def test_sessions_are_free_after_a_restart(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-12, G-03. States are not lost."""
    send(rig, message("1", "s"), message("2", "t"))
    accept(rig, "s", credit=1)
    request(rig, "orders", "set-session-state", {"session-id": "s", "session-state": b"half way"})
    restarted = InProcessBroker(clock=broker.clock, store=broker.store, seed=1)
    again = LiveHarness(restarted)
    assert [accept(again, credit=1)[1] for _ in range(2)] == ["s", "t"]
    deliveries = again.deliveries()
    assert (bodies(deliveries), counts(deliveries)) == (["1", "2"], [0, 0])
    state = request(again, "orders", "get-session-state", {"session-id": "s"})
    assert state.body == {"session-state": b"half way"}
    restarted.namespace.check(restarted.clock.now_ms)


# Settlement


def test_every_settlement_in_a_session(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-05 to L-09, G-01. By link and by lock token."""
    send(rig, *(message(str(number), "s") for number in range(6)))
    handle, _ = accept(rig, "s", credit=6)
    tokens = [uuid.UUID(bytes_le=event.delivery_tag) for event in rig.deliveries()]
    rig.settle(0, 0, ACCEPTED)
    rig.settle(1, 1, Modified(True, True))
    rig.settle(
        2, 2, Rejected(AmqpError(Symbol("com.microsoft:dead-letter"), "", {"DeadLetterReason": "why"}))
    )
    rig.settle(3, 3, Modified(True, False))
    rig.settle(4, 4, RELEASED)
    response = request(
        rig,
        "orders",
        "update-disposition",
        {
            "disposition-status": "completed",
            "lock-tokens": Array.of(uuid.UUID, tokens[5:]),
            "session-id": "s",
        },
    )
    assert response.status == 200
    rig.client.flow(rig.channel, handle, 9)
    rig.pump()
    again = rig.deliveries()
    assert sorted(zip(bodies(again), counts(again), strict=True)) == [("3", 1), ("4", 0)]
    view = broker.queue("orders")
    assert (view.active_count, view.dead_letter_count) == (3, 1)  # two and the deferred one


def test_received_and_deleted_within_a_session(rig: LiveHarness, broker: InProcessBroker) -> None:
    """Req: L-01, G-01."""
    send(rig, message("1", "s"), message("2", "s"))
    accept(rig, "s", credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    [delivery] = rig.deliveries()
    assert (bodies([delivery]), delivery.settled) == (["1"], True)
    assert broker.queue("orders").active_count == 1


def test_dead_letters_of_a_session_are_read_without_one(rig: LiveHarness) -> None:
    """Req: L-17. They keep their session id."""
    send(rig, message("1", "s"))
    for _ in range(3):
        handle, _ = accept(rig, "s", credit=1)
        [delivery] = rig.deliveries()
        rig.settle(delivery.delivery_id, delivery.delivery_id, Modified(True, False))
        rig.client.detach(rig.channel, handle)
        rig.pump()
    rig.events.clear()
    rig.listen("orders/$DeadLetterQueue", credit=1)
    [dead] = rig.deliveries()
    sections = scan(dead.payload)
    assert sections.decode_properties().group_id == "s"
    assert sections.decode_application_properties()["DeadLetterReason"] == "MaxDeliveryCountExceeded"
    assert "x-opt-locked-until" in sections.decode_message_annotations()
