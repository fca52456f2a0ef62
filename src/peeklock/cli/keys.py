"""`peeklock keys`: the namespace's shared access keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from peeklock.cli.options import DATA_FOLDER, reported

if TYPE_CHECKING:
    from peeklock.server.keys.keys import KeyFile

_NAME = click.argument("name", metavar="NAME")


@click.group()
def keys() -> None:
    """Show and change the namespace's shared access keys.

    \b
    See the connection strings:  peeklock keys list ./data
    A key that may only send:    peeklock keys add ./data web --rights Send
    Replace a key:               peeklock keys rotate ./data web

    DIR is the data folder of a broker that runs with `--auth sas`; the keys are in DIR/keys.json. A running
    broker follows a change within two seconds: it refuses tokens signed with a removed key and detaches the
    links that they opened. Keys of a single queue or topic are authorization rules; set them through the
    administration API.
    """


@keys.command("list")
@DATA_FOLDER
def list_keys(folder: Path) -> None:
    """Show each rule with its rights and keys, ready for a connection string."""
    with _key_file(folder) as file:
        click.echo(file.shown(*file.load()))
    click.echo(
        "A connection string is Endpoint=sb://HOST:PORT; followed by one of the SharedAccessKeyName=... "
        "texts above. A client that connects without TLS also needs ;UseDevelopmentEmulator=true; at the end."
    )


@keys.command("add")
@DATA_FOLDER
@_NAME
@click.option(
    "--rights",
    required=True,
    metavar="RIGHT[,RIGHT]",
    help="Send, Listen, or Manage, which includes both.",
)
def add_key(folder: Path, name: str, rights: str) -> None:
    """Add a rule with two new keys, and show it."""
    with _key_file(folder) as file:
        click.echo(file.shown(file.add(name, [right.strip() for right in rights.split(",")])))


@keys.command("rotate")
@DATA_FOLDER
@_NAME
@click.option("--revoke", is_flag=True, help="Replace both keys: no old key works any more.")
def rotate_key(folder: Path, name: str, revoke: bool) -> None:
    """Give a rule a new primary key, and show it.

    The old primary key becomes the secondary key: clients that use it keep working until the next rotation.
    """
    with _key_file(folder) as file:
        click.echo(file.shown(file.rotate(name, revoke=revoke)))


@keys.command("remove")
@DATA_FOLDER
@_NAME
def remove_key(folder: Path, name: str) -> None:
    """Remove a rule; clients that use its keys are detached."""
    with _key_file(folder) as file:
        removed, last_with_manage = file.remove(name)
    click.echo(f"removed {removed}")
    if last_with_manage:
        click.echo(
            "peeklock: no rule with Manage is left: only web tokens (--auth jwt) and authorization rules of "
            "entities allow administration, until `peeklock keys add` makes one",
            err=True,
        )


@contextlib.contextmanager
def _key_file(folder: Path) -> Iterator[KeyFile]:
    from peeklock.server.keys.keys import KeyFile, KeysRefused

    with reported(KeysRefused):
        yield KeyFile(folder)
