"""A broker process as strangers, careless clients and its operator meet it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peeklock import FORM
from peeklock.amqp.connection import Connection
from peeklock.amqp.events import (
    ConnectionClosed,
    ConnectionOpened,
    DispositionReceived,
    LinkAttached,
    LinkFlow,
)
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.performatives import Source, Target
from peeklock.amqp.types import Role
from peeklock.auth import generate
from peeklock.broker.vocabulary.changes import EntityStored
from peeklock.broker.vocabulary.descriptions import SubscriptionDescription, TopicDescription
from peeklock.demo.broker import BrokerFailed, BrokerProcess, program
from peeklock.store.base import Batch
from peeklock.store.sqlite.store import SqliteStore
from tests.amqp.pair import attach, begin, sasl_and_open, transfer

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), ["--durability=os"]) as process:
        yield process
        assert process.stop() == 0


class Client:
    """The AMQP engine in the client role on a blocking socket."""

    def __init__(self, port: int, *, user: bool = False) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.amqp = Connection(
            "client",
            container_id="stranger",
            now_ms=0,
            hostname="localhost",
            sasl_mechanisms=("PLAIN" if user else "ANONYMOUS",),
            sasl_response=b"\0RootManageSharedAccessKey\0SAS_KEY_VALUE" if user else b"",
        )
        self.amqp.open()
        self.events: list[Any] = []

    def until(self, kind: type) -> Any:
        """Exchange bytes until an event of this kind comes."""
        while True:
            for event in self.events:
                if isinstance(event, kind):
                    self.events.remove(event)
                    return event
            out = self.amqp.data_to_send()
            if out:
                self.socket.sendall(out)
            data = self.socket.recv(65536)
            self.events += self.amqp.receive(data, 0) if data else self.amqp.eof(0)


def health(broker: BrokerProcess) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.http_port}/health", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    while True:
        try:
            more = sock.recv(65536)
        except ConnectionResetError:
            return data
        if not more:
            return data
        data += more


def test_health_says_what_runs(broker: BrokerProcess) -> None:
    found = health(broker)
    assert found["status"] == "ok"
    assert found["durability"] == "os"
    assert found["version"]
    assert found["core"] == FORM


@pytest.mark.parametrize(
    ("first", "answer"),
    [
        (b"AMQP\x02\x01\x00\x00", SASL_HEADER),  # TLS by AMQP is not offered: the header that is
        (b"AMQP\x00\x02\x00\x00", b"AMQP"),
        (b"AMQPxxxx", b"AMQP"),
        (b"GET\r\n\r\n", b"HTTP/1.1 400"),
        (b"\x00\x01\x02\x03\r\n\r\n", b"HTTP/1.1 400"),
    ],
)
def test_a_connection_that_starts_wrongly_is_told_so_and_closed(
    broker: BrokerProcess, first: bytes, answer: bytes
) -> None:
    """Req: R-05"""
    with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=10) as sock:
        sock.sendall(first)
        sock.shutdown(socket.SHUT_WR)
        assert read_to_end(sock).startswith(answer)


def test_every_port_serves_amqp_and_http(broker: BrokerProcess) -> None:
    client = Client(broker.http_port)
    assert client.until(ConnectionOpened).container_id
    client.socket.close()
    url = f"http://127.0.0.1:{broker.amqp_port}/health"
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.status == 200


def ask(port: int, host: str, path: str, *headers: str) -> tuple[int, bytes]:
    """Send one GET and return status and body."""
    lines = (f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", "")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall("\r\n".join(lines).encode())
        sock.shutdown(socket.SHUT_WR)
        head, _, body = read_to_end(sock).partition(b"\r\n\r\n")
    return int(head.split()[1]), body


UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol: AMQPWSB10",
)


@pytest.mark.parametrize("auth", [(), ("--auth=off",)])
def test_a_page_whose_name_is_rebound_to_this_machine_gets_nothing(
    tmp_path: Path, auth: tuple[str, ...]
) -> None:
    """Req: R-04. It sends no Origin to its own origin: its name alone shows it. A probe gets the status."""
    token = generate("http://localhost", "RootManageSharedAccessKey", "SAS_KEY_VALUE", 4_000_000_000_000)
    options = ["--durability=os", "--host-name=peeklock", "--tls-name=broker.lan", *auth]
    with BrokerProcess(tmp_path, options) as process:
        for port in (process.amqp_port, process.http_port):
            for path, headers in (
                ("/$Resources/queues", (f"Authorization: {token}",)),
                ("/$servicebus/websocket", UPGRADE),
                ("/$servicebus/websocket", (*UPGRADE, f"Origin: http://localhost:{port}")),
            ):
                status, body = ask(port, "rebound.example", path, *headers)
                assert (status, b"--host-name rebound.example" in body) == (421, True)
                for known in ("localhost", f"127.0.0.1:{port}", "[::1]", "peeklock:5300", "broker.lan"):
                    assert ask(port, known, path, *headers)[0] in (101, 200), (known, path)
            own = f"Origin: http://peeklock:{port}"  # as the Python client has it
            assert ask(port, f"peeklock:{port}", "/$servicebus/websocket", *UPGRADE, own)[0] == 101
            assert ask(port, "rebound.example", "/health") == (200, b'{"status": "ok"}\n')
            assert "connections" in json.loads(ask(port, "peeklock", "/health")[1])
        assert '"status": 421' in process.log.read_text()


def test_with_keys_a_broker_is_served_by_any_name(tmp_path: Path) -> None:
    """Req: R-04."""
    with BrokerProcess(tmp_path, ["--durability=os", "--auth=sas"]) as process:
        assert ask(process.http_port, "any.example", "/$Resources/queues")[0] == 401
        assert ask(process.http_port, "any.example", "/$servicebus/websocket", *UPGRADE)[0] == 101
        assert ask(process.http_port, "any.example", "/health") == (200, b'{"status": "ok"}\n')


def test_garbage_at_the_socket_ends_that_connection_alone(broker: BrokerProcess) -> None:
    """Req: R-05"""
    bystander = Client(broker.amqp_port)
    bystander.until(ConnectionOpened)
    chance = random.Random(7)
    resident_before = resident_kb(broker)
    frames = [
        struct.pack(">IBBH", 0xFFFFFFF0, 2, 0, 0),  # a frame larger than any agreed size
        struct.pack(">IBBH", 4, 2, 0, 0),  # smaller than its own header
        struct.pack(">IBBH", 16, 9, 0, 0) + bytes(8),  # a data offset outside the frame
        struct.pack(">IBBH", 12, 2, 7, 0) + b"\x00\x53\x10\xc0",  # an unknown frame type, a truncated list
    ]
    for number in range(60):
        with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=10) as sock:
            garbage = frames[number % 8] if number % 8 < 4 else chance.randbytes(chance.randrange(1, 5000))
            sock.sendall((SASL_HEADER if number % 2 else AMQP_HEADER) + garbage)
            sock.shutdown(socket.SHUT_WR)
            assert read_to_end(sock)[:4] == b"AMQP"  # answered, then closed
    bystander.amqp.begin()
    bystander.socket.sendall(bystander.amqp.data_to_send())
    assert bystander.socket.recv(4096)  # still served
    bystander.socket.close()
    assert health(broker)["status"] == "ok"
    assert resident_kb(broker) - resident_before < 20_000


def test_a_frame_byte_by_byte_is_a_frame(broker: BrokerProcess) -> None:
    client = Client(broker.amqp_port)
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened = False
    while not opened:
        for byte in client.amqp.data_to_send():
            client.socket.sendall(bytes([byte]))
        opened = any(
            isinstance(event, ConnectionOpened) for event in client.amqp.receive(client.socket.recv(4096), 0)
        )
    client.socket.close()


def test_a_clean_stop_tells_the_links_and_exits_0(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, ["--durability=os"]) as process:
        client = Client(process.amqp_port)
        client.until(ConnectionOpened)
        child = process._process
        assert child is not None
        child.terminate()
        closed = client.until(ConnectionClosed)
        assert closed.error.condition == "amqp:connection:forced"
        client.socket.sendall(client.amqp.data_to_send())
        client.socket.close()
        assert process.stop() == 0


def test_a_port_in_use_is_named_with_what_to_do(broker: BrokerProcess, tmp_path: Path) -> None:
    done = run_serve(f"--data={tmp_path / 'd'}", f"--amqp-port={broker.amqp_port}", "--http-port=0")
    assert done.returncode == 1
    assert f"127.0.0.1:{broker.amqp_port}" in done.stderr
    assert "--amqp-port" in done.stderr


def test_a_second_broker_on_the_folder_is_refused_naming_the_first(broker: BrokerProcess) -> None:
    """Req: R-02"""
    done = run_serve(f"--data={broker.data}", "--amqp-port=0", "--http-port=0")
    assert done.returncode == 1
    assert str(broker.pid) in done.stderr


def test_a_bad_configuration_stops_the_start_and_names_the_path(tmp_path: Path) -> None:
    """Req: A-02"""
    config = tmp_path / "Config.json"
    queue = {"Name": "q", "Properties": {"LockDuration": "P1X"}}
    config.write_text(
        json.dumps(
            {
                "UserConfig": {
                    "Namespaces": [{"Name": "sbemulatorns", "Queues": [queue]}],
                    "Logging": {"Type": "File"},
                }
            }
        )
    )
    done = run_serve(f"--data={tmp_path / 'd'}", f"--config={config}", "--amqp-port=0", "--http-port=0")
    assert done.returncode == 1
    assert "UserConfig.Namespaces[0].Queues[0].Properties.LockDuration" in done.stderr
    assert not (tmp_path / "d").exists()


def test_the_emulator_s_configuration_is_followed_and_the_log_says_what_that_took(tmp_path: Path) -> None:
    """Req: A-02, P-03"""
    config = Path(__file__).parents[1] / "config/emulator_config.json"
    options = ["--durability=os", f"--config={config}"]
    for created in ((1, 1, 4, 3), (0, 0, 0, 0)):
        with BrokerProcess(tmp_path, options) as broker:
            found = health(broker)
            assert (found["entities"], found["unmatched_messages"]) == (6, 0)
            assert broker.stop() == 0
        lines = [json.loads(line) for line in broker.log.read_text().splitlines() if line.startswith("{")]
        assert [line for line in lines if line.pop("time") and line["event"] == "configuration followed"][
            -4:
        ] == [
            {
                "level": "info",
                "event": "configuration followed",
                "kind": kind,
                "in_file": in_file,
                "created": count,
                "changed": 0,
            }
            for kind, in_file, count in zip(
                ("queue", "topic", "subscription", "rule"), (1, 1, 4, 3), created, strict=True
            )
        ]


def test_a_topic_that_a_crash_left_half_deleted_can_be_in_the_configuration(tmp_path: Path) -> None:
    """Its deletion is done first; what the file asks for is new. Req: A-02, R-01"""

    async def make() -> None:
        store = SqliteStore(tmp_path / "data", durability="os")
        await store.open()
        topic = EntityStored(1, TopicDescription("news"), 0, 0, deleting=True)
        left = [EntityStored(n, SubscriptionDescription("news", f"s{n}"), 0, 0) for n in range(2, 1000)]
        await store.commit(Batch(1, [topic, *left]))
        await store.close()

    asyncio.run(make())
    config = tmp_path / "config.json"
    topics = [{"Name": "news", "Subscriptions": [{"Name": "s7"}]}]
    config.write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Topics": topics}]}})
    )
    with BrokerProcess(tmp_path, ["--durability=os", f"--config={config}"]) as broker:
        assert health(broker)["entities"] == 2
        assert administer(broker, "GET", "news") == 200
        assert broker.stop() == 0


def test_states_of_sessions_that_become_one_are_told_of_once(tmp_path: Path) -> None:
    """The state that was set last counts; the others are gone when the broker starts again. Req: C27"""
    stores = Path(__file__).parent.parent / "golden" / "stores"
    shutil.copytree(stores / "spellings", tmp_path / "data")
    for _ in range(2):
        with BrokerProcess(tmp_path, ["--durability=os"]) as broker:
            assert health(broker)["entities"] == 4
            assert broker.stop() == 0
    lines = [json.loads(line) for line in broker.log.read_text().splitlines() if line.startswith("{")]
    told = [line for line in lines if line["event"] == "session states replaced"]
    assert [(line["entity"], line["count"], line["first"]) for line in told] == [
        (entity, 1, "order-ä") for entity in ("plain", "wide", "events/Subscriptions/wide")
    ]


def test_a_resource_lock_keeps_queues_from_being_deleted(tmp_path: Path) -> None:
    """Req: A-03"""
    with BrokerProcess(tmp_path, ["--durability=os", "--resource-lock=cannotdelete"]) as broker:
        create_queue(broker, "q")
        with pytest.raises(urllib.error.HTTPError) as refused:
            administer(broker, "DELETE", "q")
        assert refused.value.code == 409
        assert "ScopeLocked" in refused.value.read().decode()


@pytest.mark.parametrize("options", [(), ("--enforce-quotas",)])
def test_the_number_of_queues_is_limited_only_where_the_operator_says_so(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Req: A-05. 1,000 in the premium tier, here in a file with one more."""
    queues = [{"Name": f"q{number}"} for number in range(1001)]
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": queues}]}}))
    process = BrokerProcess(tmp_path, ["--durability=os", "--tier=premium", f"--config={config}", *options])
    if options:
        with pytest.raises(
            BrokerFailed, match="'q1000' cannot be created: tier Premium allows 1000 entities"
        ):
            process.start()
    else:
        with process:
            assert health(process)["entities"] == 1001


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--data DIR"),
        (("--durability=memory", "--data=/nowhere"), "leave --data out"),
        (("--durability=memory", "--tls-cert=README.md"), "--tls-cert and --tls-key go together"),
        (("--data=",), "the name of the folder is empty"),
        (("--data=x", "--min-free=1GiB"), "'1GiB' is not a number of bytes; 1 GiB is 1073741824"),
        (("--data=x", "--min-free=-1"), "'-1' is not a number of bytes"),
        (("--data=x", "--lock-grace=-1"), "'-1' is neither a number of seconds, as 5 or 0.5, nor 'lapse'"),
        (("--data=x", "--lock-grace=1 s"), "'1 s' is neither a number of seconds"),
        (("--data=x", "--host-name=http://x"), "'http://x' is neither a DNS name"),
        (("--data=x", "--host-name=x:5300"), "'x:5300' is neither a DNS name"),
    ],
)
def test_options_that_are_wrong_or_contradict_are_explained(arguments: tuple[str, ...], said: str) -> None:
    """Req: R-01"""
    done = run_serve(*arguments)
    assert done.returncode == 2
    assert said in re.sub(r"\s+", " ", done.stderr)


def test_the_package_runs_as_the_command() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "peeklock", "--help"], capture_output=True, text=True, timeout=30, check=True
    )
    assert asked.stdout.startswith("Usage: peeklock [OPTIONS] COMMAND")


def test_an_interrupt_before_it_is_ready_ends_it_without_a_word(tmp_path: Path) -> None:
    """A configuration that is slow to read holds the start up."""
    config, log = tmp_path / "Config.json", tmp_path / "log"
    os.mkfifo(config)
    options = [f"--data={tmp_path / 'd'}", f"--config={config}", "--amqp-port=0", "--http-port=0"]
    with log.open("wb") as output:
        process = subprocess.Popen([program(), "serve", *options], stdout=output, stderr=output)
    with config.open("w") as pipe:  # waits until the broker reads
        process.send_signal(signal.SIGINT)
        pipe.write('{"UserConfig": {"Namespaces": [{"Name": "ns"}]}}')
    assert process.wait(10) == 130
    assert log.read_text() == ""


def test_the_store_is_its_owners_alone(broker: BrokerProcess) -> None:
    """Req: R-04"""
    for path in (broker.data, *broker.data.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_name_that_no_host_can_have_is_said_to_be_one(tmp_path: Path, host: str) -> None:
    """Req: R-05."""
    options = ("--auth=off", "--amqp-port=0", "--http-port=0")
    done = run_serve(f"--data={tmp_path / 'd'}", f"--host={host}", *options)
    assert done.returncode == 1
    assert "not a valid host name" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_that_is_not_ours_is_said_to_be(tmp_path: Path) -> None:
    done = run_serve(f"--data={tmp_path / 'd'}", "--host=192.0.2.1", "--amqp-port=0", "--http-port=0")
    assert done.returncode == 1
    assert "--host" in done.stderr


def test_the_log_says_who_was_refused_by_the_administration(broker: BrokerProcess) -> None:
    """Req: R-04, T-02"""
    token = generate("http://localhost/refused", "stranger", "not-the-key", 4_000_000_000_000)
    for body in (None, b" " * 100_000):  # the larger one is refused before it is read
        request = urllib.request.Request(
            f"http://localhost:{broker.http_port}/refused", body, {"Authorization": token}, method="PUT"
        )
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=10)
    told = [json.loads(line) for line in broker.log.read_text().splitlines() if '"path": "refused"' in line]
    told = [line for line in told if line["event"] == "administration request refused"]
    assert [line["key_name"] for line in told] == ["stranger"] * 2
    assert all(line["peer"].startswith("127.0.0.1:") for line in told)


def test_the_log_holds_no_secret(broker: BrokerProcess) -> None:
    """Req: R-04"""
    assert "SAS_KEY_VALUE" not in broker.log.read_text()


def test_an_idle_connection_costs_little(broker: BrokerProcess) -> None:
    """Req: R-05. 2,000 connections are to cost at most 150 MB: 75 kB each."""
    before = resident_kb(broker)
    clients = [Client(broker.amqp_port) for _ in range(100)]
    for client in clients:
        client.until(ConnectionOpened)
    assert (resident_kb(broker) - before) / 100 < 75
    assert health(broker)["connections"] >= 100  # though none has a link
    for client in clients:
        client.socket.close()
    until(lambda: health(broker)["connections"] == 0)


def test_a_flood_of_pre_settled_transfers_is_held_back_not_kept_in_memory(broker: BrokerProcess) -> None:
    """Req: T-06, T-08"""
    create_queue(broker, "flood")
    client = Client(broker.amqp_port, user=True)
    client.until(ConnectionOpened)
    channel = client.amqp.begin()
    handle = client.amqp.attach(channel, "flood", Role.SENDER, Source(address="x"), Target(address="flood"))
    client.until(LinkAttached)
    client.until(LinkFlow)
    before = resident_kb(broker)
    payload = encode_message(data=[bytes(200_000)])
    highest = 0
    for number in range(600):  # 120 MB
        if not client.amqp.credit(channel, handle):
            client.until(LinkFlow)
        client.amqp.send(channel, handle, struct.pack(">I", number), payload, settled=True)
        client.socket.sendall(client.amqp.data_to_send())
        if number % 20 == 0:
            highest = max(highest, resident_kb(broker) - before)
    assert highest < 330_000  # the body cache's 128 MiB, and 64 MiB not yet committed in up to two forms
    client.socket.close()


def test_low_space_refuses_sends_and_says_so(tmp_path: Path) -> None:
    """Req: R-06, T-06. A volume that never has enough free space stands for one that runs full."""
    with BrokerProcess(tmp_path, ["--durability=os", f"--min-free={1 << 60}"]) as broker:
        create_queue(broker, "q")
        until(lambda: "sending is limited" in broker.log.read_text())
        with pytest.raises(urllib.error.HTTPError) as refused:
            health(broker)
        assert refused.value.code == 503
        assert "low space" in json.load(refused.value)["status"]

        client = Client(broker.amqp_port, user=True)
        client.until(ConnectionOpened)
        channel = client.amqp.begin()
        handle = client.amqp.attach(channel, "q", Role.SENDER, Source(address="x"), Target(address="q"))
        client.until(LinkAttached)
        client.until(LinkFlow)
        payload = encode_message(data=[b"x"])
        client.amqp.send(channel, handle, b"1", payload)
        outcome = client.until(DispositionReceived).state
        assert outcome.error.condition == "amqp:resource-limit-exceeded"
        client.amqp.send(channel, handle, b"2", payload, settled=True)
        client.socket.sendall(client.amqp.data_to_send())
        until(lambda: "pre-settled sends were refused" in broker.log.read_text())
        client.socket.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for another process to get so far; 10 s at most."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def create_queue(broker: BrokerProcess, name: str) -> None:
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
    )
    assert administer(broker, "PUT", name, body.encode()) == 201


def administer(broker: BrokerProcess, method: str, name: str, body: bytes | None = None) -> int:
    """Ask the administration, over plain HTTP; answer the status."""
    resource = f"http://127.0.0.1:{broker.http_port}/{name}"
    token = generate(resource, "RootManageSharedAccessKey", "SAS_KEY_VALUE", 4_000_000_000_000)
    headers = {"Authorization": token, "Content-Type": "application/atom+xml"}
    request = urllib.request.Request(resource, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        status: int = answer.status
    return status


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program(), "serve", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


def resident_kb(broker: BrokerProcess) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{broker.pid}/status").read_text())
    assert found is not None
    return int(found[1])


def test_health_shows_what_waits_in_buffers(broker: BrokerProcess) -> None:
    """Req: R-05. A second ago at most."""
    with socket.create_connection(("127.0.0.1", broker.amqp_port)) as peer:
        peer.sendall(sasl_and_open() + begin() + attach(0, Role.SENDER, address="$cbs"))
        peer.sendall(transfer(0, 0, bytes(30_000), more=True))
        until(lambda: health(broker)["buffered_bytes"] >= 30_000)
    until(lambda: health(broker)["buffered_bytes"] == 0)
