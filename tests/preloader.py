"""`python -m tests.preloader FD`: a process that has imported `peeklock`, and becomes each asked-for command.

Owns what a start of `peeklock` does, without its imports: streams, environment, folder, arguments and signals
are those of the request. Knows nothing of tests; `tests.preloaded` asks it over the socket FD.

The process that runs the command is a grandchild whose parent has ended, so that its parent is the next
subreaper: the process of the tests, which waits for it as for any child.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

PACKAGES = ("peeklock.cli", "peeklock.server", "peeklock.client", "peeklock.gateway", "peeklock.store.sqlite")
HEAVY = ("peeklock.server.otel", "peeklock.server.capture")
"""What a broker imports only where a setting asks for it."""

REQUEST_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What a started process has of its own."""

    argv: list[str]
    folder: str
    environment: dict[str, str]
    new_session: bool
    group: int
    """Process group; -1 = that of the tests."""


def preload() -> None:
    """Import what `peeklock` imports while it runs."""
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}."):
            if not module.name.startswith(HEAVY) and not module.name.endswith("__main__"):
                with contextlib.suppress(ImportError):  # of an extra that is not installed
                    importlib.import_module(module.name)


def wait_for_request(asked: socket.socket) -> tuple[Request, list[int]] | None:
    """Return each request in a process of its own; None in the first process, when nobody asks any more."""
    while True:
        message, streams, _, _ = socket.recv_fds(asked, REQUEST_BYTES_MAX, 3)
        if not message:
            return None
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            child = os.fork()
            if child != 0:
                os.write(writer, str(child).encode())
                os._exit(0)
            for ours in (reader, writer, asked.detach()):
                os.close(ours)
            while os.getppid() == between:
                time.sleep(0.0002)
            return Request(**json.loads(message)), streams
        os.waitpid(between, 0)
        asked.send(os.read(reader, 32))
        for done in (reader, writer, *streams):
            os.close(done)


def become(request: Request, streams: list[int]) -> None:
    """Make this process what it would be if it had just been started."""
    if request.new_session:
        os.setsid()
    if request.group != -1:
        os.setpgid(0, request.group)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = _opened(0, sys.stdin)
    sys.stdout = _opened(1, sys.stdout)
    sys.stderr = _opened(2, sys.stderr)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    time.tzset()
    sys.argv = request.argv
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loaded: dict[str, Any] = dict(sys.modules)
    loaded["peeklock.cli.serve"].PROCESS_STARTED = time.monotonic()
    loaded["peeklock.server.supervised"].PARENT_AT_START = os.getppid()


def _opened(number: int, like: Any) -> io.TextIOWrapper:
    """Open a standard stream as the interpreter does."""
    raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
    binary: Any = io.BufferedReader(raw) if number == 0 else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        binary,
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=number == 2 or raw.isatty(),
    )


def main(number: int) -> None:
    """Run the commands that are asked for over a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the tests end this process
    preload()
    gc.collect()
    gc.freeze()  # else the first collection of each process would copy all pages
    asked = wait_for_request(socket.socket(fileno=number))
    if asked is not None:
        become(*asked)
        importlib.import_module("peeklock.cli").main(prog_name="peeklock")


if __name__ == "__main__":
    main(int(sys.argv[1]))
