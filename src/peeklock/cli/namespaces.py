"""`peeklock namespaces`: the namespaces of a running broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import click

from peeklock.cli.options import EXISTING_FILE, reported
from peeklock.cli.running import BrokerError, RunningBroker, to_a_running_broker
from peeklock.cli.tables import table
from peeklock.cli.tasks import Group

_JSON = click.option("--json", "as_json", is_flag=True, help="Print the broker's answer as JSON.")

_PATH = "/$api/v1/namespaces"


@click.group(cls=Group)
@to_a_running_broker
def namespaces(broker: RunningBroker) -> None:
    """Show, create and delete the namespaces of a running broker.

    \b
    See all:            peeklock namespaces list --data ./data
    One for a team:     peeklock namespaces create bank --data ./data
    With entities:      peeklock namespaces create bank --config Config.json --data ./data
    One for a test:     peeklock namespaces create --throw-away --data ./data
    Delete one:         peeklock namespaces delete bank --data ./data

    Each has its own entities, store, keys and limits, and none can reach another. Those of the configuration
    file are changed there. Needs a key with Manage on the default namespace, unless --data or --control is
    given or the broker is in development mode.

    Exit status: 0 done; 1 refused, or no broker answers; 2 wrong options.
    """


@namespaces.command("list")
@_JSON
@to_a_running_broker
def list_namespaces(broker: RunningBroker, as_json: bool) -> None:
    """Show all namespaces.

    KIND is default, configured (the configuration file names it), dropped (it names it no more), created (by
    this command) or throw-away.
    """
    with reported(BrokerError):
        found = broker.value("GET", _PATH)
    if as_json:
        click.echo(json.dumps(found))
        return
    rows = [
        (one["name"], one["kind"], one["tier"], one["durability"], _connections(one), _limits(one))
        for one in found["namespaces"]
    ]
    head = ("NAME", "KIND", "TIER", "DURABILITY", "CONNECTIONS", "LIMITS")
    click.echo("\n".join(table(head, rows, numbers={"CONNECTIONS"})))


@namespaces.command("show")
@click.argument("name")
@_JSON
@to_a_running_broker
def show_namespace(broker: RunningBroker, name: str, as_json: bool) -> None:
    """Show the namespace NAME."""
    with reported(BrokerError):
        found = broker.value("GET", _at(name))
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join(_lines(found)))


@namespaces.command("create")
@click.argument("name", required=False)
@click.option(
    "--config",
    type=EXISTING_FILE,
    metavar="FILE",
    help="A Config.json: the new namespace gets the queues, topics and Properties of the first one in it.",
)
@click.option("--tier", help="Basic, Standard or Premium.", show_default="that of the broker")
@click.option(
    "--host-name", "host_names", multiple=True, metavar="HOST", help="Further host names that mean it."
)
@click.option("--max-connections", type=click.IntRange(1), metavar="N", help="AMQP connections at a time.")
@click.option("--max-size-mb", type=click.IntRange(1), metavar="N", help="Size of all its entities.")
@click.option(
    "--max-messages-per-second", type=click.IntRange(1), metavar="N", help="Messages sent to it in a second."
)
@click.option(
    "--throw-away",
    is_flag=True,
    help="In memory, for tests: it ends when nobody has used it for its lease. Without NAME it is a GUID.",
)
@click.option("--lease", metavar="DURATION", help="Of a throw-away one, such as PT10M.")
@_JSON
@to_a_running_broker
def create_namespace(
    broker: RunningBroker,
    name: str | None,
    config: Path | None,
    throw_away: bool,
    lease: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Create the namespace NAME, and print its connection string.

    NAME is a part of host names: 1 to 63 letters, digits and -.
    """
    if name is None and not throw_away:
        raise click.UsageError("give the NAME of the new namespace, or --throw-away for one with a GUID.")
    if lease is not None and not throw_away:
        raise click.UsageError("--lease is for --throw-away: a namespace that stays has none.")
    if throw_away and any(limits.values()):
        raise click.UsageError("a throw-away namespace has no limits: leave them out.")
    body = _body(config, _properties(**limits))
    with reported(BrokerError):
        if throw_away:
            query = {key: value for key, value in (("name", name), ("lease", lease)) if value}
            made = broker.value("POST", f"{_PATH}?{urlencode(query)}", body)
        else:
            assert name is not None
            made = broker.value("PUT", _at(name), body)
    click.echo(json.dumps(made) if as_json else made.get("connectionString", f"created {made['name']}"))


@namespaces.command("delete")
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Show what would be deleted, and delete nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@to_a_running_broker
def delete_namespace(broker: RunningBroker, name: str, dry_run: bool, yes: bool) -> None:
    """Delete the namespace NAME with all its messages, and its keys.

    Its clients are told. Its event log stays.
    """
    with reported(BrokerError):
        found = broker.value("GET", _at(name))
        what = f"the namespace {found['name']} with all its messages ({_connections(found)} connections)"
        if dry_run:
            click.echo(f"would delete {what}")
            return
        if not yes:
            click.confirm(f"Delete {what}?", abort=True)
        broker.value("DELETE", _at(name))
    click.echo(f"deleted {found['name']}")


def _at(name: str) -> str:
    return f"{_PATH}/{quote(name, safe='')}"


def _properties(
    tier: str | None,
    host_names: tuple[str, ...],
    max_connections: int | None,
    max_size_mb: int | None,
    max_messages_per_second: int | None,
) -> dict[str, Any]:
    """Return the `Properties` that the options name."""
    given = {
        "Tier": tier and tier.capitalize(),
        "HostNames": list(host_names),
        "MaxConnections": max_connections,
        "MaxSizeInMegabytes": max_size_mb,
        "MaxMessagesPerSecond": max_messages_per_second,
    }
    return {key: value for key, value in given.items() if value}


def _body(config: Path | None, properties: dict[str, Any]) -> bytes:
    """Return the configuration of a new namespace; options win over the file. Raises: click.UsageError."""
    if config is None:
        given = {"UserConfig": {"Namespaces": [{"Name": "new", "Properties": properties}]}}
        return json.dumps(given).encode() if properties else b""
    content = config.read_bytes()
    if not properties:
        return content
    from peeklock.config.form import ConfigError, load

    try:
        given = load(content)
        namespace = given["UserConfig"]["Namespaces"][0]
        namespace["Properties"] = {**namespace.get("Properties", {}), **properties}
    except (ConfigError, KeyError, IndexError, TypeError, AttributeError) as failure:
        raise click.UsageError(f"--config {config} is no Config.json: {failure}.") from failure
    return json.dumps(given).encode()


def _limits(found: dict[str, Any]) -> str:
    """Return the limits of a namespace, in one cell."""
    shown = [
        f"{key}={','.join(value) if isinstance(value, list) else value}"
        for key, value in found["properties"].items()
        if key != "Tier"
    ]
    if "lease" in found:
        shown.append(f"lease={found['lease']}")
    return " ".join(shown) or "-"


def _lines(found: dict[str, Any]) -> list[str]:
    """Return a line for each figure of a namespace."""
    figures = {**found, **found["properties"]}
    del figures["properties"]
    figures.pop("Tier", None)
    width = max(map(len, figures))
    return [
        f"{name:<{width}}  {', '.join(value) if isinstance(value, list) else value}"
        for name, value in figures.items()
    ]


def _connections(one: dict[str, Any]) -> str:
    """Return how many there are; of a namespace on another node it is not known."""
    count = one["connections"]
    return "-" if count is None else str(count)
