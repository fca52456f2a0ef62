"""The cost of the event log for the broker that writes one. Peeklock alone.

A broker with an exporter and one without take turns, in alternating order; the quoted figure is the median of
the ratios of a turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bench.run import Run, drive_queue, settle_options
from bench.systems import Peeklock

TICK_US = 10_000
"""CPU times in /proc are in hundredths of a second."""


def event_log(run: Run) -> None:
    """Send, receive and complete, with an event log and without: rates, CPU of broker and exporter, bytes."""
    plain, capturing = run.fresh_peeklock(), run.fresh_peeklock()
    log = capturing.folder / "log"
    capturing.options = ("--capture", str(log))
    messages = run.scaled(100_000)
    name, add, of = "event log", run.results.add, "peeklock"
    exported = 0
    try:
        for broker in (plain, capturing):
            broker.start()
        time.sleep(2)  # the exporter loads its libraries once, which is no cost of messages
        for turn in range(run.rounds + 4):
            first = _rates(plain if turn % 2 == 0 else capturing, messages)
            before = _exporter_us(capturing)
            second = _rates(capturing if turn % 2 == 0 else plain, messages)
            if turn % 2 == 0:
                add(name, "exporter CPU", "us/msg", of, (_exporter_us(capturing) - before) / (2 * messages))
            without, beside = (first, second) if turn % 2 == 0 else (second, first)
            exported += 2 * messages
            for label, value in beside.items():
                is_rate = label.endswith("rate")
                unit, better = ("msg/s", "higher") if is_rate else ("us/msg", "lower")
                add(name, f"{label}, without", unit, of, without[label], better=better)
                add(name, f"{label}, with", unit, of, value, better=better)
                aim = 0.85 if is_rate else None
                add(name, f"{label}, with / without", "", of, value / without[label], better=better, aim=aim)
    finally:
        plain.stop()
        capturing.stop()  # and with it the log is complete
    size_bytes = sum(path.stat().st_size for path in log.rglob("*.parquet"))
    add(name, "log", "bytes/msg", of, size_bytes / exported)


def _rates(broker: Peeklock, messages: int) -> dict[str, float]:
    """Send while receiving and completing, then send, then receive and complete."""
    settle = settle_options(broker)
    both = drive_queue(broker, "both", messages, *settle)
    sent = drive_queue(broker, "send", messages)
    received = drive_queue(broker, "recv", messages, *settle)
    return {
        "end to end rate": both.receive_rate,
        "send, then receive and complete, rate": 2 / (1 / sent.send_rate + 1 / received.receive_rate),
        "end to end broker CPU": both.broker_us,
        "send, then receive and complete, broker CPU": sent.broker_us + received.broker_us,
    }


def _exporter_us(broker: Peeklock) -> float:
    """Return the CPU time of the broker's child processes so far."""
    pid = broker.endpoint().pid
    ticks = 0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime, stime: man 5 proc
    return ticks * TICK_US


SCENARIOS: dict[str, Callable[[Run], None]] = {"event-log": event_log}
