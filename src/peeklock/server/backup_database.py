"""`peeklock backup` of a PostgreSQL database, on which a broker may run."""

from __future__ import annotations

import json
from contextlib import closing

from peeklock.server.backup import OfOne, Stores, only
from peeklock.server.disk import SYSTEM as SYSTEM_STORE
from peeklock.server.disk import store_name
from peeklock.server.system import default_name, namespaces
from peeklock.store.backup.format import SYSTEM, StoreHead
from peeklock.store.base import StoreFailed
from peeklock.store.encoding import definitions
from peeklock.store.postgres.address import Address, AddressInvalid
from peeklock.store.postgres.connections import Connections
from peeklock.store.postgres.database import store_names
from peeklock.store.postgres.reader import PostgresReader

_CONNECTIONS = 3
"""For the facts of the process, for a store, and for the list of all."""


def stores_at(url: str, namespace: str | None) -> Stores:
    """Yield the stores of a database.

    `namespace`: the only one, in any case, which becomes the default one; None = all. Raises: StoreError.
    """
    try:
        address = Address(url)
    except AddressInvalid as failure:
        raise StoreFailed(f"--store: {failure}") from failure
    with closing(Connections(address, "peeklock backup", "os", _CONNECTIONS, reads_only=True)) as connections:
        names = store_names(connections)
        if SYSTEM_STORE not in names:
            raise StoreFailed(f"{address.shown} has no stores of a broker: check the URL")
        with closing(PostgresReader(connections, SYSTEM_STORE)) as system:
            facts = definitions.read_all(system.entries()).facts
            default = json.loads(facts.get(default_name.FACT, '"default"'))
            found = [
                (StoreHead(default, "default", 0), store_name("", is_default=True)),
                *_others(names, facts),
            ]
            found = only(namespace, found, address.shown)
            one = None if namespace is None else found[0][0].name
            yield StoreHead(SYSTEM, "system", 0), system if one is None else OfOne(system, one)
            for head, name in found:
                with closing(PostgresReader(connections, name)) as reader:
                    yield head, reader


def _others(names: list[str], facts: dict[str, str]) -> list[tuple[StoreHead, str]]:
    """Return the namespaces beside the default one, without those that are made or deleted just now."""
    prefix = store_name("", is_default=False)
    found = []
    for name in names:
        if name.startswith(prefix):
            lower = name.removeprefix(prefix)
            record = json.loads(facts.get(namespaces.PREFIX + lower, "{}"))
            if record.get("whole", True):
                found.append((StoreHead(str(record.get("name", lower)), "namespace", 0), name))
    return found
