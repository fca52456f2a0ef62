"""Steps of the broker's wall clock in an event log: when its times cannot be compared.

`event_time` is UTC and never goes back while the broker runs, so a span in which the clock was set is wrong.
No lock lasts longer than `UNSURE_MS`: after that, the times of locks are of one clock. A restart uses the
machine's clock, also where that went back: then the first event after the restart is earlier than the last
one before. Source: docs/reference/entities.md, "When the clock is set".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's documentation has it

UNSURE_MS = 5 * 60_000 + 10_000
"""The longest lock plus the longest usual grace."""


@dataclass(frozen=True, slots=True)
class ClockStep:
    """One row `clock_stepped`."""

    namespace: str
    batch_no: int
    at_ms: int


@dataclass(slots=True)
class ClockSteps:
    """All steps in logs, added in order for each namespace."""

    steps: list[ClockStep] = field(default_factory=list)
    back_ms: dict[str, int] = field(default_factory=dict)
    """By namespace: how far its clock went back in all."""
    _ahead_ms: dict[str, int] = field(default_factory=dict)
    """How far the log's times are ahead of the time passed since the broker's last start."""

    def stepped(self, namespace: str, batch_no: int, at_ms: int, reason: str | None) -> None:
        """Add a row `clock_stepped`."""
        self.steps.append(ClockStep(namespace, batch_no, at_ms))
        ahead_ms = json.loads(reason or "{}").get("due_ahead_ms", 0)
        self._went_back(namespace, self._ahead_ms.get(namespace, 0) - ahead_ms)
        self._ahead_ms[namespace] = ahead_ms

    def started(self, namespace: str, at_ms: int, last_ms: int) -> None:
        """Add a start of the broker; the last event before it was at `last_ms`."""
        self._went_back(namespace, last_ms - at_ms)
        self._ahead_ms.pop(namespace, None)

    def last_ms(self, namespace: str) -> int:
        """Return the time of the last step, 0 = none."""
        return next((step.at_ms for step in reversed(self.steps) if step.namespace == namespace), 0)

    def _went_back(self, namespace: str, by_ms: int) -> None:
        if by_ms > 0:
            self.back_ms[namespace] = self.back_ms.get(namespace, 0) + by_ms


def sure_ms(clocks: ClockSteps, event_ms: Column) -> Column:
    """Return the time of events, null where it cannot be compared with earlier times."""
    unsure = [
        (F.col("namespace") == step.namespace)
        & (F.col("batch_no") >= step.batch_no)
        & (event_ms <= step.at_ms + UNSURE_MS)
        for step in clocks.steps
    ]
    return F.when(~reduce(Column.__or__, unsure), event_ms) if unsure else event_ms


def went_back_ms(clocks: ClockSteps) -> Column:
    """Return in ms how far the clock of a row's namespace went back: enqueued times may be ahead by that."""
    went = [F.when(F.col("namespace") == namespace, back_ms) for namespace, back_ms in clocks.back_ms.items()]
    return F.coalesce(*went, F.lit(0))
