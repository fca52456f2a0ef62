"""`peeklock keys`: the namespace's shared access keys."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

import click

from peeklock.cli.options import reported
from peeklock.cli.running import BrokerError, Place, RunningBroker, to_a_broker_or_folder
from peeklock.cli.tasks import Group

if TYPE_CHECKING:
    from peeklock.server.system.keys import NamespaceKeys

T = TypeVar("T")

_NAMESPACE = click.option(
    "--namespace",
    metavar="NAME",
    show_default="the default namespace",
    help="The namespace whose keys are meant.",
)


@click.group(cls=Group)
def keys() -> None:
    """Show and change the namespace's shared access keys.

    \b
    See the connection strings:  peeklock keys list ./data
    A key that may only send:    peeklock keys add ./data web --rights Send
    Replace a key:               peeklock keys rotate ./data web
    On another machine:          peeklock keys list --connection-string "Endpoint=sb://..."

    DIR is the data folder of a broker with `--auth sas`. The commands ask the broker that runs on it; if none
    does, they change the keys in the folder. A running broker refuses tokens signed with a removed key at
    once, and detaches the links that they opened. Keys of a single queue or topic are authorization rules;
    set them through the administration API.
    """


@keys.command("list")
@_NAMESPACE
@to_a_broker_or_folder()
def list_keys(place: Place, namespace: str | None) -> None:
    """Show each rule with its rights and keys, ready for a connection string."""
    with _keys_of(place, namespace) as found:
        click.echo(_shown(*found.load()))
    click.echo(
        "A connection string is Endpoint=sb://HOST:PORT; followed by one of the SharedAccessKeyName=... "
        "texts above. A client that connects without TLS also needs ;UseDevelopmentEmulator=true; at the end."
    )


@keys.command("add")
@_NAMESPACE
@to_a_broker_or_folder(named=True)
@click.option(
    "--rights",
    required=True,
    metavar="RIGHT[,RIGHT]",
    help="Send, Listen, or Manage, which includes both.",
)
def add_key(place: Place, namespace: str | None, name: str, rights: str) -> None:
    """Add a rule with two new keys, and show it."""
    with _keys_of(place, namespace) as found:
        click.echo(_shown(found.add(name, [right.strip() for right in rights.split(",")])))


@keys.command("rotate")
@_NAMESPACE
@to_a_broker_or_folder(named=True)
@click.option("--revoke", is_flag=True, help="Replace both keys: no old key works any more.")
def rotate_key(place: Place, namespace: str | None, name: str, revoke: bool) -> None:
    """Replace the primary key of a rule, and show the new one.

    The old primary key becomes the secondary key: clients that use it keep working until the next rotation.
    """
    with _keys_of(place, namespace) as found:
        click.echo(_shown(found.rotate(name, revoke=revoke)))


@keys.command("remove")
@_NAMESPACE
@to_a_broker_or_folder(named=True)
def remove_key(place: Place, namespace: str | None, name: str) -> None:
    """Remove a rule; clients that use its keys are detached."""
    with _keys_of(place, namespace) as found:
        removed, last_with_manage = found.remove(name)
    click.echo(f"removed {removed}")
    if last_with_manage:
        click.echo(
            "peeklock: no rule with Manage is left: only web tokens (--auth jwt) and authorization rules of "
            "entities allow administration, until `peeklock keys add` makes one",
            err=True,
        )


Rule = dict[str, Any]
"""As `/$api/v1/keys` shows it."""


def _shown(*rules: Rule) -> str:
    """Return a line for each rule and each of its keys, as a connection string has them."""
    lines = []
    for rule in rules:
        name = rule["name"]
        lines.append(f"{name} ({', '.join(rule['rights'])})")
        for which in ("primary", "secondary"):
            if key := rule[f"{which}Key"]:
                lines.append(f"  {which:9}  SharedAccessKeyName={name};SharedAccessKey={key}")
    return "\n".join(lines)


class _Keys(Protocol):
    """The keys of a namespace, in a data folder or in a running broker."""

    def load(self) -> list[Rule]: ...

    def add(self, name: str, rights: list[str]) -> Rule: ...

    def rotate(self, name: str, *, revoke: bool) -> Rule: ...

    def remove(self, name: str) -> tuple[str, bool]: ...


class _RunningKeys:
    """The keys of a running broker. What it refuses raises BrokerError."""

    def __init__(self, broker: RunningBroker, namespace: str | None) -> None:
        self._ask = broker.value
        if namespace is not None:
            broker.headers["Host"] = f"{namespace}.localhost"
            # For a name that is not there, the default namespace answers.
            there = self._ask("GET", "/$api/v1/namespaces")["namespaces"]
            if namespace.lower() not in (one["name"].lower() for one in there):
                raise BrokerError(f"{broker.where} has no namespace '{namespace}'")

    def load(self) -> list[Rule]:
        found: list[Rule] = self._ask("GET", _PATH)["keys"]
        return found

    def add(self, name: str, rights: list[str]) -> Rule:
        added: Rule = self._ask("PUT", f"{_at(name)}?{urlencode({'rights': ','.join(rights)})}")
        return added

    def rotate(self, name: str, *, revoke: bool) -> Rule:
        rotated: Rule = self._ask("POST", f"{_at(name)}?revoke={str(revoke).lower()}")
        return rotated

    def remove(self, name: str) -> tuple[str, bool]:
        done = self._ask("DELETE", _at(name))
        return done["removed"], done["lastWithManage"]


_PATH = "/$api/v1/keys"


def _at(name: str) -> str:
    return f"{_PATH}/{quote(name, safe='')}"


class _KeptKeys:
    """The keys in a data folder on which no broker runs."""

    def __init__(self, folder: Path, namespace: str | None) -> None:
        from peeklock.server.keys.rules import rule_json

        self._folder = folder
        self._namespace = namespace
        self._json = rule_json

    def load(self) -> list[Rule]:
        async def rules(keys: NamespaceKeys) -> list[Rule]:
            return [self._json(rule) for rule in keys.rules()]

        return self._run(rules)

    def add(self, name: str, rights: list[str]) -> Rule:
        return self._json(self._run(lambda keys: keys.add(name, rights)))

    def rotate(self, name: str, *, revoke: bool) -> Rule:
        return self._json(self._run(lambda keys: keys.rotate(name, revoke=revoke)))

    def remove(self, name: str) -> tuple[str, bool]:
        return self._run(lambda keys: keys.remove(name))

    def _run(self, do: Callable[[NamespaceKeys], Awaitable[T]]) -> T:
        """Do something with the keys. Raises: KeysRefused, StoreError."""
        import asyncio

        from peeklock.server.system.offline import with_keys

        return asyncio.run(with_keys(self._folder, self._namespace, do))


@contextlib.contextmanager
def _keys_of(place: Place, namespace: str | None) -> Iterator[_Keys]:
    from peeklock.server.keys.rules import KeysRefused
    from peeklock.store.base import StoreError

    with reported(KeysRefused, BrokerError, StoreError):
        if isinstance(place, RunningBroker):
            yield _RunningKeys(place, namespace)
        else:
            yield _KeptKeys(place, namespace)
