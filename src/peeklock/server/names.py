"""Names of hosts, with and without a port, as options give them.

Owns: their forms. Must not know: what a name is for. Imported by the command line at its start.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

_LABEL = "[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_DNS_NAME = re.compile(rf"(\*\.)?({_LABEL}\.)*{_LABEL}")
_NAME_LENGTH_MAX = 253
"""Characters. Source: RFC 1035 2.3.4, 255 bytes on the wire."""


def is_host(name: str) -> bool:
    """Tell whether this is a DNS name, perhaps with `*` as its first label, or an IP address."""
    if len(name) <= _NAME_LENGTH_MAX and _DNS_NAME.fullmatch(name):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_host_and_port(name: str) -> bool:
    """Tell whether this is `HOST:PORT`, an address of version 6 in brackets, and no pattern."""
    host, _, port = name.rpartition(":")
    if not re.fullmatch("[1-9][0-9]{0,4}", port) or int(port) > 65535:
        return False
    if host.startswith("["):
        return host.endswith("]") and ":" in host and is_host(host[1:-1])
    # Of a pattern with a port, no client makes anything.
    return ":" not in host and not host.startswith("*") and is_host(host)


def host_of(name: str) -> str:
    """Return the host of `HOST` or `HOST:PORT`, without brackets."""
    host = name.rpartition(":")[0]
    if host.startswith("["):
        return host[1:-1]
    return host if host and ":" not in host else name
