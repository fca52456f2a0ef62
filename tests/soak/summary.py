"""The page of results of a soak.

Owns: its text. Must not know: how anything was measured.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from statistics import median

from tests.soak.conductor import Outcome
from tests.soak.growth import AGES_S, BOUNDS, Comparison
from tests.soak.plan import Kind


def verdict(outcome: Outcome, comparisons: Sequence[Comparison]) -> list[str]:
    """Return why a run has failed; empty = it has not."""
    return [
        *outcome.failures,
        *(
            f"{one.figure} grows {one.where}: from {one.earlier:.1f} to {one.later:.1f}"
            for one in comparisons
            if one.grows
        ),
    ]


def markdown(outcome: Outcome, comparisons: Sequence[Comparison], picture: str) -> str:
    """Return the page."""
    failed = verdict(outcome, comparisons)
    counts = Counter(mark.kind for mark in outcome.marks)
    accepted = sum(figures.get("accepted", 0) for figures in outcome.figures.values())
    lines = [
        "## The last run",
        "",
        f"`./run soak --minutes {outcome.minutes:g} --seed {outcome.seed}`, on "
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}.",
        "",
        f"**{'FAILED' if failed else 'Passed'}** after {outcome.seconds / 60:.1f} minutes"
        + (" (interrupted)" if outcome.interrupted else "")
        + ".",
        *(f"\n- {reason}" for reason in failed),
        "",
        f"![What the broker used over time]({picture})",
        "",
        "| what happened | times |",
        "|---|---:|",
        *(f"| {kind} | {counts[kind]} |" for kind in Kind),
        f"| start, {median(outcome.starts_s or [0]):.1f} s in the median, "
        f"{max(outcome.starts_s, default=0):.1f} s at most | {len(outcome.starts_s)} |",
        f"| message accepted by the broker | {accepted:,} |",
        "",
    ]
    if outcome.without_clock:
        lines += ["faketime is not installed: the clock was not set.", ""]
    lines += ["| client | what it counts |", "|---|---|"]
    for client, figures in outcome.figures.items():
        lines.append(f"| {client} | {', '.join(f'{count:,} {name}' for name, count in figures.items())} |")
    lines += [
        "",
        f"Medians of the second third and of the last third, of samples at ages from {AGES_S[0]:g} to "
        f"{AGES_S[1]:g} s of each life, and within the longest life:",
        "",
        "| figure | across lives | within a life | may grow by |",
        "|---|---:|---:|---:|",
        *_table(comparisons),
    ]
    return "\n".join(lines) + "\n"


def _table(comparisons: Sequence[Comparison]) -> list[str]:
    found = {(one.figure, one.where): one for one in comparisons}
    lines = []
    for figure, bound in BOUNDS.items():
        cells = [_cell(found.get((figure, where))) for where in ("across lives", "within a life")]
        allowed = f"{(bound.factor - 1) * 100:.0f} % and {bound.slack:g}"
        lines.append(f"| {figure} | {cells[0]} | {cells[1]} | {allowed} |")
    return lines


def _cell(one: Comparison | None) -> str:
    if one is None or one.earlier is None or one.later is None:
        return "too short"
    return f"{one.earlier:.1f} → {one.later:.1f}" + (" **grows**" if one.grows else "")
