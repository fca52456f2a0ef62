"""The administration as a playbook: requests in, commands or answers out, effects in, answers out.

The bodies are what the official Python client 7.15 serialises; `test_official_client.py` lets it do so
itself.
"""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from peeklock.admin.api import Pending, Response
from peeklock.auth import OpenAuthority, generate
from peeklock.broker.vocabulary.commands import (
    Address,
    CreateEntity,
    DeleteEntity,
    ListEntities,
    LookUp,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, EntityKind, EntityStatus, QueueDescription
from peeklock.broker.vocabulary.effects import Done, EntitiesFound, EntityFound, EntityView, Failed
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityNotFound,
    InvalidOperation,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
)
from peeklock.broker.vocabulary.quotas import PREMIUM, STANDARD, TierLimits
from tests.admin.asking import ATOM, CONNECT, NOW_MS, PYTHON_ENTRY, REPLY_TO, Client, detail, links

BARE = PYTHON_ENTRY.format("<QueueDescription />")
FULL = PYTHON_ENTRY.format(
    "<QueueDescription><LockDuration>PT30S</LockDuration><MaxSizeInMegabytes>2048</MaxSizeInMegabytes>"
    "<RequiresDuplicateDetection>true</RequiresDuplicateDetection><RequiresSession>false</RequiresSession>"
    "<DefaultMessageTimeToLive>PT1H</DefaultMessageTimeToLive>"
    "<DeadLetteringOnMessageExpiration>true</DeadLetteringOnMessageExpiration>"
    "<DuplicateDetectionHistoryTimeWindow>PT5M</DuplicateDetectionHistoryTimeWindow>"
    "<MaxDeliveryCount>3</MaxDeliveryCount><EnableBatchedOperations>false</EnableBatchedOperations>"
    "<AuthorizationRules /><Status>SendDisabled</Status>"
    "<AutoDeleteOnIdle>P999999999DT23H59M59.999999S</AutoDeleteOnIdle>"
    "<EnablePartitioning>false</EnablePartitioning>"
    "<ForwardTo>sb://localhost:5300/other%20one/</ForwardTo><UserMetadata>a &lt;b&gt; &amp; é </UserMetadata>"
    "</QueueDescription>"
)
JAVASCRIPT_CREATE = (
    '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
    '<entry xmlns="http://www.w3.org/2005/Atom"><updated>2024-01-01T00:00:00.000Z</updated>'
    '<content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
    "<Unknown>1</Unknown><MaxDeliveryCount> 5 </MaxDeliveryCount>"
    '<LockDuration i:nil="true"/><ForwardTo/></QueueDescription></content></entry>'
)


@pytest.fixture
def client() -> Client:
    return Client()


def view(name: str = "orders", **settings: Any) -> EntityView:
    return EntityView(
        entity_id=1,
        description=QueueDescription(name, **settings),
        created_at_ms=NOW_MS,
        updated_at_ms=NOW_MS + 1,
        accessed_at_ms=0,
        size_bytes=4096,
        active_count=5,
        scheduled_count=4,
        dead_letter_count=3,
        transfer_dead_letter_count=2,
    )


def found(*args: Any, **settings: Any) -> EntityFound:
    return EntityFound(REPLY_TO, view(*args, **settings))


# Creating


def test_a_bare_description_creates_a_queue_with_the_service_s_defaults(client: Client) -> None:
    """Req: A-01."""
    assert client.command("PUT", "/orders?api-version=2024-05", BARE) == CreateEntity(
        QueueDescription("orders"), REPLY_TO
    )


def test_every_setting_reaches_the_broker(client: Client) -> None:
    """Req: A-01. The largest time span arrives as any span at or above it; addresses are reduced to names."""
    assert client.command("PUT", "/Orders%2Feu?api-version=2024-05", FULL).description == QueueDescription(
        "Orders/eu",
        lock_duration_ms=30_000,
        max_size_mb=2048,
        requires_duplicate_detection=True,
        default_ttl_ms=3_600_000,
        dead_lettering_on_expiration=True,
        duplicate_window_ms=300_000,
        max_delivery_count=3,
        enable_batched_operations=False,
        status=EntityStatus.SEND_DISABLED,
        forward_to="other one",
        forward_to_given="sb://localhost:5300/other%20one/",
        user_metadata="a <b> & é ",
        auto_delete_on_idle_ms=UNLIMITED_MS,
    )


def test_other_prefixes_unknown_nil_and_empty_elements_are_understood(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.3: any order, unknown elements, missing elements, any prefix."""
    assert client.command("PUT", "/orders", JAVASCRIPT_CREATE).description == QueueDescription(
        "orders", max_delivery_count=5
    )


def test_a_slash_in_a_name_may_be_encoded_or_plain(client: Client) -> None:
    """Req: A-01."""
    assert client.command("PUT", "/a/b", BARE) == client.command("PUT", "/a%2Fb", BARE)


CREATED = """\
<entry xmlns="http://www.w3.org/2005/Atom"><id>https://localhost:5300/or%20ders?api-version=2024-05</id>\
<title type="text">or ders</title><published>2024-01-01T00:00:00.500Z</published>\
<updated>2024-01-01T00:00:00.501Z</updated><author><name>home</name></author>\
<link rel="self" href="https://localhost:5300/or%20ders?api-version=2024-05"/>\
<content type="application/xml">\
<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" \
xmlns:i="http://www.w3.org/2001/XMLSchema-instance">\
<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>\
<RequiresDuplicateDetection>false</RequiresDuplicateDetection><RequiresSession>false</RequiresSession>\
<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>\
<DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>\
<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>\
<MaxDeliveryCount>10</MaxDeliveryCount><EnableBatchedOperations>true</EnableBatchedOperations>\
<SizeInBytes>4096</SizeInBytes><MessageCount>14</MessageCount>\
<IsAnonymousAccessible>false</IsAnonymousAccessible><AuthorizationRules/><Status>Active</Status>\
<ForwardTo>sb://localhost:5300/other</ForwardTo><UserMetadata>&lt;&amp;&gt;&quot;</UserMetadata>\
<CreatedAt>2024-01-01T00:00:00.500Z</CreatedAt><UpdatedAt>2024-01-01T00:00:00.501Z</UpdatedAt>\
<AccessedAt>0001-01-01T00:00:00Z</AccessedAt><SupportOrdering>true</SupportOrdering>\
<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">\
<d2p1:ActiveMessageCount>5</d2p1:ActiveMessageCount>\
<d2p1:DeadLetterMessageCount>3</d2p1:DeadLetterMessageCount>\
<d2p1:ScheduledMessageCount>4</d2p1:ScheduledMessageCount>\
<d2p1:TransferMessageCount>0</d2p1:TransferMessageCount>\
<d2p1:TransferDeadLetterMessageCount>2</d2p1:TransferDeadLetterMessageCount></CountDetails>\
<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle><EnablePartitioning>false</EnablePartitioning>\
<EntityAvailabilityStatus>Available</EntityAvailabilityStatus><EnableExpress>false</EnableExpress>\
<MaxMessageSizeInKilobytes>256</MaxMessageSizeInKilobytes></QueueDescription></content></entry>"""


def test_the_answer_is_an_entry_to_the_byte(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.2 and 7.3: order, namespaces, prefix of CountDetails."""
    effect = found("or ders", forward_to="other", user_metadata='<&>"')
    answer = client.answer("PUT", "/or%20ders?api-version=2024-05", BARE, effect=effect)
    assert (answer.status, answer.content_type) == (201, "application/atom+xml;type=entry;charset=utf-8")
    assert answer.body.decode() == CREATED


def test_what_xml_cannot_carry_is_replaced(client: Client) -> None:
    answer = client.answer("GET", "/orders", effect=found(user_metadata="a\x00b\ud800c\U0001f600"))
    description = ElementTree.fromstring(answer.body).find(f"{ATOM}content/{CONNECT}QueueDescription")
    assert description is not None
    assert description.findtext(f"{CONNECT}UserMetadata") == "a\ufffdb\ufffdc\U0001f600"


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ("<LockDuration>P1X</LockDuration>", "The value of LockDuration cannot be read: 'P1X' is not"),
        ("<LockDuration/>", "The value of LockDuration cannot be read: '' is not an ISO 8601"),
        ("<MaxDeliveryCount>ten</MaxDeliveryCount>", "The value 'ten' of MaxDeliveryCount is not a whole"),
        ("<MaxDeliveryCount>1.0</MaxDeliveryCount>", "The value '1.0' of MaxDeliveryCount is not a whole"),
        ("<RequiresSession>yes</RequiresSession>", "The value 'yes' of RequiresSession is neither true"),
        ("<Status>Asleep</Status>", "The value 'Asleep' of Status is not one of Active, Disabled"),
    ],
)
def test_a_value_that_cannot_be_read_is_a_400_naming_it(
    client: Client, description: str, reason: str
) -> None:
    """Req: A-01."""
    body = PYTHON_ENTRY.format(f"<QueueDescription>{description}</QueueDescription>")
    answer = client.answer("PUT", "/orders", body)
    assert answer.status == 400
    assert detail(answer).startswith(reason)


def test_an_empty_name_is_a_400(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.8, [T] create_queue("")."""
    assert client.answer("PUT", "/?api-version=2024-05", BARE).status == 400
    assert client.answer("PUT", "/", BARE, if_match="*").status == 400
    assert client.answer("DELETE", "/").status == 400


def test_sending_back_the_tier_s_message_size_asks_for_nothing(client: Client) -> None:
    """Req: A-05. Clients update with all that they read, and setting the size is refused outside premium."""
    body = PYTHON_ENTRY.format(
        "<QueueDescription><MaxMessageSizeInKilobytes>{}</MaxMessageSizeInKilobytes></QueueDescription>"
    )
    assert client.command("PUT", "/orders", body.format(256)).description.max_message_size_kb is None
    assert client.command("PUT", "/orders", body.format(257)).description.max_message_size_kb == 257
    premium = Client(PREMIUM)
    assert premium.command("PUT", "/orders", body.format(1024)).description.max_message_size_kb is None
    answer = premium.answer("GET", "/orders", effect=found(max_message_size_kb=2048))
    assert b"<MaxMessageSizeInKilobytes>2048<" in answer.body


# Reading


def test_a_queue_is_looked_up_by_name(client: Client) -> None:
    """Req: A-01."""
    assert client.command("GET", "/Orders%2Feu?enrich=True") == LookUp(Address("Orders/eu"), REPLY_TO)
    assert client.answer("GET", "/orders", effect=found()).status == 200


@pytest.mark.parametrize("target", ["/orders?enrich=false", "/news/eu"])
def test_looking_up_an_absent_queue_or_topic_gives_an_empty_feed(client: Client, target: str) -> None:
    """Req: A-01. Source: wire contract 7.2, absent entity."""
    answer = client.ask("GET", target)
    if isinstance(answer, Pending):
        answer = answer.render(Failed(REPLY_TO, EntityNotFound("gone")))
    assert isinstance(answer, Response)
    assert (answer.status, answer.content_type) == (200, "application/atom+xml;type=feed;charset=utf-8")
    feed = ElementTree.fromstring(answer.body)
    assert feed.tag == f"{ATOM}feed"
    assert feed.findtext(f"{ATOM}title") == "Publicly Listed Services"
    assert not feed.findall(f"{ATOM}entry")


def test_looking_up_the_empty_name_gives_an_empty_feed(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.8, [T] get_queue_runtime_properties("")."""
    answer = client.answer("GET", "/?enrich=True")
    assert answer.status == 200
    assert b"<entry" not in answer.body


# Updating


def test_an_update_with_all_immutable_elements_goes_straight_to_the_broker(client: Client) -> None:
    """Req: A-01, A-07."""
    command = client.command("PUT", "/orders", FULL, if_match="*")
    assert isinstance(command, UpdateEntity)
    assert command.description.lock_duration_ms == 30_000
    answer = client.answer("PUT", "/orders", FULL, if_match="*", effect=found())
    assert answer.status == 200
    assert answer.content_type == "application/atom+xml;type=entry;charset=utf-8"


def test_an_update_without_them_keeps_what_cannot_be_changed_and_resets_the_rest(client: Client) -> None:
    """Req: A-01, A-07. Source: wire contract 7.8: an update replaces the settable set."""
    first = client.ask("PUT", "/orders", BARE, if_match="*")
    assert isinstance(first, Pending)
    assert first.command == LookUp(Address("orders"), REPLY_TO)
    second = first.render(found(requires_duplicate_detection=True, max_delivery_count=3, user_metadata="x"))
    assert isinstance(second, Pending)
    assert second.command == UpdateEntity(
        QueueDescription("orders", requires_duplicate_detection=True), REPLY_TO, (found().entity.version,)
    )
    last = second.render(found())
    assert isinstance(last, Response)
    assert last.status == 200


def test_an_update_of_an_absent_queue_is_a_404(client: Client) -> None:
    """Req: A-01."""
    for body in (BARE, FULL):
        failure = Failed(REPLY_TO, EntityNotFound("queue 'orders' was not found"))
        answer = client.answer("PUT", "/orders", body, if_match="*", effect=failure)
        assert answer.status == 404
        assert detail(answer).startswith("queue 'orders' was not found. TrackingId:")


def test_a_value_that_cannot_be_read_is_found_before_the_look_up_ends(client: Client) -> None:
    body = PYTHON_ENTRY.format("<QueueDescription><LockDuration>1</LockDuration></QueueDescription>")
    assert client.answer("PUT", "/orders", body, if_match="*", effect=found()).status == 400


# Deleting


def test_a_queue_is_deleted_by_name(client: Client) -> None:
    """Req: A-01."""
    assert client.command("DELETE", "/Orders%2Feu") == DeleteEntity("Orders/eu", REPLY_TO)
    answer = client.answer("DELETE", "/orders", effect=Done(REPLY_TO))
    assert (answer.status, answer.body) == (200, b"")


def test_a_lock_on_the_namespace_is_a_409_that_says_so(client: Client) -> None:
    """Req: A-03. Source: the same refusal of Azure's resource manager."""
    failure = Failed(REPLY_TO, InvalidOperation("'orders' cannot be deleted: the namespace has a lock"))
    answer = client.answer("DELETE", "/orders", effect=failure)
    assert answer.status == 409
    assert detail(answer).startswith("ScopeLocked: 'orders' cannot be deleted: the namespace has a lock. ")


def test_deleting_what_is_absent_is_a_404(client: Client) -> None:
    """Req: A-01."""
    failure = Failed(REPLY_TO, EntityNotFound("queue 'orders' was not found"))
    assert client.answer("DELETE", "/orders", effect=failure).status == 404


# Listing


@pytest.mark.parametrize(
    ("query", "skip", "top"),
    [
        ("", 0, 100),
        ("?$skip=7&$top=3", 7, 3),
        ("?%24skip=7&%24top=100", 7, 100),
        ("?$top=5000&$skip=0", 0, 100),
    ],
)
@pytest.mark.parametrize("path", ["/$Resources/queues", "/%24Resources/Queues", "/$resources/queues/"])
def test_a_list_is_asked_for_by_page(client: Client, path: str, query: str, skip: int, top: int) -> None:
    """Req: A-01. Source: wire contract 7.1."""
    assert client.command("GET", path + query) == ListEntities(EntityKind.QUEUE, skip, top, REPLY_TO)


def test_a_page_with_more_behind_it_has_a_second_link_to_the_next(client: Client) -> None:
    """Req: A-01. Source: wire contract 7.2: Python pages on exactly two links and reads both numbers."""
    effect = EntitiesFound(REPLY_TO, [view("a"), view("b")], more=True)
    answer = client.answer("GET", "/$Resources/queues?$skip=4&$top=2&api-version=2024-05", effect=effect)
    assert answer.content_type == "application/atom+xml;type=feed;charset=utf-8"
    assert links(answer) == [
        "https://localhost:5300/$Resources/queues?api-version=2024-05&%24skip=4&%24top=2",
        "https://localhost:5300/$Resources/queues?api-version=2024-05&%24skip=6&%24top=2",
    ]
    feed = ElementTree.fromstring(answer.body)
    assert [entry.findtext(f"{ATOM}title") for entry in feed.findall(f"{ATOM}entry")] == ["a", "b"]


def test_the_last_page_and_a_page_beyond_the_end_have_one_link(client: Client) -> None:
    """Req: A-01."""
    for entities in ([view("a")], []):
        effect = EntitiesFound(REPLY_TO, entities, more=False)
        assert len(links(client.answer("GET", "/$Resources/queues?$skip=9", effect=effect))) == 1


@pytest.mark.parametrize("query", ["$skip=-1", "$skip=x", "$top=0", "$top=", "$skip=1e3", "$top=" + "9" * 10])
def test_page_numbers_out_of_range_are_a_400(client: Client, query: str) -> None:
    assert client.answer("GET", f"/$Resources/queues?{query}").status == 400


# The namespace


@pytest.mark.parametrize(
    ("limits", "sku", "units"), [(STANDARD, "Standard", None), (PREMIUM, "Premium", "1")]
)
def test_the_namespace_shows_name_and_tier(limits: TierLimits, sku: str, units: str | None) -> None:
    """Req: A-01, A-05. Source: wire contract 7.7."""
    answer = Client(limits).answer("GET", "/$namespaceinfo?api-version=2024-05")
    assert answer.status == 200
    info = ElementTree.fromstring(answer.body).find(f"{ATOM}content/{CONNECT}NamespaceInfo")
    assert info is not None
    assert info.findtext(f"{CONNECT}MessagingSKU") == sku
    assert info.findtext(f"{CONNECT}MessagingUnits") == units
    assert info.findtext(f"{CONNECT}Name") == "home"
    assert info.findtext(f"{CONNECT}CreatedTime") == "2023-12-31T23:59:59.500Z"


# Refusals


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (ArgumentInvalid("a"), 400),
        (ArgumentOutOfRange("a"), 400),
        (EntityAlreadyExists("a"), 409),
        (InvalidOperation("a"), 403),
        (QuotaExceeded("a"), 403),
        (NotSupported("a"), 400),  # not in the tier, which the service answers so
        (ServerBusy("a"), 503),
    ],
)
def test_what_the_broker_refuses_has_its_status(client: Client, failure: Any, status: int) -> None:
    """Req: A-01. Source: wire contract 7.2."""
    answer = client.answer("PUT", "/orders", BARE, effect=Failed(REPLY_TO, failure))
    assert answer.status == status


def test_an_invalid_operation_is_told_from_a_full_quota_by_its_sub_code(client: Client) -> None:
    """Source: wire contract 7.2, 403: what the JavaScript client looks for."""
    for failure, expected in ((InvalidOperation("a"), True), (QuotaExceeded("a"), False)):
        answer = client.answer("PUT", "/orders", BARE, effect=Failed(REPLY_TO, failure))
        assert ("SubCode=40301." in detail(answer)) is expected


def test_a_refusal_carries_the_tracking_id_of_its_log_line(client: Client) -> None:
    """Req: T-02."""
    failure = Failed(REPLY_TO, EntityAlreadyExists("queue 'orders' exists already"))
    answer = client.answer("PUT", "/orders", BARE, effect=failure)
    assert detail(answer) == (
        "queue 'orders' exists already. TrackingId:6c1b1f2e-0000-4000-8000-000000000001_G0, "
        "SystemTracker:localhost:5300:orders, Timestamp:2024-01-01T00:00:00"
    )
    assert client.logged == [
        (
            "administration request refused",
            {
                "tracking_id": "6c1b1f2e-0000-4000-8000-000000000001_G0",
                "method": "PUT",
                "path": "orders",
                "status": 409,
                "reason": "queue 'orders' exists already",
            },
        )
    ]


def test_what_a_client_wrote_into_its_path_cannot_break_the_answer(client: Client) -> None:
    answer = client.answer("PUT", "/%00%3Cb%3E%26", b"")
    assert "SystemTracker:localhost:5300:\ufffd<b>&," in detail(answer)


@pytest.mark.parametrize("method", ["POST", "PATCH", "OPTIONS", "HEAD"])
@pytest.mark.parametrize(
    "target",
    [
        "/orders", "/", "/$namespaceinfo", "/$Resources/queues", "/$Resources/topics", "/t/subscriptions",
        "/t/subscriptions/s", "/t/subscriptions/s/rules", "/t/subscriptions/s/rules/r",
    ],
)  # fmt: skip
def test_other_methods_are_a_405_that_names_those_served(client: Client, method: str, target: str) -> None:
    answer = client.answer(method, target)
    assert answer.status == 405
    assert answer.headers[0][0] == "Allow"
    assert "GET" in answer.headers[0][1]


# Authorization


def test_without_a_token_nothing_is_answered(client: Client) -> None:
    """Req: R-04."""
    for method, target in (
        ("GET", "/orders"),
        ("PUT", "/orders"),
        ("GET", "/$namespaceinfo"),
        ("POST", "/x"),
    ):
        answer = client.answer(method, target, authorization="")
        assert answer.status == 401
        assert detail(answer).startswith("MissingToken: ")


@pytest.mark.parametrize(
    ("resource", "name", "key", "expires_ms", "reason"),
    [
        ("https://localhost", "root", "wrong", NOW_MS + 60_000, "InvalidSignature: "),
        ("https://localhost", "unknown", "key", NOW_MS + 60_000, "InvalidSignature: "),
        ("https://localhost", "root", "key", NOW_MS - 60_000, "ExpiredToken: "),
        ("https://localhost/invoices", "root", "key", NOW_MS + 60_000, "InvalidAudience: "),
        ("https://localhost", "watcher", "key", NOW_MS + 60_000, "Manage,EntityRead claims required"),
    ],
)
def test_a_wrong_token_is_a_401_that_says_why(
    client: Client, resource: str, name: str, key: str, expires_ms: int, reason: str
) -> None:
    """Req: R-04. Source: wire contract 7.1: without Manage 401 too."""
    token = generate(resource, name, key, expires_ms)
    answer = client.answer("GET", "/orders", authorization=token)
    assert answer.status == 401
    assert detail(answer).startswith(reason)
    logged = repr(client.logged)
    assert token not in logged
    assert re.search("sig=", logged) is None


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_change_without_manage_is_a_401_that_names_the_action(client: Client, method: str) -> None:
    """Req: R-04. Source: wire contract C19."""
    token = generate("https://localhost", "watcher", "key", NOW_MS + 60_000)
    answer = client.answer(method, "/orders", BARE, authorization=token)
    assert answer.status == 401
    assert detail(answer).startswith("Authorization failed for specified action: Manage,EntityWrite. ")


def test_a_token_for_the_entity_or_of_the_second_key_will_do(client: Client) -> None:
    """Req: R-04. .NET signs each request's own URI, with its query."""
    for resource, key in (
        ("https://localhost/orders?api-version=2021-05", "key"),
        ("sb://localhost/", "second"),
    ):
        token = generate(resource, "root", key, NOW_MS + 60_000)
        assert isinstance(client.ask("GET", "/orders", authorization=token), Pending)


FORWARDING = PYTHON_ENTRY.format(
    "<QueueDescription><RequiresDuplicateDetection>false</RequiresDuplicateDetection>"
    "<RequiresSession>false</RequiresSession><EnablePartitioning>false</EnablePartitioning>"
    "<AuthorizationRules/><ForwardTo>sb://localhost/last</ForwardTo>"
    "<ForwardDeadLetteredMessagesTo>https://localhost/dead/</ForwardDeadLetteredMessagesTo>"
    "</QueueDescription>"
)


def test_forwarding_needs_send_on_where_messages_are_to_go(client: Client) -> None:
    """Req: R-04, F-01. The namespace's token will do, else one in a header for each target.

    A refusal says which right is missing where, whatever is wrong with the token.
    """
    lacking = "Unauthorized access. 'Send' claim(s) are required on '{}' to forward to it"
    own_rule = generate("sb://localhost/last", "no-such-rule", "key", NOW_MS + 60_000)
    own = generate("https://localhost/orders", "root", "key", NOW_MS + 60_000)
    last = generate("sb://localhost/last", "watcher", "key", NOW_MS + 60_000)
    dead = generate("sb://localhost/dead", "watcher", "key", NOW_MS + 60_000)
    listener = generate("sb://localhost", "listener", "key", NOW_MS + 60_000)
    for headers, refused in (
        ({}, None),
        (
            {
                "authorization": own,
                "servicebussupplementaryauthorization": last,
                "servicebusdlqsupplementaryauthorization": dead,
            },
            None,
        ),
        ({"authorization": own}, f"{lacking.format('last')}: InvalidAudience: "),
        (
            {"authorization": own, "servicebussupplementaryauthorization": last},
            f"{lacking.format('dead')}: InvalidAudience: ",
        ),
        (
            {"authorization": own, "servicebusdlqsupplementaryauthorization": dead},
            f"{lacking.format('last')}: InvalidAudience: ",
        ),
        (
            {"servicebussupplementaryauthorization": own_rule},
            f"{lacking.format('last')}: InvalidSignature: ",
        ),
        (
            {"servicebussupplementaryauthorization": listener},
            f"{lacking.format('last')}. TrackingId",
        ),
    ):
        for if_match in ({}, {"if_match": "*"}):
            asked = client.ask("PUT", "/orders", FORWARDING, **headers, **if_match)
            if refused is None:
                assert isinstance(asked, Pending)
            else:
                assert isinstance(asked, Response)
                assert asked.status == 401
                assert detail(asked).startswith(refused)


def test_an_update_that_first_looks_up_checks_its_forwards_too(client: Client) -> None:
    """Req: R-04, F-01."""
    own = generate("https://localhost/orders", "root", "key", NOW_MS + 60_000)
    body = PYTHON_ENTRY.format("<QueueDescription><ForwardTo>last</ForwardTo></QueueDescription>")
    answer = client.answer("PUT", "/orders", body, if_match="*", authorization=own, effect=found())
    assert answer.status == 401


FORWARD = PYTHON_ENTRY.format("<QueueDescription><ForwardTo>{}</ForwardTo></QueueDescription>")


@pytest.mark.parametrize(
    ("given_as", "name"),
    [
        ("sb://localhost/last", "last"),
        ("http://localhost/last", "last"),
        ("https://localhost:5300/a/last/", "a/last"),
        ("https://localhost/a%2Flast", "a/last"),
        ("SB://LocalHost:1/Last", "Last"),
        ("https://127.0.0.1:5300/last", "last"),
        ("https://[::1]/last", "last"),
        ("sb://Broker.LAN./last", "last"),
        ("amqps://broker.lan:65535//last", "last"),
        pytest.param("sb://localhost/last" + "/" * 2_029, "last", id="2048 characters"),
    ],
)
def test_a_forward_by_an_address_comes_back_as_it_was_given(client: Client, given_as: str, name: str) -> None:
    """Req: A-01, F-01. Source: wire contract C14, C41."""
    description = client.command("PUT", "/orders", FORWARD.format(given_as)).description
    assert (description.forward_to, description.forward_to_given) == (name, given_as)
    for host in ("localhost:5300", "10.1.2.3"):
        effect = found(forward_to=name, forward_to_given=given_as)
        answer = client.answer("GET", "/orders", effect=effect, host=host)
        assert f"<ForwardTo>{given_as}</ForwardTo>" in answer.body.decode()


@pytest.mark.parametrize(("given_as", "name"), [("last", "last"), ("/a/last/", "a/last")])
def test_a_forward_by_a_name_comes_back_as_an_address(client: Client, given_as: str, name: str) -> None:
    """Req: A-01, F-01. Source: wire contract C14. The host is the one that the client asks."""
    description = client.command("PUT", "/orders", FORWARD.format(given_as)).description
    assert (description.forward_to, description.forward_to_given) == (name, None)
    for host in ("localhost:5300", "10.1.2.3"):
        answer = client.answer("GET", "/orders", effect=found(forward_to=name), host=host)
        assert f"<ForwardTo>sb://{host}/{name}</ForwardTo>" in answer.body.decode()


def test_no_forward_has_no_element(client: Client) -> None:
    """Req: A-01, F-01."""
    description = client.command("PUT", "/orders", FORWARD.format("")).description
    assert (description.forward_to, description.forward_to_given) == (None, None)
    assert b"<ForwardTo" not in client.answer("GET", "/orders", effect=found()).body


@pytest.mark.parametrize("element", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
@pytest.mark.parametrize(
    ("given_as", "text"),
    [
        ("sb://elsewhere.example/last", "names another host"),
        ("sb://myns.servicebus.windows.net/last", "names another host"),
        ("sb://localhost.example/last", "names another host"),
        ("sb://10.1.2.3/last", "names another host"),
        ("sb://user@localhost/last", "names another host"),
        ("sb://localhost:65536/last", "names another host"),
        ("sb://localhost:x/last", "names another host"),
        ("sb:///last", "names another host"),
        ("sb://localhost/last?a=b", "is neither a name nor an address such as sb://host/name"),
        ("sb://localhost/last#a", "is neither a name nor an address such as sb://host/name"),
        ("ftp://localhost/last", "is neither a name nor an address such as sb://host/name"),
        ("sb://localhost/last" + "/" * 2_030, "is longer than 2048 characters"),
        ("sb://localhost/", "is an address that names no entity"),
        ("sb://localhost", "is an address that names no entity"),
        ("sb://localhost/" + "x" * 261, "is longer than a name can be"),
        ("x" * 261, "is longer than a name can be"),
    ],
)
def test_a_forward_that_names_no_entity_of_ours_is_a_400(
    client: Client, element: str, given_as: str, text: str
) -> None:
    """Req: A-01, F-01, R-05. Source: wire contract C14, C41."""
    body = FORWARD.format(given_as).replace("ForwardTo>", f"{element}>")
    answer = client.answer("PUT", "/orders", body)
    assert answer.status == 400
    assert text in detail(answer)


def test_the_host_that_a_request_asks_is_ours(client: Client) -> None:
    """Req: A-01, F-01. Source: wire contract C41. Whatever its port and case."""
    body = FORWARD.format("sb://QUEUES.example/last")
    assert client.answer("PUT", "/orders", body).status == 400
    assert client.command("PUT", "/orders", body, host="queues.example:8080").description.forward_to == "last"


@pytest.mark.parametrize("complete", [True, False])
def test_a_foreign_address_that_is_there_may_be_sent_back(client: Client, complete: bool) -> None:
    """Req: A-01, A-07. Clients that reach the broker by other names update what they have read."""
    foreign = "sb://elsewhere.example/last"
    body = FORWARDING.replace("sb://localhost/last", foreign) if complete else FORWARD.format(foreign)
    looking = client.ask("PUT", "/orders", body, if_match="*")
    assert isinstance(looking, Pending)
    assert isinstance(looking.command, LookUp)
    updating = looking.render(found(forward_to="last", forward_to_given=foreign))
    assert isinstance(updating, Pending)
    assert isinstance(updating.command, UpdateEntity)
    assert isinstance(updating.command.description, QueueDescription)
    assert updating.command.description.forward_to_given == foreign
    for other in (None, "sb://elsewhere.example/LAST"):
        refused = looking.render(found(forward_to="last", forward_to_given=other))
        assert isinstance(refused, Response)
        assert refused.status == 400


def test_a_token_for_one_entity_does_not_reach_another_through_an_odd_path(client: Client) -> None:
    """Req: R-04."""
    token = generate("https://localhost/orders", "root", "key", NOW_MS + 60_000)
    for target in (
        "/",
        "/other",
        "/sb://localhost/orders",
        "/sb:%2F%2Flocalhost%2Forders",
        "/$Resources/queues",
    ):
        assert client.answer("GET", target, authorization=token).status == 401


@pytest.mark.parametrize("token", ["Bearer abc", "bearer ", "nonsense", "SharedAccessSignature sr=a"])
def test_bearer_and_malformed_tokens_are_a_401(client: Client, token: str) -> None:
    """Req: R-04."""
    assert client.answer("GET", "/orders", authorization=token).status == 401


def test_with_authorization_off_no_token_is_asked_for() -> None:
    """Req: R-04. Nor for an entity that is forwarded to; a wrong token is as good as none."""
    client = Client(authority=OpenAuthority())
    forwarding = PYTHON_ENTRY.format("<QueueDescription><ForwardTo>other</ForwardTo></QueueDescription>")
    for token in ("", "SharedAccessSignature nonsense", "Bearer x"):
        assert isinstance(client.ask("GET", "/orders", authorization=token), Pending)
        assert isinstance(client.ask("PUT", "/orders", forwarding, authorization=token), Pending)
