"""Whether something grows: a pure judge of samples.

Owns: the comparisons and their bounds. Must not know: where samples come from.

Theory of operation. A fresh process is small, so samples are compared only with those of the same age. Two
questions are asked of each figure:

    across lives    samples of all lives at the same ages: the last third of the run against the second third
    within a life   the longest life: its last third against its second third

The medians are compared. The first third is left out: caches and indexes fill in it. A figure grows when the
later median is above `factor` times the earlier one plus `slack`: by so much medians differ in runs in which
nothing grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.soak.watch import Sample

AGES_S = (5.0, 60.0)
"""Ages that are compared across lives: most lives reach them."""

SAMPLES_MIN = 6
"""Samples that a third needs: fewer have no median worth comparing."""

LIFE_S_MIN = 120.0
"""A life within which growth is judged."""

RUN_S_MIN = 600.0
"""A run over whose lives growth is judged: shorter ones have a few lives, which do different things."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What is allowed of one figure."""

    factor: float
    slack: float


BOUNDS = {
    "memory, MB": Bound(1.10, 8),
    "memory of the exporter, MB": Bound(1.15, 16),
    "open files": Bound(1.10, 8),
    "data folder, MB": Bound(1.25, 16),
    "longest turn, ms": Bound(1.5, 40),
    "loop lag, ms": Bound(1.5, 10),
    "send p50, ms": Bound(1.5, 3),
    "send p99, ms": Bound(1.5, 30),
    "messages held": Bound(1.5, 300),
    "sessions": Bound(1.25, 10),
    "connections": Bound(1.25, 10),
    "entities": Bound(1.0, 12),
    "CPU, % of a core": Bound(1.35, 8),
}
"""Memory wavers by the size of batches, the disk by what is not reclaimed yet, times by what else the machine
does. A leak of 1 % of the messages would show in an hour: 10,000 of them are about 10 MB. Each reload adds an
entity and removes one, so that their number is constant but for the queues in between."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure, earlier and later."""

    figure: str
    where: str
    earlier: float | None
    """None: too few samples to judge."""
    later: float | None

    @property
    def grows(self) -> bool:
        """Whether the later median is above the bound."""
        bound = BOUNDS[self.figure]
        return (
            self.earlier is not None
            and self.later is not None
            and self.later > self.earlier * bound.factor + bound.slack
        )


def compare(samples: Sequence[Sample], span_s: float) -> list[Comparison]:
    """Return all comparisons of a run of `span_s`."""
    found = []
    same_age = [sample for sample in samples if AGES_S[0] <= sample.age_s <= AGES_S[1]]
    longest = _longest_life(samples)
    for figure in BOUNDS:
        placed = [(s.at_s / span_s, s) for s in same_age] if span_s >= RUN_S_MIN else []
        found.append(_compare(figure, "across lives", placed))
        if longest:
            age_s = longest[-1].age_s
            found.append(_compare(figure, "within a life", [(s.age_s / age_s, s) for s in longest]))
    return found


def _longest_life(samples: Sequence[Sample]) -> list[Sample]:
    lives: dict[int, list[Sample]] = {}
    for sample in samples:
        lives.setdefault(sample.life, []).append(sample)
    longest = max(lives.values(), key=lambda life: life[-1].age_s, default=[])
    return longest if longest and longest[-1].age_s >= LIFE_S_MIN else []


def _compare(figure: str, where: str, placed: Sequence[tuple[float, Sample]]) -> Comparison:
    """Compare the thirds of samples that are placed on a scale from 0 to 1."""
    thirds = [
        [sample.values[figure] for share, sample in placed if low <= share < high and figure in sample.values]
        for low, high in ((1 / 3, 2 / 3), (2 / 3, float("inf")))
    ]
    if any(len(third) < SAMPLES_MIN for third in thirds):
        return Comparison(figure, where, None, None)
    return Comparison(figure, where, median(thirds[0]), median(thirds[1]))
