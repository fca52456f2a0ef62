"""Broker and database are killed under load; what clients were promised is compared with what is there."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from peeklock.demo.broker import BrokerProcess
from tests.interop.test_postgres import client_of, config_file
from tests.postgres_server import PostgresServer, require_postgres

SECONDS = 3.0
"""Of load between two faults."""


class Sender(threading.Thread):
    """Sends numbered messages, each awaited, with a new client after each failure."""

    def __init__(self, broker: BrokerProcess) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self.ends = threading.Event()
        self.acknowledged: list[int] = []
        self.in_doubt: set[int] = set()
        self._number = 0

    def run(self) -> None:
        while not self.ends.is_set():
            try:
                with client_of(self._broker) as client:
                    self._send_with(client)
            except (ServiceBusError, OSError):
                time.sleep(0.1)

    def _send_with(self, client: ServiceBusClient) -> None:
        with client.get_queue_sender("orders") as sender:
            while not self.ends.is_set():
                self._number += 1
                self.in_doubt.add(self._number)
                sender.send_messages(ServiceBusMessage(str(self._number)))
                self.acknowledged.append(self._number)
                self.in_doubt.discard(self._number)

    def wait_for_more(self) -> None:
        """Wait until messages are acknowledged again."""
        count, until_s = len(self.acknowledged), time.monotonic() + 60
        while len(self.acknowledged) < count + 5:
            assert time.monotonic() < until_s, "nothing is acknowledged any more"
            time.sleep(0.05)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of its own: it is killed."""
    require_postgres()
    made = PostgresServer()
    try:
        made.start()
        yield made
    finally:
        made.remove()


def drained(broker: BrokerProcess) -> Counter[int]:
    found: Counter[int] = Counter()
    with client_of(broker) as client, client.get_queue_receiver("orders", prefetch_count=100) as receiver:
        while batch := receiver.receive_messages(100, max_wait_time=5):
            for message in batch:
                found[int(str(message))] += 1
                receiver.complete_message(message)
    return found


def test_nothing_acknowledged_is_lost_when_broker_and_database_are_killed(
    server: PostgresServer, tmp_path: Path
) -> None:
    """A message whose send was not answered may be there or not, but not twice. Req: R-01, R-02."""
    url = server.new_database(f"kill{uuid.uuid4().hex}")
    options = (f"--store={url}", f"--config={config_file(tmp_path, 'one')}")

    def restart_server() -> None:
        server.stop("immediate")
        server.start()

    def end_backends() -> None:
        ours = "application_name LIKE 'peeklock %'"
        server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")

    with BrokerProcess(tmp_path, options) as broker:

        def restart_broker() -> None:
            broker.kill()
            broker.start()

        faults: list[Callable[[], None]] = [restart_broker, restart_server, end_backends]
        sender = Sender(broker)
        sender.start()
        for fault in faults * 2:
            sender.wait_for_more()
            time.sleep(SECONDS)
            fault()
            broker.check()  # a database that starts again does not end the broker
        check_all(broker, sender)
        assert broker.stop() == 0


def check_all(broker: BrokerProcess, sender: Sender) -> None:
    """Check that what was acknowledged is there, once, and nothing that was never sent."""
    sender.wait_for_more()
    sender.ends.set()
    sender.join()
    found = drained(broker)
    assert not set(sender.acknowledged) - set(found)
    assert set(found.values()) <= {1}
    assert set(found) <= {*sender.acknowledged, *sender.in_doubt}


def test_nothing_acknowledged_is_lost_when_a_standby_is_promoted(
    server: PostgresServer, tmp_path: Path
) -> None:
    """The broker goes on with the new primary, in the same process. Req: R-02."""
    url = server.new_database("kill")
    standby = server.make_standby()
    try:
        server.wait_for_standby()
        both = url.replace(f":{server.port}/", f":{server.port},127.0.0.1:{standby.port}/")
        options = (f"--store={both}", f"--config={config_file(tmp_path, 'one')}")
        with BrokerProcess(tmp_path, options) as broker:
            sender = Sender(broker)
            sender.start()
            sender.wait_for_more()
            time.sleep(SECONDS)
            server.stop("immediate")
            standby.promote()  # it has no standby of its own, and asks for none
            check_all(broker, sender)
            broker.check()
    finally:
        standby.remove()
