"""The end of a transport's output. What is listened on is tested with the listener."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
import uvloop

from peeklock.server.net.sockets import end_output


class Kept(asyncio.Protocol):
    """Keeps its end of the stream open, and notes the end of the connection."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def eof_received(self) -> bool:
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def connect() -> tuple[asyncio.Transport, Kept, socket.socket]:
    """Return the broker's transport and protocol, and the peer's socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    transport, kept = await asyncio.get_running_loop().connect_accepted_socket(Kept, ours)
    return transport, kept, theirs


either_loop = pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


@either_loop
def test_the_output_ends_after_what_is_buffered_and_the_input_stays(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def run() -> None:
        transport, kept, theirs = await connect()
        transport.write(b"last words")
        assert end_output(transport)
        with theirs:
            assert await asyncio.to_thread(theirs.recv, 100) == b"last words"
            assert await asyncio.to_thread(theirs.recv, 100) == b""
            assert not kept.lost.is_set()
        transport.close()
        await asyncio.wait_for(kept.lost.wait(), 10)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@either_loop
def test_the_connection_of_a_peer_that_has_reset_it_is_over_and_nothing_is_raised(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """asyncio's own loop shuts a socket down at once, which a reset refuses."""

    async def run() -> None:
        transport, kept, theirs = await connect()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        end_output(transport)
        await asyncio.wait_for(kept.lost.wait(), 10)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())
