"""A namespace moves in order: what its owner has sent reaches clients that take long to read it.

Messages of receive-and-delete are gone from the queue when they are sent, so each byte counts.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import uuid
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from peeklock.amqp.connection import Connection
from peeklock.amqp.events import ConnectionClosed, DeliveryReceived
from peeklock.amqp.frames import frame
from peeklock.amqp.performatives import Source, Target
from peeklock.amqp.types import Role
from peeklock.server.app import Broker
from tests.postgres_server import PostgresServer
from tests.server.cluster.names import names as names  # a fixture
from tests.server.cluster.nodes import Cluster, in_cluster
from tests.server.cluster.test_relay import client_of

COUNT = 240
BODY_BYTES = 80_000
"""So all messages together are more than all buffers on the way."""

READ_BEFORE = 10
AFTER_S = 1.0
"""How long the client reads nothing once the namespace has moved. Our choice: longer than a move."""

REST_STEP_S = 0.05
EMPTY = frame(0, b"")
"""A frame that keeps a connection alive: any client may send one at any time."""


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"moves{uuid.uuid4().hex}")


class SlowReader:
    """Receives and deletes messages of the queue `orders`, and reads as little at a time as it is told to."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.reason = ""
        self._engine = Connection("client", container_id="slow", now_ms=0, hostname="main.localhost")

    async def connect(self, port: int, *, tls: bool) -> None:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 131_072)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if tls else None
        if context is not None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._reader, self._writer = await asyncio.open_connection(
            sock=sock, limit=16_384, ssl=context, server_hostname="main.localhost" if tls else None
        )
        engine = self._engine
        engine.open()
        channel = engine.begin()
        handle = engine.attach(
            channel, "slow", Role.RECEIVER, Source("orders"), Target("slow"), snd_settle_mode=1
        )
        engine.flow(channel, handle, COUNT)
        self._writer.write(engine.data_to_send())

    async def read(self, count: int) -> None:
        """Read until so many messages have come, or the stream ends."""
        while len(self.numbers) < count and (data := await self._reader.read(16_384)):
            for event in self._engine.receive(data, 0):
                if isinstance(event, DeliveryReceived):
                    self.numbers.append(number_of(event.payload))
                elif isinstance(event, ConnectionClosed):
                    self.reason = str(event.error)
            self._writer.write(self._engine.data_to_send() + EMPTY)

    async def rest(self, seconds: float) -> None:
        """Read nothing, and send all the same."""
        for _ in range(round(seconds / REST_STEP_S)):
            self._writer.write(EMPTY)
            await asyncio.sleep(REST_STEP_S)

    def close(self) -> None:
        self._writer.close()


def number_of(payload: bytes) -> int:
    at = bytes(payload).index(b"number=")
    return int(payload[at + 7 : at + 10])


def send_all(broker: Broker) -> None:
    """Send all messages, again where the broker is busy."""
    with client_of(broker, "main", retries=5) as client, client.get_queue_sender("orders") as sender:
        for first in range(0, COUNT, 3):
            bodies = [f"number={n:03}".ljust(BODY_BYTES) for n in range(first, first + 3)]
            sender.send_messages([ServiceBusMessage(body) for body in bodies])


def receive_rest(broker: Broker) -> list[int]:
    found: list[int] = []
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with (
        client_of(broker, "main") as client,
        client.get_queue_receiver("orders", receive_mode=mode) as receiver,
    ):
        while batch := receiver.receive_messages(COUNT, max_wait_time=2):
            found += [number_of(b"".join(message.body)) for message in batch]
    return found


@pytest.mark.parametrize("where", ["owner", "relay"])
@pytest.mark.parametrize(("how", "tls"), [("move", False), ("move", True), ("stop", True)])
def test_what_was_sent_arrives_although_its_namespace_moves(
    url: str, tmp_path: Path, where: str, how: str, tls: bool
) -> None:
    """Req: R-02. The client sends meanwhile, as with credit, a lock that it renews, or to stay connected."""

    async def check(cluster: Cluster) -> None:
        off = frozenset({"off"})
        first = await cluster.start("a", auth=off)
        await cluster.until_owned(a=["default"])
        second = await cluster.start("b", auth=off)
        entrance = first if where == "owner" else second
        await asyncio.to_thread(send_all, first)
        reader = SlowReader()
        await reader.connect(entrance.amqp_port, tls=tls)
        await reader.read(READ_BEFORE)
        await reader.rest(0.5)  # the owner fills what is on the way
        if how == "move":
            assert first.node is not None
            await asyncio.to_thread(first.node.member.nodes.choose, ["default"], "b")
            await cluster.until_owned(a=[], b=["default"])
            stopped = None
        else:
            stopped = asyncio.ensure_future(cluster.stop("a"))
            await cluster.until_owned(b=["default"])
        await reader.rest(AFTER_S)
        await reader.read(COUNT + 1)
        reader.close()
        if stopped is not None:
            assert await stopped == 0
        rest = await asyncio.to_thread(receive_rest, second)
        assert sorted([*reader.numbers, *rest]) == [*range(COUNT)]
        assert len(reader.numbers) >= READ_BEFORE
        if where == "owner":  # the systems of two nodes may keep all
            assert len(reader.numbers) < COUNT

    in_cluster(check, url, tmp_path, ["main"])
