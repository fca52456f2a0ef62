"""Duplicate detection through the official client, in all combinations with other features."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.demo.broker import BrokerProcess
from peeklock.testing.served import ServedBroker
from tests.interop.clients import Background, Links
from tests.interop.helpers import bodies, take

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sessions": {"requires_session": True},
    "partitions": {"enable_partitioning": True},
    "both": {"requires_session": True, "enable_partitioning": True},
}
"""Queues by their other features."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return the name of a kind of queue."""
    return str(request.param)


def message(body: str, message_id: Any, **settings: Any) -> ServiceBusMessage:
    """Return a message of the session `s`, which a queue without sessions ignores."""
    return ServiceBusMessage(body, message_id=message_id, session_id="s", **settings)


def receiver_of(client: Any, queue: str, kind: str) -> Any:
    """Return a receiver, of the session where there is one."""
    options = {"session_id": "s"} if KINDS[kind].get("requires_session") else {}
    return client.get_queue_receiver(queue, **options)


def browse(receiver: Any) -> list[tuple[str, int]]:
    """Return the bodies that are there, with their numbers in their partition."""
    found = receiver.peek_messages(max_message_count=50, sequence_number=1)
    return [(str(message), message.sequence_number & ((1 << 48) - 1)) for message in found]


def test_an_id_that_was_seen_is_accepted_and_dropped(
    any_client: Links, make_queue: Callable[..., str], kind: str
) -> None:
    """Sent again in every way: alone, in a batch, twice in one batch, scheduled; and after its message is
    completed. A dropped message takes no number; scheduling it again answers the first number.

    Req: D-01, S-01, S-02, S-05, T-07
    """
    queue = make_queue(requires_duplicate_detection=True, **KINDS[kind])
    hence = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with any_client.get_queue_sender(queue) as sender, receiver_of(any_client, queue, kind) as receiver:
        sender.send_messages(message("1", "a"))
        sender.send_messages(message("1 again", "a"))
        sender.send_messages([message("2", "b"), message("1 in a batch", "a"), message("2 twice", "b")])
        numbers = sender.schedule_messages([message("3", "c"), message("1 scheduled", "a")], hence)
        assert sender.schedule_messages(message("3 again", "c"), hence) == numbers[:1]
        sender.send_messages(message("3 at once", "c"))
        sender.send_messages(message("later", "d", scheduled_enqueue_time_utc=hence))
        sender.send_messages(message("later again", "d"))
        named = uuid.uuid4()
        sender.send_messages([message("4", named), message("4 again", named)])
        # The session id names the partition, so that numbers follow each other there too.
        assert browse(receiver) == [("1", 1), ("2", 2), ("3", 3), ("later", 4), ("4", 5)]
        for taken in take(receiver, 2):
            receiver.complete_message(taken)
        sender.send_messages([message("1 after its end", "a"), message("2 after its end", "b")])
        assert browse(receiver) == [("3", 3), ("later", 4), ("4", 5)]


def test_a_partition_key_belongs_to_the_id(any_client: Links, make_queue: Callable[..., str]) -> None:
    """Req: D-01, S-02"""
    queue = make_queue(requires_duplicate_detection=True, enable_partitioning=True)
    with any_client.get_queue_sender(queue) as sender, any_client.get_queue_receiver(queue) as receiver:
        for key in ("p", "q", "p", None, None):
            sender.send_messages(ServiceBusMessage(str(key), message_id="id", partition_key=key))
        assert sorted(body for body, _ in browse(receiver)) == ["None", "p", "q"]


def test_the_target_of_a_forward_drops_what_it_has_seen(
    any_client: Links, make_queue: Callable[..., str]
) -> None:
    """Req: D-01, F-01"""
    target = make_queue(requires_duplicate_detection=True)
    first, second = make_queue(forward_to=target), make_queue(forward_to=target)
    with (
        any_client.get_queue_sender(first) as one,
        any_client.get_queue_sender(second) as other,
        any_client.get_queue_receiver(target) as receiver,
    ):
        one.send_messages([message("1", "a"), message("2", "b")])
        other.send_messages([message("1 by another way", "a"), message("3", "c")])
        assert bodies(take(receiver, 3)) == ["1", "2", "3"]
        assert browse(receiver) == [("1", 1), ("2", 2), ("3", 3)]


def test_a_refused_batch_leaves_no_id(any_client: Links, make_queue: Callable[..., str]) -> None:
    """Req: D-01, T-07"""
    queue = make_queue(requires_duplicate_detection=True, requires_session=True)
    with any_client.get_queue_sender(queue) as sender, receiver_of(any_client, queue, "sessions") as receiver:
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            sender.send_messages([message("1", "a"), ServiceBusMessage("without a session", message_id="b")])
        sender.send_messages([message("1", "a"), message("2", "b")])
        assert browse(receiver) == [("1", 1), ("2", 2)]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """This test's own broker, with a queue of each kind."""
    with BrokerProcess(tmp_path) as process:
        with ServiceBusAdministrationClient.from_connection_string(
            process.connection_string, connection_verify=False
        ) as administration:
            for name, settings in KINDS.items():
                administration.create_queue(name, requires_duplicate_detection=True, **settings)
        yield process


def test_ids_are_known_after_a_kill(mortal: BrokerProcess, background: Background) -> None:
    """In every kind of queue: of a message that is there, of one that was completed, of one that is
    scheduled.

    Req: D-01, R-01
    """
    hence = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    with ServiceBusClient.from_connection_string(mortal.connection_string) as bare_client:
        client = Links(bare_client, background)
        senders = {kind: client.get_queue_sender(kind).__enter__() for kind in KINDS}
        receivers = {kind: receiver_of(client, kind, kind).__enter__() for kind in KINDS}
        for kind in KINDS:
            senders[kind].send_messages([message("done", "a"), message("there", "b")])
            senders[kind].schedule_messages(message("later", "c"), hence)
            for taken in take(receivers[kind], 2):
                if str(taken) == "done":
                    receivers[kind].complete_message(taken)
        for link in (*senders.values(), *receivers.values()):
            link.__exit__()
        background.join()
        mortal.kill()
        mortal.start()
        senders = {kind: client.get_queue_sender(kind).__enter__() for kind in KINDS}
        receivers = {kind: receiver_of(client, kind, kind).__enter__() for kind in KINDS}
        for kind in KINDS:
            senders[kind].send_messages([message(f"{name} again", name) for name in "abc"])
            senders[kind].send_messages(message("new", "d"))
            found = sorted(body for body, _ in browse(receivers[kind]))
            assert found == ["later", "new", "there"], kind
        for link in (*senders.values(), *receivers.values()):
            link.__exit__()
        background.join()


def test_the_window_counts_from_the_first_time_an_id_was_seen() -> None:
    """Req: D-01"""
    window = dt.timedelta(seconds=20)
    with ServedBroker() as broker:
        with ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=False
        ) as administration:
            administration.create_queue(
                "q", requires_duplicate_detection=True, duplicate_detection_history_time_window=window
            )
        with (
            ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
            client.get_queue_sender("q") as sender,
            client.get_queue_receiver("q") as receiver,
        ):
            sender.send_messages(message("1", "a"))
            broker.advance(window / 2)
            sender.send_messages(message("1 again", "a"))
            assert browse(receiver) == [("1", 1)]
            broker.advance(window / 2)
            sender.send_messages(message("1 anew", "a"))
            assert browse(receiver) == [("1", 1), ("1 anew", 2)]
