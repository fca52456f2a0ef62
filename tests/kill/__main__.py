"""`python -m tests.kill LOOP --rounds N --seed S`: kill the real broker N times and judge what is left."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from tests.kill.bank_loop import BankLoop
from tests.kill.capture_loop import CaptureLoop
from tests.kill.loop import MessageLoop
from tests.kill.spark_loop import SparkLoop
from tests.kill.topic_loop import TopicLoop

LOOPS = {
    "messages": MessageLoop,
    "transactions": BankLoop,
    "topics": TopicLoop,
    "capture": CaptureLoop,
    "spark": SparkLoop,
}


def main(arguments: list[str]) -> int:
    """Run one loop; exit status 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.kill", description=__doc__)
    parser.add_argument("loop", choices=LOOPS, help="what clients do meanwhile")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync")
    options = parser.parse_args(arguments)
    named = f"{options.loop}, seed {options.seed}, {options.rounds} rounds"
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="peeklock-kill-") as folder:
        loop = LOOPS[options.loop](Path(folder), options.seed, options=("--durability", options.durability))
        try:
            figures = asyncio.run(loop.run(options.rounds))
        except AssertionError as broken:
            print(f"{named}: FAILED after {time.monotonic() - started:.1f} s: {broken}")
            return 1
    shown = ", ".join(f"{count} {name}" for name, count in figures.items())
    print(f"{named}: {time.monotonic() - started:.1f} s: {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
