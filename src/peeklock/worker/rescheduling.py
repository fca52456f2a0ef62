"""A job that enqueues scheduled messages at another time, or by a span later or earlier.

Theory of operation. `client.scheduling` schedules a copy, then cancels the original. Copies have higher
numbers than all that was there at the start, so none is moved twice. A run that goes on finds the copies of
originals that are still there by their annotation, and completes these: a shift is not repeated. So the
checkpoint has the numbers of the start alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from peeklock.client.browsing import Browser, sequence_number
from peeklock.client.connection import BlockingConnection
from peeklock.client.scheduling import Moved, Schedules, due_ms, is_scheduled, origin_of
from peeklock.jobs.survey import Snapshot
from peeklock.search import Peeked
from peeklock.worker.job_runs import Telling, plan_of
from peeklock.worker.orders import Orders, Work
from peeklock.worker.output import Output
from peeklock.worker.pacing import paced
from peeklock.worker.searching import limited

TOGETHER: Final = 16
"""Messages that are moved at a time. Our choice: the requests under way."""


def reschedule(work: Work, connection: BlockingConnection, output: Output, orders: Orders) -> None:
    """Run the job, or go on with it. Raises: ServiceBusError, SearchError, WorkFailed."""
    run = _Rescheduling(work, connection)
    telling = Telling(output, orders)
    kept = work.get("checkpoint")
    if kept is None:
        highest = run.browser.last_numbers()
    else:
        highest = {int(partition): number for partition, number in kept["highest"].items()}
    run.look(Snapshot(highest))
    before = 0 if kept is None else kept["done"]
    output.line({"begun": {"of": before + len(run.wanted), "guarantee": run.guarantee}})

    def save() -> None:
        telling.keep({"highest": highest, "done": before + run.done}, before + run.done)

    save()
    for slice_ in run.slices():
        if orders.is_stopped:
            break
        run.move(slice_)
        telling.tell(before + run.done)
    save()
    left = 0 if orders.is_stopped else run.left
    output.line({"end": {"done": before + run.done, "left": left, "isStopped": orders.is_stopped}})


class _Rescheduling:
    """The messages of the job."""

    def __init__(self, work: Work, connection: BlockingConnection) -> None:
        plan = plan_of(work)
        self.guarantee = plan.guarantee.sentence
        self.browser = Browser(connection, plan.source)
        self._schedules = Schedules(connection, plan.source, may_drop=work["mayDrop"])
        self._chooses = plan.chooser()
        self._regex = plan.criteria.regex
        self._at_ms = _times(work)
        self._copies: dict[int, int] = {}
        """Number of an original -> number of its copy."""
        self.wanted: set[int] = set()
        self._outcomes: Counter[Moved] = Counter()

    @property
    def done(self) -> int:
        """Messages that were moved."""
        return self._outcomes[Moved.DONE]

    @property
    def left(self) -> int:
        """Messages that may be where they were, or in two places."""
        return sum(self._outcomes[each] for each in (Moved.TWICE, Moved.UNKNOWN, Moved.DROPPED))

    def look(self, snapshot: Snapshot) -> None:
        """Find the messages of the job, and copies of an earlier run."""
        for page in paced(self.browser, 0):
            with limited(self._regex):
                self._look_at(page, snapshot)

    def _look_at(self, page: Sequence[bytes], snapshot: Snapshot) -> None:
        for payload in filter(is_scheduled, page):
            number = sequence_number(payload)
            if (origin := origin_of(payload)) is not None:
                self._copies[origin] = number
            if snapshot.has(number) and self._chooses(Peeked(payload)):
                self.wanted.add(number)

    def slices(self) -> Any:
        """Yield the messages of the job that are still scheduled, some at a time."""
        for page in paced(self.browser, min(self.wanted, default=1 << 63)):
            found = [each for each in page if sequence_number(each) in self.wanted and is_scheduled(each)]
            for start in range(0, len(found), TOGETHER):
                yield found[start : start + TOGETHER]
            if sequence_number(page[-1]) >= max(self.wanted):
                return

    def move(self, payloads: Sequence[bytes]) -> None:
        """Move some messages; complete those that have copies."""
        begun = [number for each in payloads if (number := sequence_number(each)) in self._copies]
        self._outcomes.update(self._schedules.complete([(each, self._copies[each]) for each in begun]))
        rest = [each for each in payloads if sequence_number(each) not in self._copies]
        if rest:
            self._outcomes.update(self._schedules.move(rest, self._at_ms))


def _times(work: Work) -> Callable[[bytes], int]:
    """Return when a message is to be enqueued, UTC ms."""
    at_ms: int | None = work.get("atMs")
    if at_ms is not None:
        return lambda payload: at_ms
    shift_ms: int = work["shiftMs"]
    return lambda payload: max(0, (due_ms(payload) or 0) + shift_ms)
