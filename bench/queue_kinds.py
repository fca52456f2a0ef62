"""Queues with more features: sessions, duplicate detection, partitions, forwarding; and purges and
transactions. Peeklock alone.

Rates of one kind of queue are measured in turns with those of a plain queue and reported as a ratio per turn:
a machine's speed drifts more in a minute than the differences of interest.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from bench.client import Client
from bench.loadgen import hand_out, offered
from bench.run import MB, Run, drive_queue, settle_options
from bench.stalls import answer_times
from bench.systems import Peeklock, rss_bytes
from peeklock.amqp.message_writing import encode_message

Rates = dict[str, float]
"""Messages/s by operation."""

SESSIONS = {"sessions": {"RequiresSession": True}}
HELD = ("-G", "-w", "5")
"""A receiver for each of 1,000 sessions, with a credit of 5: 5,000 messages in flight in all."""

OFFERED_RATE = 1000
"""Messages a second to another queue during a purge."""

PURGE_S_MAX = 60


def _in_turns(
    run: Run,
    name: str,
    kind: str,
    plain: Callable[[], Rates],
    other: Callable[[], Rates],
    aims: Rates | None = None,
) -> None:
    """Run a plain queue and another in turns, in alternating order.

    `aims` are for the other's rates, as shares of the plain one's.
    """
    for turn in range(run.rounds + 2):
        if turn % 2:
            others, plains = other(), plain()
        else:
            plains, others = plain(), other()
        for label, rate in others.items():
            add = run.results.add
            add(name, f"{label} rate, plain queue", "msg/s", "peeklock", plains[label], better="higher")
            add(name, f"{label} rate, {kind}", "msg/s", "peeklock", rate, better="higher")
            ratio, aim = rate / plains[label], (aims or {}).get(label)
            add(name, f"{label} rate, {kind} / plain", "", "peeklock", ratio, better="higher", aim=aim)


def _rates(
    broker: Peeklock,
    messages: int,
    queue: str,
    *options: str,
    receive_from: str | None = None,
    receive_options: tuple[str, ...] = (),
) -> Rates:
    """Send to an empty queue, then receive and complete."""
    sent = drive_queue(broker, "send", messages, *options, queue=queue)
    settle = settle_options(broker)
    received = drive_queue(broker, "recv", messages, *settle, *receive_options, queue=receive_from or queue)
    return {"send": sent.send_rate, "receive + complete": received.receive_rate}


def hand_out_sessions(run: Run) -> None:
    """10,000 available sessions, 100 receivers that take the next one again and again: rate, longest wait."""
    broker = run.fresh_peeklock(SESSIONS)
    active, times = 10_000, 2 if run.quick else 6
    receivers = ("-l", "100", "-R", "4", *settle_options(broker))
    add, of = run.results.add, broker.name
    try:
        broker.start()
        for _ in range(run.rounds):
            for messages in (1, 3):
                count, fill = active * messages * times, ("-k", str(messages))
                load = hand_out(broker.endpoint(), "sessions", count, active, *fill, *receivers)
                name = f"{active:,} sessions of {messages}"
                for label, rate in (("refilled", load.steady_rate), ("drained", load.drain_rate)):
                    measure = f"handed out to 100 receivers while {label}"
                    add(name, measure, "sessions/s", of, rate, better="higher", aim=3000)
                add(name, "wait until handed out, median", "s", of, load.wait_s["p50"])
                add(name, "wait until handed out, longest", "s", of, load.wait_s["max"])
                # No session starves: handed out in the order in which they became available, each comes
                # round as often as all others, or once less.
                fewest = load.times_handed_out["min"]
                measure = f"times handed out, of {times} on average, fewest"
                add(name, measure, "", of, fewest, better="higher", aim=times - 1)
                add(name, "broker CPU", "us/session", of, load.broker_us)
                add(name, "load generator's CPU", "us/session", of, load.client_us)
    finally:
        broker.stop()


def session_rates(run: Run) -> None:
    """A queue with messages of 1,000 sessions beside a plain one, their bodies within the cache."""
    broker = run.fresh_peeklock(SESSIONS)
    sessions, messages = run.scaled(1000), run.scaled(60_000)
    name, in_sessions = "session queue", ("-g", str(sessions))

    def plain() -> Rates:
        return _rates(broker, messages, "bench", *in_sessions)

    def held() -> Rates:
        return _rates(broker, messages, "sessions", *in_sessions, receive_options=(*in_sessions, *HELD))

    def handed_out() -> Rates:
        fill, receivers = ("-k", str(messages // sessions)), ("-l", "8", *settle_options(broker))
        load = hand_out(broker.endpoint(), "sessions", messages, sessions, *fill, *receivers)
        return {"receive + complete": load.receive_rate}

    aims = {"send": 0.8, "receive + complete": 0.8}
    try:
        broker.start()
        _in_turns(run, name, f"{sessions:,} sessions", plain, held, aims)
        _in_turns(run, name, f"8 receivers on the next of {sessions:,} sessions", plain, handed_out, aims)
    finally:
        broker.stop()


def purge(run: Run) -> None:
    """Purge 1,000,000 messages while another queue is offered 1,000 msg/s: time, p99 there, stalls."""
    depth, idle_s = run.scaled(1_000_000), 3 if run.quick else 10
    broker = run.fresh_peeklock({"purged": {}})
    name, add, of = f"purge of {depth:,}", run.results.add, broker.name
    try:
        broker.start()
        for _ in range(run.rounds):
            drive_queue(broker, "send", depth, queue="purged", timeout_s=300)
            endpoint = broker.endpoint()
            with Client(endpoint, PURGE_S_MAX) as client:
                with answer_times(endpoint.port) as idle_answers:
                    idle = drive_queue(broker, "send", OFFERED_RATE * idle_s, "-o", str(OFFERED_RATE))
                with (
                    answer_times(endpoint.port) as answers,
                    offered(endpoint, "bench", OFFERED_RATE, PURGE_S_MAX) as offer,
                ):
                    started = time.perf_counter()
                    answer = client.request("purged", "peeklock:purge-messages", {})
                    seconds = time.perf_counter() - started
            assert answer == {"message-count": depth}, answer
            add(name, "until answered", "s", of, seconds, aim=20)
            p99, idle_p99 = offer.load.latency_us["p99"], idle.latency_us["p99"]
            add(name, "p99 send to accepted of another queue, before", "us", of, idle_p99)
            add(name, "p99 send to accepted of another queue, meanwhile", "us", of, p99)
            add(name, "p99 meanwhile / before", "", of, p99 / idle_p99, aim=3)
            add(name, "longest wait for /health, before", "ms", of, max(idle_answers) * 1e3)
            add(name, "longest wait for /health, meanwhile", "ms", of, max(answers) * 1e3, aim=50)
            drive_queue(broker, "recv", idle.count + offer.load.count, *settle_options(broker))
    finally:
        broker.stop()


def duplicates(run: Run) -> None:
    """Duplicate detection with 1,000,000 ids in its window: bytes an id, send rate beside a plain queue's."""
    ids, probe = run.scaled(1_000_000), run.scaled(60_000)
    window: dict[str, object] = {
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "P1D",
    }
    # One broker for each, so that the ids are the only difference in memory.
    detecting, plain = run.fresh_peeklock({"ids": window}), run.fresh_peeklock({"ids": {}})
    name, portions = f"{ids:,} ids in the window", 10
    with contextlib.ExitStack() as stack:
        for broker in (detecting, plain):
            stack.callback(broker.stop)
            broker.start()
        for _ in range(portions):
            for broker in (detecting, plain):
                settle = settle_options(broker)
                drive_queue(broker, "both", ids // portions, *settle, queue="ids", timeout_s=300)
        time.sleep(2)  # what the last batches left to do
        grown = [rss_bytes(broker.endpoint().pid) for broker in (detecting, plain)]
        add, of = run.results.add, detecting.name
        add(name, "RSS, queue drained", "MB", of, grown[0] / MB)
        add(name, "RSS, plain queue after the same", "MB", of, grown[1] / MB)
        add(name, "memory an id", "bytes", of, (grown[0] - grown[1]) / ids, aim=200)
        _in_turns(
            run,
            name,
            "detecting",
            lambda: _rates(plain, probe, "ids"),
            lambda: _rates(detecting, probe, "ids"),
            {"send": 0.85},
        )


def other_kinds(run: Run) -> None:
    """Partitioned and forwarding queues beside a plain one, and transactions of 2 sends and 1 complete."""
    settings: dict[str, dict[str, object]] = {
        "partitioned": {"EnablePartitioning": True},
        "forwarding": {"ForwardTo": "bench"},
    }
    broker = run.fresh_peeklock(settings)
    messages, transactions, at_once = run.scaled(60_000), run.scaled(5_000), 8
    name, grouped = "other kinds", ("-g", "1000")

    def plain() -> Rates:
        return _rates(broker, messages, "bench", *grouped)

    def partitioned() -> Rates:  # by session id, so over all partitions
        return _rates(broker, messages, "partitioned", *grouped)

    def forwarding() -> Rates:
        return _rates(broker, messages, "forwarding", *grouped, receive_from="bench")

    try:
        broker.start()
        _in_turns(run, name, "partitioned queue", plain, partitioned)
        _in_turns(run, name, "forwarding queue", plain, forwarding)
        payload = encode_message(data=bytes(1024))
        for _ in range(run.rounds):
            drive_queue(broker, "send", transactions)
            with Client(broker.endpoint()) as client:
                rate = transactions / client.transactions("bench", transactions, at_once, payload)
            measure = f"transactions of 2 sends and 1 complete, {at_once} at once, client in Python"
            run.results.add(name, measure, "/s", broker.name, rate, better="higher")
            drive_queue(broker, "recv", 2 * transactions, *settle_options(broker))
    finally:
        broker.stop()


SCENARIOS: dict[str, Callable[[Run], None]] = {
    "hand-out": hand_out_sessions,
    "sessions": session_rates,
    "purge": purge,
    "duplicates": duplicates,
    "other-kinds": other_kinds,
}
