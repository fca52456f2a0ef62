"""`python -m tests.fuzz`: play sequences of valid performatives with boundary values; see `performatives`.

Each seed also replays scenarios of the .NET client with changes; see `replays`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from multiprocessing import Pool

from tests.failing import failed_line
from tests.fuzz.performatives import CONNECTIONS, Failed, run_seed
from tests.fuzz.replays import run_replays


def attempt(seed: int) -> str:
    """Play one seed; return the defect that it found, with its traceback."""
    try:
        run_seed(seed)
        run_replays(seed)
    except Failed as failed:
        return "".join(traceback.format_exception(failed))
    return ""


def main(arguments: list[str]) -> int:
    """Play the requested number of sequences; exit status 1 when one found a defect."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Play valid performatives with boundary values."
    )
    parser.add_argument(
        "--sequences", type=int, default=CONNECTIONS, help="number of sequences, rounded up to whole seeds"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="number of processes (default: the number of processors)",
    )
    options = parser.parse_args(arguments)
    seeds = range(options.seed, options.seed + -(-options.sequences // CONNECTIONS))
    started = time.monotonic()
    failures = 0
    with Pool(options.jobs) as pool:
        for report in pool.imap_unordered(attempt, seeds, chunksize=8):
            if report:
                failures += 1
                print(report)
                print(failed_line("valid performatives", report), flush=True)
    took_s = time.monotonic() - started
    print(f"{len(seeds) * CONNECTIONS} sequences in {took_s:.1f} s, {failures} seeds failed")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
