"""Blocking wires to a broker on a port of this machine: AMQP without TLS, within TLS, over WebSocket."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from typing import Literal, Protocol

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from peeklock.server.net.http_dispatch import WEBSOCKET_PATH

Kind = Literal["amqp", "tls", "websocket"]
KINDS: tuple[Kind, ...] = ("amqp", "tls", "websocket")

SECONDS_MAX = 20
"""For any answer. Our choice: hundreds of times what one takes."""


class Wire(Protocol):
    """Bytes to and from the broker."""

    def send(self, data: bytes) -> None:
        """Send bytes; what a broker that has ended the connection does not take is lost."""

    def receive(self) -> bytes:
        """Wait for bytes; none at the end of the stream."""

    def close(self) -> None:
        """End the connection."""


def open_wire(kind: Kind, port: int) -> Wire:
    """Connect to the broker."""
    if kind == "websocket":
        return _WebSocket(port)
    sock = socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)
    if kind == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock = context.wrap_socket(sock)
    return _Socket(sock)


class _Socket:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except (ConnectionError, ssl.SSLError):
            return

    def receive(self) -> bytes:
        try:
            return self._sock.recv(65536)
        except (ConnectionError, ssl.SSLError):
            return b""

    def close(self) -> None:
        self._sock.close()


class _WebSocket:
    def __init__(self, port: int) -> None:
        self._opened = ExitStack()
        self._socket = self._opened.enter_context(
            connect(
                f"ws://127.0.0.1:{port}{WEBSOCKET_PATH}",
                subprotocols=[Subprotocol("AMQPWSB10")],
                open_timeout=SECONDS_MAX,
                close_timeout=SECONDS_MAX,
            )
        )

    def send(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except ConnectionClosed:
            return

    def receive(self) -> bytes:
        try:
            data = self._socket.recv(SECONDS_MAX)
        except ConnectionClosed:
            return b""
        assert isinstance(data, bytes)
        return data

    def close(self) -> None:
        self._opened.close()
