"""A search: messages that meet criteria, written as they are found."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from peeklock.client.browsing import Browser, sequence_number
from peeklock.client.connection import BlockingConnection
from peeklock.search import STATES, Criteria, Peeked, Search, SearchError
from peeklock.worker.output import Output, WorkFailed
from peeklock.worker.pacing import paced
from peeklock.worker.showing import shown

PROGRESS_S: Final = 0.25
"""Between two figures of progress. Our choice: at once, to a person."""

REGEX_S: Final = 5.0
"""How long a regular expression may take over a page of messages, or over one that a job receives. Our
choice."""


@dataclass(frozen=True, slots=True)
class Sought:
    """Criteria as a work has them."""

    criteria: Criteria
    states: frozenset[str] | None
    """Names of states; None = all."""

    @classmethod
    def of(cls, work: Mapping[str, Any]) -> Sought:
        """Read a work."""
        states = work.get("states")
        return cls(Criteria(**work["criteria"]), None if states is None else frozenset(states))

    def chooser(self) -> Callable[[Peeked], bool]:
        """Return whether a message is meant. Raises: SearchError."""
        try:
            matches = Search.compile(self.criteria).matches
        except (re.error, MemoryError) as error:
            raise SearchError("regex", f"the expression cannot be used ({error})") from None
        states = self.states
        if states is None:
            return matches
        return lambda peeked: STATES[peeked.state] in states and matches(peeked)


class Progress:
    """How far a work is, told from time to time."""

    def __init__(self, output: Output, of: int | None) -> None:
        """`of`: messages that there are, as far as known."""
        self._output = output
        self._of = of
        self._began_s = self._told_s = time.monotonic()
        self.examined = 0
        self.tell()

    def add(self, count: int) -> None:
        """Count messages."""
        self.examined += count
        if time.monotonic() - self._told_s >= PROGRESS_S:
            self.tell()

    def tell(self) -> None:
        """Write the figures."""
        now_s = self._told_s = time.monotonic()
        of = {} if self._of is None else {"of": max(self._of, self.examined)}
        rate = self.examined / max(now_s - self._began_s, 0.001)
        self._output.event("progress", {"examined": self.examined, **of, "perSecond": round(rate)})


def search(work: Mapping[str, Any], connection: BlockingConnection, output: Output) -> None:
    """Search the entities of a work. Raises: ServiceBusError, SearchError, WorkFailed."""
    left, bytes_max = work.get("limit"), work.get("bodyBytesMax")
    found = 0
    why = "all"
    progress = Progress(output, work.get("of"))
    for entity, peeked in matching(work, connection, progress):
        messages = [{"entity": entity, **shown(each, bytes_max)} for each in peeked[:left]]
        output.messages(messages)
        found += len(messages)
        if left is not None:
            left -= len(messages)
            if left <= 0:
                why = "limit"
                break
    progress.tell()
    output.event("end", {"examined": progress.examined, "found": found, "why": why})


def matching(
    work: Mapping[str, Any], connection: BlockingConnection, progress: Progress
) -> Iterator[tuple[str, Sequence[Peeked]]]:
    """Yield the messages of a work page by page, with their entity; a page may have none.

    Raises: ServiceBusError, SearchError, WorkFailed.
    """
    sought = Sought.of(work)
    chooses, criteria = sought.chooser(), sought.criteria
    first, last = criteria.from_number or 0, criteria.to_number
    for entity in work["entities"]:
        for page in paced(Browser(connection, entity), first):
            with limited(criteria.regex):
                found = [peeked for peeked in map(Peeked, page) if chooses(peeked)]
            yield entity, found
            progress.add(len(page))
            if last is not None and sequence_number(page[-1]) >= last:
                break
        connection.management(entity).close()


def limited_chooser(chooses: Callable[[Peeked], bool], regex: str | None) -> Callable[[Peeked], bool]:
    """Return a chooser that raises WorkFailed if a regular expression takes too long for one message."""
    if regex is None:
        return chooses

    def within_limit(peeked: Peeked) -> bool:
        with limited(regex, "one message"):
            return chooses(peeked)

    return within_limit


@contextmanager
def limited(regex: str | None, what: str = "one page of messages") -> Iterator[None]:
    """Raise WorkFailed if a regular expression takes too long for something."""
    if regex is None:
        yield
        return

    def on_alarm(*_: object) -> None:
        raise WorkFailed(
            "expression too slow",
            f"The regular expression took over {REGEX_S:g} s for {what}: it was given up. "
            "Repetitions within repetitions, such as (a+)+, are slow.",
            400,
        )

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, REGEX_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
