"""Sockets that listen on every address of a host, and the end of a transport's output."""

from __future__ import annotations

import asyncio
import errno
import socket
from ipaddress import IPv6Address, ip_address

from peeklock.server import log

PORT_TRIES_MAX = 10
"""Searches for a port that is free on every address of a host. Our choice."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Open a socket on each address of a host, all on one port (0 = a free one). Raises: OSError."""
    for tries_left in reversed(range(PORT_TRIES_MAX)):
        try:
            return _listen(host, port)
        except OSError as failure:
            # A port that is free on the first address may be taken on the second.
            if port != 0 or failure.errno != errno.EADDRINUSE or not tries_left:
                raise
    raise AssertionError("the last try returns or raises")


def _listen(host: str, port: int) -> list[socket.socket]:
    """Try once: addresses of the host that this machine lacks are left out."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as failure:
        raise OSError("not a valid host name") from failure
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    opened: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, address in addresses:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as failure:  # no IPv6 in this kernel
                absent = failure
                continue
            opened.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and len(addresses) > 1:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has its own
            try:
                sock.bind((address[0], port, *address[2:]))
            except OSError as failure:
                if failure.errno != errno.EADDRNOTAVAIL:
                    raise
                absent = failure  # `localhost` is ::1 too, even with IPv6 switched off
                opened.pop().close()
                continue
            sock.listen(4096)
            sock.setblocking(False)
            port = sock.getsockname()[1]
        if absent is not None:
            if not opened:
                raise absent
            log.warning(
                "some addresses of the host are not listened on", {"host": host, "reason": str(absent)}
            )
    except OSError:
        for sock in opened:
            sock.close()
        raise
    return opened


def is_loopback_address(address: str) -> bool:
    """Return whether only this machine can reach an IP address."""
    ip = ip_address(address.partition("%")[0])  # %: the zone of a link address
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_loopback


def end_output(transport: asyncio.Transport) -> bool:
    """End our half of the stream after what is buffered, where the transport can: TLS has no half-close.

    Return False if the peer has reset the connection, which is then aborted.
    """
    try:
        if transport.can_write_eof():
            transport.write_eof()
    except OSError:  # asyncio's own loop shuts the socket down at once; uvloop reports nothing
        transport.abort()
        return False
    return True
