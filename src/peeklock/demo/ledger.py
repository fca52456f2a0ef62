"""The account of the demo: what was asked for each job, what happened to it, and whether both agree.

Owns: the counts and the verdict. Must not know: how any of it was found out.

At least once is what a queue promises: a worker may see a job twice, when its lock lapsed or the broker was
killed. Exactly once is what comes of it when the worker looks up the message id, as here: work that is done
already is not done again, only completed. A completion whose answer was lost with the broker is "unanswered";
it has either happened, then the job never comes back, or the job comes back and is completed then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from peeklock.demo.jobs import Job, Result, Trouble

DAMAGED_REASON = "DigestMismatch"
FAILED_REASON = "MaxDeliveryCountExceeded"

DEAD_LETTERED = {Trouble.DAMAGED: DAMAGED_REASON, Trouble.FAILS: FAILED_REASON}
"""The reason with which jobs are to end in the dead-letter queue; all others are to be completed, but those
that are withdrawn."""


@dataclass(slots=True)
class Ledger:
    """What is known of each job, by message id."""

    jobs: dict[str, Job]
    sent: set[str] = field(default_factory=set)
    withdrawn: set[str] = field(default_factory=set)
    results: dict[str, Result] = field(default_factory=dict)
    deliveries: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    unanswered: set[str] = field(default_factory=set)
    """Settled, with the answer lost, and not seen since."""
    deferred: set[str] = field(default_factory=set)
    given_up: set[str] = field(default_factory=set)
    """Moved to the dead-letter queue, by the worker or by the last delivery; read from there later."""
    dead: dict[str, list[str]] = field(default_factory=dict)
    """Reasons with which a job was found in the dead-letter queue: one each, if all is well."""
    figures: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Ledger:
        """Open the account of these jobs."""
        return cls({job.id: job for job in jobs})

    def is_over(self, job: Job) -> bool:
        """Whether workers will not see this job again: that was answered."""
        places = (self.completed, self.withdrawn, self.deferred, self.given_up)
        return any(job.id in place for place in places)

    def over_count(self) -> int:
        """How many jobs are over."""
        return sum(map(self.is_over, self.jobs.values()))

    def ended_right(self, job: Job) -> bool:
        """Whether a job ended once, and where it should."""
        return not self._fault(job)

    def faults(self) -> list[str]:
        """Say what is wrong with each job that is missing, doubled or misplaced; empty = all is well."""
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
                f"delivered {self.deliveries[job.id]} times after it was called off"
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
        # Unanswered and never seen again, though the queue is empty: it was stored before the kill.
        happened = completed or job.id in self.unanswered
        return "" if happened else "missing: worked on and never completed"
