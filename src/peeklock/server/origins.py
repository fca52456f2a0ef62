"""Protection against pages that a browser loaded from elsewhere: checks of `Host` and `Origin`.

A browser lets any page send requests to any port of its user's machine, and names the page in `Origin`, but
not in a `GET` to the page's own origin. So a page whose name its owner rebinds to 127.0.0.1 reads from a
broker there without an `Origin`, and only the `Host` shows it. An address cannot be rebound, and browsers
resolve `localhost` themselves. Source: RFC 6454 7; RFC 6761 6.3; RFC 9110 7.2 and 15.5.20.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from http import HTTPStatus
from ipaddress import IPv4Address
from urllib.parse import urlsplit

from peeklock.config.hosts import HostNames, authority_in, host_in, is_loopback

Refusal = tuple[int, str]
"""Status and reason."""


class OriginPolicy:
    """Accepts requests that no foreign page can send; with names None, any request."""

    def __init__(
        self,
        names: Iterable[str] | None = None,
        *,
        short_names: bool = False,
        is_namespace: Callable[[str], object] = lambda host: None,
    ) -> None:
        """Make the policy.

        Args:
            names: as of `HostNames`. None = clients need a secret, which no page has.
            is_namespace: returns what is true for the host name of a namespace.
            short_names: accept all names without a dot, as containers have: the owner of a page has none.
        """
        self._short_names = short_names
        self._is_namespace = is_namespace
        self._names = None if names is None else HostNames(names)

    @property
    def asks_for_secret(self) -> bool:
        """Whether clients need a secret."""
        return self._names is None

    def knows(self, hosts: Iterable[str]) -> bool:
        """Return whether the hosts of a request, `Host` and the target's authority, are this broker's."""
        if self._names is None:
            return True
        given = [host_in(host) for host in hosts]
        return bool(given) and all(name is not None and self._is_ours(name) for name in given)

    def refusal_of_host(self, hosts: Iterable[str]) -> Refusal | None:
        """Return why a request for these hosts is refused; None = it is not."""
        hosts = list(hosts)
        if self.knows(hosts):
            return None
        unknown = next((name for name in map(host_in, hosts) if name and not self._is_ours(name)), None)
        named = "the request names no host" if unknown is None else f"the host {unknown} is not known"
        return (
            HTTPStatus.MISDIRECTED_REQUEST,
            f"{named}, and this broker asks for no secret: use localhost or an IP address, or start it with "
            f"--host-name {unknown or 'NAME'}",
        )

    def refusal_of_origin(self, origin: str | None, hosts: Iterable[str]) -> Refusal | None:
        """Return why a page is refused by its `Origin`; None = it is not."""
        hosts = list(hosts)
        if self._names is None or origin is None or is_own_origin(origin):
            return None
        # The Python client names the broker's own address as its origin.
        if self.knows(hosts) and authority_in(origin.partition("://")[2]) == authority_in(hosts[-1]):
            return None
        return self._foreign()

    def refusal_of_site(self, site: str | None, origin: str | None) -> Refusal | None:
        """Return why a request without `Origin` is refused by its `Sec-Fetch-Site`; None = it is not.

        Browsers send it with each request to an address of this machine. Source: W3C "Fetch Metadata Request
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
        if _is_address(host) or host in self._names or (self._short_names and "." not in host):
            return True
        return bool(self._is_namespace(host))


def is_own_origin(origin: str) -> bool:
    """Return whether an `Origin` is on this machine. Source: RFC 6454 7; RFC 6761 6.3.

    Names are not resolved: the author of the page may control the answer.
    """
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return False
    return host == "localhost" or host.endswith(".localhost") or is_loopback(host)


@lru_cache(maxsize=256)
def _is_address(host: str) -> bool:
    if host.startswith("["):
        return True  # checked by `authority_in`
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True
