"""A wire that is slow or silent."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tests.faults.wire import Wire, Wires


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.settimeout(10)
        yield listening


@pytest.fixture
def wire(server: socket.socket) -> Wire:
    return Wires().lay(server.getsockname()[1])


def test_bytes_come_both_ways_and_the_end_too(wire: Wire, server: socket.socket) -> None:
    with socket.create_connection(("127.0.0.1", wire.port), 10) as near:
        far = server.accept()[0]
        near.sendall(b"there")
        assert far.recv(10) == b"there"
        far.sendall(b"back")
        assert near.recv(10) == b"back"
        far.close()
        with contextlib.suppress(ConnectionResetError):
            assert near.recv(10) == b""


def test_a_cut_wire_keeps_connections_and_holds_bytes(wire: Wire, server: socket.socket) -> None:
    with socket.create_connection(("127.0.0.1", wire.port), 10) as near, server.accept()[0] as far:
        near.sendall(b"before")
        assert far.recv(10) == b"before"
        wire.cut()
        near.sendall(b"held")
        far.settimeout(0.3)
        with pytest.raises(TimeoutError):
            far.recv(10)
        wire.mend()
        far.settimeout(10)
        assert far.recv(10) == b"held"


def test_a_slow_wire_delays(wire: Wire, server: socket.socket) -> None:
    with socket.create_connection(("127.0.0.1", wire.port), 10) as near, server.accept()[0] as far:
        wire.delay_s = 0.2
        began_s = time.monotonic()
        near.sendall(b"late")
        assert far.recv(10) == b"late"
        assert time.monotonic() - began_s >= 0.2
