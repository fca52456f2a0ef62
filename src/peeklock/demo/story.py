"""The demo, from start to verdict: the order of events, the moment of the kill, the time limit."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from rich.console import Console

from peeklock.demo.broker import BrokerFailed, BrokerProcess
from peeklock.demo.client import (
    IN_FLIGHT_MAX,
    WORKERS,
    ClientMissing,
    Site,
    check_client,
    count_left,
    create_queue,
)
from peeklock.demo.display import Display, show_result, show_verdict
from peeklock.demo.jobs import Job, Trouble, make_jobs, work
from peeklock.demo.ledger import Ledger
from peeklock.demo.proof import SparkUnusable, check_spark, prove

KILL_AT = 0.4
"""Share of finished jobs when the broker is killed."""

AWAY_S = 0.5
"""How long it stays down, so that clients notice."""

BACKLOG = 0.2
"""Share of jobs in the queue at a time, so that some are not sent yet at the kill."""

LOOK_S = 0.05
QUIET_S = 2.0
"""After so long without progress the queue is browsed."""

STORY_S_MAX = 120.0
"""Time limit. Our choice: several times that of a small machine."""


def run(job_count: int, seed: int, console: Console, *, broker_only: bool) -> int:
    """Run the demo; return 0 if every job ended exactly once where it should, and the audit agrees, else 1.

    `broker_only`: skip Spark and the event log.
    """
    try:
        check_client()
        if not broker_only:
            check_spark()
        jobs = make_jobs(job_count, seed)
        with tempfile.TemporaryDirectory(prefix="peeklock-demo-") as folder:
            return _run(jobs, Path(folder), console, None if broker_only else Path(folder) / "events")
    except (BrokerFailed, ClientMissing, SparkUnusable, ValueError) as failure:
        console.print(f"peeklock demo: {failure}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    except TimeoutError:
        console.print(f"peeklock demo: not over after {STORY_S_MAX:.0f} s; giving up", style="red")
        return 1


def _run(jobs: list[Job], folder: Path, console: Console, events: Path | None) -> int:
    ledger = Ledger.of(jobs)
    started = time.monotonic()
    with BrokerProcess(folder, [] if events is None else [f"--capture={events}"]) as broker:
        certificate = broker.authority()  # the administration client speaks HTTPS only
        with Display(console, len(jobs)) as display:
            display.say(
                f"[bold]peeklock serve[/] is ready on port {broker.amqp_port}, its data in {broker.data}"
            )
            create_queue(broker.connection_string, certificate)
            display.say(
                f"{len(jobs)} jobs for the queue 'jobs': count the words of a piece of Python's standard "
                f"library, and compress it; at most {IN_FLIGHT_MAX} sends in flight, {WORKERS} workers"
            )
            asyncio.run(asyncio.wait_for(_tell(broker, ledger, display), STORY_S_MAX))
        left = count_left(broker.connection_string, certificate)
        broker.stop()
    faults = ledger.faults() + _check_results(ledger)
    if left:
        faults.append(f"{left} messages are left in the queue")
    show_result(console, ledger, time.monotonic() - started)
    if events is not None:
        display.say(f"the broker wrote its events to {events}; now Spark reads them (half a minute)")
        faults += prove(events, folder, console)
    show_verdict(console, faults)
    return int(bool(faults))


async def _tell(broker: BrokerProcess, ledger: Ledger, display: Display) -> None:
    site = Site(broker.connection_string, ledger)
    sending = asyncio.create_task(_send_all(site))
    working = asyncio.create_task(site.work())
    killing = asyncio.create_task(_kill_and_restart(broker, ledger, display))
    try:
        await _wait_until_drained(broker, site, sending, killing, display)
    finally:
        site.stopping.set()
        for task in (sending, killing):
            task.cancel()
    _, fetched, dead = await asyncio.gather(working, site.fetch_deferred(), site.read_dead_letters())
    display.say(f"fetched {fetched} deferred jobs by their sequence numbers")
    display.say(f"read {dead} jobs from the dead-letter queue")
    await site.close()


async def _send_all(site: Site) -> None:
    by_trouble: dict[Trouble, list[Job]] = {trouble: [] for trouble in Trouble}
    for job in site.ledger.jobs.values():
        by_trouble[job.trouble].append(job)
    scheduled, withdrawn = by_trouble[Trouble.SCHEDULED], by_trouble[Trouble.WITHDRAWN]
    at_once = [
        job for job in site.ledger.jobs.values() if job.trouble not in (Trouble.SCHEDULED, Trouble.WITHDRAWN)
    ]
    await asyncio.gather(site.schedule(scheduled), site.withdraw(withdrawn), site.send(at_once))


async def _kill_and_restart(broker: BrokerProcess, ledger: Ledger, display: Display) -> None:
    while (over := ledger.over_count()) < KILL_AT * len(ledger.jobs):  # noqa: ASYNC110  # all tasks change it
        await asyncio.sleep(LOOK_S)
    broker.kill()
    display.say(
        f"[bold red]killed[/] the broker (SIGKILL) with {over} jobs finished, "
        f"{len(ledger.sent) - over} in the queue and {len(ledger.jobs) - len(ledger.sent)} not sent yet"
    )
    await asyncio.sleep(AWAY_S)
    took_s = await asyncio.to_thread(broker.start)
    display.say(f"[bold green]restarted[/] it on the same folder and port: ready after {took_s:.2f} s")


async def _wait_until_drained(
    broker: BrokerProcess,
    site: Site,
    sending: asyncio.Task[None],
    killing: asyncio.Task[None],
    display: Display,
) -> None:
    """Wait until all is sent, the broker was killed and restarted, and only deferred messages are left."""
    ledger = site.ledger
    last, changed = -1, time.monotonic()
    while True:
        await asyncio.sleep(LOOK_S)
        broker.check()
        for task in (sending, killing):
            if task.done():
                task.result()  # raises its error
        over = ledger.over_count()
        display.progress(over)
        if len(ledger.sent) - over < BACKLOG * len(ledger.jobs):
            site.has_room.set()
        else:
            site.has_room.clear()
        if over != last:
            last, changed = over, time.monotonic()
        if not (sending.done() and killing.done()):
            continue
        if over == len(ledger.jobs) or time.monotonic() - changed > QUIET_S:
            if await site.count_waiting() == 0:
                return
            changed = time.monotonic()


def _check_results(ledger: Ledger) -> list[str]:
    """Return the results that differ from those of the same work without a queue."""
    return [
        f"{job_id}: the worker's result is {found}, not {right}"
        for job_id, found in ledger.results.items()
        if found != (right := work(ledger.jobs[job_id].text, ledger.jobs[job_id].digest))
    ]
