"""A broker that is killed and started again, with clients that stay."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleAction, SqlRuleFilter

from peeklock.demo.broker import BrokerProcess
from peeklock.server.export import export_config
from tests.interop.clients import Api, Background, Links
from tests.interop.helpers import assert_empty, bodies, take, take_one


@pytest.fixture
def mortal(tmp_path: Path, tls_pair: tuple[Path, Path]) -> Iterator[BrokerProcess]:
    """This test's own broker, with the queue `q` that detects duplicates."""
    with BrokerProcess(tmp_path, (f"--tls-cert={tls_pair[0]}", f"--tls-key={tls_pair[1]}")) as process:
        connection_string = process.connection_string
        with ServiceBusAdministrationClient.from_connection_string(
            connection_string, connection_verify=str(tls_pair[0])
        ) as administration:
            administration.create_queue("q", requires_duplicate_detection=True)
        yield process


@pytest.fixture
def administration(mortal: BrokerProcess, tls_pair: tuple[Path, Path]) -> Iterator[Any]:
    """The official administration client of that broker."""
    with ServiceBusAdministrationClient.from_connection_string(
        mortal.connection_string, connection_verify=str(tls_pair[0])
    ) as client:
        yield client


@pytest.fixture
def patient(api: Api, mortal: BrokerProcess, background: Background) -> Iterator[Links]:
    """A client with its usual number of retries, and short pauses between them."""
    with api.client(mortal.connection_string, retry_backoff_factor=0.05) as client:
        yield Links(client, background)
        background.join()


def test_clients_go_on_after_the_broker_was_killed(patient: Links, mortal: BrokerProcess) -> None:
    """What was answered holds: active, deferred, scheduled, dead-lettered, completed, and ids seen. Locks are
    gone, and no delivery is counted for them. The same sender and receiver are used throughout.

    Req: R-01, R-02, L-08, L-10, L-11, L-12, S-01, D-01
    """
    dead = patient.get_queue_receiver("q", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with patient.get_queue_sender("q") as sender, patient.get_queue_receiver("q") as receiver, dead:
        sender.send_messages([ServiceBusMessage(str(n), message_id=f"id {n}") for n in range(1, 7)])
        due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
        (scheduled,) = sender.schedule_messages(ServiceBusMessage("later", message_id="later"), due)
        completed, deferred, dead_lettered, abandoned, held = take(receiver, 5)
        receiver.complete_message(completed)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead_lettered, reason="before the kill")
        receiver.abandon_message(abandoned)
        mortal.kill()
        mortal.start()
        sender.send_messages(ServiceBusMessage("1 again", message_id="id 1"))
        sender.send_messages(ServiceBusMessage("8", message_id="id 8"))
        browsed = receiver.peek_messages(max_message_count=20, sequence_number=1)
        assert [(str(message), message.sequence_number, message.state) for message in browsed] == [
            ("2", 2, ServiceBusMessageState.DEFERRED),
            ("4", 4, ServiceBusMessageState.ACTIVE),
            ("5", 5, ServiceBusMessageState.ACTIVE),
            ("6", 6, ServiceBusMessageState.ACTIVE),
            ("later", 7, ServiceBusMessageState.SCHEDULED),
            ("8", 8, ServiceBusMessageState.ACTIVE),
        ]
        again = take(receiver, 4)
        assert bodies(again) == ["4", "5", "6", "8"]
        assert [message.delivery_count for message in again] == [1, 0, 0, 0]
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(held)
        for message in again:
            receiver.complete_message(message)
        assert bodies(receiver.receive_deferred_messages(2)) == ["2"]
        sender.cancel_scheduled_messages(scheduled)
        assert_empty(receiver)
        assert take_one(dead).dead_letter_reason == "before the kill"


def test_a_stopped_broker_says_goodbye_and_clients_go_on_after_it_is_back(
    patient: Links, mortal: BrokerProcess
) -> None:
    """Req: R-01, L-12"""
    with patient.get_queue_sender("q") as sender, patient.get_queue_receiver("q") as receiver:
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        held: Any = take_one(receiver)
        assert mortal.stop() == 0
        mortal.start()
        sender.send_messages(ServiceBusMessage("3"))
        again = take(receiver, 3)
        assert bodies(again) == ["1", "2", "3"]
        assert again[0].delivery_count == 0
        assert again[0].lock_token != held.lock_token


def test_topics_rules_and_copies_are_there_after_the_broker_was_killed(
    mortal: BrokerProcess, administration: Any, background: Background
) -> None:
    """Each copy as it was in its subscription, and what actions changed; rules that were changed, removed and
    added; numbers go on; ids seen and what is scheduled hold for the topic.

    Req: R-01, R-02, P-01, P-02, P-03, L-12, S-01, S-05, D-01
    """
    administration.create_topic("t", requires_duplicate_detection=True)
    administration.create_subscription("t", "all")
    administration.create_subscription("t", "some", requires_session=True)
    administration.create_rule("t", "some", "gone")
    administration.delete_rule("t", "some", "gone")
    administration.delete_rule("t", "some", "$Default")
    administration.create_rule("t", "some", "big", filter=SqlRuleFilter("n > 100"))
    rule = administration.get_rule("t", "some", "big")
    rule.filter = SqlRuleFilter("n > @n", parameters={"@n": 2})
    rule.action = SqlRuleAction("SET sys.SessionId = 's'; SET n = n * 10")
    administration.update_rule("t", "some", rule)

    def message(n: int) -> ServiceBusMessage:
        return ServiceBusMessage(str(n), message_id=f"id {n}", application_properties={"n": n})

    with ServiceBusClient.from_connection_string(mortal.connection_string, retry_backoff_factor=0.05) as made:
        client = Links(made, background)
        with (
            client.get_topic_sender("t") as sender,
            client.get_subscription_receiver("t", "all") as receiver,
            client.get_subscription_receiver("t", "all", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as of_dead,
        ):
            sender.send_messages([message(n) for n in (1, 2, 3, 4)])
            due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
            (scheduled,) = sender.schedule_messages(message(5), due)
            completed, deferred, dead, held = take(receiver, 4)
            receiver.complete_message(completed)
            receiver.defer_message(deferred)
            receiver.dead_letter_message(dead, reason="before the kill")
            before = list(administration.list_rules("t", "some"))
            mortal.kill()
            mortal.start()
            with pytest.raises(MessageLockLostError):
                receiver.complete_message(held)
            sender.send_messages([message(1), message(6)])
            after = list(administration.list_rules("t", "some"))
            assert [vars(rule.filter) for rule in after] == [vars(rule.filter) for rule in before]
            assert [(rule.name, rule.action.sql_expression) for rule in after] == [
                ("big", "SET sys.SessionId = 's'; SET n = n * 10")
            ]
            sender.cancel_scheduled_messages(scheduled)
            messages = take(receiver, 2)
            assert [(str(one), one.sequence_number, one.enqueued_sequence_number) for one in messages] == [
                ("4", 4, 4),
                ("6", 5, 6),
            ]
            assert [one.delivery_count for one in messages] == [0, 0]
            assert bodies(receiver.receive_deferred_messages(2)) == ["2"]
            assert take_one(of_dead).dead_letter_reason == "before the kill"
            with client.get_subscription_receiver("t", "some", session_id="s") as some:
                found = {str(one): one.application_properties for one in take(some, 3)}
                assert found == {str(n): {b"n": 10 * n, b"RuleName": b"big"} for n in (3, 4, 6)}


def test_forwards_are_as_they_were_given_after_a_kill_and_in_an_export(
    mortal: BrokerProcess, administration: Any
) -> None:
    """Req: F-01, A-02, R-01. Source: wire contract C14."""
    here = administration.get_queue("q").name
    given = {
        "forward_to": f"https://localhost/{here}",
        "forward_dead_lettered_messages_to": f"http://127.0.0.1:{mortal.http_port}/{here.upper()}/",
    }
    administration.create_queue("source", **given)
    mortal.kill()
    mortal.start()
    read = administration.get_queue("source")
    assert {name: getattr(read, name) for name in given} == given
    administration.update_queue(read, max_delivery_count=3)
    assert {name: getattr(administration.get_queue("source"), name) for name in given} == given
    with pytest.raises(HttpResponseError, match="names another host") as refused:
        administration.update_queue(read, forward_to="https://elsewhere.example/q")
    assert refused.value.status_code == 400
    exported = export_config(mortal.data).text
    assert all(f'"{text}"' in exported for text in given.values())
