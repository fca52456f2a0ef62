"""Stretches of wire between nodes and database servers, which can be slow or silent.

Owns: the copying of bytes, in a thread. Must not know: what they mean. A wire that is cut keeps connections
open, takes new ones and carries nothing, as if packets were dropped; what was held comes when it is mended.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

PIECE_BYTES = 65536
PIECES_MAX = 64
"""On the way at a time; more waits at the sender."""


class Wire:
    """One listening port that leads to another port."""

    def __init__(self, wires: Wires, target: int) -> None:
        self._wires = wires
        self.target = target
        """Where new connections lead."""
        self.port = 0
        self.delay_s = 0.0
        self._is_whole = asyncio.Event()
        self._is_whole.set()

    def cut(self) -> None:
        """Carry nothing."""
        self._wires.call(self._is_whole.clear)

    def mend(self) -> None:
        """Carry all again."""
        self._wires.call(self._is_whole.set)

    async def listen(self) -> None:
        """Listen on a free port of the loopback."""
        server = await asyncio.start_server(self._lead, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._is_whole.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one direction, until its end."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_MAX)
        writing = asyncio.create_task(self._write(pieces, writer))
        data = b"-"
        while data:
            try:
                data = await reader.read(PIECE_BYTES)
            except OSError:
                data = b""
            await pieces.put((asyncio.get_running_loop().time() + self.delay_s, data))
        await writing

    async def _write(self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due_s, data = await pieces.get()
                await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))
                await self._is_whole.wait()
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
        while data:  # the other end is gone: nobody may wait for room
            data = (await pieces.get())[1]


class Wires:
    """Wires and the thread that serves them; the thread ends with the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def lay(self, target: int) -> Wire:
        """Return a wire that leads to a port."""
        wire = Wire(self, target)
        asyncio.run_coroutine_threadsafe(wire.listen(), self._loop).result()
        return wire

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the thread."""
        self._loop.call_soon_threadsafe(function)
