"""Transactions as a client sees them: a whole broker over AMQP, in one thread."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkDetached
from peeklock.amqp.messaging import BATCH_FORMAT, scan
from peeklock.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Declared,
    DeliveryState,
    Modified,
    Rejected,
    TransactionalState,
)
from peeklock.amqp.types import Array, Role, Symbol, Timestamp
from peeklock.broker.commands import DeleteEntity, UpdateEntity
from peeklock.broker.descriptions import EntityStatus
from peeklock.broker.quotas import BASIC
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.live import FILTER, LOCK_MS, SETTINGS, bodies, counts, message, send
from tests.gateway.playbook import LiveDesk, message_bytes, section

DESTINATION = Symbol("com.microsoft:transfer-destination-address")
MINUTE_MS = 60_000


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    broker = InProcessBroker()
    for name in ("orders", "audit"):
        broker.create_queue(name, lock_duration_ms=LOCK_MS, max_delivery_count=3)
    yield broker
    broker.namespace.check(broker.clock.now_ms)


@pytest.fixture
def desk(broker: InProcessBroker) -> LiveDesk:
    return LiveDesk(broker)


class Controller:
    """The client's end of a link to the coordinator, and what is done in its transactions."""

    def __init__(self, desk: LiveDesk) -> None:
        self.desk = desk
        self.handle = desk.controller()

    def declare(self) -> bytes:
        """Begin a transaction; gives its id."""
        delivery_id = self.desk.transfer(self.handle, encode_coordination(Declare()))
        state = said(self.desk, delivery_id)
        assert isinstance(state, Declared)
        assert len(state.txn_id) == 16
        return state.txn_id

    def discharge(self, txn_id: bytes, *, fail: bool = False) -> DeliveryState | None:
        """End a transaction; gives what the coordinator says to that."""
        delivery_id = self.desk.transfer(self.handle, encode_coordination(Discharge(txn_id, fail)))
        return said(self.desk, delivery_id)

    def commit(self, txn_id: bytes) -> None:
        assert self.discharge(txn_id) == ACCEPTED

    def roll_back(self, txn_id: bytes) -> None:
        assert self.discharge(txn_id, fail=True) == ACCEPTED

    def refused(self, txn_id: bytes) -> str:
        """Try to commit; gives the condition of the refusal."""
        return condition(self.discharge(txn_id))

    def send(self, txn_id: bytes, handle: int, payload: bytes, **options: Any) -> DeliveryState | None:
        delivery_id = self.desk.transfer(handle, payload, state=TransactionalState(txn_id), **options)
        return said(self.desk, delivery_id)

    def settle(
        self, txn_id: bytes, delivery: DeliveryReceived, outcome: DeliveryState = ACCEPTED
    ) -> DeliveryState | None:
        number = delivery.delivery_id
        self.desk.settle(number, number, TransactionalState(txn_id, outcome))
        return said(self.desk, number, Role.SENDER)


@pytest.fixture
def controller(desk: LiveDesk) -> Controller:
    return Controller(desk)


def said(desk: LiveDesk, delivery_id: int, role: Role = Role.RECEIVER) -> DeliveryState | None:
    """Take the broker's word on one delivery."""
    event = desk.take_event(DispositionReceived)
    assert (event.role, event.first, event.last, event.settled) == (role, delivery_id, delivery_id, True)
    return event.state


def condition(state: DeliveryState | None) -> str:
    assert isinstance(state, Rejected), state
    assert state.error is not None
    assert "TrackingId:" in state.error.description
    return str(state.error.condition)


def waiting(broker: InProcessBroker, name: str) -> list[str]:
    """Receive and lock what a queue has to give now, over a connection that is broken afterwards."""
    desk = LiveDesk(broker)
    desk.listen(name, credit=100)
    found = bodies(desk.deliveries())
    desk.client.close()
    desk.pump()
    desk.cut()
    return found


def active(broker: InProcessBroker, *names: str) -> list[int]:
    return [broker.queue(name).active_count for name in names]


def disable_sends(broker: InProcessBroker, name: str) -> None:
    description = replace(broker.queue(name).description, status=EntityStatus.SEND_DISABLED)
    broker.ask(lambda reply_to: UpdateEntity(description, reply_to))


def test_what_was_enlisted_happens_at_the_commit_and_not_before(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03. Receive from one queue, send to another: the main job of transactions."""
    send(desk, message("in"))
    desk.listen(credit=1)
    [delivery] = desk.deliveries()
    sender = desk.sender("audit")
    txn_id = controller.declare()
    accepted = TransactionalState(txn_id, ACCEPTED)
    assert controller.send(txn_id, sender, message("out")) == accepted
    assert controller.settle(txn_id, delivery) == accepted
    assert active(broker, "orders", "audit") == [1, 0]
    assert waiting(broker, "audit") == []
    controller.commit(txn_id)
    assert active(broker, "orders", "audit") == [0, 1]
    assert waiting(broker, "audit") == ["out"]


def test_what_was_rolled_back_never_was(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """The message stays locked as it was, and the numbers of messages have no gap. Req: F-03, S-01."""
    send(desk, message("in"))
    desk.listen(credit=2)
    [delivery] = desk.deliveries()
    sender = desk.sender("audit")
    txn_id = controller.declare()
    controller.send(txn_id, sender, message("out"))
    controller.settle(txn_id, delivery)
    controller.roll_back(txn_id)
    assert active(broker, "orders", "audit") == [1, 0]
    assert desk.deliveries() == []
    send(desk, message("next"), to="audit")
    desk.listen("audit", credit=1)
    [following] = desk.deliveries()
    annotations = scan(following.payload).decode_message_annotations()
    assert annotations["x-opt-sequence-number"] == 1
    # The lock is still held, and the delivery can be settled over its link.
    desk.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    assert said(desk, delivery.delivery_id, Role.SENDER) == ACCEPTED
    assert active(broker, "orders") == [0]


def test_after_a_roll_back_a_release_makes_the_message_available_at_once(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, L-08."""
    send(desk, message("in"))
    desk.listen(credit=2)
    [delivery] = desk.deliveries()
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.roll_back(txn_id)
    desk.settle(delivery.delivery_id, delivery.delivery_id, RELEASED, settled=True)
    [again] = desk.deliveries()
    assert (bodies([again]), counts([again])) == (["in"], [0])


def test_every_settlement_and_a_batch_in_one_transaction(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, T-07, L-05, L-06, L-08, L-09."""
    send(desk, *(message(name) for name in ("complete", "abandon", "defer", "dead")))
    receiver = desk.listen(credit=4)
    deliveries = desk.deliveries()
    txn_id = controller.declare()
    outcomes: list[DeliveryState] = [ACCEPTED, Modified(True, False), Modified(True, True), Rejected()]
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        assert controller.settle(txn_id, delivery, outcome) == TransactionalState(txn_id, outcome)
    batch = b"".join(section(0x75, message(f"b{number}")) for number in range(3))
    sender = desk.sender("audit")
    assert controller.send(txn_id, sender, batch, message_format=BATCH_FORMAT) == TransactionalState(
        txn_id, ACCEPTED
    )
    desk.client.flow(desk.channel, receiver, 4)
    desk.pump()
    assert desk.deliveries() == []
    controller.commit(txn_id)
    [again] = desk.deliveries()
    desk.pump()
    assert (bodies([again]), counts([again])) == (["abandon"], [1])
    assert waiting(broker, "audit") == ["b0", "b1", "b2"]
    assert waiting(broker, "orders/$DeadLetterQueue") == ["dead"]
    assert active(broker, "orders") == [2]  # the abandoned and the deferred one


def test_a_range_is_settled_in_a_transaction(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, T-04."""
    send(desk, *(message(str(number)) for number in range(5)))
    desk.listen(credit=5)
    deliveries = desk.deliveries()
    first, last = deliveries[0].delivery_id, deliveries[-1].delivery_id
    txn_id = controller.declare()
    desk.settle(first, last, TransactionalState(txn_id, ACCEPTED))
    event = desk.take_event(DispositionReceived)
    assert (event.first, event.last, event.state) == (first, last, TransactionalState(txn_id, ACCEPTED))
    assert active(broker, "orders") == [5]
    controller.commit(txn_id)
    assert active(broker, "orders") == [0]


def test_transactions_of_one_connection_are_apart(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03."""
    sender = desk.sender()
    first, second = controller.declare(), controller.declare()
    assert first != second
    controller.send(first, sender, message("first"))
    controller.send(second, sender, message("second"))
    plain = desk.transfer(sender, message("plain"))
    assert said(desk, plain) == ACCEPTED
    controller.roll_back(first)
    controller.commit(second)
    assert waiting(broker, "orders") == ["plain", "second"]


def test_a_message_that_is_settled_in_a_transaction_is_settled_by_nobody_else(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Until it ends. Req: F-03, L-11, L-14."""
    send(desk, message("in"))
    desk.listen(credit=1)
    [delivery] = desk.deliveries()
    token = uuid.UUID(bytes_le=delivery.delivery_tag)
    first, second = controller.declare(), controller.declare()
    controller.settle(first, delivery)
    assert condition(controller.settle(second, delivery)) == "com.microsoft:message-lock-lost"
    other = LiveDesk(broker)
    node, _ = other.pair("orders/$management")
    body = {"disposition-status": "completed", "lock-tokens": Array.of(uuid.UUID, [token])}
    other.request(node, "com.microsoft:update-disposition", body)
    assert other.response().status == 410
    controller.roll_back(first)
    other.request(node, "com.microsoft:update-disposition", body)
    assert other.response().status == 200
    assert active(broker, "orders") == [0]


# By request


def test_dispositions_by_request_are_part_of_a_transaction_and_renewals_are_not(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, L-10, L-14. Source: wire contract 6."""
    send(desk, message("1"), message("2"))
    desk.listen(credit=2)
    deliveries = desk.deliveries()
    tokens = Array.of(uuid.UUID, [uuid.UUID(bytes_le=delivery.delivery_tag) for delivery in deliveries])
    node, _ = desk.pair("orders/$management")
    txn_id = controller.declare()
    within = TransactionalState(txn_id)

    def ask(operation: str, body: dict[str, Any]) -> Any:
        desk.request(node, f"com.microsoft:{operation}", body, state=within)
        assert desk.take_event(DispositionReceived).state == TransactionalState(txn_id, ACCEPTED)
        return desk.response().status

    assert ask("update-disposition", {"disposition-status": "completed", "lock-tokens": tokens}) == 200
    assert active(broker, "orders") == [2]
    broker.advance(LOCK_MS - 1)
    assert ask("renew-lock", {"lock-tokens": tokens}) == 200
    broker.advance(LOCK_MS - 1)
    assert ask("schedule-message", {"messages": [{"message": message("x")}]}) == 400
    assert ask("update-disposition", {"disposition-status": "abandoned", "lock-tokens": tokens}) == 410
    controller.commit(txn_id)
    assert active(broker, "orders") == [0]


# What keeps a transaction from its commit


def test_a_lock_that_lapses_before_the_commit_rolls_all_of_it_back(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Nothing is half done, and the message is given to others. Req: F-03, L-08."""
    send(desk, message("1"), message("2"))
    desk.listen(credit=1)
    [first] = desk.deliveries()
    broker.advance(LOCK_MS - 1)
    desk.listen(credit=1)
    [second] = desk.deliveries()
    sender = desk.sender("audit")
    txn_id = controller.declare()
    for delivery in (first, second):
        assert controller.settle(txn_id, delivery) == TransactionalState(txn_id, ACCEPTED)
    controller.send(txn_id, sender, message("out"))
    broker.advance(1)
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "orders", "audit") == [2, 0]
    assert controller.refused(txn_id) == "amqp:transaction:unknown-id"
    # The second one is still held by its lock.
    desk.settle(second.delivery_id, second.delivery_id, ACCEPTED)
    assert said(desk, second.delivery_id, Role.SENDER) == ACCEPTED
    desk.settle(first.delivery_id, first.delivery_id, ACCEPTED)
    assert condition(said(desk, first.delivery_id, Role.SENDER)) == "com.microsoft:message-lock-lost"
    other = LiveDesk(broker)
    other.listen(credit=5)
    again = other.deliveries()
    assert (bodies(again), counts(again)) == (["1"], [1])


@pytest.mark.parametrize("what", ["delete", "disable"])
def test_a_queue_that_is_gone_or_disabled_before_the_commit_rolls_all_of_it_back(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller, what: str
) -> None:
    """Req: F-03, A-04."""
    send(desk, message("in"))
    desk.listen(credit=1)
    [delivery] = desk.deliveries()
    sender = desk.sender("audit")
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.send(txn_id, sender, message("out"))
    if what == "delete":
        broker.ask(lambda reply_to: DeleteEntity("audit", reply_to))
    else:
        disable_sends(broker, "audit")
    desk.pump()
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "orders") == [1]
    desk.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    assert said(desk, delivery.delivery_id, Role.SENDER) == ACCEPTED


def test_a_transaction_is_rolled_back_after_two_minutes(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Its id says so once, and is unknown then. Req: F-03."""
    sender = desk.sender("audit")
    in_time, late, unasked, unused = (controller.declare() for _ in range(4))
    for txn_id in (in_time, late, unasked):
        controller.send(txn_id, sender, message("out"))
    broker.advance(2 * MINUTE_MS - 1)
    controller.commit(in_time)
    broker.advance(1)
    assert condition(controller.send(late, sender, message("x"))) == "amqp:transaction:timeout"
    assert controller.refused(late) == "amqp:transaction:timeout"
    assert controller.refused(late) == "amqp:transaction:unknown-id"
    assert condition(controller.discharge(unasked, fail=True)) == "amqp:transaction:timeout"
    controller.commit(unused)  # the time runs from the first operation
    assert active(broker, "audit") == [1]


def test_a_settlement_after_the_time_is_refused_and_can_be_made_outside(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03."""
    txn_id = controller.declare()
    controller.send(txn_id, desk.sender("audit"), message("out"))
    broker.advance(2 * MINUTE_MS)
    send(desk, message("in"))
    desk.listen(credit=1)
    [delivery] = desk.deliveries()
    assert condition(controller.settle(txn_id, delivery)) == "amqp:transaction:timeout"
    desk.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    assert said(desk, delivery.delivery_id, Role.SENDER) == ACCEPTED
    assert active(broker, "orders") == [0]


@pytest.mark.parametrize("refused_by", ["broker", "gateway"])
def test_a_pre_settled_send_that_is_refused_keeps_the_transaction_from_its_commit(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller, refused_by: str
) -> None:
    """By the broker, where sends are disabled, or by the gateway, which finds no message. Req: F-03, T-06."""
    good, bad = desk.sender("orders"), desk.sender("audit")
    txn_id = controller.declare()
    controller.send(txn_id, good, message("good"))
    if refused_by == "broker":
        disable_sends(broker, "audit")
    payload = message("bad") if refused_by == "broker" else b"noise"
    desk.transfer(bad, payload, state=TransactionalState(txn_id), settled=True)
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "orders", "audit") == [0, 0]


# Losing the link, losing the broker


@pytest.mark.parametrize("how", ["detach", "end", "close", "cut"])
def test_losing_the_coordinators_link_rolls_back(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller, how: str
) -> None:
    """Req: F-03, L-13."""
    send(desk, message("in"))
    desk.listen(credit=1, name="receiver")
    [delivery] = desk.deliveries()
    sender = desk.sender("audit")
    work = control = desk.channel
    if how == "end":
        control = desk.channel = desk.client.begin()
        controller = Controller(desk)
    txn_id = controller.declare()
    desk.channel = work
    controller.send(txn_id, sender, message("out"))
    controller.settle(txn_id, delivery)
    if how == "detach":
        desk.client.detach(desk.channel, controller.handle)
        desk.pump()
    elif how == "end":
        desk.client.end(control)
        desk.pump()
    elif how == "close":
        desk.client.close()
        desk.pump()
        desk.cut()
    else:
        desk.cut()
    assert active(broker, "orders", "audit") == [1, 0]
    if how in ("detach", "end"):
        assert condition(controller.send(txn_id, sender, message("x"))) == "amqp:transaction:unknown-id"
        # The message is locked as before.
        desk.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
        assert said(desk, delivery.delivery_id, Role.SENDER) == ACCEPTED
        return
    again = LiveDesk(broker)
    again.listen(credit=1)
    assert bodies(again.deliveries()) == ([] if how == "close" else ["in"])


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_before_the_commit_undoes_all_and_one_after_it_nothing(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller, committed: bool
) -> None:
    """Req: F-03, R-02."""
    send(desk, message("in"))
    desk.listen(credit=1)
    [delivery] = desk.deliveries()
    sender = desk.sender("audit")
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.send(txn_id, sender, message("out"))
    if committed:
        controller.commit(txn_id)
    again = InProcessBroker(clock=broker.clock, store=broker.store, seed=1)
    assert waiting(again, "orders") == ([] if committed else ["in"])
    assert waiting(again, "audit") == (["out"] if committed else [])
    later = Controller(LiveDesk(again))
    assert later.refused(txn_id) == "amqp:transaction:unknown-id"
    again.namespace.check(again.clock.now_ms)


# Sessions, duplicates, schedules, forwards


def test_messages_of_a_session_are_settled_and_sent_in_a_transaction(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, G-02."""
    broker.create_queue("steps", **SETTINGS)
    send(desk, message("1", "s"), message("2", "s"), to="steps")
    desk.listen("steps", credit=2, filter={FILTER: "s"})
    first, second = desk.deliveries()
    sender = desk.sender("steps")
    txn_id = controller.declare()
    controller.settle(txn_id, first)
    assert condition(controller.send(txn_id, sender, message("no session"))) == "amqp:not-allowed"
    controller.send(txn_id, sender, message("3", "s"))
    controller.commit(txn_id)
    assert active(broker, "steps") == [2]
    desk.settle(second.delivery_id, second.delivery_id, ACCEPTED)
    said(desk, second.delivery_id, Role.SENDER)
    desk.client.flow(desk.channel, 1, 5)
    other = LiveDesk(broker)
    broker.advance(LOCK_MS)
    desk.pump()
    other.listen("steps", credit=5, filter={FILTER: None})
    assert bodies(other.deliveries()) == ["3"]


@pytest.mark.parametrize("renewed", [False, True])
def test_a_session_whose_lock_lapses_rolls_the_transaction_back(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller, renewed: bool
) -> None:
    """Unless it is renewed. Req: F-03, G-02, G-04."""
    broker.create_queue("steps", **SETTINGS)
    send(desk, message("1", "s"), to="steps")
    desk.listen("steps", credit=1, filter={FILTER: "s"})
    [delivery] = desk.deliveries()
    sender = desk.sender("audit")
    node, _ = desk.pair("steps/$management")
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.send(txn_id, sender, message("out"))
    broker.advance(LOCK_MS - 1)
    if renewed:
        desk.request(
            node, "com.microsoft:renew-session-lock", {"session-id": "s"}, state=TransactionalState(txn_id)
        )
        assert desk.take_event(DispositionReceived).state == TransactionalState(txn_id, ACCEPTED)
        assert desk.response().status == 200
    broker.advance(1)
    desk.pump()
    if renewed:
        controller.commit(txn_id)
        assert active(broker, "steps", "audit") == [0, 1]
        return
    assert str(desk.take_event(LinkDetached).error).startswith("AmqpError('com.microsoft:session-lock-lost'")
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "steps", "audit") == [1, 0]


def test_duplicates_are_found_at_the_commit(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Within a transaction, and against what came before it was committed. Req: D-01, F-03."""
    broker.create_queue("once", requires_duplicate_detection=True)
    sender = desk.sender("once")
    txn_id = controller.declare()
    for body in ("a", "a", "b"):
        controller.send(txn_id, sender, message(body))
    plain = desk.transfer(sender, message("b"))
    assert said(desk, plain) == ACCEPTED
    controller.commit(txn_id)
    assert waiting(broker, "once") == ["b", "a"]
    rolled_back = controller.declare()
    controller.send(rolled_back, sender, message("c"))
    controller.roll_back(rolled_back)
    assert said(desk, desk.transfer(sender, message("c"))) == ACCEPTED
    assert active(broker, "once") == [3]


def test_a_scheduled_message_is_sent_in_a_transaction(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """It is sent, not scheduled by request: no number is promised. Req: F-03, S-05."""
    at = Timestamp(broker.clock.now_ms + 5_000)
    payload = message_bytes(b"later", annotations={Symbol("x-opt-scheduled-enqueue-time"): at})
    sender = desk.sender()
    txn_id = controller.declare()
    controller.send(txn_id, sender, payload)
    broker.advance(5_000)
    assert active(broker, "orders") == [0]
    controller.commit(txn_id)
    assert waiting(broker, "orders") == ["later"]


def test_what_is_sent_in_a_transaction_is_forwarded_with_its_commit(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-01, F-03."""
    broker.create_queue("inbox", forward_to="audit")
    sender = desk.sender("inbox")
    txn_id = controller.declare()
    controller.send(txn_id, sender, message("out"))
    assert active(broker, "audit") == [0]
    controller.commit(txn_id)
    assert waiting(broker, "audit") == ["out"]


# Sending via an entity


@pytest.mark.parametrize("transactional", [False, True])
def test_a_message_is_sent_via_an_entity(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller, transactional: bool
) -> None:
    """Req: F-03. Source: wire contract 6."""
    sender = desk.attach(Role.SENDER, "orders", properties={DESTINATION: "amqps://localhost/audit"})
    if transactional:
        txn_id = controller.declare()
        controller.send(txn_id, sender, message("via"))
        assert active(broker, "orders", "audit") == [0, 0]
        controller.commit(txn_id)
    else:
        assert said(desk, desk.transfer(sender, message("via"))) == ACCEPTED
    assert active(broker, "orders") == [0]
    assert waiting(broker, "audit") == ["via"]


def test_a_sender_via_an_entity_to_nowhere_is_refused(desk: LiveDesk) -> None:
    desk.attach(Role.SENDER, "orders", properties={DESTINATION: "nowhere"})
    assert str(desk.refusal().condition) == "amqp:not-found"


def test_what_cannot_reach_its_destination_is_a_transfer_dead_letter_of_the_entity_between(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-01, F-03."""
    sender = desk.attach(Role.SENDER, "orders", properties={DESTINATION: "audit"})
    broker.ask(lambda reply_to: DeleteEntity("audit", reply_to))
    desk.transfer(sender, message("lost"))
    assert active(broker, "orders") == [0]
    assert waiting(broker, "orders/$Transfer/$DeadLetterQueue") == ["lost"]


# Bad input


def test_an_id_that_nothing_has_is_unknown_wherever_it_is_used(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """The connection goes on. Req: F-03, R-05."""
    send(desk, message("in"))
    desk.listen(credit=1)
    [delivery] = desk.deliveries()
    sender = desk.sender()
    unknown = "amqp:transaction:unknown-id"
    for txn_id in (b"", b"x", bytes(16), b"x" * 32, b"x" * 33, b"x" * 300):
        assert condition(controller.send(txn_id, sender, message("out"))) == unknown
        assert condition(controller.settle(txn_id, delivery)) == unknown
        assert condition(controller.discharge(txn_id)) == unknown
        assert condition(controller.discharge(txn_id, fail=True)) == unknown
    desk.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    assert said(desk, delivery.delivery_id, Role.SENDER) == ACCEPTED
    assert active(broker, "orders") == [0]


def test_a_transaction_of_another_connection_is_unknown(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """And stays as it is. Req: F-03, R-04."""
    sender = desk.sender()
    txn_id = controller.declare()
    controller.send(txn_id, sender, message("mine"))
    other_desk = LiveDesk(broker)
    other = Controller(other_desk)
    other_sender = other_desk.sender()
    assert condition(other.send(txn_id, other_sender, message("theirs"))) == "amqp:transaction:unknown-id"
    assert condition(other.discharge(txn_id, fail=True)) == "amqp:transaction:unknown-id"
    controller.commit(txn_id)
    assert waiting(broker, "orders") == ["mine"]


def test_a_transaction_is_discharged_once(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03."""
    sender = desk.sender()
    for end in (controller.commit, controller.roll_back):
        txn_id = controller.declare()
        controller.send(txn_id, sender, message("out"))
        end(txn_id)
        assert controller.refused(txn_id) == "amqp:transaction:unknown-id"
        assert condition(controller.send(txn_id, sender, message("x"))) == "amqp:transaction:unknown-id"
    assert waiting(broker, "orders") == ["out"]


def test_a_transaction_takes_a_hundred_messages(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """At the limit, and one past it: the rest can still be committed. Req: F-03."""
    sender = desk.sender()
    txn_id = controller.declare()
    for number in range(100):
        assert controller.send(txn_id, sender, message(str(number))) == TransactionalState(txn_id, ACCEPTED)
    assert condition(controller.send(txn_id, sender, message("x"))) == "amqp:resource-limit-exceeded"
    controller.commit(txn_id)
    assert active(broker, "orders") == [100]


def test_a_connection_has_sixteen_transactions(
    desk: LiveDesk, broker: InProcessBroker, controller: Controller
) -> None:
    """At the limit, and one past it. Req: F-03, R-05."""
    open_ones = [controller.declare() for _ in range(16)]
    refused = desk.transfer(controller.handle, encode_coordination(Declare()))
    assert condition(said(desk, refused)) == "amqp:resource-limit-exceeded"
    controller.roll_back(open_ones[3])
    controller.declare()
    other = Controller(LiveDesk(broker))
    other.declare()


def test_the_basic_tier_has_no_transactions() -> None:
    """Req: A-05. Source: wire contract 10.2."""
    desk = LiveDesk(InProcessBroker(tier=BASIC))
    desk.controller()
    assert str(desk.refusal().condition) == "amqp:not-implemented"
