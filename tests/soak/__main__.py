"""`python -m tests.soak --minutes N --seed S`: soak a broker, and write picture and page."""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from peeklock.demo.broker import program
from tests.audit import LEDGERS
from tests.failing import failed_line
from tests.soak.conductor import Conductor, Outcome
from tests.soak.growth import compare
from tests.soak.picture import draw
from tests.soak.site import SECOND
from tests.soak.summary import markdown, verdict

RESULTS = Path(__file__).parents[2] / "docs" / "explanation"
MARK = "<!-- From here on written by `./run soak --minutes N`. -->\n"
MINUTES_MIN = 0.3
AUDIT_MEMORY = "1500m"
"""Enough for two hours, by the page of the audit."""


def main(arguments: list[str]) -> int:
    """Run; exit status 1 when a promise was broken, or something grows."""
    parser = argparse.ArgumentParser(
        prog="./run soak",
        description="Load one broker with all it can do, and kill, restart, reload and back it up meanwhile.",
    )
    parser.add_argument("--minutes", type=float, required=True, help="length of the run, 2 or more")
    parser.add_argument("--seed", type=int, default=0, help="seed of the plan (default: %(default)s)")
    parser.add_argument(
        "--to",
        type=Path,
        default=RESULTS,
        metavar="DIR",
        help="where soak.svg and soak.md go (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.minutes < MINUTES_MIN:
        parser.error(f"--minutes must be at least {MINUTES_MIN}")
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # of breaks, which are meant
    folder = Path(tempfile.mkdtemp(prefix="peeklock-soak-"))
    outcome = asyncio.run(_run(folder, options.seed, options.minutes))
    if not outcome.failures:
        outcome.failures += audit(folder)
    comparisons = compare(outcome.samples, outcome.seconds)
    options.to.mkdir(parents=True, exist_ok=True)
    draw(outcome, options.to / "soak.svg")
    page = markdown(outcome, comparisons, "soak.svg")
    file = options.to / "soak.md"
    above = file.read_text().partition(MARK)[0] if file.exists() else ""
    file.write_text(f"{above}{MARK}\n{page}")
    print(f"\n{page}\n{file}, {options.to / 'soak.svg'}")
    if failed := verdict(outcome, comparisons):
        kept = f"the folder of the run is kept, with the broker's log: {folder}"
        print(failed_line(f"soak, seed {options.seed}", "; ".join((*failed, kept))))
    else:
        shutil.rmtree(folder)
    return int(bool(failed))


def audit(folder: Path) -> list[str]:
    """Audit the event log by `peeklock pipeline audit`; return what is wrong."""
    print("auditing the event log on Spark", flush=True)
    log = folder / "log"
    command = [
        program(),
        "pipeline",
        "audit",
        "--from",
        str(log),
        "--from",
        str(log / "_namespaces" / SECOND),
    ]
    command += ["--ledger", str(folder / LEDGERS), "--conf", f"spark.driver.memory={AUDIT_MEMORY}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    print(said)
    lines = [line for line in said.splitlines() if "\u2502          0 \u2502" not in line][-20:]
    return ["\n".join(("the audit of the event log:", *lines))] if done.returncode else []


async def _run(folder: Path, seed: int, minutes: float) -> Outcome:
    conductor = Conductor(folder, seed, minutes, _say)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, conductor.interrupt.set)
    return await conductor.run()


def _say(line: str) -> None:
    """Show progress: over the line before at a terminal, as lines elsewhere."""
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line}", end="", flush=True)
    else:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
