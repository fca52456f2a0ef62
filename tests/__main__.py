"""`python -m tests test|rest|lint|compiled|soak`: the checks of the project, step by step, with one total.

Owns the order and the target times of the steps. Knows nothing of their content.

Each step is a process. All steps run even when one fails, so that one run shows everything; the exit status
is 1 if any failed. The closing line, `N passed, N failed`, adds up pytest's own counts; a step that is not
pytest counts as one.

A suite has lanes, which run side by side, so that one computes while another waits.
The output of the step that began first is shown as it comes, that of the others when it is their turn.

Time: each step has an aim in seconds. A step over its aim is marked in the closing table and does not fail: a
machine may be slow. A step that hangs fails. A test that hangs ends by pytest's own timeout; a step of any
kind is ended when it writes nothing for `SILENCE_S_MAX`. The closing table also shows the seconds of CPU, the
real cost of a step: its wall time depends on what runs beside it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PYTHON = sys.executable
MODULE = (PYTHON, "-X", "faulthandler", "-m")
"""Command prefix of a module that prints the stack of each thread when SIGABRT ends it."""

COUNTED = (PYTHON, "-m", "tests.cost")
"""Command prefix that prints the CPU time of the step as its last line."""

PYTEST = (*MODULE, "pytest", "-q")
CORE = "not page and not interop and not kill and not simulation and not spark and not long and not soak"
STARTING = ("tests/server", "tests/cli")
"""Folders of core tests that mostly start processes and wait for them."""

DECIDING = ("tests/broker", "tests/gateway", "tests/amqp", "tests/engine", "tests/fuzz", "tests/rules")
"""Folders of core tests that compute alone."""

ELSEWHERE = tuple(
    f"--ignore={folder}"
    for folder in (*STARTING, *DECIDING, "tests/interop", "tests/kill", "tests/simulation")
)
"""Folders of core tests of another step, and those in which every test has a marker of another one."""

LONG_CORE = "long and not page and not interop and not kill and not simulation and not spark"
SPARK = "spark and not long and not soak"

SILENCE_S_MAX = 600.0
"""A step that writes nothing for so long hangs. Our choice: longer than any limit inside a step (300 s of a
build, 400 s of the first test of a client, at most 480 s of another test), so that those come first and name
the place. On a quiet machine no step is silent for more than 60 s."""

LAST_WORDS_S_MAX = 10.0
"""Time between the request to end a step and its kill. Our choice."""


@dataclass(frozen=True, slots=True)
class Step:
    """One process; `aim_s` is its target time on a quiet machine of 2 cores."""

    name: str
    command: tuple[str, ...]
    aim_s: int


Lane = tuple[Step, ...]
Lanes = tuple[Lane, ...]

LOGS = "{logs}"
"""Placeholder in commands for a folder that the steps of a run share; it is removed at the end."""

FOLDERS = {
    "simulation": ("tests/simulation",),
    "kill": ("tests/kill", "tests/capture"),
    "page": ("tests/explorer",),
    "interop": ("tests/interop", "tests/admin", "tests/demo"),
    "spark": ("tests/demo", "tests/pipeline", "tests/spark", "tests/client"),  # the longest test first
    "long": (
        "tests/deploy",
        "tests/faults",
        "tests/server",
        "tests/store",
        "tests/broker",
        "tests/fuzz",
        "tests/docs",
    ),
}
"""Folder of each marker's tests; of `long`, those without another of these markers. Named, since to collect
all tests costs each process 26 s of CPU; a test checks that no test of a marker is elsewhere."""

COMPILED_FOLDERS = (
    "form",
    "amqp",
    "broker",
    "engine",
    "gateway",
    "store",
    "server",
    "rest",
    "client",
    "fuzz",
)
"""Folders of tests of what is compiled, and of what stands on it."""

COMPILED_FOLDERS_IN_CI = ("form", "amqp", "broker", "engine", "gateway", "client")
"""Of these, in CI."""

AUDITED = ("messages", "transactions", "topics")
"""Kill loops that write event logs; `http` does too, in the soak."""


def killed(loop: str, *options: str, rounds: int, seed: int, aim_s: int) -> Step:
    """Return the step that runs one kill loop while its broker writes an event log."""
    named = ("--rounds", str(rounds), "--seed", str(seed))
    command = (*MODULE, "tests.kill", loop, *named, *options, "--capture", f"{LOGS}/kill")
    return Step(" ".join((f"kill loop, {loop},", *options, f"seed {seed}")), command, aim_s)


def simulated(first: int, last: int, aim_s: int) -> Step:
    """Return the step that runs seeds from `first` to `last` while their brokers write event logs."""
    seeds = ("--seeds", f"{first}:{last + 1}", "--events", f"{LOGS}/simulation")
    return Step(f"simulation, seeds {first} to {last}", (*MODULE, "tests.simulation", *seeds), aim_s)


def compiled(level: str, *steps: Step) -> Lane:
    """Return steps over the core as the C compiler optimizes it at this level; the first one builds it.

    Their event logs are apart from those of the pure form.
    """
    program = "import peeklock; assert peeklock.FORM == 'compiled'"
    found = []
    for step in (Step("the core builds and runs", (PYTHON, "-c", program), 60), *steps):
        command = (part.replace(LOGS, f"{LOGS}/compiled") for part in step.command)
        over = (*MODULE, "tests.compiled", level, *command)
        found.append(Step(f"compiled -O{level}: {step.name}", over, step.aim_s))
    return tuple(found)


LINT = (
    Step("ruff check", (*MODULE, "ruff", "check", "."), 10),
    Step("ruff format", (*MODULE, "ruff", "format", "--check", "."), 10),
    Step("mypy", (*MODULE, "mypy"), 30),
    Step("import contracts", (str(Path(PYTHON).with_name("lint-imports")), "--no-logo"), 10),
)

# Each process of a step collects all of its tests, and compiles them in a fresh clone. So tests that compute
# alone have one.
DECISIONS = (
    Step("core tests of decisions", (*PYTEST, "-m", CORE, *DECIDING), 250),
    Step(
        "simulation tests", (*PYTEST, "-n", "2", "-m", "simulation and not long", *FOLDERS["simulation"]), 60
    ),
    simulated(0, 11, aim_s=15),
)
"""Steps of pure packages."""

OTHERS = (
    Step("core tests", (*PYTEST, "-m", CORE, *ELSEWHERE), 250),
    *LINT,
    Step(
        "kill loops",
        (*PYTEST, "-n", "2", "--dist", "worksteal", "-m", "kill and not spark", *FOLDERS["kill"]),
        120,
    ),
)
"""Steps of which the last one mostly waits."""

STARTS = (
    Step("core tests of processes", (*PYTEST, "-n", "2", "-m", CORE, *STARTING), 250),
    Step(
        "explorer page",
        (*PYTEST, "-n", "2", "--dist", "loadfile", "-m", "page and not long", *FOLDERS["page"]),
        200,
    ),
)
"""Steps that start a process for most tests, or show a page for each."""

PEERS = (
    # Clients mostly wait, so that more processes than cores pay. Each collects the tests: 8 s of CPU.
    Step(
        "official client",
        (
            *PYTEST,
            "-n",
            "4",
            "--dist",
            "worksteal",
            "-m",
            "interop and not clients and not long and not soak",
            *FOLDERS["interop"],
        ),
        240,
    ),
    # Each process has one Spark session for all of its tests. One process leaves half of the cores idle:
    # the plan of a query takes longer than its tasks.
    Step(
        "spark",
        (*PYTEST, "-n", "2", "--dist", "worksteal", "-m", SPARK, *FOLDERS["spark"]),
        220,
    ),
)
"""Steps of programs that talk to a broker; the last one keeps both cores busy, and ends last."""

OLDEST = Step("oldest Spark", (*MODULE, "tests.spark.matrix", "--oldest"), 120)

AUDITS = (
    simulated(12, 47, aim_s=40),
    *(killed(loop, rounds=4, seed=1, aim_s=20) for loop in AUDITED),
    Step(
        "audit of simulated and killed brokers",
        (*MODULE, "tests.audit", f"{LOGS}/kill", "--drained", f"{LOGS}/simulation"),
        100,
    ),
)

SPARK_QUERIES = (
    Step("long tests of Spark", (*PYTEST, "-m", "spark and long", *FOLDERS["spark"]), 180),
    OLDEST,
)
"""One session of Spark at a time, which leaves half of the cores to others."""

LONG = (
    Step("planted bugs", (*PYTEST, "-n", "2", "-m", "simulation and long", *FOLDERS["simulation"]), 40),
    # By file: the root file system of the image, say, is made for all tests of a file.
    Step(
        "long core tests", (*PYTEST, "-n", "2", "--dist", "loadfile", "-m", LONG_CORE, *FOLDERS["long"]), 210
    ),
    Step("long tests of clients", (*PYTEST, "-m", "interop and long and not clients", "tests/interop"), 90),
)

CLIENTS = (
    # Their builds take most of it.
    Step("every client", (*PYTEST, "-m", "clients", "tests/interop"), 180),
)

SOAK = (
    simulated(48, 199, aim_s=200),
    Step("simulation, seeds 200 to 5999", (*MODULE, "tests.simulation", "--seeds", "200:6000"), 3400),
    *(
        Step(
            f"simulation, {nodes} nodes, seeds 0 to 499",
            (*MODULE, "tests.simulation", "--nodes", str(nodes), "--seeds", "0:500"),
            600,
        )
        for nodes in (2, 3)
    ),
    *(killed(loop, rounds=30, seed=seed, aim_s=300) for loop in (*AUDITED, "http") for seed in range(10)),
    # Of `os` too: acknowledged messages outlive the process, since the page cache does.
    *(
        killed(loop, "--durability", "os", rounds=30, seed=seed, aim_s=300)
        for loop in AUDITED
        for seed in range(3)
    ),
    *(killed("messages", "--large", rounds=10, seed=seed, aim_s=300) for seed in range(2)),
    killed("messages", "--large", "--durability", "os", rounds=10, seed=2, aim_s=300),
    *(
        Step(
            f"kill loop, clock, seed {seed}",
            (*MODULE, "tests.kill", "clock", "--rounds", "20", "--seed", str(seed)),
            300,
        )
        for seed in range(3)
    ),
    Step("valid performatives", (*MODULE, "tests.fuzz", "--sequences", "100000", "--seed", "100000"), 480),
    Step("valid performatives, a process", (*MODULE, "tests.fuzz.wired", "--sequences", "2000"), 300),
    Step("long tests of the pipeline, of clients and of the soak", (*PYTEST, "-m", "soak"), 600),
    Step(
        "audit of simulated and killed brokers",
        (*MODULE, "tests.audit", f"{LOGS}/kill", "--drained", f"{LOGS}/simulation"),
        400,
    ),
    *(
        Step(
            f"kill loop, spark, {queries}, seed {seed}",
            (*MODULE, "tests.kill", "spark", "--queries", queries, "--rounds", "4", "--seed", str(seed)),
            300,
        )
        for queries in ("cursor", "peekLock", "browse", "sessions")
        for seed in range(3)
    ),
    *(
        Step(
            f"kill loop, jobs, seed {seed}",
            (*MODULE, "tests.kill", "jobs", "--rounds", "2", "--seed", str(seed)),
            300,
        )
        for seed in range(3)
    ),
)

COMPILED = (
    Step(
        "core tests", (*PYTEST, "-n", "2", "-m", CORE, *(f"tests/{name}" for name in COMPILED_FOLDERS)), 200
    ),
    Step("simulation tests", (*PYTEST, "-n", "2", "-m", "simulation and not long", "tests/simulation"), 30),
    simulated(0, 11, aim_s=15),
    Step("valid performatives", (*MODULE, "tests.fuzz", "--sequences", "2000", "--seed", "1"), 30),
    *(killed(loop, rounds=2, seed=1, aim_s=20) for loop in AUDITED),
)
"""What runs over the compiled core. Planted bugs are classes above those of the core, and prove the checker:
they stay with the pure form."""

COMPILED_IN_CI = (
    Step(
        "core tests",
        (*PYTEST, "-m", CORE, *(f"tests/{name}" for name in COMPILED_FOLDERS_IN_CI)),
        100,
    ),
    simulated(0, 5, aim_s=10),
    killed("messages", rounds=2, seed=1, aim_s=20),
)
"""What CI runs over the compiled core, of all that `COMPILED` has: two minutes of CPU with the build."""

SUITES: dict[str, Lanes] = {
    "test": (OTHERS, DECISIONS, STARTS, PEERS),
    "rest": (SPARK_QUERIES, (*AUDITS, *CLIENTS), (*LONG, *compiled("0", *COMPILED_IN_CI))),
    "lint": (LINT,),
    "compiled": (compiled("0", *COMPILED),),
    "soak": ((*SOAK, *compiled("2", *COMPILED)),),
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one step. `passed` and `failed` are tests for pytest, and the step itself otherwise."""

    step: Step
    passed: int
    failed: int
    seconds: float
    cpu_s: float
    """CPU time of the step with all that it started; 0 where it was ended before it could report it."""


class Screen:
    """Shows the output of one step at a time: of the earliest that is not over."""

    def __init__(self) -> None:
        self._held: dict[Step, bytearray] = {}
        self._over: set[Step] = set()

    def begin(self, step: Step) -> None:
        """Add a step behind the running ones."""
        self._held[step] = bytearray()
        self.show(step, f"== {step.name}\n".encode())

    def show(self, step: Step, output: bytes) -> None:
        """Write a step's output, or hold it until those before are over."""
        self._held[step] += output
        self._flush()

    def end(self, step: Step, line: str) -> None:
        """Write the last line of a step."""
        self._over.add(step)
        self.show(step, f"== {line}\n\n".encode())

    def _flush(self) -> None:
        for step in list(self._held):
            sys.stdout.buffer.write(self._held[step])
            self._held[step].clear()
            if step not in self._over:
                break
            del self._held[step]
        sys.stdout.buffer.flush()


async def run_step(step: Step, logs: str, screen: Screen, silence_s_max: float = SILENCE_S_MAX) -> Result:
    """Run one step, show its output, and count its results.

    Args:
        logs: what stands for `LOGS`.
        silence_s_max: a step that writes nothing for so long is ended, and has failed.
    """
    screen.begin(step)
    started = time.monotonic()
    output = bytearray()
    process = await asyncio.create_subprocess_exec(
        *COUNTED,
        *(part.replace(LOGS, logs) for part in step.command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        process_group=0,  # so that all that it started can be ended with it
    )

    async def follow() -> int:
        assert process.stdout is not None
        while data := await asyncio.wait_for(process.stdout.read(1 << 16), silence_s_max):
            output.extend(data)
            screen.show(step, data)
        return await asyncio.wait_for(process.wait(), silence_s_max)

    hung = ""
    try:
        status = await follow()
    except TimeoutError:
        hung = f", ended: no output for {silence_s_max:g} s"
        with suppress(TimeoutError, ProcessLookupError):
            process.send_signal(signal.SIGABRT)
            await asyncio.wait_for(follow(), LAST_WORDS_S_MAX)
        _kill_group(process.pid)
        status = -signal.SIGKILL
    except asyncio.CancelledError:
        with suppress(TimeoutError, ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
            await asyncio.wait_for(process.wait(), LAST_WORDS_S_MAX)
        _kill_group(process.pid)
        raise
    seconds = time.monotonic() - started
    lines = output.decode(errors="replace").splitlines()
    passed, failed = count_outcomes(lines, status) if "pytest" in step.command else (status == 0, status != 0)
    cpu_s = read_cpu_time(lines)
    late = f", over its aim of {step.aim_s} s" if seconds > step.aim_s else ""
    screen.end(step, f"{step.name}: {'FAILED' if failed else 'ok'} in {seconds:.1f} s{hung or late}")
    return Result(step, int(passed), int(failed), seconds, cpu_s)


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def count_outcomes(lines: list[str], status: int) -> tuple[int, int]:
    """Return `(passed, failed)` from pytest's closing line; a bad exit status counts as at least one failure.

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


def read_cpu_time(lines: list[str]) -> float:
    """Return what `tests.cost` printed last; 0 where it was ended before."""
    found = re.fullmatch(r"CPU time: ([\d.]+) s", lines[-1]) if lines else None
    return 0.0 if found is None else float(found[1])


async def run_lanes(lanes: Lanes, silence_s_max: float = SILENCE_S_MAX) -> list[Result]:
    """Run lanes side by side, and the steps of each in order."""
    screen = Screen()

    async def run_lane(lane: tuple[Step, ...], logs: str) -> list[Result]:
        return [await run_step(step, logs, screen, silence_s_max) for step in lane]

    with tempfile.TemporaryDirectory(prefix="peeklock-logs-") as logs:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(run_lane(lane, logs)) for lane in lanes]
    return [result for lane in running for result in lane.result()]


def closing_table(results: list[Result]) -> list[str]:
    """Return a line for each step, with its aim beside its time, and the closing line."""
    lines = []
    for result in results:
        mark = "over" if result.seconds > result.step.aim_s else ""
        times = f"{result.seconds:8.1f} s  aim {result.step.aim_s:4} s  {mark:4}  CPU {result.cpu_s:6.1f} s"
        lines.append(f"{times}  {'FAILED' if result.failed else 'ok':6}  {result.step.name}")
    passed, failed = (sum(column) for column in zip(*((r.passed, r.failed) for r in results), strict=True))
    return [*lines, f"{passed} passed, {failed} failed"]


def main(arguments: list[str]) -> int:
    """Run the suite named on the command line and print the closing table."""
    if len(arguments) != 1 or arguments[0] not in SUITES:
        print(f"usage: python -m tests {'|'.join(SUITES)}", file=sys.stderr)
        return 2
    # Steps start hundreds of processes, which would each compile all modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.monotonic()
    results = asyncio.run(run_lanes(SUITES[arguments[0]]))
    *table, closing_line = closing_table(results)
    took = f"{time.monotonic() - started:8.1f} s  total, CPU {sum(result.cpu_s for result in results):.1f} s"
    print(*table, took, closing_line, sep="\n")
    return int(any(result.failed for result in results))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
