"""A back-up of a running broker, and what official clients find in a broker on the restored folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from peeklock.demo.broker import BrokerProcess, program
from peeklock.store.backup.restoring import SKIPPED_NUMBERS

ENTITIES: dict[str, Any] = {
    "Queues": [{"Name": "orders"}, {"Name": "carts", "Properties": {"RequiresSession": True}}],
    "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}]}],
}
WAIT_S = 5


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command of `peeklock`."""
    return subprocess.run([program(), *map(str, arguments)], capture_output=True, text=True, timeout=60)


def done(*arguments: object) -> str:
    """Run a command that must succeed; return what it says."""
    ran = run(*arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "Config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "bank", **ENTITIES}]}}))
    return path


@pytest.fixture
def source(tmp_path: Path, config: Path) -> Iterator[BrokerProcess]:
    folder = tmp_path / "source"
    folder.mkdir()
    with BrokerProcess(folder, [f"--config={config}"]) as broker:
        yield broker


def client_of(broker: BrokerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string)


def restored(tmp_path: Path, *backups: Path) -> BrokerProcess:
    """Return a broker on a folder that was made of back-ups."""
    folder = tmp_path / "target"
    folder.mkdir()
    broker = BrokerProcess(folder)
    done("restore", *backups, "--data", broker.data)
    return broker


def bodies(messages: Any) -> list[str]:
    return [str(message) for message in messages]


def test_everything_that_a_message_can_be_is_there_after_a_restore(
    tmp_path: Path, source: BrokerProcess
) -> None:
    """Req: R-07."""
    later = datetime.now(UTC) + timedelta(hours=1)
    with client_of(source) as client:
        orders = client.get_queue_sender("orders")
        orders.send_messages([ServiceBusMessage(f"order {number}") for number in range(5)])
        [scheduled] = orders.schedule_messages(ServiceBusMessage("later"), later)
        receiver = client.get_queue_receiver("orders")
        taken = receiver.receive_messages(max_message_count=5, max_wait_time=WAIT_S)
        while len(taken) < 5:
            taken += receiver.receive_messages(max_message_count=5 - len(taken), max_wait_time=WAIT_S)
        assert taken[0].sequence_number is not None
        receiver.defer_message(taken[0])
        receiver.dead_letter_message(taken[1], reason="why", error_description="because")
        with client.get_queue_sender("carts") as carts:
            carts.send_messages([ServiceBusMessage(f"item {at}", session_id="Anna") for at in range(2)])
        with client.get_queue_receiver("carts", session_id="Anna") as session:
            session.session.set_state("half full")
        with client.get_topic_sender("news") as news:
            news.send_messages(ServiceBusMessage("hello", subject="s", application_properties={"a": 1}))

        done("backup", "--data", source.data, "--to", tmp_path / "full.backup")
        receiver.complete_message(taken[2])  # of what comes after it, the restored broker knows nothing
        orders.send_messages(ServiceBusMessage("too late"))

        with restored(tmp_path, tmp_path / "full.backup") as target, client_of(target) as other:
            with other.get_queue_receiver("orders") as again:
                found = again.receive_messages(max_message_count=9, max_wait_time=WAIT_S)
                while len(found) < 3:
                    found += again.receive_messages(max_message_count=9, max_wait_time=WAIT_S)
                assert bodies(found) == ["order 2", "order 3", "order 4"], "their locks have ended"
                assert [each.sequence_number for each in found] == [m.sequence_number for m in taken[2:]]
                [deferred] = again.receive_deferred_messages([taken[0].sequence_number])
                assert str(deferred) == "order 0"
                again.complete_message(deferred)
                peeked = again.peek_messages(max_message_count=10)
                assert [str(each) for each in peeked if each.sequence_number == scheduled] == ["later"]
            dead_letters = other.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
            [dead] = dead_letters.receive_messages(max_wait_time=WAIT_S)
            assert (str(dead), dead.dead_letter_reason) == ("order 1", "why")
            with other.get_queue_receiver("carts", session_id=NEXT_AVAILABLE_SESSION) as session:
                assert session.session.session_id == "Anna"
                assert session.session.get_state() == b"half full"
                assert bodies(session.receive_messages(2, max_wait_time=WAIT_S))[:1] == ["item 0"]
            with other.get_subscription_receiver("news", "all") as subscription:
                [piece] = subscription.receive_messages(max_wait_time=WAIT_S)
                assert piece.application_properties == {b"a": 1}
            with other.get_queue_sender("orders") as sender:
                [number] = sender.schedule_messages(ServiceBusMessage("new"), later)
                assert number > SKIPPED_NUMBERS, "no number that a client may have seen is used again"
                sender.cancel_scheduled_messages([scheduled, number])
            assert target.stop() == 0
        assert "no damage found" in done("check", tmp_path / "target" / "data")


def test_increments_are_restored_after_the_full_back_up(tmp_path: Path, source: BrokerProcess) -> None:
    """Req: R-07."""
    backups = [tmp_path / f"{at}.backup" for at in range(3)]
    with client_of(source) as client, client.get_queue_sender("orders") as sender:
        for at, path in enumerate(backups):
            sender.send_messages([ServiceBusMessage(f"{at} {number}") for number in range(20)])
            with client.get_queue_receiver("orders") as receiver:
                for message in receiver.receive_messages(max_message_count=10, max_wait_time=WAIT_S):
                    receiver.complete_message(message)
                left = bodies(receiver.peek_messages(max_message_count=100))
            since = ["--since", backups[at - 1]] if at else []
            said = done("backup", "--data", source.data, "--to", path, *since)
            assert ("an increment" in said) == (at > 0)
    target = restored(tmp_path, *backups)
    with target, client_of(target) as other, other.get_queue_receiver("orders") as receiver:
        assert bodies(receiver.peek_messages(max_message_count=100)) == left
        assert len(left) >= 30
