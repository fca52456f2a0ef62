"""A client for what the load generator cannot do: management requests and transactions.

Owns: one blocking connection, with the broker's engine in the client role. It costs far more than the load
generator: a figure that it limits must say so.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from bench.loadgen import Endpoint, LoadFailed
from peeklock.amqp.connection import Connection
from peeklock.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    DeliveryReceived,
    DispositionReceived,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionEnded,
)
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.performatives import (
    ACCEPTED,
    Coordinator,
    Declared,
    DeliveryState,
    Source,
    Target,
    Terminus,
    TransactionalState,
)
from peeklock.amqp.types import Described, Role, ULong

DECLARE, DISCHARGE = 0x31, 0x32
"""Codes of the bodies that go to a coordinator (AMQP 4.5.2, 4.5.3)."""

Outcome = Callable[[DeliveryState | None], None]

_ENDS = (ConnectionClosed, LinkDetached, SessionEnded)


class Client:
    """One connection with one session; `with` closes it."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = 60) -> None:
        self._socket = socket.create_connection(("127.0.0.1", endpoint.port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._credit: dict[int, int] = {}
        self._attached = 0
        self._tags = 0
        self._deliveries: list[DeliveryReceived] = []
        self._outcomes: dict[tuple[Role, int], Outcome] = {}  # by the role of its sender
        self._opened = False
        self._amqp = Connection(
            "client",
            container_id="bench",
            now_ms=0,
            hostname="localhost",
            sasl_mechanisms=("PLAIN",),
            sasl_response=f"\0{endpoint.user}\0{endpoint.password}".encode(),
        )
        self._amqp.open()
        self._until(lambda: self._opened)
        self._channel = self._amqp.begin()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._amqp.close()
            self._flush()
        self._socket.close()

    def request(self, entity: str, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the management node of an entity, and wait for the answer.

        Raises:
            LoadFailed: the answer is no success.
        """
        node = f"{entity}/$management"
        answers = self._attach(Role.RECEIVER, Source(node), Target("answers"))
        requests = self._attach(Role.SENDER, Source("answers"), Target(node))
        self._amqp.flow(self._channel, answers, 1)
        payload = encode_message(
            properties=Properties(message_id="1", reply_to="answers"),
            application_properties={"operation": operation},
            value=body,
        )
        self._send(requests, payload, lambda _: None)
        self._until(lambda: bool(self._deliveries))
        sections = scan(self._deliveries.pop().payload)
        found = sections.decode_application_properties()
        if found["statusCode"] not in (200, 204):
            raise LoadFailed(f"{operation} of {entity}: {found}")
        for handle in (answers, requests):
            self._amqp.detach(self._channel, handle)
        answer: dict[str, Any] = sections.decode_body()[0][1]
        return answer

    def transactions(self, queue: str, count: int, at_once: int, payload: bytes) -> float:
        """Commit transactions, each of two sends and one complete on a queue; return the seconds it took.

        The queue must hold `count` messages. `at_once` transactions are in flight all the time.
        """
        coordinator = self._attach(Role.SENDER, Source("bench"), Coordinator())
        sender = self._attach(Role.SENDER, Source("bench"), Target(queue))
        receiver = self._attach(Role.RECEIVER, Source(queue), Target("bench"), rcv_settle_mode=1)
        self._amqp.flow(self._channel, receiver, count)
        declare = encode_message(value=Described(ULong(DECLARE), []))
        begun = done = 0

        def begin() -> None:
            nonlocal begun
            if begun < count:
                begun += 1
                self._send(coordinator, declare, declared)

        def declared(state: DeliveryState | None) -> None:
            assert isinstance(state, Declared)
            transaction = TransactionalState(state.txn_id)
            for _ in range(2):
                self._send(sender, payload, enlisted, transaction)
            message = self._deliveries.pop()
            self._outcomes[Role.SENDER, message.delivery_id] = enlisted
            self._amqp.disposition(
                self._channel,
                Role.RECEIVER,
                message.delivery_id,
                message.delivery_id,
                TransactionalState(state.txn_id, ACCEPTED),
                settled=False,
            )
            self._flush()  # the engine delays dispositions, so that it can merge them
            # No wait for the three answers: the broker processes all of it in this order.
            discharge = encode_message(value=Described(ULong(DISCHARGE), [state.txn_id, False]))
            self._send(coordinator, discharge, committed)

        def enlisted(state: DeliveryState | None) -> None:
            if not isinstance(state, TransactionalState):
                raise LoadFailed(f"not part of its transaction: {state}")

        def committed(state: DeliveryState | None) -> None:
            nonlocal done
            if state != ACCEPTED:
                raise LoadFailed(f"a transaction was not committed: {state}")
            done += 1
            begin()

        self._until(lambda: len(self._deliveries) >= count)
        self._until(lambda: self._credit[coordinator] > at_once and self._credit[sender] > 2 * at_once)
        started = time.perf_counter()
        for _ in range(at_once):
            begin()
        self._until(lambda: done == count)
        return time.perf_counter() - started

    def send_all(self, queue: str, payload: bytes, count: int, at_once: int, message_format: int = 0) -> None:
        """Send the same delivery `count` times; `at_once` of them are in flight all the time.

        Raises:
            LoadFailed: one is not accepted.
        """
        sender = self._attach(Role.SENDER, Source("bench"), Target(queue))
        sent = done = 0

        def send() -> None:
            nonlocal sent
            if sent < count:
                sent += 1
                self._send(sender, payload, accepted, message_format=message_format)

        def accepted(state: DeliveryState | None) -> None:
            nonlocal done
            if state != ACCEPTED:
                raise LoadFailed(f"a delivery was not accepted: {state}")
            done += 1
            send()

        for _ in range(at_once):
            send()
        self._until(lambda: done == count)

    # Inside

    def _attach(self, role: Role, source: Terminus, target: Terminus, *, rcv_settle_mode: int = 0) -> int:
        expected = self._attached + 1
        handle = self._amqp.attach(
            self._channel, f"bench-{expected}", role, source, target, rcv_settle_mode=rcv_settle_mode
        )
        self._until(lambda: self._attached == expected)
        if role is Role.SENDER:
            self._until(lambda: self._credit.get(handle, 0) > 0)
        return handle

    def _send(
        self,
        handle: int,
        payload: bytes,
        outcome: Outcome,
        state: DeliveryState | None = None,
        *,
        message_format: int = 0,
    ) -> None:
        self._tags += 1
        tag = self._tags.to_bytes(4, "big")
        delivery_id = self._amqp.send(
            self._channel, handle, tag, payload, message_format=message_format, state=state
        )
        self._outcomes[Role.RECEIVER, delivery_id] = outcome

    def _flush(self) -> None:
        out = self._amqp.data_to_send()
        if out:
            self._socket.sendall(out)

    def _until(self, done: Callable[[], bool]) -> None:
        """Exchange bytes until a condition holds."""
        while not done():
            self._flush()
            data = self._socket.recv(1 << 18)
            if not data:
                raise LoadFailed("the broker ended the connection")
            for event in self._amqp.receive(data, 0):
                self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, DispositionReceived):
            for delivery_id in range(event.first, event.last + 1):
                key = event.role, delivery_id
                # A settlement in a transaction is answered twice: provisionally, and settled by the commit.
                outcome = self._outcomes.pop(key) if event.settled else self._outcomes[key]
                outcome(event.state)
        elif isinstance(event, DeliveryReceived):
            self._deliveries.append(event)
        elif isinstance(event, LinkFlow):
            self._credit[event.handle] = event.credit
        elif isinstance(event, LinkAttached):
            self._attached += 1
        elif isinstance(event, ConnectionOpened):
            self._opened = True
        elif isinstance(event, _ENDS) and not (isinstance(event, LinkDetached) and event.error is None):
            raise LoadFailed(f"the broker ended it: {event}")
