"""The cost of what a broker records of its own work: the frames before an error. Peeklock alone.

A broker that records and one that does not take turns, in alternating order; the quoted figure is the median
of the ratios of a turn.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.run import Run, drive_queue, settle_options
from bench.systems import Peeklock

TURNS = 8
"""Our choice: the ratio of one turn varies by 5 %."""


def trace_frames(run: Run) -> None:
    """Send, receive and complete, with `--trace-frames` and without: the broker's CPU."""
    plain, recording = run.fresh_peeklock(), run.fresh_peeklock()
    recording.options = ("--trace-frames", str(recording.folder / "traces"))
    _compare(run, "frames before an error", plain, recording, aim=1.05)


def _compare(run: Run, name: str, plain: Peeklock, recording: Peeklock, aim: float) -> None:
    messages = run.scaled(60_000)
    try:
        for broker in (plain, recording):
            broker.start()
            _cpu_us(broker, messages)  # fills caches
        for turn in range(TURNS):
            order = (plain, recording) if turn % 2 == 0 else (recording, plain)
            cpu_us = {broker.folder: _cpu_us(broker, messages) for broker in order}
            without, beside = cpu_us[plain.folder], cpu_us[recording.folder]
            run.results.add(name, "broker CPU, without", "us/msg", "peeklock", without)
            run.results.add(name, "broker CPU, with", "us/msg", "peeklock", beside)
            run.results.add(name, "broker CPU, with / without", "", "peeklock", beside / without, aim=aim)
    finally:
        plain.stop()
        recording.stop()


def _cpu_us(broker: Peeklock, messages: int) -> float:
    return drive_queue(broker, "both", messages, *settle_options(broker)).broker_us


SCENARIOS: dict[str, Callable[[Run], None]] = {"trace-frames": trace_frames}
