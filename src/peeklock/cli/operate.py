"""`peeklock health` and `peeklock connections`: what a running broker does."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from peeklock.cli.options import reported
from peeklock.cli.running import BrokerError, RunningBroker, to_a_running_broker
from peeklock.cli.tables import table
from peeklock.cli.tasks import Group

_JSON = click.option("--json", "as_json", is_flag=True, help="Print the broker's answer as JSON.")


@click.command()
@click.option("--live", "page", flag_value="live", help="Ask only whether it lives: if not, restart it.")
@click.option("--ready", "page", flag_value="ready", help="Ask only whether it takes sends and receives.")
@_JSON
@to_a_running_broker
def health(broker: RunningBroker, page: str | None, as_json: bool) -> None:
    """Ask a running broker how it is.

    \b
    On this machine:      peeklock health --data ./data
    In a container:       peeklock health --ready
    On another machine:   peeklock health --url http://broker:5300

    Prints the status, and the figures where they may be shown: always with --data or --control, else with a
    key, or in development mode. --ready stays 0 while only sends are refused, as on a full disk: receivers
    make room.

    Exit status: 0 it is well, lives or is ready; 1 it is not, or does not answer; 2 wrong options.
    """
    with reported(BrokerError):
        answer = broker.ask("GET", f"/{page or 'health'}")
    found = answer.value if isinstance(answer.value, Mapping) else {"status": str(answer.value)}
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(_figures(found)))
    sys.exit(0 if answer.status == 200 else 1)


@click.group(cls=Group, invoke_without_command=True)
@_JSON
@to_a_running_broker
@click.pass_context
def connections(context: click.Context, broker: RunningBroker, as_json: bool) -> None:
    """Show who is connected to a running broker, or close a connection.

    \b
    Show all:         peeklock connections --data ./data
    Close one:        peeklock connections close 12 --data ./data

    Each line is a link, seen from the client: credit is what may come over it now, unsettled what has no
    outcome yet, and the rate that of the second in which the command looks. Needs a key with Manage, unless
    --data or --control is given or the broker is in development mode.

    Exit status: 0 shown or closed; 1 refused, or no broker answers; 2 wrong options.
    """
    if context.invoked_subcommand is not None:
        return
    with reported(BrokerError):
        found = broker.value("GET", "/connections")
    if as_json:
        click.echo(json.dumps(found))
    else:
        rows = [row for each in found["connections"] for row in _rows(each)]
        click.echo("\n".join(table(_HEAD, rows, numbers=_NUMBERS)))


@connections.command("close")
@click.argument("connection_id", metavar="ID", type=click.IntRange(1))
@to_a_running_broker
def close_connection(broker: RunningBroker, connection_id: int) -> None:
    """Close the connection ID, as `peeklock connections` shows it.

    Its client gets amqp:connection:forced, and most clients connect again at once. To keep one out, remove
    its key with `peeklock keys remove`.
    """
    with reported(BrokerError):
        broker.value("DELETE", f"/connections/{connection_id}")
    click.echo(f"closed connection {connection_id}")


_HEAD = ("ID", "PEER", "KEY", "CLIENT", "AGE", "ROLE", "ENTITY", "CREDIT", "UNSETTLED", "MSG/S")
_NUMBERS = frozenset({"ID", "AGE", "CREDIT", "UNSETTLED", "MSG/S"})
"""Columns that are aligned to the right."""


def _figures(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the status, then a line for each figure."""
    yield str(found.get("status"))
    figures = {name: value for name, value in found.items() if name != "status"}
    width = max(map(len, figures), default=0)
    for name, value in figures.items():
        shown = json.dumps(value) if isinstance(value, Mapping) else value
        yield f"  {name:<{width}}  {shown}"


def _rows(connection: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each link of a connection; what is the connection's stands in the first."""
    client = connection["client"]
    first: tuple[str, ...] = (
        str(connection["id"]),
        connection["peer"],
        ", ".join(connection["identities"]) or "-",
        f"{client['product']} {client['version']}".strip() or client["containerId"],
        _age(connection["ageSeconds"]),
    )
    links = connection["links"] or [None]
    for link in links:
        if link is None:
            yield (*first, "-", "-", "-", "-", "-")
        else:
            session = f" session {link['sessionId']}" if "sessionId" in link else ""
            numbers = (str(link["credit"]), str(link["unsettled"]), f"{link['rate']:.1f}")
            yield (*first, link["role"], f"{link['entity']}{session}", *numbers)
        first = ("",) * len(first)


def _age(seconds: float) -> str:
    """Return an age in the unit that suits it."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
