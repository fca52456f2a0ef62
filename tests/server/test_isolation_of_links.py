"""What links of one namespace hold is nothing in another: transactions, locks, sessions, waiting receivers.

Two raw clients on one address, each with its key, so that identifiers can be said that no library would say.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from peeklock.amqp.connection import Connection
from peeklock.amqp.coordination import Declare, Discharge, encode_coordination
from peeklock.amqp.events import ConnectionOpened, DeliveryReceived, DispositionReceived, Event, LinkAttached
from peeklock.amqp.performatives import (
    ACCEPTED,
    Coordinator,
    Declared,
    Rejected,
    Source,
    Target,
    TransactionalState,
)
from peeklock.amqp.types import Role, Symbol, UInt
from peeklock.auth import DEVELOPMENT_KEY
from peeklock.client import Properties, encode_message
from peeklock.demo.broker import BrokerProcess
from tests.server.sides import ENTITIES, Side, body_of, sides
from tests.server.waiting import SECONDS_MAX

E = TypeVar("E", bound=Event)

SESSION = Symbol("com.microsoft:session-filter")
WAIT = Symbol("com.microsoft:timeout")

QUIET_S = 0.3
"""How long nothing may come where nothing is due. Our choice: many times what a delivery takes."""


class Raw:
    """A client of a namespace whose every frame the test decides."""

    def __init__(self, port: int, key_name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
        self.amqp = Connection(
            "client",
            container_id="raw",
            now_ms=0,
            hostname="localhost",
            sasl_mechanisms=("PLAIN",),
            sasl_response=f"\0{key_name}\0{DEVELOPMENT_KEY}".encode(),
        )
        self._events: list[Event] = []
        self.amqp.open()
        self.until(ConnectionOpened)
        self.channel = self.amqp.begin()
        self._links = 0

    def close(self) -> None:
        self._socket.close()

    def until(self, kind: type[E]) -> E:
        """Return the next event of a kind; others stay."""
        while True:
            for event in self._events:
                if isinstance(event, kind):
                    self._events.remove(event)
                    return event
            self._read()

    def quiet(self, kind: type[Event]) -> bool:
        """Return whether no event of a kind comes for a while."""
        ends_s = time.monotonic() + QUIET_S
        while (left_s := ends_s - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                self._read()
            except TimeoutError:
                break
        self._socket.settimeout(SECONDS_MAX)
        return not any(isinstance(event, kind) for event in self._events)

    def _read(self) -> None:
        if out := self.amqp.data_to_send():
            self._socket.sendall(out)
        data = self._socket.recv(65536)
        assert data, "the broker has closed the connection"
        self._events += self.amqp.receive(data, 0)

    def attach(self, role: Role, address: Any, credit: int = 0, **wishes: Any) -> int:
        """Attach a link, and wait for the broker's answer."""
        self._links += 1
        properties = wishes.pop("properties", None)
        far: Any = address
        source: Any = Source("raw") if role is Role.SENDER else Source(far, **wishes)
        target: Any = Target("raw") if role is Role.RECEIVER else far
        if role is Role.SENDER and isinstance(address, str):
            target = Target(address)
        name = f"link-{self._links}"
        handle = self.amqp.attach(
            self.channel, name, role, source, target, rcv_settle_mode=1, properties=properties
        )
        self.until(LinkAttached)
        if credit:
            self.amqp.flow(self.channel, handle, credit)
        return handle

    def send(self, handle: int, payload: bytes, **options: Any) -> Any:
        """Send a delivery; return its outcome."""
        self.amqp.send(self.channel, handle, b"tag", payload, **options)
        return self.until(DispositionReceived).state

    def receive(self, handle: int) -> DeliveryReceived:
        self.amqp.flow(self.channel, handle, 1)
        return self.until(DeliveryReceived)

    def settle(self, delivery_id: int, state: Any) -> Any:
        """Settle a delivery; return what the broker says."""
        self.amqp.disposition(self.channel, Role.RECEIVER, delivery_id, delivery_id, state, settled=False)
        return self.until(DispositionReceived).state

    def declare(self) -> tuple[int, bytes]:
        """Begin a transaction; return the link to the coordinator, and its id."""
        control = self.attach(Role.SENDER, Coordinator())
        state = self.send(control, encode_coordination(Declare()))
        assert isinstance(state, Declared)
        return control, state.txn_id


class Two:
    """Two namespaces with the same entities, and a raw client of each."""

    def __init__(self, broker: BrokerProcess, made: list[Side]) -> None:
        self.a, self.b = made
        self.of_a, self.of_b = (Raw(broker.amqp_port, side.name) for side in made)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("isolation"), ["--durability=os"]) as made:
        yield made


@pytest.fixture
def two(broker: BrokerProcess) -> Iterator[Two]:
    with sides(broker, ENTITIES, ENTITIES) as made:
        both = Two(broker, made)
        yield both
        both.of_a.close()
        both.of_b.close()


def payload(body: str, session: str | None = None) -> bytes:
    return encode_message(properties=Properties(group_id=session), data=body.encode())


def why(state: Any) -> str:
    assert isinstance(state, Rejected), state
    assert state.error is not None
    return str(state.error.condition)


def test_a_transaction_of_one_is_unknown_in_the_other(two: Two) -> None:
    """For a send, an outcome and its end; it is still whole in its own namespace afterwards. Req: X-06."""
    control, txn_id = two.of_a.declare()
    sender = two.of_a.attach(Role.SENDER, "orders")
    assert two.of_a.send(sender, payload("of a"), state=TransactionalState(txn_id)) == TransactionalState(
        txn_id, ACCEPTED
    )
    two.b.send("orders", "of b")
    receiver = two.of_b.attach(Role.RECEIVER, "orders")
    delivery = two.of_b.receive(receiver)
    other_control, other_id = two.of_b.declare()
    assert other_id != txn_id
    unknown = "amqp:transaction:unknown-id"
    elsewhere = two.of_b.attach(Role.SENDER, "orders")
    assert why(two.of_b.send(elsewhere, payload("none"), state=TransactionalState(txn_id))) == unknown
    for fail in (True, False):
        assert why(two.of_b.send(other_control, encode_coordination(Discharge(txn_id, fail)))) == unknown
    assert why(two.of_b.settle(delivery.delivery_id, TransactionalState(txn_id, ACCEPTED))) == unknown
    assert two.a.peek("orders") == []
    assert two.of_a.send(control, encode_coordination(Discharge(txn_id, False))) == ACCEPTED
    assert two.a.peek("orders") == ["of a"]
    assert two.b.peek("orders") == ["of b"]


def test_an_outcome_for_a_delivery_of_the_other_connection_does_nothing(two: Two) -> None:
    """Also where both connections have a delivery of this number."""
    for side in (two.a, two.b):
        side.send("orders", f"of {side.name}")
    of_a, of_b = (raw.attach(Role.RECEIVER, "orders") for raw in (two.of_a, two.of_b))
    in_a, in_b = two.of_a.receive(of_a), two.of_b.receive(of_b)
    assert in_a.delivery_id == in_b.delivery_id
    assert two.of_b.settle(in_b.delivery_id, ACCEPTED) == ACCEPTED
    assert two.b.peek("orders") == []
    assert two.a.peek("orders") == [f"of {two.a.name}"]
    assert two.of_a.settle(in_a.delivery_id, ACCEPTED) == ACCEPTED


def test_a_message_wakes_receivers_of_its_own_namespace_alone(two: Two) -> None:
    waiting = two.of_b.attach(Role.RECEIVER, "orders", credit=10)
    forwarded = two.of_b.attach(Role.RECEIVER, "news/Subscriptions/all", credit=10)
    assert waiting != forwarded
    two.a.send("orders", "one")
    two.a.send("relay", "two")
    two.a.send("news", "three")
    assert two.of_b.quiet(DeliveryReceived)
    two.b.send("relay", "own")
    assert body_of(two.of_b.until(DeliveryReceived).payload) == "own"
    assert two.a.peek("orders") == ["one", "two"]


def test_a_session_that_one_holds_is_free_in_the_other(two: Two) -> None:
    """Also the next session of a namespace is never one of the other."""
    for side in (two.a, two.b):
        side.send("carts", f"of {side.name}", session="same")
    two.a.send("carts", "more", session="of a alone")
    held = two.of_a.attach(Role.RECEIVER, "carts", filter={SESSION: "same"})
    free = two.of_b.attach(Role.RECEIVER, "carts", filter={SESSION: "same"})
    assert body_of(two.of_a.receive(held).payload) == f"of {two.a.name}"
    assert body_of(two.of_b.receive(free).payload) == f"of {two.b.name}"
    two.of_b.amqp.attach(
        two.of_b.channel,
        "next",
        Role.RECEIVER,
        Source("carts", filter={SESSION: None}),
        Target("raw"),
        properties={WAIT: UInt(int(QUIET_S * 1000) * 20)},
    )
    assert two.of_b.quiet(LinkAttached)
    two.b.send("carts", "x", session="of b")
    attached = two.of_b.until(LinkAttached)
    assert isinstance(attached.source, Source)
    assert attached.source.filter == {SESSION: "of b"}


def test_an_id_is_no_duplicate_in_the_other(two: Two) -> None:
    for side in (two.a, two.b):
        for body in ("first", "again"):
            side.send("once", f"{body} of {side.name}", message_id="same")
    assert [side.peek("once") for side in (two.a, two.b)] == [
        [f"first of {two.a.name}"],
        [f"first of {two.b.name}"],
    ]


def test_what_dies_in_one_is_forwarded_there(two: Two) -> None:
    two.a.send("doomed", "dead")
    receiver = two.of_a.attach(Role.RECEIVER, "doomed")
    delivery = two.of_a.receive(receiver)
    two.of_a.settle(delivery.delivery_id, Rejected(None))
    woken = two.of_a.attach(Role.RECEIVER, "orders", credit=1)
    assert woken != receiver
    assert body_of(two.of_a.until(DeliveryReceived).payload) == "dead"
    assert two.b.peek("orders") == two.b.peek("doomed") == []
