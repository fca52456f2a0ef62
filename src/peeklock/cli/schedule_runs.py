"""Runs over the scheduled messages of an entity: which are wanted, what is done with each, and the report.

It knows runs that were interrupted, or are under way. `client.scheduling` knows how one message is moved.
"""

from __future__ import annotations

import sys
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from peeklock.cli.message_output import Output, Progress, counted
from peeklock.cli.places import Given

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection
    from peeklock.client.scheduling import Moved, Schedules
    from peeklock.search import Search

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C."""

OTHER_RUN_S: Final = 20.0
"""How long a message with a copy is left to another run, which may be about to cancel it. Our choice: for
each of two requests, the time for which it is tried."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The messages that a command means: numbers, or criteria that must all be true."""

    search: Search
    numbers: frozenset[int] = frozenset()
    due_since: int | None = None
    due_until: int | None = None

    def among(self, messages: Iterable[bytes]) -> Iterator[Any]:
        """Yield those of the scheduled messages that are wanted."""
        from peeklock.client.scheduling import due_ms

        for peeked in self.search.among(messages):
            if self.numbers and peeked.sequence_number not in self.numbers:
                continue
            if self.due_since is not None or self.due_until is not None:
                at_ms = due_ms(peeked.payload) or 0
                if at_ms < (self.due_since or 0) or (self.due_until is not None and at_ms >= self.due_until):
                    continue
            yield peeked


@dataclass(slots=True)
class Asked:
    """A command on some messages of an entity."""

    given: Given
    entity: str
    wanted: Wanted
    by_number: bool
    dry_run: bool
    yes: bool


@dataclass(frozen=True, slots=True)
class Action:
    """What a command does with each message."""

    verb: str
    done: str
    do: Callable[[Schedules, list[bytes]], Sequence[Moved | None]]
    """Return what became of each message; None = it was done before."""
    copies: bool = True
    repeats: bool = False
    """A second run would do it again with what is done."""


@dataclass(slots=True)
class _Plan:
    """The wanted messages, and copies whose originals an interrupted run has left."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    """Ascending."""
    copies: dict[int, int] = field(default_factory=dict)
    """Number of an original -> number of its copy; both are scheduled."""
    done: set[int] = field(default_factory=set)
    """Copies that are what the command is to make."""

    def complete(self, pairs: Mapping[int, int], *, repeats: bool) -> None:
        """Add both of each pair of which one is wanted."""
        numbers = set(self.numbers) if pairs else set()
        for origin, copied in pairs.items():
            if origin not in numbers and copied not in numbers:
                continue
            self.copies[origin] = copied
            if repeats and origin in numbers:
                self.done.add(copied)
            numbers |= {origin, copied}
        if self.copies:
            self.numbers = array("q", sorted(numbers))


def schedules_of(connection: BlockingConnection, entity: str, *, may_drop: bool = True) -> Schedules:
    """Return the scheduled messages of an entity; `may_drop`: as of `Schedules`."""
    from peeklock.client.scheduling import Schedules

    return Schedules(connection, entity, may_drop=may_drop)


def _may_drop(connection: BlockingConnection, entity: str) -> bool:
    """Return whether an entity detects duplicates; True if the key may not ask for it."""
    from peeklock.client.administration import Administration
    from peeklock.client.errors import ServiceBusError
    from peeklock.client.requests import AdministrationError

    try:
        found = Administration.of(connection.settings).entity(entity)
    except (AdministrationError, ServiceBusError, OSError):
        return True
    return found is None or found.settings.get("RequiresDuplicateDetection") is not False


def run(asked: Asked, action: Action) -> None:
    """Do it with each message that is wanted; report, and exit."""
    with asked.given.connected(asked.entity, sends=True) as connection:
        schedules = schedules_of(connection, asked.entity)
        plan = _planned(asked, action, schedules)
        missing = sorted(asked.wanted.numbers - set(plan.numbers)) if asked.by_number else []
        for number in missing:
            click.echo(f"peeklock: no message {number} is scheduled in {asked.entity}", err=True)
        count = counted(len(plan.numbers) - len(plan.copies))
        if asked.dry_run:
            click.echo(f"would {action.verb} {count}")
            sys.exit(1 if missing else 0)
        if not _confirmed(asked, f"{action.verb} {count} of {asked.entity}", bool(plan.numbers)):
            return
        if plan.copies:
            _leave_to_another_run(schedules, plan)
        if action.copies and plan.numbers:
            schedules = schedules_of(connection, asked.entity, may_drop=_may_drop(connection, asked.entity))
        is_done = _do_all(asked, action, schedules, plan)
    sys.exit(0 if is_done and not missing else 1)


def _planned(asked: Asked, action: Action, schedules: Schedules) -> _Plan:
    """Return the messages that are wanted; show them in a dry run."""
    from peeklock.client.browsing import sequence_number
    from peeklock.client.scheduling import origin_of

    if asked.by_number and not action.copies and not asked.dry_run:
        found_numbers = [each for each in sorted(asked.wanted.numbers) if schedules.find(each) is not None]
        return _Plan(array("q", found_numbers))
    plan, there = _Plan(), array("q")
    copies: dict[int, int] = {}
    output = Output(as_json=False, full=False, due=True)
    first = min(asked.wanted.numbers, default=0)
    for messages in schedules.read(first):
        for payload in messages:
            there.append(sequence_number(payload))
            if (origin := origin_of(payload)) is not None:
                copies[origin] = there[-1]
        found = list(asked.wanted.among(messages))
        plan.numbers.extend(each.sequence_number for each in found)
        if asked.dry_run:
            output.show(found)
        output.progress(len(there))
    output.clear()
    if action.copies and not asked.dry_run:
        pairs = {
            origin: copied
            for origin, copied in copies.items()
            if _has(there, origin)
            or (origin < first and copied in asked.wanted.numbers and schedules.find(origin))
        }
        plan.complete(pairs, repeats=action.repeats)
    return plan


def _leave_to_another_run(schedules: Schedules, plan: _Plan) -> None:
    """Wait, in case another run is about to cancel the originals. It would take a copy for superfluous."""
    text = f"{counted(len(plan.copies))} had a copy; waiting {OTHER_RUN_S:.0f} s for the run that made it."
    click.echo(f"peeklock: {text}", err=True)
    time.sleep(OTHER_RUN_S)
    plan.copies = {
        origin: copied for origin, copied in plan.copies.items() if schedules.find(origin) is not None
    }


def _has(numbers: array[int], wanted: int) -> bool:
    """Return whether an ascending array has a number."""
    place = bisect_left(numbers, wanted)
    return place < len(numbers) and numbers[place] == wanted


def _confirmed(asked: Asked, what: str, has_messages: bool) -> bool:
    if asked.by_number or asked.yes or not has_messages:
        return True
    if not sys.stdin.isatty():
        click.echo(f"peeklock: refused to {what} without --yes", err=True)
        sys.exit(1)
    return click.confirm(f"{what[0].upper()}{what[1:]}?")


def _do_all(asked: Asked, action: Action, schedules: Schedules, plan: _Plan) -> bool:
    """Do it with each message; return whether all is well. Exits after a failure."""
    from peeklock.client.browsing import sequence_number
    from peeklock.client.errors import ServiceBusError
    from peeklock.client.scheduling import Moved

    counts: Counter[Moved | None] = Counter()
    progress = Progress()
    seen = left = 0
    try:
        for payloads in _payloads(schedules, plan.numbers):
            left = sequence_number(payloads[0])
            seen += len(payloads)
            for number, outcome in _outcomes(action, schedules, plan, payloads):
                counts[outcome] += 1
                if outcome is not None and outcome.name in _SAID:
                    progress.clear()
                    click.echo(f"peeklock: message {number} {_SAID[outcome.name]}", err=True)
            progress.show(seen, f"{seen:,} of {len(plan.numbers):,}")
    except (ServiceBusError, KeyboardInterrupt) as failure:
        progress.clear()
        if isinstance(failure, ServiceBusError):
            asked.given.report(failure, asked.entity, sends=True)
        text = f"{counted(counts[Moved.DONE])} {action.done}. {_way_on(asked, action, left, plan)}"
        click.echo(text, err=True)
        sys.exit(1 if isinstance(failure, ServiceBusError) else INTERRUPTED)
    progress.clear()
    text = f"{counted(counts[Moved.DONE])} {action.done}"
    if gone := len(plan.numbers) - seen + counts[Moved.GONE]:
        text += f"; {gone:,} no longer scheduled"
    if counts[None]:
        text += f"; {counts[None]:,} done before"
    click.echo(text)
    return not any(outcome is not None and outcome.name in _SAID for outcome in counts)


def _outcomes(
    action: Action, schedules: Schedules, plan: _Plan, payloads: list[bytes]
) -> Iterator[tuple[int, Moved | None]]:
    """Do it with some messages; yield the numbers of those that count, and what became of them."""
    from peeklock.client.browsing import sequence_number

    by_number = {sequence_number(payload): payload for payload in payloads}
    begun = [number for number in by_number if number in plan.copies]
    pairs = [(number, plan.copies[number]) for number in begun]
    yield from zip(begun, schedules.complete(pairs), strict=True)
    rest = [number for number in by_number if number not in plan.copies and number not in plan.done]
    outcomes = action.do(schedules, [by_number[number] for number in rest]) if rest else ()
    counted = {*plan.copies.values()}  # with their originals
    for number, outcome in zip(rest, outcomes, strict=True):
        if number not in counted:
            yield number, outcome


_SAID: Final = {
    "TWICE": "became active, or was cancelled, before its copy could be cancelled: it may come twice",
    "UNKNOWN": "has a copy, and was cancelled over a connection that broke: if it was due, it comes twice",
    "DROPPED": "is scheduled as before: the broker did not keep its copy. Its duplicate detection knows the "
    "message id, or its clock is ahead",
}
"""Outcome -> what is said of a message."""


def _payloads(schedules: Schedules, numbers: array[int]) -> Iterator[list[bytes]]:
    """Yield the messages with these ascending numbers that are still scheduled, some at a time."""
    from peeklock.client.browsing import sequence_number
    from peeklock.client.scheduling import TOGETHER

    if not numbers:
        return
    for messages in schedules.read(numbers[0]):
        wanted = [payload for payload in messages if _has(numbers, sequence_number(payload))]
        for start in range(0, len(wanted), TOGETHER):
            yield wanted[start : start + TOGETHER]
        if messages and sequence_number(messages[-1]) >= numbers[-1]:
            return


def _way_on(asked: Asked, action: Action, left: int, plan: _Plan) -> str:
    """Return how to go on; `left`: the message that may have a copy and be scheduled itself."""
    if not action.repeats:
        return "Run the command again: it goes on."
    if asked.by_number:
        return f"Go on with the numbers from {left} on."
    return f"Go on with --from-number {left} --to-number {plan.numbers[-1]}."
