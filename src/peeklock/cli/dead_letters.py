"""`peeklock dead-letters`: what could not be processed, grouped, shown, sent again or dropped."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peeklock.cli.criteria import NUMBER, REASON, bad_criterion, by_criteria, compiled, state_of
from peeklock.cli.message_output import FULL, JSON, Output
from peeklock.cli.moving import DRY_RUN, YES, edits_of, forwarding, refuse_with_resume
from peeklock.cli.places import Given, Place, in_a_namespace
from peeklock.cli.tasks import Group

if TYPE_CHECKING:
    from peeklock.jobs.groups import Groups
    from peeklock.jobs.plan import Plan
    from peeklock.search import Search

_BY = click.option(
    "--by",
    default="reason",
    show_default=True,
    metavar="WHAT",
    help="reason, property:NAME, or json:PATH, such as json:'$.order.kind'.",
)
_GROUP = click.option("--group", metavar="NAME", help="Only of this group, as `groups` names it.")


@click.group("dead-letters", cls=Group)
def dead_letters() -> None:
    """Look at dead letters, send them again, or drop them.

    \b
    Why they are there:   peeklock dead-letters groups orders
    One of them:          peeklock dead-letters show orders 1234
    Send them again:      peeklock dead-letters resubmit orders --reason MaxDeliveryCountExceeded
    Drop them:            peeklock dead-letters drop orders --reason TTLExpiredException

    ENTITY is a queue, or TOPIC/Subscriptions/NAME. Works with any Service Bus. `peeklock pipeline resubmit`
    chooses dead letters by Spark.

    Exit status: 0 done; 1 not all, refused, or no broker answers; 2 wrong options; 130 stopped by Ctrl-C.
    """


def _of_an_entity(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say where; the command gets a `Place` first."""

    @functools.wraps(command)
    def placed(entity: str, given: Given, **options: Any) -> None:
        command(Place(entity, given, True, False, None), **options)

    return click.argument("entity")(in_a_namespace("Listen")(placed))


@dead_letters.command("groups")
@_of_an_entity
@_BY
@REASON
@by_criteria
@click.option("--json", "as_json", is_flag=True, help="Print JSON Lines: a group on each line.")
def groups(place: Place, by: str, as_json: bool, **criteria: Any) -> None:
    """Count the dead letters of ENTITY by their reason, or by a value of theirs.

    \b
    By reason:             peeklock dead-letters groups orders
    By a property:         peeklock dead-letters groups orders --by property:kind
    By a value in JSON:    peeklock dead-letters groups orders --by json:'$.order.kind'

    EXAMPLE is the number of the first one, for `show`. Times are those of the first enqueue.

    Exit status: 0 shown; 1 refused, or no broker answers; 2 wrong options.
    """
    from peeklock.jobs.groups import Groups, grouping
    from peeklock.search import SearchError

    try:
        found = Groups(grouping(by))
    except SearchError as failure:
        raise bad_criterion(failure) from failure
    search = compiled(**criteria)
    with place.browser() as browser:
        for messages in browser.read(criteria["from_number"] or 0):
            found.add(search.among(messages))
    _show_groups(found, as_json=as_json)


def _show_groups(groups: Groups, *, as_json: bool) -> None:
    import json

    from peeklock.cli.tables import table
    from peeklock.cli.visible import visible
    from peeklock.jobs.groups import NOTHING
    from peeklock.search import instant_text

    def time(at_ms: int | None) -> str | None:
        return None if at_ms is None else instant_text(at_ms)

    rows = []
    found = groups.found()
    if groups.others.count:
        found.append(groups.others)
    for group in found:
        oldest, newest = time(group.oldest_ms), time(group.newest_ms)
        if as_json:
            name = None if group.name == NOTHING else group.name
            shown = {"group": name, "count": group.count, "oldest": oldest, "newest": newest}
            click.echo(json.dumps({**shown, "example": group.example}))
        rows.append(
            [f"{group.count:,}", _short(oldest), _short(newest), str(group.example), visible(group.name)]
        )
    if not as_json:
        click.echo("\n".join(table(["COUNT", "OLDEST (UTC)", "NEWEST (UTC)", "EXAMPLE", "GROUP"], rows)))


def _short(time: str | None) -> str:
    return "-" if time is None else time.partition(".")[0].replace("T", " ")


@dead_letters.command("list")
@_of_an_entity
@REASON
@by_criteria
@click.option("--count", type=click.IntRange(1), metavar="N", help="Stop after so many.", show_default="all")
@FULL
@JSON
def list_dead_letters(place: Place, count: int | None, full: bool, as_json: bool, **criteria: Any) -> None:
    """Show the dead letters of ENTITY, or those that meet all criteria, without taking them.

    \b
    All:             peeklock dead-letters list orders
    Of one reason:   peeklock dead-letters list orders --reason MaxDeliveryCountExceeded
    For a program:   peeklock dead-letters list orders --json

    Exit status: 0 shown; 1 refused, or no broker answers; 2 wrong options.
    """
    search = compiled(**criteria)
    _show(place, search, Output(as_json=as_json, full=full), criteria["from_number"] or 0, count)


@dead_letters.command("show")
@_of_an_entity
@click.argument("number", type=NUMBER)
@JSON
def show_dead_letter(place: Place, number: int, as_json: bool) -> None:
    """Show the dead letter of ENTITY with a sequence number as a whole: why it is there, and what it is.

    Exit status: 0 shown; 1 there is none, refused, or no broker answers; 2 wrong options.
    """
    search = compiled(from_number=number, to_number=number)
    output = Output(as_json=as_json, full=True)
    _show(place, search, output, number, 1)
    if not output.shown:
        click.echo(f"peeklock: {place.entity} has no dead letter {number}.", err=True)
        raise SystemExit(1)


def _show(place: Place, search: Search, output: Output, number: int, count: int | None) -> None:
    from peeklock.cli.browsing import show

    with place.browser() as browser:
        show(browser, search, output, number, count, ahead=count is None)


@dead_letters.command("resubmit")
@click.argument("entity", required=False)
@in_a_namespace("Listen and Send")
@REASON
@_BY
@_GROUP
@by_criteria
@click.option("--to-entity", metavar="NAME", help="Where to send them.  [default: the original]")
@click.option("--as-is", is_flag=True, help="Do not add the two properties about the resubmission.")
@forwarding
def resubmit(entity: str | None, given: Given, resume: Path | None, dry_run: bool, **options: Any) -> None:
    """Send the dead letters of ENTITY again, and remove each from the dead-letter queue.

    \b
    All:                  peeklock dead-letters resubmit orders
    Of one reason:        peeklock dead-letters resubmit orders --reason MaxDeliveryCountExceeded
    Of a group:           peeklock dead-letters resubmit orders --by property:kind --group pizza
    A few, slowly:        peeklock dead-letters resubmit orders --count 100 --rate 10
    Repaired:             peeklock dead-letters resubmit orders --set version:=2 --remove draft
    Elsewhere:            peeklock dead-letters resubmit orders --to-entity orders-repaired
    After a break:        peeklock dead-letters resubmit --resume FILE

    Those of a subscription go to its topic: each subscription whose rules match gets them. --to-entity sends
    them to a queue instead.

    DeadLetterReason and DeadLetterErrorDescription are removed. The properties peeklock-resubmits, how often,
    and peeklock-resubmitted-from, the path, are added. Those that fail again stay: only what is there at the
    start is sent.

    It says first how often a message arrives: exactly once, by transactions; where there are none, exactly
    once if the target is known to detect duplicates, else at least once. Message ids are new where the target
    may detect duplicates: it would drop an id that it knows. Nothing is lost when this is killed; the
    checkpoint that it names says how to go on. `peeklock pipeline resubmit` does the same for messages that
    Spark chooses.

    Exit status: 0 all are sent; 1 not all, refused, or no broker answers; 2 wrong options; 130 stopped by
    Ctrl-C.
    """
    from peeklock.cli.job_running import Ends, forward
    from peeklock.jobs.plan import Plan

    command = "peeklock dead-letters resubmit"
    if resume is not None:
        refuse_with_resume({"entity": entity, **options, "by": None})
        nothing = Plan(work="resubmit", namespace="", source="")
        forward(Ends(given), nothing, command, resumed=resume, dry_run=dry_run)
        return
    if entity is None:
        raise click.UsageError("say whose dead letters: ENTITY, or --resume FILE.")
    keeps_ids = options.pop("keep_ids")
    plan = _resubmission(Place(entity, given, True, False, None).path, options)
    forward(Ends(given), plan, command, keeps_ids=keeps_ids, dry_run=dry_run)


def _resubmission(source: str, options: dict[str, Any]) -> Plan:
    from peeklock.jobs.plan import Plan, sends_to
    from peeklock.search import Criteria

    edits = edits_of(options)
    by, group, limit, rate = (options.pop(name) for name in ("by", "group", "count", "rate"))
    target = options.pop("to_entity") or sends_to(source)
    return Plan(
        work="resubmit",
        namespace="",
        source=source,
        target=target.strip("/"),
        by=by,
        group=group,
        edits=edits,
        limit=limit,
        rate=rate,
        is_marked=not options.pop("as_is"),
        criteria=Criteria(state=state_of("active"), **options),
    )


@dead_letters.command("drop")
@_of_an_entity
@REASON
@_BY
@_GROUP
@by_criteria
@DRY_RUN
@YES
def drop(place: Place, by: str, group: str | None, dry_run: bool, yes: bool, **criteria: Any) -> None:
    """Remove the dead letters of ENTITY for good: all, or those that meet all criteria.

    \b
    All:             peeklock dead-letters drop orders
    Of one reason:   peeklock dead-letters drop orders --reason TTLExpiredException
    In a program:    peeklock dead-letters drop orders --until 2026-01-31T12:00Z --yes

    It asks first. Those that come after the start stay.

    Exit status: 0 all are removed; 1 not all, refused, or no broker answers; 2 wrong options; 130 stopped by
    Ctrl-C.
    """
    from peeklock.cli.job_running import Ends, purge
    from peeklock.jobs.plan import Plan
    from peeklock.search import Criteria

    wanted = Criteria(**criteria)
    plan = Plan(work="purge", namespace="", source=place.path, criteria=wanted, by=by, group=group)
    purge(Ends(place.given), plan, ("active", "deferred"), dry_run=dry_run, yes=yes)
