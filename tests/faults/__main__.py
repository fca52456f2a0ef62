"""`./run soak cluster`: rounds of each fault, and a line of the table for each round."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from docs.faults import RESULTS
from peeklock.demo.broker import BrokerFailed
from tests.failing import failed_line
from tests.faults.faults import FAULTS
from tests.faults.rounds import Run
from tests.kill.ledger import Broken
from tests.postgres_server import binaries

ROUNDS = 10


def main(arguments: Sequence[str]) -> int:
    """Run; exit status 1 when a promise was broken, 2 when it cannot run."""
    faults = "\n".join(f"  {name:15} {cause.__doc__}" for name, cause in FAULTS.items())
    parser = argparse.ArgumentParser(
        prog="./run soak cluster",
        description="Three nodes over PostgreSQL with a synchronous standby, under load: cause each fault "
        "again and again; then drain, check the stores, and audit the event log.",
        epilog=f"faults:\n{faults}\n\nRun `python -m docs.faults` afterwards: it writes the page of results.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of each fault (default: %(default)s)", metavar="N"
    )
    parser.add_argument(
        "--fault",
        action="append",
        choices=FAULTS,
        metavar="NAME",
        help="cause this one only; may be repeated (default: all)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the clients' choices (default: %(default)s)")
    parser.add_argument(
        "--to",
        type=Path,
        default=RESULTS,
        metavar="FILE",
        help="the table, which gets a line for each round (default: docs/faults.jsonl)",
    )
    options = parser.parse_args(arguments)
    if binaries() is None:
        print("PostgreSQL is not installed: apt-get install postgresql", file=sys.stderr)
        return 2
    failed = [
        fault
        for fault in options.fault or FAULTS
        if not _run(fault, options.seed, options.rounds, options.to)
    ]
    if failed:
        print(failed_line(f"cluster, seed {options.seed}", ", ".join(failed)))
    return int(bool(failed))


def _run(fault: str, seed: int, rounds: int, table: Path) -> bool:
    """Run rounds of one fault, and write them; return whether all promises held."""
    folder = Path(tempfile.mkdtemp(prefix="peeklock-faults-"))
    run = Run(folder, fault, seed, lambda line: print(line, flush=True))
    try:
        figures = run.run(rounds)
    except (Broken, BrokerFailed) as failure:
        print(failed_line(f"{fault}, seed {seed}", f"{failure}\nthe folder is kept: {folder}"), flush=True)
        lines = [{"fault": fault, "seed": seed, "failed": str(failure).partition("\n")[0]}]
    else:
        print(f"{fault}: {', '.join(f'{count} {name}' for name, count in figures.items())}", flush=True)
        lines = [asdict(one) for one in run.rounds]
        shutil.rmtree(folder)
    with table.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return "failed" not in lines[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
