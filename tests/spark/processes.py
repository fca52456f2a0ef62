"""Processes and their TCP sockets, as Linux shows them in /proc."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

_LISTENING: Final = "0A"
_ESTABLISHED: Final = "01"

ONLY_LINUX = "sockets of other processes are read from /proc"
needs_proc: Final = pytest.mark.skipif(sys.platform != "linux", reason=ONLY_LINUX)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Socket:
    """One end of a TCP connection, or a port that is listened on."""

    address: Address
    port: int
    peer_port: int
    state: str

    @property
    def is_listening(self) -> bool:
        return self.state == _LISTENING

    @property
    def is_connected(self) -> bool:
        return self.state == _ESTABLISHED

    @property
    def is_on_loopback(self) -> bool:
        mapped = getattr(self.address, "ipv4_mapped", None)  # as Java binds IPv4
        return (mapped or self.address).is_loopback


def tree(pid: int) -> list[int]:
    """Return a process and all processes below it that run."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    return found


def sockets(pid: int) -> list[Socket]:
    """Return the TCP sockets of a process."""
    inodes = set()
    for name in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(os.readlink(name))
    return [each for inode, each in _table() if f"socket:[{inode}]" in inodes]


def listening(pid: int) -> set[Socket]:
    """Return the ports on which a process and all below it listen."""
    return {each for process in tree(pid) for each in sockets(process) if each.is_listening}


def _table() -> Iterator[tuple[str, Socket]]:
    for name in ("tcp", "tcp6"):
        for line in Path("/proc/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            host, _, port = fields[1].partition(":")
            peer_port = fields[2].partition(":")[2]
            # Words of four bytes, each in the byte order of the machine.
            packed = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))
            yield (
                fields[9],
                Socket(ipaddress.ip_address(packed), int(port, 16), int(peer_port, 16), fields[3]),
            )
