"""The control socket: HTTP for the owner of the process, with all rights and without a key.

It is a Unix socket `DATA/control.sock`, or that of `--control`, with mode 0600: who can open it can also read
the data folder. A socket that a killed broker left is replaced; one that answers is another broker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from peeklock.server import log
from peeklock.server.settings import Settings, StartFailed

PATH_BYTES_MAX = 107
"""Of a Unix socket. Source: `sun_path` of unix(7), 108 bytes with the one that ends it."""

CONNECT_S_MAX = 1.0
"""For another broker to answer. Our choice: the kernel answers for it at once, unless its queue is full."""


class ControlSocket:
    """The control socket of one broker."""

    def __init__(self, settings: Settings, protocol: Callable[[], asyncio.Protocol]) -> None:
        """`protocol` makes that of a connection."""
        self.path = settings.control_path
        """None = there is no socket."""
        self._is_asked_for = settings.control is not None
        self._protocol = protocol
        self._server: asyncio.AbstractServer | None = None
        self._file: tuple[int, int] | None = None

    async def open(self) -> None:
        """Listen. Raises: StartFailed, if the operator has named the path and it cannot be used.

        Without the default path the broker is as good, and only commands miss it: some volumes have no
        sockets.
        """
        path = self.path
        if path is None:
            return
        try:
            sock = _bound(path)
        except _Unusable as failure:
            if self._is_asked_for:
                raise StartFailed(f"--control {path}: {failure}") from failure
            do = "name another path with --control, for the broker and for commands"
            log.warning("there is no control socket", {"path": str(path), "reason": str(failure), "do": do})
            self.path = None
            return
        found = os.stat(path)
        self._file = (found.st_dev, found.st_ino)
        self._server = await asyncio.get_running_loop().create_unix_server(self._protocol, sock=sock)

    def close(self) -> None:
        """Stop listening, and remove the socket unless another broker has replaced it."""
        if self._server is None or self.path is None:
            return
        with contextlib.suppress(OSError):
            found = os.stat(self.path)
            if (found.st_dev, found.st_ino) == self._file:
                self.path.unlink()
        self._server.close()


class _Unusable(Exception):
    """The path cannot have our socket; the text says why, and what to do."""


def _bound(path: Path) -> socket.socket:
    """Return a socket that is bound to a path. Raises: _Unusable."""
    size = len(os.fsencode(path))
    if size > PATH_BYTES_MAX:
        raise _Unusable(
            f"the path of a socket has at most {PATH_BYTES_MAX} bytes, and this one {size}; choose a shorter "
            "one, such as /run/peeklock.sock"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        os.fchmod(sock.fileno(), 0o600)  # the file is made with it: nobody else can connect in between
        sock.bind(os.fspath(path))
        path.chmod(0o600)  # where the system does not do so
        sock.setblocking(False)
    except OSError as failure:
        sock.close()
        raise _Unusable(
            f"cannot make a socket there: {failure.strerror or failure}; choose a path in a folder that "
            "exists, that the broker may write, and whose volume takes sockets"
        ) from failure
    except BaseException:
        sock.close()
        raise
    return sock


def _remove_stale(path: Path) -> None:
    """Remove the socket of a broker that was killed. Raises: _Unusable, OSError."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise _Unusable("there is something else of that name; move it away, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_S_MAX)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass  # somebody listens, and is busy
    raise _Unusable("another process listens there; stop it, or choose another path")
