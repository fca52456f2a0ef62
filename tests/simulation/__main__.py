"""`python -m tests.simulation`: run seeds, replay one, plant bugs. See the package's docstring."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import Pool
from pathlib import Path

from tests.failing import failed_line
from tests.simulation.bugs.registry import BUGS
from tests.simulation.cluster.plan import run_with
from tests.simulation.plan import Result

ROUND = 8
"""Seeds that a process gets at a time: few, so that it keeps the deadline and none waits for long."""

SEEDS_A_DOT = 10
"""Print a dot for so many finished seeds: `tests.__main__` takes silence for a hang."""


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; exit status 1 when a seed failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Run seeds of the deterministic simulation."
    )
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--seeds", metavar="A:B", help="run seeds A to B - 1")
    parser.add_argument(
        "--replay", type=int, metavar="N", help="run seed N again; with --trace, print every event"
    )
    parser.add_argument("--trace", action="store_true", help="print every event of one seed")
    parser.add_argument(
        "--seconds", type=float, help="run as many seeds as fit, from A on (0 without --seeds)"
    )
    parser.add_argument(
        "--bug",
        choices=sorted(BUGS),
        metavar="NAME",
        help="plant a bug (an unknown NAME lists all): the run succeeds if a seed finds it",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        help="number of processes (default: the number of processors)",
    )
    parser.add_argument(
        "--events", type=Path, metavar="DIR", help="write each seed's event log to a sub-folder of DIR"
    )
    parser.add_argument(
        "--nodes", type=int, help="so many nodes on one store with leases (default: one node, without)"
    )
    options = parser.parse_args(arguments)
    run = partial(run_with, nodes=options.nodes, bug=options.bug, events=options.events)
    started = time.monotonic()
    first, last = 0, None
    if options.seeds:
        first, last = (int(part) for part in options.seeds.split(":"))
    one = options.replay if options.replay is not None else options.seed
    if one is not None:
        first, last = one, one + 1
    elif last is None and options.seconds is None:
        parser.error("one of --seed, --seeds, --replay and --seconds is required")
    deadline = None if options.seconds is None else time.monotonic() + options.seconds
    if one is not None:
        results: Iterator[Result] = iter([run(one, trace=print if options.trace else None)])
    else:
        results = run_seeds(first, last, deadline, run, options.jobs)
    totals: dict[str, int] = {}
    done = 0
    failed: list[int] = []
    for result in results:
        done += 1
        if done % SEEDS_A_DOT == 0:
            print(".", end="", flush=True)
        for name, count in (*result.counts.items(), ("events", result.events), ("deaths", result.deaths)):
            totals[name] = totals.get(name, 0) + count
        if one is not None:
            print(f"seed {one}: {result.events} events, hash {result.digest}")
        if result.failure is not None:
            failed.append(result.seed)
            if options.bug is not None:
                print(f"seed {result.seed} found {options.bug}: {result.failure.splitlines()[0]}")
                return 0
            report(result, options.nodes)
    if done >= SEEDS_A_DOT:
        print()
    took = time.monotonic() - started
    figures = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{done} seeds in {took:.1f} s, {len(failed)} failed{f': {failed}' if failed else ''} ({figures})")
    return int(bool(failed)) if options.bug is None else 1


def run_seeds(
    first: int,
    last: int | None,
    deadline: float | None,
    run: Callable[[int], Result],
    jobs: int,
) -> Iterator[Result]:
    """Run seeds in order, in several processes, up to the last one or the deadline."""
    seeds = iter(itertools.count(first) if last is None else range(first, last))
    with Pool(jobs) as pool:
        while deadline is None or time.monotonic() < deadline:
            some = list(itertools.islice(seeds, ROUND * jobs))
            if not some:
                return
            yield from pool.imap(run, some)


def report(result: Result, nodes: int | None = None) -> None:
    """Print a failure with the command that replays it."""
    print(f"\nseed {result.seed} failed (hash {result.digest}): {result.failure}")
    print(failed_line(f"seed {result.seed}", result.failure or ""))
    of_nodes = "" if nodes is None else f" --nodes {nodes}"
    print(f"replay: python -m tests.simulation --replay {result.seed}{of_nodes} --trace\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
