"""Transactions as a client sees them: a whole broker over AMQP, in one thread."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkDetached
from peeklock.amqp.message_writing import encode_message
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
from peeklock.amqp.types import Array, Int, Long, Role, Symbol, Timestamp
from peeklock.broker.queue.graces import LOCK_GRACE_MS
from peeklock.broker.queue.lapsed_sessions import DETACH_AFTER_MS
from peeklock.broker.vocabulary.commands import DeleteEntity, UpdateEntity
from peeklock.broker.vocabulary.descriptions import EntityStatus
from peeklock.broker.vocabulary.quotas import BASIC, OPEN_TRANSACTIONS_MAX
from peeklock.gateway.links.attach import SESSION_WAIT_MS
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness, message_bytes, section
from tests.gateway.live import FILTER, LOCK_MS, SETTINGS, accept, bodies, counts, message, send

DESTINATION = Symbol("com.microsoft:transfer-destination-address")
SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
MINUTE_MS = 60_000


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    broker = InProcessBroker()
    for name in ("orders", "audit"):
        broker.create_queue(name, lock_duration_ms=LOCK_MS, max_delivery_count=3)
    yield broker
    broker.namespace.check(broker.clock.now_ms)


@pytest.fixture
def rig(broker: InProcessBroker) -> LiveHarness:
    return LiveHarness(broker)


class Controller:
    """The client's end of a link to the coordinator, and what is done in its transactions."""

    def __init__(self, rig: LiveHarness) -> None:
        self.rig = rig
        self.handle = rig.controller()
        self.ended: dict[int, DeliveryState | None] = {}
        """Outcomes of deliveries that a commit has settled."""

    def declare(self) -> bytes:
        """Begin a transaction; gives its id."""
        delivery_id = self.rig.transfer(self.handle, encode_coordination(Declare()))
        state = said(self.rig, delivery_id)
        assert isinstance(state, Declared)
        assert len(state.txn_id) == 16
        return state.txn_id

    def discharge(self, txn_id: bytes, *, fail: bool = False) -> DeliveryState | None:
        """End a transaction; gives what the coordinator says to that."""
        delivery_id = self.rig.transfer(self.handle, encode_coordination(Discharge(txn_id, fail)))
        while (event := self.rig.take_event(DispositionReceived)).role is Role.SENDER:
            assert event.settled
            self.ended.update(dict.fromkeys(range(event.first, event.last + 1), event.state))
        assert (event.first, event.last, event.settled) == (delivery_id, delivery_id, True)
        return event.state

    def commit(self, txn_id: bytes) -> None:
        assert self.discharge(txn_id) == ACCEPTED

    def roll_back(self, txn_id: bytes) -> None:
        assert self.discharge(txn_id, fail=True) == ACCEPTED

    def refused(self, txn_id: bytes) -> str:
        """Try to commit; gives the condition of the refusal."""
        return condition(self.discharge(txn_id))

    def send(self, txn_id: bytes, handle: int, payload: bytes, **options: Any) -> DeliveryState | None:
        delivery_id = self.rig.transfer(handle, payload, state=TransactionalState(txn_id), **options)
        return said(self.rig, delivery_id)

    def settle(
        self, txn_id: bytes, delivery: DeliveryReceived, outcome: DeliveryState = ACCEPTED
    ) -> DeliveryState | None:
        number = delivery.delivery_id
        self.rig.settle(number, number, TransactionalState(txn_id, outcome))
        return said(self.rig, number, Role.SENDER, provisional=True)


@pytest.fixture
def controller(rig: LiveHarness) -> Controller:
    return Controller(rig)


def said(
    rig: LiveHarness, delivery_id: int, role: Role = Role.RECEIVER, *, provisional: bool = False
) -> DeliveryState | None:
    """Take the broker's word on one delivery. A provisional outcome does not settle it."""
    event = rig.take_event(DispositionReceived)
    assert (event.role, event.first, event.last) == (role, delivery_id, delivery_id)
    assert event.settled is not (provisional and isinstance(event.state, TransactionalState))
    return event.state


def condition(state: DeliveryState | None) -> str:
    assert isinstance(state, Rejected), state
    assert state.error is not None
    assert "TrackingId:" in state.error.description
    return str(state.error.condition)


def waiting(broker: InProcessBroker, name: str) -> list[str]:
    """Receive and lock what a queue has to give now, over a connection that is broken afterwards."""
    rig = LiveHarness(broker)
    rig.listen(name, credit=100)
    found = bodies(rig.deliveries())
    rig.client.close()
    rig.pump()
    rig.cut()
    return found


def active(broker: InProcessBroker, *names: str) -> list[int]:
    return [broker.queue(name).active_count for name in names]


def disable_sends(broker: InProcessBroker, name: str) -> None:
    description = replace(broker.queue(name).description, status=EntityStatus.SEND_DISABLED)
    broker.ask(lambda reply_to: UpdateEntity(description, reply_to))


def test_what_was_enlisted_happens_at_the_commit_and_not_before(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03. Receive from one queue, send to another: the main job of transactions."""
    send(rig, message("in"))
    rig.listen(credit=1)
    [delivery] = rig.deliveries()
    sender = rig.sender("audit")
    txn_id = controller.declare()
    accepted = TransactionalState(txn_id, ACCEPTED)
    assert controller.send(txn_id, sender, message("out")) == accepted
    assert controller.settle(txn_id, delivery) == accepted
    assert active(broker, "orders", "audit") == [1, 0]
    assert waiting(broker, "audit") == []
    controller.commit(txn_id)
    assert controller.ended == {delivery.delivery_id: accepted}
    assert active(broker, "orders", "audit") == [0, 1]
    assert waiting(broker, "audit") == ["out"]


def test_what_was_rolled_back_never_was(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """The message stays locked as it was, and the numbers of messages have no gap. Req: F-03, S-01."""
    send(rig, message("in"))
    rig.listen(credit=2)
    [delivery] = rig.deliveries()
    sender = rig.sender("audit")
    txn_id = controller.declare()
    controller.send(txn_id, sender, message("out"))
    controller.settle(txn_id, delivery)
    controller.roll_back(txn_id)
    assert controller.ended == {}
    assert active(broker, "orders", "audit") == [1, 0]
    assert rig.deliveries() == []
    send(rig, message("next"), to="audit")
    other = LiveHarness(broker)
    other.listen("audit", credit=1)
    [following] = other.deliveries()
    annotations = scan(following.payload).decode_message_annotations()
    assert annotations["x-opt-sequence-number"] == 1
    # The lock is still held, and the delivery can be settled over its link.
    rig.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    assert said(rig, delivery.delivery_id, Role.SENDER) == ACCEPTED
    assert active(broker, "orders") == [0]


def test_after_a_roll_back_a_release_makes_the_message_available_at_once(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, L-08."""
    send(rig, message("in"))
    rig.listen(credit=2)
    [delivery] = rig.deliveries()
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.roll_back(txn_id)
    rig.settle(delivery.delivery_id, delivery.delivery_id, RELEASED, settled=True)
    [again] = rig.deliveries()
    assert (bodies([again]), counts([again])) == (["in"], [0])


def test_every_settlement_and_a_batch_in_one_transaction(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, T-07, L-05, L-06, L-08, L-09."""
    send(rig, *(message(name) for name in ("complete", "abandon", "defer", "dead")))
    receiver = rig.listen(credit=4)
    deliveries = rig.deliveries()
    txn_id = controller.declare()
    outcomes: list[DeliveryState] = [ACCEPTED, Modified(True, False), Modified(True, True), Rejected()]
    for delivery, outcome in zip(deliveries, outcomes, strict=True):
        assert controller.settle(txn_id, delivery, outcome) == TransactionalState(txn_id, outcome)
    batch = b"".join(section(0x75, message(f"b{number}")) for number in range(3))
    sender = rig.sender("audit")
    assert controller.send(txn_id, sender, batch, message_format=BATCH_FORMAT) == TransactionalState(
        txn_id, ACCEPTED
    )
    rig.client.flow(rig.channel, receiver, 4)
    rig.pump()
    assert rig.deliveries() == []
    controller.commit(txn_id)
    assert list(controller.ended.values()) == [TransactionalState(txn_id, outcome) for outcome in outcomes]
    [again] = rig.deliveries()
    rig.pump()
    assert (bodies([again]), counts([again])) == (["abandon"], [1])
    assert waiting(broker, "audit") == ["b0", "b1", "b2"]
    assert waiting(broker, "orders/$DeadLetterQueue") == ["dead"]
    assert active(broker, "orders") == [2]  # the abandoned and the deferred one


def test_a_range_is_settled_in_a_transaction(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, T-04."""
    send(rig, *(message(str(number)) for number in range(5)))
    rig.listen(credit=5)
    deliveries = rig.deliveries()
    first, last = deliveries[0].delivery_id, deliveries[-1].delivery_id
    txn_id = controller.declare()
    rig.settle(first, last, TransactionalState(txn_id, ACCEPTED))
    event = rig.take_event(DispositionReceived)
    assert (event.first, event.last, event.state) == (first, last, TransactionalState(txn_id, ACCEPTED))
    assert active(broker, "orders") == [5]
    controller.commit(txn_id)
    assert active(broker, "orders") == [0]


def test_transactions_of_one_connection_are_apart(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03."""
    sender = rig.sender()
    first, second = controller.declare(), controller.declare()
    assert first != second
    controller.send(first, sender, message("first"))
    controller.send(second, sender, message("second"))
    plain = rig.transfer(sender, message("plain"))
    assert said(rig, plain) == ACCEPTED
    controller.roll_back(first)
    controller.commit(second)
    assert waiting(broker, "orders") == ["plain", "second"]


def test_a_message_that_is_settled_in_a_transaction_is_settled_by_nobody_else(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Until it ends. Req: F-03, L-11, L-14."""
    send(rig, message("in"))
    rig.listen(credit=1)
    [delivery] = rig.deliveries()
    token = uuid.UUID(bytes_le=delivery.delivery_tag)
    first, second = controller.declare(), controller.declare()
    controller.settle(first, delivery)
    assert condition(controller.settle(second, delivery)) == "com.microsoft:message-lock-lost"
    other = LiveHarness(broker)
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
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, L-10, L-14. Source: wire contract 6."""
    send(rig, message("1"), message("2"))
    rig.listen(credit=2)
    deliveries = rig.deliveries()
    tokens = Array.of(uuid.UUID, [uuid.UUID(bytes_le=delivery.delivery_tag) for delivery in deliveries])
    node, _ = rig.pair("orders/$management")
    txn_id = controller.declare()
    within = TransactionalState(txn_id)

    def ask(operation: str, body: dict[str, Any]) -> Any:
        rig.request(node, f"com.microsoft:{operation}", body, state=within)
        assert rig.take_event(DispositionReceived).state == TransactionalState(txn_id, ACCEPTED)
        return rig.response().status

    assert ask("update-disposition", {"disposition-status": "completed", "lock-tokens": tokens}) == 200
    assert active(broker, "orders") == [2]
    broker.advance(LOCK_MS - 1)
    assert ask("renew-lock", {"lock-tokens": tokens}) == 200
    broker.advance(LOCK_MS - 1)
    assert ask("update-disposition", {"disposition-status": "abandoned", "lock-tokens": tokens}) == 410
    controller.commit(txn_id)
    assert active(broker, "orders") == [0]


# What keeps a transaction from its commit


def test_a_lock_that_lapses_before_the_commit_rolls_all_of_it_back(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Nothing is half done, and the message is given to others. Req: F-03, L-08."""
    send(rig, message("1"), message("2"))
    rig.listen(credit=1)
    [first] = rig.deliveries()
    broker.advance(LOCK_MS - 1)
    rig.listen(credit=1)
    [second] = rig.deliveries()
    sender = rig.sender("audit")
    txn_id = controller.declare()
    for delivery in (first, second):
        assert controller.settle(txn_id, delivery) == TransactionalState(txn_id, ACCEPTED)
    controller.send(txn_id, sender, message("out"))
    broker.advance(1)
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "orders", "audit") == [2, 0]
    assert controller.refused(txn_id) == "amqp:transaction:unknown-id"
    # The second one is still held by its lock.
    rig.settle(second.delivery_id, second.delivery_id, ACCEPTED)
    assert said(rig, second.delivery_id, Role.SENDER) == ACCEPTED
    rig.settle(first.delivery_id, first.delivery_id, ACCEPTED)
    assert condition(said(rig, first.delivery_id, Role.SENDER)) == "com.microsoft:message-lock-lost"
    other = LiveHarness(broker)
    other.listen(credit=5)
    again = other.deliveries()
    assert (bodies(again), counts(again)) == (["1"], [1])


@pytest.mark.parametrize("what", ["delete", "disable"])
def test_a_queue_that_is_gone_or_disabled_before_the_commit_rolls_all_of_it_back(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, what: str
) -> None:
    """Req: F-03, A-04."""
    send(rig, message("in"))
    rig.listen(credit=1)
    [delivery] = rig.deliveries()
    sender = rig.sender("audit")
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.send(txn_id, sender, message("out"))
    if what == "delete":
        broker.ask(lambda reply_to: DeleteEntity("audit", reply_to))
    else:
        disable_sends(broker, "audit")
    rig.pump()
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "orders") == [1]
    rig.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    assert said(rig, delivery.delivery_id, Role.SENDER) == ACCEPTED


def test_a_transaction_is_rolled_back_after_two_minutes(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Its id says so once, and is unknown then. Req: F-03."""
    sender = rig.sender("audit")
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
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03."""
    txn_id = controller.declare()
    controller.send(txn_id, rig.sender("orders"), message("out"))
    broker.advance(2 * MINUTE_MS)
    send(rig, message("in"))
    rig.listen(credit=1)
    [delivery] = rig.deliveries()
    assert condition(controller.settle(txn_id, delivery)) == "amqp:transaction:timeout"
    rig.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    assert said(rig, delivery.delivery_id, Role.SENDER) == ACCEPTED
    assert active(broker, "orders") == [0]


@pytest.mark.parametrize("refused_by", ["broker", "gateway"])
def test_a_pre_settled_send_that_is_refused_keeps_the_transaction_from_its_commit(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, refused_by: str
) -> None:
    """By the broker, where sends are disabled, or by the gateway, which finds no message. Req: F-03, T-06."""
    good, bad = rig.sender("orders"), rig.sender("audit")
    txn_id = controller.declare()
    controller.send(txn_id, good, message("good"))
    if refused_by == "broker":
        disable_sends(broker, "audit")
    payload = message("bad") if refused_by == "broker" else b"noise"
    rig.transfer(bad, payload, state=TransactionalState(txn_id), settled=True)
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "orders", "audit") == [0, 0]


# Losing the link, losing the broker


@pytest.mark.parametrize("how", ["detach", "end", "close", "cut"])
def test_losing_the_coordinators_link_rolls_back(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, how: str
) -> None:
    """Req: F-03, L-13."""
    send(rig, message("in"))
    rig.listen(credit=1, name="receiver")
    [delivery] = rig.deliveries()
    sender = rig.sender("audit")
    work = control = rig.channel
    if how == "end":
        control = rig.channel = rig.client.begin()
        controller = Controller(rig)
    txn_id = controller.declare()
    rig.channel = work
    controller.send(txn_id, sender, message("out"))
    controller.settle(txn_id, delivery)
    if how == "detach":
        rig.client.detach(rig.channel, controller.handle)
        rig.pump()
    elif how == "end":
        rig.client.end(control)
        rig.pump()
    elif how == "close":
        rig.client.close()
        rig.pump()
        rig.cut()
    else:
        rig.cut()
        broker.advance(LOCK_GRACE_MS)
    assert active(broker, "orders", "audit") == [1, 0]
    if how in ("detach", "end"):
        assert condition(controller.send(txn_id, sender, message("x"))) == "amqp:transaction:unknown-id"
        # The message is locked as before.
        rig.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
        assert said(rig, delivery.delivery_id, Role.SENDER) == ACCEPTED
        return
    again = LiveHarness(broker)
    again.listen(credit=1)
    assert bodies(again.deliveries()) == ([] if how == "close" else ["in"])


@pytest.mark.parametrize("committed", [False, True])
def test_a_crash_before_the_commit_undoes_all_and_one_after_it_nothing(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, committed: bool
) -> None:
    """Req: F-03, R-02."""
    send(rig, message("in"))
    rig.listen(credit=1)
    [delivery] = rig.deliveries()
    sender = rig.sender("audit")
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.send(txn_id, sender, message("out"))
    if committed:
        controller.commit(txn_id)
    again = InProcessBroker(clock=broker.clock, store=broker.store, seed=1)
    assert waiting(again, "orders") == ([] if committed else ["in"])
    assert waiting(again, "audit") == (["out"] if committed else [])
    later = Controller(LiveHarness(again))
    assert later.refused(txn_id) == "amqp:transaction:unknown-id"
    again.namespace.check(again.clock.now_ms)


# Sessions, duplicates, schedules, forwards


def test_messages_of_a_session_are_settled_and_sent_in_a_transaction(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, G-02."""
    broker.create_queue("steps", **SETTINGS)
    send(rig, message("1", "s"), message("2", "s"), to="steps")
    rig.listen("steps", credit=2, filter={FILTER: "s"})
    first, second = rig.deliveries()
    sender = rig.sender("steps")
    txn_id = controller.declare()
    controller.settle(txn_id, first)
    assert condition(controller.send(txn_id, sender, message("no session"))) == "amqp:not-allowed"
    controller.send(txn_id, sender, message("3", "s"))
    controller.commit(txn_id)
    assert active(broker, "steps") == [2]
    rig.settle(second.delivery_id, second.delivery_id, ACCEPTED)
    said(rig, second.delivery_id, Role.SENDER)
    rig.client.flow(rig.channel, 1, 5)
    other = LiveHarness(broker)
    broker.advance(LOCK_MS)
    rig.pump()
    other.listen("steps", credit=5, filter={FILTER: None})
    assert bodies(other.deliveries()) == ["3"]


@pytest.mark.parametrize("renewed", [False, True])
def test_a_session_whose_lock_lapses_rolls_the_transaction_back(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, renewed: bool
) -> None:
    """Unless it is renewed. Req: F-03, G-02, G-04."""
    broker.create_queue("steps", **SETTINGS)
    send(rig, message("1", "s"), to="steps")
    rig.listen("steps", credit=1, filter={FILTER: "s"})
    [delivery] = rig.deliveries()
    sender = rig.sender("audit")
    node, _ = rig.pair("steps/$management")
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.send(txn_id, sender, message("out"))
    broker.advance(LOCK_MS - 1)
    if renewed:
        rig.request(
            node, "com.microsoft:renew-session-lock", {"session-id": "s"}, state=TransactionalState(txn_id)
        )
        assert rig.take_event(DispositionReceived).state == TransactionalState(txn_id, ACCEPTED)
        assert rig.response().status == 200
    broker.advance(1)
    rig.pump()
    if renewed:
        controller.commit(txn_id)
        assert active(broker, "steps", "audit") == [0, 1]
        return
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "steps", "audit") == [1, 0]
    broker.advance(DETACH_AFTER_MS)
    rig.pump()
    assert str(rig.take_event(LinkDetached).error).startswith("AmqpError('com.microsoft:session-lock-lost'")


def test_duplicates_are_found_at_the_commit(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Within a transaction, and against what came before it was committed. Req: D-01, F-03."""
    broker.create_queue("once", requires_duplicate_detection=True)
    sender = rig.sender("once")
    txn_id = controller.declare()
    for body in ("a", "a", "b"):
        controller.send(txn_id, sender, message(body))
    plain = rig.transfer(sender, message("b"))
    assert said(rig, plain) == ACCEPTED
    controller.commit(txn_id)
    assert waiting(broker, "once") == ["b", "a"]
    rolled_back = controller.declare()
    controller.send(rolled_back, sender, message("c"))
    controller.roll_back(rolled_back)
    assert said(rig, rig.transfer(sender, message("c"))) == ACCEPTED
    assert active(broker, "once") == [3]


def test_a_scheduled_message_is_sent_in_a_transaction(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """It is sent, not scheduled by request: no number is promised. Req: F-03, S-05."""
    at = Timestamp(broker.clock.now_ms + 5_000)
    payload = message_bytes(b"later", annotations={Symbol("x-opt-scheduled-enqueue-time"): at})
    sender = rig.sender()
    txn_id = controller.declare()
    controller.send(txn_id, sender, payload)
    broker.advance(5_000)
    assert active(broker, "orders") == [0]
    controller.commit(txn_id)
    assert waiting(broker, "orders") == ["later"]


@pytest.mark.parametrize("how", ["commit", "roll back", "crash"])
def test_a_message_is_scheduled_by_request_in_a_transaction(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, how: str
) -> None:
    """Its number is answered at once, and used whatever follows. Req: F-03, S-01, S-05, R-02. Source: wire
    contract C12."""
    at = Timestamp(broker.clock.now_ms + 5_000)
    payload = message_bytes(b"later", annotations={Symbol("x-opt-scheduled-enqueue-time"): at})
    node, _ = rig.pair("orders/$management")
    txn_id = controller.declare()

    def ask(operation: str, body: dict[str, Any], **options: Any) -> Any:
        rig.request(node, f"com.microsoft:{operation}", body, settled=True, **options)
        return rig.response()

    scheduled = ask(
        "schedule-message", {"messages": [{"message": payload}]}, state=TransactionalState(txn_id)
    )
    assert list(scheduled.body["sequence-numbers"]) == [1]
    assert broker.queue("orders").scheduled_count == 0
    cancelled = ask("cancel-scheduled-message", {"sequence-numbers": Array.of(Long, [1])})
    assert str(cancelled.condition) == "com.microsoft:message-not-found"
    if how == "commit":
        controller.commit(txn_id)
    elif how == "roll back":
        controller.roll_back(txn_id)
    else:
        broker = InProcessBroker(clock=broker.clock, store=broker.store, seed=1)
    assert broker.queue("orders").scheduled_count == (1 if how == "commit" else 0)
    broker.advance(5_000)
    send(LiveHarness(broker), message("now"))
    receiver = LiveHarness(broker)
    receiver.listen(credit=5)
    found = receiver.deliveries()
    sequence_numbers = [
        scan(delivery.payload).decode_message_annotations()["x-opt-sequence-number"] for delivery in found
    ]
    assert bodies(found) == (["later", "now"] if how == "commit" else ["now"])
    assert sequence_numbers == ([2, 3] if how == "commit" else [2])


def test_what_is_sent_in_a_transaction_is_forwarded_with_its_commit(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-01, F-03."""
    broker.create_queue("inbox", forward_to="audit")
    sender = rig.sender("inbox")
    txn_id = controller.declare()
    controller.send(txn_id, sender, message("out"))
    assert active(broker, "audit") == [0]
    controller.commit(txn_id)
    assert waiting(broker, "audit") == ["out"]


# Sending via an entity


@pytest.mark.parametrize("transactional", [False, True])
def test_a_message_is_sent_via_an_entity(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, transactional: bool
) -> None:
    """Req: F-03. Source: wire contract 6."""
    sender = rig.attach(Role.SENDER, "orders", properties={DESTINATION: "amqps://localhost/audit"})
    if transactional:
        txn_id = controller.declare()
        controller.send(txn_id, sender, message("via"))
        assert active(broker, "orders", "audit") == [0, 0]
        controller.commit(txn_id)
    else:
        assert said(rig, rig.transfer(sender, message("via"))) == ACCEPTED
    assert active(broker, "orders") == [0]
    assert waiting(broker, "audit") == ["via"]


def test_a_sender_via_an_entity_to_nowhere_is_refused(rig: LiveHarness) -> None:
    rig.attach(Role.SENDER, "orders", properties={DESTINATION: "nowhere"})
    assert str(rig.refusal().condition) == "amqp:not-found"


def test_what_cannot_reach_its_destination_is_a_transfer_dead_letter_of_the_entity_between(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-01, F-03."""
    sender = rig.attach(Role.SENDER, "orders", properties={DESTINATION: "audit"})
    broker.ask(lambda reply_to: DeleteEntity("audit", reply_to))
    rig.transfer(sender, message("lost"))
    assert active(broker, "orders") == [0]
    assert waiting(broker, "orders/$Transfer/$DeadLetterQueue") == ["lost"]


# Bad input


def test_an_id_that_nothing_has_is_unknown_wherever_it_is_used(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """The connection goes on. Req: F-03, R-05."""
    send(rig, message("in"))
    rig.listen(credit=1)
    [delivery] = rig.deliveries()
    sender = rig.sender()
    unknown = "amqp:transaction:unknown-id"
    for txn_id in (b"", b"x", bytes(16), b"x" * 32, b"x" * 33, b"x" * 300):
        assert condition(controller.send(txn_id, sender, message("out"))) == unknown
        assert condition(controller.settle(txn_id, delivery)) == unknown
        assert condition(controller.discharge(txn_id)) == unknown
        assert condition(controller.discharge(txn_id, fail=True)) == unknown
    rig.settle(delivery.delivery_id, delivery.delivery_id, ACCEPTED)
    assert said(rig, delivery.delivery_id, Role.SENDER) == ACCEPTED
    assert active(broker, "orders") == [0]


def test_a_transaction_of_another_connection_is_unknown(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """And stays as it is. Req: F-03, R-04."""
    sender = rig.sender()
    txn_id = controller.declare()
    controller.send(txn_id, sender, message("mine"))
    other_desk = LiveHarness(broker)
    other = Controller(other_desk)
    other_sender = other_desk.sender()
    assert condition(other.send(txn_id, other_sender, message("theirs"))) == "amqp:transaction:unknown-id"
    assert condition(other.discharge(txn_id, fail=True)) == "amqp:transaction:unknown-id"
    controller.commit(txn_id)
    assert waiting(broker, "orders") == ["mine"]


def test_a_transaction_is_discharged_once(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03."""
    sender = rig.sender()
    for end in (controller.commit, controller.roll_back):
        txn_id = controller.declare()
        controller.send(txn_id, sender, message("out"))
        end(txn_id)
        assert controller.refused(txn_id) == "amqp:transaction:unknown-id"
        assert condition(controller.send(txn_id, sender, message("x"))) == "amqp:transaction:unknown-id"
    assert waiting(broker, "orders") == ["out"]


def test_a_transaction_takes_a_hundred_messages(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """At the limit, and one past it: the rest can still be committed. Req: F-03."""
    sender = rig.sender()
    txn_id = controller.declare()
    for number in range(100):
        assert controller.send(txn_id, sender, message(str(number))) == TransactionalState(txn_id, ACCEPTED)
    assert condition(controller.send(txn_id, sender, message("x"))) == "amqp:resource-limit-exceeded"
    controller.commit(txn_id)
    assert active(broker, "orders") == [100]


def test_a_transaction_that_ran_out_is_not_remembered(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Whether it was used or not, and whoever is asked. Req: F-03, R-05, C34."""
    transactions = rig.gateway._transactions.open
    used, empty = controller.declare(), controller.declare()
    controller.send(used, rig.sender("orders"), message("out"))
    assert set(transactions) == {used, empty}
    for minute in range(10):
        assert set(transactions) == ({used, empty} if minute < 2 else {empty})
        broker.advance(MINUTE_MS)
        rig.sender("orders")  # for a sign of life
    assert not transactions
    for txn_id in (used, empty):
        assert controller.refused(txn_id) == "amqp:transaction:timeout"


def test_120_transactions_are_open_each_with_a_hundred_sends_and_a_complete(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """As NServiceBus has one for each message in a handler's hands. Req: F-03, R-05, C34."""
    for number in range(120):
        send(rig, message(str(number)))
    rig.listen(credit=120)
    deliveries = rig.deliveries()
    sender = rig.sender("audit")
    batch = encode_message(data=[message("out")] * 99)
    opened = []
    for delivery in deliveries:
        txn_id = controller.declare()
        for payload, message_format in ((batch, BATCH_FORMAT), (message("out"), 0)):
            answer = controller.send(txn_id, sender, payload, message_format=message_format)
            assert answer == TransactionalState(txn_id, ACCEPTED)
        controller.settle(txn_id, delivery)
        opened.append(txn_id)
    assert active(broker, "orders", "audit") == [120, 0]
    for txn_id in opened:
        controller.commit(txn_id)
    assert active(broker, "orders", "audit") == [0, 12_000]


def test_a_declare_that_waits_is_answered_in_order_and_keeps_its_credit(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """5,001 and more. Req: F-03, R-05, C34."""
    opened = [controller.declare() for _ in range(OPEN_TRANSACTIONS_MAX)]
    others = Controller(rig)
    asked = [rig.transfer(each.handle, encode_coordination(Declare())) for each in (others, others) * 25]
    assert not any(isinstance(event, DispositionReceived) for event in rig.events)
    assert rig.client.credit(rig.channel, others.handle) == 50
    Controller(LiveHarness(broker)).declare()  # of another connection
    rolled_back = rig.transfer(controller.handle, encode_coordination(Discharge(opened[3], True)))
    assert isinstance(said(rig, asked[0]), Declared)
    assert said(rig, rolled_back) == ACCEPTED
    broker.advance(20_000)
    rig.pump()
    for delivery_id in asked[1:]:
        assert condition(said(rig, delivery_id)) == "com.microsoft:server-busy"
    assert rig.client.credit(rig.channel, others.handle) > 50
    late = rig.transfer(others.handle, encode_coordination(Declare()))
    rig.client.detach(rig.channel, controller.handle)
    rig.pump()
    assert isinstance(said(rig, late), Declared)


# Schedules that are cancelled, states that are set


@pytest.mark.parametrize("how", ["commit", "roll back", "crash"])
def test_state_sends_completes_and_cancels_happen_together(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, how: str
) -> None:
    """Looking, renewing and deleting in between happens at once. Req: F-03, G-03, S-06, R-02, C30."""
    broker.create_queue("steps", **SETTINGS)
    send(rig, message("1", "s"), message("2", "t"), to="steps")
    accept(rig, "s", credit=1, address="steps")
    [delivery] = rig.deliveries()
    sender = rig.sender("audit")
    node, _ = rig.pair("steps/$management")
    txn_id: bytes | None = None

    def ask(operation: str, body: dict[str, Any]) -> Any:
        state = None if txn_id is None else TransactionalState(txn_id)
        rig.request(node, f"com.microsoft:{operation}", body, state=state, settled=True)
        return rig.response()

    later = {"messages": [{"message": message("3", "s", annotations={SCHEDULED: Timestamp(1 << 41)})}]}
    [number] = ask("schedule-message", later).body["sequence-numbers"]
    cancel = {"sequence-numbers": Array.of(Long, [number])}
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    controller.send(txn_id, sender, message("out"))
    assert ask("cancel-scheduled-message", cancel).status == 200
    assert str(ask("cancel-scheduled-message", cancel).condition) == "com.microsoft:message-not-found"
    assert ask("set-session-state", {"session-id": "s", "session-state": b"done"}).status == 200
    assert ask("get-session-state", {"session-id": "s"}).body == {"session-state": None}
    assert ask("renew-session-lock", {"session-id": "s"}).status == 200
    assert ask("peek-message", {"from-sequence-number": Long(0), "message-count": Int(9)}).status == 200
    before = {
        "message-count": Int(9),
        "enqueued-time-utc": Timestamp(broker.clock.now_ms + 1),
        "session-id": "t",
    }
    assert ask("batch-delete-messages", before).body == {"message-count": 1}
    assert (broker.queue("steps").scheduled_count, active(broker, "steps", "audit")) == (1, [1, 0])
    if how == "commit":
        controller.commit(txn_id)
    elif how == "roll back":
        controller.roll_back(txn_id)
    else:
        broker = InProcessBroker(clock=broker.clock, store=broker.store, seed=1)
    done = how == "commit"
    assert active(broker, "steps", "audit") == ([0, 1] if done else [1, 0])
    assert broker.queue("steps").scheduled_count == (0 if done else 1)
    if how == "crash":
        rig = LiveHarness(broker)
        accept(rig, "s", address="steps")
        node, _ = rig.pair("steps/$management")
    txn_id = None
    state = ask("get-session-state", {"session-id": "s"}).body["session-state"]
    assert state == (b"done" if done else None)


@pytest.mark.parametrize("how", ["cancelled", "session"])
def test_what_is_gone_at_the_discharge_rolls_all_of_it_back(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, how: str
) -> None:
    """A number that somebody else cancelled; a session that lapsed. Req: F-03, G-02, S-09, C30."""
    broker.create_queue("steps", **SETTINGS)
    sender = rig.sender("steps")
    accepted = None
    send(rig, message("1", "s"), to="steps")
    accept(rig, "s", address="steps")
    node, _ = rig.pair("steps/$management")
    later = {"messages": [{"message": message("3", "s", annotations={SCHEDULED: Timestamp(1 << 41)})}]}
    rig.request(node, "com.microsoft:schedule-message", later, settled=True)
    cancel = {"sequence-numbers": Array.of(Long, rig.response().body["sequence-numbers"])}
    txn_id = controller.declare()
    controller.send(txn_id, sender, message("out", "t"))
    within = TransactionalState(txn_id)
    if how == "cancelled":
        rig.request(node, "com.microsoft:cancel-scheduled-message", cancel, state=within, settled=True)
        accepted = rig.response().status
        rig.request(node, "com.microsoft:cancel-scheduled-message", cancel, settled=True)
        assert rig.response().status == 200
    else:
        state = {"session-id": "s", "session-state": b"x"}
        rig.request(node, "com.microsoft:set-session-state", state, state=within, settled=True)
        accepted = rig.response().status
        broker.advance(LOCK_MS)
        rig.pump()
    assert accepted == 200
    assert controller.refused(txn_id) == "amqp:transaction:rollback"
    assert active(broker, "steps") == [1]


# Top-level entities

SPANS = "Local transactions cannot span multiple top-level entities such as queue or topic."


def refused_attach(rig: LiveHarness, address: str, **options: Any) -> tuple[str, bool]:
    """Attach a receiver; return the condition of the refusal, and whether it has the service's text."""
    rig.listen(address, **options)
    error = rig.refusal()
    return str(error.condition), str(error.description).startswith(SPANS)


@pytest.mark.parametrize("coordinated", ["before", "after"])
@pytest.mark.parametrize("first", ["sender", "receiver"])
def test_a_session_with_a_coordinator_is_about_its_first_entity(
    rig: LiveHarness, broker: InProcessBroker, first: str, coordinated: str
) -> None:
    """Also while no transaction is open; senders are free. Req: F-03, C48."""
    broker.create_queue("steps", **SETTINGS)
    if coordinated == "before":
        rig.controller()
    if first == "sender":
        rig.sender("Orders")
    else:
        rig.listen("Orders")
    if coordinated == "after":
        rig.controller()
    send(rig, message("out"), to="audit")
    rig.listen("orders/$deadletterqueue")
    assert refused_attach(rig, "audit") == ("amqp:not-allowed", True)
    assert refused_attach(rig, "audit/$deadletterqueue") == ("amqp:not-allowed", True)
    assert refused_attach(rig, "steps", filter={FILTER: None}) == ("amqp:not-allowed", True)
    node, _ = rig.pair("audit/$management")
    rig.request(
        node, "com.microsoft:peek-message", {"from-sequence-number": Long(0), "message-count": Int(1)}
    )
    response = rig.response()
    assert (response.status, str(response.condition)) == (400, "amqp:not-allowed")
    assert SPANS in response.description
    rig.channel = rig.client.begin()
    rig.listen("audit", credit=1)
    assert bodies(rig.deliveries()) == ["out"]


def test_a_topic_and_its_subscriptions_are_one_to_a_session(
    rig: LiveHarness, broker: InProcessBroker
) -> None:
    """Req: F-03, P-01, C48."""
    broker.create_topic("news")
    for name in ("one", "two"):
        broker.create_subscription("news", name)
    rig.controller()
    rig.listen("news/Subscriptions/one")
    rig.listen("news/subscriptions/Two")
    rig.sender("news")
    assert not any(isinstance(event, LinkDetached) for event in rig.events)
    assert refused_attach(rig, "orders") == ("amqp:not-allowed", True)


def test_a_link_that_is_refused_uses_nothing(rig: LiveHarness) -> None:
    """Req: F-03, C48."""
    rig.controller()
    rig.listen("nowhere")
    assert str(rig.refusal().condition) == "amqp:not-found"
    rig.listen("orders")
    assert refused_attach(rig, "audit") == ("amqp:not-allowed", True)


@pytest.mark.parametrize("why", ["timed out", "held by another"])
def test_who_only_does_not_get_a_session_uses_its_entity(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller, why: str
) -> None:
    """It goes on waiting there, and what is sent meanwhile goes by way of it. Req: F-03, C48."""
    broker.create_queue("steps", **SETTINGS)
    if why == "held by another":
        other = LiveHarness(broker)
        send(other, message("1", "s"), to="steps")
        accept(other, "s", address="steps")
    wanted = None if why == "timed out" else "s"
    txn_id = controller.declare()
    rig.listen("steps", filter={FILTER: wanted})
    controller.send(txn_id, rig.sender("audit"), message("before"))
    broker.advance(SESSION_WAIT_MS)
    rig.pump()
    assert rig.refusal() is not None
    rig.events.clear()
    controller.send(txn_id, rig.sender("orders"), message("after"))
    controller.commit(txn_id)
    assert active(broker, "audit", "orders") == [1, 1]
    assert refused_attach(rig, "audit") == ("amqp:not-allowed", True)


def test_a_session_is_free_again_without_its_coordinators(rig: LiveHarness) -> None:
    """And a new one on its channel. Req: F-03, C48."""
    first, second = rig.controller(), rig.controller()
    rig.listen("orders")
    rig.client.detach(rig.channel, first)
    rig.pump()
    rig.events.clear()
    assert refused_attach(rig, "audit") == ("amqp:not-allowed", True)
    rig.client.detach(rig.channel, second)
    rig.pump()
    rig.listen("audit")
    rig.client.end(rig.channel)
    rig.pump()
    rig.events.clear()
    rig.channel = rig.client.begin()
    rig.controller()
    rig.listen("audit")
    assert not any(isinstance(event, LinkDetached) for event in rig.events)


def test_over_other_sessions_a_transaction_has_one_top_level_entity(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Req: F-03, C48."""
    rig.channel = rig.client.begin()
    orders, audit = rig.sender("orders"), rig.sender("audit")
    txn_id = desk_declares(rig, controller)
    assert controller.send(txn_id, orders, message("1")) == TransactionalState(txn_id, ACCEPTED)
    answer = controller.send(txn_id, audit, message("2"))
    assert isinstance(answer, Rejected)
    assert answer.error is not None
    assert condition(answer) == "amqp:not-allowed"
    assert str(answer.error.description).startswith(SPANS)


def desk_declares(rig: LiveHarness, controller: Controller) -> bytes:
    """Declare over the coordinator's own session."""
    links, rig.channel = rig.channel, 0
    txn_id = controller.declare()
    rig.channel = links
    return txn_id


def test_over_its_own_session_it_completes_here_and_sends_there(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """As .NET does, told to cross entities. Req: F-03, C48."""
    send(rig, message("in"))
    rig.listen("orders", credit=1)
    [delivery] = rig.deliveries()
    txn_id = controller.declare()
    controller.settle(txn_id, delivery)
    for name in ("audit", "orders"):
        answer = controller.send(txn_id, rig.sender(name), message(name))
        assert answer == TransactionalState(txn_id, ACCEPTED)
    controller.commit(txn_id)
    assert active(broker, "orders", "audit") == [1, 1]


def test_what_azure_does_otherwise_is_logged_once() -> None:
    """At its first use, on whichever connection. Req: F-03, C48."""
    logged: list[str] = []
    broker = InProcessBroker(log=lambda event, fields: logged.append(event))
    for name in ("orders", "audit"):
        broker.create_queue(name)
    for uses in range(3):
        controller = Controller(LiveHarness(broker))
        senders = [controller.rig.sender(name) for name in ("orders", "audit")]
        for sender in senders:
            txn_id = controller.declare()
            assert len(logged) == (uses > 0)
            controller.send(txn_id, sender, message("m"))
            controller.commit(txn_id)
        assert logged == ["differs from azure"]


def test_the_partition_key_of_the_way_counts_for_the_via_entity(
    rig: LiveHarness, broker: InProcessBroker, controller: Controller
) -> None:
    """Though nothing depends on it where the message goes. Req: F-03, S-02, C48."""
    broker.create_queue("parts", enable_partitioning=True)
    parts, audit = rig.sender("parts"), rig.sender("audit")
    txn_id = controller.declare()

    def keyed(**keys: str) -> bytes:
        names = {"key": "x-opt-partition-key", "via": "x-opt-via-partition-key"}
        return message("m", annotations={Symbol(names[name]): key for name, key in keys.items()})

    taken = TransactionalState(txn_id, ACCEPTED)
    assert controller.send(txn_id, parts, keyed(key="one")) == taken
    assert controller.send(txn_id, audit, keyed(key="any", via="one")) == taken
    assert condition(controller.send(txn_id, audit, keyed(via="two"))) == "amqp:not-allowed"
    controller.commit(txn_id)
    assert active(broker, "parts", "audit") == [1, 1]


def test_the_basic_tier_has_no_transactions() -> None:
    """Req: A-05. Source: wire contract 10.2."""
    rig = LiveHarness(InProcessBroker(tier=BASIC))
    rig.controller()
    assert str(rig.refusal().condition) == "amqp:not-implemented"
