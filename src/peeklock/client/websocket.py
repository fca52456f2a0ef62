"""AMQP over WebSocket: a socket whose bytes travel in binary frames.

For networks that let only HTTPS out. It takes the place of a socket that does not block: it has the methods
that `BlockingConnection` calls, with the same meaning. Source: wire contract 1.1; RFC 6455.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Final

from websockets.client import ClientProtocol
from websockets.frames import BINARY, CLOSE, CONT, Frame
from websockets.protocol import OPEN
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

PATH: Final = "/$servicebus/websocket"
SUBPROTOCOL: Final = Subprotocol("AMQPWSB10")

PIECE_BYTES: Final = 65_536
"""Of one frame. Our choice: their boundaries have no meaning, and a frame is copied to be masked."""

READ_BYTES: Final = 1 << 16


class WebSocket:
    """A connected socket after the handshake of WebSocket."""

    def __init__(self, sock: socket.socket, host: str, port: int) -> None:
        """Shake hands over a socket with a time limit. Raises: OSError."""
        self._socket = sock
        scheme = "wss" if isinstance(sock, ssl.SSLSocket) else "ws"
        shown = f"[{host}]" if ":" in host else host
        uri = parse_uri(f"{scheme}://{shown}:{port}{PATH}")
        self._frames = ClientProtocol(uri, subprotocols=[SUBPROTOCOL], max_size=None)
        self._unsent = bytearray()
        self._taken = 0
        """Bytes of the caller in `_unsent`."""
        self._received = b""
        self._ended = False
        self._frames.send_request(self._frames.connect())
        while self._frames.state is not OPEN:
            sock.sendall(b"".join(self._frames.data_to_send()))
            data = sock.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the other side closed the connection instead of a WebSocket handshake")
            self._frames.receive_data(data)
            if self._frames.handshake_exc is not None:
                raise ConnectionError(f"no WebSocket at {PATH}: {self._frames.handshake_exc}")
        self._take_events()

    def setblocking(self, flag: bool) -> None:
        """As of a socket."""
        self._socket.setblocking(flag)

    def fileno(self) -> int:
        """As of a socket."""
        return self._socket.fileno()

    def pending(self) -> bool:
        """Return whether bytes were read that no `recv` has returned."""
        if self._has_something():
            return True
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def send(self, data: memoryview) -> int:
        """Write a part of the data; return its size.

        Raises: BlockingIOError, ssl.SSLWantWriteError: call again with the same data, as for TLS.
        """
        if not self._taken:
            piece = data[:PIECE_BYTES]
            self._frames.send_binary(piece)
            self._taken = len(piece)
        self._flush()
        taken, self._taken = self._taken, 0
        return taken

    def recv(self, size: int) -> bytes:
        """Return bytes; none = the connection has ended. Raises: BlockingIOError, ssl.SSLWantReadError."""
        if not self._has_something():
            data = self._socket.recv(size)
            if not data:
                return b""
            self._frames.receive_data(data)
            self._take_events()
            if not self._has_something():
                raise BlockingIOError
        received, self._received = self._received, b""
        return received

    def close(self) -> None:
        """Say goodbye if that needs no waiting, and close the socket."""
        if self._frames.state is OPEN:
            self._frames.send_close(1000)
            with contextlib.suppress(OSError):
                self._flush()
        self._socket.close()

    def _has_something(self) -> bool:
        """Return whether `recv` need not read."""
        return bool(self._received) or self._ended

    def _take_events(self) -> None:
        parts = []
        for frame in self._frames.events_received():
            if not isinstance(frame, Frame):
                continue  # the answer to the handshake
            if frame.opcode in (BINARY, CONT):
                parts.append(bytes(frame.data))
            elif frame.opcode is CLOSE:
                self._ended = True
        self._received += b"".join(parts)
        self._ended = self._ended or self._frames.parser_exc is not None
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._flush()  # the answer to a ping; else the next `send` writes it

    def _flush(self) -> None:
        """Write all frames. Raises: OSError."""
        self._unsent += b"".join(self._frames.data_to_send())
        while self._unsent:
            sent = self._socket.send(self._unsent)
            del self._unsent[:sent]
