"""A load on a queue: messages sent at a rate, received and completed, with the time that each took.

A thread sends, the caller receives: each has a connection. Messages carry the run's name in an application
property. Only these are completed; those of others are held for seconds, and released. Nothing of a run stays
in the queue: what it sent is received, or expires.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.events import DeliveryReceived, Event
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, scan
from peeklock.amqp.performatives import DeliveryState
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import MESSAGE_LOCK_LOST, ServiceBusError
from peeklock.client.links import COMPLETE, RELEASE, Delivery, ReceiveMode, Receiver
from peeklock.client.sender import Sender

MARK: Final = "peeklock-bench"
"""The application property with the run's name."""
NUMBER: Final = "n"
"""The application property with the message's number in the run."""

IN_FLIGHT: Final = 100
"""Messages without an outcome where no rate is given. Our choice: more add to the latency alone."""
PACED_IN_FLIGHT: Final = 10_000
"""Messages without an outcome at a given rate. Our choice: 10 s of a thousand a second."""
BACKLOG: Final = 1000
"""Messages sent and not received where no rate is given. Our choice: latency is that of a short queue."""
BATCH: Final = 500
"""Messages received at a time."""
TTL_MS: Final = 3_600_000
"""Time to live, so that a killed run leaves nothing. Our choice: longer than a message waits."""
HELD_MAX: Final = 1000
"""Messages of others that are held before the run stops. Our choice: a queue in use is not measured."""
HOLD_S: Final = 3.0
"""How long they are held. Our choice: below the shortest lock, 5 s, so that none lapses."""
PATIENCE_S: Final = 10.0
"""How long to wait for a message that does not arrive."""
BEAT_S: Final = 0.05
"""Longest wait before the sender and the receiver look whether to stop."""

What = Literal["both", "send", "receive"]
"""What is measured: sending while receiving, sending alone, or receiving alone."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send, and what to measure."""

    entity: str
    size_bytes: int
    """Of each body."""
    messages: int | None
    """At most; None = as many as there is time for."""
    seconds: float | None
    """How long to send; None = until all messages are sent."""
    rate: float | None
    """Messages a second; None = as fast as they are accepted."""
    what: What = "both"


@dataclass(slots=True)
class Figures:
    """How many messages, from when to when (`perf_counter_ns`), and how long each took, ns."""

    count: int = 0
    began_ns: int = 0
    ended_ns: int = 0
    latencies_ns: array[int] = field(default_factory=lambda: array("q"))

    @property
    def rate(self) -> float:
        """Messages a second; 0 = none."""
        span_ns = self.ended_ns - self.began_ns
        return self.count / span_ns * 1e9 if span_ns > 0 else 0.0


def percentiles_ms(latencies_ns: array[int]) -> dict[str, float]:
    """Return p50, p90, p99 and max in ms; nothing if there are none."""
    if not latencies_ns:
        return {}
    ordered = sorted(latencies_ns)
    last = len(ordered) - 1
    places = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
    return {name: ordered[-(-last * percent // 100)] / 1e6 for name, percent in places.items()}


class NotEmpty(Exception):
    """The queue has messages, so it is not measured."""


class _Stamped(Receiver):
    """A receiver that knows when each delivery arrived."""

    def __init__(self, connection: BlockingConnection, path: str) -> None:
        super().__init__(connection, path, ReceiveMode.PEEK_LOCK, None)
        self._arrived_ns: dict[int, int] = {}

    def arrived_ns(self, delivery: Delivery) -> int:
        """Return when a delivery arrived, once."""
        return self._arrived_ns.pop(delivery.delivery_id)

    def on_event(self, event: Event) -> None:
        if type(event) is DeliveryReceived:
            self._arrived_ns[event.delivery_id] = time.perf_counter_ns()
        super().on_event(event)

    def on_lost(self, error: ServiceBusError) -> None:
        self._arrived_ns.clear()
        super().on_lost(error)


class Load:
    """One run: `run` sends and receives, `stop` ends it early, the figures can be read at any time."""

    def __init__(self, settings: ConnectionString, plan: Plan, name: str) -> None:
        """`name`: of this run alone; it marks the messages."""
        self.plan = plan
        self.sent = Figures()
        """Latency: from when a message is due to its acceptance."""
        self.received = Figures()
        """Latency: from when a message is due to its arrival."""
        self.others = 0
        """Times that a message of others was released."""
        self._name = name
        self._to_send = BlockingConnection(settings)
        self._to_receive = BlockingConnection(settings)
        self._receiver = _Stamped(self._to_receive, plan.entity)
        self._due_ns = array("q")
        """When each message was due, by its number."""
        self._seen: set[int] = set()
        self._stopped = threading.Event()
        self._sending_over = threading.Event()
        self._failure: BaseException | None = None
        self._held: list[Delivery] = []
        self._held_since = 0.0
        self._body = bytes(plan.size_bytes)

    @property
    def missing(self) -> int:
        """Messages that were accepted and did not arrive."""
        return max(0, self.sent.count - self.received.count)

    def stop(self) -> None:
        """Send no more; `run` returns once what was sent is received."""
        self._stopped.set()

    def run(self, beat: Callable[[int, int], None] = lambda sent, received: None) -> None:
        """Send, receive and complete; `beat` gets often how many were sent and received.

        Raises:
            NotEmpty: the queue has messages.
            ServiceBusError: refused, or the connection is lost for good.
        """
        try:
            self._check_is_empty()  # before anything is sent; it may also not be allowed to receive
            if self.plan.what == "both":
                thread = threading.Thread(target=self._send_aside, name="peeklock-bench", daemon=True)
                thread.start()
                try:
                    self._receive(beat)
                finally:
                    self.stop()
                    thread.join()
            else:
                self._send_aside(beat)
                self._receive(beat)
            if self._failure is not None:
                raise self._failure
        finally:
            self._to_send.close()
            self._to_receive.close()

    def _check_is_empty(self) -> None:
        self._held = self._receiver.receive(1, 0)
        if self._held:
            self._release(0.0)
            raise NotEmpty(f"'{self.plan.entity}' has messages")

    # Sending

    def _send_aside(self, beat: Callable[[int, int], None] = lambda sent, received: None) -> None:
        """Send, and keep the failure for `run`."""
        try:
            self._send(beat)
        except BaseException as failure:
            self._failure = failure
        finally:
            self._sending_over.set()

    def _send(self, beat: Callable[[int, int], None]) -> None:
        plan, figures = self.plan, self.sent
        window = IN_FLIGHT if plan.rate is None else PACED_IN_FLIGHT
        sender = self._to_send.sender(plan.entity, in_flight_max=window)
        sender.on_accepted = self._on_accepted
        self._to_send.retrying(sender.open)
        figures.began_ns = figures.ended_ns = time.perf_counter_ns()
        end_ns = None if plan.seconds is None else figures.began_ns + round(plan.seconds * 1e9)
        number = 0
        while number != plan.messages and not self._stopped.is_set():
            beat(figures.count, self.received.count)
            now_ns = time.perf_counter_ns()
            due_ns = now_ns if plan.rate is None else figures.began_ns + round(number / plan.rate * 1e9)
            if end_ns is not None and max(now_ns, due_ns) >= end_ns:
                self._wait(sender, end_ns)
                break
            if due_ns > now_ns or self._is_full():
                self._wait(sender, max(due_ns, now_ns + 1_000_000))
                continue
            self._due_ns.append(due_ns)
            sender.send(self._message(number), number)
            number += 1
            if plan.rate is not None:
                self._wait(sender, 0)
        sender.flush()

    def _is_full(self) -> bool:
        is_bounded = self.plan.rate is None and self.plan.what == "both"
        return is_bounded and self.sent.count - self.received.count >= BACKLOG

    def _wait(self, sender: Sender, until_ns: int) -> None:
        """Write, and take outcomes, until then but not for long."""
        left_s = min(BEAT_S, max(0.0, (until_ns - time.perf_counter_ns()) / 1e9))
        try:
            with self._to_send.lock:
                self._to_send.retrying(sender.open)
                self._to_send.exchange(left_s)
        except ServiceBusError as error:
            if not error.retryable:
                raise  # else it is opened again

    def _message(self, number: int) -> bytes:
        return encode_message(
            header=Header(ttl=TTL_MS),
            application_properties={MARK: self._name, NUMBER: number},
            data=self._body,
        )

    def _on_accepted(self, number: object) -> None:
        assert isinstance(number, int)
        figures = self.sent
        figures.ended_ns = time.perf_counter_ns()
        figures.latencies_ns.append(figures.ended_ns - self._due_ns[number])
        figures.count += 1

    # Receiving

    def _receive(self, beat: Callable[[int, int], None]) -> None:
        """Receive until all that was accepted has arrived, or none arrives for long."""
        figures = self.received
        figures.began_ns = figures.ended_ns = time.perf_counter_ns()
        heard = time.monotonic()
        while not (self._sending_over.is_set() and figures.count >= self.sent.count):
            before = figures.count
            for delivery in self._receiver.receive(BATCH, BEAT_S):
                self._took(delivery)
            self._release(HOLD_S)
            now = time.monotonic()
            if figures.count > before or not self._sending_over.is_set():
                heard = now
            if len(self._held) >= HELD_MAX:
                self.stop()
            if now - heard > PATIENCE_S:
                break
            beat(self.sent.count, figures.count)
        self._release(0.0)
        self._unless_lost(self._receiver.flush)

    def _took(self, delivery: Delivery) -> None:
        arrived_ns = self._receiver.arrived_ns(delivery)
        found = self._own(delivery)
        if found is None:
            self._held_since = self._held_since if self._held else time.monotonic()
            self._held.append(delivery)
            return
        self._settle(delivery, COMPLETE)
        if found not in self._seen:  # it comes again if its lock was lost
            self._seen.add(found)
            figures = self.received
            figures.count += 1
            figures.ended_ns = time.perf_counter_ns()
            if self.plan.what == "both":
                figures.latencies_ns.append(arrived_ns - self._due_ns[found])

    def _own(self, delivery: Delivery) -> int | None:
        """Return the number of a message of this run; None = it is not."""
        try:
            found = scan(delivery.payload).decode_application_properties()
        except DecodeError:
            return None
        return found[NUMBER] if found.get(MARK) == self._name else None

    def _release(self, after_s: float) -> None:
        """Release the messages of others that have been held for so long."""
        if self._held and time.monotonic() - self._held_since >= after_s:
            for delivery in self._held:
                self._settle(delivery, RELEASE)
            self.others += len(self._held)
            self._held.clear()
            self._unless_lost(self._receiver.flush)

    def _settle(self, delivery: Delivery, outcome: DeliveryState) -> None:
        self._unless_lost(lambda: self._receiver.settle(delivery, outcome))

    def _unless_lost(self, settle: Callable[[], None]) -> None:
        """Settle; a message whose lock is lost comes again."""
        try:
            settle()
        except ServiceBusError as error:
            if error.condition != MESSAGE_LOCK_LOST and not error.retryable:
                raise
