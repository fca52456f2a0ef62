"""A stretch of wire between a client and a broker that can be cut.

Owns: the copying of bytes both ways, in threads. Must not know: what they mean.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Relay:
    """Listens on a free port and forwards all bytes; `with` ends it."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.asked = bytearray()
        """All that clients sent."""
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._thread.join()

    def cut(self) -> None:
        """Break every connection that stands."""
        with self._lock:
            broken, self._open = self._open, []
        for end in broken:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
                broker = socket.create_connection(("127.0.0.1", self._behind))
            except OSError:
                return
            with self._lock:
                self._open += (client, broker)
            for source, target, log in ((client, broker, self.asked), (broker, client, None)):
                threading.Thread(target=self._copy, args=(source, target, log), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, log: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if log is not None:
                    log += data
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
