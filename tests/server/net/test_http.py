"""HTTP on a transport that the listener hands over: requests, limits, time-outs, plain and TLS."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import h11
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from peeklock.admin.api import BODY_BYTES_MAX
from peeklock.auth import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, generate
from peeklock.broker.vocabulary.commands import CreateEntity
from peeklock.server.net import http, http_bodies
from peeklock.server.net.http_bodies import CHUNKS_MAX, UNKNOWN_BODY_BYTES_MAX
from peeklock.server.net.http_heads import HEAD_BYTES_MAX, HEADERS_MAX
from peeklock.server.origins import OriginPolicy
from tests.admin.serving import World, now_ms
from tests.server.contexts import server_context

ENTRY = b"<entry><content><QueueDescription/></content></entry>"
TLS = server_context(None)


class Connection:
    """A client's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.reason = ""

    def send(self, method: str, target: str, body: bytes | None = None, *headers: str) -> None:
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Authorization: {token()}", *headers]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def head(self) -> tuple[int, dict[str, str]]:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = raw.split("\r\n")[:-2]
        assert status_line.startswith("HTTP/1.1 ")
        self.reason = status_line.split(" ", 2)[2]
        headers = dict(line.split(": ", 1) for line in lines)
        return int(status_line.split(" ")[1]), {name.lower(): value for name, value in headers.items()}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        status, headers = await self.head()
        return status, headers, await self.reader.readexactly(int(headers["content-length"]))

    async def ask(self, *args: Any) -> tuple[int, dict[str, str], bytes]:
        self.send(*args)
        return await self.answer()

    async def ended(self) -> bytes:
        """What still came until the server closed."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


def basic(name: str, key: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{key}".encode()).decode()


def token() -> str:
    return generate("https://localhost", DEVELOPMENT_KEY_NAME, DEVELOPMENT_KEY, now_ms() + 600_000)


Story = Callable[[World, Connection], Awaitable[None]]


def play(story: Story, *, tls: bool = False) -> None:
    """Run a story against a listening world, within ten seconds."""

    async def run() -> None:
        world = World()
        listener, port = world.listen(TLS)
        client = None
        if tls:
            client = ssl.create_default_context()
            client.check_hostname = False
            client.verify_mode = ssl.CERT_NONE
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            try:
                await story(world, Connection(reader, writer))
            finally:
                writer.close()
                listener.close()

    asyncio.run(run())


@pytest.mark.parametrize("tls", [False, True])
def test_a_queue_is_made_over_plain_and_tls_connections_alike(tls: bool) -> None:
    """Req: A-01."""

    async def story(world: World, connection: Connection) -> None:
        status, headers, body = await connection.ask("PUT", "/orders?api-version=2021-05", ENTRY)
        assert status == 201
        assert headers["content-type"] == "application/atom+xml;type=entry;charset=utf-8"
        assert headers["date"].endswith(" GMT")
        assert b"<QueueDescription" in body
        assert isinstance(world.commands[0], CreateEntity)

    play(story, tls=tls)


def test_a_connection_serves_one_request_after_the_other() -> None:
    async def story(world: World, connection: Connection) -> None:
        assert (await connection.ask("PUT", "/orders", ENTRY))[0] == 201
        assert (await connection.ask("GET", "/orders"))[0] == 200
        assert (await connection.ask("DELETE", "/orders"))[0] == 200
        assert (await connection.ask("DELETE", "/orders"))[0] == 404
        assert connection.reason == "Not Found"  # the official client shows it

    play(story)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def story(world: World, connection: Connection) -> None:
        for number in range(20):
            connection.send("PUT", f"/q{number}", ENTRY)
        for number in range(20):
            status, _, body = await connection.answer()
            assert status == 201
            assert f'<title type="text">q{number}</title>'.encode() in body

    play(story)


def test_a_request_may_come_byte_by_byte_and_in_chunks() -> None:
    async def story(world: World, connection: Connection) -> None:
        head = (
            f"PUT /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token()}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        )
        chunks = b"".join(b"%x\r\n%c\r\n" % (1, byte) for byte in ENTRY) + b"0\r\n\r\n"
        for byte in head.encode() + chunks:
            connection.writer.write(bytes([byte]))
            await connection.writer.drain()
        assert (await connection.answer())[0] == 201

    play(story)


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    async def story(world: World, connection: Connection) -> None:
        connection.send("PUT", "/orders", None, "Expect: 100-continue", f"Content-Length: {len(ENTRY)}")
        assert (await connection.head())[0] == 100
        connection.writer.write(ENTRY)
        assert (await connection.answer())[0] == 201

    play(story)


def test_other_connections_are_served_while_one_waits_for_the_store() -> None:
    """Req: T-08."""

    async def story(world: World, connection: Connection) -> None:
        world.gate.clear()
        connection.send("PUT", "/orders", ENTRY)
        await world.asked.wait()
        listener, port = world.listen()
        other = Connection(*await asyncio.open_connection("127.0.0.1", port))
        assert (await other.ask("GET", "/health"))[0] == 200
        world.gate.set()
        assert (await connection.answer())[0] == 201
        other.writer.close()
        listener.close()

    play(story)


def test_a_client_that_leaves_before_its_answer_harms_nobody() -> None:
    async def story(world: World, connection: Connection) -> None:
        world.gate.clear()
        connection.send("PUT", "/orders", ENTRY)
        await world.asked.wait()
        connection.writer.transport.abort()
        await asyncio.sleep(0)
        world.gate.set()
        listener, port = world.listen()
        other = Connection(*await asyncio.open_connection("127.0.0.1", port))
        assert (await other.ask("GET", "/orders"))[0] == 200
        other.writer.close()
        listener.close()

    play(story)


def test_a_client_that_has_closed_its_half_still_gets_its_answer() -> None:
    async def story(world: World, connection: Connection) -> None:
        connection.send("PUT", "/orders", ENTRY)
        connection.writer.write_eof()
        assert (await connection.answer())[0] == 201
        assert await connection.ended() == b""

    play(story)


def test_a_client_that_asks_for_the_end_gets_it() -> None:
    async def story(world: World, connection: Connection) -> None:
        connection.send("GET", "/health", None, "Connection: close")
        assert (await connection.answer())[0] == 200
        assert await connection.ended() == b""

    play(story)


def test_http_1_0_and_the_absolute_form_are_understood() -> None:
    async def story(world: World, connection: Connection) -> None:
        connection.writer.write(b"GET http://proxy.example/health HTTP/1.0\r\n\r\n")
        assert (await connection.answer())[0] == 200
        assert await connection.ended() == b""

    play(story)


def test_who_changed_something_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Req: A-01. What was only asked, or refused, is not."""
    caplog.set_level(logging.INFO, "peeklock")

    async def story(world: World, connection: Connection) -> None:
        assert (await connection.ask("PUT", "/orders", ENTRY))[0] == 201
        assert (await connection.ask("GET", "/orders"))[0] == 200
        assert (await connection.ask("PUT", "/orders", ENTRY))[0] == 409
        assert (await connection.ask("DELETE", "/orders"))[0] == 200
        port = connection.writer.get_extra_info("sockname")[1]
        found: list[Any] = [record for record in caplog.records if record.name == "peeklock"]
        assert [(record.getMessage(), record.fields) for record in found] == [
            (
                "administration request",
                {"method": method, "path": "/orders", "status": status, "peer": f"127.0.0.1:{port}"},
            )
            for method, status in (("PUT", 201), ("DELETE", 200))
        ]

    play(story)


# Health

KEYS = (
    ("X: no key", False),
    ("Authorization: " + basic(DEVELOPMENT_KEY_NAME, DEVELOPMENT_KEY), True),
    ("Authorization: " + basic(DEVELOPMENT_KEY_NAME, "wrong"), False),
    ("Authorization: Basic *", False),
    ("Authorization: Basic " + base64.b64encode(b"no colon").decode(), False),
    ("Authorization: " + token(), True),
)
"""A header, and whether it opens the figures."""


@pytest.mark.parametrize(("figure", "status"), [("ok", 200), ("low space: sends are refused", 503)])
def test_health_shows_its_status_to_anybody_and_its_figures_for_a_key(figure: str, status: int) -> None:
    async def story(world: World, connection: Connection) -> None:
        world.health = {"status": figure, "entities": 3}
        for authorization, shown in KEYS:
            connection.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n")
            connection.writer.write(f"{authorization}\r\n\r\n".encode())
            found, headers, body = await connection.answer()
            assert (found, headers["content-type"]) == (status, "application/json")
            assert json.loads(body) == {"status": figure, **({"entities": 3} if shown else {})}
        assert len(world.refused) == 3, "each bad key counts against its address"

    play(story)


def test_health_answers_head_without_a_body_and_refuses_other_methods() -> None:
    async def story(world: World, connection: Connection) -> None:
        connection.send("HEAD", "/health")
        status, headers = await connection.head()
        assert (status, int(headers["content-length"]) > 0) == (200, True)
        status, headers, _ = await connection.ask("POST", "/health", b"")
        assert (status, headers["allow"]) == (405, "GET, HEAD")

    play(story)


# What is refused


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET / HTTP/x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400),
        # What a proxy before us may read in another way:
        (
            b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4, 5\r\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\nHost: x\n\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\nX: y\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: y\rZ: z\r\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n\r\n", 400),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n" % (b"f" * 30), 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: y\r\n z\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: y\r\n\tContent-Length: 9\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n \r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n Host: x\r\n\r\n", 400),
        (
            b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n z\r\n\r\n",
            400,
        ),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n", 400),
        # Other protocols:
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 400),
        # In one piece, as the operating system gives it; h11 limits only what is not whole:
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n", 431),
        (b"GET /" + b"y" * HEAD_BYTES_MAX + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * HEADERS_MAX + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * HEAD_BYTES_MAX, 431),
        (b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), 413),
    ],
)
def test_what_is_not_a_request_within_the_limits_is_refused_and_the_connection_ends(
    data: bytes, status: int
) -> None:
    """Req: R-05."""

    async def story(world: World, connection: Connection) -> None:
        connection.writer.write(data)
        found, headers, body = await connection.answer()
        assert (found, headers["connection"]) == (status, "close")
        assert json.loads(body)["status"] == status
        assert await connection.ended() == b""
        assert world.commands == []
        assert [(event, fields["status"]) for event, fields in world.logged] == [
            ("HTTP request refused", status)
        ]

    play(story)


@pytest.mark.parametrize("policy", [OriginPolicy([]), OriginPolicy()], ids=["no secret", "a secret"])
@pytest.mark.parametrize("hosts", ["", "Host: localhost\r\nHost: localhost\r\n"], ids=["none", "two"])
def test_a_request_of_http_1_1_has_one_host(policy: OriginPolicy, hosts: str) -> None:
    """Req: R-04. Source: RFC 9112 3.2: "MUST respond with a 400"."""

    async def story(world: World, client: Connection) -> None:
        world.origin_policy = policy
        client.writer.write(f"GET /$Resources/queues HTTP/1.1\r\n{hosts}\r\n".encode())
        assert (await client.answer())[0] == 400

    play(story)


def test_a_request_of_http_1_0_needs_no_host_where_a_secret_is_asked_for() -> None:
    """Req: R-04. HTTP/1.0 has no such field; where no secret is asked for, see the 421 below."""

    async def story(world: World, client: Connection) -> None:
        world.origin_policy = OriginPolicy()
        client.writer.write(b"GET /$Resources/queues HTTP/1.0\r\n\r\n")
        assert (await client.answer())[0] == 401

    play(story)


@pytest.mark.parametrize("path", ["/q", "/$servicebus/websocket", "/health"])
def test_a_page_of_another_machine_is_refused_where_no_secret_is_asked_for(path: str) -> None:
    """Req: R-04. Browsers let any page open a WebSocket to any port of its user's machine."""

    async def story(world: World, client: Connection) -> None:
        world.origin_policy = OriginPolicy([])
        http = (await client.ask("GET", path, None, "Origin: http://localhost"))[0]
        assert http not in (403, 421)

    async def other(world: World, client: Connection) -> None:
        world.origin_policy = OriginPolicy([])
        status, _, body = await client.ask("GET", path, None, "Origin: https://evil.example")
        assert status == 403
        assert b"--auth sas" in body

    play(story)
    play(other)


@pytest.mark.parametrize(
    "path", ["/$Resources/queues", "/$servicebus/websocket", "/", "/health/", "/metrics"]
)
@pytest.mark.parametrize(
    "head",
    [
        "GET {path} HTTP/1.1\r\nHost: rebound.example:5300\r\n",
        "GET {path} HTTP/1.1\r\nHost: \r\n",
        "GET {path} HTTP/1.1\r\nHost: localhost, rebound.example\r\n",
        "GET {path} HTTP/1.0\r\n",
        "GET http://rebound.example{path} HTTP/1.1\r\nHost: localhost\r\n",
        "GET http://localhost{path} HTTP/1.1\r\nHost: rebound.example\r\n",
        "GET http://localhost@rebound.example{path} HTTP/1.1\r\nHost: localhost\r\n",
        "PUT {path} HTTP/1.1\r\nHost: rebound.example\r\nExpect: 100-continue\r\nContent-Length: 9\r\n",
    ],
)
def test_a_name_that_is_not_ours_is_refused_where_no_secret_is_asked_for(path: str, head: str) -> None:
    """Req: R-04. A page asks so after its name was rebound to this machine, without an `Origin`."""

    async def story(world: World, client: Connection) -> None:
        world.origin_policy = OriginPolicy([])
        client.writer.write(f"{head.format(path=path)}Authorization: {token()}\r\n\r\n".encode())
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (421, "close")
        assert b"--host-name" in body
        assert world.commands == []
        assert [fields["status"] for _, fields in world.logged] == [421]

    play(story)


@pytest.mark.parametrize(
    "head",
    [
        "GET {path} HTTP/1.1\r\nHost: localhost:5300\r\n",
        "GET {path} HTTP/1.1\r\nHost: [::1]:5300\r\n",
        "GET {path} HTTP/1.1\r\nHost: broker.lan\r\n",
        "GET http://127.0.0.1:5300{path} HTTP/1.0\r\n",
        "GET http://broker.lan{path} HTTP/1.1\r\nHost: broker.lan\r\n",
    ],
)
def test_a_name_that_is_ours_is_served_where_no_secret_is_asked_for(head: str) -> None:
    """Req: R-04."""

    async def story(world: World, client: Connection) -> None:
        world.origin_policy = OriginPolicy(["broker.lan"])
        for path, found in (("/$Resources/queues", b"<feed"), ("/health", b"entities")):
            keep = "Connection: keep-alive\r\n"
            client.writer.write(f"{head.format(path=path)}{keep}Authorization: {token()}\r\n\r\n".encode())
            status, headers, body = await client.answer()
            assert (status, found in body) == (200, True)
            if headers.get("connection") == "close":
                return

    async def with_figures(world: World, client: Connection) -> None:
        world.health = {"status": "ok", "entities": 3}
        await story(world, client)

    play(with_figures)


@pytest.mark.parametrize(("figure", "status"), [("ok", 200), ("low space: sends are refused", 503)])
def test_a_probe_by_any_name_gets_the_bare_status(figure: str, status: int) -> None:
    """Req: R-04. Probes of containers ask by a name of the container, and need no figures."""

    async def story(world: World, client: Connection) -> None:
        world.origin_policy = OriginPolicy([])
        world.health = {"status": figure, "entities": 3}
        for target in ("/health", "http://localhost/health"):
            client.writer.write(f"GET {target} HTTP/1.1\r\nHost: peeklock:5300\r\n\r\n".encode())
            found, _, body = await client.answer()
            assert (found, json.loads(body)) == (status, {"status": figure})

    play(story)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /q HTTP/1.1\r\nHost: a\r\nAuthorization : SECRET\r\n\r\n",
        b"GET /q HTTP/1.1\r\nHost: a\r\nAuthorization: SECRET\0\r\n\r\n",
        b"GET /q?token=SECRET \xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"PUT /q HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nSECRET\r\n",
    ],
)
def test_a_refusal_quotes_nothing_that_may_be_secret(request_bytes: bytes) -> None:
    """Req: R-04. No token and no key is ever in the log, however broken the request is."""

    async def story(world: World, client: Connection) -> None:
        client.writer.write(request_bytes)
        status, _, body = await client.answer()
        assert status == 400
        assert b"SECRET" not in body
        assert b"illegal" in body
        assert len(world.logged) == 1
        assert "SECRET" not in str(world.logged)

    play(story)


def test_as_many_headers_and_chunks_as_may_be_are_read_and_one_more_chunk_is_refused() -> None:
    """Req: R-05."""

    async def story(world: World, connection: Connection) -> None:
        extra = [f"X-{number}: y" for number in range(HEADERS_MAX - 3)]  # beside Host, token, encoding
        for chunks, status in ((CHUNKS_MAX, 201), (CHUNKS_MAX + 1, 413)):
            connection.send("PUT", "/orders", None, "Transfer-Encoding: chunked", *extra)
            padded = ENTRY.ljust(chunks)
            connection.writer.write(b"".join(b"1\r\n%c\r\n" % byte for byte in padded) + b"0\r\n\r\n")
            assert (await connection.answer())[0] == status

    play(story)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"HEAD /orders HTTP/1.2\r\nHost: a\r\n\r\n", 505),
        (b"HEAD /orders HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413),
    ],
)
def test_the_refusal_of_a_head_request_has_no_body(sent: bytes, status: int) -> None:
    """Source: RFC 9110 9.3.2."""

    async def story(world: World, connection: Connection) -> None:
        connection.writer.write(sent)
        assert (await connection.head())[0] == status
        assert await connection.ended() == b""

    play(story)


def test_no_request_is_begun_once_the_broker_stops() -> None:
    """Req: T-09. Else those that do not wait for each other would keep it from coming to an end."""

    async def story(world: World, connection: Connection) -> None:
        world.stops = True
        status, headers, _ = await connection.ask("PUT", "/orders", ENTRY)
        assert (status, headers["retry-after"], headers["connection"]) == (503, "5", "close")
        assert await connection.ended() == b""
        assert not world.commands

    play(story)


def test_amqp_in_the_midst_of_http_is_refused_as_http() -> None:
    """Req: R-05."""

    async def story(world: World, connection: Connection) -> None:
        assert (await connection.ask("GET", "/health"))[0] == 200
        connection.writer.write(b"AMQP\x00\x01\x00\x00" + bytes(20) + b"\r\n\r\n")
        assert (await connection.answer())[0] == 400
        assert await connection.ended() == b""

    play(story)


def test_an_upgrade_to_something_else_is_passed_over() -> None:
    """Source: RFC 9110 7.8: a server MAY ignore it."""

    async def story(world: World, connection: Connection) -> None:
        asked = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
        connection.send("GET", "/health", None, *asked)
        assert (await connection.answer())[0] == 200
        assert (await connection.ask("GET", "/health"))[0] == 200

    play(story)


def test_a_body_of_the_largest_size_is_read_and_one_byte_more_in_chunks_is_refused() -> None:
    """Req: R-05. The refusal arrives although the client is still sending."""

    async def story(world: World, connection: Connection) -> None:
        assert (await connection.ask("PUT", "/orders", ENTRY.ljust(BODY_BYTES_MAX)))[0] == 201
        connection.send("PUT", "/other", None, "Transfer-Encoding: chunked")
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        connection.writer.write(chunk * (BODY_BYTES_MAX // 0x10000 + 1))
        assert (await connection.answer())[0] == 413
        connection.writer.write(chunk)
        assert len(world.commands) == 1

    play(story)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_of_whoever_it_may_be_is_not_kept(chunked: bool) -> None:
    """Req: R-04, R-05. The token is looked at first: bodies of nobody would fill the memory."""

    async def story(world: World, client: Connection) -> None:
        size = UNKNOWN_BODY_BYTES_MAX + 1
        length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % BODY_BYTES_MAX
        start = b"%x\r\n" % size if chunked else b""
        client.writer.write(b"PUT /q HTTP/1.1\r\nHost: a\r\n" + length + b"\r\n\r\n" + start + b"x" * size)
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (401, "close")
        assert world.refused == ["127.0.0.1"]
        assert await client.ended() == b""

    play(story)


@pytest.mark.parametrize("path", ["/health", "/$servicebus/websocket"])
def test_a_large_body_where_none_is_wanted_is_refused(path: str) -> None:
    """Req: R-05."""

    async def story(world: World, client: Connection) -> None:
        assert (await client.ask("GET", path, b"x" * (UNKNOWN_BODY_BYTES_MAX + 1)))[0] == 413

    play(story)


def test_a_defect_costs_one_answer_and_the_connection_only() -> None:
    async def story(world: World, connection: Connection) -> None:
        world.health = {}
        assert (await connection.ask("GET", "/health"))[0] == 500
        assert await connection.ended() == b""
        world.health = {"status": "ok"}
        listener, port = world.listen()
        other = Connection(*await asyncio.open_connection("127.0.0.1", port))
        assert (await other.ask("GET", "/health"))[0] == 200
        other.writer.close()
        listener.close()

    play(story)


# Time


@pytest.mark.parametrize(
    ("limit", "sent", "status"),
    [
        ("HEAD_S_MAX", b"GET /health HTTP/1.1\r\nHost: x\r\n", 408),
        ("BODY_S_MAX", b"PUT /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", 408),
        ("IDLE_S_MAX", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", 200),
    ],
)
def test_a_client_that_takes_too_long_is_let_go(
    monkeypatch: pytest.MonkeyPatch, limit: str, sent: bytes, status: int
) -> None:
    """Req: R-05. A head and a body have a time of their own; an idle connection is closed without a word."""
    monkeypatch.setattr(http, limit, 0.02)
    monkeypatch.setattr(http, "LINGER_S", 0.02)

    async def story(world: World, connection: Connection) -> None:
        connection.writer.write(sent)
        assert (await connection.answer())[0] == status
        assert await connection.ended() == b""

    play(story)


def test_trickling_bytes_do_not_extend_the_time_for_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-05."""
    monkeypatch.setattr(http, "HEAD_S_MAX", 0.05)

    async def story(world: World, connection: Connection) -> None:
        answer = asyncio.ensure_future(connection.answer())
        connection.writer.write(b"GET /health HTTP/1.1\r\n")
        while not answer.done():
            connection.writer.write(b"X: y\r\n")
            await asyncio.sleep(0.005)
        assert answer.result()[0] == 408

    play(story)


def test_a_client_that_does_not_read_its_answers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-05, T-08. It is read no further while its answers wait, and after a time it is gone."""
    monkeypatch.setattr(http, "WRITE_S_MAX", 0.05)

    async def story(world: World, connection: Connection) -> None:
        for number in range(100):
            assert (await connection.ask("PUT", f"/queue-{number:03d}", ENTRY))[0] == 201
        transport = cast(asyncio.Transport, connection.writer.transport)  # typed as one that only writes
        transport.pause_reading()
        asked = 200
        for _ in range(asked):
            connection.send("GET", "/$Resources/queues")
        while not transport.is_closing():
            before = len(world.commands)
            await asyncio.sleep(0.1)
            if len(world.commands) == before:
                break
        assert len(world.commands) - 100 < asked
        transport.resume_reading()
        received = await connection.ended()
        assert received.count(b"HTTP/1.1 200") < asked

    play(story)


def test_a_large_answer_is_written_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to a peer that reads as fast as it is written: 15 MB in one turn took 8 ms. Req: R-05."""
    for module in (http, http_bodies):
        monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    write_on, write = http.HttpProtocol._write_on, http.HttpProtocol._write
    written: list[int] = []

    def begin(protocol: http.HttpProtocol) -> bool:
        written.append(0)
        return write_on(protocol)

    def count(protocol: http.HttpProtocol, event: h11.Event) -> None:
        if isinstance(event, h11.Data):
            written[-1] += len(event.data)
        write(protocol, event)

    async def story(world: World, connection: Connection) -> None:
        for number in range(20):
            assert (await connection.ask("PUT", f"/queue-{number:03d}", ENTRY))[0] == 201
        monkeypatch.setattr(http.HttpProtocol, "_write_on", begin)
        monkeypatch.setattr(http.HttpProtocol, "_write", count)
        for _ in range(2):  # the second is asked for while the first is written
            connection.send("GET", "/$Resources/queues")
        bodies = [(await connection.answer())[2] for _ in range(2)]
        assert sum(map(len, bodies)) == sum(written) > 20_000
        assert max(written) <= 1000
        assert all(body.endswith(b"</feed>") for body in bodies)

    play(story)


def test_bad_tokens_are_counted_and_end_the_connection_of_a_peer_without_patience_left() -> None:
    """Req: R-04, R-05. The answer says that the connection ends."""

    async def story(world: World, client: Connection) -> None:
        world.patience = 1
        wrong = (
            f"Authorization: {generate('https://localhost', DEVELOPMENT_KEY_NAME, 'x', now_ms() + 60_000)}"
        )
        for said in (None, "close"):
            client.writer.write(f"GET /q HTTP/1.1\r\nHost: localhost\r\n{wrong}\r\n\r\n".encode())
            status, headers, _ = await client.answer()
            assert status == 401
            assert headers.get("connection") == said
            if said is None:
                assert (await client.ask("GET", "/$Resources/queues"))[0] == 200
        assert await client.ended() == b""
        assert world.refused == ["127.0.0.1"] * 2

    play(story)


# Anything at all

PIECES = [
    b"GET /health HTTP/1.1\r\n",
    b"PUT /a HTTP/1.1\r\n",
    b"GET /$servicebus/websocket HTTP/1.1\r\n",
    b"GET /health HTTP/1.0\r\n",
    b"PRI * HTTP/2.0\r\n",
    b"Host: x\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade\r\n",
    b"Upgrade: websocket\r\n",
    b"Sec-WebSocket-Version: 13\r\n",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    b"Sec-WebSocket-Protocol: amqp\r\n",
    b"\r\n",
    b"abc",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"\n",
    b"AMQP\x00\x01\x00\x00",
    b"\x82\x81abcd\x00",
]
PIECES += [
    b"".join(PIECES[at] for at in whole)
    for whole in (
        (0, 5, 15),
        (0, 5, 8, 7, 15, 17, 18),
        (1, 5, 6, 15, 16),
        (1, 5, 6, 8, 15),
        (2, 5, 10, 11, 12, 13, 14, 15),
        (2, 5, 10, 11, 12, 13, 14, 6, 15, 16),
        (2, 5, 8, 10, 11, 12, 13, 15),
    )
]
"""Lines, and requests that are whole."""


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=5)), max_size=25), st.booleans())
@settings(max_examples=300, deadline=None)
def test_whatever_comes_no_defect_of_ours_meets_it(pieces: list[bytes], ends: bool) -> None:
    """Req: R-05. A defect in reading would stop the broker."""
    assume(not b"".join(pieces).startswith((b"A", b"\x16")))  # AMQP and TLS

    async def test() -> None:
        world = World()
        carried: list[asyncio.Protocol] = []

        def amqp() -> asyncio.Protocol:
            carried.append(asyncio.Protocol())
            return carried[-1]

        world.amqp = amqp
        listener, port = world.listen()
        loop = asyncio.get_running_loop()
        defects: list[Any] = []
        loop.set_exception_handler(lambda _, context: defects.append(context))
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        if ends:
            with suppress(OSError):  # the broker may have ended the connection meanwhile
                writer.write_eof()
        for _ in range(20):
            await asyncio.sleep(0)
        writer.transport.abort()
        for _ in range(5):
            await asyncio.sleep(0)
        listener.close()
        assert defects == []

    asyncio.run(test())
