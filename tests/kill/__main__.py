"""`python -m tests.kill LOOP --rounds N --seed S`: kill the real broker N times and check the result."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.audit import LEDGERS
from tests.failing import failed_line
from tests.kill.bank_loop import BankLoop
from tests.kill.capture_loop import CaptureLoop
from tests.kill.clock_loop import ClockLoop
from tests.kill.http_loop import HttpLoop
from tests.kill.jobs_loop import JobsLoop
from tests.kill.ledger import Broken
from tests.kill.loop import MessageLoop
from tests.kill.spark_loop import GROUPS, SparkLoop
from tests.kill.topic_loop import TopicLoop

LOOPS = {
    "messages": MessageLoop,
    "http": HttpLoop,
    "transactions": BankLoop,
    "topics": TopicLoop,
    "capture": CaptureLoop,
    "spark": SparkLoop,
    "jobs": JobsLoop,
    "clock": ClockLoop,
}
AUDITED = ("messages", "http", "transactions", "topics")
"""Loops whose brokers can also write an event log."""


def main(arguments: list[str]) -> int:
    """Run one loop; exit status 1 when a promise was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kill",
        description="Kill the real broker again and again under clients, and check the result.",
    )
    parser.add_argument("loop", choices=LOOPS, help="what the clients do")
    parser.add_argument("--rounds", type=int, default=10, help="number of kills (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the clients' choices (default: %(default)s)"
    )
    parser.add_argument(
        "--durability",
        choices=("fsync", "os"),
        default="fsync",
        help="durability of the broker (default: %(default)s)",
    )
    parser.add_argument(
        "--large", action="store_true", help="with batches of over 1 MiB, on the premium tier"
    )
    parser.add_argument(
        "--queries", choices=GROUPS, default="cursor", help="what the loop spark runs (default: %(default)s)"
    )
    parser.add_argument(
        "--capture",
        type=Path,
        metavar="DIR",
        help="the broker writes an event log to a sub-folder of DIR, for `python -m tests.audit DIR`",
    )
    options = parser.parse_args(arguments)
    if options.capture is not None and options.loop not in AUDITED:
        parser.error(f"--capture is available for the loops {', '.join(AUDITED)}")
    if options.large and options.loop != "messages":
        parser.error("--large is available for the loop messages")
    named = f"{options.loop}, {options.durability}, seed {options.seed}, {options.rounds} rounds"
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="peeklock-kill-") as folder:
        serving = ["--durability", options.durability]
        settings: dict[str, Any] = {}
        if options.large:
            serving += ["--tier", "premium"]
            settings["large"] = True
        if options.loop == "spark":
            settings["lanes"] = GROUPS[options.queries]
            named = f"{named}, {options.queries}"
        if options.capture is not None:
            # A log each, and a namespace each: they are audited together.
            name = "-".join((options.loop, options.durability, *settings, str(options.seed)))
            serving += [f"--capture={options.capture.absolute() / name}", "--capture-interval=1"]
            settings["namespace"] = name
        loop = LOOPS[options.loop](Path(folder), options.seed, options=serving, **settings)
        try:
            figures = asyncio.run(loop.run(options.rounds))
            if options.capture is not None:
                _write_rows(options.capture / LEDGERS / f"{name}.jsonl", loop.audit_rows(), name)
        except Exception as failure:  # a broken promise, or what the loop did not expect
            if not isinstance(failure, Broken):
                traceback.print_exc()
            took_s = time.monotonic() - started
            print("\n" + failed_line(f"{named}, after {took_s:.1f} s", failure), flush=True)
            return 1
    shown = ", ".join(f"{count} {name}" for name, count in figures.items())
    print(f"{named}: {time.monotonic() - started:.1f} s: {shown}")
    return 0


def _write_rows(path: Path, rows: list[dict[str, object]], namespace: str) -> None:
    """Write what clients learnt as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"namespace": namespace, **row}) + "\n" for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
