"""Deferred and scheduled messages, removed by their numbers: no receiver gets them otherwise."""

from __future__ import annotations

from collections.abc import Callable, Container, Generator, Sequence
from typing import Final

from peeklock.jobs.operations import Done, Message, Operation, Outcome, Peek, Remove
from peeklock.jobs.plan import Plan
from peeklock.jobs.survey import Snapshot
from peeklock.search import MessageState, Peeked

STATES: Final = (MessageState.SCHEDULED, MessageState.DEFERRED)


class Sweep:
    """Removes the deferred and scheduled messages of a purge, page by page."""

    def __init__(
        self,
        plan: Plan,
        snapshot: Snapshot,
        *,
        by_session: bool,
        states: Container[MessageState] = STATES,
        chooses: Callable[[Peeked], bool] | None = None,
    ) -> None:
        """`by_session`: the entity requires sessions; `states`: those to remove; `chooses`: as of `Job`.

        Raises: SearchError.
        """
        self._states = states
        self.done = 0
        self.left = 0
        """Messages that others hold."""
        self._snapshot = snapshot
        self._chooses = plan.chooser() if chooses is None else chooses
        self._by_session = by_session
        self._is_stopping = False
        self._steps = self._run()

    def start(self) -> Operation:
        """Return the first operation."""
        return next(self._steps)

    def step(self, outcome: Outcome) -> Operation:
        """Return the next operation after the outcome of the last one; none follows `Done`."""
        return self._steps.send(outcome)

    def stop(self) -> None:
        """Have it end after the messages under way."""
        self._is_stopping = True

    def _run(self) -> Generator[Operation, Outcome, None]:
        number = 0
        while not self._is_stopping and not self._snapshot.ends_before(number):
            page = yield Peek(number)
            assert isinstance(page, tuple), "the outcome of Peek"
            if not page:
                break
            for remove in self._removals(page):
                kept = yield remove
                assert isinstance(kept, frozenset), "the outcome of Remove"
                self.done += len(remove.numbers) - len(kept)
                self.left += len(kept)
            number = page[-1].number + 1
        yield Done()

    def _removals(self, page: Sequence[Message]) -> list[Remove]:
        """Return what to remove of a page: one operation for each state and session."""
        groups: dict[tuple[MessageState, str | None], list[int]] = {}
        for message in page:
            peeked = Peeked(message.payload)
            number = peeked.sequence_number
            if (
                number is not None
                and peeked.state in STATES
                and peeked.state in self._states
                and self._snapshot.has(number)
                and self._chooses(peeked)
            ):
                is_in_session = self._by_session and peeked.state is MessageState.DEFERRED
                session_id = (peeked.session_id or "") if is_in_session else None
                groups.setdefault((peeked.state, session_id), []).append(number)
        return [Remove(state, tuple(numbers), session_id) for (state, session_id), numbers in groups.items()]
