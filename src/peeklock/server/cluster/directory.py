"""Which namespace of the cluster a host name or a user means, whichever node owns it.

In a cluster the names alone decide: keys are with the owners. What names none means the default namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from peeklock.config.hosts import SHARED_HOST, host_in
from peeklock.server.namespaces.lifecycle import Wanted
from peeklock.server.namespaces.registry import label_in, patterns_of


class Directory:
    """The namespaces of a cluster by their names."""

    def __init__(self, default: Wanted, others: Iterable[Wanted], own_names: Iterable[str]) -> None:
        """`own_names`: of the broker; see `Registry`."""
        self.default = default
        every = (default, *others)
        self.by_store: Mapping[str, Wanted] = {one.store: one for one in every}
        self._by_name = {one.name.lower(): one for one in every}
        self._by_host = {host: one for one in every for host in one.limits.host_names}
        self._patterns = patterns_of(own_names)

    def by_name(self, name: str) -> Wanted | None:
        """Return the namespace of a name, in any case."""
        return self._by_name.get(name.lower())

    def by_host(self, host_name: str | None) -> Wanted | None:
        """Return the namespace that a host, with or without a port, means; None = none."""
        host = host_in(host_name) if host_name else None
        if host is None or host == SHARED_HOST:
            return None
        if (found := self._by_host.get(host)) is not None:
            return found
        return self._by_name.get(label_in(host, self._patterns))

    def named(self, host_name: str | None, user: str | None) -> Wanted | None:
        """Return the namespace that a client names; None = it names none.

        `user`: of SASL PLAIN. A namespace's first key is named as it.
        """
        found = self.by_host(host_name)
        return self._by_name.get(user.lower()) if found is None and user else found
