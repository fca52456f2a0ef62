"""`peeklock scheduled`: scheduled messages of any Service Bus shown, cancelled, and enqueued at another time.

It knows which messages a command means, and what it reports. `client.scheduling` knows how one is moved.
"""

from __future__ import annotations

import functools
import sys
import time
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from peeklock.cli.message_output import FULL, JSON, Output, Progress
from peeklock.cli.options import parsed
from peeklock.cli.places import Given, instant_ms, namespace_options

if TYPE_CHECKING:
    from peeklock.client.connection import BlockingConnection
    from peeklock.client.scheduling import Moved, Schedules
    from peeklock.search import Search

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C."""

_NUMBER = click.IntRange(0, (1 << 63) - 1)
_TIME = "ISO 8601, in UTC if it has no zone."

OTHER_RUN_S: Final = 20.0
"""How long a message with a copy is left to another run, which may be about to cancel it. Our choice: for
each of two requests, the time for which it is tried."""


# Options


def _span_ms(given: str) -> int:
    """Return a span, which may be negative, in ms. Raises: ValueError."""
    from peeklock.client.durations import UNLIMITED, parse_duration

    text = given.strip()
    span = parse_duration(text.removeprefix("-"))
    if span == UNLIMITED or not span:
        raise ValueError(f"{given!r} is not a span such as 2h, 1d or -30m.")
    return (-1 if text.startswith("-") else 1) * (span // timedelta(milliseconds=1))


_CRITERIA = (
    click.option("--filter", metavar="SQL", help="A filter as of a subscription's rule, such as n > 3."),
    click.option("--text", metavar="TEXT", help="The body contains this."),
    click.option("--regex", metavar="REGEX", help="This expression of Python is found in the body."),
    click.option("-i", "--ignore-case", is_flag=True, help="Of --text and --regex."),
    click.option("--json-path", metavar="PATH", help="The body is JSON with this: '$.order.total > 100'."),
    click.option("--session", "session_id", metavar="ID", help="Only messages of this session."),
    click.option(
        "--due-since", callback=parsed(instant_ms), metavar="TIME", help="Due at this or later: " + _TIME
    ),
    click.option("--due-until", callback=parsed(instant_ms), metavar="TIME", help="Due before this."),
    click.option("--from-number", type=_NUMBER, metavar="NUMBER", help="Lowest sequence number."),
    click.option("--to-number", type=_NUMBER, metavar="NUMBER", help="Highest sequence number."),
)

_CHOICE = (
    click.argument("numbers", nargs=-1, type=_NUMBER, metavar="[NUMBER]..."),
    click.option("--all", "everything", is_flag=True, help="All scheduled messages."),
    *_CRITERIA,
    click.option("--dry-run", is_flag=True, help="Show the messages, and change nothing."),
    click.option("--yes", is_flag=True, help="Do not ask."),
)


@dataclass(frozen=True, slots=True)
class _Wanted:
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


def _wanted(
    numbers: Collection[int] = (),
    due_since: int | None = None,
    due_until: int | None = None,
    **criteria: Any,
) -> _Wanted:
    """Return what is wanted. Raises: click.BadParameter."""
    from peeklock.search import Criteria, Search, SearchError

    try:
        search = Search.compile(Criteria(**criteria))
    except SearchError as failure:
        option = f"--{failure.criterion.replace('_', '-')}"
        raise click.BadParameter(str(failure), param_hint=option) from failure
    return _Wanted(search, frozenset(numbers), due_since, due_until)


@dataclass(slots=True)
class _Asked:
    """A command on some messages of an entity."""

    given: Given
    entity: str
    wanted: _Wanted
    by_number: bool
    dry_run: bool
    yes: bool


def _on_messages(right: str, *options: Callable[[Any], Any]) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator of a command: it gets an `_Asked` or, without `_CHOICE`, a `Given` and an entity."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(
            entity: str,
            connection_string: str | None,
            connection: str | None,
            ca: Path | None,
            entra: bool,
            **further: Any,
        ) -> None:
            given = Given(connection_string, connection, ca, entra)
            command(given, entity.strip("/"), **further)

        for option in reversed((click.argument("entity"), *options, *namespace_options(right))):
            called = option(called)
        return called

    return decorate


def _chosen(
    given: Given,
    entity: str,
    *,
    numbers: tuple[int, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    **criteria: Any,
) -> _Asked:
    """Return what is asked for. Raises: click.UsageError."""
    has_criteria = any(value not in (None, False) for value in criteria.values())
    if numbers and (has_criteria or everything):
        raise click.UsageError("give numbers or criteria, not both.")
    if not numbers and not has_criteria and not everything:
        raise click.UsageError("say which messages: their numbers, criteria such as --text, or --all.")
    return _Asked(given, entity, _wanted(numbers, **criteria), bool(numbers), dry_run, yes)


# Commands


@click.group()
def scheduled() -> None:
    """Show scheduled messages, cancel them, or enqueue them at another time.

    Exit status: 0 done; 1 not all, or no broker answers; 2 wrong options; 130 stopped by Ctrl-C.
    """


@scheduled.command("list")
@_on_messages("Listen", *_CRITERIA)
@click.option("--count", type=click.IntRange(1), default=20, metavar="N", help="Messages to show.")
@FULL
@JSON
def list_scheduled(given: Given, entity: str, count: int, full: bool, as_json: bool, **criteria: Any) -> None:
    """Show the scheduled messages of ENTITY, a queue or topic, with the times when they are due.

    \b
    The first:        peeklock scheduled list orders
    Due today:        peeklock scheduled list orders --due-until 2026-02-01T00:00Z --count 1000
    Of a topic:       peeklock scheduled list news
    For a program:    peeklock scheduled list orders --json | jq .scheduledEnqueueTime

    By sequence number. All criteria that are given must be true. Works with any Service Bus.

    Exit status: 0 shown; 1 refused, or no broker answers; 2 wrong options.
    """
    wanted = _wanted(**criteria)
    output = Output(as_json=as_json, full=full, due=True)
    with given.connected(entity, sends=True) as connection:
        left, seen = count, 0
        for messages in _schedules(connection, entity).read(criteria["from_number"] or 0):
            some = list(islice(wanted.among(messages), left))
            output.show(some)
            left -= len(some)
            seen += len(messages)
            output.progress(seen)
            if not left:
                break
        output.begin()
        output.clear()


@scheduled.command()
@_on_messages("Listen, and Send", *_CHOICE)
def cancel(given: Given, entity: str, **choice: Any) -> None:
    """Cancel scheduled messages of ENTITY: they are deleted.

    \b
    By number:       peeklock scheduled cancel orders 1234 1235
    By criteria:     peeklock scheduled cancel orders --text banana
    All, in a job:   peeklock scheduled cancel orders --all --yes

    A message that has become active meanwhile stays, and is counted. Criteria ask before they delete, and
    outside of a terminal they need --yes; numbers do not ask.

    Exit status: 0 done; 1 not all, or no broker answers; 2 wrong options; 130 stopped by Ctrl-C.
    """
    from peeklock.client.scheduling import Moved

    def do(schedules: Schedules, payload: bytes) -> Moved:
        from peeklock.client.browsing import sequence_number

        is_cancelled = schedules.cancel(sequence_number(payload))
        return Moved.GONE if is_cancelled is False else Moved.DONE

    _run(_chosen(given, entity, **choice), _Action("cancel", "cancelled", do, copies=False))


@scheduled.command()
@_on_messages(
    "Listen, and Send",
    *_CHOICE,
    click.option(
        "--to", "at_ms", required=True, callback=parsed(instant_ms), metavar="TIME", help="When: " + _TIME
    ),
)
def move(given: Given, entity: str, at_ms: int, **choice: Any) -> None:
    """Enqueue scheduled messages of ENTITY at another time.

    \b
    One message:    peeklock scheduled move orders 1234 --to 2030-01-31T12:00Z
    By criteria:    peeklock scheduled move orders --text banana --to 2030-01-31T12:00Z

    The service has no change of a schedule. A copy with all of the message is scheduled first, then the old
    one is cancelled, so no failure loses a message; the copy has another sequence number. Where the old one
    has become active meanwhile, the copy is cancelled. Run it again after a failure: it completes what it
    began, and leaves out what is done.

    Exit status: 0 done; 1 not all, or no broker answers; 2 wrong options; 130 stopped by Ctrl-C.
    """
    from peeklock.client.scheduling import due_ms

    def do(schedules: Schedules, payload: bytes) -> Moved | None:
        return None if due_ms(payload) == at_ms else schedules.move(payload, at_ms)

    _run(_chosen(given, entity, **choice), _Action("move", "moved", do))


@scheduled.command()
@_on_messages(
    "Listen, and Send",
    *_CHOICE,
    click.option(
        "--by", "by_ms", required=True, callback=parsed(_span_ms), metavar="SPAN", help="Such as 2h or -30m."
    ),
)
def shift(given: Given, entity: str, by_ms: int, **choice: Any) -> None:
    """Enqueue scheduled messages of ENTITY later, or earlier by a negative span.

    \b
    Later:      peeklock scheduled shift orders --all --by 2h
    Earlier:    peeklock scheduled shift orders 1234 --by=-30m

    A time that is past then means now. It works as `move` does: a copy is scheduled, then the old message is
    cancelled. Do not run it again after a failure as it was: it says how to go on.

    Exit status: 0 done; 1 not all, or no broker answers; 2 wrong options; 130 stopped by Ctrl-C.
    """
    from peeklock.client.scheduling import due_ms

    def do(schedules: Schedules, payload: bytes) -> Moved:
        return schedules.move(payload, (due_ms(payload) or 0) + by_ms)

    _run(_chosen(given, entity, **choice), _Action("shift", "shifted", do, repeats=True))


@scheduled.command()
@_on_messages("Listen, and Send", *_CHOICE)
def deliver(given: Given, entity: str, **choice: Any) -> None:
    """Enqueue scheduled messages of ENTITY now.

    \b
    One message:    peeklock scheduled deliver orders 1234
    By criteria:    peeklock scheduled deliver orders --due-until 2026-02-01T00:00Z

    It works as `move` does: a copy is enqueued, then the old message is cancelled. Of an entity that detects
    duplicates, or may do so, the copy comes after 5 seconds.

    Exit status: 0 done; 1 not all, or no broker answers; 2 wrong options; 130 stopped by Ctrl-C.
    """

    def do(schedules: Schedules, payload: bytes) -> Moved:
        return schedules.move(payload, None)

    _run(_chosen(given, entity, **choice), _Action("deliver", "delivered", do))


# What they have in common


@dataclass(frozen=True, slots=True)
class _Action:
    """What a command does with each message."""

    verb: str
    done: str
    do: Callable[[Schedules, bytes], Moved | None]
    """None = it was done before."""
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


def _schedules(connection: BlockingConnection, entity: str, *, may_drop: bool = True) -> Schedules:
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


def _run(asked: _Asked, action: _Action) -> None:
    """Do it with each message that is wanted; report, and exit."""
    with asked.given.connected(asked.entity, sends=True) as connection:
        schedules = _schedules(connection, asked.entity)
        plan = _planned(asked, action, schedules)
        missing = sorted(asked.wanted.numbers - set(plan.numbers)) if asked.by_number else []
        for number in missing:
            click.echo(f"peeklock: no message {number} is scheduled in {asked.entity}", err=True)
        count = _messages(len(plan.numbers) - len(plan.copies))
        if asked.dry_run:
            click.echo(f"would {action.verb} {count}")
            sys.exit(1 if missing else 0)
        if not _confirmed(asked, f"{action.verb} {count} of {asked.entity}", bool(plan.numbers)):
            return
        if plan.copies:
            _leave_to_another_run(schedules, plan)
        if action.copies and plan.numbers:
            schedules = _schedules(connection, asked.entity, may_drop=_may_drop(connection, asked.entity))
        is_done = _do_all(asked, action, schedules, plan)
    sys.exit(0 if is_done and not missing else 1)


def _planned(asked: _Asked, action: _Action, schedules: Schedules) -> _Plan:
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
    text = f"{_messages(len(plan.copies))} had a copy; waiting {OTHER_RUN_S:.0f} s for the run that made it."
    click.echo(f"peeklock: {text}", err=True)
    time.sleep(OTHER_RUN_S)
    plan.copies = {
        origin: copied for origin, copied in plan.copies.items() if schedules.find(origin) is not None
    }


def _has(numbers: array[int], wanted: int) -> bool:
    """Return whether an ascending array has a number."""
    place = bisect_left(numbers, wanted)
    return place < len(numbers) and numbers[place] == wanted


def _confirmed(asked: _Asked, what: str, has_messages: bool) -> bool:
    if asked.by_number or asked.yes or not has_messages:
        return True
    if not sys.stdin.isatty():
        click.echo(f"peeklock: refused to {what} without --yes", err=True)
        sys.exit(1)
    return click.confirm(f"{what[0].upper()}{what[1:]}?")


def _do_all(asked: _Asked, action: _Action, schedules: Schedules, plan: _Plan) -> bool:
    """Do it with each message; return whether all is well. Exits after a failure."""
    from peeklock.client.browsing import sequence_number
    from peeklock.client.errors import ServiceBusError
    from peeklock.client.scheduling import Moved

    counts: Counter[Moved | None] = Counter()
    progress = Progress()
    completed: set[int] = set()
    seen = left = 0
    try:
        for payload in _payloads(schedules, plan.numbers):
            left = sequence_number(payload)
            seen += 1
            if left in plan.done:
                continue
            if left in plan.copies:
                outcome: Moved | None = schedules.complete(left, plan.copies[left])
                completed.add(plan.copies[left])
            else:
                outcome = action.do(schedules, payload)
            if left not in completed:  # else its original was counted
                counts[outcome] += 1
            if outcome is not None and outcome.name in _SAID:
                progress.clear()
                click.echo(f"peeklock: message {left} {_SAID[outcome.name]}", err=True)
            progress.show(seen, f"{seen:,} of {len(plan.numbers):,}")
    except (ServiceBusError, KeyboardInterrupt) as failure:
        progress.clear()
        if isinstance(failure, ServiceBusError):
            asked.given.report(failure, asked.entity, sends=True)
        text = f"{_messages(counts[Moved.DONE])} {action.done}. {_way_on(asked, action, left, plan)}"
        click.echo(text, err=True)
        sys.exit(1 if isinstance(failure, ServiceBusError) else INTERRUPTED)
    progress.clear()
    text = f"{_messages(counts[Moved.DONE])} {action.done}"
    if gone := len(plan.numbers) - seen + counts[Moved.GONE]:
        text += f"; {gone:,} no longer scheduled"
    if counts[None]:
        text += f"; {counts[None]:,} done before"
    click.echo(text)
    return not any(outcome is not None and outcome.name in _SAID for outcome in counts)


_SAID: Final = {
    "TWICE": "became active, or was cancelled, before its copy could be cancelled: it may come twice",
    "UNKNOWN": "has a copy, and was cancelled over a connection that broke: if it was due, it comes twice",
    "DROPPED": "is scheduled as before: the broker did not keep its copy. Its duplicate detection knows the "
    "message id, or its clock is ahead",
}
"""Outcome -> what is said of a message."""


def _payloads(schedules: Schedules, numbers: array[int]) -> Iterator[bytes]:
    """Yield the messages with these ascending numbers that are still scheduled."""
    from peeklock.client.browsing import sequence_number

    if not numbers:
        return
    for messages in schedules.read(numbers[0]):
        for payload in messages:
            number = sequence_number(payload)
            if number > numbers[-1]:
                return
            if _has(numbers, number):
                yield payload


def _way_on(asked: _Asked, action: _Action, left: int, plan: _Plan) -> str:
    """Return how to go on; `left`: the message that may have a copy and be scheduled itself."""
    if not action.repeats:
        return "Run the command again: it goes on."
    if asked.by_number:
        return f"Go on with the numbers from {left} on."
    return f"Go on with --from-number {left} --to-number {plan.numbers[-1]}."


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"
