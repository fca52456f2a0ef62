"""Steps of the broker's wall clock, as an event log tells them.

Owns: when times of the log cannot be compared with each other. Must not know: lives, how an event is judged.

`event_time` is UTC and never goes back while the broker runs, so it says nothing about how long something
took when the clock was set meanwhile. No lock lasts for longer than `UNSURE_MS`: after that, the times of
locks are of one clock. A restart goes by the machine's clock, also where that went back: then the first event
of the broker's new life is earlier than the last one before.
Source: docs/reference/entities.md, "When the clock is set".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

UNSURE_MS = 5 * 60_000 + 10_000
"""The longest lock, and the longest grace that is usual."""


@dataclass(frozen=True, slots=True)
class ClockStep:
    """One row `clock_stepped`."""

    namespace: str
    batch_no: int
    at_ms: int


@dataclass(slots=True)
class ClockSteps:
    """All steps in some logs; told of in order, those of each namespace."""

    steps: list[ClockStep] = field(default_factory=list)
    back_ms: dict[str, int] = field(default_factory=dict)
    """By how much the clock of a namespace went back in all."""
    _ahead_ms: dict[str, int] = field(default_factory=dict)
    """How far the times of the log are ahead of the time that passed since the broker's last start."""

    def stepped(self, namespace: str, batch_no: int, at_ms: int, reason: str | None) -> None:
        """Read a row."""
        self.steps.append(ClockStep(namespace, batch_no, at_ms))
        ahead_ms = json.loads(reason or "{}").get("due_ahead_ms", 0)
        self._went_back(namespace, self._ahead_ms.get(namespace, 0) - ahead_ms)
        self._ahead_ms[namespace] = ahead_ms

    def started(self, namespace: str, at_ms: int, last_ms: int) -> None:
        """The broker starts; the last event before was at `last_ms`."""
        self._went_back(namespace, last_ms - at_ms)
        self._ahead_ms.pop(namespace, None)

    def last_ms(self, namespace: str) -> int:
        """Return when the last step was, 0 = never."""
        return next((step.at_ms for step in reversed(self.steps) if step.namespace == namespace), 0)

    def _went_back(self, namespace: str, by_ms: int) -> None:
        if by_ms > 0:
            self.back_ms[namespace] = self.back_ms.get(namespace, 0) + by_ms


def sure_ms(clocks: ClockSteps, event_ms: Column) -> Column:
    """Return the time of events, null where it cannot be compared with that of what went before."""
    unsure = [
        (F.col("namespace") == step.namespace)
        & (F.col("batch_no") >= step.batch_no)
        & (event_ms <= step.at_ms + UNSURE_MS)
        for step in clocks.steps
    ]
    return F.when(~reduce(Column.__or__, unsure), event_ms) if unsure else event_ms


def went_back_ms(clocks: ClockSteps) -> Column:
    """Return by how much the clock of a row's namespace went back in all, in ms: so far enqueued times may be
    ahead of arrivals."""
    went = [F.when(F.col("namespace") == namespace, back_ms) for namespace, back_ms in clocks.back_ms.items()]
    return F.coalesce(*went, F.lit(0))
