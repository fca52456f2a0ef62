"""`peeklock purge` and `move`: many messages removed, or moved to another entity, at any Service Bus."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peeklock.cli.connecting import complete_login
from peeklock.cli.criteria import REASON, STATE, by_criteria, state_of
from peeklock.cli.options import EXISTING_FILE, parsed
from peeklock.cli.places import Given, Place, at_a_place, in_a_namespace
from peeklock.cli.sending import pair, span_s

if TYPE_CHECKING:
    from peeklock.jobs.edits import Edits
    from peeklock.jobs.plan import Plan

DRY_RUN = click.option("--dry-run", is_flag=True, help="Only count the messages.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")

_FORWARD = (
    click.option(
        "--set",
        "set_",
        multiple=True,
        callback=parsed(pair),
        metavar="KEY=VALUE",
        help="Set an application property; repeatable. KEY:=VALUE is a number, true or false.",
    ),
    click.option(
        "--remove", multiple=True, metavar="KEY", help="Remove an application property; repeatable."
    ),
    click.option("--set-subject", metavar="TEXT", help="Their subject there."),
    click.option("--set-session", metavar="ID", help="Their session there."),
    click.option("--set-ttl", callback=parsed(span_s), metavar="SPAN", help="Their time to live: 30s, 7d."),
    click.option("--keep-ids", is_flag=True, help="Keep message ids, though the target may know them."),
    click.option("--count", type=click.IntRange(1), metavar="N", help="At most so many messages."),
    click.option(
        "--rate", type=click.FloatRange(0, min_open=True), metavar="N", help="At most so many a second."
    ),
    DRY_RUN,
    click.option(
        "--resume", type=EXISTING_FILE, metavar="FILE", help="Go on with the checkpoint of an earlier run."
    ),
)


def forwarding(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that sends messages on."""
    for option in reversed(_FORWARD):
        command = option(command)
    return command


def edits_of(given: dict[str, Any]) -> Edits:
    """Return the edits of options, which are taken out of `given`. Raises: click.UsageError."""
    from peeklock.jobs.edits import Edits

    ttl_s = given.pop("set_ttl")
    try:
        return Edits(
            set=dict(given.pop("set_")),
            remove=given.pop("remove"),
            subject=given.pop("set_subject"),
            session_id=given.pop("set_session"),
            ttl_ms=None if ttl_s is None else max(1, round(ttl_s * 1000)),
        )
    except ValueError as failure:
        raise click.UsageError(f"messages cannot have this: {failure}.") from failure


def refuse_with_resume(given: dict[str, Any]) -> None:
    """Raises: click.UsageError: a checkpoint says what the job is, and options say it too."""
    if any(value not in (None, False, ()) for value in given.values()):
        raise click.UsageError("--resume goes with options of connections alone: the file says the rest.")


@click.command()
@at_a_place
@STATE
@by_criteria
@REASON
@DRY_RUN
@YES
def purge(place: Place, state: str | None, dry_run: bool, yes: bool, **criteria: Any) -> None:
    """Remove messages of ENTITY: all, or those that meet all criteria.

    \b
    All of a queue:       peeklock purge orders
    How many those are:   peeklock purge orders --dry-run
    Of one kind:          peeklock purge orders --filter "sys.Label = 'test'"
    Old dead letters:     peeklock purge orders --dead-letter --until 2026-01-31T12:00Z
    In a program:         peeklock purge orders --state scheduled --yes

    It asks first. Without --state it removes active, deferred and scheduled messages. Messages that come
    after the start stay, and so does what other receivers hold. Works with any Service Bus.

    Active messages are received with locks. Those that do not match are locked until the end, so no one else
    gets them meanwhile; then they are released, which counts no delivery. If this is killed, their locks
    lapse, which counts one. Run it again to go on.

    Exit status: 0 all are removed; 1 not all, refused, or no broker answers; 2 wrong options; 130 stopped by
    Ctrl-C.
    """
    from peeklock.cli.job_running import Ends
    from peeklock.cli.job_running import purge as run
    from peeklock.jobs.plan import Plan
    from peeklock.search import Criteria

    states = ("active", "deferred", "scheduled") if state is None else (state,)
    wanted = Criteria(session_id=place.session, state=state_of(state), **criteria)
    plan = Plan(work="purge", namespace="", source=place.path, criteria=wanted)
    run(Ends(place.given), plan, states, dry_run=dry_run, yes=yes)


def _with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        in_a_namespace("Listen and Send"),
        click.option("--dead-letter", is_flag=True, help="From its dead-letter queue."),
        click.option("--transfer-dead-letter", is_flag=True, help="From its transfer dead-letter queue."),
        click.option("--session", metavar="ID", help="Only messages of this session."),
        click.option(
            "--to-connection",
            metavar="NAME",
            shell_complete=complete_login,
            help="The target's namespace, of `peeklock logins`.",
        ),
        click.option("--to-connection-string", metavar="TEXT", help="The target's namespace."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("source", required=False)
@click.argument("target", required=False)
@_with_options
@by_criteria
@REASON
@forwarding
def move(
    source: str | None,
    target: str | None,
    given: Given,
    to_connection: str | None,
    to_connection_string: str | None,
    resume: Path | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Move messages from SOURCE to TARGET, a queue or topic: all, or those that meet all criteria.

    \b
    All of a queue:        peeklock move orders backup
    Of one kind:           peeklock move orders pizzas --filter "sys.Label = 'pizza'"
    Changed:               peeklock move orders orders-v2 --set version:=2 --remove draft
    Slowly:                peeklock move orders backup --rate 50 --count 1000
    To another namespace:  peeklock move orders orders --to-connection cloud
    After a break:         peeklock move --resume FILE

    It says first how often a message arrives. In one namespace, without partitions: exactly once. Else:
    exactly once if the target is known to detect duplicates, or at least once. Nothing is lost when this is
    killed; the checkpoint that it names says how to go on. Deferred and scheduled messages stay, and so does
    what comes after the start. Works with any Service Bus.

    Messages that do not match are locked until the end; then they are released, which counts no delivery. If
    this is killed, their locks lapse, which counts one. Message ids are new where the target may detect
    duplicates: it would drop an id that it knows.

    Exit status: 0 all are moved; 1 not all, refused, or no broker answers; 2 wrong options; 130 stopped by
    Ctrl-C.
    """
    from peeklock.cli.job_running import Ends, forward
    from peeklock.jobs.plan import Plan

    if to_connection is not None and to_connection_string is not None:
        raise click.UsageError("give --to-connection or --to-connection-string, not both.")
    elsewhere = to_connection is not None or to_connection_string is not None
    there = replace(given, connection_string=to_connection_string, connection=to_connection, data=None)
    ends = Ends(given, there if elsewhere else None)
    command = "peeklock move"
    if resume is not None:
        refuse_with_resume({"source": source, "target": target, **options})
        nothing = Plan(work="move", namespace="", source="")
        forward(ends, nothing, command, resumed=resume, dry_run=dry_run)
        return
    if source is None or target is None:
        raise click.UsageError("say what to move: SOURCE and TARGET, or --resume FILE.")
    place = Place(source, given, options.pop("dead_letter"), options.pop("transfer_dead_letter"), None)
    keeps_ids = options.pop("keep_ids")
    forward(ends, _move(place.path, target, options), command, keeps_ids=keeps_ids, dry_run=dry_run)


def _move(source: str, target: str, options: dict[str, Any]) -> Plan:
    from peeklock.jobs.plan import Plan
    from peeklock.search import Criteria

    edits = edits_of(options)
    limit, rate, session_id = (options.pop(name) for name in ("count", "rate", "session"))
    return Plan(
        work="move",
        namespace="",
        source=source,
        target=target.strip("/"),
        edits=edits,
        limit=limit,
        rate=rate,
        criteria=Criteria(state=state_of("active"), session_id=session_id, **options),
    )
