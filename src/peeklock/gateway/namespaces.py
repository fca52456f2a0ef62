"""Which namespace a connection is for.

Owns: the look-up by host name, at `open` and for PLAIN already at SASL. Must not know: links, entities. There
is one namespace; the seam is here so that several need no change of the gateway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from peeklock.auth import Authority


@dataclass(frozen=True, slots=True)
class NamespaceEntry:
    """What a connection needs to know of the namespace it is for."""

    authority: Authority


class Namespaces(Protocol):
    """Where the namespace of a connection is looked up."""

    def find(self, host_name: str | None) -> NamespaceEntry | None:
        """Give the namespace that answers to a host name, None if there is none."""


class OneNamespace:
    """The only namespace of a broker: it answers to every name."""

    def __init__(self, authority: Authority) -> None:
        self._entry = NamespaceEntry(authority)

    def find(self, host_name: str | None) -> NamespaceEntry | None:
        """Give it."""
        return self._entry
