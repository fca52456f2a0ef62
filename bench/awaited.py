"""What programs see that wait for each answer: one sender or handler, and eight.

Owns: these patterns. Must not know: bytes; the load generator writes what .NET's client does.

Windows of 1,000 measure what a broker can take; most programs await each send, and handle one message after
the other. Eight senders are eight connections. Eight handlers are one processor: they share a link, as in
.NET, and its credit is the number of those who wait.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.loadgen import Load
from bench.run import Run, drive_queue, settle_options
from bench.systems import Peeklock, System

SENDERS = ("1 awaiting sender", "8 awaiting senders")
HANDLERS = ("1 handler", "8 handlers")
PATTERNS = (*SENDERS, *HANDLERS)

MESSAGES = 10_000
"""Of each pattern."""


def measure(system: System, messages: int) -> dict[str, Load]:
    """Drive a queue by each pattern, and leave it empty.

    Latencies are from a send to its answer, and from a handler's request for a message to the answer to its
    complete.
    """
    found: dict[str, Load] = {}
    for sender, handler, number in zip(SENDERS, HANDLERS, ("1", "8"), strict=True):
        found[sender] = drive_queue(system, "send", messages, "-w", "1", "-S", number)
        found[handler] = drive_queue(system, "recv", messages, "-H", number, *settle_options(system))
    return {pattern: found[pattern] for pattern in PATTERNS}


def awaited(run: Run) -> None:
    """Send and complete with 1 and with 8 programs that await each answer; peeklock without fsync, too."""
    messages = run.scaled(MESSAGES)
    unsynced = run.fresh_peeklock(options=("--durability", "os"))

    def step(system: System) -> None:
        _add(run, "awaited", system, measure(system, messages))
        if isinstance(system, Peeklock):
            _add(run, "awaited, --durability os", unsynced, measure(unsynced, messages))

    try:
        run.prepare(unsynced)
        run.each("awaited", step)
    finally:
        unsynced.stop()


def _add(run: Run, name: str, system: System, loads: dict[str, Load]) -> None:
    add, of = run.results.add, system.name
    for pattern, load in loads.items():
        add(name, f"{pattern}, broker CPU", "us/msg", of, load.broker_us)
        rate = load.send_rate if pattern in SENDERS else load.receive_rate
        add(name, f"{pattern}, rate", "msg/s", of, rate, better="higher")
        for percentile in ("p50", "p99"):
            add(name, f"{pattern}, {percentile}", "us", of, load.latency_us[percentile])


SCENARIOS: dict[str, Callable[[Run], None]] = {"awaited": awaited}
