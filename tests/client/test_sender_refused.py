"""Brokers that take no messages: they end the link of a sender, or say nothing. The error is told in time."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from peeklock.amqp.connection import Connection as Engine
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import ConnectionOpened, DeliveryReceived, Event, LinkAttached, SaslInit
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties, scan
from peeklock.amqp.performatives import Target
from peeklock.amqp.types import Int, Role, Symbol
from peeklock.client import sender as sender_module
from peeklock.client.connection import BlockingConnection
from peeklock.client.connection_string import ConnectionString
from peeklock.client.errors import MESSAGE_SIZE_EXCEEDED, ServiceBusError

pytestmark = pytest.mark.spark


class Peer:
    """A broker, which ends a link with each message that comes over it, or says nothing to it."""

    def __init__(self, *, credit: int = 100, ends: bool = True) -> None:
        self._credit = credit
        self._ends = ends
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.messages = 0
        self._answers = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._serve_one(self._listener.accept()[0])

    def _serve_one(self, sock: socket.socket) -> None:
        self.connections += 1
        engine = Engine("server", container_id="peer", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
        with contextlib.suppress(OSError):
            while data := sock.recv(65536):
                for event in engine.receive(data, time.monotonic_ns() // 1_000_000):
                    self._take(engine, event)
                sock.sendall(engine.data_to_send())
        sock.close()

    def _take(self, engine: Engine, event: Event) -> None:
        if isinstance(event, ConnectionOpened):
            engine.open()
        elif isinstance(event, SaslInit):
            engine.sasl_outcome()
        elif isinstance(event, LinkAttached):
            engine.accept_link(event.channel, event.handle)
            if event.role is Role.SENDER:
                about_tokens = isinstance(event.target, Target) and event.target.address == "$cbs"
                engine.flow(event.channel, event.handle, 100 if about_tokens else self._credit)
            else:
                self._answers = event.handle
        elif isinstance(event, DeliveryReceived):
            if b"put-token" in event.payload:
                number = scan(event.payload).decode_properties().message_id
                accepted = encode_message(
                    properties=Properties(correlation_id=number),
                    application_properties={"status-code": Int(200)},
                    value=None,
                )
                engine.send(event.channel, self._answers, b"1", accepted, settled=True)
            else:
                self.messages += 1
                if self._ends:
                    error = AmqpError(Symbol(MESSAGE_SIZE_EXCEEDED), "too large for this peer")
                    engine.detach(event.channel, event.handle, error)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def connected(peer: Peer, timeout_s: float) -> BlockingConnection:
    key = "Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    return BlockingConnection(
        ConnectionString.parse(key.replace("0.0.1;", f"0.0.1:{peer.port};"), timeout_s=timeout_s)
    )


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def test_a_message_that_ends_its_link_is_sent_once(peer: Peer) -> None:
    connection = connected(peer, 2)
    sender = connection.sender("orders")
    assert sender.message_bytes_max == 0  # the link is open
    sender.send(encode_message(data=b"x"))
    with pytest.raises(ServiceBusError, match="too large for this peer") as refused:
        sender.flush()
    assert refused.value.condition == MESSAGE_SIZE_EXCEEDED
    assert peer.messages == 1
    connection.close()


@pytest.mark.parametrize(
    ("credit", "waited_for"), [(0, "credit from the broker, so none was sent"), (100, "its outcome")]
)
def test_a_broker_that_never_says_a_word_is_given_up(
    credit: int, waited_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens each link that is asked for: the limit is that of all attempts."""
    monkeypatch.setattr(sender_module, "PROGRESS_S", 0.3)
    peer = Peer(credit=credit, ends=False)
    connection = connected(peer, 3)
    sender = connection.sender("orders")
    before = time.monotonic()
    with pytest.raises(ServiceBusError) as late:
        sender.send(encode_message(data=b"x"))
    assert 2.9 < time.monotonic() - before < 8
    text = str(late.value)
    assert f"127.0.0.1:{peer.port}/orders: none of 1 messages was accepted within 3 s" in text
    assert f"waited for {waited_for}" in text
    assert peer.connections > 1
    assert bool(peer.messages) == bool(credit)
    with pytest.raises(ServiceBusError, match="none of 1 messages was accepted"):
        sender.send(encode_message(data=b"y"))
    connection.close()
    peer.close()
