"""A broker whose messages are in a PostgreSQL database, with the official client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from peeklock.demo.broker import BrokerFailed, BrokerProcess, program
from tests.postgres_server import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.new_database(f"broker{uuid.uuid4().hex}")


@pytest.fixture
def broker(url: str, tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, (f"--store={url}", f"--config={config_file(tmp_path, 'one')}")) as process:
        yield process


def client_of(broker: BrokerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)


def config_file(folder: Path, *names: str) -> Path:
    """Return a configuration with the queue `orders` in the first namespace."""
    namespaces = [{"Name": name, "Queues": [{"Name": "orders"}]} for name in names]
    config = folder / "config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": namespaces}}))
    return config


def send(broker: BrokerProcess, *bodies: str) -> None:
    with client_of(broker) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def receive(broker: BrokerProcess, count: int) -> list[str]:
    """Receive and complete so many messages."""
    found: list[str] = []
    with client_of(broker) as client, client.get_queue_receiver("orders") as receiver:
        while len(found) < count:
            batch = receiver.receive_messages(count - len(found), max_wait_time=10)
            assert batch, f"only {len(found)} of {count} messages came"
            for message in batch:
                found.append(str(message))
                receiver.complete_message(message)
    return found


def test_all_that_was_acknowledged_is_there_after_a_kill(broker: BrokerProcess) -> None:
    """The same node takes its stores back at once. Req: R-01, R-02."""
    send(broker, *(f"message {n}" for n in range(200)))
    assert receive(broker, 50) == [f"message {n}" for n in range(50)]
    broker.kill()
    broker.start()
    assert "waiting for a store" not in broker.log.read_text()
    assert receive(broker, 150) == [f"message {n}" for n in range(50, 200)]


def test_large_bodies_and_a_backlog_are_read_from_the_database(broker: BrokerProcess) -> None:
    """Req: R-01."""
    bodies = [f"{n}" + "x" * 200_000 for n in range(30)]
    for body in bodies:
        send(broker, body)
    broker.kill()
    broker.start()
    assert receive(broker, 30) == bodies


def test_another_node_waits_and_takes_over(broker: BrokerProcess, url: str, tmp_path: Path) -> None:
    send(broker, "first")
    other = BrokerProcess(tmp_path / "other", (f"--store={url}",))
    other.log.parent.mkdir()
    broker_pid = broker.pid
    assert broker_pid is not None

    starting = threading.Thread(target=other.start)
    starting.start()
    until_s = time.monotonic() + 20
    while "waiting for a store" not in (other.log.read_text() if other.log.exists() else ""):
        assert time.monotonic() < until_s
        time.sleep(0.05)
    said = next(line for line in other.log.read_text().splitlines() if "waiting for a store" in line)
    assert f"process {broker_pid} on" in json.loads(said)["owner"]
    send(broker, "second")
    broker.kill()
    killed_s = time.monotonic()
    starting.join()
    try:
        assert time.monotonic() - killed_s < 10
        assert receive(other, 2) == ["first", "second"]
    finally:
        other.kill()


def test_keys_and_namespaces_are_in_the_database(url: str, tmp_path: Path) -> None:
    """A node with an empty folder has the keys, the authority and the namespaces of the other one."""
    config = config_file(tmp_path, "one", "two")
    options = (f"--store={url}", "--auth=sas", f"--config={config}", "--host=0.0.0.0")
    found = []
    for number in range(2):
        folder = tmp_path / f"node{number}"
        folder.mkdir()
        with BrokerProcess(folder, options) as node:
            keys = [program(), "keys", "list", str(node.data), "--namespace"]
            listed = [subprocess.check_output([*keys, name]) for name in ("one", "two")]
            found.append((listed, node.authority().read_bytes()))
            assert not list(node.data.glob("**/*.db"))
            assert node.stop() == 0
    assert found[0] == found[1]
    assert found[0][0][0] != found[0][0][1]


def test_a_namespace_is_made_and_deleted_in_the_database(
    url: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, (f"--store={url}",)) as node:
        for command in ("create", "delete"):
            words = ["create", "third"] if command == "create" else ["delete", "third", "--yes"]
            subprocess.check_call([program(), "namespaces", *words, "--data", str(node.data)])
            names = {
                name
                for (name,) in postgres.execute("SELECT name FROM peeklock.lease", url.rpartition("/")[2])
            }
            assert ("namespace/third" in names) == (command == "create")


def test_nothing_is_answered_without_a_commit_once_the_lease_is_over(
    broker: BrokerProcess, url: str, postgres: PostgresServer
) -> None:
    """The owner is cut off: it must not say that a lock is renewed which another broker gives away."""
    name = url.rpartition("/")[2]
    send(broker, "first")
    with client_of(broker) as client, client.get_queue_receiver("orders") as receiver:
        [message] = receiver.receive_messages(max_wait_time=10)
        receiver.renew_message_lock(message)  # it is answered while the lease holds
        postgres.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false', "postgres")
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
        postgres.execute(f"{ended} '{name}'")
        until_s = time.monotonic() + 30
        while ready(broker):
            assert time.monotonic() < until_s
            time.sleep(0.05)
        renewing = threading.Thread(target=receiver.renew_message_lock, args=(message,))
        renewing.start()
        renewing.join(1.5)
        assert renewing.is_alive()
        postgres.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true', "postgres")
        renewing.join(20)
        assert not renewing.is_alive()
        assert ready(broker)
        receiver.complete_message(message)


def check_until(broker: BrokerProcess, until_s: float) -> None:
    while time.monotonic() < until_s:
        broker.check()
        time.sleep(0.05)


def ready(broker: BrokerProcess) -> bool:
    """Return whether the broker says that it is ready."""
    try:
        urlopen(f"http://127.0.0.1:{broker.http_port}/ready").close()
    except HTTPError as refusal:
        refusal.close()
        return False
    return True


def test_an_owner_that_was_frozen_ends_when_another_has_taken_over(
    broker: BrokerProcess, url: str, tmp_path: Path
) -> None:
    """What its client asked meanwhile is not answered, and not done."""
    send(broker, "first")
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    folder = tmp_path / "other"
    folder.mkdir()
    with BrokerProcess(folder, (f"--store={url}",)) as other:
        assert receive(other, 1) == ["first"]
        os.kill(broker.pid, signal.SIGCONT)
        until_s = time.monotonic() + 30
        while "another process owns the store" not in broker.log.read_text():
            assert time.monotonic() < until_s
            time.sleep(0.05)
        with pytest.raises(BrokerFailed, match="ended by itself with status 1"):
            check_until(broker, until_s)
        send(other, "second")
        assert receive(other, 1) == ["second"]
