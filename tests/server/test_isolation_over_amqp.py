"""Two namespaces of one process over AMQP, alike in all names: nothing of one reaches the other.

Transactions and dispositions are frames that no client would write. `test_isolation_of_management.py` has
the requests to management nodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, Event
from peeklock.amqp.performatives import (
    ACCEPTED,
    Coordinator,
    Declared,
    DeliveryState,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from peeklock.amqp.types import Array, Role, Symbol
from peeklock.client import COMPLETE, NEXT, ServiceBusError, encode_message
from peeklock.client.links import Link
from peeklock.demo.broker import BrokerProcess
from tests.server.sides import ENTITIES, Side, body_of, sides

WAIT_S = 10
SECRET = "of the other"
DESTINATION = Symbol("com.microsoft:transfer-destination-address")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("isolation"), ["--durability=os"]) as made:
        yield made


@pytest.fixture
def two(broker: BrokerProcess) -> Iterator[list[Side]]:
    with sides(broker.http_port, ENTITIES, ENTITIES) as made:
        yield made


class Desk(Link):
    """A coordinator link, a sender and a receiver of `orders`, on one session."""

    def __init__(self, side: Side, *, address: str = "orders", destination: str | None = None) -> None:
        super().__init__(side.connection, "orders")
        self._address = address
        self._destination = destination
        self._states: dict[tuple[Role, int], DeliveryState | None] = {}
        self.arrived: list[DeliveryReceived] = []
        with self.connection.lock:
            if destination is not None:
                self.connection.open(time.monotonic() + WAIT_S)
                self.connection.authorise(destination.rpartition("/")[2], time.monotonic() + WAIT_S)
            self.open(time.monotonic() + WAIT_S)

    def attach(self) -> None:
        engine, name = self.connection.engine, self.connection.link_name()
        self._controller, self._sender = (
            self.link(
                engine.attach(
                    self.channel, f"{name}-{index}", Role.SENDER, Source(name), target, properties=properties
                )
            )
            for index, (target, properties) in enumerate(self._targets())
        )
        ends = Source(self._address), Target(name)
        self._receiver = self.link(
            engine.attach(self.channel, f"{name}-in", Role.RECEIVER, *ends, rcv_settle_mode=1)
        )

    def _targets(self) -> Iterator[tuple[Any, Any]]:
        yield Coordinator(), None
        yield Target(self._address), None if self._destination is None else {DESTINATION: self._destination}

    def on_event(self, event: Event) -> None:
        if isinstance(event, DispositionReceived):
            for number in range(event.first, event.last + 1):
                self._states[event.role, number] = event.state
        elif isinstance(event, DeliveryReceived):
            self.arrived.append(event)

    def declare(self) -> bytes:
        state = self._transfer(self._controller, encode_coordination(Declare()))
        assert isinstance(state, Declared), state
        return state.txn_id

    def discharge(self, transaction: bytes, *, fail: bool = False) -> DeliveryState | None:
        return self._transfer(self._controller, encode_coordination(Discharge(transaction, fail)))

    def send(self, body: str, transaction: bytes | None = None) -> DeliveryState | None:
        state = None if transaction is None else TransactionalState(transaction)
        return self._transfer(self._sender, encode_message(data=body.encode()), state)

    def grant(self, credit: int) -> None:
        """Give the receiver credit."""
        with self.connection.lock:
            self.connection.engine.flow(self.channel, self._receiver, credit)
            self.connection.flush()

    def receive(self) -> DeliveryReceived:
        """Lock a message, also for credit that was given before."""
        with self.connection.lock:
            if not self.arrived:
                self.grant(1)
            self._wait(lambda: bool(self.arrived))
            return self.arrived.pop(0)

    def settle(self, delivery_id: int, state: DeliveryState) -> DeliveryState | None:
        """Send a disposition for a delivery-id and return the answer."""
        with self.connection.lock:
            self.settle_unanswered(delivery_id, state)
            self._wait(lambda: (Role.SENDER, delivery_id) in self._states)
            return self._states.pop((Role.SENDER, delivery_id))

    def settle_unanswered(self, delivery_id: int, state: DeliveryState) -> None:
        """Send a disposition, also for a delivery-id that is not there."""
        self.connection.engine.disposition(
            self.channel, Role.RECEIVER, delivery_id, delivery_id, state, settled=False
        )

    def _transfer(
        self, handle: int, payload: bytes, state: DeliveryState | None = None
    ) -> DeliveryState | None:
        with self.connection.lock:
            self._wait(lambda: self.connection.engine.credit(self.channel, handle) > 0)
            sent = self.connection.engine.send(self.channel, handle, b"tag", payload, state=state)
            self._wait(lambda: (Role.RECEIVER, sent) in self._states)
            return self._states.pop((Role.RECEIVER, sent))

    def _wait(self, done: Any) -> None:
        self.connection.wait(lambda: done() or not self.is_open, time.monotonic() + WAIT_S, self.entity)
        if not self.is_open:
            raise self.lost_error()


def refusal(state: DeliveryState | None) -> str:
    assert isinstance(state, Rejected), state
    assert state.error is not None
    return str(state.error.condition)


# Transactions


def test_a_transaction_of_one_is_unknown_in_the_other(two: list[Side]) -> None:
    """To a transfer, a disposition and a discharge; in its own it goes on as if nothing was. Req: F-03."""
    a, b = two
    for side in two:
        side.send("orders", f"to lock {side.name}")
    mine, other = Desk(a), Desk(b)
    transaction = mine.declare()
    assert mine.send("sent in it", transaction) == TransactionalState(transaction, ACCEPTED)
    own, foreign = mine.receive(), other.receive()
    state = TransactionalState(transaction, ACCEPTED)
    assert mine.settle(own.delivery_id, state) == state
    before = a.peek("orders"), b.peek("orders")
    assert refusal(other.send("forged", transaction)) == "amqp:transaction:unknown-id"
    assert refusal(other.settle(foreign.delivery_id, state)) == "amqp:transaction:unknown-id"
    assert refusal(other.discharge(transaction)) == "amqp:transaction:unknown-id"
    assert refusal(other.discharge(transaction, fail=True)) == "amqp:transaction:unknown-id"
    assert (a.peek("orders"), b.peek("orders")) == before
    assert mine.discharge(transaction) == ACCEPTED
    assert a.peek("orders") == ["sent in it"]
    assert b.peek("orders") == [f"to lock {b.name}"]


def test_the_end_of_a_connection_rolls_back_its_own_transactions_alone(two: list[Side]) -> None:
    """Req: F-03."""
    a, b = two
    mine, other = Desk(a), Desk(b)
    transactions = mine.declare(), other.declare()
    mine.send("a", transactions[0])
    other.send("b", transactions[1])
    a.connection.close()
    assert other.discharge(transactions[1]) == ACCEPTED
    assert (a.peek("orders"), b.peek("orders")) == ([], ["b"])


# Locks


def test_a_disposition_in_one_settles_nothing_that_the_other_delivered(two: list[Side]) -> None:
    """Both connections count their deliveries from the same number. Req: L-02."""
    a, b = two
    b.send("orders", "locked")
    other, mine = Desk(b), Desk(a)
    delivery = other.receive()
    mine.settle_unanswered(delivery.delivery_id, ACCEPTED)
    assert mine.send("behind the disposition") == ACCEPTED
    assert b.peek("orders") == ["locked"]
    assert other.settle(delivery.delivery_id, ACCEPTED) == ACCEPTED
    assert b.peek("orders") == []


# Figures


def test_no_figure_of_one_moves_when_the_other_works(two: list[Side]) -> None:
    """The one has worked before, and holds no message: its age would move."""
    a, b = two
    a.send("orders", "gone")
    a.ask("orders", "peeklock:purge-messages", {})
    before = figures(a), figures(b)
    assert any('entity="orders"' in name for name in before[0])
    b.send("orders", "one", "two")
    b.send("carts", "item", session="s1")
    desk = Desk(b)
    desk.discharge(desk.declare())
    desk.settle(desk.receive().delivery_id, ACCEPTED)
    assert figures(a) == before[0]
    assert figures(b) != before[1]
    b.connection.close()


def figures(side: Side) -> dict[str, str]:
    """Return the series that the namespace's owner sees."""
    found: dict[str, str] = {}
    for path in ("/metrics", "/metrics/entities"):
        lines = side.owner.ask("GET", path)[1].splitlines()
        label = f'namespace="{side.name}"'
        found |= dict(line.rsplit(" ", 1) for line in lines if label in line)
    return found


# Sessions


def test_a_session_locked_in_one_is_free_in_the_other(two: list[Side]) -> None:
    """With a state of its own, and a lock that the other cannot renew. Req: G-02, G-03."""
    a, b = two
    for side in two:
        side.send("carts", f"item of {side.name}", session="s1")
    mine = a.receiver("carts", "s1")
    [own] = mine.receive(1, WAIT_S)
    state = {"session-id": "s1", "session-state": SECRET.encode()}
    a.ask("carts", "com.microsoft:set-session-state", state)
    with pytest.raises(ServiceBusError, match="session-lock-lost"):
        b.ask("carts", "com.microsoft:renew-session-lock", {"session-id": "s1"})
    with pytest.raises(ServiceBusError, match="session-lock-lost"):
        b.ask("carts", "com.microsoft:get-session-state", {"session-id": "s1"})
    other = b.receiver("carts", "s1")
    [foreign] = other.receive(10, WAIT_S)
    assert body_of(foreign.payload) == f"item of {b.name}"
    assert b.ask("carts", "com.microsoft:get-session-state", {"session-id": "s1"}) == {"session-state": None}
    b.ask("carts", "com.microsoft:set-session-state", {"session-id": "s1", "session-state": b"b"})
    other.settle(foreign, COMPLETE)
    other.flush()
    assert a.ask("carts", "com.microsoft:get-session-state", {"session-id": "s1"}) == {
        "session-state": SECRET.encode()
    }
    mine.settle(own, COMPLETE)
    mine.flush()


def test_the_next_session_of_one_is_never_one_of_the_other(two: list[Side]) -> None:
    """Req: G-04."""
    a, b = two
    a.send("carts", "item", session="s1")
    waiting = b.receiver("carts", NEXT)
    waiting.session_wait_ms = 100
    with pytest.raises(ServiceBusError, match="timeout"):
        waiting.receive(1, 0)
    found = a.receiver("carts", NEXT)
    assert len(found.receive(1, WAIT_S)) == 1


# Messages


def test_a_message_sent_to_one_wakes_no_receiver_of_the_other(two: list[Side]) -> None:
    """Who waits there gets the first one of its own namespace."""
    a, b = two
    waiting = Desk(b)
    waiting.grant(1)
    assert waiting.send("of b") == ACCEPTED  # its credit has arrived before
    assert body_of(waiting.receive().payload) == "of b"
    waiting.grant(10)
    a.send("orders", SECRET, SECRET)
    a.send("news", SECRET)
    assert waiting.send("second of b") == ACCEPTED
    assert body_of(waiting.receive().payload) == "second of b"
    assert waiting.arrived == []
    assert (a.peek("orders"), a.peek("news/Subscriptions/all")) == ([SECRET] * 2, [SECRET])
    assert b.peek("news/Subscriptions/all") == []


def test_a_message_id_of_one_is_no_duplicate_in_the_other(two: list[Side]) -> None:
    """Req: D-01."""
    for side in two:
        side.send("once", side.name, "duplicate", message_id="same")
    assert [side.peek("once") for side in two] == [[side.name] for side in two]


# Forwards


def test_a_chain_of_forwards_ends_in_its_own_namespace(two: list[Side]) -> None:
    """Of messages and of dead letters. Req: F-01."""
    a, b = two
    a.send("relay", SECRET)
    assert a.peek("orders") == [SECRET]
    a.send("doomed", "dead")
    [doomed] = a.receiver("doomed").receive(1, WAIT_S)
    token = Array.of(UUID, [UUID(bytes_le=doomed.lock_token)])
    request = {"lock-tokens": token, "disposition-status": "suspended"}
    a.ask("doomed", "com.microsoft:update-disposition", request)
    assert a.peek("orders") == [SECRET, "dead"]
    for path in ("orders", "relay", "doomed", "doomed/$DeadLetterQueue", "orders/$Transfer/$DeadLetterQueue"):
        assert b.peek(path) == []


def test_a_target_that_is_gone_is_not_replaced_by_that_of_the_other(two: list[Side]) -> None:
    """Such a message is a transfer dead letter where it was sent. Req: F-01."""
    a, b = two
    assert a.owner.ask("DELETE", "/orders?api-version=2021-05")[0] == 200
    a.send("relay", SECRET)
    assert a.peek("relay/$Transfer/$DeadLetterQueue") == [SECRET]
    assert (b.peek("orders"), b.peek("relay"), b.peek("relay/$Transfer/$DeadLetterQueue")) == ([], [], [])


@pytest.mark.parametrize(
    "address", ["only-there", "amqps://{}/only-there", "amqps://{}.servicebus.windows.net/only-there"]
)
def test_a_sender_via_an_entity_reaches_none_of_the_other(broker: BrokerProcess, address: str) -> None:
    """Req: F-03."""
    there = {"Queues": [{"Name": "orders"}, {"Name": "only-there"}]}
    with sides(broker.http_port, ENTITIES, there) as (a, b):
        with pytest.raises(ServiceBusError, match="not-found"):
            Desk(a, destination=address.format(b.name))
        for path in ("only-there", "orders"):
            assert b.peek(path) == []


@pytest.mark.parametrize("address", ["amqps://{}/orders", "amqps://{}.servicebus.windows.net/orders"])
def test_an_address_with_the_host_of_the_other_stays_in_its_own(two: list[Side], address: str) -> None:
    """The connection has chosen: of an address in a link the path alone counts."""
    a, b = two
    b.send("orders", SECRET)
    desk = Desk(a, address=address.format(b.name))
    assert desk.send("of a") == ACCEPTED
    assert body_of(desk.receive().payload) == "of a"
    assert (a.peek("orders"), b.peek("orders")) == (["of a"], [SECRET])
