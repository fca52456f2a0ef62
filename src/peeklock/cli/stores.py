"""`peeklock check` and `peeklock export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peeklock.cli.options import reported
from peeklock.cli.running import BrokerError, Place, RunningBroker, to_a_broker_or_folder

if TYPE_CHECKING:
    from peeklock.store.check import Report


@click.command()
@click.argument(
    "folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--store", metavar="URL", help="The PostgreSQL database of a broker, instead of DIR.")
@click.option(
    "--repair",
    "repairs",
    is_flag=True,
    help="Then move each message with a damaged body to its dead-letter queue, without the body, and list "
    "them. Stop the broker first. For other damage see `peeklock serve --accept-loss`.",
)
def check(folder: Path | None, store: str | None, repairs: bool) -> None:
    """Verify the data folder DIR, or all stores of a database; changes nothing without --repair.

    Reads every frame and every body, checks their checksums and numbers, and lists the damage. KNOWN damage
    has been handled: a damaged body whose messages were dead-lettered without it.

    Exit status: 0 sound, or all damage is known; 1 damaged; 2 not a data folder. With --repair: the status
    after the repair.
    """
    from peeklock.server.repair import check as check_store

    if (folder is None) == (store is None):
        raise click.UsageError("give DIR, or --store URL.")
    if folder is None:
        sys.exit(_check_database(str(store), repairs))
    report = check_store(folder, repair_follows=repairs)
    for line in report.lines:
        click.echo(line)
    if repairs and report.damages:
        sys.exit(_repair(folder, report))
    sys.exit(report.exit_status)


def _check_database(url: str, repairs: bool) -> int:
    """Verify all stores of a database; return the exit status."""
    from peeklock.store.base import StoreError
    from peeklock.store.check import NOT_CHECKED

    if repairs:
        raise click.UsageError(
            "--repair is for a folder: a broker on the database repairs bodies that it reads."
        )
    try:
        from peeklock.server.check_database import check as check_stores

        report = check_stores(url)
    except ImportError as failure:
        click.echo(f"peeklock: psycopg is missing ({failure}): pip install 'peeklock[postgres]'", err=True)
        return NOT_CHECKED
    except StoreError as failure:
        click.echo(f"peeklock: {failure}", err=True)
        return NOT_CHECKED
    for line in report.lines:
        click.echo(line)
    return report.exit_status


def _repair(folder: Path, report: Report) -> int:
    """Dead-letter the messages with damaged bodies; return the exit status after that."""
    from peeklock.server.repair import check as check_store
    from peeklock.server.repair import repair
    from peeklock.store.base import StoreError

    if report.stops:
        said = "peeklock: --repair is for damaged bodies, and this is other damage; nothing was changed"
        if not report.is_gone:  # else the damage names the ways on
            said += ". Put back a copy of the folder, or start with what can be read: serve --accept-loss"
        click.echo(said, err=True)
        return 1
    with reported(StoreError):
        lost = repair(folder)
    messages = [each for each in lost if each.sequence_number]
    for each in lost:
        if not each.sequence_number:
            click.echo(f"the state of session '{each.session_id}' was cleared: '{each.queue_name}'")
    for each in messages:
        session = "" if each.session_id is None else f" of session '{each.session_id}'"
        message = f"message {each.sequence_number}{session} of '{each.queue_name}'"
        click.echo(f"{message} was dead-lettered without its body")
    if messages:
        one = len(messages) == 1
        count, they = ("1 message", "it is") if one else (f"{len(messages):,} messages", "they are")
        stay = f"the damaged bytes stay for rescue until {they} completed or deleted"
        click.echo(f"{count} dead-lettered; {stay}")
    left = check_store(folder)
    if left.damages:
        count = "1 damage is" if len(left.damages) == 1 else f"{len(left.damages):,} damages are"
        click.echo(f"{count} left, and no message needs what is damaged")
    return left.exit_status


@click.command()
@click.option(
    "--format",
    "kind",
    type=click.Choice(["config", "arm"]),
    default="config",
    help="A Config.json, or an ARM template, which Bicep can decompile.",
)
@to_a_broker_or_folder()
def export(place: Place, kind: str) -> None:
    """Print the queues, topics, subscriptions and rules of a broker as a Config.json or an ARM template.

    \b
    Of a data folder:     peeklock export ./data > Config.json
    On another machine:   peeklock export --connection-string "Endpoint=sb://..." > Config.json
    For Azure:            peeklock export ./data --format arm > azuredeploy.json

    Use it with `peeklock serve --config` or `peeklock import`. Changes nothing; a broker may be running on
    DIR. Standard error names what a broker over an empty folder would refuse, and what the file lacks.

    Exit status: 0 printed; 1 failed; 2 wrong options.
    """
    from peeklock.store.base import StoreError

    with reported(StoreError, BrokerError):
        text, warnings, tier = _exported(place)
    if kind == "arm":
        from peeklock.config.file import parse_config
        from peeklock.templates.arm_writing import format_template

        template = format_template(parse_config(text.encode())[0], tier)
        text, warnings = template.text, [*warnings, *template.warnings]
    click.echo(text.encode(), nl=False)  # bytes: JSON is UTF-8 on every terminal
    for warning in warnings:
        click.echo(f"peeklock: {warning}", err=True)


def _exported(place: Place) -> tuple[str, Sequence[str], str]:
    """Return the file, its warnings, and the tier, which a folder does not keep.

    Raises: StoreError, BrokerError.
    """
    if isinstance(place, RunningBroker):
        answer = place.value("GET", "/$api/v1/config")
        return answer["config"], answer["warnings"], answer.get("tier", "Standard")
    from peeklock.server.export import export_config

    exported = export_config(place)
    return exported.text, exported.warnings, "Standard"
