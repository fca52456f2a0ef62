"""Results: rows of samples, with their aims.

Owns: what a row is. Must not know: how it is measured or shown.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Row:
    """One measure, with its samples by system.

    `aim` is for peeklock's median: at most that where `better` is "lower", else at least that.
    """

    scenario: str
    measure: str
    unit: str
    better: str
    aim: float | None = None
    aim_ratio: float | None = None  # at least so many times RabbitMQ's quorum queue
    samples: dict[str, list[float]] = field(default_factory=dict)
    loops_s: dict[str, list[float]] = field(default_factory=dict)
    """For each sample: the time of the calibration loop then. Empty without calibration."""

    def median(self, system: str) -> float | None:
        """Return the median of a system's samples; None if it has none."""
        values = self.samples.get(system)
        return statistics.median(values) if values else None


@dataclass(slots=True)
class Results:
    """Rows in order of first mention, and what could not be measured."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    calibrate: Callable[[], float] | None = None
    """Returns the present time of the calibration loop."""

    def add(
        self,
        scenario: str,
        measure: str,
        unit: str,
        system: str,
        value: float,
        *,
        better: str = "lower",
        aim: float | None = None,
        aim_ratio: float | None = None,
    ) -> None:
        """Add a sample and print it."""
        row = self.rows.setdefault((scenario, measure), Row(scenario, measure, unit, better, aim, aim_ratio))
        row.samples.setdefault(system, []).append(value)
        if self.calibrate is not None:
            row.loops_s.setdefault(system, []).append(self.calibrate())
        print(f"  {scenario}: {system}: {measure} {value:,.4g} {unit}", flush=True)
