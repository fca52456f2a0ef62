"""A job at work, and its preview: what `cli.job_running` is to a person, for the broker.

The work of both has a `plan`: `source`, `target`, `work`, `criteria`, `numbers`, `by`, `group`, `edits`,
`limit`, `rate` and facts about the target; and the `states` of its messages. A job may have the `checkpoint`
of an earlier run. It writes lines for the broker: `begun`, `progress`, `checkpoint`, which is answered by
`saved` once it is durable, and last `end` or `problem`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from peeklock.client.connection import BlockingConnection
from peeklock.jobs.checkpoint import Checkpoint
from peeklock.jobs.edits import Edits
from peeklock.jobs.job import Job
from peeklock.jobs.plan import Plan
from peeklock.jobs.survey import Snapshot, Survey
from peeklock.jobs.sweep import Sweep
from peeklock.search import STATES, Criteria, MessageState, Peeked
from peeklock.worker.job_driver import JobDriver
from peeklock.worker.orders import Orders, Work
from peeklock.worker.output import Output
from peeklock.worker.pacing import paced
from peeklock.worker.searching import PROGRESS_S, Progress, limited, limited_chooser
from peeklock.worker.showing import shown

EXAMPLES: Final = 10
EXAMPLE_BYTES_MAX: Final = 1024
"""Of the body of an example."""

ACTIVE: Final = "active"


def plan_of(work: Work) -> Plan:
    """Read the plan of a work. Raises: ValueError."""
    given = dict(work["plan"])
    numbers = given.pop("numbers", None)
    edits = dict(given.pop("edits", {}))
    edits["remove"] = tuple(edits.get("remove", ()))
    return Plan(
        namespace=work["namespace"],
        target_namespace=work["namespace"],
        criteria=Criteria(**given.pop("criteria")),
        numbers=None if numbers is None else frozenset(numbers),
        edits=Edits(**edits),
        **given,
    )


class _Driver(JobDriver):
    """A driver that leaves the broker's other clients their time while it counts."""

    def pages(self) -> Iterator[list[bytes]]:
        wanted = [0, self.plan.criteria.from_number or 0, min(self.plan.numbers or [0])]
        pages = paced(self._browser, max(wanted))
        while True:
            page = next(pages, None)
            if page is None:
                return
            with limited(self.plan.criteria.regex):
                yield page


class _Counting(Survey):
    """A survey that keeps some examples, and tells how far it is."""

    def __init__(
        self,
        snapshot: Snapshot,
        plan: Plan,
        states: frozenset[str],
        limit: int | None,
        *,
        by_session: bool,
        progress: Progress | None = None,
    ) -> None:
        chooses = plan.chooser()
        self.examples: list[Peeked] = []

        def chosen(peeked: Peeked) -> bool:
            is_one = STATES[peeked.state] in states and chooses(peeked)
            if is_one and len(self.examples) < EXAMPLES:
                self.examples.append(peeked)
            return is_one

        super().__init__(snapshot, chosen, limit, by_session=by_session)
        self._progress = progress

    def count(self, pages: Iterator[list[bytes]], is_stopped: Any) -> None:
        """Count all messages."""
        for page in pages:
            if not self.add(page) or is_stopped():
                break
            if self._progress is not None:
                self._progress.add(len(page))


class _Run:
    """What a job and its preview have in common: what is there, and what is promised."""

    def __init__(self, work: Work, connection: BlockingConnection, **driven: Any) -> None:
        self.plan = plan_of(work)
        self.states = frozenset(work["states"])
        self.driver = _Driver(
            self.plan, connection, None if self.plan.target is None else connection, **driven
        )
        self.by_session = False

    def begin(self) -> Checkpoint:
        """Return the beginning of a job: without transactions where there are none, or several partitions.

        Raises: ServiceBusError: what source or target refuses.
        """
        driver, plan = self.driver, self.plan
        # What is scheduled is not received; a topic, which has such messages, has no receivers at all.
        self.by_session = plan.work != "reschedule" and driver.has_sessions()
        if plan.target is not None:
            driver.check_target()
        highest = driver.highest()
        if plan.by_transactions and (any(highest) or not driver.has_transactions()):
            plan = replace(plan, by_transactions=False)
        self.go_on(plan)
        return Checkpoint(plan, highest)

    def go_on(self, plan: Plan) -> None:
        """Take the plan of a job that has begun."""
        self.plan = self.driver.plan = plan

    def count(self, start: Checkpoint, progress: Progress | None = None) -> _Counting:
        """Count what is there of a job."""
        limit = None if self.plan.limit is None else max(0, self.plan.limit - start.taken)
        counting = _Counting(
            Snapshot(start.highest),
            self.plan,
            self.states,
            limit,
            by_session=self.by_session,
            progress=progress,
        )
        counting.count(self.driver.pages(), lambda: self.driver.is_stopped)
        return counting


def preview(work: Work, connection: BlockingConnection, output: Output) -> None:
    """Count the messages of a job, and show some. Raises: ServiceBusError, SearchError, WorkFailed."""
    run = _Run(work, connection)
    progress = Progress(output, work.get("of"))
    counted = run.count(run.begin(), progress)
    progress.tell()
    states = dict(counted.states)
    total = sum(states.values())
    examples = [{"entity": run.plan.source, **shown(each, EXAMPLE_BYTES_MAX)} for each in counted.examples]
    output.event(
        "end",
        {
            "count": total if run.plan.limit is None else min(total, run.plan.limit),
            "states": states,
            "examples": examples,
            "guarantee": run.plan.guarantee.sentence,
        },
    )


def run_job(work: Work, connection: BlockingConnection, output: Output, orders: Orders) -> None:
    """Run a job to its end, or until it is stopped. Raises: ServiceBusError, SearchError, WorkFailed."""
    telling = Telling(output, orders)
    run = _Run(work, connection, save=telling.save, tell=telling.tell)
    orders.on_stop = run.driver.stop
    if orders.is_stopped:
        run.driver.stop()
    kept = work.get("checkpoint")
    before = None if kept is None else Checkpoint.from_json(kept["job"])
    start = run.begin()
    if before is not None:
        start = before
        run.go_on(start.plan)
    telling.swept = 0 if kept is None else int(kept["swept"])
    counted = run.count(start)
    states = counted.states
    due = states[ACTIVE]
    if run.plan.limit is not None:
        due = min(due, run.plan.limit - start.taken)
    others = frozenset(run.states - {ACTIVE}) & {name for name, count in states.items() if count}
    total = telling.swept + start.done + due + sum(states[name] for name in others)
    output.line({"begun": {"of": total, "guarantee": run.plan.guarantee.sentence}})
    telling.save(start)
    left = 0
    chooses = limited_chooser(run.plan.chooser(), run.plan.criteria.regex)
    if others:
        sweep = Sweep(
            run.plan,
            Snapshot(start.highest),
            by_session=run.by_session,
            states=_states_of(others),
            chooses=chooses,
        )
        telling.is_sweep = True
        run.driver.sweep(sweep)
        telling.is_sweep = False
        telling.swept, left = telling.swept + sweep.done, sweep.left
    sessions = counted.sessions if run.by_session else None
    job = Job(start, due=due, sessions=sessions, is_resumed=before is not None, chooses=chooses)
    try:
        if due and not run.driver.is_stopped:
            run.driver.run(job)
    finally:
        telling.save(job.checkpoint())
    done = telling.swept + job.done
    output.line({"end": {"done": done, "left": left + job.left, "isStopped": run.driver.is_stopped}})


def _states_of(names: frozenset[str]) -> frozenset[MessageState]:
    return frozenset(state for state, name in STATES.items() if name in names)


class Telling:
    """Tells the broker how far a job is."""

    def __init__(self, output: Output, orders: Orders) -> None:
        self._output = output
        self._orders = orders
        self._told_s = 0.0
        self.swept = 0
        """Deferred and scheduled messages that were removed."""
        self.is_sweep = False
        self._done = 0
        """Others, as of the last checkpoint."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint durably."""
        self._done = checkpoint.done
        self.keep({"job": checkpoint.to_json(), "swept": self.swept}, self.swept + checkpoint.done)

    def keep(self, kept: Mapping[str, Any], done: int) -> None:
        """Keep what a later run needs, durably."""
        self._output.line({"checkpoint": kept, "done": done})
        self._orders.wait_until_saved()

    def tell(self, done: int) -> None:
        """Tell how many messages of the part at work are done, from time to time."""
        if time.monotonic() - self._told_s >= PROGRESS_S:
            self._told_s = time.monotonic()
            before = self.swept + self._done if self.is_sweep else self.swept
            self._output.line({"progress": before + done})
