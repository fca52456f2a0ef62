"""Clients of any node reach the owner of their namespace."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from peeklock.amqp.connection import Connection
from peeklock.auth import DEVELOPMENT_KEY
from peeklock.cluster.hello import PING, TAKEN, Hello
from peeklock.cluster.key import ClusterKey
from peeklock.server.app import Broker
from peeklock.server.net.amqp import AmqpConnection
from peeklock.server.net.auth_throttle import PACE_S, REFUSALS_MAX, WAIT_S_MAX
from peeklock.server.net.node_port import HELLO_S_MAX, SHAKING_MAX
from peeklock.server.net.relay import RETRY_S
from peeklock.server.tls.between_nodes import node_contexts
from tests.postgres_server import PostgresServer
from tests.server.cluster.names import names as names  # a fixture
from tests.server.cluster.nodes import KEY, Cluster, in_cluster, until_next_view


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"relay{uuid.uuid4().hex}")


def client_of(broker: Broker, name: str, *, retries: int = 0) -> ServiceBusClient:
    """Return a client of a namespace, which connects to this node."""
    text = (
        f"Endpoint=sb://{name}.localhost:{broker.amqp_port};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey={DEVELOPMENT_KEY};UseDevelopmentEmulator=true;"
    )
    return ServiceBusClient.from_connection_string(text, retry_total=retries)


def send(broker: Broker, name: str, body: str) -> None:
    with client_of(broker, name) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage(body))


def receive(broker: Broker, name: str) -> str:
    with client_of(broker, name) as client, client.get_queue_receiver("orders") as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=10)
        receiver.complete_message(message)
        return str(message)


def test_clients_of_any_node_reach_the_owner(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        await cluster.until_owned(a=["default", "namespace/one", "namespace/two"])
        second = await cluster.start("b")
        await cluster.until_owned(a=["default", "namespace/one"], b=["namespace/two"])
        for name in ("main", "one", "two"):
            for sender, receiver in ((first, second), (second, first)):
                await asyncio.to_thread(send, sender, name, name)
                assert await asyncio.to_thread(receive, receiver, name) == name

    in_cluster(check, url, tmp_path, ["main", "one", "two"])


@pytest.mark.parametrize("transport", [TransportType.Amqp, TransportType.AmqpOverWebsocket])
def test_clients_with_tls_and_websocket_are_led_to_the_owner(
    url: str, tmp_path: Path, transport: TransportType
) -> None:
    """Messages that are larger than the buffers between the nodes, both ways."""
    bodies = [bytes([n]) * 240_000 for n in range(8)]

    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)

        def exchange() -> list[bytes]:
            text = (
                "Endpoint=sb://main.localhost;SharedAccessKeyName=RootManageSharedAccessKey;"
                f"SharedAccessKey={DEVELOPMENT_KEY};"
            )
            made = ServiceBusClient.from_connection_string(
                text,
                custom_endpoint_address=f"sb://localhost:{second.amqp_port}",
                connection_verify=str(tmp_path / "b" / "tls" / "ca.pem"),
                transport_type=transport,
                retry_total=0,
            )
            found: list[bytes] = []
            with made as client, client.get_queue_sender("orders") as sender:
                for body in bodies:
                    sender.send_messages(ServiceBusMessage(body))
                [connection] = first.protocols.connections.values()
                assert connection.has_tls
                with client.get_queue_receiver("orders") as receiver:
                    while len(found) < len(bodies):
                        for message in receiver.receive_messages(8, max_wait_time=20):
                            found.append(b"".join(message.body))
                            receiver.complete_message(message)
            return found

        assert await asyncio.to_thread(exchange) == bodies

    in_cluster(check, url, tmp_path, ["main"])


async def two_nodes(cluster: Cluster) -> tuple[Broker, Broker]:
    """Return the owner of the only namespace, and a node that has none."""
    first = await cluster.start("a")
    await cluster.until_owned(a=["default"])
    return first, await cluster.start("b")


async def opened(port: int, hello: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(hello)
    return reader, writer


async def http(port: int, path: str, host: str = "localhost") -> bytes:
    """Return the answer to a request."""
    text = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    reader, writer = await opened(port, text.encode())
    try:
        return await reader.read()
    finally:
        writer.close()


def _handshake() -> bytes:
    client = Connection("client", container_id="test", now_ms=0, hostname="main.localhost")
    client.open()
    return client.data_to_send()


HANDSHAKE = _handshake()
"""A header and an `open`, without SASL."""


def test_the_owner_sees_the_address_of_the_client(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)
        reader, writer = await opened(second.amqp_port, HANDSHAKE)
        assert (await reader.readexactly(8)) == b"AMQP\x00\x01\x00\x00"
        await reader.readexactly(8)  # of the `open`, which only the owner answers
        [connection] = first.protocols.connections.values()
        host, port = writer.get_extra_info("sockname")
        assert connection.endpoint == f"{host}:{port}"
        assert not connection.has_tls
        assert not second.protocols.connections
        writer.close()

    in_cluster(check, url, tmp_path, ["main"])


def test_requests_reach_the_owner_and_pages_of_a_node_stay(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)
        for broker in (first, second):
            found = await http(broker.http_port, "/$api/v1/config", "main.localhost")
            assert b"HTTP/1.1 200" in found
            assert b"orders" in found
            assert b"HTTP/1.1 200" in await http(broker.http_port, "/ready")
            owner = await http(broker.http_port, "/owner")
            assert owner.endswith(b'"owner":"a","node":"%b"}' % (b"a" if broker is first else b"b"))
            assert b'"name":"b"' in await http(broker.http_port, "/$api/v1/cluster")

    in_cluster(check, url, tmp_path, ["main"])


def test_carried_connections_are_cut_when_the_owner_changes(url: str, tmp_path: Path) -> None:
    """Also where the old owner has not closed them: it may be frozen."""

    async def check(cluster: Cluster) -> None:
        _, second = await two_nodes(cluster)
        reader, writer = await opened(second.amqp_port, HANDSHAKE)
        await reader.readexactly(16)
        assert second.node is not None
        assert second.node.relay.figures() == {"relayed": 1, "held": 0}
        changed = replace(second.node.member.view.lease("default"), session="another")
        second.node.member._take_view(replace(second.node.member.view, held={"default": changed}))
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 5)
        assert second.node.relay.figures()["relayed"] == 0
        writer.close()

    in_cluster(check, url, tmp_path, ["main"])


def test_a_client_is_held_while_nobody_owns_its_namespace(url: str, tmp_path: Path) -> None:
    """The owner is gone without giving its lease back."""

    async def check(cluster: Cluster) -> None:
        _, second = await two_nodes(cluster)
        assert second.node is not None
        member = second.node.member
        member._take_view(replace(member.view, held={}))  # nobody owns it
        reader, writer = await opened(second.amqp_port, HANDSHAKE)
        assert (await reader.readexactly(8)) == b"AMQP\x00\x01\x00\x00"
        assert await cluster.stop("a") == 0
        await cluster.until_owned(b=["default"])
        await asyncio.wait_for(reader.readexactly(8), 20)  # of the `open`, by this node itself
        assert len(second.protocols.connections) == 1
        writer.close()

    in_cluster(check, url, tmp_path, ["main"])


def test_a_client_that_was_held_is_connected_once(url: str, tmp_path: Path) -> None:
    """Each change in the database is a try beside those that are due after a failure."""

    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)
        assert second.node is not None
        member = second.node.member
        await until_next_view(member)
        good = member.view
        gone = replace(good.nodes["a"], address="127.0.0.1:1")
        caught = replace(good, nodes={**good.nodes, "a": gone})
        member._take_view(caught)
        _, writer = await opened(second.amqp_port, HANDSHAKE)
        for _ in range(10):
            await asyncio.sleep(RETRY_S / 10)
            member._take_view(caught)
        member._take_view(good)
        async with asyncio.timeout(20):
            while not first.protocols.connections:  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0.01)
        known = set(first.protocols.connections)
        await asyncio.sleep(2 * RETRY_S)
        assert set(first.protocols.connections) == known
        assert len(known) == 1
        writer.close()

    in_cluster(check, url, tmp_path, ["main"])


def show_bad_keys(broker: Broker, connections: int) -> None:
    """Have this machine paced, with so many connections before the next one."""
    protocols = broker.protocols
    for _ in range(2 * REFUSALS_MAX):
        protocols._throttle.refused("127.0.0.1", protocols.clock.now_ms())
    for _ in range(connections):
        protocols.wait_s("127.0.0.1")


def test_a_client_that_is_paced_waits_at_the_owner(url: str, tmp_path: Path) -> None:
    """The owner takes it at once: the other node waits for that for a shorter time."""

    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)
        show_bad_keys(first, round(2 / PACE_S))
        reader, writer = await opened(second.amqp_port, HANDSHAKE)
        assert (await reader.readexactly(8)) == b"AMQP\x00\x01\x00\x00"
        answer = asyncio.ensure_future(reader.readexactly(8))  # of the `open`, which only the owner answers
        await asyncio.sleep(1)
        assert second.node is not None
        assert second.node.relay.figures() == {"relayed": 1, "held": 0}
        assert not answer.done()
        await asyncio.wait_for(answer, WAIT_S_MAX)
        writer.close()

    in_cluster(check, url, tmp_path, ["main"])


def test_a_client_that_the_owner_turns_away_is_cut(url: str, tmp_path: Path) -> None:
    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)
        show_bad_keys(first, round((WAIT_S_MAX + 2) / PACE_S))
        reader, writer = await opened(second.amqp_port, HANDSHAKE)
        assert (await reader.readexactly(8)) == b"AMQP\x00\x01\x00\x00"
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(reader.read(), 1) == b""
        writer.close()

    in_cluster(check, url, tmp_path, ["main"])


def test_a_node_that_stops_knows_no_client_any_more(url: str, tmp_path: Path) -> None:
    """Neither one at the door, nor one that waits at its pace, nor one that comes for what it gives back."""

    async def check(cluster: Cluster) -> None:
        first, second = await two_nodes(cluster)
        assert first.node is not None
        silent, silent_writer = await asyncio.open_connection("127.0.0.1", first.amqp_port)
        silent_writer.write(HANDSHAKE[:8])
        await silent.readexactly(8)
        show_bad_keys(first, round(2 / PACE_S))
        paced, paced_writer = await opened(second.amqp_port, HANDSHAKE)
        await paced.readexactly(8)
        await asyncio.sleep(0.5)  # it waits at the owner
        first.node.close()
        for reader in (silent, paced):
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 1.0)
        served = first.registry.default
        served.retires = True
        late = first.protocols.amqp_of(served)
        assert not served.connections
        assert not isinstance(late, AmqpConnection)
        served.retires = False
        silent_writer.close()
        paced_writer.close()

    in_cluster(check, url, tmp_path, ["main"])


def test_only_a_node_may_hand_a_client_on(url: str, tmp_path: Path) -> None:
    """Without the key pair of the nodes there is no hand-shake."""

    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        assert first.node is not None
        host, _, port = first.node.address.rpartition(":")

        async def ping(context: ssl.SSLContext) -> bytes:
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            try:
                writer.write(Hello(PING).line())
                return await reader.readexactly(1)
            finally:
                writer.close()

        for context in (_without_pair(), node_contexts(ClusterKey(b"x" * 32)).connecting):
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await ping(context)
        assert await ping(node_contexts(ClusterKey(KEY)).connecting) == TAKEN

    in_cluster(check, url, tmp_path, ["main"])


def test_silent_connections_to_the_port_of_nodes_are_bounded(url: str, tmp_path: Path) -> None:
    """One more closes the oldest, and a node still gets in."""

    async def check(cluster: Cluster) -> None:
        first = await cluster.start("a")
        assert first.node is not None
        host, _, port = first.node.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(SHAKING_MAX + 2)]
        for reader, _ in silent[:2]:
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), HELLO_S_MAX / 2) == b""
        reader, writer = await asyncio.open_connection(
            host, int(port), ssl=node_contexts(ClusterKey(KEY)).connecting
        )
        writer.write(Hello(PING).line())
        assert await reader.readexactly(1) == TAKEN
        assert not silent[-1][0].at_eof()
        for _, one in (*silent, (reader, writer)):
            one.close()

    in_cluster(check, url, tmp_path, ["main"])


def _without_pair() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
