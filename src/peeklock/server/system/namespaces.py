"""The namespaces that a command has made, as facts of the process.

It owns what is kept of one beside its own store; it must not know how one is served. Those of the
configuration file are in that file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peeklock.config.hosts import is_host_label
from peeklock.config.namespace_limits import NO_LIMITS, NamespaceLimits, limits_of, write_limits
from peeklock.server.system import jobs, keys
from peeklock.server.system.store import SystemStore
from peeklock.store.base import StoreDamaged

PREFIX = "namespace/"

FOLDER = "namespaces"
"""In the data folder: the folders of the namespaces but the default one."""


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """What is kept of one namespace."""

    name: str
    """As it was given; names that differ in case are the same namespace."""
    limits: NamespaceLimits = NO_LIMITS
    is_whole: bool = True
    """False while it is made or deleted: the next start removes what a crash leaves of it."""


class NamespaceRecords:
    """The records of the namespaces that a command has made."""

    def __init__(self, system: SystemStore) -> None:
        self._system = system

    def all(self) -> list[NamespaceRecord]:
        """Return all, by name without regard to case. Raises: StoreDamaged."""
        return [_read(key, self._system.get(key)) for key in self._system.keys_below(PREFIX)]

    def has(self, name: str) -> bool:
        """Return whether there is a record of this name, in any case."""
        return self._system.get(_fact_key(name)) is not None

    async def put(self, record: NamespaceRecord) -> None:
        """Keep a record, in the place of one of this name. Raises: StoreError."""
        value = {"name": record.name, "properties": write_limits(record.limits), "whole": record.is_whole}
        await self._system.put({_fact_key(record.name): value})

    async def remove(self, name: str) -> None:
        """Remove the record, the keys and the jobs of a namespace, as far as there are any.

        Raises: StoreError.
        """
        own = {_fact_key(name): None, keys.fact_key(name): None}
        await self._system.change(lambda: {**jobs.forgotten(self._system, name), **own})


def _fact_key(name: str) -> str:
    return PREFIX + name.lower()


def _read(key: str, found: Any) -> NamespaceRecord:
    """Return the record in a fact. Raises: StoreDamaged."""
    try:
        name, properties, whole = found["name"], found["properties"], found["whole"]
        if not isinstance(name, str) or not is_host_label(name) or _fact_key(name) != key:
            raise ValueError(f"{name!r} is not its name")
        return NamespaceRecord(name, limits_of(properties), bool(whole))
    except (KeyError, TypeError, ValueError) as failure:
        raise StoreDamaged(f"the fact {key} of the process cannot be read: {failure}") from failure
