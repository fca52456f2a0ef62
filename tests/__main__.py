"""`python -m tests all|lint|soak`: every check of the project, step by step, with one closing line.

Owns the order and the budgets of the steps. Knows nothing of what they test.

A step is a process of its own. All steps run even when one fails, so that one run shows everything; the exit
status is 1 if any failed. The closing line, `N passed, N failed`, adds up pytest's own counts; a step that is
not pytest counts as one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

PYTHON = sys.executable
PYTEST = (PYTHON, "-m", "pytest", "-q")
CORE = "not interop and not kill and not simulation and not spark"


@dataclass(frozen=True, slots=True)
class Step:
    """One process; `budget_s` is what it should take on 2 cores, and three times that is when it is ended."""

    name: str
    command: tuple[str, ...]
    budget_s: int


LOGS = "{logs}"
"""Stands in commands for a folder that the steps of a run have in common, and that goes with it."""

FOLDERS = {
    "simulation": ("tests/simulation",),
    "kill": ("tests/kill", "tests/capture"),
    "interop": ("tests/interop", "tests/admin", "tests/demo"),
    "spark": ("tests/spark", "tests/pipeline", "tests/demo"),
}
"""Where the tests of a marker are. Named, since collecting all tests costs each process 8 s; a test sees to
it that none is elsewhere."""

AUDITED = ("messages", "transactions", "topics")
"""Kill loops that write event logs."""


def killed(loop: str, *, rounds: int, seed: int, budget_s: int) -> Step:
    """Kill the broker under one loop again and again, while it writes its event log."""
    named = ("--rounds", str(rounds), "--seed", str(seed))
    command = (PYTHON, "-m", "tests.kill", loop, *named, "--capture", f"{LOGS}/kill")
    return Step(f"kill loop, {loop}, seed {seed}", command, budget_s)


LINT = (
    Step("ruff check", (PYTHON, "-m", "ruff", "check", "."), 10),
    Step("ruff format", (PYTHON, "-m", "ruff", "format", "--check", "."), 10),
    Step("mypy", (PYTHON, "-m", "mypy"), 90),
    Step("import contracts", (str(Path(PYTHON).with_name("lint-imports")), "--no-logo"), 30),
)

ALL = (
    *LINT,
    Step("core tests", (*PYTEST, "-n", "2", "-m", CORE), 180),
    Step("simulation tests", (*PYTEST, "-n", "2", "-m", "simulation", *FOLDERS["simulation"]), 60),
    Step(
        "simulation, seeds 0 to 199",
        (PYTHON, "-m", "tests.simulation", "--seeds", "0:200", "--events", f"{LOGS}/simulation"),
        130,
    ),
    Step(
        "kill loops",
        (*PYTEST, "-n", "2", "--dist", "worksteal", "-m", "kill and not spark", *FOLDERS["kill"]),
        60,
    ),
    *(killed(loop, rounds=4, seed=1, budget_s=20) for loop in AUDITED),
    Step(
        "audit of simulated and killed brokers",
        (PYTHON, "-m", "tests.audit", f"{LOGS}/kill", "--drained", f"{LOGS}/simulation"),
        60,
    ),
    # Clients mostly wait, so that more processes than cores pay.
    Step(
        "official client",
        (*PYTEST, "-n", "12", "--dist", "worksteal", "-m", "interop and not clients", *FOLDERS["interop"]),
        120,
    ),
    Step("programs of every client", (PYTHON, "-m", "tests.interop", "--build-only"), 150),
    Step("every client", (*PYTEST, "-m", "clients", "tests/interop/test_every_client.py"), 100),
    # Each process has one Spark session for all of its tests. One process leaves half of the cores idle: the
    # plan of a query takes longer than its tasks.
    Step(
        "spark",
        (*PYTEST, "-n", "2", "--dist", "worksteal", "-m", "spark and not soak", *FOLDERS["spark"]),
        120,
    ),
)

SOAK = (
    Step("simulation, seeds 1000 to 5999", (PYTHON, "-m", "tests.simulation", "--seeds", "1000:6000"), 3000),
    *(killed(loop, rounds=30, seed=seed, budget_s=300) for loop in AUDITED for seed in range(10)),
    Step("long tests of the pipeline", (*PYTEST, "-m", "soak"), 200),
    Step("audit of killed brokers", (PYTHON, "-m", "tests.audit", f"{LOGS}/kill"), 300),
    *(
        Step(
            f"kill loop, spark, seed {seed}",
            (PYTHON, "-m", "tests.kill", "spark", "--rounds", "8", "--seed", str(seed)),
            300,
        )
        for seed in range(6)
    ),
)

SUITES = {"all": ALL, "lint": LINT, "soak": SOAK}


@dataclass(frozen=True, slots=True)
class Result:
    """What one step came to. `passed` and `failed` are tests for pytest, and the step itself otherwise."""

    step: Step
    passed: int
    failed: int
    seconds: float


def run_step(step: Step, logs: str) -> Result:
    """Run one step with its output passed through, and count what it says.

    Args:
        logs: what stands for `LOGS`.
    """
    print(f"== {step.name}", flush=True)
    started = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        [part.replace(LOGS, logs) for part in step.command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        killer = _end_after(process, 3 * step.budget_s)
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            lines.append(line)
        status = process.wait()
        killer.cancel()
    seconds = time.monotonic() - started
    passed, failed = count_outcomes(lines, status) if "pytest" in step.command else (status == 0, status != 0)
    late = f", over its {step.budget_s} s" if seconds > step.budget_s else ""
    print(f"== {step.name}: {'ok' if failed == 0 else 'FAILED'} in {seconds:.1f} s{late}\n", flush=True)
    return Result(step, int(passed), int(failed), seconds)


def count_outcomes(lines: list[str], status: int) -> tuple[int, int]:
    """Read `(passed, failed)` from pytest's closing line; a bad exit status counts as a failure at least.

    Exit status 5 (no test selected) is a failure too: a marker that selects nothing hides a whole suite.
    """
    passed = failed = 0
    for line in reversed(lines):
        counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|errors?)\b", line)}
        if counts and re.search(r" in [\d.]+s", line):
            passed = counts.get("passed", 0)
            failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
            break
    return passed, max(failed, int(status != 0))


def _end_after(process: subprocess.Popen[str], seconds: float) -> Timer:
    timer = Timer(seconds, process.kill)
    timer.daemon = True
    timer.start()
    return timer


def main(arguments: list[str]) -> int:
    """Run the suite named on the command line and print the closing table."""
    if len(arguments) != 1 or arguments[0] not in SUITES:
        print(f"usage: python -m tests {'|'.join(SUITES)}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="peeklock-logs-") as logs:
        results = [run_step(step, logs) for step in SUITES[arguments[0]]]
    for result in results:
        print(f"{result.seconds:8.1f} s  {'ok' if result.failed == 0 else 'FAILED':6}  {result.step.name}")
    failed = sum(result.failed for result in results)
    print(f"{sum(result.passed for result in results)} passed, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
