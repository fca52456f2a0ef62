"""Starts of `peeklock` without its imports, most of what a start costs: tests start it a thousand times.

Owns the choice of the starts that are made so, and the socket to `tests.preloader`, which makes them. What
starts has its own process, with all that a process has: a parent, streams, signals, descriptors, a folder.
What a start itself does is tested with real ones: of the loops of `python -m tests.kill`, of a shell, of an
installed wheel, and of each start that asks the interpreter for something.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: what the preloader starts becomes our child."""

USUAL = {
    "executable": None,
    "preexec_fn": None,
    "close_fds": True,
    "pass_fds": (),
    "shell": False,
    "restore_signals": True,
    "gid": None,
    "gids": None,
    "uid": None,
    "umask": -1,
}
"""Arguments of a start that asks for nothing which the preloader cannot do."""

_popen: Any = subprocess.Popen
_execute = _popen._execute_child
"""Private, and the same since Python 3.11."""
_signature = inspect.signature(_execute)


class Preloader:
    """The process that makes the starts of this process; it begins with the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._interpreter: dict[str, str] = {}

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Whether an interpreter that starts with this environment would be as the preloader's is."""
        with self._lock:
            if self._socket is None:
                self._begin()
        return _of_interpreter(environment) == self._interpreter

    def start(self, streams: list[int], **request: Any) -> int:
        """Start a command, and return its process id."""
        with self._lock:
            assert self._socket is not None
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            return int(self._socket.recv(32))

    def _begin(self) -> None:
        self._interpreter = _of_interpreter(os.environ)
        ctypes.CDLL(None).prctl(REAPER, 1, 0, 0, 0)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.preloader", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        atexit.register(process.wait)
        atexit.register(self._socket.close)  # which ends it, and comes first


_preloader = Preloader()


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the interpreter itself reads as it starts."""
    return {
        name: text
        for name, text in environment.items()
        if text and name.startswith(("PYTHON", "LANG", "LC_", "LD_"))
    }


def _words(given: Mapping[str, Any]) -> list[str] | None:
    """Return the arguments of `peeklock`, if that is started and nothing asks for a start of another kind."""
    if any(given[name] != usual for name, usual in USUAL.items()):
        return None
    if isinstance(given["args"], (str, bytes, os.PathLike)):
        return None
    words = [os.fsdecode(word) for word in given["args"]]
    python = Path(sys.executable)
    for command in ([str(python.with_name("peeklock"))], [str(python), "-m", "peeklock"]):
        if words[: len(command)] == command:
            return words[len(command) :]
    return None


def _execute_child(self: Any, *arguments: Any) -> None:
    given = _signature.bind(self, *arguments).arguments
    words = _words(given)
    environment = os.environ if given["env"] is None else given["env"]
    if words is None or not _preloader.suits(environment):
        _execute(self, *arguments)
        return
    pipes = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
    self.pid = _preloader.start(
        [number if pipe == -1 else pipe for number, pipe in enumerate(pipes)],
        argv=[str(Path(sys.executable).with_name("peeklock")), *words],
        folder=os.fspath(given["cwd"] or os.getcwd()),
        environment=dict(environment),
        new_session=bool(given["start_new_session"]),
        group=given["process_group"],
    )
    self._child_created = True
    ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    self._close_pipe_fds(*(given[name] for name in ends))


def install() -> None:
    """Make the starts of this process with the preloader, on Linux."""
    if sys.platform == "linux":
        os.environ.pop("PYTHONUNBUFFERED", None)  # only a real start is without buffers
        _popen._execute_child = _execute_child
