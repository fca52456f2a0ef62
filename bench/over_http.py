"""Messages over HTTP compared with AMQP, and requests that wait for messages.

Owns: the scenarios and their aims, which are ratios within one run. Must not know: how bytes are made
(`http_pool`, `loadgen`, `client`).
"""

from __future__ import annotations

import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.client import Client
from bench.http_pool import Pool
from bench.loadgen import STALL_S_MAX, LoadFailed
from bench.run import MB, Run, drive_queue
from bench.systems import Peeklock, cpu_s, rss_bytes
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties

NAME = "over HTTP"

CONNECTIONS = 16
"""Connections that stay open, each with one request at a time."""

BODY_BYTES = 1024
BATCH = 100
"""Messages."""

BATCH_FORMAT = 0x80013700

TURNS = 5
"""Samples of HTTP and AMQP, one after the other."""

POLLS = 5_000
"""Requests that wait at a time."""

PACE_S = 0.005
"""Pause between two sends to the waiting requests."""

SETTLE_S = 2.0
"""Time without an answer after which all are known to wait."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of broker and client in microseconds a request, and requests a second."""

    broker_us: float
    client_us: float
    rate: float


Step = Callable[[Peeklock, int], Cost]
"""Does something so many times."""


def over_http(run: Run) -> None:
    """Send 1 KiB messages, one by one and in batches of 100, over HTTP and AMQP, 16 requests at a time."""
    singles, batches = run.scaled(20_000), run.scaled(1_000)
    for _ in range(run.rounds):
        broker = run.fresh_peeklock()
        try:
            broker.start()
            for step in (amqp_sends, http_sends):
                step(broker, singles // 4)  # a broker's first messages are its slowest
            by_http, by_amqp = _in_turns(broker, singles, http_sends, amqp_sends)
            _add_ratio(run, "send", by_http, by_amqp, 4)
            stream = drive_queue(broker, "send", singles).broker_us
            run.results.add(NAME, "send, AMQP, 1000 under way, broker CPU", "us", broker.name, stream)
            by_http, by_amqp = _in_turns(broker, batches, http_batches, amqp_batches)
            _add_ratio(run, f"batch of {BATCH}", by_http, by_amqp, 1.5)
        finally:
            broker.stop()


def polls(run: Run) -> None:
    """Let 5,000 requests wait for messages of one queue, then send 200 messages a second."""
    count, sends = run.scaled(POLLS), run.scaled(4_000)
    name = f"{count:,} waiting over HTTP"
    broker = run.fresh_peeklock()
    try:
        broker.start()
        http_sends(broker, CONNECTIONS)  # loads what the first request loads
        drive_queue(broker, "recv", CONNECTIONS)
        before = rss_bytes(broker.endpoint().pid)
        with Pool(broker.endpoint(), 1) as pool:
            took_ms = [1000 * taken for taken in woken(pool, count, sends)]
            grown = rss_bytes(broker.endpoint().pid) - before
        run.results.add(name, "growth of resident memory", "MB", broker.name, grown / MB, aim=150)
        cuts = statistics.quantiles(took_ms, n=100)
        run.results.add(name, "send to wake-up, p50", "ms", broker.name, cuts[49])
        run.results.add(name, "send to wake-up, p99", "ms", broker.name, cuts[98], aim=20)
    finally:
        broker.stop()


def _add_ratio(run: Run, what: str, http: Cost, amqp: Cost, aim: float) -> None:
    for name, cost in (("HTTP", http), ("AMQP", amqp)):
        run.results.add(NAME, f"{what}, {name}", "/s", "peeklock", cost.rate, better="higher")
        run.results.add(NAME, f"{what}, {name}, broker CPU", "us", "peeklock", cost.broker_us)
        run.results.add(NAME, f"{what}, {name}, client CPU", "us", "peeklock", cost.client_us)
    ratio = http.broker_us / amqp.broker_us
    run.results.add(NAME, f"{what}, broker CPU, HTTP / AMQP", "", "peeklock", ratio, aim=aim)


def _in_turns(broker: Peeklock, count: int, *steps: Step) -> list[Cost]:
    """Run both in turns, so that a slow moment of the machine affects both; return their medians."""
    taken = list(zip(*([step(broker, count // TURNS) for step in steps] for _ in range(TURNS)), strict=True))
    return [
        Cost(
            statistics.median(cost.broker_us for cost in costs),
            statistics.median(cost.client_us for cost in costs),
            statistics.median(cost.rate for cost in costs),
        )
        for costs in taken
    ]


def _measured(broker: Peeklock, count: int, drive: Callable[[], None]) -> Cost:
    pid = broker.endpoint().pid
    started, client_s, broker_s = time.perf_counter(), time.process_time(), cpu_s(pid)
    drive()
    seconds = time.perf_counter() - started
    client_us = (time.process_time() - client_s) * 1e6 / count
    return Cost((cpu_s(pid) - broker_s) * 1e6 / count, client_us, count / seconds)


def amqp_sends(broker: Peeklock, count: int) -> Cost:
    """Keep one in flight on each connection, as over HTTP."""
    load = drive_queue(broker, "send", count, "-S", str(CONNECTIONS), "-w", "1")
    return Cost(load.broker_us, load.client_us, load.send_rate)


def http_sends(broker: Peeklock, count: int) -> Cost:
    """Send numbered messages. Raises: LoadFailed."""
    body = b"x" * BODY_BYTES
    with Pool(broker.endpoint(), CONNECTIONS) as pool:
        properties = 'BrokerProperties: {"PartitionKey": "pk-0001", "MessageId": "%s"}\r\n'
        headers = f'Content-Type: application/json\r\nkind: "order"\r\ntenant: 42\r\n{properties}'
        head, _, rest = pool.request("POST", "/bench/messages", headers, body).partition(b"%s")
        return _measured(
            broker, count, lambda: pool.drive(count, lambda number: b"%s%032d%s" % (head, number, rest))
        )


def http_batches(broker: Peeklock, count: int) -> Cost:
    """Send batches of `BATCH`. Raises: LoadFailed."""
    member = {
        "Body": "x" * BODY_BYTES,
        "BrokerProperties": {
            "MessageId": "0" * 32,
            "PartitionKey": "pk-0001",
            "ContentType": "application/json",
        },
        "UserProperties": {"kind": "order", "tenant": 42},
    }
    with Pool(broker.endpoint(), CONNECTIONS) as pool:
        headers = "Content-Type: application/vnd.microsoft.servicebus.json\r\n"
        body = json.dumps([member] * BATCH).encode()
        request = pool.request("POST", "/bench/messages", headers, body)
        return _measured(broker, count, lambda: pool.drive(count, lambda _: request))


def amqp_batches(broker: Peeklock, count: int) -> Cost:
    """Send batches of `BATCH`, so many of them in flight. Raises: LoadFailed."""
    member = encode_message(
        message_annotations={"x-opt-partition-key": "pk-0001"},
        properties=Properties(message_id="0" * 32, content_type="application/json"),
        application_properties={"kind": "order", "tenant": 42},
        data=b"x" * BODY_BYTES,
    )
    batch = encode_message(data=[member] * BATCH)
    with Client(broker.endpoint()) as client:
        return _measured(
            broker, count, lambda: client.send_all("bench", batch, count, CONNECTIONS, BATCH_FORMAT)
        )


def woken(pool: Pool, waiting: int, count: int) -> list[float]:
    """Start so many waiting requests, send so many messages; return the seconds until each was received."""
    sender = pool.peers[0]
    wait = pool.request("POST", "/bench/messages/head?timeout=60")
    send = pool.request("POST", "/bench/messages", body=b"x" * BODY_BYTES)
    for _ in range(waiting):
        pool.connect().ask(wait)  # stated in the request: without a time, the broker keeps at most 4,096
    while pool.answered(SETTLE_S):
        pass  # all wait now
    found: list[float] = []
    sent_at_s: deque[float] = deque()  # of messages that no request has received yet
    sent, idle, due_s = 0, True, time.perf_counter()
    while len(found) < count:
        if idle and sent < count and time.perf_counter() >= due_s:
            sender.ask(send)
            sent_at_s.append(sender.asked_at_s)
            sent, idle, due_s = sent + 1, False, due_s + PACE_S
        for peer, status in pool.answered(max(due_s - time.perf_counter(), 0.0002)):
            if status != 201:
                raise LoadFailed(f"an HTTP request was answered with {status}")
            if peer is sender:
                idle = True
            else:
                found.append(time.perf_counter() - sent_at_s.popleft())
                peer.ask(wait)
        if sent_at_s and time.perf_counter() - sent_at_s[0] > STALL_S_MAX:
            raise LoadFailed("a message reached no waiting request")
    return found


SCENARIOS = {"http": over_http, "polls": polls}
