"""The beginning of a connection to a node: what it asks for, and what it is answered meanwhile."""

from __future__ import annotations

import pytest

from peeklock.amqp.connection import Connection
from peeklock.auth import OpenAuthority
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.connection import Gateway
from peeklock.server.net.door import RECEIVED_BYTES_MAX, AmqpDoor, Asked, HttpDoor

NOW_MS = 1_000


def client(mechanism: str | None, response: bytes = b"", hostname: str = "one.localhost") -> Connection:
    mechanisms = () if mechanism is None else (mechanism,)
    made = Connection(
        "client",
        container_id="test",
        now_ms=NOW_MS,
        hostname=hostname,
        sasl_mechanisms=mechanisms,
        sasl_response=response,
    )
    made.open()
    return made


def asked_by(peer: Connection, door: AmqpDoor, size: int) -> Asked:
    """Return what a client asks for, whose bytes come in pieces of a size."""
    for _ in range(10):
        data = peer.data_to_send()
        for first in range(0, len(data), size):
            written, asked = door.receive(data[first : first + size], NOW_MS)
            peer.receive(written, NOW_MS)
            if asked is not None:
                return asked
    raise AssertionError("it never asks")


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("mechanism", [None, "ANONYMOUS", "MSSBCBS", "EXTERNAL"])
def test_the_host_of_the_open_decides(mechanism: str | None, size: int) -> None:
    assert asked_by(client(mechanism), AmqpDoor(NOW_MS), size) == Asked("one.localhost")


@pytest.mark.parametrize("size", [1, 10_000])
def test_the_user_of_plain_decides_and_is_not_answered(size: int) -> None:
    """Only the owner can check the key."""
    door = AmqpDoor(NOW_MS)
    assert asked_by(client("PLAIN", b"\0one\0key"), door, size) == Asked("one.localhost", "one")
    assert asked_by(client("PLAIN", b"nonsense"), AmqpDoor(NOW_MS), size) == Asked("one.localhost")


@pytest.mark.parametrize("mechanism", [None, "ANONYMOUS", "PLAIN"])
def test_the_gateway_of_the_owner_answers_with_the_same_bytes(mechanism: str | None) -> None:
    """So the bytes that the client has already can be dropped."""
    door = AmqpDoor(NOW_MS)
    asked_by(client(mechanism, b"\0one\0key"), door, 10_000)
    authority = OpenAuthority()
    gateway = Gateway(
        1,
        namespaces=OneNamespace(authority),
        tracking=lambda: "",
        log=lambda event, fields: None,
        now_ms=NOW_MS,
    )
    gateway.receive(bytes(door.received), NOW_MS)
    answer = gateway.data_to_send()
    assert answer.startswith(door.answered)
    assert len(answer) > len(door.answered)


def test_what_is_wrong_is_for_the_owner_to_answer() -> None:
    door = AmqpDoor(NOW_MS)
    assert door.receive(b"AMQP\x09\x01\x00\x00", NOW_MS) == (b"", Asked())
    assert door.received == b"AMQP\x09\x01\x00\x00"


def test_a_peer_that_never_names_anything_is_led_to_the_default_namespace() -> None:
    door = AmqpDoor(NOW_MS)
    asked, sent = None, 0
    door.receive(b"AMQP\x00\x01\x00\x00", NOW_MS)
    while asked is None:
        _, asked = door.receive(bytes((0, 0, 0, 8, 2, 0, 0, 0)), NOW_MS)
        sent += 8
        assert sent <= RECEIVED_BYTES_MAX
    assert asked == Asked()


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize(
    ("head", "asked"),
    [
        (b"GET /orders HTTP/1.1\r\nA: b\r\nhOst: one.localhost:80 \r\n\r\n", ("one.localhost:80", "/orders")),
        (b"GET http://one/orders?a=b HTTP/1.1\r\nHost: two\r\n\r\n", ("one", "/orders")),
        (b"GET / HTTP/1.0\r\n\r\n", ("", "/")),
        (b"nonsense\n\n", None),
        (b"\x00\xff\r\n\r\n", None),
    ],
)
def test_the_host_of_a_request_decides(head: bytes, asked: tuple[str, str] | None, size: int) -> None:
    door = HttpDoor()
    wanted = Asked() if asked is None else Asked(asked[0], path=asked[1])
    for first in range(0, len(head), size):
        written, found = door.receive(head[first : first + size], NOW_MS)
        assert written == b""
        assert found == (wanted if first + size >= len(head) else None)
    assert door.received == head
