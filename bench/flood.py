"""Hostile peers in their own process: `python -m bench.flood PORT KIND AT_ONCE`.

Owns: what they send, and that they reconnect as soon as they are refused. Must not know: what is measured
meanwhile. It runs until its standard input ends, and then prints its result as JSON.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.loadgen import Endpoint, LoadFailed
from peeklock.amqp.connection import Connection
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.amqp.performatives import Source, Target
from peeklock.amqp.types import Role
from peeklock.auth import generate

TOKENS_A_CONNECTION = 50
REQUESTS_A_CONNECTION = 50
READ_BYTES = 65_536

SOURCE = "127.0.0.9"
"""Source address of the flood: bad tokens are counted by address, and other clients have another one."""

HELLO_S = 0.2
"""How long to wait for a peer when its answers are recorded."""


def bad_keys(port: int) -> bytes:
    """SASL PLAIN with a wrong key."""
    return _recorded(port, "PLAIN", b"\0RootManageSharedAccessKey\0wrong", tokens=0)


def bad_tokens(port: int) -> bytes:
    """One bad token after the other on `$cbs`."""
    return _recorded(port, "ANONYMOUS", b"", tokens=TOKENS_A_CONNECTION)


def bad_requests(port: int) -> bytes:
    """Requests to the administration with a bad token."""
    token = generate(f"https://localhost:{port}/", "RootManageSharedAccessKey", "wrong", _in_an_hour_ms())
    request = f"GET /bench HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: {token}\r\n\r\n"
    return request.encode() * REQUESTS_A_CONNECTION


def silent(port: int) -> bytes:
    """No bytes."""
    return b""


def half_hand_shakes(port: int) -> bytes:
    """The beginning of a TLS hand-shake."""
    return bytes((0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3)) + bytes(64)


def half_heads(port: int) -> bytes:
    """The beginning of an HTTP request."""
    return b"GET /bench HTTP/1.1\r\nHost: localhost\r\nX-Long: "


KINDS = {
    kind.__name__: kind for kind in (bad_keys, bad_tokens, bad_requests, silent, half_hand_shakes, half_heads)
}


@contextlib.contextmanager
def flood(endpoint: Endpoint, kind: str, at_once: int) -> Iterator[dict[str, float]]:
    """Flood a broker while the body runs; the dict has `connections` and `seconds` at the end.

    Raises:
        LoadFailed: the flood did not run to the end.
    """
    command = [sys.executable, "-m", "bench.flood", str(endpoint.port), kind, str(at_once)]
    found: dict[str, float] = {}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "started\n":
            raise LoadFailed(f"the flood {kind} did not start")
        try:
            yield found
        finally:
            said, _ = process.communicate(timeout=30)
    if process.returncode != 0:
        raise LoadFailed(f"the flood {kind} ended with status {process.returncode}")
    found.update(json.loads(said))


def _recorded(port: int, mechanism: str, response: bytes, *, tokens: int) -> bytes:
    """Return what a client sends until it is refused, so that it can be sent again at once.

    The broker's answers decide nothing in it: clients pipeline.
    """
    client = Connection(
        "client",
        container_id="flood",
        now_ms=0,
        hostname="localhost",
        sasl_mechanisms=(mechanism,),
        sasl_response=response,
    )
    sent = bytearray()
    with socket.create_connection(("127.0.0.1", port), HELLO_S) as peer:

        def exchange() -> None:
            with contextlib.suppress(TimeoutError):
                while True:
                    out = client.data_to_send()
                    sent.extend(out)
                    peer.sendall(out)
                    data = peer.recv(READ_BYTES)
                    if not data:
                        return
                    client.receive(data, 0)

        client.open()
        exchange()
        if not tokens:
            return bytes(sent)
        channel = client.begin()
        exchange()
        handle = client.attach(channel, "tokens", Role.SENDER, Source("cbs"), Target("$cbs"))
        client.attach(channel, "answers", Role.RECEIVER, Source("$cbs"), Target("cbs"))
        exchange()
        audience = "sb://localhost/bench"
        token = generate(audience, "RootManageSharedAccessKey", "wrong", _in_an_hour_ms())
        for number in range(tokens):
            payload = encode_message(
                properties=Properties(message_id=str(number), reply_to="cbs"),
                application_properties={
                    "operation": "put-token",
                    "type": "servicebus.windows.net:sastoken",
                    "name": audience,
                },
                value=token,
            )
            client.send(channel, handle, number.to_bytes(4, "big"), payload)
        sent.extend(client.data_to_send())
    return bytes(sent)


def _in_an_hour_ms() -> int:
    return int(time.time() * 1000) + 3_600_000


def _run(port: int, kind: str, at_once: int) -> None:
    said = KINDS[kind](port)
    found = selectors.DefaultSelector()
    found.register(sys.stdin, selectors.EVENT_READ)

    def connect() -> None:
        peer = socket.socket()
        peer.setblocking(False)
        peer.bind((SOURCE, 0))
        peer.connect_ex(("127.0.0.1", port))
        found.register(peer, selectors.EVENT_WRITE)

    for _ in range(at_once):
        connect()
    print("started", flush=True)
    started, connections = time.monotonic(), 0
    while True:
        for key, events in found.select():
            peer = key.fileobj
            if peer is sys.stdin:
                took = time.monotonic() - started
                print(json.dumps({"connections": connections, "seconds": took}))
                return
            assert isinstance(peer, socket.socket)
            try:
                if events & selectors.EVENT_WRITE:
                    peer.send(said)
                    connections += 1
                    found.modify(peer, selectors.EVENT_READ)
                elif not peer.recv(READ_BYTES):
                    raise ConnectionResetError
            except BlockingIOError:
                continue
            except OSError:
                found.unregister(peer)
                peer.close()
                connect()


if __name__ == "__main__":
    _run(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
