"""What a queue's status, the namespace's tier and a full disk forbid, and the official client's errors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Background, Links
from tests.interop.helpers import bodies, send, take, take_one

DISABLED = pytest.raises(MessagingEntityDisabledError, match="TrackingId:")


@pytest.fixture
def set_status(administration: Any) -> Callable[[str, EntityStatus], None]:
    """Change the status of a queue."""

    def change(queue: str, status: EntityStatus) -> None:
        properties = administration.get_queue(queue)
        properties.status = status
        administration.update_queue(properties)

    return change


def test_who_receives_from_a_queue_that_is_disabled_for_it_is_told_so(
    client: Links, queue: str, set_status: Callable[[str, EntityStatus], None]
) -> None:
    """Whether receiving, settling, renewing or browsing, from the queue or from its dead letters. Sending
    goes on. Afterwards all is there, with nothing counted.

    Req: A-04, A-07, L-11, L-12, T-02
    """
    send(client, queue, "1", "2", "3")
    dead_letters = client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with (
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
        client.get_queue_receiver(queue) as browser,
        client.get_queue_receiver(queue) as renewer,
        dead_letters,
    ):
        held = take_one(receiver)
        sender.opened()
        for link in (browser, dead_letters):
            link.opened()
        renewed = take_one(renewer)
        set_status(queue, EntityStatus.RECEIVE_DISABLED)
        with DISABLED:
            receiver.complete_message(held)
        with DISABLED:
            renewer.renew_message_lock(renewed)
        with DISABLED:
            browser.peek_messages()
        with DISABLED:
            dead_letters.receive_messages(max_wait_time=5)
        with client.get_queue_receiver(queue) as late, DISABLED:
            late.opened()
        sender.send_messages(ServiceBusMessage("4"))
        set_status(queue, EntityStatus.ACTIVE)
        with client.get_queue_receiver(queue) as again:
            messages = take(again, 4)
            assert bodies(messages) == ["1", "2", "3", "4"]
            assert [message.delivery_count for message in messages] == [0, 0, 0, 0]


def test_who_sends_to_a_queue_that_is_disabled_for_it_is_told_so(
    client: Links, queue: str, set_status: Callable[[str, EntityStatus], None]
) -> None:
    """Over a link that was open before, and by the schedule operation; what is scheduled is enqueued all the
    same, and can be cancelled. Receiving goes on.

    Req: A-04, A-07, S-05, S-06, T-02
    """
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages(ServiceBusMessage("1"))
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.7)
        sender.schedule_messages(ServiceBusMessage("scheduled"), due)
        hence = due + dt.timedelta(hours=1)
        (late,) = sender.schedule_messages(ServiceBusMessage("late"), hence)
        set_status(queue, EntityStatus.SEND_DISABLED)
        with client.get_queue_sender(queue) as another, DISABLED:
            another.opened()
        with DISABLED:
            sender.send_messages(ServiceBusMessage("refused"))
        messages = take(receiver, 2)
        assert bodies(messages) == ["1", "scheduled"]
        receiver.complete_message(messages[0])
        set_status(queue, EntityStatus.ACTIVE)
        with client.get_queue_sender(queue) as again:
            again.cancel_scheduled_messages(late)
            set_status(queue, EntityStatus.SEND_DISABLED)
            with DISABLED:
                again.schedule_messages(ServiceBusMessage("refused"), hence)
        set_status(queue, EntityStatus.ACTIVE)
        send(client, queue, "2")
        assert bodies(receiver.peek_messages(max_message_count=9, sequence_number=1)) == ["scheduled", "2"]


def test_a_session_of_a_disabled_queue_is_taken_from_its_holder(
    any_client: Links, make_queue: Callable[..., str], set_status: Callable[[str, EntityStatus], None]
) -> None:
    """Req: A-04, G-02, L-12"""
    queue = make_queue(requires_session=True)
    send(any_client, queue, "1", session_id="s")
    with any_client.get_queue_receiver(queue, session_id="s") as receiver:
        held = take_one(receiver)
        set_status(queue, EntityStatus.DISABLED)
        with pytest.raises(ServiceBusError):
            receiver.complete_message(held)
        with any_client.get_queue_receiver(queue, session_id="s") as refused, DISABLED:
            refused.opened()
        set_status(queue, EntityStatus.ACTIVE)
        with any_client.get_queue_receiver(queue, session_id="s") as again:
            assert take_one(again).delivery_count == 0


# Tiers


class Tier:
    """A broker of one tier, with a client and an administration."""

    def __init__(self, folder: Path, background: Background, *options: str) -> None:
        self.broker = BrokerProcess(folder, options)
        self._background = background

    def __enter__(self) -> Tier:
        self.broker.start()
        connection_string = self.broker.connection_string
        self.administration = ServiceBusAdministrationClient.from_connection_string(
            connection_string, connection_verify=False
        )
        self.bare = ServiceBusClient.from_connection_string(connection_string, retry_total=0)
        self.client = Links(self.bare, self._background)
        return self

    def __exit__(self, *error: object) -> None:
        self._background.join()
        self.bare.close()
        self.administration.close()
        self.broker.kill()


@pytest.fixture(scope="module")
def basic(tmp_path_factory: pytest.TempPathFactory, background: Background) -> Iterator[Tier]:
    with Tier(tmp_path_factory.mktemp("basic"), background, "--tier=basic") as made:
        yield made


@pytest.fixture(scope="module")
def premium(tmp_path_factory: pytest.TempPathFactory, background: Background) -> Iterator[Tier]:
    with Tier(tmp_path_factory.mktemp("premium"), background, "--tier=premium") as made:
        yield made


@pytest.mark.parametrize(
    "settings",
    [
        {"requires_session": True},
        {"requires_duplicate_detection": True},
        {"forward_to": "q"},
        {"forward_dead_lettered_messages_to": "q"},
        {"auto_delete_on_idle": dt.timedelta(minutes=5)},
        {"default_message_time_to_live": dt.timedelta(days=15)},
        {"max_message_size_in_kilobytes": 1024},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_what_the_basic_tier_does_not_have_is_refused(basic: Tier, settings: dict[str, Any]) -> None:
    """Req: A-05, E-06"""
    with pytest.raises(HttpResponseError) as refused:
        basic.administration.create_queue("refused", **settings)
    assert refused.value.status_code == 400


def test_the_basic_tier_sends_and_receives_and_defers_nothing(basic: Tier) -> None:
    """What lives longer than 14 days is capped; a refused deferral leaves the message as it was.

    Req: A-05, E-06, L-10
    """
    basic.administration.create_queue("q")
    assert basic.administration.get_queue("q").default_message_time_to_live == dt.timedelta(days=14)
    assert basic.administration.get_namespace_properties().messaging_sku == "Basic"
    send(basic.client, "q", "1", time_to_live=dt.timedelta(days=20))
    with basic.client.get_queue_receiver("q") as receiver:
        message = take_one(receiver)
        assert message.expires_at_utc - message.enqueued_time_utc == dt.timedelta(days=14)
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            receiver.defer_message(message)  # the client closes a receiver that meets such an error
    with basic.client.get_queue_receiver("q") as receiver:
        (browsed,) = receiver.peek_messages()
        assert (browsed.state, browsed.delivery_count) == (ServiceBusMessageState.ACTIVE, 0)


def test_the_premium_tier_takes_more(premium: Tier) -> None:
    """Larger messages, and larger ones still where the queue says so; larger states of sessions; partitioned
    queues not at all.

    Req: A-05, T-10, G-03
    """
    administration, client = premium.administration, premium.client
    administration.create_queue("default", requires_session=True)
    administration.create_queue("large", max_message_size_in_kilobytes=2048)
    assert administration.get_namespace_properties().messaging_sku == "Premium"
    with pytest.raises(HttpResponseError) as refused:
        administration.create_queue("refused", enable_partitioning=True)
    assert refused.value.status_code == 400
    kib = b"x" * 1024
    with (
        client.get_queue_sender("default") as sender,
        client.get_queue_sender("large") as sender_of_large,
        client.get_queue_receiver("default", session_id="s") as receiver,
        client.get_queue_receiver("large") as receiver_of_large,
    ):
        sender.send_messages(ServiceBusMessage(1000 * kib, session_id="s"))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(1024 * kib, session_id="s"))
        sender_of_large.send_messages(ServiceBusMessage(2000 * kib))
        assert len(b"".join(take_one(receiver).body)) == 1000 * 1024
        assert len(b"".join(take_one(receiver_of_large).body)) == 2000 * 1024
        receiver.session.set_state(1024 * kib)
        with pytest.raises(ServiceBusError, match="TrackingId:"):
            receiver.session.set_state(1024 * kib + b"x")
        assert receiver.session.get_state() == 1024 * kib


# A full disk


def test_on_a_full_disk_the_client_is_told_of_a_quota(tmp_path: Path, background: Background) -> None:
    """Messages that are there are received and settled; nothing new is taken, no schedule, no state either.

    Req: A-05, R-06, T-02, T-03
    """
    with Tier(tmp_path, background) as ample:
        ample.administration.create_queue("q", requires_session=True)
        ample.administration.create_queue("to-q", forward_to="q")
        send(ample.client, "q", "1", session_id="s")
    quota = pytest.raises(ServiceBusQuotaExceededError, match="TrackingId:")
    with (
        Tier(tmp_path, background, f"--min-free={1 << 60}") as starved,
        starved.client.get_queue_sender("q") as sender,
        starved.client.get_queue_sender("to-q") as forwarded,
        starved.client.get_queue_receiver("q", session_id="s") as receiver,
    ):
        message = ServiceBusMessage("2", session_id="s")
        with quota:
            sender.send_messages(message)
        with quota:
            forwarded.send_messages(message)
        with quota:
            sender.schedule_messages(message, dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
        with quota:
            receiver.session.set_state("half way")
        receiver.complete_message(take_one(receiver))
        assert receiver.session.get_state() is None
