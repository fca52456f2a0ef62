"""Names of hosts, with and without a port, and which of them are the broker's.

The command line imports this module at its start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"(\*\.)?({_LABEL}\.)*{_LABEL}")
_HOST_LABEL = re.compile("[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_NAME_LENGTH_MAX = 253
"""Characters. Source: RFC 1035 2.3.4, 255 bytes on the wire."""

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]{1,254}))(?::(?P<port>[0-9]{0,5}))?")
"""`host[:port]` in lower case. Source: RFC 3986 3.2, without what our hosts cannot be."""

_PORT_MAX = 65_535


def is_host(name: str) -> bool:
    """Return whether this is a DNS name, perhaps with `*` as its first label, or an IP address."""
    if len(name) <= _NAME_LENGTH_MAX and _DNS_NAME.fullmatch(name):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


SHARED_HOST = "localhost"
"""The host name of all namespaces, so none of them: the key of a client decides."""

HOST_LABEL_RULE = (
    "a name: 1 to 63 of A-Z, a-z, 0-9 and -, neither beginning nor ending with -, and not localhost"
)


def is_host_label(name: str) -> bool:
    """Return whether this may be the name of a further namespace, which is a label of its host names."""
    return bool(_HOST_LABEL.fullmatch(name)) and name.lower() != SHARED_HOST


def is_host_and_port(name: str) -> bool:
    """Return whether this is `HOST:PORT`, an IPv6 address in brackets, and not a pattern."""
    host, _, port = name.rpartition(":")
    if not re.fullmatch("[1-9][0-9]{0,4}", port) or int(port) > 65535:
        return False
    if host.startswith("["):
        return host.endswith("]") and ":" in host and is_host(host[1:-1])
    # No client understands a pattern with a port.
    return ":" not in host and not host.startswith("*") and is_host(host)


def host_of(name: str) -> str:
    """Return the host of `HOST` or `HOST:PORT`, without brackets."""
    host = name.rpartition(":")[0]
    if host.startswith("["):
        return host[1:-1]
    return host if host and ":" not in host else name


def host_and_port_of(address: str) -> tuple[str, int]:
    """Return host, without brackets, and port of a valid `HOST:PORT`."""
    return host_of(address), int(address.rpartition(":")[2])


def authority_in(text: str) -> tuple[str, str] | None:
    """Return host and port in lower case, without the dot of the root; None = malformed."""
    found = _AUTHORITY.fullmatch(text.lower())
    if found is None:
        return None
    port = found["port"] or ""
    if found["v6"] is None:
        return found["name"].removesuffix("."), port
    try:
        return f"[{IPv6Address(found['v6'])}]", port
    except ValueError:
        return None


@lru_cache(maxsize=256)
def host_in(text: str) -> str | None:
    """Return the host of `host[:port]` in lower case; None = malformed."""
    found = authority_in(text.strip())
    return None if found is None else found[0]


def is_loopback(host: str) -> bool:
    """Return whether this is a loopback address; of IPv6 with or without brackets."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class HostNames:
    """The DNS names of the broker: `localhost`, all below it, and given ones."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Add names; `*.example.org` means all one label below, and a port is ignored."""
        self._names = frozenset(host_of(name).lower().removesuffix(".") for name in names)

    def __contains__(self, host: str) -> bool:
        """Return whether a host, in lower case and without a port, is one of them."""
        if host == SHARED_HOST or host.endswith(".localhost") or host in self._names:
            return True
        return f"*.{host.partition('.')[2]}" in self._names

    def owns(self, authority: str, asked: str = "localhost") -> bool:
        """Return whether `host[:port]` in an address from a client is this broker, with any port.

        `asked` is the `Host` of the request, which is the broker too. Source: wire contract C41.
        """
        found = authority_in(authority)
        if found is None or int(found[1] or 0) > _PORT_MAX:
            return False
        host = found[0]
        return host in self or is_loopback(host) or host == host_in(asked)


def shown_host(host: str) -> str:
    """Return the host of a connection string for a broker that listens on an address."""
    if host in ("127.0.0.1", "::1", "0.0.0.0", "::"):
        return "localhost"
    return f"[{host}]" if ":" in host else host
