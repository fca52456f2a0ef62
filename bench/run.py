"""One run of the benchmarks: which systems take part, where, how much is done, and how they are driven.

Owns: turns and sizes. Must not know: a scenario.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench.loadgen import Load, LoadFailed, drive
from bench.results import Results
from bench.systems import Peeklock, Settings, StartFailed, System, Topics

MB = 1_000_000  # the aims are in decimal megabytes

WARM_MESSAGES = 5_000
"""Messages of each portion that warms a broker up."""


@dataclass(slots=True)
class Run:
    """One run of the benchmarks: its systems, its folder, its size."""

    folder: Path
    systems: list[System]
    quick: bool
    results: Results = field(default_factory=Results)
    numbers: count[int] = field(default_factory=count)
    warmed: list[System] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return 1 if self.quick else 3

    def scaled(self, full: int) -> int:
        """Return the number of messages of a step: a tenth in a quick run."""
        return full // 10 if self.quick else full

    def fresh_peeklock(
        self,
        settings: Settings | None = None,
        topics: Topics | None = None,
        options: tuple[str, ...] = (),
    ) -> Peeklock:
        """Return a broker on its own empty folder; the scenario stops it.

        It has the queue `bench`, those for which there are settings, by name, and the topics.
        """
        folder = self.folder / f"fresh-{next(self.numbers)}"
        return Peeklock(folder, ("bench", *(settings or {})), settings or {}, topics or {}, options)

    def prepare(self, system: System) -> None:
        """Start a broker and, the first time, drive it until it is warm."""
        system.start()
        if any(known is system for known in self.warmed):
            return
        warm_up(system, system.warm_s / 10 if self.quick else system.warm_s)
        self.warmed.append(system)

    def left_out(self, scenario: str, error: Exception) -> None:
        """Record what could not be measured, and why."""
        self.results.left_out.append(f"{scenario}: {error}")
        print(f"  {scenario}: FAILED: {error}", flush=True)

    def each(self, scenario: str, step: Callable[[System], None]) -> None:
        """Run a step on the systems in turns; one that fails is named, and left out from then on."""
        taking_part = list(self.systems)
        for _ in range(self.rounds):
            for system in list(taking_part):
                try:
                    self.prepare(system)
                    step(system)
                except (LoadFailed, StartFailed) as error:
                    self.left_out(f"{scenario}: {system.name}", error)
                    taking_part.remove(system)


def settle_options(system: System) -> tuple[str, ...]:
    """Return options of the load generator to settle each message separately and wait for the answer.

    RabbitMQ refuses receiver-settle-mode second, but answers the same dispositions on a link in mode first.
    Artemis answers none: its clients settle by themselves, and so does the load generator there.
    """
    return ("-i", *system.answers)


def warm_up(system: System, seconds: float) -> None:
    """Drive a broker for a while: caches fill, and a virtual machine compiles hot code."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        drive_queue(system, "both", WARM_MESSAGES, *settle_options(system))


def offer_1000(system: System, messages: int) -> Load:
    """Offer 1,000 messages a second to a queue; latencies count from the time at which a send is due."""
    return drive_queue(system, "send", messages, "-o", "1000")


def drive_queue(
    system: System, mode: str, messages: int, *options: str, queue: str = "bench", timeout_s: float = 120
) -> Load:
    """Drive one queue of a system."""
    return drive(system.endpoint(), system.address(queue), mode, messages, *options, timeout_s=timeout_s)
