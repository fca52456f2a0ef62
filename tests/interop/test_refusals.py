"""What the broker refuses, and the exception that the official client makes of it."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote_plus

import pytest
from azure.core.credentials import AzureSasCredential
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)
from azure.servicebus.management import EntityStatus

from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Api, Background, Links
from tests.interop.helpers import send, take_one

KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


def _token(resource: str, key: str = KEY, key_name: str = KEY_NAME, lasts_s: int = 600) -> str:
    """Return a token. Source: Learn, "Service Bus access control with Shared Access Signatures"."""
    sr, se = quote_plus(resource), int(time.time()) + lasts_s
    signed = hmac.new(key.encode(), f"{sr}\n{se}".encode(), hashlib.sha256).digest()
    sig = quote_plus(base64.b64encode(signed))
    return f"SharedAccessSignature sr={sr}&sig={sig}&se={se}&skn={key_name}"


@pytest.fixture
def with_keys(api: Api, broker: BrokerProcess) -> Iterator[Callable[..., Any]]:
    """Make clients with other keys or a ready token."""
    made: list[Any] = []

    def make(**changed: str) -> Any:
        endpoint = f"Endpoint=sb://localhost:{broker.amqp_port};UseDevelopmentEmulator=true;"
        made.append(api.client(endpoint + "".join(f"{k}={v};" for k, v in changed.items()), retry_total=0))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize(
    "changed",
    [
        {"SharedAccessKeyName": KEY_NAME, "SharedAccessKey": "wrong"},
        {"SharedAccessKeyName": "nobody", "SharedAccessKey": KEY},
        {"SharedAccessSignature": _token("sb://localhost/", key="wrong")},
        {"SharedAccessSignature": _token("sb://localhost/", lasts_s=-5)},
        {"SharedAccessSignature": _token("sb://localhost/another-queue")},
        {"SharedAccessSignature": "SharedAccessSignature sr=sb%3a%2f%2flocalhost&se=9999999999"},
    ],
    ids=["wrong key", "wrong key name", "badly signed", "expired", "of another queue", "cut short"],
)
def test_who_cannot_be_authenticated_is_told_so(
    with_keys: Callable[..., Any],
    queue: str,
    changed: dict[str, str],
    broker: BrokerProcess,
    background: Background,
) -> None:
    """The reason has a tracking id, which stands in the log too; no key or signature does. The client's own
    exception has its class alone, and the text is in the one that it was made from.

    Req: R-04, T-02, T-03
    """
    client = Links(with_keys(**changed), background)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        refusals_seen = []
        for link in (sender, receiver):
            with pytest.raises(ServiceBusAuthenticationError) as refused:
                link.opened()
            refusals_seen.append(refused.value)
    for refusal in refusals_seen:
        tracking_id = str(refusal.inner_exception).partition("TrackingId:")[2].partition(",")[0]
        log = broker.log.read_text()
        refusals = [line for line in map(json.loads, log.splitlines()) if line["event"] == "refused"]
        (line,) = [line for line in refusals if line["tracking_id"] == tracking_id]
        assert line["peer"].startswith("127.0.0.1:")
        assert "sig=" not in log
        assert KEY not in log


@pytest.mark.parametrize(
    "resource", ["sb://localhost/", "sb://localhost/{queue}", "https://localhost/{queue}/"]
)
def test_a_token_made_elsewhere_opens_what_it_names(
    with_keys: Callable[..., Any], queue: str, resource: str
) -> None:
    """Req: R-04"""
    client = with_keys(SharedAccessSignature=_token(resource.format(queue=queue)))
    with client.get_queue_sender(queue) as sender:
        assert sender.send_messages(ServiceBusMessage("x")) is None


def test_an_entity_that_does_not_exist_is_not_found(client: Links) -> None:
    """Source: wire contract 1.7: with good credentials too, it fails when the token is put.

    Req: T-02, T-03
    """
    expected = (ServiceBusAuthenticationError, MessagingEntityNotFoundError)
    for link in (
        client.get_queue_sender("missing"),
        client.get_queue_receiver("missing"),
        client.get_queue_receiver("missing", sub_queue=ServiceBusSubQueue.DEAD_LETTER),
    ):
        with link, pytest.raises(expected) as refused:
            link.opened()
        assert "could not be found. TrackingId:" in str(refused.value.inner_exception)


def test_nothing_is_sent_to_a_dead_letter_queue(client: Links, queue: str) -> None:
    """Req: L-17, T-03"""
    refused = pytest.raises(ServiceBusError, match="TrackingId:")
    with client.get_queue_sender(f"{queue}/$DeadLetterQueue") as sender, refused:
        sender.opened()


def test_a_session_receiver_is_refused_where_there_are_no_sessions(client: Links, queue: str) -> None:
    """Req: T-03"""
    refused = pytest.raises(ServiceBusError, match="TrackingId:")
    with client.get_queue_receiver(queue, session_id="s") as receiver, refused:
        receiver.opened()


def test_a_deleted_queue_is_gone_for_its_receiver_and_its_sender(
    client: Links, queue: str, administration: Any
) -> None:
    """Both are open and in use while it is deleted; a new queue of that name starts empty.

    Req: T-03, A-01
    """
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        held = take_one(receiver)
        administration.delete_queue(queue)
        with pytest.raises(ServiceBusError):
            receiver.complete_message(held)
        with pytest.raises(ServiceBusError):
            receiver.receive_messages(max_wait_time=5)
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("3"))
    administration.create_queue(queue)
    with client.get_queue_receiver(queue) as receiver:
        assert receiver.peek_messages() == []


def test_a_disabled_queue_refuses_and_works_again_afterwards(
    client: Links, make_queue: Callable[..., str], administration: Any
) -> None:
    """Source: Learn, "Suspend and reactivate messaging entities".

    Req: A-04, T-02
    """
    queue = make_queue()
    send(client, queue, "1")

    def set_status(status: EntityStatus) -> None:
        properties = administration.get_queue(queue)
        properties.status = status
        administration.update_queue(properties)

    set_status(EntityStatus.DISABLED)
    for link in (client.get_queue_sender(queue), client.get_queue_receiver(queue)):
        with link, pytest.raises(MessagingEntityDisabledError, match="TrackingId:"):
            link.opened()
    set_status(EntityStatus.SEND_DISABLED)
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        with pytest.raises(MessagingEntityDisabledError):
            sender.opened()
        assert str(take_one(receiver)) == "1"
    set_status(EntityStatus.ACTIVE)
    send(client, queue, "2")


def test_changed_settings_drop_the_locks_and_count_no_delivery(
    client: Links, queue: str, administration: Any
) -> None:
    """Req: L-12, A-07, L-11"""
    send(client, queue, "1")
    with client.get_queue_receiver(queue) as receiver:
        held = take_one(receiver)
        properties = administration.get_queue(queue)
        administration.update_queue(properties)  # changes nothing
        receiver.renew_message_lock(held)
        properties.max_delivery_count = 3
        properties.lock_duration = dt.timedelta(seconds=30)
        administration.update_queue(properties)
        with pytest.raises(ServiceBusError, match=r"lock.*TrackingId:|TrackingId:.*lock"):
            receiver.complete_message(held)
        again = take_one(receiver)
        assert (str(again), again.delivery_count) == ("1", 0)
        receiver.complete_message(again)


def test_a_ready_token_credential_works_over_tls(
    api: Api, broker: BrokerProcess, queue: str, tls_pair: Any
) -> None:
    """Req: R-04, T-09"""
    credential = AzureSasCredential(_token(f"sb://localhost/{queue}"))
    client = api.client_with(
        "localhost",
        credential,
        custom_endpoint_address=f"sb://localhost:{broker.amqp_port}",
        connection_verify=str(tls_pair[0]),
        transport_type=_amqp(),
        retry_total=0,
    )
    with client, client.get_queue_sender(queue) as sender:
        assert sender.send_messages(ServiceBusMessage("x")) is None


def _amqp() -> Any:
    from azure.servicebus import TransportType

    return TransportType.Amqp
