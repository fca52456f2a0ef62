"""`peeklock scheduled`: scheduled messages of any Service Bus shown, cancelled, and enqueued at another time.

It knows the options. `cli.schedule_runs` does it with each message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peeklock.cli.message_output import FULL, JSON, Output
from peeklock.cli.options import parsed
from peeklock.cli.places import Given, instant_ms, namespace_options
from peeklock.cli.schedule_runs import Action, Asked, Wanted, run, schedules_of
from peeklock.cli.tasks import Group

if TYPE_CHECKING:
    from peeklock.client.scheduling import Moved, Schedules

_NUMBER = click.IntRange(0, (1 << 63) - 1)
_TIME = "ISO 8601, in UTC if it has no zone."


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


def _wanted(
    numbers: Collection[int] = (),
    due_since: int | None = None,
    due_until: int | None = None,
    **criteria: Any,
) -> Wanted:
    """Return what is wanted. Raises: click.BadParameter."""
    from peeklock.search import Criteria, Search, SearchError

    try:
        search = Search.compile(Criteria(**criteria))
    except SearchError as failure:
        option = f"--{failure.criterion.replace('_', '-')}"
        raise click.BadParameter(str(failure), param_hint=option) from failure
    return Wanted(search, frozenset(numbers), due_since, due_until)


def _on_messages(right: str, *options: Callable[[Any], Any]) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator of a command: it gets an `Asked` or, without `_CHOICE`, a `Given` and an entity."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def called(
            entity: str,
            connection_string: str | None,
            connection: str | None,
            ca: Path | None,
            entra: bool,
            data: Path | None,
            **further: Any,
        ) -> None:
            given = Given(connection_string, connection, ca, entra, data)
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
) -> Asked:
    """Return what is asked for. Raises: click.UsageError."""
    has_criteria = any(value not in (None, False) for value in criteria.values())
    if numbers and (has_criteria or everything):
        raise click.UsageError("give numbers or criteria, not both.")
    if not numbers and not has_criteria and not everything:
        raise click.UsageError("say which messages: their numbers, criteria such as --text, or --all.")
    return Asked(given, entity, _wanted(numbers, **criteria), bool(numbers), dry_run, yes)


# Commands


@click.group(cls=Group)
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
        for messages in schedules_of(connection, entity).read(criteria["from_number"] or 0):
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

    def do(schedules: Schedules, payloads: list[bytes]) -> list[Moved]:
        from peeklock.client.browsing import sequence_number

        are_cancelled = schedules.cancel([*map(sequence_number, payloads)])
        return [Moved.GONE if each is False else Moved.DONE for each in are_cancelled]

    run(_chosen(given, entity, **choice), Action("cancel", "cancelled", do, copies=False))


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

    def do(schedules: Schedules, payloads: list[bytes]) -> list[Moved | None]:
        others = [payload for payload in payloads if due_ms(payload) != at_ms]
        outcomes = iter(schedules.move(others, lambda _: at_ms))
        return [None if due_ms(payload) == at_ms else next(outcomes) for payload in payloads]

    run(_chosen(given, entity, **choice), Action("move", "moved", do))


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

    def do(schedules: Schedules, payloads: list[bytes]) -> list[Moved]:
        return schedules.move(payloads, lambda payload: (due_ms(payload) or 0) + by_ms)

    run(_chosen(given, entity, **choice), Action("shift", "shifted", do, repeats=True))


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

    def do(schedules: Schedules, payloads: list[bytes]) -> list[Moved]:
        return schedules.move(payloads, lambda _: 0)

    run(_chosen(given, entity, **choice), Action("deliver", "delivered", do))
