"""`python -m tests.simulation`: run seeds, replay one, plant bugs. See the package's docstring."""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from tests.simulation.bugs import BUGS
from tests.simulation.plan import Result, run_seed


def main(arguments: list[str]) -> int:
    """Run what the command line asks for; exit status 1 when a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--seeds", metavar="A:B", help="run seeds A to B - 1")
    parser.add_argument(
        "--replay", type=int, metavar="N", help="run seed N again; with --trace, print every event"
    )
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument(
        "--seconds", type=float, help="run as many seeds as fit, from A on (0 without --seeds)"
    )
    parser.add_argument(
        "--bug", choices=sorted(BUGS), help="plant a bug: the run succeeds if a seed finds it"
    )
    options = parser.parse_args(arguments)
    first, last = 0, None
    if options.seeds:
        first, last = (int(part) for part in options.seeds.split(":"))
    one = options.replay if options.replay is not None else options.seed
    if one is not None:
        first, last = one, one + 1
    elif last is None and options.seconds is None:
        parser.error("say which seeds: --seed, --seeds, --replay or --seconds")
    trace = print if options.trace else None
    deadline = None if options.seconds is None else time.monotonic() + options.seconds
    started = time.monotonic()
    totals: dict[str, int] = {}
    done = 0
    failed: list[int] = []
    for seed in itertools.count(first):
        if (last is not None and seed >= last) or (deadline is not None and time.monotonic() > deadline):
            break
        result = run_seed(seed, bug=options.bug, trace=trace)
        done += 1
        for name, count in (*result.counts.items(), ("events", result.events), ("deaths", result.deaths)):
            totals[name] = totals.get(name, 0) + count
        if one is not None:
            print(f"seed {seed}: {result.events} events, hash {result.digest}")
        if result.failure is not None:
            failed.append(seed)
            if options.bug is not None:
                print(f"seed {seed} found {options.bug}: {result.failure.splitlines()[0]}")
                return 0
            report(result)
    took = time.monotonic() - started
    figures = ", ".join(f"{count} {name}" for name, count in totals.items())
    print(f"{done} seeds in {took:.1f} s, {len(failed)} failed{f': {failed}' if failed else ''} ({figures})")
    return int(bool(failed)) if options.bug is None else 1


def report(result: Result) -> None:
    """Print a failure with what is needed to see it again."""
    print(f"\nseed {result.seed} FAILED (hash {result.digest}): {result.failure}")
    print(f"replay: python -m tests.simulation --replay {result.seed} --trace\n", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
