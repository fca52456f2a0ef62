"""`python -m bench.stages [--json]`: the CPU time of a message inside the broker, stage by stage.

Owns: one connection's path through gateway, core, engine and frame encoding, in this thread: no socket, no
disk, no event loop. Must not know: how a stage works. `bench.against` compares the figures of two commits.

Each figure is thread CPU time in microseconds a message, the least of several rounds: the rest is noise of
the machine. A batch is closed and encoded in "batch"; handing out belongs to "dispatch".

    bytes --decode--> events --gateway--> commands --apply--> changes --batch--> frame
                                          effects --dispatch--> frames --encode--> bytes
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from time import thread_time_ns
from typing import Any

from bench.systems import KEY, KEY_NAME
from peeklock.amqp.connection import Connection
from peeklock.amqp.events import DeliveryReceived, LinkAttached
from peeklock.amqp.frames import Limits
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties
from peeklock.amqp.performatives import ACCEPTED, Source, Target
from peeklock.amqp.types import Role
from peeklock.engine.driver import Action, Commit, HandOut
from peeklock.store.encoding import frames
from peeklock.testing.inprocess import InProcessBroker

STAGES = ("decode", "gateway", "apply", "batch", "dispatch", "encode")
"""Stages of one read of the connection, in order."""

READ = 100
"""Messages, credits or dispositions in one read, as on a busy connection."""


class Exchange:
    """A broker with one queue and one connection that sends to it and receives from it."""

    def __init__(self, credit: int) -> None:
        """Attach both links; `credit` is the sender's window in deliveries."""
        self._broker = InProcessBroker()
        self._broker.create_queue("bench", lock_duration_ms=300_000)
        self._connection = self._broker.connect()
        self._spent_ns = dict.fromkeys(STAGES, 0)
        self._decoding_ns = 0
        self._tags = 0
        limits = Limits(incoming_window=2 * credit)
        self._client = Connection(
            "client",
            container_id="bench",
            now_ms=self._broker.clock.now_ms,
            hostname="localhost",
            sasl_mechanisms=("PLAIN",),
            sasl_response=f"\0{KEY_NAME}\0{KEY}".encode(),
            limits=limits,
        )
        self._client.open()
        self._settle_down()
        channel = self._client.begin()
        self._client.attach(channel, "sender", Role.SENDER, Source("bench"), Target("bench"))
        self._client.attach(
            channel, "receiver", Role.RECEIVER, Source("bench"), Target("bench"), rcv_settle_mode=1
        )
        attached = [event for event in self._settle_down() if isinstance(event, LinkAttached)]
        assert len(attached) == 2
        self._sender, self._receiver = 0, 1
        self._payload = encode_message(
            header=Header(durable=True),
            properties=Properties(message_id="0123456789abcdef0123456789abcdef"),
            application_properties={"kind": "order", "attempt": 1},
            data=b"x" * 1024,
        )

    def send(self, count: int) -> None:
        """Send messages in one read."""
        self._to_client(self.follow(self.send_frames(count)))

    def receive(self, count: int) -> list[DeliveryReceived]:
        """Add credit for so many more messages; return the deliveries."""
        self._client.flow(0, self._receiver, count)
        events = self._to_client(self.follow(self._client.data_to_send()))
        return [event for event in events if isinstance(event, DeliveryReceived)]

    def complete(self, deliveries: list[DeliveryReceived]) -> None:
        """Accept deliveries in one read."""
        self._to_client(self.follow(self.complete_frames(deliveries)))

    def send_frames(self, count: int) -> bytes:
        """Return the client's frames for so many messages."""
        for _ in range(count):
            self._tags += 1
            self._client.send(0, self._sender, self._tags.to_bytes(4, "big"), self._payload)
        return self._client.data_to_send()

    def complete_frames(self, deliveries: list[DeliveryReceived]) -> bytes:
        """Return the client's frames that accept deliveries, one each, with a request for the answer."""
        out = bytearray()
        for delivery in deliveries:
            number = delivery.delivery_id
            self._client.disposition(0, Role.RECEIVER, number, number, ACCEPTED, settled=False)
            out += self._client.data_to_send()  # else they are merged
        return bytes(out)

    def take(self) -> dict[str, int]:
        """Return the nanoseconds of each stage since the last call."""
        spent, self._spent_ns = self._spent_ns, dict.fromkeys(STAGES, 0)
        return spent

    def follow(self, data: bytes) -> bytes:
        """Pass one read to the broker and do all that follows from it; return the bytes for the client."""
        broker, gateway, spent = self._broker, self._connection.gateway, self._spent_ns
        driver, now_ms = broker.driver, broker.clock.now_ms
        decoder = gateway._connection
        decode = decoder.receive

        def timed(*arguments: Any) -> Any:
            started_ns = thread_time_ns()
            events = decode(*arguments)
            self._decoding_ns += thread_time_ns() - started_ns
            return events

        decoder.receive = timed  # type: ignore[method-assign, assignment]  # replaced to time the call
        out = b""
        done: list[list[Action]] = []  # not freed in a stage
        self._decoding_ns = 0
        at_ns = thread_time_ns()
        commands = gateway.receive(data, now_ms)
        after_ns = thread_time_ns()
        decoder.receive = decode  # type: ignore[method-assign]  # replaced to time the call
        spent["decode"] += self._decoding_ns
        spent["gateway"] += after_ns - at_ns - self._decoding_ns
        while commands:
            at_ns = thread_time_ns()
            driver.offer(commands, now_ms)
            commands = []  # freed with what applies them, as in the server
            after_ns = thread_time_ns()
            spent["apply"] += after_ns - at_ns
            actions = driver.step(now_ms)
            done.append(actions)
            at_ns = after_ns
            if type(actions[0]) is Commit:
                frame = frames.encode(actions[0].batch)
                after_ns = thread_time_ns()
                spent["batch"] += after_ns - at_ns
                at_ns = after_ns
                driver.committed(actions[0].batch.no, len(frame), now_ms)
                actions = driver.step(now_ms)
                done.append(actions)
            while actions:
                for action in actions:
                    if type(action) is HandOut:
                        gateway.handle(action.effects, driver.body, now_ms)
                actions = driver.step(now_ms) if driver.more else []
                done.append(actions)
            after_ns = thread_time_ns()
            spent["dispatch"] += after_ns - at_ns
            out += gateway.data_to_send()
            commands = gateway.written(0, now_ms)
            spent["encode"] += thread_time_ns() - after_ns
        return out

    def _settle_down(self) -> list[Any]:
        """Exchange bytes until both ends are silent; return the client's events."""
        events: list[Any] = []
        while data := self._client.data_to_send():
            self._connection.write(data)
            events += self._client.receive(self._connection.read(), self._broker.clock.now_ms)
        return events

    def _to_client(self, data: bytes) -> list[Any]:
        return self._client.receive(data, self._broker.clock.now_ms)


def operations(exchange: Exchange, count: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Send to an empty queue, then receive, then complete; yield the time of each."""
    exchange.take()
    for _ in range(0, count, READ):
        exchange.send(READ)
    yield "send", exchange.take()
    deliveries: list[DeliveryReceived] = []
    for _ in range(0, count, READ):
        deliveries += exchange.receive(READ)
    assert len(deliveries) == count
    yield "receive", exchange.take()
    for start in range(0, count, READ):
        exchange.complete(deliveries[start : start + READ])
    yield "complete", exchange.take()


def measure(count: int, rounds: int, say: Callable[[str], None] = lambda line: None) -> dict[str, float]:
    """Return the microseconds a message by "operation, stage", each the least of the rounds."""
    least: dict[str, float] = {}
    for number in range(rounds):
        exchange = Exchange(4 * count)
        for operation, spent in operations(exchange, count):
            for stage, spent_ns in spent.items():
                name = f"{operation}, {stage}"
                least[name] = min(least.get(name, float("inf")), spent_ns / count / 1000)
        say(f"round {number + 1} of {rounds}")
    return least


def main() -> None:
    """Print the table, or the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.stages", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--messages", type=int, default=10_000, help="messages of a round (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument(
        "--json", action="store_true", help="print microseconds by name as JSON, for programs"
    )
    options = parser.parse_args()
    figures = measure(options.messages, options.rounds)
    if options.json:
        print(json.dumps(figures))
        return
    operations = list(dict.fromkeys(name.split(", ")[0] for name in figures))
    print(f"{'us a message':14}" + "".join(f"{stage:>10}" for stage in (*STAGES, "sum")))
    for operation in operations:
        row = [figures[f"{operation}, {stage}"] for stage in STAGES]
        print(f"{operation:14}" + "".join(f"{value:10.2f}" for value in (*row, sum(row))))


if __name__ == "__main__":
    main()
