"""A fast HTTP client that is not the bottleneck: open connections, one request at a time on each.

Owns: bytes of requests, the end of an answer, which connections wait for one. Must not know: what is measured
or requested. A request is one write; of an answer's head only status and length are read.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from types import TracebackType

from bench.loadgen import STALL_S_MAX, Endpoint, LoadFailed
from peeklock.auth import generate

READ_BYTES = 1 << 16


class Peer:
    """One connection."""

    __slots__ = ("_read", "asked_at_s", "socket")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), STALL_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = b""
        self.asked_at_s = 0.0

    def ask(self, request: bytes) -> None:
        self.asked_at_s = time.perf_counter()
        self.socket.sendall(request)

    def answer(self) -> int:
        """Read the available bytes; return the status of a whole answer, before that 0. Raises:
        LoadFailed."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise LoadFailed("the broker ended an HTTP connection")
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found:
            return 0
        _, has_length, length = head.lower().partition(b"\r\ncontent-length: ")
        if len(body) < (int(length.partition(b"\r\n")[0]) if has_length else 0):
            return 0
        self._read = b""
        return int(head[9:12])


class Pool:
    """Connections to one broker; `with` closes them."""

    def __init__(self, endpoint: Endpoint, count: int) -> None:
        self.selector = selectors.DefaultSelector()
        self._port = endpoint.port
        self.peers: list[Peer] = []
        for _ in range(count):
            self.connect()
        address = f"127.0.0.1:{endpoint.port}"
        expires_at_ms = int(time.time() * 1000) + 3_600_000
        token = generate(f"http://{address}/", endpoint.user, endpoint.password, expires_at_ms)
        self._head = f"Host: {address}\r\nAuthorization: {token}\r\n"

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.selector.close()
        for peer in self.peers:
            peer.socket.close()

    def connect(self) -> Peer:
        """Add a connection."""
        peer = Peer(self._port)
        self.peers.append(peer)
        self.selector.register(peer.socket, selectors.EVENT_READ, peer)
        return peer

    def request(self, method: str, path: str, headers: str = "", body: bytes = b"") -> bytes:
        """Return the bytes of a request; each of `headers` ends with CR LF."""
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{headers}Content-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    def answered(self, timeout_s: float = STALL_S_MAX) -> list[tuple[Peer, int]]:
        """Return the connections that have an answer by now, with its status; none of them after a time-out.

        Raises: LoadFailed.
        """
        found = []
        for key, _ in self.selector.select(timeout_s):
            status = key.data.answer()
            if status:
                found.append((key.data, status))
        return found

    def drive(self, count: int, request: Callable[[int], bytes], expected: int = 201) -> None:
        """Run `count` requests, one in flight on each connection; `request` makes them by number.

        Raises: LoadFailed: another status, or no answer.
        """
        asked = done = 0
        for peer in self.peers[:count]:
            peer.ask(request(asked))
            asked += 1
        while done < count:
            found = self.answered()
            if not found:
                raise LoadFailed(f"no answer over HTTP for {STALL_S_MAX} s")
            for peer, status in found:
                if status != expected:
                    raise LoadFailed(f"an HTTP request was answered with {status}")
                done += 1
                if asked < count:
                    peer.ask(request(asked))
                    asked += 1
