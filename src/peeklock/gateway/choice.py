"""Which namespace of the broker one connection uses.

The host that its `open` or its SASL exchange names decides. Where that names none, as `localhost`, the key of
the first token decides, or that of SASL PLAIN, so that several namespaces share an address. Else it is the
default namespace. Nothing changes it afterwards: a token for another namespace is refused.

It knows no shard: who owns the connection is told the choice.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

from peeklock.auth import AnotherNamespace, Authority


class Hosted(Protocol):
    """A namespace, as the gateway sees it."""

    @property
    def name(self) -> str: ...

    @property
    def authority(self) -> Authority: ...


class Namespaces(Protocol):
    """The namespaces of a broker."""

    @property
    def default(self) -> Hosted: ...

    def by_host(self, host_name: str) -> Hosted | None:
        """Return the namespace that a host name means; None = it means none."""

    def by_key(self, key_name: str) -> Hosted | None:
        """Return the namespace that has a key of this name; None = none has it, or several."""

    def by_token(self, token: str) -> Hosted | None:
        """Return the namespace whose key a token names; None as above. Raises: AuthorizationError."""


class OneNamespace:
    """The namespaces of a broker that has one: no host name means another."""

    name = ""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.default = self

    def by_host(self, host_name: str) -> None:
        return None

    def by_key(self, key_name: str) -> OneNamespace:
        return self

    def by_token(self, token: str) -> OneNamespace:
        return self


class Only:
    """One namespace, for a peer that is known to be its client: nothing means another."""

    def __init__(self, hosted: Hosted) -> None:
        self.default = hosted

    def by_host(self, host_name: str) -> None:
        return None

    def by_key(self, key_name: str) -> Hosted:
        return self.default

    def by_token(self, token: str) -> Hosted:
        return self.default


class _By(Enum):
    """What has decided."""

    NOTHING = 0
    HOST = 1
    KEY = 2
    USE = 3


class Choice:
    """The namespace of one connection."""

    def __init__(self, namespaces: Namespaces, on_chosen: Callable[[Any], None]) -> None:
        """Begin with the default one; `on_chosen` is called once, with the one that was chosen."""
        self._namespaces = namespaces
        self._on_chosen = on_chosen
        self._by = _By.NOTHING
        self._hosted: Hosted = namespaces.default

    @property
    def authority(self) -> Authority:
        """The authority of the namespace."""
        return self._hosted.authority

    def by_host(self, host_name: str | None) -> None:
        """Take the namespace that the peer's host name means, if it means one. Raises: AnotherNamespace."""
        found = self._namespaces.by_host(host_name) if host_name else None
        if found is None:
            return
        if self._by is _By.NOTHING:
            self._take(found, _By.HOST)
        elif found is not self._hosted:
            raise self._another(f"the host name means '{found.name}'")

    def of_key(self, name: str) -> Hosted:
        """Return the namespace in which a key is checked. Raises: AnotherNamespace."""
        return self._hosted if self._by is _By.HOST else self._of(self._namespaces.by_key(name))

    def of_token(self, token: str) -> Hosted:
        """Return the namespace in which a token is checked. Raises: AuthorizationError."""
        return self._hosted if self._by is _By.HOST else self._of(self._namespaces.by_token(token))

    def _of(self, found: Hosted | None) -> Hosted:
        if self._by is _By.NOTHING:
            return self._namespaces.default if found is None else found
        if found is not None and found is not self._hosted:
            raise self._another(f"the key is of '{found.name}'")
        return self._hosted

    def confirm(self, hosted: Hosted) -> None:
        """Take the namespace in which a key or token has proven good."""
        if self._by is _By.NOTHING:
            self._take(hosted, _By.KEY)

    @property
    def is_open(self) -> bool:
        """Whether nothing has decided yet."""
        return self._by is _By.NOTHING

    def use(self) -> None:
        """Note that the peer uses the namespace: it stays. Raises: AuthorizationError, if it is full."""
        if self._by is _By.NOTHING:
            self._take(self._hosted, _By.USE)

    def _take(self, hosted: Hosted, by: _By) -> None:
        self._on_chosen(hosted)  # it may refuse: nothing is chosen then
        self._hosted = hosted
        self._by = by

    def _another(self, why: str) -> AnotherNamespace:
        return AnotherNamespace(
            f"InvalidAudience: The connection is for the namespace '{self._hosted.name}', and {why}: open "
            "another connection for that one."
        )
