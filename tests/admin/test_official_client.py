"""The official Python administration client, sync and aio, unchanged, over real HTTPS."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncClient
from azure.servicebus.management import (
    EntityStatus,
    QueueProperties,
    ServiceBusAdministrationClient,
)

from peeklock.amqp.messaging import Sections
from peeklock.broker.vocabulary.commands import Send
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM, TierLimits
from tests.admin.official import FOREVER, administer, refusal
from tests.admin.serving import Served, now_ms

pytestmark = pytest.mark.interop


def test_a_queue_is_created_read_and_deleted(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    created = client.create_queue("orders")
    assert created.name == "orders"
    read = client.get_queue("Orders")
    assert read.lock_duration == timedelta(minutes=1)
    assert read.max_delivery_count == 10
    assert read.default_message_time_to_live == FOREVER
    assert read.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert read.requires_session is False
    assert read.enable_batched_operations is True
    assert read.status == EntityStatus.ACTIVE
    assert read.availability_status == "Available"
    assert read.max_message_size_in_kilobytes == 256
    assert read.forward_to is None
    assert not read.authorization_rules
    client.delete_queue("ORDERS")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("orders")


def test_every_setting_makes_the_round_trip(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    settings: dict[str, Any] = {
        "lock_duration": timedelta(seconds=13),
        "max_delivery_count": 14,
        "default_message_time_to_live": timedelta(minutes=11),
        "dead_lettering_on_message_expiration": True,
        "duplicate_detection_history_time_window": timedelta(minutes=12),
        "requires_duplicate_detection": True,
        "requires_session": True,
        "enable_batched_operations": False,
        "max_size_in_megabytes": 3072,
        "user_metadata": " <note> & more é ",
        "status": EntityStatus.SEND_DISABLED,
        "auto_delete_on_idle": timedelta(minutes=5),
    }
    client.create_queue("tenant/orders.eu-1_x", **settings)
    read = client.get_queue("tenant/orders.eu-1_x")
    assert {name: getattr(read, name) for name in settings} == settings


def test_a_partitioned_queue_shows_the_size_of_all_its_partitions(
    client: ServiceBusAdministrationClient,
) -> None:
    """Req: A-01, S-02. What was read can be written back."""
    queue = client.create_queue("orders", enable_partitioning=True, max_size_in_megabytes=2048)
    assert (queue.enable_partitioning, queue.max_size_in_megabytes) == (True, 32_768)
    client.update_queue(queue, max_delivery_count=3)
    assert client.get_queue("orders").max_size_in_megabytes == 32_768


def test_forwards_come_back_as_they_were_given_names_as_addresses(
    client: ServiceBusAdministrationClient, served: Served
) -> None:
    """Req: A-01, F-01. The client makes addresses of names, and sends a token for each."""
    for name in ("tenant/last", "dead"):
        client.create_queue(name)
    queue = client.create_queue(
        "orders",
        forward_to="tenant/last",
        forward_dead_lettered_messages_to=f"https://localhost:{served.port}/Dead",
    )
    here = f"sb://localhost:{served.port}"
    assert queue.forward_to == f"{here}/tenant/last"
    assert queue.forward_dead_lettered_messages_to == f"https://localhost:{served.port}/Dead"
    client.update_queue(queue, max_delivery_count=3)
    assert client.get_queue("orders").forward_to == f"{here}/tenant/last"
    queue.forward_to = None
    queue.forward_dead_lettered_messages_to = "tenant/last"
    client.update_queue(queue)
    read = client.get_queue("orders")
    assert (read.forward_to, read.forward_dead_lettered_messages_to) == (None, f"{here}/tenant/last")


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        (
            "new",
            {"forward_to": "gone"},
            "ForwardTo of 'new' names 'gone', and there is no such queue or topic",
        ),
        (
            "new",
            {"forward_dead_lettered_messages_to": "gone"},
            "ForwardDeadLetteredMessagesTo of 'new' names 'gone', and there is no such queue or topic",
        ),
    ],
)
def test_a_forward_that_cannot_be_is_a_400_that_says_why(
    client: ServiceBusAdministrationClient, name: str, settings: dict[str, Any], said: str
) -> None:
    """Req: A-01, F-01. Source: wire contract 7.8."""
    with pytest.raises(HttpResponseError) as failure:
        client.create_queue(name, **settings)
    assert refusal(failure) == 400
    assert said in str(failure.value)


def test_a_forward_may_lead_back_and_come_from_sessions(
    client: ServiceBusAdministrationClient, served: Served
) -> None:
    """Req: A-01, F-01. Source: wire contract C15."""
    here = f"sb://localhost:{served.port}"
    itself = client.create_queue("itself", forward_to="itself")
    assert itself.forward_to == f"{here}/itself"
    client.create_queue("first", forward_to="itself", requires_session=True)
    client.update_queue(itself, forward_to="first")
    assert client.get_queue("itself").forward_to == f"{here}/first"


def test_durations_may_be_text(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    client.create_queue("orders", lock_duration="PT13S", default_message_time_to_live="PT11M")
    read = client.get_queue("orders")
    assert (read.lock_duration, read.default_message_time_to_live) == (
        timedelta(seconds=13),
        timedelta(minutes=11),
    )


def test_a_queue_is_updated_with_what_was_read(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01, A-07. The largest time span comes back rounded, the tier's message size as if set."""
    queue = client.create_queue("orders", requires_duplicate_detection=True)
    queue.lock_duration = timedelta(seconds=30)
    queue.user_metadata = "changed"
    client.update_queue(queue)
    read = client.get_queue("orders")
    assert (read.lock_duration, read.user_metadata) == (timedelta(seconds=30), "changed")
    assert read.default_message_time_to_live == FOREVER
    client.update_queue(read, max_delivery_count=3)
    assert client.get_queue("orders").max_delivery_count == 3


def test_an_update_without_the_immutable_settings_is_taken(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    client.create_queue("orders", requires_duplicate_detection=True)
    names = [
        "authorization_rules", "auto_delete_on_idle", "dead_lettering_on_message_expiration",
        "default_message_time_to_live", "duplicate_detection_history_time_window", "availability_status",
        "enable_batched_operations", "enable_express", "enable_partitioning", "lock_duration",
        "max_delivery_count", "max_size_in_megabytes", "requires_duplicate_detection", "requires_session",
        "status", "forward_to", "user_metadata", "forward_dead_lettered_messages_to",
        "max_message_size_in_kilobytes",
    ]  # fmt: skip
    client.update_queue(QueueProperties("orders", **dict.fromkeys(names)), lock_duration="PT9S")
    read = client.get_queue("orders")
    assert (read.lock_duration, read.requires_duplicate_detection) == (timedelta(seconds=9), True)


def test_the_status_can_be_changed(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    queue = client.create_queue("orders")
    for status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED, EntityStatus.ACTIVE):
        client.update_queue(queue, status=status)
        assert client.get_queue("orders").status == status


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"requires_session": True}, "RequiresSession"),
        ({"requires_duplicate_detection": True}, "RequiresDuplicateDetection"),
        ({"lock_duration": timedelta(days=25)}, "LockDuration"),
        ({"lock_duration": timedelta(seconds=4)}, "LockDuration"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount"),
        ({"default_message_time_to_live": timedelta(0)}, "DefaultMessageTimeToLive"),
        (
            {"duplicate_detection_history_time_window": timedelta(days=25)},
            "DuplicateDetectionHistoryTimeWindow",
        ),
        ({"auto_delete_on_idle": timedelta(minutes=4)}, "AutoDeleteOnIdle"),
        ({"max_message_size_in_kilobytes": 54321}, "MaxMessageSizeInKilobytes"),
        ({"user_metadata": "x" * 1025}, "UserMetadata"),
    ],
)
def test_a_change_that_is_not_allowed_is_a_400_and_changes_nothing(
    client: ServiceBusAdministrationClient, change: dict[str, Any], named: str
) -> None:
    """Req: A-01, A-05. Source: wire contract 7.8."""
    queue = client.create_queue("orders")
    with pytest.raises(HttpResponseError) as failure:
        client.update_queue(queue, **change)
    assert refusal(failure) == 400
    assert named in str(failure.value)
    assert dict(client.get_queue("orders")) == dict(queue)


@pytest.mark.parametrize(
    ("tier", "settings", "named"),
    [
        (BASIC, {"requires_session": True}, "RequiresSession"),
        (BASIC, {"requires_duplicate_detection": True}, "RequiresDuplicateDetection"),
        (BASIC, {"forward_to": "other"}, "ForwardTo"),
        (BASIC, {"auto_delete_on_idle": timedelta(minutes=10)}, "AutoDeleteOnIdle"),
        (PREMIUM, {"enable_partitioning": True}, "EnablePartitioning"),
    ],
)
def test_what_a_tier_does_not_have_is_a_400(
    tmp_path: Any, tier: TierLimits, settings: dict[str, Any], named: str
) -> None:
    """Req: A-05. Source: the service's own refusals."""
    with administer(Served(tmp_path, tier)) as client:
        client.create_queue("other")
        with pytest.raises(
            HttpResponseError, match=f"sets {named}, which tier {tier.name} does not have"
        ) as failure:
            client.create_queue("orders", **settings)
        assert refusal(failure) == 400


def test_a_lock_on_the_namespace_refuses_to_delete_and_nothing_else(tmp_path: Any) -> None:
    """Req: A-03."""
    with administer(Served(tmp_path, delete_lock=True)) as client:
        queue = client.create_queue("orders")
        client.update_queue(queue, max_delivery_count=3)
        with pytest.raises(HttpResponseError, match=r"ScopeLocked: .*CanNotDelete") as failure:
            client.delete_queue("orders")
        assert refusal(failure) == 409
        assert client.get_queue("orders").max_delivery_count == 3
        with pytest.raises(ResourceNotFoundError):
            client.delete_queue("absent")


@pytest.mark.parametrize("name", ["", "a//b", "or ders", "ord:ers", "o" * 261, "$orders", "é"])
def test_a_name_that_breaks_the_rules_is_a_400(client: ServiceBusAdministrationClient, name: str) -> None:
    """Req: A-01, C32. Source: wire contract 7.8."""
    with pytest.raises(HttpResponseError) as failure:
        client.create_queue(name)
    assert refusal(failure) == 400


@pytest.mark.parametrize("end", [".", "-", "_", "--", "..", "__"])
def test_a_name_may_begin_and_end_with_punctuation(client: ServiceBusAdministrationClient, end: str) -> None:
    """Req: C32. As frameworks name the queues of generic types, of arrays and of failures."""
    for name in (f"orders{end}", f"{end}orders", f"a{end}/{end}b{end}/c{end}"):
        client.create_queue(name)
        client.update_queue(client.get_queue(name), max_delivery_count=3)
        client.create_queue(f"{name}-in", forward_to=name)
        assert client.get_queue(name).max_delivery_count == 3
        client.delete_queue(f"{name}-in")
        client.delete_queue(name)
        with pytest.raises(ResourceNotFoundError):
            client.get_queue(name)


@pytest.mark.parametrize("name", ["or ders", "é", "orders\n", "a?"])
def test_the_refusal_of_a_character_is_the_service_s(
    client: ServiceBusAdministrationClient, name: str
) -> None:
    """Req: C32. Source: wire contract C32."""
    said = (
        r"SubCode=40000\. .* contains character\(s\) that is not allowed by Service Bus\. "
        r"Entity segments can contain only letters, numbers, periods \(\.\), hyphens \(-\), and underscores "
        r"\(_\)\. TrackingId:"
    )
    with pytest.raises(HttpResponseError, match=said) as failure:
        client.create_queue(name)
    assert refusal(failure) == 400


@pytest.mark.parametrize(
    ("count", "fits"), [(2**31 - 1, True), (1, True), (2**31, False), (0, False), (-1, False)]
)
def test_a_delivery_count_has_31_bits(client: ServiceBusAdministrationClient, count: int, fits: bool) -> None:
    """Req: C33. A framework makes each of its queues with the largest."""
    if fits:
        client.create_queue("orders", max_delivery_count=count)
        assert client.get_queue("orders").max_delivery_count == count
        return
    with pytest.raises(HttpResponseError, match="allowed: 1 to 2147483647") as failure:
        client.create_queue("orders", max_delivery_count=count)
    assert refusal(failure) == 400


def test_a_name_is_taken_whatever_its_case(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    client.create_queue("orders")
    with pytest.raises(ResourceExistsError) as failure:
        client.create_queue("Orders")
    assert refusal(failure) == 409


def test_what_is_absent_is_not_found(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01."""
    for look_up in (client.get_queue, client.get_queue_runtime_properties, client.get_topic):
        with pytest.raises(ResourceNotFoundError):
            look_up("absent")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue_runtime_properties("")
    with pytest.raises(ResourceNotFoundError) as failure:
        client.delete_queue("absent")
    assert refusal(failure) == 404
    queue = client.create_queue("orders")
    client.delete_queue("orders")
    with pytest.raises(HttpResponseError) as update:
        client.update_queue(queue)
    assert refusal(update) == 404


def test_lists_are_sorted_and_paged(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01. The client asks for 100 at a time; 205 queues are three pages."""
    names = sorted(f"queue-{number:03d}" for number in range(205))
    for name in reversed(names):
        client.create_queue(name)
    assert [queue.name for queue in client.list_queues()] == names
    assert [queue.name for queue in client.list_queues_runtime_properties()] == names
    assert [queue.name for queue in client.list_queues(start_index=200, max_page_size=2)] == names[200:]
    assert list(client.list_queues(start_index=205)) == []


def test_runtime_properties_of_a_fresh_queue(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01. Source: wire contract 7.8, [T]: times present on fresh entities, counts 0, size an int."""
    before = datetime.now(UTC) - timedelta(seconds=1)
    client.create_queue("orders")
    about = client.get_queue_runtime_properties("orders")
    assert about.name == "orders"
    assert about.created_at_utc is not None
    assert before < about.created_at_utc.replace(tzinfo=UTC) < datetime.now(UTC) + timedelta(seconds=1)
    assert about.updated_at_utc is not None
    assert about.accessed_at_utc is not None
    assert about.size_in_bytes == 0
    counts = (
        about.total_message_count,
        about.active_message_count,
        about.dead_letter_message_count,
        about.scheduled_message_count,
        about.transfer_message_count,
        about.transfer_dead_letter_message_count,
    )
    assert counts == (0, 0, 0, 0, 0, 0)


def test_runtime_properties_count_messages(client: ServiceBusAdministrationClient, served: Served) -> None:
    """Req: A-01, F-01. A forwarding queue holds none of what it passed on, and what it could not pass on."""
    client.create_queue("last")
    client.create_queue("orders", forward_to="last")

    def send() -> None:
        namespace = served.world.namespace
        (queue,) = [view for view in namespace.entity_views() if view.description.name == "orders"]
        for scheduled_at_ms in (None, now_ms() + 600_000):
            message = Message(11, scheduled_at_ms=scheduled_at_ms)
            namespace.apply(Send(queue.entity_id * 4, message, Sections(b"hello world"), None), now_ms())

    served.on_loop(send)
    about = client.get_queue_runtime_properties("last")
    assert (about.total_message_count, about.active_message_count) == (1, 1)
    assert about.size_in_bytes is not None
    assert about.size_in_bytes >= 11

    client.update_queue(client.get_queue("last"), status=EntityStatus.SEND_DISABLED)
    served.on_loop(send)
    about = client.get_queue_runtime_properties("orders")
    assert (about.active_message_count, about.dead_letter_message_count) == (0, 0)
    assert about.scheduled_message_count == 2
    assert (about.transfer_message_count, about.transfer_dead_letter_message_count) == (0, 1)
    assert about.total_message_count == 3


def test_the_namespace_shows_its_tier(client: ServiceBusAdministrationClient) -> None:
    """Req: A-01, A-05."""
    about = client.get_namespace_properties()
    assert about.messaging_sku == "Standard"
    assert about.name == "peeklock"
    assert about.namespace_type == "Messaging"
    assert about.created_at_utc is not None


def test_the_premium_tier_lets_the_message_size_be_set(tmp_path: Any) -> None:
    """Req: A-05."""
    with administer(Served(tmp_path, PREMIUM)) as client:
        assert client.get_namespace_properties().messaging_sku == "Premium"
        queue = client.create_queue("orders", max_message_size_in_kilobytes=12345)
        assert queue.max_message_size_in_kilobytes == 12345
        assert client.create_queue("other").max_message_size_in_kilobytes == 1024


@pytest.mark.parametrize(
    ("name", "key"), [("RootManageSharedAccessKey", "wrong"), ("Nobody", "SAS_KEY_VALUE")]
)
def test_a_wrong_key_is_an_authentication_error(served: Served, name: str, key: str) -> None:
    """Req: R-04."""
    text = served.connection_string.replace("RootManageSharedAccessKey", name).replace("SAS_KEY_VALUE", key)
    with (
        ServiceBusAdministrationClient.from_connection_string(
            text, connection_verify=served.certificate, retry_total=0
        ) as client,
        pytest.raises(HttpResponseError, match="InvalidSignature") as failure,
    ):
        client.get_queue("orders")
    assert refusal(failure) == 401
    assert isinstance(failure.value, (ClientAuthenticationError, HttpResponseError))


def test_the_aio_client_does_the_same(served: Served) -> None:
    """Req: A-01."""

    async def story() -> None:
        # The aio transport takes no file of trusted certificates, only "do not verify".
        async with AsyncClient.from_connection_string(
            served.connection_string, connection_verify=False, retry_total=0
        ) as client:
            queue = await client.create_queue("aio/orders", lock_duration=timedelta(seconds=13))
            assert queue.lock_duration == timedelta(seconds=13)
            queue.max_delivery_count = 3
            await client.update_queue(queue)
            assert (await client.get_queue("aio/orders")).max_delivery_count == 3
            assert (await client.get_queue_runtime_properties("aio/orders")).total_message_count == 0
            for number in range(101):
                await client.create_queue(f"q{number:03d}")
            names = [found.name async for found in client.list_queues()]
            assert names == ["aio/orders", *(f"q{number:03d}" for number in range(101))]
            with pytest.raises(ResourceExistsError):
                await client.create_queue("aio/orders")
            for name in names:
                await client.delete_queue(name)
            with pytest.raises(ResourceNotFoundError):
                await client.get_queue("aio/orders")
            assert (await client.get_namespace_properties()).messaging_sku == "Standard"

    asyncio.run(story())
