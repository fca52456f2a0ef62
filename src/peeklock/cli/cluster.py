"""`peeklock cluster`: the nodes of a cluster, and which namespace each owns."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

import click

from peeklock.cli.options import reported
from peeklock.cli.running import BrokerError, RunningBroker, to_a_running_broker
from peeklock.cli.tables import table
from peeklock.cli.tasks import Group

_PATH = "/$api/v1/cluster"


@click.group(cls=Group, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the broker's answer as JSON.")
@to_a_running_broker
@click.pass_context
def cluster(context: click.Context, broker: RunningBroker, as_json: bool) -> None:
    """Show the nodes of a cluster and the owners of its namespaces, or move a namespace.

    \b
    Ask any node:        peeklock cluster --data ./node
    Move a namespace:    peeklock cluster move bank node-2 --data ./node
    Let it be placed:    peeklock cluster move bank --data ./node

    STATE is live, leaving (it stops), unreachable (its listener fails, or all other nodes say so) or lost
    (it has not reported for 5 s). LAG is the time since its last report. EPOCH grows with each owner. A node
    that cannot reach the database shows what it knew last, and says so on standard error. Needs a key with
    Manage on the default namespace, unless --data or --control is given.

    Exit status: 0 shown or moved; 1 refused, or no broker answers; 2 wrong options.
    """
    if context.invoked_subcommand is not None:
        return
    with reported(BrokerError):
        found = broker.value("GET", _PATH)
    if as_json:
        click.echo(json.dumps(found))
        return
    click.echo("\n".join(table(_NODES, [_node(one) for one in found["nodes"]], numbers=("LAG",))))
    click.echo()
    rows = [_namespace(one) for one in found["namespaces"]]
    click.echo("\n".join(table(_NAMESPACES, rows, numbers=("EPOCH",))))
    if found["databaseUnreachedS"] is not None:
        click.echo(
            f"The node '{found['node']}' has not reached the database for {found['databaseUnreachedS']} s: "
            f"the tables above are {found['ageS']} s old. Its log says why.",
            err=True,
        )


@cluster.command("move")
@click.argument("namespace")
@click.argument("node", required=False)
@to_a_running_broker
def move_namespace(broker: RunningBroker, namespace: str, node: str | None) -> None:
    """Choose the node that owns a namespace from now on; without NODE, any node may.

    The node keeps it while it lives. The clients of the namespace connect again, and reach the new owner.
    """
    query = urlencode({"to": node or ""})
    with reported(BrokerError):
        broker.value("POST", f"{_PATH}/{quote(namespace, safe='')}?{query}")
    click.echo(f"{namespace} moves to {node}" if node else f"{namespace} may be on any node")


_NODES = ("NODE", "ADDRESS", "STATE", "LAG", "VERSION", "CANNOT REACH")
_NAMESPACES = ("NAMESPACE", "OWNER", "EPOCH", "CHOSEN", "NEXT")


def _node(one: dict[str, Any]) -> tuple[str, ...]:
    unreached = ", ".join(one["unreached"]) or "-"
    return one["name"], one["address"], one["state"], f"{one['lagS']} s", one["version"], unreached


def _namespace(one: dict[str, Any]) -> tuple[str, ...]:
    goes_on = one["next"] if one["next"] != one["owner"] else None
    return one["name"], one["owner"] or "-", str(one["epoch"]), one["chosen"] or "-", goes_on or "-"
