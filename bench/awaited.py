"""Programs that wait for each answer: one sender or handler, and eight.

Owns: these patterns. Must not know: bytes; the load generator writes what .NET's client does.

Windows of 1,000 measure the capacity of a broker; most programs await each send, and handle one message after
the other. Eight senders are eight connections. Eight handlers are one processor: they share a link, as in
.NET, and its credit is the number of waiting handlers.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.loadgen import Load
from bench.run import Run, drive_queue, settle_options
from bench.systems import Peeklock, RabbitQueue, System

PATTERNS: dict[str, tuple[str, ...]] = {
    "1 awaiting sender": ("-w", "1"),
    "1 handler": ("-H", "1"),
    "8 awaiting senders": ("-w", "1", "-S", "8"),
    "8 handlers": ("-H", "8"),
}
"""By name: options of the load generator. Handlers take what the senders before them have sent."""

CROSSING = ("8 handlers",)
"""Patterns where requests and deliveries cross on their way: RabbitMQ 3 then exceeds the credit."""

MESSAGES = 10_000
"""Messages of each pattern."""


def drive_pattern(system: System, pattern: str, messages: int) -> Load:
    """Drive a queue by one pattern.

    Latencies are from a send to its answer, and from a handler's request for a message to the answer to its
    complete.
    """
    if sends(pattern):
        return drive_queue(system, "send", messages, *PATTERNS[pattern])
    return drive_queue(system, "recv", messages, *PATTERNS[pattern], *settle_options(system))


def sends(pattern: str) -> bool:
    """Return whether a pattern is one of senders."""
    return "sender" in pattern


def awaited(run: Run) -> None:
    """Send and complete with 1 and with 8 programs that await each answer; peeklock without fsync, too."""
    messages = run.scaled(MESSAGES)
    unsynced = run.fresh_peeklock(options=("--durability", "os"))

    def drive_all(name: str, system: System) -> None:
        for pattern in PATTERNS:
            if isinstance(system, RabbitQueue) and pattern in CROSSING:
                drive_queue(system, "recv", messages, *settle_options(system))
            else:
                _add(run, name, pattern, system, drive_pattern(system, pattern, messages))

    def step(system: System) -> None:
        drive_all("awaited", system)
        if isinstance(system, Peeklock):
            drive_all("awaited, --durability os", unsynced)

    try:
        run.prepare(unsynced)
        run.each("awaited", step)
    finally:
        unsynced.stop()


def _add(run: Run, name: str, pattern: str, system: System, load: Load) -> None:
    add, of = run.results.add, system.name
    add(name, f"{pattern}, broker CPU", "us/msg", of, load.broker_us)
    rate = load.send_rate if sends(pattern) else load.receive_rate
    add(name, f"{pattern}, rate", "msg/s", of, rate, better="higher")
    for percentile in ("p50", "p99"):
        add(name, f"{pattern}, {percentile}", "us", of, load.latency_us[percentile])


SCENARIOS: dict[str, Callable[[Run], None]] = {"awaited": awaited}
