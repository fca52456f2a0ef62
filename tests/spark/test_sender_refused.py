"""A broker that answers a transfer with the end of its link: the error is told, and nothing is sent twice."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from peeklock.amqp.connection import Connection as Engine
from peeklock.amqp.events import ConnectionOpened, DeliveryReceived, Event, LinkAttached, SaslInit
from peeklock.amqp.messaging import Properties, encode_message, scan
from peeklock.amqp.performatives import AmqpError
from peeklock.amqp.types import Int, Role, Symbol
from peeklock.spark.connection import Connection
from peeklock.spark.errors import MESSAGE_SIZE_EXCEEDED, ServiceBusError
from peeklock.spark.settings import Settings

pytestmark = pytest.mark.spark


class Peer:
    """A broker for one connection, which ends a link with each message that comes over it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.messages = 0
        self._answers = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        sock = self._listener.accept()[0]
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
            engine.sasl_outcome(True)
        elif isinstance(event, LinkAttached):
            engine.accept_link(event.channel, event.handle)
            if event.role is Role.SENDER:
                engine.flow(event.channel, event.handle, 100)
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
                error = AmqpError(Symbol(MESSAGE_SIZE_EXCEEDED), "too large for this peer")
                engine.detach(event.channel, event.handle, error)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def test_a_message_that_ends_its_link_is_sent_once(peer: Peer) -> None:
    key = "Endpoint=sb://127.0.0.1;SharedAccessKeyName=k;SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
    settings = Settings.parse(key.replace("0.0.1;", f"0.0.1:{peer.port};"), timeout_s=2)
    connection = Connection(settings)
    sender = connection.sender("orders")
    assert sender.message_bytes_max == 0  # the link is open
    sender.send(encode_message(data=b"x"))
    with pytest.raises(ServiceBusError, match="too large for this peer") as refused:
        sender.flush()
    assert refused.value.condition == MESSAGE_SIZE_EXCEEDED
    assert peer.messages == 1
    connection.close()
