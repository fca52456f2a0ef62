"""Leads the client's ports to the broker: `relay.py out SOCKET HOST PORT`, `relay.py in SOCKET`.

The client takes no port: it dials 5671, and 443 for administration. So it runs in a network of its own
(run.sh), where these ports are free; a socket in the file system leads out of it to the broker.
"""

import asyncio
import sys


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Hand on all bytes, and their end."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def serve_out(path: str, host: str, port: str) -> None:
    """Lead what comes by the socket to the broker."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))

    async with await asyncio.start_unix_server(connected, path) as server:
        await server.serve_forever()


async def serve_in(path: str) -> None:
    """Lead the two ports to the socket."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer))

    servers = [await asyncio.start_server(connected, "localhost", port) for port in (443, 5671)]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(serve_out(*sys.argv[2:]) if sys.argv[1] == "out" else serve_in(*sys.argv[2:]))
