"""`./run bench --against COMMIT [MEASURE...]`: the cost of a change, as ratios of this work tree to a commit.

Owns: an environment for each of the two, their turns, and the measures. Must not know: what a stage is.

Both are installed in the same way, each in its own virtual environment, and measured in turns. Each round
gives a ratio of every measure; the table has the median of these ratios. A slow minute of the machine affects
both sides.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.awaited import PATTERNS, drive_pattern
from bench.disk import fsync_us
from bench.loadgen import LoadFailed
from bench.machine import cpu_s, interpreter
from bench.run import drive_queue, offer_1000, settle_options, warm_up
from bench.systems import Peeklock, StartFailed

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
MESSAGES = 30_000


_KEEP_PAGES = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_TOP_PAD_": "100000000",
}
"""For the C library of Linux: keep freed memory. Else the end of the heap decides whether each read of some
100 KB takes 30 page faults or none, half of a stage's time."""


class CannotCompare(Exception):
    """One of the two cannot be installed or measured; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a tree with an environment in which it is installed."""

    name: str
    tree: Path
    python: Path

    def on(self, folder: Path, *options: str) -> Peeklock:
        """Return a broker of this side, on its own folder, which is not started."""
        return Peeklock(folder, ("bench",), options=options, program=self.python.with_name("peeklock"))

    @contextmanager
    def broker(self, folder: Path, *options: str) -> Iterator[Peeklock]:
        """Run a warm broker of this side, on its own folder."""
        broker = self.on(folder, *options)
        broker.start()
        try:
            warm_up(broker, broker.warm_s)
            yield broker
        finally:
            broker.stop()


Figures = dict[str, float]
"""Figures of one side in one round, by measure."""


def stages(side: Side, folder: Path, messages: int) -> Figures:
    """Return the microseconds a message of each stage, by the tree's own `bench.stages`.

    No figures where the tree has no such module.
    """
    if not (side.tree / "bench" / "stages.py").exists():
        return {}
    arguments = ["-m", "bench.stages", "--json", "--rounds", "3", "--messages", str(messages // 3)]
    command = [str(side.python), *arguments]
    said = _run(command, side.tree, f"the stages of {side.name}", os.environ | _KEEP_PAGES)
    found: Figures = json.loads(said)
    return {f"{name}, us of CPU": value for name, value in found.items()}


def queue(side: Side, folder: Path, messages: int) -> Figures:
    """Return the figures of a whole broker with windows of 1,000: CPU time of the process and rates."""
    with side.broker(folder) as broker:
        sent = drive_queue(broker, "send", messages)
        received = drive_queue(broker, "recv", messages, *settle_options(broker))
        both = drive_queue(broker, "both", messages, *settle_options(broker))
    return {
        "process: send, us of CPU": sent.broker_us,
        "process: receive + complete, us of CPU": received.broker_us,
        "process: end to end, us of CPU": both.broker_us,
        "process: end to end, msg/s": both.receive_rate,
    }


def awaited(side: Side, folder: Path, messages: int) -> Figures:
    """Return the cost of programs that await each answer, without fsync, and the parts of one send."""
    found: Figures = {}
    with side.broker(folder / "os", "--durability", "os") as broker:
        for pattern in PATTERNS:
            load = drive_pattern(broker, pattern, messages // 3)
            found[f"awaited: {pattern}, us of CPU"] = load.broker_us
            found[f"awaited: {pattern}, p50, us"] = load.latency_us["p50"]
    with side.broker(folder / "fsync") as broker:
        before = fsync_us(folder, pace_s=0)
        synced = drive_queue(broker, "send", messages // 3, "-w", "1").latency_us["p50"]
        disk = statistics.mean((before, fsync_us(folder, pace_s=0)))
    found["awaited: 1 sender, with fsync, p50, us"] = synced
    found["awaited: the same less the disk's fsync, us"] = synced - disk
    return found


def rate(side: Side, folder: Path, messages: int) -> Figures:
    """Return CPU time and latencies while 1,000 messages a second are offered, with fsync."""
    with side.broker(folder) as broker:
        load = offer_1000(broker, messages * 2 // 3)
    found = {"1,000 msg/s: us of CPU": load.broker_us}
    for percentile in ("p50", "p99", "p99.9"):
        found[f"1,000 msg/s: {percentile}, us"] = load.latency_us[percentile]
    return found


def restart(side: Side, folder: Path, messages: int) -> Figures:
    """Return the time and CPU from spawn to ready: with an empty store, and after a kill with a backlog.

    The backlog is 33 times the messages, 1 million unless the run is quick.
    """
    found: Figures = {}
    backlog = 33 * messages
    broker = side.on(folder)

    def add(state: str) -> None:
        found[f"restart: {state}, s"] = broker.start()
        found[f"restart: {state}, s of CPU"] = cpu_s(broker.endpoint().pid)

    try:
        add("empty")
        drive_queue(broker, "send", backlog, timeout_s=300)
        broker.kill()
        add(f"backlog of {backlog:,}")
    finally:
        broker.stop()
    return found


MEASURES: dict[str, Callable[[Side, Path, int], Figures]] = {
    "stages": stages,
    "queue": queue,
    "awaited": awaited,
    "rate": rate,
    "restart": restart,
}
"""By name; each gets its own folder and the messages of the largest load."""


def compare(commit: str, folder: Path, names: Sequence[str], *, quick: bool) -> int:
    """Measure this work tree and a commit in turns, and print the ratios; return 0 if all was measured.

    Args:
        names: of the measures; none are all.
    """
    tree = folder / "before"
    try:
        resolved = _run(["git", "rev-parse", "--short", f"{commit}^{{commit}}"], ROOT, f"commit {commit}")
        _run(["git", "worktree", "add", "--detach", str(tree), resolved.strip()], ROOT, f"commit {commit}")
        try:
            sides = (
                _install(f"commit {resolved.strip()}", tree, folder / "environment-before"),
                _install("this work tree", ROOT, folder / "environment-after"),
            )
            table = _measure(sides, names, folder, quick=quick)
        finally:
            _run(["git", "worktree", "remove", "--force", str(tree)], ROOT, "the work tree of the commit")
    except (CannotCompare, LoadFailed, StartFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(table)
    return 0


def medians(
    rounds: list[tuple[dict[str, float], dict[str, float]]],
) -> dict[str, tuple[float, float, float]]:
    """Return the medians before and after, and the median of the ratios, of each measure that both sides
    have; one that took no time before is left out.

    Args:
        rounds: the figures before and after, by measure, of each round.
    """
    names = [name for name in rounds[0][1] if all(before.get(name) for before, _ in rounds)]
    return {
        name: (
            statistics.median(before[name] for before, _ in rounds),
            statistics.median(after[name] for _, after in rounds),
            statistics.median(after[name] / before[name] for before, after in rounds),
        )
        for name in names
    }


def compare_forms(folder: Path, names: Sequence[str], *, quick: bool) -> int:
    """Measure the pure and the compiled form of this work tree in turns, as `compare` does two commits.

    Not the stages: they replace methods of the core, which a compiled one refuses.
    """
    names = names or [name for name in MEASURES if name != "stages"]
    try:
        sides = (
            _install(
                "the pure form", ROOT, folder / "environment-pure", is_editable=False, PEEKLOCK_COMPILE="0"
            ),
            _install(
                "the compiled form",
                ROOT,
                folder / "environment-compiled",
                is_editable=False,
                PEEKLOCK_COMPILE="1",
            ),
        )
        for side, form in zip(sides, ("pure", "compiled"), strict=True):
            said = _run([str(side.python), "-c", "import peeklock; print(peeklock.FORM)"], folder, side.name)
            if said.strip() != form:
                raise CannotCompare(f"{side.name} is {said.strip()}: is there a C compiler?")
        table = _measure(sides, names, folder, quick=quick, heads=("pure", "compiled"))
    except (CannotCompare, LoadFailed, StartFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(table)
    return 0


def _measure(
    sides: tuple[Side, Side],
    names: Sequence[str],
    folder: Path,
    *,
    quick: bool,
    heads: tuple[str, str] = ("before", "after"),
) -> str:
    # The installed package must run, on both sides.
    os.environ.pop("PYTHONPATH", None)
    names = names or list(MEASURES)
    rounds, messages = (1, MESSAGES // 10) if quick else (ROUNDS, MESSAGES)
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(rounds):
        figures: dict[str, dict[str, float]] = {}
        # The order alternates, so that neither side always has the warmer machine.
        for side in sides if number % 2 == 0 else sides[::-1]:
            print(f"  round {number + 1} of {rounds}: {side.name}", flush=True)
            data = folder / f"data-{number}-{sides.index(side)}"
            figures[side.name] = {}
            for name in names:
                figures[side.name] |= MEASURES[name](side, data / name, messages)
        found.append((figures[sides[0].name], figures[sides[1].name]))
    lines = [f"{interpreter()}; median of {rounds} rounds", ""]
    lines.append(f"{'':46}{heads[0]:>10}{heads[1]:>10}{'ratio':>8}")
    for name, (before, after, ratio) in medians(found).items():
        lines.append(f"{name:46}{before:10,.2f}{after:10,.2f}{ratio:8.3f}")
    return "\n".join(lines)


def _install(name: str, tree: Path, environment: Path, *, is_editable: bool = True, **variables: str) -> Side:
    print(f"bench: installing {name}", flush=True)
    _run([sys.executable, "-m", "venv", str(environment)], ROOT, name)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *(["--editable"] if is_editable else []), str(tree)], ROOT, name, os.environ | variables)
    where = _run([str(python), "-c", "import peeklock; print(peeklock.__file__)"], environment, name)
    expected = tree if is_editable else environment
    if not Path(where.strip()).is_relative_to(expected):
        raise CannotCompare(f"{name} runs {where.strip()}, which is not in {expected}")
    return Side(name, tree, python)


def _run(command: list[str], folder: Path, what: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotCompare(f"{what}: {' '.join(command[:3])} ... failed:\n{done.stderr.strip()}")
    return done.stdout
