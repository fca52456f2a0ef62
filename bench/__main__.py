"""`python -m bench [--quick] [--only SYSTEM] [SCENARIO...]`: run scenarios and write `bench/results/`.

With `--against COMMIT [MEASURE...]` two commits are compared instead, with `--compiled [MEASURE...]` the two
forms of the core. Then nothing is written.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from bench import against, regressions, report
from bench.artemis import Artemis, artemis_missing
from bench.loadgen import BUILD, LoadFailed, compile_loadgen
from bench.machine import Calibration, interpreter
from bench.results import Results
from bench.run import Run
from bench.scenarios import SCENARIOS
from bench.systems import Peeklock, RabbitNode, RabbitQueue, StartFailed, System, rabbitmq_missing


def main(arguments: list[str]) -> int:
    """Run what the command line names; return 0 if everything was measured."""
    parser = argparse.ArgumentParser(
        prog="./run bench", description="Measure the broker and its competitors."
    )
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("--quick", action="store_true", help="a tenth of the messages, one round")
    parser.add_argument(
        "--only", choices=("peeklock", "artemis", "rabbitmq"), help="leave out the other brokers"
    )
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument(
        "--folder", type=Path, default=BUILD, help="folder of the brokers' data (default: %(default)s)"
    )
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="compare this work tree with COMMIT in turns; print the ratios of all measures, or of those "
        f"named: {', '.join(against.MEASURES)}",
    )
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="compile the core at -O2, and compare the pure form with it in the same way",
    )
    options = parser.parse_args(arguments)
    if options.list:
        for name, scenario in SCENARIOS.items():
            print(f"{name:13} {(scenario.__doc__ or '').splitlines()[0]}")
        return 0
    is_compared = options.against or options.compiled
    kind, known = ("measure", against.MEASURES) if is_compared else ("scenario", SCENARIOS)
    unknown = set(options.scenarios) - set(known)
    if unknown:
        parser.error(f"no such {kind}: {', '.join(sorted(unknown))} (there are {', '.join(known)})")
    if not Path("/proc/self/stat").exists():
        parser.error("CPU and memory are read from /proc, which this system lacks")
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        compile_loadgen()
    except LoadFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="run-") as folder:
        if is_compared and (options.only or (options.against and options.compiled)):
            parser.error("of --against, --compiled and --only, one can be given")
        if options.compiled:
            return against.compare_forms(Path(folder), options.scenarios, quick=options.quick)
        if options.against:
            return against.compare(options.against, Path(folder), options.scenarios, quick=options.quick)
        print(f"bench: {interpreter()}")
        before = regressions.committed(report.FOLDER / "results.json")
        run = _prepare(Path(folder), options.only, options.quick)
        try:
            for name in options.scenarios or SCENARIOS:
                _measure(run, name)
        finally:
            for system in run.systems:
                system.stop()
            # Only a whole run may replace the published figures.
            whole = not (options.scenarios or options.quick or options.only)
            names = [system.name for system in run.systems]
            table = report.write(run.results, names, run.quick, "results" if whole else "partial")
    if not options.quick:  # its brokers are not warm
        for line in regressions.compare(run.results.rows.values(), before, interpreter()):
            print(f"bench: {line}")
    print(f"bench: wrote {os.path.relpath(table)}")
    return int(bool(run.results.left_out))


def _prepare(folder: Path, only: str | None, quick: bool) -> Run:
    systems: list[System] = []
    if only in (None, "peeklock"):
        systems.append(Peeklock(folder / "peeklock", ("bench",)))
    if only in (None, "artemis"):
        if missing := artemis_missing():
            print(f"bench: leaving out Artemis: {missing}")
        else:
            systems.append(Artemis(folder / "artemis", ("bench",)))
    if only in (None, "rabbitmq"):
        if missing := rabbitmq_missing():
            print(f"bench: leaving out RabbitMQ: {missing}")
        else:
            node = RabbitNode(folder / "rabbitmq", ("bench",))
            systems += [RabbitQueue(node, "classic"), RabbitQueue(node, "quorum")]
    return Run(folder, systems, quick, Results(calibrate=Calibration()))


def _measure(run: Run, name: str) -> None:
    print(f"== {name}", flush=True)
    started = time.monotonic()
    try:
        SCENARIOS[name](run)
    except (LoadFailed, StartFailed) as error:
        run.left_out(name, error)
    print(f"== {name}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
