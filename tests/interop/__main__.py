"""`python -m tests.interop [--build-only] [CLIENT...]`: run clients' programs, and record the outcomes.

Owns: the order of builds and runs, and the progress display. Must not know: how a program is built or run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Semaphore

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.interop.builds import ROOT, BuildFailed, Client, build, clients, features, is_built
from tests.interop.program import Outcome
from tests.interop.results import read_versions, write_results
from tests.interop.trials import Trials

BUILDS_AT_ONCE = 2
"""Builds at a time: a compiler keeps a core busy."""

MARKS = {"works": "[green]✓", "differs": "[yellow]≈", "not offered": "[dim]·", "failed": "[red]✗"}


@dataclass(slots=True)
class Run:
    """One client's run; `failure` says why it did not reach the features, or did not finish them."""

    client: Client
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failure: str = ""

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        return bool(self.failure) or any(outcome.status == "failed" for outcome in self.outcomes.values())


def build_all(console: Console, chosen: list[Client]) -> list[str]:
    """Build the programs, those of one folder once; return the failures."""

    def build_one(client: Client) -> str:
        name = client.folder.name
        if is_built(client):
            console.print(f"{name}: already built")
            return ""
        console.print(f"{name}: building")
        started = time.monotonic()
        try:
            build(client)
        except BuildFailed as error:
            return str(error)
        console.print(f"{name}: built in {time.monotonic() - started:.0f} s")
        return ""

    folders = {client.folder: client for client in chosen}
    with ThreadPoolExecutor(BUILDS_AT_ONCE) as pool:
        return [failure for failure in pool.map(build_one, folders.values()) if failure]


def run_all(console: Console, chosen: list[Client]) -> list[Run]:
    """Run the programs on every feature, and show their progress: as bars on a terminal, else as lines."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    wanted = {client: client.tried for client in chosen}
    tried = {client.name: client.tried for client in chosen}
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        tempfile.TemporaryDirectory(prefix="peeklock-interop-") as folder,
        Trials(wanted, Path(folder)) as trials,
    ):
        bars = {client.name: progress.add_task(client.name, total=len(client.tried)) for client in chosen}
        told = {client.name: Semaphore(0) for client in chosen}
        for (name, feature), future in trials.outcomes.items():
            if console.is_terminal:
                future.add_done_callback(partial(_advance, progress, bars[name]))
            else:
                future.add_done_callback(partial(_tell_feature, console, name, tried[name], feature))
            future.add_done_callback(partial(_release, told[name]))
        runs = []
        for client in chosen:
            run = Run(client)
            for feature in client.tried:
                try:
                    run.outcomes[feature] = trials.outcomes[client.name, feature].result()
                except Exception as error:  # BuildFailed, BrokerFailed, a folder that cannot be written
                    run.failure = str(error)
                    break
                told[client.name].acquire()  # a result is there before its callbacks have run
            else:
                run.versions = read_versions(build(client))
            _tell(console, run, trials.seconds.get(client.name))
            runs.append(run)
    return runs


def _advance(progress: Progress, bar: TaskID, _done: Future[Outcome]) -> None:
    progress.advance(bar)


def _release(told: Semaphore, _done: Future[Outcome]) -> None:
    told.release()


def _tell_feature(console: Console, name: str, tried: list[str], feature: str, done: Future[Outcome]) -> None:
    if done.cancelled() or done.exception() is not None:
        return  # the client's own line reports it
    number = tried.index(feature) + 1  # they are tried in this order
    console.print(f"{name} {number}/{len(tried)}: {feature} {done.result().status}", highlight=False)


def _tell(console: Console, run: Run, seconds: float | None) -> None:
    counts = {status: sum(one.status == status for one in run.outcomes.values()) for status in MARKS}
    told = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    console.print(
        f"{run.client.name}: {told or 'nothing was tried'}" + (f", in {seconds:.0f} s" if seconds else "")
    )


def show(console: Console, runs: list[Run]) -> None:
    """Print the table of features and clients, and below it each outcome other than `works`."""
    key = "✓ works  ≈ differs  · not offered by the client  ✗ failed"
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), caption=key, caption_justify="left")
    table.add_column("feature", no_wrap=True)
    for run in runs:
        table.add_column(run.client.name, justify="center", overflow="fold")
    section = ""
    for feature in features().values():
        if feature.section != section:
            section = feature.section
            table.add_section()
            table.add_row(f"[bold]{section}")
        marks = [run.outcomes.get(feature.name) for run in runs]
        table.add_row(f"  {feature.title}", *(MARKS[mark.status] if mark else "" for mark in marks))
    console.print(table)
    for run in runs:
        for name, outcome in run.outcomes.items():
            if outcome.status in ("differs", "failed"):
                console.print(
                    f"{run.client.name} {name} {outcome}", markup=False, highlight=False, soft_wrap=True
                )
        if run.failure:
            console.print(f"{run.client.name}: {run.failure}", markup=False, highlight=False, soft_wrap=True)


def choose(console: Console, names: list[str]) -> list[Client]:
    """Return the clients to try: all that this machine can run, or those named.

    Raises: SystemExit when one that was named is unknown, or cannot be tried here.
    """
    for name in names:
        if name not in clients():
            raise SystemExit(f"interop: no client {name!r}: known are {', '.join(clients())}")
        if missing := clients()[name].missing:
            raise SystemExit(f"interop: {missing}")
    if names:
        return [clients()[name] for name in dict.fromkeys(names)]
    for client in clients().values():
        if client.missing:
            console.print(f"left out: {client.missing}")
    return [client for client in clients().values() if not client.missing]


def main(arguments: list[str]) -> int:
    """Build, run, show and record; return 1 if anything failed."""
    parser = argparse.ArgumentParser(
        prog="./run interop", description="Run clients' programs against a live broker."
    )
    parser.add_argument("--build-only", action="store_true", help="build the programs and stop")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"some of: {', '.join(clients())}")
    options = parser.parse_args(arguments)
    console = Console()
    chosen = choose(console, options.clients)
    failures = build_all(console, chosen)
    for failure in failures:
        console.print(failure, markup=False, highlight=False, soft_wrap=True)
    if options.build_only or failures:
        return int(bool(failures))
    runs = run_all(console, chosen)
    show(console, runs)
    for run in runs:
        if run.failed:
            console.print(f"{run.client.name}: not recorded, since it failed")
        else:
            path = write_results(run.client.name, run.versions, run.outcomes)
            console.print(f"{run.client.name}: recorded in {path.relative_to(ROOT)}")
    return int(any(run.failed for run in runs))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
