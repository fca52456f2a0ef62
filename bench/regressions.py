"""CPU figures that are higher than in the last committed run, independent of the machine's present speed.

Owns: the comparison. Must not know: what is measured.

A figure is divided by the time of the calibration loop beside it. The medians of these ratios are compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.results import Row

ALLOWED = 0.10
"""Allowed growth: two runs of the same code differ by that much."""

OURS = "peeklock"

Committed = dict[str, Any]
"""A results.json."""


def committed(path: Path) -> Committed | None:
    """Return the last committed version of a file of results; None where there is none."""
    command = ["git", "show", f"HEAD:./{path.name}"]
    try:
        done = subprocess.run(command, cwd=path.parent, capture_output=True, check=True)
        found: Committed = json.loads(done.stdout)
    except (OSError, subprocess.CalledProcessError, json.JSONDecodeError):
        return None
    return found


def compare(rows: Iterable[Row], before: Committed | None, python: str) -> list[str]:
    """Return lines that name each CPU figure of peeklock that has grown by more than is allowed.

    Args:
        rows: of this run.
        before: the last committed run.
        python: the interpreter of this run.
    """
    medians = {(row["scenario"], row["measure"]): _then(row) for row in before["rows"]} if before else {}
    compared, worse = 0, []
    for row in rows:
        then = medians.get((row.scenario, row.measure))
        now = _relative(row.samples.get(OURS, []), row.loops_s.get(OURS, []))
        if not is_cpu(row.unit) or then is None or now is None:
            continue
        compared += 1
        if now > then * (1 + ALLOWED):
            worse.append(f"  {row.scenario}, {row.measure}: {now / then:.2f} times as much")
    if before is None or not compared:
        return ["no CPU figure of the last committed run has its calibration: nothing to compare with"]
    than = f"than in the last committed run ({before['machine']['python']})"
    if before["machine"]["python"] == python:
        than = "than in the last committed run"
    if not worse:
        return [f"none of {compared} CPU figures is over {ALLOWED:.0%} higher {than}"]
    return [f"{len(worse)} of {compared} CPU figures are over {ALLOWED:.0%} higher {than}:", *worse]


def is_cpu(unit: str) -> bool:
    """Return whether figures of this unit are CPU time: microseconds a message, a session, a copy."""
    return unit.startswith("us/")


def _then(row: dict[str, Any]) -> float | None:
    return _relative(row["samples"].get(OURS, []), row.get("loops_s", {}).get(OURS, []))


def _relative(samples: list[float], loops_s: list[float]) -> float | None:
    """Return the median of CPU time in units of the loop; None where a time of the loop is missing."""
    if not samples or len(samples) != len(loops_s):
        return None
    return statistics.median(sample / loop for sample, loop in zip(samples, loops_s, strict=True))
