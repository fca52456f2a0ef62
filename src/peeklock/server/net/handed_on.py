"""The transport of a connection whose beginning another part has answered, perhaps on another node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class HandedOnTransport(asyncio.Transport):
    """Passes on all that a protocol does; shows the client, and drops what it was sent already."""

    def __init__(
        self,
        transport: asyncio.Transport,
        answered: bytes,
        extra: dict[str, Any] | None = None,
        on_mismatch: Callable[[], None] = lambda: None,
    ) -> None:
        """Wrap a transport.

        Args:
            answered: the output must begin so.
            extra: replaces the information of the transport, such as `peername`.
            on_mismatch: is called if the output begins otherwise; the transport is aborted then.
        """
        super().__init__()
        self._transport = transport
        self._answered = memoryview(answered)
        self._given = {} if extra is None else extra
        self._on_mismatch = on_mismatch
        if not answered:
            self._pass_writes_on()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name in self._given:
            return self._given[name]
        return self._transport.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._answered:
            size = min(len(self._answered), len(data))
            if data[:size] != self._answered[:size]:
                self._on_mismatch()
                self._transport.abort()
                return
            self._answered = self._answered[size:]
            data = data[size:]
            if not self._answered:
                self._pass_writes_on()
            if not data:
                return
        self._transport.write(data)

    def _pass_writes_on(self) -> None:
        """Take no part in later writes, which would pass a function each for as long as the client stays."""
        self.write = self._transport.write  # type: ignore[method-assign]  # saves a call for each write

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def is_reading(self) -> bool:
        return self._transport.is_reading()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._transport.get_write_buffer_limits()

    def can_write_eof(self) -> bool:
        return self._transport.can_write_eof()

    def write_eof(self) -> None:
        self._transport.write_eof()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()
