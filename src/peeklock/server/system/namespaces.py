"""The list of the namespaces of a process, as facts.

It owns what is written down of a namespace; it must not know how one is made or served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from peeklock.broker.entities.validation import is_name
from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.hosts import is_host
from peeklock.server.system import keys
from peeklock.server.system.store import SystemStore
from peeklock.store.base import StoreDamaged

PREFIX = "namespace/"

_DEFAULT_FACT = "default-namespace"

Source = Literal["config", "command"]

_LIMITS = ("size_bytes_max", "connections_max", "messages_per_second")


class RecordInvalid(ValueError):
    """A value is not the record of a namespace; the message names the member and what is wrong."""


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """What is kept of one namespace, beside its own store."""

    name: str
    """As it was given; names that differ in case are the same namespace."""
    created_at_ms: int
    """UTC."""
    source: Source
    """Whether the configuration names it, or a command made it."""
    tier: str | None = None
    """None = the broker's."""
    size_bytes_max: int | None = None
    """Of its messages, together; None = no limit."""
    connections_max: int | None = None
    """At the same time; None = no limit."""
    messages_per_second: int | None = None
    """None = no limit."""
    host_names: tuple[str, ...] = ()
    """Further DNS names under which clients reach it."""

    def to_json(self) -> dict[str, Any]:
        """Return the record as a JSON object, without the members that have their defaults."""
        return {
            field.name: list(value) if isinstance(value, tuple) else value
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }

    @classmethod
    def from_json(cls, given: Any) -> NamespaceRecord:
        """Return the record of a JSON object. Raises: RecordInvalid."""
        if not isinstance(given, dict):
            raise RecordInvalid("a namespace must be a JSON object")
        fields = {field.name: field for field in dataclasses.fields(cls)}
        if unknown := sorted(set(given) - set(fields)):
            raise RecordInvalid(
                f"{unknown[0][:64]!r} is not a member of a namespace; it has {', '.join(fields)}"
            )
        for name, field in fields.items():
            if name not in given and field.default is dataclasses.MISSING:
                raise RecordInvalid(f"a namespace has no {name!r}")
        _check(given)
        host_names = tuple(given.get("host_names", ()))
        return cls(**{**given, "host_names": host_names})


class NamespaceList:
    """The records of all namespaces, in the system store."""

    def __init__(self, system: SystemStore) -> None:
        self._system = system

    def all(self) -> list[NamespaceRecord]:
        """Return all records by name, without regard to case. Raises: StoreDamaged."""
        return [record for key in self._system.keys_below(PREFIX) if (record := self._read(key)) is not None]

    def get(self, name: str) -> NamespaceRecord | None:
        """Return the record of a namespace by its name, in any case. Raises: StoreDamaged."""
        return self._read(_fact_key(name))

    async def put(self, record: NamespaceRecord) -> None:
        """Keep a record, in the place of one with this name. Raises: StoreError."""
        await self._system.put({_fact_key(record.name): record.to_json()})

    async def remove(self, name: str) -> None:
        """Remove a record, if there is one, and the namespace's keys with it. Raises: StoreError."""
        await self._system.put({_fact_key(name): None, keys.fact_key(name): None})

    def default(self) -> str | None:
        """Return the name that the default namespace had at the last start; None = there was none.

        Raises: StoreDamaged.
        """
        found = self._system.get(_DEFAULT_FACT)
        if found is None or (isinstance(found, str) and is_name(found)):
            return found
        raise StoreDamaged(f"the fact {_DEFAULT_FACT} of the process cannot be read: it must be a name")

    async def set_default(self, name: str) -> None:
        """Keep the name of the default namespace. One that has another name now keeps its keys.

        Raises: StoreError.
        """
        before = self.default()
        if before == name:
            return
        values: dict[str, Any] = {_DEFAULT_FACT: name}
        if before is not None and before.lower() != name.lower():
            old, new = keys.fact_key(before), keys.fact_key(name)
            if self._system.get(new) is None and (kept := self._system.get(old)) is not None:
                values.update({new: kept, old: None})
        await self._system.put(values)

    def _read(self, key: str) -> NamespaceRecord | None:
        found = self._system.get(key)
        if found is None:
            return None
        try:
            record = NamespaceRecord.from_json(found)
        except RecordInvalid as failure:
            raise StoreDamaged(f"the fact {key} of the process cannot be read: {failure}") from failure
        if _fact_key(record.name) != key:
            raise StoreDamaged(f"the fact {key} of the process contains {_fact_key(record.name)}")
        return record


def _fact_key(name: str) -> str:
    return PREFIX + name.lower()


def _check(given: Mapping[str, Any]) -> None:
    """Check the members that are there. Raises: RecordInvalid."""
    name, tier, hosts = given["name"], given.get("tier"), given.get("host_names", [])
    if not isinstance(name, str) or not is_name(name):
        raise RecordInvalid(f"name: {_shown(name)} cannot be the name of a namespace")
    if not _is_whole(given["created_at_ms"]):
        raise RecordInvalid(f"created_at_ms: {_shown(given['created_at_ms'])} is not a time in ms")
    if given["source"] not in get_args(Source):
        raise RecordInvalid(f"source: {_shown(given['source'])} is not one of {', '.join(get_args(Source))}")
    if tier is not None and (not isinstance(tier, str) or tier not in TIERS):
        raise RecordInvalid(f"tier: {_shown(tier)} is not one of {', '.join(TIERS)}")
    for member in _LIMITS:
        limit = given.get(member)
        if limit is not None and not (_is_whole(limit) and limit > 0):
            raise RecordInvalid(f"{member}: {_shown(limit)} is not a whole number above 0")
    if not isinstance(hosts, list) or not all(isinstance(host, str) and is_host(host) for host in hosts):
        raise RecordInvalid(f"host_names: {_shown(hosts)} is not a list of DNS names")


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0  # a bool is an int too


def _shown(value: Any) -> str:
    return repr(value)[:64]
