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
from contextlib import ExitStack
from typing import Any, Final

from peeklock.broker.vocabulary.errors import ServerBusy
from peeklock.server.loop.tasks import tell_failure

COMMAND: Final = (sys.executable, "-P", "-m", "peeklock.worker")

CHILDREN_MAX: Final = 16
CHILDREN_OF_NAMESPACE_MAX: Final = 8
CHILDREN_OF_KEY_MAX: Final = 6
"""At a time, of the process, of one namespace, and of one key there. Our choice: each takes 30 MB, and what
it can get of a core; a key leaves places to others."""

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
        self._counts: Counter[tuple[str, str]] = Counter()
        """By namespace and identity, see `Grant.identity`."""

    def require_room(self, namespace: str, identity: str) -> None:
        """Raise ServerBusy if a key of a namespace can have no further child now."""
        of_namespace = sum(count for (name, _), count in self._counts.items() if name == namespace)
        for count, count_max, whose in (
            (self._counts[namespace, identity], CHILDREN_OF_KEY_MAX, "key"),
            (of_namespace, CHILDREN_OF_NAMESPACE_MAX, "namespace"),
            (self._counts.total(), CHILDREN_MAX, "broker"),
        ):
            if count >= count_max:
                raise ServerBusy(
                    f"{count} searches and jobs of this {whose} are under way, the most there may be: try "
                    "again when one has ended, or stop one."
                )

    async def start(
        self,
        namespace: str,
        identity: str,
        work: Mapping[str, Any],
        attach: Attach,
        *,
        kept_bytes_max: int = CHUNK_BYTES,
    ) -> Child:
        """Start a child, of whose output some is kept. Raises: ServerBusy, OSError, what `attach` raises."""
        self.require_room(namespace, identity)
        place = (namespace, identity)
        self._counts[place] += 1

        def leave() -> None:
            self._counts[place] -= 1
            if not self._counts[place]:
                del self._counts[place]

        with ExitStack() as undone:
            undone.callback(leave)
            served, given = socket.socketpair()
            undone.callback(served.close)
            ours, theirs = socket.socketpair()
            undone.callback(ours.close)
            try:
                process = await asyncio.to_thread(_spawn, theirs, given)
            finally:
                given.close()
                theirs.close()
            undone.callback(_end, process)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=kept_bytes_max)
            undone.callback(writer.transport.abort)
            writer.write(json.dumps(work).encode() + b"\n")
            await attach(served)
            undone.pop_all()
        return Child(process, reader, writer, leave)


def in_background(work: Any) -> asyncio.Task[None]:
    """Run a coroutine as a task whose failure is a defect."""
    task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(tell_failure)
    return task


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and wait for its end in the background."""
    process.kill()
    asyncio.get_running_loop().run_in_executor(None, process.wait)


def _spawn(theirs: socket.socket, given: socket.socket) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, str(given.fileno())],
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        pass_fds=[given.fileno()],
        start_new_session=True,  # a Ctrl-C in the terminal is for the broker alone
    )
