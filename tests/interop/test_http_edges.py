"""Requests for messages that are wrong, hostile or many, against a real process.

docs/reference/http.md has the answer to each; here each must be answered, and in time. Where a refusal leaves
bytes that could be read as another request, the connection ends.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from peeklock.auth import generate
from peeklock.demo.broker import BrokerProcess
from peeklock.rest.receives import RECEIVES_MAX
from tests.interop.test_rest import Http, head, read_answer
from tests.kept_keys import KeptKeys
from tests.server.issuer import Issuer

ANSWER_S_MAX = 5.0
"""Time limit where nothing waits."""

BATCH = "Content-Type: application/vnd.microsoft.servicebus.json"
CHUNKED = "Transfer-Encoding: chunked"


@pytest.fixture
def web(broker: BrokerProcess) -> Iterator[Http]:
    made = Http(broker.http_port, None)
    yield made
    made.close()


def statuses(port: int, sent: bytes, wait_s: float = ANSWER_S_MAX) -> list[int]:
    """Send bytes, and return the statuses of all answers until the broker ends the connection or is
    silent."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), wait_s) as stream:
        with suppress(OSError):  # refused before it was read to the end
            stream.sendall(sent)
        with suppress(TimeoutError, ConnectionResetError):
            while piece := stream.recv(65_536):
                found += piece
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", found)]


def sending(queue: str, *headers: str, body: bytes = b"") -> bytes:
    return head("POST", f"/{queue}/messages", *headers) + body


HEADERS = {
    "space before the colon": ("Content-Length : 1", 400),
    "no colon": ("nonsense", 400),
    "a control character": ("X: a\x01b\x00", 400),
    "a folded line": ("X: a\r\n b", 400),
    "a bare line feed": ("X: a\nY: b", 400),
    "a length that is no number": ("Content-Length: +1", 400),
    "two lengths": ("Content-Length: 1\r\nContent-Length: 2", 400),
    "the same length twice": ("Content-Length: 1\r\nContent-Length: 1", 400),
    "a list of lengths": ("Content-Length: 1, 1", 400),
    "both kinds of length": (f"Content-Length: 1\r\n{CHUNKED}", 400),
    "an unknown coding": ("Transfer-Encoding: xchunked", 501),
    "two codings": ("Transfer-Encoding: chunked, identity", 501),
    "a second host": ("Host: elsewhere", 400),
    "too many headers": ("\r\n".join(f"X-{number}: y" for number in range(101)), 431),
    "too long a head": ("X: " + 40_000 * "y", 431),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_a_head_that_could_be_read_in_two_ways_is_refused(web: Http, queue: str, kind: str) -> None:
    """What follows it is not taken for a request.

    Req: R-05, T-09.
    """
    header, status = HEADERS[kind]
    smuggled = sending(queue, "Content-Length: 8", body=b"smuggled")
    assert statuses(web.port, sending(queue, header, body=b"0\r\n\r\n") + smuggled) == [status]
    assert web.ask("DELETE", f"/{queue}/messages/head?timeout=0")[0] == 204


CHUNKS = {
    "a size that is no number": (b"SIZE\r\n", 400),
    "a size in hexadecimal with a prefix": (b"0x1\r\nx\r\n0\r\n\r\n", 400),
    "a line feed alone behind the size": (b"1\nx\r\n0\r\n\r\n", 400),
    "a size beyond all reason": (b"f" * 30 + b"\r\n", 400),
    "a size without end": (b"0" * 60_000, 431),
    "an extension without end": (b"1;" + b"a" * 60_000, 431),
    "a chunk that is longer than it says": (b"1\r\nxyz\r\n0\r\n\r\n", 400),
    "fields behind the body": (b"1\r\nx\r\n0\r\nX: y\r\n\r\n", 400),
    "fields behind the body without end": (b"1\r\nx\r\n0\r\n" + b"X: y\r\n" * 10_000, 431),
    "too many chunks": (b"1\r\nx\r\n" * 1_002, 413),
    "too many chunks with extensions": ((b"1;" + b"a" * 900 + b"\r\nx\r\n") * 1_002, 413),
    "too large a body": ((b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n") * 5, 403),
}


@pytest.mark.parametrize("kind", CHUNKS)
def test_chunks_that_cost_more_than_they_bring_are_refused(web: Http, queue: str, kind: str) -> None:
    """Req: R-05, T-08, T-09."""
    body, status = CHUNKS[kind]
    assert statuses(web.port, sending(queue, CHUNKED, body=body)) == [status]
    assert web.ask("DELETE", f"/{queue}/messages/head?timeout=0")[0] == 204


PROPERTIES = {
    "no JSON": "{",
    "no object": "[1]",
    "nested without end": "[" * 20_000,
    "a number that JSON does not have": '{"TimeToLive": NaN}',
    "a label that is a number": '{"Label": 1}',
    "a session id that is an object": '{"SessionId": {}}',
    "a time-to-live of nothing": '{"TimeToLive": 0}',
    "a time-to-live that is text": '{"TimeToLive": "600"}',
    "a date that is none": '{"ScheduledEnqueueTimeUtc": "Mon, 32 Jan 2024 00:00:00 GMT"}',
    "a date that is a number": '{"ScheduledEnqueueTimeUtc": 1}',
    "half a character": '{"Label": "\\ud800"}',
    "two keys that differ": '{"SessionId": "a", "PartitionKey": "b"}',
    "too long an id": json.dumps({"MessageId": "x" * 129}),
    "too many members": json.dumps({f"n{number}": 1 for number in range(65)}),
}


@pytest.mark.parametrize("kind", PROPERTIES)
def test_broker_properties_that_cannot_be_are_refused(web: Http, queue: str, kind: str) -> None:
    """The connection goes on: the request was read whole.

    Req: T-09.
    """
    text = PROPERTIES[kind]
    assert web.ask("POST", f"/{queue}/messages", b"x", {"BrokerProperties": text})[0] == 400
    assert web.ask("DELETE", f"/{queue}/messages/head?timeout=0")[0] == 204


BATCHES = {
    "no JSON": (b"[", 400),
    "no array": (b"{}", 400),
    "no member": (b"[]", 400),
    "a member that is no object": (b"[1]", 400),
    "a body that is no text": (b'[{"Body": "a"}, {"Body": 1}]', 400),
    "a property that is an object": (b'[{"Body": "a"}, {"UserProperties": {"n": {}}}]', 400),
    "a bad span": (b'[{"BrokerProperties": {"TimeToLiveTimeSpan": "soon"}}]', 400),
    "too many members": (b"[" + b"{}," * 4_500 + b"{}]", 403),
    "too large together": (json.dumps([{"Body": "x" * 100_000}] * 3).encode(), 403),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_a_batch_is_refused_as_a_whole(web: Http, queue: str, kind: str) -> None:
    """Req: T-09."""
    body, status = BATCHES[kind]
    found = statuses(
        web.port, sending(queue, BATCH, f"Content-Length: {len(body)}", "Connection: close", body=body)
    )
    assert found == [status]
    assert web.ask("DELETE", f"/{queue}/messages/head?timeout=0")[0] == 204


def test_a_length_beyond_the_limit_is_refused_before_the_body_is_there(web: Http, queue: str) -> None:
    """Req: T-08, T-09."""
    started = time.monotonic()
    assert statuses(web.port, sending(queue, "Content-Length: 999999999999")) == [403]
    assert time.monotonic() - started < ANSWER_S_MAX


def test_locks_and_entities_that_are_not_there(web: Http, make_queue: Callable[..., str]) -> None:
    """The token alone decides, within its entity.

    Req: T-09, L-01.
    """
    queue, other = make_queue(), make_queue()
    assert web.ask("POST", f"/{queue}/messages", b"a")[0] == 201
    _, headers, _ = web.ask("POST", f"/{queue}/messages/head?timeout=5")
    token = headers["Location"].rpartition("/")[2]
    for method in ("DELETE", "PUT", "POST"):
        assert web.ask(method, f"/{other}/messages/1/{token}")[0] == 404
        assert web.ask(method, f"/{queue}/messages/1/{uuid4()}")[0] == 404
        assert web.ask(method, f"/{queue}/messages/1/nonsense")[0] == 404
        assert web.ask(method, f"/{queue}/$DeadLetterQueue/messages/1/{token}")[0] == 404
        assert web.ask(method, f"/nobody/messages/1/{token}")[0] == 410
    assert web.ask("DELETE", headers["Location"])[0] == 200
    assert web.ask("POST", f"/{queue}/messages/head?timeout=soon")[0] == 400


def test_requests_that_come_together_are_answered_in_order(web: Http, queue: str) -> None:
    """Req: T-09."""
    sends = b"".join(sending(queue, "Content-Length: 1", body=b"%d" % number) for number in range(9))
    takes = head("DELETE", f"/{queue}/messages/head?timeout=5") * 9
    end = head("GET", "/health", "Connection: close")
    with web.stream() as stream:
        stream.sendall(sends + takes + end)
        found = b""
        while piece := stream.recv(65_536):
            found += piece
    assert re.findall(rb"HTTP/1\.1 (\d{3})", found) == [b"201"] * 9 + [b"200"] * 10
    assert re.findall(rb"\r\n\r\n(\d)HTTP", found) == [b"%d" % number for number in range(9)]


def open_files(broker: BrokerProcess) -> int:
    return len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))


@pytest.mark.timeout(120)
@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_who_is_slow_or_never_reads_is_let_go_and_others_notice_nothing(
    broker: BrokerProcess, web: Http, queue: str
) -> None:
    """A head has 10 s, a body 30 s, an answer 30 s to leave.

    Req: R-05, T-08.
    """
    large = b"x" * 200_000
    for _ in range(40):
        assert web.ask("POST", f"/{queue}/messages", large)[0] == 201
    before = open_files(broker)
    slow_head, slow_body, deaf = web.stream(), web.stream(), web.stream()
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    deaf.sendall(head("DELETE", f"/{queue}/messages/head?timeout=0") * 40)
    slow_head.sendall(f"POST /{queue}/messages HTTP/1.1\r\n".encode())
    slow_body.sendall(sending(queue, CHUNKED))
    started = time.monotonic()
    ended: dict[str, tuple[bytes, float]] = {}
    streams = {"head": slow_head, "body": slow_body}
    slowest_s = 0.0
    while len(ended) < len(streams) and time.monotonic() - started < 60:
        for name, stream in streams.items():
            if name in ended:
                continue
            stream.settimeout(0.2)
            try:
                ended[name] = read_answer(stream)[:12], time.monotonic() - started
            except TimeoutError:
                stream.sendall(b"X: y\r\n" if name == "head" else b"1\r\nx\r\n")
        asked = time.monotonic()
        assert web.ask("POST", f"/{queue}/messages", b"a")[0] == 201
        slowest_s = max(slowest_s, time.monotonic() - asked)
    assert {name: answer for name, (answer, _) in ended.items()} == dict.fromkeys(streams, b"HTTP/1.1 408")
    assert ended["head"][1] < 20 < ended["body"][1] < 45
    assert slowest_s < 2
    until = time.monotonic() + 45  # the kernel still sends what it has; the broker keeps nothing of it
    while open_files(broker) > before:
        assert time.monotonic() < until
        time.sleep(0.2)
    for stream in (slow_head, slow_body, deaf):
        stream.close()


ENTRY = (
    "<entry xmlns='http://www.w3.org/2005/Atom'><content type='application/xml'><QueueDescription "
    "xmlns='http://schemas.microsoft.com/netservices/2010/10/servicebus/connect'>{}</QueueDescription>"
    "</content></entry>"
)


@pytest.mark.timeout(120)
def test_as_many_wait_as_may_and_others_are_told_to_come_again(tmp_path: Path) -> None:
    """Req: R-05, T-08, T-09."""
    with BrokerProcess(tmp_path) as broker, ExitStack() as stack:
        web = Http(broker.http_port, None)
        for queue in ("q", "r"):  # one has space for half of them
            assert web.ask("PUT", f"/{queue}", ENTRY.format(""))[0] == 201
        selector = stack.enter_context(selectors.DefaultSelector())
        for number in range(RECEIVES_MAX):
            stream = stack.enter_context(socket.create_connection(("127.0.0.1", broker.http_port), 20))
            stream.sendall(head("POST", f"/{'qr'[number % 2]}/messages/head"))
            selector.register(stream, selectors.EVENT_READ)
        until = time.monotonic() + 30
        while json.loads(web.ask("GET", "/health")[2])["http_receives"] < RECEIVES_MAX:
            assert time.monotonic() < until
            time.sleep(0.1)
        refused = web.ask("POST", "/q/messages/head?timeout=0")
        assert (refused[0], refused[1]["Retry-After"]) == (503, "5")
        assert selector.select(0) == []
        assert web.ask("POST", "/q/messages", b"a")[0] == 201  # nothing else is refused
        assert len(selector.select(ANSWER_S_MAX)) == 1
        web.close()


def test_web_tokens_and_signatures_decide_as_over_amqp(tmp_path: Path) -> None:
    """Req: R-04, T-09."""
    with Issuer() as issuer:
        (tmp_path / "jwt.toml").write_text(
            f'issuer = "{issuer.url}"\n[roles]\nworker = ["Send:q"]\nboss = "Manage"\n'
        )
        arguments = ("--auth=sas", "--auth=jwt", f"--jwt={tmp_path / 'jwt.toml'}")
        with BrokerProcess(tmp_path, arguments) as broker:
            web = Http(broker.http_port, str(broker.authority()))
            rule = KeptKeys(broker.data).load()[0]
            now_s = int(time.time())

            def bearer(*roles: str, valid_s: int = 60) -> dict[str, str]:
                token = issuer.token(exp=now_s + valid_s, iat=now_s - 120, roles=list(roles))
                return {"Authorization": f"Bearer {token}"}

            def signed(key: str, resource: str = "https://localhost/q") -> dict[str, str]:
                return {"Authorization": generate(resource, rule.name, key, (now_s + 60) * 1000)}

            until = time.monotonic() + 30
            while (status := web.ask("PUT", "/q", ENTRY.format(""), bearer("boss"))[0]) == 503:
                assert time.monotonic() < until  # the issuer's keys are not there yet
                time.sleep(0.1)
            assert status == 201
            for granted in (bearer("boss"), bearer("worker"), signed(rule.primary_key)):
                assert web.ask("POST", "/q/messages", b"a", granted)[0] == 201
            for refused in (
                bearer(),
                bearer("worker", valid_s=-60),
                {"Authorization": "Bearer nonsense"},
                {"Authorization": ""},
                signed("wrong"),
                signed(rule.primary_key, "https://localhost/other"),
            ):
                assert web.ask("POST", "/q/messages", b"a", refused)[0] == 401
            receive = "/q/messages/head?timeout=0"
            assert web.ask("DELETE", receive, headers=bearer("worker"))[0] == 401
            for granted in (bearer("boss"), signed(rule.primary_key)):
                assert web.ask("DELETE", receive, headers=granted)[0] == 200
            web.close()


def test_the_largest_messages_of_the_premium_tier(tmp_path: Path) -> None:
    """Req: T-08, T-09, T-10."""
    with BrokerProcess(tmp_path, ("--tier=premium",)) as broker:
        web = Http(broker.http_port, None)
        limit = "<MaxMessageSizeInKilobytes>10240</MaxMessageSizeInKilobytes>"
        assert web.ask("PUT", "/q", ENTRY.format(limit))[0] == 201
        large = b"x" * (10 * 1024 * 1024 - 100)  # beside the sections that come to it
        assert web.ask("POST", "/q/messages", large)[0] == 201
        assert web.ask("POST", "/q/messages", large + b"x" * 200)[0] == 403
        assert web.ask("POST", "/q/messages", iter([large[:100_000]] * 100))[0] == 201  # in chunks
        assert web.ask("DELETE", "/q/messages/head?timeout=10")[2] == large
        _, headers, body = web.ask("POST", "/q/messages/head?timeout=10")
        assert body == large[:100_000] * 100
        assert web.ask("DELETE", headers["Location"])[0] == 200
        web.close()
