"""Messages over HTTP, plain and over TLS, beside the official client."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue

from peeklock.auth import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, generate
from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Links
from tests.interop.helpers import send, take_one

TOKEN = generate(
    "https://localhost", DEVELOPMENT_KEY_NAME, DEVELOPMENT_KEY, round(time.time() * 1000) + 3_600_000
)


class Http:
    """One connection."""

    def __init__(self, port: int, ca_file: str | None) -> None:
        self.port = port
        self.ca_file = ca_file
        if ca_file is None:
            self._connection = http.client.HTTPConnection("localhost", port, timeout=70)
        else:
            context = ssl.create_default_context(cafile=ca_file)
            self._connection = http.client.HTTPSConnection("localhost", port, timeout=70, context=context)

    def ask(
        self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request, and return the answer; `target` is a path or an address."""
        path = "/" + target.split("/", 3)[3] if "://" in target else target
        self._connection.request(method, path, body, {"Authorization": TOKEN, **(headers or {})})
        answer = self._connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    def stream(self) -> socket.socket:
        """Return another connection, as a socket."""
        plain = socket.create_connection(("localhost", self.port), timeout=20)
        if self.ca_file is None:
            return plain
        return ssl.create_default_context(cafile=self.ca_file).wrap_socket(plain, server_hostname="localhost")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(params=["plain", "tls"])
def web(request: pytest.FixtureRequest, broker: BrokerProcess, tls_pair: tuple[Path, Path]) -> Iterator[Http]:
    """A connection to the port of the administration, or over TLS to that of AMQP: each takes both."""
    secure = request.param == "tls"
    made = Http(broker.amqp_port, str(tls_pair[0])) if secure else Http(broker.http_port, None)
    yield made
    made.close()


def head(method: str, path: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: {TOKEN}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def read_answer(stream: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        piece = stream.recv(65_536)
        if not piece:
            break
        found += piece
    return found


def test_what_is_sent_by_http_is_received_by_amqp(web: Http, queue: str, any_client: Links) -> None:
    """Req: T-09."""
    said = {
        "CorrelationId": "c",
        "Label": "l",
        "MessageId": "m",
        "PartitionKey": "s",
        "ReplyTo": "r",
        "ReplyToSessionId": "rs",
        "SessionId": "s",
        "TimeToLive": 600,
        "To": "t",
    }
    headers = {
        "BrokerProperties": json.dumps(said),
        "Content-Type": "text/plain",
        "Priority": "High",
        "Count": "12",
        "Half": "0.5",
        "Yes": "true",
        "Quoted": '"a \\u00fc"',
    }
    assert web.ask("POST", f"/{queue}/messages", b"\x00body", headers)[0] == 201
    with any_client.get_queue_receiver(queue) as receiver:
        message = take_one(receiver)
        assert b"".join(message.body) == b"\x00body"
        assert message.application_properties == {
            b"Priority": b"High",
            b"Count": 12,
            b"Half": 0.5,
            b"Yes": True,
            b"Quoted": "a ü".encode(),
        }
        assert (message.correlation_id, message.subject, message.message_id) == ("c", "l", "m")
        assert (message.partition_key, message.session_id, message.reply_to) == ("s", "s", "r")
        assert (message.reply_to_session_id, message.to, message.content_type) == ("rs", "t", "text/plain")
        assert message.time_to_live == timedelta(minutes=10)
        receiver.complete_message(message)


def test_what_is_sent_by_amqp_is_received_by_http(web: Http, queue: str, any_client: Links) -> None:
    """Req: T-09."""
    at = datetime(2024, 1, 1, tzinfo=UTC)
    given: dict[Any, Any] = {"text": "ü", "number": 1 << 30, "half": 0.5}
    given |= {"yes": True, "guid": UUID(int=6), "at": at}
    message = ServiceBusMessage(
        b"\x00body",
        application_properties=given,
        content_type="text/plain",
        correlation_id="c",
        message_id="m",
        partition_key="s",
        reply_to="r",
        reply_to_session_id="rs",
        session_id="s",
        subject="l",
        time_to_live=timedelta(minutes=10),
        to="t",
    )
    with any_client.get_queue_sender(queue) as sender:
        sender.send_messages(message)
    status, headers, body = web.ask("DELETE", f"/{queue}/messages/head?timeout=10")
    assert (status, body, headers["Content-Type"]) == (200, b"\x00body", "text/plain")
    shown = json.loads(headers["BrokerProperties"])
    said: dict[str, Any] = {
        "CorrelationId": "c",
        "MessageId": "m",
        "PartitionKey": "s",
        "ReplyTo": "r",
        "SessionId": "s",
    }
    said |= {"ReplyToSessionId": "rs", "Label": "l", "To": "t", "TimeToLive": 600, "DeliveryCount": 1}
    assert {name: shown[name] for name in said} == said
    own = {name: headers[name] for name in ("text", "number", "half", "yes", "guid", "at")}
    assert own == {
        "text": '"\\u00fc"',
        "number": str(1 << 30),
        "half": "0.5",
        "yes": "true",
        "guid": f'"{UUID(int=6)}"',
        "at": '"Mon, 01 Jan 2024 00:00:00 GMT"',
    }


def test_the_address_that_is_answered_is_used_unchanged(web: Http, queue: str, any_client: Links) -> None:
    """Req: T-09, L-01, L-08."""
    send(any_client, queue, "a")
    status, headers, body = web.ask("POST", f"/{queue}/messages/head?timeout=10")
    assert (status, body) == (201, b"a")
    address = headers["Location"]
    scheme = "http" if web.ca_file is None else "https"
    assert address.startswith(f"{scheme}://localhost:{web.port}/{queue}/messages/1/")
    assert web.ask("POST", address)[0] == 200
    assert web.ask("PUT", address)[0] == 200
    assert web.ask("DELETE", address)[0] == 404
    _, headers, _ = web.ask("POST", f"/{queue}/messages/head?timeout=10")
    assert json.loads(headers["BrokerProperties"])["DeliveryCount"] == 2
    assert web.ask("DELETE", headers["Location"])[0] == 200
    assert web.ask("POST", f"/{queue}/messages/head?timeout=0")[0] == 204


def test_subscriptions_and_dead_letters(web: Http, make_topic: Callable[..., str], any_client: Links) -> None:
    """Req: T-09."""
    topic = make_topic("s")
    batch = json.dumps([{"Body": "a"}, {"Body": "b", "UserProperties": {"n": 1}}])
    kind = {"Content-Type": "application/vnd.microsoft.servicebus.json"}
    assert web.ask("POST", f"/{topic}/messages", batch, kind)[0] == 201
    assert web.ask("DELETE", f"/{topic}/subscriptions/s/messages/head?timeout=10")[2] == b"a"
    with any_client.get_subscription_receiver(topic, "s") as receiver:
        receiver.dead_letter_message(take_one(receiver), reason="why")
    _, headers, body = web.ask("POST", f"/{topic}/subscriptions/s/$DeadLetterQueue/messages/head?timeout=10")
    assert (body, headers["DeadLetterReason"], headers["n"]) == (b"b", '"why"', "1")
    assert web.ask("DELETE", headers["Location"])[0] == 200
    with any_client.get_subscription_receiver(
        topic, "s", sub_queue=ServiceBusSubQueue.DEAD_LETTER,
        receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE,
    ) as receiver:  # fmt: skip
        assert receiver.receive_messages(max_wait_time=0.3) == []


def test_a_receive_waits(web: Http, queue: str, any_client: Links) -> None:
    """What comes behind it on its connection is answered after it.

    Req: T-09.
    """
    started = time.monotonic()
    assert web.ask("POST", f"/{queue}/messages/head?timeout=1")[0] == 204
    assert time.monotonic() - started >= 1
    with web.stream() as stream:
        stream.sendall(head("DELETE", f"/{queue}/messages/head?timeout=20"))
        time.sleep(0.2)
        stream.sendall(head("DELETE", f"/{queue}/messages/head?timeout=0"))
        send(any_client, queue, "a")
        found = read_answer(stream)
        while b"HTTP/1.1 204" not in found:
            found += stream.recv(65_536)
    assert found.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize("end", ["close", "half", "reset"])
def test_who_goes_away_is_given_nothing(web: Http, queue: str, method: str, end: str) -> None:
    """Req: L-16, T-09."""
    stream = web.stream()
    stream.sendall(head(method, f"/{queue}/messages/head?timeout=60"))
    time.sleep(0.2)
    if end == "half" and web.ca_file is None:
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(100) == b""
    if end == "reset":
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    stream.close()
    time.sleep(0.2)
    assert web.ask("POST", f"/{queue}/messages", b"a")[0] == 201
    _, headers, body = web.ask("POST", f"/{queue}/messages/head?timeout=10")
    assert (body, json.loads(headers["BrokerProperties"])["DeliveryCount"]) == (b"a", 1)


def test_sessions_and_absent_entities_are_refused(web: Http, make_queue: Callable[..., str]) -> None:
    """Req: T-09."""
    sessions = make_queue(requires_session=True)
    assert web.ask("POST", f"/{sessions}/messages/head?timeout=1")[0] == 405
    assert web.ask("POST", "/nope/messages/head?timeout=1")[0] == 410
    assert web.ask("POST", "/nope/messages", b"x")[0] == 410


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_is_bounded(web: Http, queue: str, chunked: bool) -> None:
    """Req: T-08, T-09."""
    with web.stream() as stream:
        length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 300000"
        stream.sendall(head("POST", f"/{queue}/messages", length))
        if chunked:
            chunk = b"x" * 30_000
            for _ in range(10):
                stream.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        assert read_answer(stream).startswith(b"HTTP/1.1 403")
    with web.stream() as stream:
        stream.sendall(head("POST", f"/{queue}/messages", "Transfer-Encoding: chunked"))
        stream.sendall(b"1\r\nx\r\n" * 1001)
        assert read_answer(stream).startswith(b"HTTP/1.1 413")
    large = b"x" * 262_000
    assert web.ask("POST", f"/{queue}/messages", large)[0] == 201
    assert web.ask("DELETE", f"/{queue}/messages/head?timeout=10")[2] == large


def test_a_large_body_without_a_token_is_not_read(web: Http, queue: str) -> None:
    """Req: R-05."""
    with web.stream() as stream:
        stream.sendall(
            f"POST /{queue}/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n".encode()
        )
        stream.sendall(b"x" * 20_000)
        assert read_answer(stream).startswith(b"HTTP/1.1 401")


def test_many_wait_and_each_gets_one(web: Http, queue: str, any_client: Links) -> None:
    """Req: T-09, L-06."""
    streams = [web.stream() for _ in range(50)]
    for stream in streams:
        stream.sendall(head("DELETE", f"/{queue}/messages/head?timeout=60"))
    send(any_client, queue, *[str(number) for number in range(50)])
    found = set()
    for stream in streams:
        answer = read_answer(stream)
        assert answer.startswith(b"HTTP/1.1 200")
        found.add(json.loads(answer.partition(b"BrokerProperties: ")[2].split(b"\r\n")[0])["SequenceNumber"])
        stream.close()
    assert len(found) == 50


def test_a_stop_answers_who_waits(tmp_path: Path) -> None:
    """Each request gets an answer. Source: wire contract C46.

    Req: T-09.
    """
    with BrokerProcess(tmp_path) as broker:
        web = Http(broker.http_port, None)
        create = (
            "<entry xmlns='http://www.w3.org/2005/Atom'><content type='application/xml'><QueueDescription "
        )
        create += (
            "xmlns='http://schemas.microsoft.com/netservices/2010/10/servicebus/connect'/></content></entry>"
        )
        assert web.ask("PUT", "/q", create)[0] == 201
        with web.stream() as stream:
            stream.sendall(head("POST", "/q/messages/head"))
            time.sleep(0.3)
            assert broker.stop() == 0
            assert read_answer(stream).startswith(b"HTTP/1.1 503")
        web.close()
