"""AMQP over WebSocket, plain and within TLS: the official client, and one that splits its bytes anywhere."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue, TransportType
from azure.servicebus.exceptions import ServiceBusConnectionError
from azure.servicebus.management import ServiceBusAdministrationClient
from websockets.client import ClientProtocol
from websockets.frames import BINARY, CONT, CloseCode, Frame
from websockets.protocol import OPEN
from websockets.uri import parse_uri

from peeklock.amqp.message_writing import encode_message
from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Api, Background, Links
from tests.interop.helpers import bodies, take, take_one
from tests.interop.own_client import OwnClient


@pytest.fixture(params=["ws", "wss"])
def scheme(request: pytest.FixtureRequest) -> str:
    """Plain, as for the emulator, or within TLS, as for the real service."""
    return str(request.param)


@pytest.fixture
def connect(
    api: Api, scheme: str, tls_pair: tuple[Path, Path], background: Background
) -> Iterator[Callable[..., Links]]:
    """Make clients that connect by WebSocket to a broker's port."""
    made: list[Any] = []

    def make(broker: BrokerProcess, port: int, *, key: str | None = None, **options: Any) -> Links:
        connection_string = broker.connection_string
        if scheme == "wss":
            connection_string = connection_string.replace("UseDevelopmentEmulator=true;", "")
        if key is not None:
            connection_string = connection_string.replace("SAS_KEY_VALUE", key)
        client = api.client(
            connection_string,
            transport_type=TransportType.AmqpOverWebsocket,
            custom_endpoint_address=f"sb://localhost:{port}",
            connection_verify=str(tls_pair[0]),
            **options,
        )
        made.append(client)
        return Links(client, background)

    yield make
    background.join()
    for client in made:
        client.close()


@pytest.mark.parametrize("port", ["amqp_port", "http_port"])
def test_everything_works_over_websocket_on_any_port(
    connect: Callable[..., Links], broker: BrokerProcess, queue: str, port: str
) -> None:
    """Req: T-09, T-11"""
    client = connect(broker, getattr(broker, port), retry_total=0)
    dead = client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver, dead:
        large = os.urandom(200 * 1024)
        sender.send_messages(ServiceBusMessage(large))
        message = take_one(receiver)
        assert b"".join(message.body) == large
        receiver.complete_message(message)
        sender.send_messages([ServiceBusMessage(str(n)) for n in range(300)])
        received = take(receiver, 300)
        assert bodies(received) == [str(n) for n in range(300)]
        receiver.abandon_message(received[0])
        receiver.defer_message(received[1])
        receiver.dead_letter_message(received[2], reason="why")
        receiver.renew_message_lock(received[3])
        for message in received[3:]:
            receiver.complete_message(message)
        assert take_one(receiver).delivery_count == 1
        assert bodies(receiver.receive_deferred_messages(received[1].sequence_number)) == ["1"]
        assert take_one(dead).dead_letter_reason == "why"


def test_sessions_work_over_websocket(
    connect: Callable[..., Links], broker: BrokerProcess, make_queue: Callable[..., str]
) -> None:
    """Req: T-09"""
    queue = make_queue(requires_session=True)
    client = connect(broker, broker.amqp_port, retry_total=0)
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(str(n), session_id=f"s{n % 2}") for n in range(6)])
    with client.get_queue_receiver(queue, session_id="s1") as receiver:
        assert bodies(take(receiver, 3)) == ["1", "3", "5"]
        receiver.session.set_state(b"state")
        assert receiver.session.get_state() == b"state"


def test_a_wrong_key_is_refused_over_websocket_as_elsewhere(
    connect: Callable[..., Links], broker: BrokerProcess, queue: str
) -> None:
    """The client's own class for it is another one with an endpoint of one's own; the reason is the same.

    Req: R-04
    """
    client = connect(broker, broker.http_port, key="wrong", retry_total=0)
    with client.get_queue_sender(queue) as sender, pytest.raises(ServiceBusConnectionError) as refused:
        sender.opened()
    assert "InvalidSignature" in str(refused.value.inner_exception)


def test_clients_over_websocket_go_on_after_the_broker_was_away(
    connect: Callable[..., Links], tmp_path: Path, tls_pair: tuple[Path, Path]
) -> None:
    """Killed, and then stopped in good order: that ends with close frames of both protocols.

    Req: R-01, T-09
    """
    with BrokerProcess(tmp_path, (f"--tls-cert={tls_pair[0]}", f"--tls-key={tls_pair[1]}")) as mortal:
        with ServiceBusAdministrationClient.from_connection_string(
            mortal.connection_string, connection_verify=str(tls_pair[0])
        ) as administration:
            administration.create_queue("q")
        client = connect(mortal, mortal.amqp_port, retry_backoff_factor=0.05)
        with client.get_queue_sender("q") as sender, client.get_queue_receiver("q") as receiver:
            sender.send_messages(ServiceBusMessage("before"))
            assert bodies([take_one(receiver)]) == ["before"]
            mortal.kill()
            mortal.start()
            sender.send_messages(ServiceBusMessage("between"))
            assert sorted(bodies(take(receiver, 2))) == ["before", "between"]
            assert mortal.stop() == 0
            mortal.start()
            sender.send_messages(ServiceBusMessage("after"))
            assert sorted(bodies(take(receiver, 3))) == ["after", "before", "between"]


class SplittingSocket:
    """A client's socket whose bytes go by WebSocket, in parts that its user chooses."""

    def __init__(self, port: int, sizes: Iterator[int]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._sizes = sizes
        uri = parse_uri(f"ws://localhost:{port}/$servicebus/websocket")
        self._frames = ClientProtocol(uri, subprotocols=["AMQPWSB10"])  # type: ignore[list-item]  # a NewType
        self._frames.send_request(self._frames.connect())
        self._flush()
        self._received: list[bytes] = []
        while self._frames.state.name == "CONNECTING":
            self._frames.receive_data(self._socket.recv(65536))
        assert self._frames.handshake_exc is None
        self._frames.events_received()

    def sendall(self, data: bytes) -> None:
        """Send bytes as one message of fragments with a ping behind each, then a message without any."""
        while data and self._frames.state is OPEN:  # else no one would answer
            size = next(self._sizes)
            piece, data = data[:size], data[size:]
            half = len(piece) // 2
            self._frames.send_binary(piece[:half], fin=False)
            self._frames.send_ping(b"?")
            self._frames.send_continuation(piece[half:], fin=True)
            self._frames.send_binary(b"")
        self._flush()

    def recv(self, _: int) -> bytes:
        while not self._received:
            data = self._socket.recv(65536)
            if not data:
                return b""
            self._frames.receive_data(data)
            self._received += [
                bytes(frame.data)
                for frame in self._frames.events_received()
                if isinstance(frame, Frame) and frame.opcode in (BINARY, CONT)  # else a pong
            ]
            self._flush()
        return self._received.pop(0)

    @property
    def closed_with(self) -> int | None:
        return self._frames.close_rcvd.code if self._frames.close_rcvd else None

    def settimeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            self._socket.sendall(data)


@pytest.mark.parametrize("sizes", [(1,), (2, 3), (7, 1, 64), (8, 4096), (5000,)])
def test_amqp_may_be_split_into_frames_anywhere(
    broker: BrokerProcess, queue: str, sizes: tuple[int, ...]
) -> None:
    """Req: T-09. Source: wire contract 1.1: frame boundaries carry no meaning."""
    sock: Any = SplittingSocket(broker.amqp_port, itertools.cycle(sizes))
    with OwnClient(broker.amqp_port, sock) as own:
        assert own.browse(queue) == []
        sender = own.peer.attach_sender(queue)
        own.until(lambda: sender.credit > 0)
        outcomes: list[Any] = []
        for n in range(5):
            sender.send(encode_message(data=b"%d" % n), outcomes.append)
        own.until(lambda: len(outcomes) == 5)
        assert own.browse(queue) == [str(n) for n in range(5)]
        own.peer.close()
        own.until(lambda: own.peer.lost)


def test_other_protocols_within_a_websocket_are_refused_as_amqp_and_harm_no_other(
    broker: BrokerProcess, queue: str
) -> None:
    """Req: R-05"""
    sock = SplittingSocket(broker.amqp_port, itertools.repeat(1000))
    sock.settimeout(10)
    with OwnClient(broker.amqp_port) as other:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while data := sock.recv(0):
            answer += data
        assert answer.startswith(b"AMQP")
        assert other.browse(queue) == []


def test_a_stranger_s_frames_are_short_and_a_client_s_are_not(broker: BrokerProcess, queue: str) -> None:
    """Req: R-05. What is kept until it is whole is little, until the peer has shown who it is."""
    stranger = SplittingSocket(broker.amqp_port, itertools.repeat(300_000))
    stranger.settimeout(10)
    stranger.sendall(bytes(300_000))
    while stranger.recv(0):
        pass
    assert stranger.closed_with == CloseCode.MESSAGE_TOO_BIG
    sock: Any = SplittingSocket(broker.amqp_port, itertools.repeat(300_000))
    with OwnClient(broker.amqp_port, sock) as own:
        sender = own.peer.attach_sender(queue)
        own.until(lambda: sender.credit > 0)
        outcomes: list[Any] = []
        sender.send(encode_message(data=bytes(200_000)), outcomes.append)
        own.until(lambda: len(outcomes) == 1)
        assert len(own.browse(queue)) == 1


def test_a_stopped_broker_says_goodbye_over_websocket(tmp_path: Path) -> None:
    """The `close` comes before the WebSocket's own, and the broker does not wait for an answer.

    Req: R-01
    """
    with BrokerProcess(tmp_path) as mortal:
        sock: Any = SplittingSocket(mortal.amqp_port, itertools.repeat(1000))
        with OwnClient(mortal.amqp_port, sock) as own:
            started = time.monotonic()
            with ThreadPoolExecutor(1) as pool:
                stopped = pool.submit(mortal.stop)
                own.until(lambda: own.peer.lost)
                assert own.conditions == ["amqp:connection:forced"]
                assert sock.recv(0) == b""
                assert stopped.result() == 0
            assert time.monotonic() - started < 2
