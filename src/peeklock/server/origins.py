"""Which hosts are this broker's, and which HTTP requests are taken by their `Host` and `Origin`.

Owns: the broker's names, and the rules against pages that a browser loaded from elsewhere. Must not know:
HTTP syntax, keys, tokens.

A browser lets any page send requests to any port of its user's machine, and names the page in `Origin`. It
names none in a `GET` to the page's own origin. So a page whose name its owner rebinds to 127.0.0.1 reads from
a broker there without an `Origin`, and what shows it is the `Host` alone. An address cannot be rebound, and
browsers answer `localhost` themselves.
Source: RFC 6454 7; RFC 6761 6.3; RFC 9110 7.2 and 15.5.20.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from peeklock.server.names import host_of

Refusal = tuple[int, str]
"""Status and reason."""

_AUTHORITY = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9_.-]{1,254}))(?::(?P<port>[0-9]{0,5}))?")
"""`host[:port]` in lower case. Source: RFC 3986 3.2, without what no host of ours can be."""


_PORT_MAX = 65_535


class HostNames:
    """The DNS names of the broker: `localhost`, all below it, and what it was given."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Take further names, `*.example.org` for all one label below; a port behind a name is ignored."""
        self._names = frozenset(host_of(name).lower().removesuffix(".") for name in names)

    def __contains__(self, host: str) -> bool:
        """Return whether a host in lower case, without a port, is one of them."""
        if host == "localhost" or host.endswith(".localhost") or host in self._names:
            return True
        return f"*.{host.partition('.')[2]}" in self._names

    def owns(self, authority: str, asked: str = "localhost") -> bool:
        """Return whether `host[:port]` in an address that a client gives is this broker; any port will do.

        `asked` is the `Host` of the request that has the address, which is the broker too.
        Source: wire contract C41.
        """
        found = _authority(authority)
        if found is None or int(found[1] or 0) > _PORT_MAX:
            return False
        host = found[0]
        return host in self or _is_loopback(host) or host == _host(asked)


class OriginPolicy:
    """Takes requests that no foreign page can send; with names None, any request."""

    def __init__(self, names: Iterable[str] | None = None) -> None:
        """Make the policy.

        Args:
            names: the DNS names of the broker beside `localhost`, `*.example.org` for all one label below;
                a port behind a name is ignored. None = clients need a secret, which no page has.
        """
        self._names = None if names is None else HostNames(names)

    def knows(self, hosts: Iterable[str]) -> bool:
        """Tell whether all hosts of a request are this broker's; there are several in the absolute form.

        `hosts` are `Host` and the authority of the target, each `host[:port]`. None at all is unknown.
        """
        if self._names is None:
            return True
        given = [_host(host) for host in hosts]
        return bool(given) and all(name is not None and self._is_ours(name) for name in given)

    def refusal_of_host(self, hosts: Iterable[str]) -> Refusal | None:
        """Return why a request for these hosts is refused, as of `knows`; None = it is not."""
        hosts = list(hosts)
        if self.knows(hosts):
            return None
        unknown = next((name for name in map(_host, hosts) if name and not self._is_ours(name)), None)
        named = "the request names no host" if unknown is None else f"the host {unknown} is not known"
        return (
            HTTPStatus.MISDIRECTED_REQUEST,
            f"{named}, and this broker asks for no secret: use localhost or an IP address, or start it with "
            f"--host-name {unknown or 'NAME'}",
        )

    def refusal_of_origin(self, origin: str | None, hosts: Iterable[str]) -> Refusal | None:
        """Return why a page is refused by its `Origin`; None = it is not, or no page asks."""
        hosts = list(hosts)
        if self._names is None or origin is None or is_own_origin(origin):
            return None
        # The Python client names the broker's own address as its origin.
        if self.knows(hosts) and _authority(origin.partition("://")[2]) == _authority(hosts[-1]):
            return None
        return self._foreign()

    def refusal_of_site(self, site: str | None, origin: str | None) -> Refusal | None:
        """Return why a page is refused that its browser names no `Origin` of, but says to be a foreign one.

        A browser says so with each request to an address of this machine. Source: W3C "Fetch Metadata Request
        Headers".
        """
        if self._names is None or origin is not None or (site or "").lower() != "cross-site":
            return None
        return self._foreign()

    @staticmethod
    def _foreign() -> Refusal:
        return (
            HTTPStatus.FORBIDDEN,
            "the page was not loaded from this machine, and this broker asks for no secret: load it from "
            "localhost, or start the broker with --auth sas",
        )

    def _is_ours(self, host: str) -> bool:
        assert self._names is not None
        return _is_address(host) or host in self._names


def is_own_origin(origin: str) -> bool:
    """Tell whether a page was loaded from this machine, by the `Origin` that its browser names.

    Names are not looked up: whoever made the page may answer for them. Source: RFC 6454 7; RFC 6761 6.3.
    """
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return False
    return host == "localhost" or host.endswith(".localhost") or _is_loopback(host)


def _authority(text: str) -> tuple[str, str] | None:
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
def _host(text: str) -> str | None:
    found = _authority(text.strip())
    return None if found is None else found[0]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=256)
def _is_address(host: str) -> bool:
    if host.startswith("["):
        return True  # read as one by `_authority`
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True
