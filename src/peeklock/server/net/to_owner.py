"""The connection of a caller to the owner of its namespace, on another node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from peeklock.server.net.relay import Caller

BUFFER_BYTES_HIGH = 256 * 1024
"""Above so much unsent output of one end the other one is not read."""


class ToOwner(asyncio.Protocol):
    """Bytes to the owner, and back to the client."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._transport: asyncio.Transport | None = None
        self._client: asyncio.Transport | None = None
        self._early = b""
        self._clock_s = asyncio.get_running_loop().time
        self.is_paused = False
        """Whether the client is to read first."""
        self.heard_s = 0.0
        """When it sent something last, or was first read again."""
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        """Whether the owner takes the client; empty = it was lost."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES_HIGH)

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._clock_s()
        if self._client is not None:
            if not self._client.is_closing():  # uvloop raises an error then
                self._client.write(data)
            return
        if not self.answer.done():
            self.answer.set_result(data[:1])
            data = data[1:]
        self._early += data

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._caller.pause_reading()

    def resume_writing(self) -> None:
        self._caller.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.answer.done():
            self.answer.set_result(b"")
        if self._client is not None:
            self._caller.owner_lost()

    def begin(self, client: asyncio.Transport) -> None:
        """Carry what comes to the client from now on."""
        self._client = client
        if self._early:
            client.write(self._early)
            self._early = b""
        if self._transport is None:
            self._caller.owner_lost()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def pause_reading(self) -> None:
        self.is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self.is_paused = False
        self.heard_s = self._clock_s()
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
