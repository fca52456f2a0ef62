"""A peer that still sends, and reads slowly, gets all that was written before our end."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from peeklock.server.net import ending
from peeklock.server.net.ending import Ending
from peeklock.server.tls.certificates import make_pair

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
SIZE_BYTES = 8_000_000
"""More than the buffers of the system on the way."""


class Ended(asyncio.Protocol):
    """Writes, ends, and drops what comes."""

    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: uvloop's transports do not derive from asyncio's.
        ended = cast(asyncio.Transport, transport)
        ended.write(bytes(SIZE_BYTES))
        self.ending = Ending(ended, ending.LINGER_S)

    def data_received(self, data: bytes) -> None:
        self.ending.heard()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ending.cancel()
        self.lost.set_result(exc)


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    pair = make_pair(["localhost"], datetime.datetime.now(datetime.UTC))
    for name, content in zip(("certificate", "key"), pair, strict=True):
        (folder / name).write_bytes(content)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "certificate", folder / "key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    return server, client


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("tls", [False, True])
def test_a_peer_that_sends_while_it_reads_gets_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tls: bool, loop: str
) -> None:
    """Req: R-02. Closing at once reset the connection, or made asyncio's TLS abort it."""
    monkeypatch.setattr(ending, "LINGER_S", 0.1)
    theirs, ours = contexts(tmp_path) if tls else (None, None)

    async def run() -> None:
        made: list[Ended] = []

        def protocol() -> Ended:
            made.append(Ended())
            return made[-1]

        server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, ssl=theirs)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 262_144)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, server.sockets[0].getsockname())
        name = "localhost" if tls else None
        reader, writer = await asyncio.open_connection(sock=sock, ssl=ours, server_hostname=name)
        for _ in range(5):  # it reads nothing, for longer than it takes to linger
            writer.write(b"x" * 8)
            await asyncio.sleep(0.1)
        found = 0
        while found < SIZE_BYTES and (data := await reader.read(65_536)):
            found += len(data)
            writer.write(b"x" * 8)
        assert found == SIZE_BYTES
        # It has all, and sends nothing more: the connection ends although its end is not heard.
        await asyncio.wait_for(made[0].lost, 5)
        writer.close()
        server.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())
