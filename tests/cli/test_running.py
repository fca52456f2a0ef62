"""How commands find a broker, what they say when it does not answer, and what they show."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from peeklock.cli import main, running
from peeklock.cli.operate import _NUMBERS, _age, _rows
from peeklock.cli.running import BrokerError, NotRunning, find
from peeklock.cli.tables import table
from peeklock.server.settings import CONTROL_SOCKET

KEY = "SharedAccessKeyName=web;SharedAccessKey=secret"
PLAIN = f"Endpoint=sb://127.0.0.1:{{port}};{KEY};UseDevelopmentEmulator=true"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: pytest's may be too long for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@contextmanager
def answering(sock: socket.socket, answer: bytes) -> Iterator[list[bytes]]:
    """Answer requests to a bound socket with these bytes, and collect their heads."""
    heads: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                client, _ = sock.accept()
            except OSError:
                return
            with client:
                heads.append(client.recv(65536))
                client.sendall(answer)

    sock.listen()
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield heads
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        thread.join(5)


def on_port() -> tuple[int, socket.socket]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock.getsockname()[1], sock


def on_path(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    return sock


def http(status: int, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def test_the_name_of_the_socket_is_the_broker_s() -> None:
    assert running.SOCKET_NAME == CONTROL_SOCKET


def test_a_folder_s_broker_is_asked_over_its_socket(folder: Path) -> None:
    with answering(on_path(folder / "control.sock"), http(200, b'{"status": "live"}')) as heads:
        assert find(folder).ask("GET", "/live").value == {"status": "live"}
        assert find(control=folder / "control.sock").ask("GET", "/live").status == 200
        assert find(environ={"PEEKLOCK_DATA": str(folder)}).ask("GET", "/live").status == 200
        environ = {"PEEKLOCK_CONTROL": str(folder / "control.sock"), "PEEKLOCK_DATA": "/none"}
        assert find(environ=environ).ask("GET", "/live").status == 200
    assert [head.split(b"\r\n")[0] for head in heads] == [b"GET /live HTTP/1.1"] * 4
    assert not any(b"Authorization" in head for head in heads)


def test_a_connection_string_s_key_signs_for_the_namespace() -> None:
    port, sock = on_port()
    with answering(sock, http(200, b"{}")) as heads:
        find(connection_string=PLAIN.format(port=port)).ask("GET", "/health")
        environ = {"SERVICEBUS_CONNECTION_STRING": PLAIN.format(port=port)}
        find(environ=environ).ask("GET", "/health")
    for head in heads:
        assert b"Authorization: SharedAccessSignature sr=sb%3A%2F%2F127.0.0.1%2F&sig=" in head
        assert b"skn=web" in head
        assert b"secret" not in head


@pytest.mark.parametrize(
    ("endpoint", "where"),
    [
        ("shop.servicebus.windows.net", "shop.servicebus.windows.net:443"),
        ("shop.ServiceBus.chinacloudapi.cn", "shop.ServiceBus.chinacloudapi.cn:443"),
        ("shop.servicebus.windows.net:5300", "shop.servicebus.windows.net:5300"),
        ("servicebus.windows.net.example", "servicebus.windows.net.example:5671"),
    ],
)
def test_azure_is_asked_over_its_port_for_https(endpoint: str, where: str) -> None:
    text = f"Endpoint=sb://{endpoint};SharedAccessKeyName=a;SharedAccessKey=b"
    assert find(connection_string=text).where == f"the broker at {where}"


def test_without_a_name_the_usual_port_is_asked_also_where_the_socket_is_missing(folder: Path) -> None:
    port, sock = on_port()
    with answering(sock, http(200, b"{}")):
        for environ in ({}, {"PEEKLOCK_DATA": str(folder)}):
            found = find(environ={**environ, "PEEKLOCK_HTTP_PORT": str(port)})
            assert found.ask("GET", "/live").status == 200
    assert find(environ={}).where == "the broker at http://127.0.0.1:5300"


@pytest.mark.parametrize("state", ["missing", "left by a kill"])
def test_no_broker_on_a_folder_is_said_with_what_to_do(folder: Path, state: str) -> None:
    if state != "missing":
        on_path(folder / "control.sock").close()
    with pytest.raises(NotRunning, match=f"no broker runs on {folder}, .* `peeklock serve --data {folder}`"):
        find(folder).ask("GET", "/live")


def test_no_broker_at_an_address_is_said_with_what_to_do() -> None:
    port, sock = on_port()
    sock.close()
    with pytest.raises(NotRunning, match=r"start one, or name a running one with --data DIR"):
        find(url=f"http://127.0.0.1:{port}").ask("GET", "/live")
    with pytest.raises(NotRunning, match=r"which the connection string names: start it, or correct the End"):
        find(connection_string=PLAIN.format(port=port)).ask("GET", "/live")


def test_a_broker_that_does_not_answer_is_told_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "TIMEOUT_S", 0.05)
    sock = on_path(folder / "control.sock")
    sock.listen()
    with pytest.raises(NotRunning, match=r"has not answered within"):
        find(folder).ask("GET", "/live")
    sock.close()


def test_what_is_no_broker_is_told_apart() -> None:
    port, sock = on_port()
    with answering(sock, b"220 mail\r\n"), pytest.raises(BrokerError, match="cannot ask the broker at http"):
        find(url=f"http://127.0.0.1:{port}").ask("GET", "/live")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b'{"detail": "No open connection."}', "refused it: No open connection$"),
        (503, b"the broker stops", "refused it: the broker stops$"),
        (403, b'{"detail": "No right."}', "No right; use --data DIR on its machine, or --connection-string"),
        (500, b"", "refused it: 500$"),
    ],
)
def test_a_refusal_is_passed_on(status: int, body: bytes, said: str) -> None:
    port, sock = on_port()
    with answering(sock, http(status, body)), pytest.raises(BrokerError, match=said):
        find(url=f"http://127.0.0.1:{port}").value("GET", "/x")


def test_a_socket_s_path_that_is_too_long_names_the_option(folder: Path) -> None:
    deep = folder / ("x" * 110)
    deep.mkdir()
    with pytest.raises(BrokerError, match=r"path too long.*--control PATH"):
        find(deep).ask("GET", "/live")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"data": Path("a"), "url": "b"},
            "give one of --data, --control, --connection-string, --url and --connection",
        ),
        ({"data": Path("/none")}, "there is no folder /none"),
        ({"url": "localhost:5300"}, "is not an address such as http://127.0.0.1:5300"),
        ({"url": "http://h:99999"}, "is not an address such as"),
        ({"connection_string": "Endpoint=sb://h"}, "needs either SharedAccessKeyName and SharedAccessKey"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(given: dict[str, str], said: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        find(**given)  # type: ignore[arg-type]  # values of several kinds
    assert said in raised.value.format_message()


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_exit_statuses(folder: Path) -> None:
    assert invoked("health", "--data", str(folder)).exit_code == 1
    assert invoked("connections", "close", "x", "--data", str(folder)).exit_code == 2
    assert invoked("connections", "--data", str(folder), "close", "1").exit_code == 1
    with answering(on_path(folder / "control.sock"), http(503, b'{"status": "low space"}')):
        done = invoked("health", "--data", str(folder))
        assert (done.exit_code, done.output) == (1, "low space\n")
        done = invoked("health", "--ready", "--json", "--data", str(folder))
        assert (done.exit_code, done.output) == (1, '{"status": "low space"}\n')


LINK = {"role": "receiver", "entity": "orders", "credit": 5, "unsettled": 2, "rate": 1.25, "deliveries": 9}
CONNECTION = {
    "id": 3,
    "peer": "p:1",
    "identities": [],
    "client": {"product": "", "version": "", "containerId": "c"},
    "ageSeconds": 7300.0,
    "links": [LINK, {**LINK, "sessionId": "s"}],
}


def test_the_table_has_a_line_for_each_link() -> None:
    rows = [*_rows(CONNECTION), *_rows({**CONNECTION, "id": 12, "links": []})]
    head = ("ID", "PEER", "KEY", "CLIENT", "AGE", "ROLE", "ENTITY", "CREDIT", "L", "R")
    assert list(table(head, rows, _NUMBERS)) == [
        "ID  PEER  KEY  CLIENT  AGE  ROLE      ENTITY            CREDIT  L  R",
        " 3  p:1   -    c       2 h  receiver  orders                 5  2  1.2",
        "                            receiver  orders session s       5  2  1.2",
        "12  p:1   -    c       2 h  -         -                      -  -  -",
    ]


@pytest.mark.parametrize(
    ("seconds", "age"), [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172_800, "2 d")]
)
def test_an_age_is_in_the_unit_that_suits_it(seconds: float, age: str) -> None:
    assert _age(seconds) == age
