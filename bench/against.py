"""`./run bench --against COMMIT`: what a change costs, as ratios of this work tree to a commit.

Owns: an environment for each of the two, and their turns. Must not know: what a stage is.

Both are installed in the same way, each in a virtual environment of its own, and measured in turns. Each
round gives a ratio of every measure; the table has the median of these ratios. A slow minute of the machine
meets both sides.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from bench.loadgen import LoadFailed
from bench.run import drive_queue, settle_options
from bench.systems import Peeklock, StartFailed

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5
MESSAGES = 30_000


_KEEP_PAGES = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_TOP_PAD_": "100000000",
}
"""For the C library of Linux: memory that was freed is not given back. Else it depends on where the heap
happens to end whether each read of some 100 KB takes 30 page faults or none, half of a stage's time."""


class CannotCompare(Exception):
    """One of the two cannot be installed or measured; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a tree with an environment in which it is installed."""

    name: str
    tree: Path
    python: Path

    def stages(self, messages: int) -> dict[str, float]:
        """Return the microseconds a message of each stage, by the tree's own `bench.stages`.

        No figures where the tree has no such module.
        """
        if not (self.tree / "bench" / "stages.py").exists():
            return {}
        arguments = ["-m", "bench.stages", "--json", "--rounds", "3", "--messages", str(messages)]
        said = _run(
            [str(self.python), *arguments], self.tree, f"the stages of {self.name}", os.environ | _KEEP_PAGES
        )
        found: dict[str, float] = json.loads(said)
        return {f"{name}, us of CPU": value for name, value in found.items()}

    def process(self, folder: Path, messages: int) -> dict[str, float]:
        """Return the figures of a whole broker: CPU time of the process and rates."""
        broker = Peeklock(folder, ("bench",), program=self.python.with_name("peeklock"))
        broker.start()
        try:
            sent = drive_queue(broker, "send", messages)
            received = drive_queue(broker, "recv", messages, *settle_options(broker))
            both = drive_queue(broker, "both", messages, *settle_options(broker))
        finally:
            broker.stop()
        return {
            "process: send, us of CPU": sent.broker_us,
            "process: receive + complete, us of CPU": received.broker_us,
            "process: end to end, us of CPU": both.broker_us,
            "process: end to end, msg/s": both.receive_rate,
        }


def compare(commit: str, folder: Path, *, quick: bool) -> int:
    """Measure this work tree and a commit in turns, and print the ratios; 0 if all was measured."""
    tree = folder / "before"
    rounds, messages = (1, MESSAGES // 10) if quick else (ROUNDS, MESSAGES)
    try:
        resolved = _run(["git", "rev-parse", "--short", f"{commit}^{{commit}}"], ROOT, f"commit {commit}")
        _run(["git", "worktree", "add", "--detach", str(tree), resolved.strip()], ROOT, f"commit {commit}")
        try:
            sides = (
                _install(f"commit {resolved.strip()}", tree, folder / "environment-before"),
                _install("this work tree", ROOT, folder / "environment-after"),
            )
            table = _measure(sides, folder, rounds, messages)
        finally:
            _run(["git", "worktree", "remove", "--force", str(tree)], ROOT, "the work tree of the commit")
    except (CannotCompare, LoadFailed, StartFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(table)
    return 0


def interpreter() -> str:
    """Return the name of the interpreter's build: version, compiler, and how it was optimized."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    optimized = [
        text for flag, text in (("--enable-optimizations", "PGO"), ("--with-lto", "LTO")) if flag in options
    ]
    build = " and ".join(optimized) or "no PGO, no LTO"
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{version}, {platform.python_compiler()}, {build}"


def medians(
    rounds: list[tuple[dict[str, float], dict[str, float]]],
) -> dict[str, tuple[float, float, float]]:
    """Return the medians before and after, and the median of the ratios, of each measure that both sides
    have; one that takes no time before is none.

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


def _measure(sides: tuple[Side, Side], folder: Path, rounds: int, messages: int) -> str:
    found: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(rounds):
        figures: dict[str, dict[str, float]] = {}
        # Who comes first changes, so that neither always has the warmer machine.
        for side in sides if number % 2 == 0 else sides[::-1]:
            print(f"  round {number + 1} of {rounds}: {side.name}", flush=True)
            data = folder / f"data-{number}-{sides.index(side)}"
            figures[side.name] = {**side.stages(messages // 3), **side.process(data, messages)}
        found.append((figures[sides[0].name], figures[sides[1].name]))
    lines = [f"{interpreter()}; median of {rounds} rounds", ""]
    lines.append(f"{'':42}{'before':>10}{'after':>10}{'ratio':>8}")
    for name, (before, after, ratio) in medians(found).items():
        lines.append(f"{name:42}{before:10,.2f}{after:10,.2f}{ratio:8.3f}")
    return "\n".join(lines)


def _install(name: str, tree: Path, environment: Path) -> Side:
    print(f"bench: installing {name}", flush=True)
    _run([sys.executable, "-m", "venv", str(environment)], ROOT, name)
    python = environment / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--editable", str(tree)], ROOT, name)
    return Side(name, tree, python)


def _run(command: list[str], folder: Path, what: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotCompare(f"{what}: {' '.join(command[:3])} ... failed:\n{done.stderr.strip()}")
    return done.stdout
