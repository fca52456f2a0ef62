"""Child processes: each is started with one work and a socket whose other end the broker serves.

A child is started by `subprocess`, whose vfork takes a millisecond whatever memory the broker has; what it
reads and writes goes over a second pair of sockets. It ends with its standard input, so with the broker too.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from peeklock.broker.vocabulary.errors import ServerBusy
from peeklock.server.loop.tasks import tell_failure

COMMAND: Final = (sys.executable, "-P", "-m", "peeklock.worker")

CHILDREN_MAX: Final = 16
CHILDREN_OF_ONE_MAX: Final = 8
"""At a time, of the process and of one namespace. Our choice: each takes 30 MB, and what it can get of a
core."""

CHUNK_BYTES: Final = 64 * 1024
LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a child to us. Our choice: a checkpoint with a million numbers."""

END_S_MAX: Final = 2.0
"""How long a child that has written all may take to end."""

Attach = Callable[[socket.socket], Awaitable[None]]
"""Serves the broker's end of a child's socket."""


class Child:
    """One child at work."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_end: Callable[[], None],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._on_end = on_end

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def read(self) -> bytes:
        """Return some of what it writes; empty at the end."""
        try:
            return await self._reader.read(CHUNK_BYTES)
        except ConnectionError:
            return b""

    async def read_line(self) -> Any:
        """Return the next line that it writes, from JSON; None at the end."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):  # ended within a line, or one too long
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def order(self, order: Mapping[str, Any]) -> None:
        """Write an order to it."""
        if not self._writer.is_closing():
            self._writer.write(json.dumps(order).encode() + b"\n")

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def ended(self) -> bool:
        """Wait for its end, or kill it soon; return whether it has written all."""
        try:
            return await asyncio.to_thread(self._wait) == 0
        finally:
            self._writer.close()
            self._on_end()

    def _wait(self) -> int:
        try:
            return self._process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait() or 1


class Children:
    """The children of a process."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts: Counter[str] = Counter()

    def require_room(self, namespace: str) -> None:
        """Raise ServerBusy if a namespace can have no further child now."""
        of_one = self._counts[namespace]
        if of_one >= CHILDREN_OF_ONE_MAX or self._counts.total() >= CHILDREN_MAX:
            raise ServerBusy(
                f"{self._counts.total()} searches and jobs are under way, {of_one} of this namespace, of "
                f"{CHILDREN_MAX} and {CHILDREN_OF_ONE_MAX}: try again when one has ended."
            )

    async def start(
        self, namespace: str, work: Mapping[str, Any], attach: Attach, *, kept_bytes_max: int = CHUNK_BYTES
    ) -> Child:
        """Start a child, of whose output some is kept. Raises: ServerBusy, OSError."""
        self.require_room(namespace)
        self._counts[namespace] += 1
        try:
            return await self._start(namespace, work, attach, kept_bytes_max)
        except BaseException:
            self._counts[namespace] -= 1
            raise

    async def _start(
        self, namespace: str, work: Mapping[str, Any], attach: Attach, kept_bytes_max: int
    ) -> Child:
        def on_end() -> None:
            self._counts[namespace] -= 1

        served, given = socket.socketpair()
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.to_thread(_spawn, theirs, given)
        except BaseException:
            served.close()
            ours.close()
            raise
        finally:
            given.close()
            theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=kept_bytes_max)
        writer.write(json.dumps(work).encode() + b"\n")
        await attach(served)
        return Child(process, reader, writer, on_end)


def in_background(work: Any) -> asyncio.Task[None]:
    """Run a coroutine as a task whose failure is a defect."""
    task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(tell_failure)
    return task


def _spawn(theirs: socket.socket, given: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, str(given.fileno())],
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        pass_fds=[given.fileno()],
        start_new_session=True,  # a Ctrl-C in the terminal is for the broker alone
    )
