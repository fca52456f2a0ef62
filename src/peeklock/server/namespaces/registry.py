"""Which namespaces a process has, and which one a host name, a key or a token means.

It makes and ends none; who does so tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from peeklock.auth import SasToken, TokenMalformed
from peeklock.auth.sas import is_sas
from peeklock.config.hosts import SHARED_HOST, HostNames, host_in
from peeklock.server.namespaces.served import ServedNamespace

DOMAINS = ("", SHARED_HOST, "servicebus.windows.net")
"""`NAME`, `NAME.localhost` and `NAME.servicebus.windows.net` mean the namespace NAME."""

KEYS_REMEMBERED = 10_000
"""Key names of which the namespace is known. Our choice: a megabyte."""


class NamespaceThere(Exception):
    """A namespace has the name or the host name of a new one; the text says which."""


def patterns_of(own_names: Iterable[str]) -> frozenset[str]:
    """Return the domains below which a label means a namespace, as `*.lan` says."""
    return frozenset(name[2:].lower() for name in own_names if name.startswith("*."))


def label_in(host: str, patterns: frozenset[str]) -> str:
    """Return the name of a namespace in a host in lower case; empty = there is none."""
    label, _, domain = host.partition(".")
    return label if domain in DOMAINS or domain in patterns else ""


class Registry:
    """The namespaces by name. It is the `Namespaces` of the gateway."""

    def __init__(self, default: ServedNamespace, own_names: Iterable[str] = ()) -> None:
        """Begin with the default one. `own_names`: of the broker; with `*.lan`, `NAME.lan` means NAME."""
        self.default = default
        self._by_name: dict[str, ServedNamespace] = {}
        self._by_host: dict[str, ServedNamespace] = {}
        self._by_key: dict[str, ServedNamespace | None] = {}
        """What was looked up."""
        self._reserved: set[str] = set()
        """Names and host names, in lower case, of those that are not there yet, or not quite gone."""
        self._own = HostNames(own_names)
        self._patterns = patterns_of(own_names)
        self.on_use: Callable[[str, str], ServedNamespace | None] = lambda key_name, token: None
        """Returns a new namespace for an unknown key name and its token; None = it makes none."""
        self.add(default)

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[ServedNamespace]:
        """Yield those that are there now; they may come and go meanwhile."""
        return iter(list(self._by_name.values()))

    def get(self, name: str) -> ServedNamespace | None:
        """Return the namespace of a name, in any case."""
        return self._by_name.get(name.lower())

    @contextmanager
    def reserved(self, name: str, host_names: Iterable[str] = ()) -> Iterator[None]:
        """Keep a name and host names from others meanwhile. Raises: NamespaceThere."""
        self.require_free(name, host_names)
        names = {name.lower(), *host_names}
        self._reserved |= names
        try:
            yield
        finally:
            self._reserved -= names

    def require_free(self, name: str, host_names: Iterable[str] = ()) -> None:
        """Raise NamespaceThere if a new namespace cannot have this name, or one of these host names."""
        if (found := self._by_name.get(name.lower())) is not None:
            raise NamespaceThere(f"There is already a namespace '{found.name}'.")
        if name.lower() in self._reserved:
            raise NamespaceThere(f"A namespace '{name}' is being made or deleted: try again.")
        for host in (name.lower(), *host_names):
            if (found := self.by_host(host)) is not None:
                raise NamespaceThere(f"The host name '{host}' means the namespace '{found.name}' already.")
            if host in self._reserved:
                raise NamespaceThere(f"The host name '{host}' means another new namespace: try another one.")

    def add(self, served: ServedNamespace) -> None:
        """Add a namespace to those that clients find."""
        self._by_name[served.name.lower()] = served
        self._by_host.update(dict.fromkeys(served.limits.host_names, served))
        served.authority_manager.on_rules = self._by_key.clear
        self._by_key.clear()

    def remove(self, served: ServedNamespace) -> None:
        """Remove it from those that clients find."""
        del self._by_name[served.name.lower()]
        for host in served.limits.host_names:
            del self._by_host[host]
        self._by_key.clear()

    def set_default(self, served: ServedNamespace) -> None:
        """Put another one in the place of the default namespace."""
        self.remove(self.default)
        self.default = served
        self.add(served)

    # As the gateway asks

    def by_host(self, host_name: str) -> ServedNamespace | None:
        """Return the namespace that a host, with or without a port, means; None = none."""
        host = host_in(host_name)
        if host is None or host == SHARED_HOST:
            return None
        if (found := self._by_host.get(host)) is not None:
            return found
        return self._by_name.get(label_in(host, self._patterns))

    def by_key(self, key_name: str) -> ServedNamespace | None:
        """Return the namespace that alone has a key of this name; None = none has it, or several."""
        name = key_name.lower()
        if name not in self._by_key:
            if len(self._by_key) >= KEYS_REMEMBERED:
                self._by_key.clear()
            found = [served for served in self._by_name.values() if served.authority.has_rule(name)]
            self._by_key[name] = found[0] if len(found) == 1 else None
        return self._by_key[name]

    def by_token(self, token: str) -> ServedNamespace | None:
        """Return the namespace whose key a token names; None as above. Raises: NamespaceFull."""
        if not is_sas(token):
            return None
        try:
            names = SasToken.parse(token).key_names
        except TokenMalformed:
            return None  # the authority says what is wrong
        for name in names:
            if (found := self.by_key(name)) is not None:
                return found
        if any(served.authority.has_rule(name) for name in names for served in self._by_name.values()):
            return None
        return self.on_use(names[-1], token)

    def owns(self, served: ServedNamespace) -> Callable[[str, str], bool]:
        """Return whether a host in an address from a client is that namespace's; see `HostNames.owns`."""

        def owned(authority: str, asked: str = "localhost") -> bool:
            meant = self.by_host(authority)
            return meant is served or (meant is None and self._own.owns(authority, asked))

        return owned
