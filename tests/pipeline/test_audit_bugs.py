"""The audit sees in the event log alone what the simulation's checker sees with the clients' eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peeklock.pipeline.audit_checks import Check
from tests.simulation.plan import run_seed

pytestmark = pytest.mark.spark

SEEN = {
    "reused-number": Check.NUMBER_TWICE,
    "uncounted-lapse": Check.WRONG_COUNT,
    "doubled-copy": Check.COPIES_WRONG,
    "disordered-session": Check.SESSION_ORDER,
}
"""Planted bugs that show in what is recorded. Others make the broker tell its clients what is not so: those
need a ledger."""

IN_DELIVERIES = {"disordered-session": "which was given back"}
"""What the simulation has to say of a bug that also shows in a peek, of which there is no event."""

SEEDS_MAX = 60


def test_planted_bugs_are_found_and_named(spark: Any, tmp_path: Path) -> None:
    """Req: X-04"""
    from peeklock.pipeline.audit import Options, run

    logs = {}
    for bug in SEEN:
        for seed in range(SEEDS_MAX):  # each seed once: it names the log's namespace
            if seed in logs:
                continue
            failure = run_seed(seed, bug=bug, events=tmp_path / bug).failure
            if failure is not None and IN_DELIVERIES.get(bug, "") in str(failure):
                logs[seed] = bug
                break
    assert sorted(logs.values()) == sorted(SEEN)
    folders = tuple(str(tmp_path / bug / f"seed-{seed}") for seed, bug in logs.items())
    verdict = run(spark, Options(folders))
    for seed, bug in logs.items():
        finding = verdict.findings.get(SEEN[bug])
        assert finding is not None, (bug, verdict.report())
        assert f"seed-{seed}" in finding.by_namespace, (bug, verdict.report())
