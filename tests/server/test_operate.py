"""A broker with keys as its operator sees it: probes, figures, connections, and the commands that ask it."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.connection import Connection
from peeklock.amqp.events import ConnectionClosed, ConnectionOpened
from peeklock.amqp.types import Symbol
from peeklock.api import operator_pages
from peeklock.auth import Right, generate
from peeklock.client.connection_string import ConnectionString
from peeklock.demo.broker import BrokerProcess, program
from peeklock.server.keys.keys import KeyFile
from tests.kept_keys import KeptKeys, write_keys

ROOT = "RootManageSharedAccessKey"


class Operated(BrokerProcess):
    """A broker with a key that manages and one that sends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ["--durability=os", "--auth=sas"])
        self.data.mkdir()
        self.keys = {rule.name: rule.primary_key for rule in write_keys(self.data, web=[Right.SEND])}

    def ask(self, method: str, path: str, authorization: str = "", body: bytes = b"") -> tuple[int, Any]:
        """Return status and JSON, or text, of a request to the port."""
        headers = {"Authorization": authorization} if authorization else {}
        url = f"http://localhost:{self.http_port}{path}"
        request = urllib.request.Request(url, body or None, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            status, text = refusal.code, refusal.read()
        try:
            return status, json.loads(text or b"null")
        except ValueError:
            return status, text.decode()

    def signed(self, name: str, key: str = "") -> str:
        expires_at_ms = int(time.time() + 600) * 1000
        return generate("sb://localhost/", name, key or self.keys[name], expires_at_ms)

    def basic(self, name: str) -> str:
        return "Basic " + base64.b64encode(f"{name}:{self.keys[name]}".encode()).decode()

    def text(self, name: str) -> str:
        return f"{self.connection_string}SharedAccessKeyName={name};SharedAccessKey={self.keys[name]}"


class Peer:
    """A client that has shown its key."""

    def __init__(self, port: int, name: str, key: str, **properties: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.address = "{}:{}".format(*self._socket.getsockname()[:2])
        self._amqp = Connection(
            "client",
            container_id="peer",
            now_ms=0,
            hostname="localhost",
            sasl_mechanisms=("PLAIN",),
            sasl_response=f"\0{name}\0{key}".encode(),
            properties={Symbol(each): value for each, value in properties.items()},
        )
        self._amqp.open()
        self.until(ConnectionOpened)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *failure: object) -> None:
        self._socket.close()

    def until(self, kind: type) -> Any:
        while True:
            if out := self._amqp.data_to_send():
                self._socket.sendall(out)
            data = self._socket.recv(65536)
            for event in self._amqp.receive(data, 0) if data else self._amqp.eof(0):
                if isinstance(event, kind):
                    return event

    def closed_with(self) -> tuple[str, str]:
        error = self.until(ConnectionClosed).error
        return str(error.condition), error.description


@pytest.fixture(scope="module")
def broker() -> Iterator[Operated]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's may be too long for a socket
        process = Operated(Path(folder))
        with process:
            yield process
            assert process.stop() == 0
            assert not (process.data / "control.sock").exists()


def command(*arguments: str) -> tuple[int, str]:
    """Return exit status and all output of a command."""
    done = subprocess.run([program(), *arguments], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("path", "shown"), [("/live", "live"), ("/ready", "ready"), ("/health", "ok")])
def test_probes_need_no_key(broker: Operated, path: str, shown: str) -> None:
    assert broker.ask("GET", path) == (200, {"status": shown})


def test_figures_need_a_key_with_any_right_and_connections_one_with_manage(broker: Operated) -> None:
    for name, manages in (("web", False), (ROOT, True)):
        for key in (broker.signed(name), broker.basic(name)):
            status, found = broker.ask("GET", "/health", key)
            assert (status, found["namespace"]) == (200, "sbemulatorns")
            assert broker.ask("GET", "/connections", key)[0] == (200 if manages else 403)
            assert broker.ask("DELETE", "/connections/999", key)[0] == (404 if manages else 403)
    status, refused = broker.ask("GET", "/connections")
    assert (status, refused["type"]) == (401, "urn:peeklock:problem:claim-missing")
    wrong = broker.signed(ROOT, "x" * 44)
    assert broker.ask("GET", "/connections", wrong)[0] == 401
    assert broker.ask("GET", "/health", wrong) == (200, {"status": "ok"})


STATUSES = {
    ("put", "/$api/v1/keys/{name}"): 400,  # without rights
    ("post", "/$api/v1/keys/{name}"): 409,  # no such key
    ("post", "/$api/v1/namespaces"): 409,  # without --throw-away
    ("get", "/$api/v1/namespaces/{name}"): 404,
    ("put", "/$api/v1/namespaces/{name}"): 201,
    ("delete", "/$api/v1/namespaces/{name}"): 204,
    ("post", "/$api/v1/namespaces/{name}/reset"): 404,
    ("post", "/$api/v1/namespaces/{name}/clock"): 404,
    ("delete", "/$api/v1/keys/{name}"): 409,
}


def test_the_document_describes_each_page(broker: Operated) -> None:
    described = broker.ask("GET", "/$api/openapi.json")[1]["paths"]
    for path, methods in operator_pages.PATHS.items():
        assert described[path].keys() == methods.keys()
        for method in methods:
            named = path.replace("{id}", "999").replace("{name}", "none")
            status = broker.ask(method.upper(), named, broker.signed(ROOT))[0]
            assert status == (404 if "{id}" in path else STATUSES.get((method, path), 200))


def test_a_key_of_an_entity_opens_no_page(broker: Operated) -> None:
    """Also where the entity has the name of a page: with `api-version` a request is for the entity."""
    queue = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">'
        '<AuthorizationRules><AuthorizationRule xmlns:i="http://www.w3.org/2001/XMLSchema-instance" '
        'i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey</ClaimType><ClaimValue>None'
        "</ClaimValue><Rights><AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights>"
        "<AccessRights>Listen</AccessRights></Rights><KeyName>own</KeyName>"
        f"<PrimaryKey>{'k' * 43}=</PrimaryKey><SecondaryKey>{'s' * 43}=</SecondaryKey>"
        "</AuthorizationRule></AuthorizationRules></QueueDescription></content></entry>"
    )
    where = "/connections?api-version=2021-05"
    assert broker.ask("PUT", where, broker.signed(ROOT), queue.encode())[0] == 201
    expires_at_ms = int(time.time() + 600) * 1000
    own = generate("sb://localhost/connections", "own", "k" * 43 + "=", expires_at_ms)
    assert "QueueDescription" in broker.ask("GET", where, own)[1]
    basic = "Basic " + base64.b64encode(b"own:" + b"k" * 43 + b"=").decode()
    for key in (own, basic):
        assert broker.ask("GET", "/connections", key)[0] == 401
        assert broker.ask("GET", "/health", key) == (200, {"status": "ok"})
    assert broker.ask("DELETE", where, broker.signed(ROOT))[0] == 200


def test_a_connection_is_shown_and_closed(broker: Operated) -> None:
    with Peer(broker.amqp_port, "web", broker.keys["web"], product="tool", version="1.2") as peer:
        status, found = broker.ask("GET", "/connections", broker.signed(ROOT))
        assert status == 200
        [shown] = [each for each in found["connections"] if each["client"]["product"] == "tool"]
        assert shown["identities"] == ["web"]
        assert (shown["namespace"], shown["tls"]) == ("sbemulatorns", False)
        assert (shown["peer"], shown["client"]["version"]) == (peer.address, "1.2")
        line = command("connections", "--data", str(broker.data))
        assert line[0] == 0
        assert f"{shown['id']}  {peer.address}  web  tool 1.2" in line[1]
        closed = command("connections", "close", str(shown["id"]), "--data", str(broker.data))
        assert closed == (0, f"closed connection {shown['id']}\n")
        assert peer.closed_with() == ("amqp:connection:forced", "The operator closed this connection.")
    status, said = command("connections", "close", str(shown["id"]), "--connection-string", broker.text(ROOT))
    assert (status, "No open connection has the id" in said) == (1, True)


def test_keys_are_changed_in_the_running_broker(broker: Operated) -> None:
    """Req: T-01."""
    key = ("--connection-string", broker.text(ROOT))
    status, text = command("keys", "add", "messages", "--rights", "Send,Listen", *key)
    assert (status, text.splitlines()[0]) == (0, "messages (Send, Listen)")
    shown = dict(
        line.split("  SharedAccessKeyName=messages;SharedAccessKey=") for line in text.splitlines()[1:]
    )
    primary, secondary = shown["  primary  "], shown["  secondary"]
    assert broker.ask("GET", "/health", broker.signed("messages", primary))[1].keys() > {"status"}
    status, text = command("keys", "rotate", str(broker.data), "messages")
    assert status == 0
    assert f"secondary  SharedAccessKeyName=messages;SharedAccessKey={primary}" in text
    assert broker.ask("GET", "/health", broker.signed("messages", secondary))[1].keys() == {"status"}, (
        "at once"
    )
    assert command("keys", "list", *key) == command("keys", "list", str(broker.data))
    assert command("keys", "add", str(broker.data), "MESSAGES", "--rights", "Send") == (
        1,
        f"peeklock: the broker at {broker.data}/control.sock refused it: there is already a rule 'MESSAGES'; "
        "names that differ in case are the same\n",
    )
    assert command("keys", "remove", "messages", *key) == (0, "removed messages\n")
    assert broker.ask("GET", "/health", broker.signed("messages", primary))[1].keys() == {"status"}
    status, text = command("keys", "list", "--connection-string", broker.text("web"))
    assert status == 1
    assert "This page asks for Manage on the namespace" in text
    assert command("keys", "remove", "--connection-string", broker.text(ROOT))[0] == 2


def test_keys_of_an_old_folder_stay_valid_and_outlive_kills(broker: Operated) -> None:
    """Req: T-01, R-04. Changed with and without a running broker; the authority stays too."""
    data = str(broker.data)
    assert (broker.data / "keys.json.migrated").exists()
    assert not (broker.data / "keys.json").exists()
    authority = broker.authority().read_bytes()
    late = KeptKeys(broker.data).add("late", ["Send"])
    broker.kill()
    assert f"SharedAccessKey={late.primary_key}\n" in command("keys", "list", data)[1]
    assert command("keys", "add", data, "later", "--rights", "Listen")[0] == 0
    assert command("keys", "remove", data, "late", "--namespace", "sbemulatorns") == (0, "removed late\n")
    status, text = command("keys", "list", data, "--namespace", "nowhere")
    assert (status, text) == (1, f"peeklock: there is no namespace 'nowhere' with keys in {data}\n")
    broker.start()
    later = next(rule for rule in KeptKeys(broker.data).load() if rule.name == "later")
    assert broker.ask("GET", "/health", broker.signed(ROOT))[1].keys() > {"status"}
    assert broker.ask("GET", "/health", broker.signed("later", later.primary_key))[1].keys() > {"status"}
    assert broker.ask("GET", "/health", broker.signed("late", late.primary_key))[1].keys() == {"status"}
    assert broker.authority().read_bytes() == authority
    status, text = command("keys", "list", data, "--namespace", "nowhere")
    assert (status, text) == (
        1,
        f"peeklock: the broker at {data}/control.sock has no namespace 'nowhere'\n",
    )
    assert command("keys", "list", data, "--namespace", "SBEMULATORNS") == command("keys", "list", data)
    KeptKeys(broker.data).remove("later")


def test_a_socket_of_another_user_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        path.unlink()
        path.symlink_to(path)  # what cannot be connected to, for root too
        for arguments in (("keys", "list"), ("export",)):
            status, text = command(*arguments, str(tmp_path))
            assert status == 1
            assert text.startswith(f"peeklock: cannot ask the broker at {path}: ")


def test_a_broker_without_keys_of_its_own_says_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, ["--durability=os"]) as broker:
        status, text = command("keys", "list", str(broker.data))
        assert status == 1
        assert "This broker has no keys of its own: start it with --auth sas" in text


def test_keys_that_others_write_are_shown_and_not_changed(tmp_path: Path) -> None:
    rules, path = write_keys(tmp_path), tmp_path / "keys.json"
    with BrokerProcess(tmp_path, ["--durability=os", "--auth=sas", f"--keys={path}"]) as broker:
        assert command("keys", "list", str(broker.data))[1].startswith(f"{ROOT} (Send, Listen, Manage)\n")
        for arguments in (("rotate", ROOT), ("remove", ROOT), ("add", "web", "--rights", "Send")):
            status, text = command("keys", arguments[0], str(broker.data), *arguments[1:])
            assert status == 1
            assert f"{path} is only read: change it where it is made, and the broker follows" in text
    assert KeyFile(path).load() == rules


def test_entities_are_exported_by_the_running_broker(broker: Operated) -> None:
    """Req: A-02."""
    assert broker.ask("PUT", "/jobs?api-version=2021-05", broker.signed(ROOT), QUEUE)[0] == 201
    by_folder = command("export", str(broker.data))
    assert by_folder[0] == 0
    assert '"Name": "jobs"' in by_folder[1]
    assert command("export", "--connection-string", broker.text(ROOT)) == by_folder
    broker.ask("DELETE", "/jobs?api-version=2021-05", broker.signed(ROOT))


QUEUE = (
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)


def test_commands_say_what_is_missing(broker: Operated) -> None:
    url = f"http://127.0.0.1:{broker.http_port}"
    assert command("health", "--url", url) == (0, "ok\n")
    assert command("health", "--live", "--url", url) == (0, "live\n")
    assert "  namespace " in command("health", "--connection-string", broker.text("web"))[1]
    status, said = command("connections", "--url", url)
    assert (status, "MissingToken" in said, "--connection-string" in said) == (1, True, True)
    status, said = command("connections", "--connection-string", broker.text("web"))
    assert (status, "asks for Manage on the namespace" in said) == (1, True)


def test_over_tls_the_authority_is_named(broker: Operated) -> None:
    given = broker.text(ROOT).replace("UseDevelopmentEmulator=true;", "")
    assert ConnectionString.parse(given).tls
    status, said = command("health", "--connection-string", given)
    assert (status, "--ca FILE" in said) == (1, True)
    assert command("health", "--connection-string", given, "--ca", str(broker.authority()))[0] == 0


def test_a_socket_that_a_killed_broker_left_is_replaced(broker: Operated) -> None:
    broker.kill()
    assert (broker.data / "control.sock").is_socket()
    status, said = command("health", "--data", str(broker.data))
    assert (status, f"no broker runs on {broker.data}" in said) == (1, True)
    broker.start()
    assert command("health", "--ready", "--data", str(broker.data)) == (0, "ready\n")
