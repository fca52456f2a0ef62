"""A TCP path with a delay: what goes in one end comes out of the other end later, in order."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def delayed_path(port: int, one_way_s: float) -> Iterator[int]:
    """Forward connections to 127.0.0.1:`port`, each direction `one_way_s` late; yield the port to connect to.

    Bandwidth is not limited. The loop runs in its own thread.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(lambda r, w: _forward(r, w, port, one_way_s), "127.0.0.1", 0)

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, one_way_s: float
) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    # Either end may reset the connection when it is done, and the owner may stop us at any time.
    with contextlib.suppress(OSError, asyncio.CancelledError):
        await asyncio.gather(_pipe(reader, far_writer, one_way_s), _pipe(far_reader, writer, one_way_s))
    writer.close()
    far_writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(1 << 16):
        # Timers of equal delay fire in the order they were set, so bytes keep their order.
        loop.call_later(delay_s, writer.write, data)
    await asyncio.sleep(delay_s)
    writer.write_eof()
