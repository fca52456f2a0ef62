"""Counts what happened to each job of the demo, and finds those that did not end as they should.

A queue delivers at least once: a worker may get a job twice, after its lock expired or the broker was killed.
The work is done exactly once if the worker looks up the message id, as here: a finished job is only completed
again. A completion whose answer was lost with the broker is "unanswered": either it was stored and the job
never returns, or the job returns and is completed then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from peeklock.demo.jobs import Job, Result, Trouble

DAMAGED_REASON = "DigestMismatch"
FAILED_REASON = "MaxDeliveryCountExceeded"

DEAD_LETTERED = {Trouble.DAMAGED: DAMAGED_REASON, Trouble.FAILS: FAILED_REASON}
"""The reasons of jobs that should end in the dead-letter queue; all others are completed or cancelled."""


@dataclass(slots=True)
class Ledger:
    """The state of each job, by message id."""

    jobs: dict[str, Job]
    sent: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    results: dict[str, Result] = field(default_factory=dict)
    deliveries: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    unanswered: set[str] = field(default_factory=set)
    """Settled without an answer, and not delivered since."""
    deferred: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    """Moved to the dead-letter queue, by the worker or by the last delivery."""
    dead: dict[str, list[str]] = field(default_factory=dict)
    """Reasons of each job in the dead-letter queue: one, if all is well."""
    figures: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Ledger:
        """Return the ledger of these jobs."""
        return cls({job.id: job for job in jobs})

    def is_over(self, job: Job) -> bool:
        """Return whether workers will not get this job again."""
        places = (self.completed, self.withdrawn, self.deferred, self.given_up)
        return any(job.id in place for place in places)

    def over_count(self) -> int:
        """Return the number of finished jobs."""
        return sum(map(self.is_over, self.jobs.values()))

    def ended_right(self, job: Job) -> bool:
        """Return whether a job ended once, and where it should."""
        return not self._fault(job)

    def faults(self) -> list[str]:
        """Return a text for each job that is missing, doubled or misplaced."""
        found = [
            f"{job.id} ({job.trouble.value}): {fault}"
            for job in self.jobs.values()
            if (fault := self._fault(job))
        ]
        found += [f"{stranger}: never sent" for stranger in self.deliveries.keys() - self.jobs.keys()]
        return found

    def _fault(self, job: Job) -> str:
        reasons = self.dead.get(job.id, [])
        completed = self.completed[job.id]
        if job.id not in self.sent:
            return "was not sent"
        if completed > 1 or len(reasons) > 1:
            return f"doubled: completed {completed} times, dead-lettered {len(reasons)} times"
        if job.trouble is Trouble.WITHDRAWN:
            return (
                f"delivered {self.deliveries[job.id]} times after it was cancelled"
                if self.deliveries[job.id]
                else ""
            )
        wanted = DEAD_LETTERED.get(job.trouble)
        if wanted is not None:
            return (
                "" if reasons == [wanted] and not completed else f"found in the dead-letter queue: {reasons}"
            )
        if reasons:
            return f"in the dead-letter queue: {reasons[0]}"
        if job.id not in self.results:
            return "missing: no worker got it"
        # Unanswered and not delivered again, though the queue is empty: it was stored before the kill.
        happened = completed or job.id in self.unanswered
        return "" if happened else "missing: worked on and never completed"
