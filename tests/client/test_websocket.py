"""The client over WebSocket, plain and within TLS, through each port."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import scan
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import CONNECTION_LOST, ServiceBusError
from peeklock.client.links import COMPLETE, ReceiveMode
from peeklock.client.websocket import WebSocket
from peeklock.demo.broker import BrokerProcess
from tests.client.test_connection import peek
from tests.spark.relay import Relay

PLAIN = "UseDevelopmentEmulator=true;"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with TLS, and a queue `orders`."""
    folder = tmp_path_factory.mktemp("ws")
    (folder / "Config.json").write_text(
        '{"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": [{"Name": "orders"}]}]}}'
    )
    arguments = ("--durability=os", f"--config={folder / 'Config.json'}")
    with BrokerProcess(folder, arguments) as running:
        yield running


def settings(process: BrokerProcess, port: int, *, tls: bool = False) -> ConnectionString:
    text = process.connection_string.replace(f":{process.amqp_port};", f":{port};").replace(PLAIN, "")
    return ConnectionString.parse(
        text if tls else text + PLAIN,
        ca_file=str(process.authority()) if tls else None,
        timeout_s=5,
        websocket=True,
    )


@pytest.mark.parametrize("tls", [False, True], ids=["ws", "wss"])
@pytest.mark.parametrize("port", ["amqp_port", "http_port"])
def test_messages_of_any_size_go_both_ways(process: BrokerProcess, port: str, tls: bool) -> None:
    """Req: T-09"""
    made = BlockingConnection(settings(process, getattr(process, port), tls=tls))
    bodies = [os.urandom(size) for size in (0, 1, 125, 126, 65_535, 65_536, 200_000)]
    sender = made.sender("orders")
    for _ in range(20):
        for body in bodies:
            sender.send(encode_message(data=body))
    sender.flush()
    receiver = made.receiver("orders", ReceiveMode.PEEK_LOCK)
    received: list[bytes] = []
    while len(received) < 20 * len(bodies):
        for delivery in receiver.receive(max_count=1000, timeout_s=5):
            received.append(scan(delivery.payload).decode_body()[0][1])
            receiver.settle(delivery, COMPLETE)
    receiver.flush()
    assert received == 20 * bodies
    made.close()


def test_a_broken_connection_is_opened_again(process: BrokerProcess) -> None:
    with Relay(process.amqp_port) as relay:
        made = BlockingConnection(settings(process, relay.port))
        assert peek(made, "orders") == []
        relay.cut()
        assert peek(made, "orders") == []
        made.close()


def _answering(answer: bytes) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(65536)
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "no WebSocket at .*HTTP 404"),
        (b"", "closed the connection instead"),
    ],
)
def test_what_is_no_websocket_is_named(answer: bytes, why: str) -> None:
    for port in _answering(answer):
        text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b;{PLAIN}"
        made = BlockingConnection(ConnectionString.parse(text, timeout_s=1, websocket=True))
        with pytest.raises(ServiceBusError, match=why) as raised:
            peek(made, "orders")
        assert raised.value.condition == CONNECTION_LOST


def test_a_write_that_blocks_is_repeated_with_the_same_bytes() -> None:
    """As for TLS: the part that was taken goes out once."""
    ours, theirs = socket.socketpair()
    read: Callable[[], bytes] = lambda: theirs.recv(1 << 20)  # noqa: E731

    def answer() -> None:
        from websockets.http11 import Request
        from websockets.server import ServerProtocol

        server = ServerProtocol(subprotocols=["AMQPWSB10"])  # type: ignore[list-item]  # a NewType
        server.receive_data(read())
        [request] = server.events_received()
        assert isinstance(request, Request)
        server.send_response(server.accept(request))
        theirs.sendall(b"".join(server.data_to_send()))

    thread = threading.Thread(target=answer)
    thread.start()
    made = WebSocket(ours, "localhost", 1)
    thread.join()
    made.setblocking(False)
    data = memoryview(os.urandom(60_000))
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += made.send(data)
    theirs.setblocking(False)
    raw = bytearray()
    while True:
        try:
            raw += read()
        except BlockingIOError:
            try:
                sent += made.send(data)
                break
            except BlockingIOError:
                continue
    raw += read()
    assert sent % 60_000 == 0
    assert len(raw) == sent // 60_000 * (60_000 + 8), "a frame has 8 bytes before its payload"
    made.close()
    theirs.close()


def test_without_a_port_it_is_the_port_of_https() -> None:
    text = "Endpoint=sb://ns.servicebus.windows.net;SharedAccessKeyName=a;SharedAccessKey=b"
    assert ConnectionString.parse(text, websocket=True).port == 443
    assert ConnectionString.parse(f"{text};{PLAIN}", websocket=True).port == 5672


def test_a_certificate_that_is_not_trusted_is_named(process: BrokerProcess) -> None:
    text = process.connection_string.replace(PLAIN, "")
    made = BlockingConnection(ConnectionString.parse(text, timeout_s=1, websocket=True))
    with pytest.raises(ServiceBusError, match="its certificate is not trusted"):
        peek(made, "orders")
