"""The settings of a namespace in the configuration file, as far as it has its own.

The emulator's schema has none of them: their names and units are our choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from peeklock.broker.vocabulary.quotas import TIERS
from peeklock.config.form import Form, Object, none_of, shown
from peeklock.config.hosts import SHARED_HOST, is_host


@dataclass(frozen=True, slots=True)
class NamespaceLimits:
    """What is a namespace's own; None = as the process has it, or no limit."""

    tier: str | None = None
    """Key of `TIERS`."""
    host_names: tuple[str, ...] = ()
    """Further host names that mean it."""
    connections_max: int | None = None
    size_bytes_max: int | None = None
    """Of all its entities."""
    messages_per_second: int | None = None
    """Sent to it."""


NO_LIMITS = NamespaceLimits()


def _tier(value: Any) -> str:
    known = [tier.name for tier in TIERS.values()]
    if value not in known:
        raise ValueError(none_of(value, known))
    return str(value).lower()


def _hosts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and is_host(name) for name in value):
        raise ValueError(f"{shown(value)} is not a list of host names")
    if any("*" in name for name in value):
        raise ValueError(f"{shown(value)} has a pattern; name each host")
    names = tuple(name.lower().removesuffix(".") for name in value)
    if SHARED_HOST in names:
        raise ValueError(f"{shown(value)} has {SHARED_HOST}, the host name of all namespaces")
    return names


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 53:
        raise ValueError(f"{shown(value)} is not a whole number above 0")
    return value


_READERS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "Tier": ("tier", _tier),
    "HostNames": ("host_names", _hosts),
    "MaxConnections": ("connections_max", _count),
    "MaxSizeInMegabytes": ("size_bytes_max", lambda value: _count(value) << 20),
    "MaxMessagesPerSecond": ("messages_per_second", _count),
}


OTHER_WORDS: Mapping[str, str] = {key.lower(): f"Properties.{key}" for key in _READERS}
"""For `Form.object` of a namespace: a property that stands beside its name."""


def read_limits(form: Form, namespace: Mapping[str, Any], path: str) -> NamespaceLimits:
    """Return the `Properties` of a namespace; problems go to the form."""
    where = f"{path}.Properties"
    given = form.object(namespace.get("Properties", Object([])), where, tuple(_READERS)) or {}
    found = {}
    for key, value in given.items():
        field, read = _READERS[key]
        if (made := form.value(read, value, f"{where}.{key}")) is not None:
            found[field] = made
    return NamespaceLimits(**found)


def write_limits(limits: NamespaceLimits) -> dict[str, Any]:
    """Return the `Properties` of a namespace, which `read_limits` reads; what it leaves out is not there."""
    size = limits.size_bytes_max
    properties: dict[str, Any] = {
        "Tier": None if limits.tier is None else TIERS[limits.tier].name,
        "HostNames": list(limits.host_names) or None,
        "MaxConnections": limits.connections_max,
        "MaxSizeInMegabytes": None if size is None else size >> 20,
        "MaxMessagesPerSecond": limits.messages_per_second,
    }
    return {key: value for key, value in properties.items() if value is not None}


def limits_of(properties: Any) -> NamespaceLimits:
    """Return the limits that `write_limits` wrote. Raises: ValueError."""
    if not isinstance(properties, dict):
        raise ValueError(f"{shown(properties)} is not an object")
    form = Form()
    limits = read_limits(form, {"Properties": Object(list(properties.items()))}, "namespace")
    if form.problems:
        raise ValueError("; ".join(form.problems))
    return limits
