"""What an earlier release has stored, seen by official clients that are connected while it is replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusSubQueue,
)
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter

from peeklock.demo.broker import BrokerProcess
from peeklock.store.check import SOUND, check
from peeklock.store.sqlite.format import FORMAT
from tests.interop.own_client import OwnClient
from tests.interop.test_cursors import CLAIM, LIMITS, read
from tests.releases import unpacked
from tests.store.damage import format_of

ENTITIES: dict[str, Any] = {
    "Queues": [
        {"Name": "orders", "Properties": {"RequiresDuplicateDetection": True}},
        {"Name": "carts", "Properties": {"RequiresSession": True}},
        {"Name": "q"},
    ],
    "Topics": [{"Name": "news", "Subscriptions": [{"Name": "sport"}, {"Name": "all"}]}],
}
WAIT_S = 5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Release 0.2.0, at work on a folder."""
    config = tmp_path / "Config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "bank", **ENTITIES}]}}))
    broker = BrokerProcess(tmp_path, [f"--config={config}"])
    broker.executable = unpacked("0.2.0", tmp_path)
    with broker:
        yield broker


def test_clients_go_on_through_an_upgrade_and_find_all_that_was_stored(broker: BrokerProcess) -> None:
    """`tests/kill/test_upgrade.py` kills the earlier release. Req: R-07, L-10, L-17, S-01, S-06, G-03, D-01,
    P-02, X-06."""
    later = datetime.now(UTC) + timedelta(hours=1)
    authority = broker.authority().read_bytes()
    administration = ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string.replace(str(broker.amqp_port), str(broker.http_port), 1),
        connection_verify=str(broker.authority()),
    )
    administration.create_rule("news", "sport", "goals", filter=SqlRuleFilter("goals > 3"))
    administration.delete_rule("news", "sport", "$Default")
    with (
        ServiceBusClient.from_connection_string(broker.connection_string, retry_backoff_factor=0.1) as client,
        client.get_queue_sender("orders") as orders,
        client.get_queue_receiver("orders") as receiver,
        client.get_topic_sender("news") as news,
    ):
        orders.send_messages([ServiceBusMessage(f"order {at}", message_id=str(at)) for at in range(5)])
        scheduled, cancelled = orders.schedule_messages(
            [ServiceBusMessage("later"), ServiceBusMessage("never")], later
        )
        taken: list[ServiceBusReceivedMessage] = []
        while len(taken) < 4:
            taken += receiver.receive_messages(max_message_count=4 - len(taken), max_wait_time=WAIT_S)
        receiver.complete_message(taken[0])
        receiver.defer_message(taken[1])
        receiver.dead_letter_message(taken[2], reason="why", error_description="because")
        with client.get_queue_sender("carts") as carts:
            carts.send_messages([ServiceBusMessage(f"item {at}", session_id="Anna") for at in range(2)])
        with client.get_queue_receiver("carts", session_id="Anna") as session:
            session.session.set_state("half full")
        news.send_messages(ServiceBusMessage("final", application_properties={"goals": 5}))
        with client.get_queue_sender("q") as q:
            q.send_messages([ServiceBusMessage(str(at)) for at in range(4)])
        with OwnClient(broker.amqp_port) as own:
            assert own.ask("q", CLAIM, LIMITS)[2]["claim"] == 1
        numbers = [message.sequence_number or 0 for message in taken]

        assert broker.stop() == 0
        broker.executable = None
        broker.start()
        assert format_of(broker.data / "peeklock.db") == FORMAT

        orders.send_messages([ServiceBusMessage("again", message_id="1"), ServiceBusMessage("new")])
        orders.cancel_scheduled_messages([cancelled])
        peeked = receiver.peek_messages(20, sequence_number=1)
        left = {message.sequence_number or 0: str(message) for message in peeked}
        assert numbers[0] not in left, "what was completed does not come back"
        new = max(left)
        assert left == {
            numbers[1]: "order 1",
            numbers[3]: "order 3",
            numbers[3] + 1: "order 4",
            scheduled: "later",
            new: "new",
        }
        assert new > cancelled > scheduled, "no number is used twice"
        [deferred] = receiver.receive_deferred_messages([numbers[1]])
        assert (deferred.delivery_count or 0) == (taken[1].delivery_count or 0) + 1
        receiver.complete_message(deferred)
        again = receiver.receive_messages(max_message_count=1, max_wait_time=WAIT_S)
        assert [message.sequence_number for message in again] == [numbers[3]], "its lock has ended"
        dead_letters = client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
        [dead] = dead_letters.receive_messages(max_wait_time=WAIT_S)
        assert (str(dead), dead.dead_letter_reason) == ("order 2", "why")
        with client.get_queue_receiver("carts", session_id=NEXT_AVAILABLE_SESSION) as session:
            assert session.session.session_id == "Anna"
            assert session.session.get_state() == b"half full"
            assert [str(message) for message in session.peek_messages(5)] == ["item 0", "item 1"]
        news.send_messages(ServiceBusMessage("draw", application_properties={"goals": 2}))
        for subscription, texts in (("sport", ["final"]), ("all", ["final", "draw"])):
            with client.get_subscription_receiver("news", subscription) as reader:
                assert [str(message) for message in reader.peek_messages(5)] == texts
        with OwnClient(broker.amqp_port) as own:
            assert read(own, 1) == ["0", "1", "2"]
            assert own.ask("q", CLAIM, LIMITS)[2]["claim"] == 2, "no claim is used twice"
    assert [rule.name for rule in administration.list_rules("news", "sport")] == ["goals"]
    assert broker.authority().read_bytes() == authority
    administration.close()
    assert broker.stop() == 0
    assert check(broker.data).exit_status == SOUND
