"""A defect of ours on a real loop: it ends the connection that meets it, and the broker only in its core."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import threading
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, frame
from peeklock.amqp.performatives import encode_open
from peeklock.amqp.session import Session
from peeklock.amqp.types import Role, Symbol, UInt
from peeklock.broker.namespace import Namespace
from peeklock.server.app import Broker
from peeklock.server.line_limits import DEFECT_LINES_MAX, WINDOW_MS, DefectLog
from peeklock.server.net import websocket
from peeklock.server.net.amqp import AmqpConnection
from peeklock.server.net.http import HttpProtocol
from peeklock.server.net.websocket import WebSocketProtocol
from peeklock.server.settings import Settings
from peeklock.server.tls.certificates import make_pair
from peeklock.testing.clock import ManualClock
from tests.amqp.pair import attach, begin, flow, frames_of
from tests.server.wires import KINDS, Kind, Wire, open_wire

BEGINNING = (
    SASL_HEADER
    + frame(
        0,
        composite(composites.SASL_INIT, [Symbol("PLAIN"), b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE"]),
        1,
    )
    + AMQP_HEADER
    + frame(0, encode_open("client", "localhost", 65536, 65535, None, None))
    + begin()
)

Run = Callable[[Coroutine[Any, Any, None]], None]


@dataclass
class Served:
    """A running broker, as a client and its operator see it."""

    broker: Broker
    records: list[logging.LogRecord] = field(default_factory=list)

    @property
    def port(self) -> int:
        return self.broker.amqp_port

    @property
    def connections(self) -> list[int]:
        """Return the ids of the AMQP connections."""
        return list(self.broker.protocols.connections)

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def told(self) -> list[dict[str, Any]]:
        """Return the fields of the lines about defects; each has its traceback."""
        lines = [record for record in self.records if record.getMessage().startswith("a defect;")]
        assert all(record.exc_info for record in lines)
        return [vars(record)["fields"] for record in lines]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate", folder / "key"
    for file, content in zip(
        files, make_pair(["localhost"], datetime.datetime.now(datetime.UTC)), strict=True
    ):
        file.touch(0o600)
        file.write_bytes(content)
    return files


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """Yield the log's records as they come."""
    found: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    handler = Handler()
    logger = logging.getLogger("peeklock")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


@pytest.fixture(params=[asyncio.run, uvloop.run])
def run(request: pytest.FixtureRequest) -> Run:
    """Run on each kind of loop."""
    found: Run = request.param
    return found


Serve = Callable[[Callable[[Served], None]], None]


@pytest.fixture
def serve(run: Run, pair: tuple[Path, Path], records: list[logging.LogRecord]) -> Serve:
    """Run a broker on a loop, and a client in a thread beside it."""

    def serve(client: Callable[[Served], None]) -> None:
        async def main() -> None:
            broker = Broker(Settings(None, None, "127.0.0.1", 0, 0, "memory", *pair, "standard", None))
            await broker.start()
            stopped = asyncio.ensure_future(broker.stopped())
            await asyncio.to_thread(client, Served(broker, records))
            broker.ask_to_stop()
            await stopped

        run(main())

    return serve


def read_until(wire: Wire, text: bytes) -> bytes:
    """Read until this has come, or the stream ends."""
    found = b""
    while text not in found:
        data = wire.receive()
        if not data:
            return found
        found += data
    return found


def rest_of(wire: Wire) -> bytes:
    found = b""
    while data := wire.receive():
        found += data
    return found


def is_served(wire: Wire) -> None:
    """Check that a connection is served still."""
    wire.send(flow(0, credit=1) + attach(1, Role.RECEIVER, name="next", address="$cbs"))
    assert b"next" in read_until(wire, b"next")


def open_link(kind: Kind, port: int) -> Wire:
    wire = open_wire(kind, port)
    wire.send(BEGINNING + attach(0, Role.RECEIVER, name="first", address="$cbs"))
    assert b"first" in read_until(wire, b"first")
    return wire


def failing(*arguments: Any, **named: Any) -> Any:
    raise ZeroDivisionError("planted")


@pytest.mark.parametrize("kind", KINDS)
def test_a_defect_in_the_gateway_ends_its_connection_with_a_reason(
    serve: Serve, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-05."""

    def client(served: Served) -> None:
        other, victim = open_link(kind, served.port), open_link(kind, served.port)
        with monkeypatch.context() as planted:
            planted.setattr(Session, "on_flow", failing)
            victim.send(flow(0, credit=1))
            said = rest_of(victim)
        [(_, code, [error], _)] = frames_of(said)
        assert code == composites.CLOSE
        condition, description, _ = error.value
        assert condition == "amqp:internal-error"
        [line] = served.told()
        assert line["reason"] == "ZeroDivisionError: planted"
        assert line["tracking_id"] in description
        assert line["peer"].startswith("127.0.0.1:")
        assert "planted" not in description
        is_served(other)
        health = served.health()
        assert (health["status"], health["defects"]) == ("ok", 1)
        victim.close()
        other.close()

    serve(client)


def test_a_type_error_while_bytes_are_decoded_ends_their_connection_alone(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-05. The compiled core checks types as it runs. `Symbol` is interpreted: both forms meet it."""

    def of_another_type(*arguments: Any) -> Any:
        raise TypeError("str object expected; got int")

    def client(served: Served) -> None:
        other, victim = open_link("amqp", served.port), open_link("amqp", served.port)
        session = [None, UInt(0), UInt(1), UInt(1), UInt(1), Symbol("capability")]
        symbols = frame(1, composite(composites.BEGIN, session))
        with monkeypatch.context() as planted:
            planted.setattr(Symbol, "__new__", of_another_type)
            victim.send(symbols)
            said = rest_of(victim)
        [(_, code, [error], _)] = frames_of(said)
        assert (code, error.value[0]) == (composites.CLOSE, "amqp:internal-error")
        assert [line["reason"] for line in served.told()] == ["TypeError: str object expected; got int"]
        is_served(other)
        assert served.health()["defects"] == 1
        victim.close()
        other.close()

    serve(client)


def plant(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, armed: threading.Event) -> None:
    """Make a method fail once when it is armed. uvloop keeps the methods of a protocol from its beginning."""
    method = getattr(owner, name)

    def planted(*arguments: Any) -> Any:
        if armed.is_set():
            armed.clear()
            raise ZeroDivisionError("planted")
        return method(*arguments)

    monkeypatch.setattr(owner, name, planted)


PLACES: dict[str, tuple[type, str, Kind]] = {
    "AMQP": (AmqpConnection, "data_received", "amqp"),
    "TLS": (AmqpConnection, "data_received", "tls"),
    "AMQP in WebSocket": (AmqpConnection, "data_received", "websocket"),
    "WebSocket": (WebSocketProtocol, "data_received", "websocket"),
    "the answer to bytes": (AmqpConnection, "flush", "tls"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_defect_beside_the_gateway_ends_its_transport(
    serve: Serve, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-05."""
    owner, name, kind = PLACES[place]
    armed = threading.Event()
    plant(monkeypatch, owner, name, armed)

    def client(served: Served) -> None:
        other, victim = open_link(kind, served.port), open_link(kind, served.port)
        armed.set()
        victim.send(flow(0, credit=1))
        assert rest_of(victim) == b""
        is_served(other)
        assert [line["reason"] for line in served.told()] == ["ZeroDivisionError: planted"]
        health = served.health()
        assert (health["status"], health["defects"], served.connections) == ("ok", 1, [1])
        victim.close()
        other.close()

    serve(client)


def test_a_defect_in_a_further_turn_of_a_websocket_ends_its_transport(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-05. The loop does not know for which transport a callback works."""
    work = WebSocketProtocol.work

    def planted(protocol: WebSocketProtocol, units: int, until_s: float) -> bool:
        if protocol._backlog_at:
            raise ZeroDivisionError("planted")
        return work(protocol, units, until_s)

    monkeypatch.setattr(WebSocketProtocol, "work", planted)

    def client(served: Served) -> None:
        other, victim = (open_link("websocket", served.port) for _ in range(2))
        with monkeypatch.context() as one_slice:
            one_slice.setattr(websocket, "FRAMES_A_TURN_MAX", 0)
            victim.send(EMPTY_FRAME * 5000)
            assert rest_of(victim) == b""
        is_served(other)
        assert (served.health()["defects"], served.connections) == (1, [1])
        victim.close()
        other.close()

    serve(client)


def test_a_defect_in_reading_http_ends_its_connection(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-05."""

    def client(served: Served) -> None:
        with monkeypatch.context() as planted:
            planted.setattr(HttpProtocol, "_advance", failing)
            victim = open_wire("amqp", served.port)
            victim.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert rest_of(victim) == b""
            victim.close()
        assert served.health()["defects"] == 1

    serve(client)


@pytest.mark.parametrize("kind", KINDS)
def test_a_defect_in_the_core_ends_the_broker(
    run: Run,
    kind: Kind,
    pair: tuple[Path, Path],
    records: list[logging.LogRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Req: R-01. Nothing is built upon what the core has half done."""

    armed = threading.Event()
    plant(monkeypatch, Namespace, "apply", armed)

    def client(served: Served) -> None:
        victim = open_link(kind, served.port)
        armed.set()
        victim.send(attach(1, Role.RECEIVER, name="next", address="orders"))
        rest_of(victim)
        victim.close()

    async def main() -> None:
        broker = Broker(Settings(None, None, "127.0.0.1", 0, 0, "memory", *pair, "standard", None))
        await broker.start()
        stopped = asyncio.ensure_future(broker.stopped())
        await asyncio.to_thread(client, Served(broker, records))
        assert await asyncio.wait_for(stopped, 20) == 1

    run(main())
    assert [record.getMessage() for record in records if record.levelname == "ERROR"] == [
        "a defect; the broker stops so that nothing is built on a wrong state"
    ]


def test_bookkeeping_is_done_whatever_the_end_of_a_connection_meets(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def client(served: Served) -> None:
        victim = open_link("amqp", served.port)
        with monkeypatch.context() as planted:
            planted.setattr(Session, "on_flow", failing)
            planted.setattr("peeklock.gateway.link_table.LinkTable.end", failing)
            planted.setattr("peeklock.gateway.answers.Answers.clear", failing)
            planted.setattr("peeklock.amqp.handshake.Handshake.close", failing)
            victim.send(flow(0, credit=1))
            assert rest_of(victim) == b""  # it ends in silence
            victim.close()
        health = served.health()
        assert (health["defects"], health["links"], served.connections) == (1, 0, [])

    serve(client)


def test_a_flood_of_defects_does_not_bury_the_log(records: list[logging.LogRecord]) -> None:
    """Req: R-05."""
    clock = ManualClock()
    defects = DefectLog(lambda: clock.now_ms)
    for _ in range(DEFECT_LINES_MAX + 2):
        defects.add(ValueError("planted"), {})
    assert len(records) == DEFECT_LINES_MAX
    clock.now_ms += WINDOW_MS
    defects.tick(clock.now_ms)
    assert [vars(record)["fields"] for record in records[DEFECT_LINES_MAX:]] == [{"count": 2}]
    defects.add(ValueError("planted"), {})
    assert len(records) == DEFECT_LINES_MAX + 2
    assert defects.count == DEFECT_LINES_MAX + 3
