"""How a command runs a job: it counts, says what it promises, shows how far it is, and how to go on.

It knows people and files. `peeklock.jobs` decides, and `worker.job_driver` does it.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import click

from peeklock.cli import checkpoint_files
from peeklock.cli.criteria import bad_criterion
from peeklock.cli.message_output import Progress, counted
from peeklock.cli.places import Given
from peeklock.cli.stopping import INTERRUPTED
from peeklock.worker.priority import yield_to_clients

if TYPE_CHECKING:
    from peeklock.client.errors import ServiceBusError
    from peeklock.jobs.checkpoint import Checkpoint
    from peeklock.jobs.job import Job
    from peeklock.jobs.plan import Plan
    from peeklock.jobs.survey import Snapshot, Survey
    from peeklock.worker.job_driver import JobDriver

_DONE: Final = {"purge": "removed", "move": "moved", "resubmit": "sent"}


@dataclass(frozen=True, slots=True)
class Ends:
    """The namespaces of a job."""

    source: Given
    target: Given | None = None
    """None = that of the source."""

    @property
    def of_target(self) -> Given:
        return self.target or self.source

    def options(self) -> str:
        """Return the names of the namespaces as options, to repeat them."""
        target = None if self.target is None else self.target.connection
        named = (
            ("--connection", self.source.connection),
            ("--data", self.source.data),
            ("--to-connection", target),
        )
        return "".join(f" {option} {shlex.quote(str(name))}" for option, name in named if name is not None)


# Purge


def purge(ends: Ends, plan: Plan, states: tuple[str, ...], *, dry_run: bool, yes: bool) -> None:
    """Remove the messages of a plan, in these states."""
    from peeklock.jobs.checkpoint import Checkpoint
    from peeklock.jobs.job import Job
    from peeklock.jobs.survey import Snapshot
    from peeklock.jobs.sweep import Sweep

    plan = replace(plan, namespace=_host(ends.source))
    with _driven(ends, plan, "Run the command again to go on.") as run:
        by_session = run.driver.has_sessions()
        highest = run.driver.highest()
        survey = run.survey(Snapshot(highest), None, by_session=by_session)
        counts = {state: survey.states[state] for state in states if survey.states[state]}
        total = sum(counts.values())
        shown = counted(total)
        if counts and [*counts] != ["active"]:
            shown += f" ({', '.join(f'{count:,} {state}' for state, count in counts.items())})"
        if dry_run:
            click.echo(f"would remove {shown} from {plan.source}")
            return
        if total and not yes:
            _ask(f"Remove {shown} from {plan.source}?")
        run.total = total
        if counts.keys() - {"active"}:
            sweep = Sweep(plan, Snapshot(highest), by_session=by_session)
            run.driver.sweep(sweep)
            run.done, run.left = sweep.done, sweep.left
        if "active" in counts:
            sessions = survey.sessions if by_session else None
            run.job(Job(Checkpoint(plan, highest), due=counts["active"], sessions=sessions))
        run.end(f"from {plan.source}")


def _ask(question: str) -> None:
    """Exit unless the answer is yes."""
    if not sys.stdin.isatty():
        click.echo("peeklock: messages are not removed without --yes where there is no terminal", err=True)
        sys.exit(1)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C is an answer
    try:
        if not click.confirm(question, err=True):
            sys.exit(1)
    except click.Abort:
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, before)


# Move and resubmit


def forward(
    ends: Ends,
    plan: Plan,
    command: str,
    *,
    resumed: Path | None = None,
    keeps_ids: bool = False,
    dry_run: bool = False,
) -> None:
    """Move the messages of a plan, or go on with the checkpoint in a file; `command`: how to go on."""
    from peeklock.jobs.job import Job
    from peeklock.jobs.survey import Snapshot

    before = None if resumed is None else checkpoint_files.read(resumed)
    plan = _with_facts(ends, plan, keeps_ids=keeps_ids) if before is None else _same(ends, plan, before)
    file = resumed or checkpoint_files.new_file(plan.work)
    go_on = f"Go on with: {command} --resume {shlex.quote(str(file))}{ends.options()}"
    with _driven(ends, plan, go_on, file) as run:
        by_session = run.driver.has_sessions()
        run.driver.check_target()
        start = before or run.begun(plan)
        plan = start.plan
        limit = None if plan.limit is None else max(0, plan.limit - start.taken)
        survey = run.survey(Snapshot(start.highest), limit, by_session=by_session)
        due = survey.states["active"] if limit is None else min(limit, survey.states["active"])
        if dry_run:
            click.echo(f"{counted(due)} would be {_DONE[plan.work]} to {plan.target}")
            return
        click.echo(f"{counted(due)} from {plan.source} to {plan.target}. {plan.guarantee.sentence}")
        click.echo(f"Checkpoint: {file}")
        if plan.has_new_ids:
            click.echo("They get new message ids: the target may know the old ones, and would drop them.")
        run.total = start.done + due
        sessions = survey.sessions if by_session else None
        run.job(Job(start, due=due, sessions=sessions, is_resumed=before is not None))
        run.end(f"to {plan.target}")


def _with_facts(ends: Ends, plan: Plan, *, keeps_ids: bool) -> Plan:
    from peeklock.jobs.edits import Edits

    source, target = _host(ends.source), _host(ends.of_target)
    if source == target and plan.source.lower() == (plan.target or "").lower() and plan.edits == Edits():
        raise click.UsageError(
            f"'{plan.source}' at {source} is the source and the target: messages would only go to its end. "
            "Name another target, or what to change, such as --set KEY=VALUE."
        )
    plan = replace(plan, namespace=source, target_namespace=target)
    settings = _settings_of(ends.of_target, plan.target or "")
    detects = None if settings is None else settings.get("RequiresDuplicateDetection") is True
    return plan.with_facts(
        # a transaction is of one partition (wire contract 6)
        by_transactions=source == target and not (settings or {}).get("EnablePartitioning"),
        detects_duplicates=detects,
        keeps_ids=keeps_ids,
    )


def _same(ends: Ends, plan: Plan, before: Checkpoint) -> Plan:
    """Return the plan of a checkpoint. Raises: click.UsageError: it is of another command or namespace."""
    found = before.plan
    if found.work != plan.work:
        raise click.UsageError(f"the checkpoint is of a {found.work}, not of a {plan.work}.")
    for given, namespace in ((ends.source, found.namespace), (ends.of_target, found.target_namespace)):
        if _host(given) != namespace:
            raise click.UsageError(f"the checkpoint is of {namespace}, not of {_host(given)}.")
    return found


def _host(given: Given) -> str:
    from peeklock.cli.connecting import LoginRefused
    from peeklock.client.errors import OptionError

    try:
        settings = given.settings()
    except (OptionError, LoginRefused) as failure:
        raise click.UsageError(str(failure)) from failure
    return f"{settings.host}:{settings.port}"


def _settings_of(given: Given, target: str) -> Mapping[str, object] | None:
    """Return the settings of an entity; None = the key may not ask."""
    from peeklock.client.administration import Administration
    from peeklock.client.errors import ServiceBusError
    from peeklock.client.requests import AdministrationError

    try:
        entity = Administration.of(given.settings()).entity(target)
    except (AdministrationError, ServiceBusError, OSError):
        return None
    return None if entity is None else entity.settings


# A run


class _Run:
    """A job as a person sees it."""

    def __init__(self, driver: JobDriver, work: str, go_on: str, file: Path | None) -> None:
        self.driver = driver
        self.total = 0
        """Messages of the job, with those of earlier runs."""
        self.done = self.left = 0
        self._unsettled = 0
        self._verb = _DONE[work]
        self._is_begun = False
        self._go_on = go_on
        self._file = file
        self._progress = Progress()
        self._before = self._began_with = 0
        """Messages done by an earlier part, and by an earlier run."""
        self._began = time.monotonic()

    def begun(self, plan: Plan) -> Checkpoint:
        """Return the beginning of a job: without transactions where there are none, or several partitions."""
        from peeklock.jobs.checkpoint import Checkpoint

        highest = self.driver.highest()
        if plan.by_transactions and (any(highest) or not self.driver.has_transactions()):
            plan = self.driver.plan = replace(plan, by_transactions=False)
        return Checkpoint(plan, highest)

    def survey(self, snapshot: Snapshot, limit: int | None, *, by_session: bool) -> Survey:
        """Count, unless Ctrl-C is pressed."""
        survey = self.driver.survey(snapshot, limit, by_session=by_session)
        if self.driver.is_stopped:
            sys.exit(INTERRUPTED)
        self._began, self._is_begun = time.monotonic(), True
        return survey

    def job(self, job: Job) -> None:
        """Run a job. Raises: ServiceBusError, OSError."""
        self._began_with, self._before = job.done, self.done
        try:
            self.driver.run(job)
        finally:
            self.done, self.left = self._before + job.done, self.left + job.left
            self._unsettled = job.unsettled

    def tell(self, done: int) -> None:
        """Show how many messages of the job at work are done."""
        done += self._before
        count = done - self._began_with
        left_s = (time.monotonic() - self._began) / max(count, 1) * (self.total - done)
        self._progress.show(count, f"{done:,} of {self.total:,} {self._verb}, {_span(left_s)} left")

    def end(self, where: str) -> None:
        """Print what was done, and exit unless all is."""
        self._progress.clear()
        if self.driver.is_stopped and self.done < self.total:
            self.stop(INTERRUPTED)
        if self.left:
            click.echo(
                f"peeklock: {counted(self.left)} left: other receivers hold them, or have taken them.",
                err=True,
            )
            self.stop(1)
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        click.echo(f"{counted(self.done)} {self._verb} {where}")

    def stop(self, status: int) -> NoReturn:
        """Print what was done and how to go on, and exit."""
        self._progress.clear()
        if self._is_begun:
            text = f"{counted(self.done)} {self._verb}."
            if self._unsettled:
                text += f" {self._unsettled:,} more are in both places: their locks were lost."
            click.echo(f"{text} {self._go_on}", err=True)
        sys.exit(status)


@contextmanager
def _driven(ends: Ends, plan: Plan, go_on: str, file: Path | None = None) -> Iterator[_Run]:
    """Yield a run; report what fails, and exit. Ctrl-C ends it in order; a second one at once."""
    from peeklock.client.errors import ServiceBusError
    from peeklock.search import SearchError
    from peeklock.worker.job_driver import JobDriver

    yield_to_clients()
    with ExitStack() as stack:
        source = stack.enter_context(ends.source.connected(plan.source))
        is_one = ends.target is None or plan.namespace == plan.target_namespace
        target = source if is_one else stack.enter_context(ends.of_target.connected(plan.target or ""))
        driver = JobDriver(
            plan,
            source,
            target,
            save=(lambda _: None) if file is None else partial(checkpoint_files.write, file),
            tell=lambda done: run.tell(done),  # which needs the driver
        )
        run = _Run(driver, plan.work, go_on, file)
        stack.enter_context(_stopping(driver))
        try:
            yield run
        except SearchError as failure:
            raise bad_criterion(failure) from failure
        except OSError as failure:
            click.echo(f"peeklock: the checkpoint cannot be written: {failure}", err=True)
            run.stop(1)
        except ServiceBusError as failure:
            _report(ends, plan, failure)
            run.stop(1)


def _report(ends: Ends, plan: Plan, failure: ServiceBusError) -> None:
    """Print a failure; it names the entity."""
    if plan.target is not None and failure.entity == plan.target:
        about_sessions = "Name one: --set-session ID."
        ends.of_target.report(failure, plan.target, sends=True, about_sessions=about_sessions)
    else:
        from peeklock.jobs.plan import owner

        ends.source.report(failure, owner(plan.source))


@contextmanager
def _stopping(driver: JobDriver) -> Iterator[None]:
    """Have Ctrl-C end a job in order, and a second one at once."""

    def on_signal(*_: object) -> None:
        if driver.is_stopped:
            os._exit(INTERRUPTED)  # an exit in order would wait for the broker
        driver.stop()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _span(seconds: float) -> str:
    """Return a time as people say it: 45s, 3m20s, 2h05m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, left = divmod(whole, 60)
    return f"{minutes}m{left:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"
