"""The official administration client, sync and aio, on all that it offers, against a real broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import azure.servicebus.aio.management
import azure.servicebus.management
import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Blocking, Loop

CLIENTS = {"sync": azure.servicebus.management, "aio": azure.servicebus.aio.management}


def https(broker: BrokerProcess) -> str:
    return broker.connection_string.replace(f":{broker.amqp_port};", f":{broker.http_port};")


@pytest.fixture(scope="module")
def admins(broker: BrokerProcess, tls_pair: tuple[Path, Path]) -> Iterator[dict[str, Any]]:
    """A client of each form, without retries, so that the first answer is seen."""
    loop = Loop()
    made: dict[str, Any] = {}
    for form, module in CLIENTS.items():
        make = module.ServiceBusAdministrationClient.from_connection_string
        options = {"connection_verify": str(tls_pair[0]), "retry_total": 0}
        if form == "sync":
            made[form] = make(https(broker), **options)
        else:
            made[form] = Blocking(loop.run(make, https(broker), **options), loop)
    yield made
    for client in made.values():
        client.close()
    loop.close()


@pytest.fixture(params=["sync", "aio"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def admin(form: str, admins: dict[str, Any]) -> Any:
    return admins[form]


@pytest.fixture
def name(form: str, request: pytest.FixtureRequest) -> str:
    """Return a unique name, with a slash in it."""
    return f"administration/{form}/{request.node.originalname[5:35]}".rstrip("_")


def fresh(properties: Any) -> None:
    """Check the times and counts of a new entity."""
    now = datetime.now(UTC)
    for at in (properties.created_at_utc, properties.updated_at_utc):
        assert abs(now - at) < timedelta(minutes=1)
    assert properties.accessed_at_utc is not None


# Queues


def test_a_queue_with_every_setting(admin: Any, name: str) -> None:
    """Req: A-01, A-07"""
    admin.create_queue(f"{name}/target")
    settings: dict[str, Any] = {
        "auto_delete_on_idle": timedelta(days=1),
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": timedelta(hours=3),
        "duplicate_detection_history_time_window": timedelta(minutes=5),
        "enable_batched_operations": False,
        "enable_express": True,
        "enable_partitioning": False,
        "lock_duration": timedelta(seconds=13),
        "max_delivery_count": 14,
        "max_size_in_megabytes": 3072,
        "requires_duplicate_detection": True,
        "requires_session": False,
        "user_metadata": "a <note> & é",
    }
    made = admin.create_queue(name, **settings, forward_to=f"{name}/target")
    assert admin.get_queue(name.upper()).user_metadata == settings["user_metadata"]
    read = admin.get_queue(name)
    for queue in (made, read):
        assert queue.name == name
        assert {key: getattr(queue, key) for key in settings} == settings
        assert queue.forward_to.endswith(f"/{name}/target")
        assert (queue.status, queue.availability_status) == ("Active", "Available")
    read.lock_duration = timedelta(seconds=14)
    read.forward_to = None
    admin.update_queue(read, max_delivery_count=15, status="SendDisabled")
    changed = admin.get_queue(name)
    assert (changed.lock_duration, changed.max_delivery_count) == (timedelta(seconds=14), 15)
    assert (changed.status, changed.forward_to) == ("SendDisabled", None)
    about = dict(admin.get_queue(name), user_metadata="as a dict")
    admin.update_queue(about)
    assert admin.get_queue(name).user_metadata == "as a dict"
    admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)


def test_the_figures_of_a_queue(admin: Any, broker: BrokerProcess, name: str) -> None:
    """Req: A-01"""
    admin.create_queue(name)
    runtime = admin.get_queue_runtime_properties(name)
    fresh(runtime)
    assert runtime.size_in_bytes == runtime.total_message_count == runtime.active_message_count == 0
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender(name) as sender:
            sender.send_messages([ServiceBusMessage(b"x" * 100) for _ in range(3)])
            sender.schedule_messages(ServiceBusMessage(b"later"), datetime.now(UTC) + timedelta(days=1))
        with client.get_queue_receiver(name) as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=5)
            receiver.dead_letter_message(message)
            runtime = admin.get_queue_runtime_properties(name)
    assert runtime.active_message_count == 2
    assert (runtime.scheduled_message_count, runtime.dead_letter_message_count) == (1, 1)
    assert (runtime.transfer_message_count, runtime.transfer_dead_letter_message_count) == (0, 0)
    assert runtime.total_message_count == 4
    assert runtime.size_in_bytes > 300
    assert runtime.accessed_at_utc >= runtime.created_at_utc
    assert name in {each.name for each in admin.list_queues_runtime_properties()}
    admin.delete_queue(name)


# Topics and subscriptions


def test_a_topic_with_every_setting(admin: Any, name: str) -> None:
    """Req: A-01, A-07"""
    settings: dict[str, Any] = {
        "auto_delete_on_idle": timedelta(days=1),
        "default_message_time_to_live": timedelta(hours=3),
        "duplicate_detection_history_time_window": timedelta(minutes=5),
        "enable_batched_operations": False,
        "enable_express": True,
        "max_size_in_megabytes": 3072,
        "requires_duplicate_detection": True,
        "support_ordering": True,
        "user_metadata": "a note",
    }
    made = admin.create_topic(name, **settings)
    read = admin.get_topic(name)
    for topic in (made, read):
        assert {key: getattr(topic, key) for key in settings} == settings
    admin.update_topic(read, user_metadata="another", status="Disabled")
    about = dict(admin.get_topic(name))
    assert (about["user_metadata"], about["status"]) == ("another", "Disabled")
    admin.update_topic(about | {"status": "Active"})
    assert admin.get_topic(name).status == "Active"
    assert name in {each.name for each in admin.list_topics()}
    admin.create_subscription(name, "a")
    runtime = admin.get_topic_runtime_properties(name)
    fresh(runtime)
    assert (runtime.subscription_count, runtime.scheduled_message_count, runtime.size_in_bytes) == (1, 0, 0)
    assert name in {each.name for each in admin.list_topics_runtime_properties()}
    admin.delete_topic(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_topic(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription(name, "a")


def test_a_subscription_with_every_setting(admin: Any, broker: BrokerProcess, name: str) -> None:
    """Req: A-01, A-07"""
    admin.create_queue(f"{name}/dead")
    admin.create_topic(name)
    settings: dict[str, Any] = {
        "auto_delete_on_idle": timedelta(days=1),
        "dead_lettering_on_filter_evaluation_exceptions": False,
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": timedelta(hours=3),
        "enable_batched_operations": False,
        "lock_duration": timedelta(seconds=13),
        "max_delivery_count": 14,
        "requires_session": False,
        "user_metadata": "a note",
    }
    made = admin.create_subscription(
        name, "Every", **settings, forward_dead_lettered_messages_to=f"{name}/dead"
    )
    assert admin.get_subscription(name, "every").user_metadata == settings["user_metadata"]
    read = admin.get_subscription(name, "Every")
    for subscription in (made, read):
        assert subscription.name == "Every"
        assert {key: getattr(subscription, key) for key in settings} == settings
        assert subscription.forward_dead_lettered_messages_to.endswith(f"/{name}/dead")
    admin.update_subscription(name, read, max_delivery_count=15)
    assert admin.get_subscription(name, "Every").max_delivery_count == 15
    admin.update_subscription(name, dict(admin.get_subscription(name, "Every"), max_delivery_count=16))
    assert admin.get_subscription(name, "Every").max_delivery_count == 16
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_topic_sender(name) as sender:
            sender.send_messages([ServiceBusMessage(b"x"), ServiceBusMessage(b"y")])
        with client.get_subscription_receiver(
            name, "Every", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver:
            receiver.receive_messages(1, max_wait_time=5)
    runtime = admin.get_subscription_runtime_properties(name, "Every")
    fresh(runtime)
    assert (runtime.active_message_count, runtime.total_message_count) == (1, 1)
    [listed] = admin.list_subscriptions_runtime_properties(name)
    assert (listed.name, listed.active_message_count) == ("Every", 1)
    admin.delete_subscription(name, "Every")
    assert list(admin.list_subscriptions(name)) == []


# Rules


FILTERS: list[tuple[str, Any, Any]] = [
    ("true", TrueRuleFilter(), None),
    ("false", FalseRuleFilter(), None),
    (
        "sql",
        SqlRuleFilter(
            "@int < n AND @text = t",
            parameters={
                "@int": 1,
                "@long": 2**40,
                "@float": 1.5,
                "@true": True,
                "@text": "é <&>",
                "@time": datetime(2024, 1, 2, 3, 4, 5),  # noqa: DTZ001  # the client compares naive ones
                "@span": timedelta(days=1, microseconds=1),
            },
        ),
        SqlRuleAction("SET sys.Label = @label", parameters={"@label": "changed"}),
    ),
    (
        "correlation",
        CorrelationRuleFilter(
            correlation_id="a",
            message_id="b",
            to="c",
            reply_to="d",
            label="e",
            session_id="f",
            reply_to_session_id="g",
            content_type="h",
            properties={"text": "x", "int": 7, "float": 1.5, "true": True, "span": timedelta(seconds=1)},
        ),
        None,
    ),
]


def test_rules_of_every_kind(admin: Any, name: str) -> None:
    """Req: A-01, P-02"""
    admin.create_topic(name)
    admin.create_subscription(name, "a")
    for rule_name, filter_, action in FILTERS:
        admin.create_rule(name, "a", rule_name, filter=filter_, action=action)
    listed = {rule.name: rule for rule in admin.list_rules(name, "a")}
    assert list(listed) == sorted(["$Default", *(rule_name for rule_name, *_ in FILTERS)])
    for rule_name, filter_, action in FILTERS:
        read = admin.get_rule(name, "a", rule_name)
        for rule in (read, listed[rule_name]):
            assert type(rule.filter) is type(filter_)
            for key in ("sql_expression", "parameters", "properties", "label", "reply_to_session_id", "to"):
                read_value, value = (getattr(each, key, None) or None for each in (rule.filter, filter_))
                assert read_value == value or rule_name in ("true", "false"), key
            assert getattr(rule.action, "sql_expression", None) == getattr(action, "sql_expression", None)
            assert getattr(rule.action, "parameters", None) == getattr(action, "parameters", None)
            assert abs(datetime.now(UTC) - rule.created_at_utc) < timedelta(minutes=1)
    rule = admin.get_rule(name, "a", "sql")
    rule.filter = FalseRuleFilter()
    rule.action = None
    admin.update_rule(name, "a", rule)
    changed = admin.get_rule(name, "a", "sql")
    assert isinstance(changed.filter, FalseRuleFilter)
    assert changed.action is None
    admin.update_rule(name, "a", dict(changed), filter=SqlRuleFilter("x = 1"))
    assert admin.get_rule(name, "a", "sql").filter.sql_expression == "x = 1"
    with pytest.raises(HttpResponseError, match="at position 4"):
        admin.create_rule(name, "a", "wrong", filter=SqlRuleFilter("x ="))
    admin.delete_rule(name, "a", "$Default")
    with pytest.raises(ResourceNotFoundError):
        admin.get_rule(name, "a", "$Default")


# Pages and the namespace


@pytest.fixture(scope="module")
def pages(admins: dict[str, Any]) -> tuple[str, list[str]]:
    """A topic with more subscriptions than two pages hold, and their names."""
    name = "administration/pages"
    names = [f"s{number:03}" for number in range(251)]
    admins["sync"].create_topic(name)
    for each in names:
        admins["sync"].create_subscription(name, each)
    return name, names


def test_lists_of_more_than_two_pages(admin: Any, pages: tuple[str, list[str]]) -> None:
    """Req: A-01. Source: wire contract 7.1: a page has at most 100."""
    name, names = pages
    assert [each.name for each in admin.list_subscriptions(name)] == names
    assert [each.name for each in admin.list_subscriptions_runtime_properties(name)] == names
    assert admin.get_topic_runtime_properties(name).subscription_count == 251


def test_the_namespace(admin: Any) -> None:
    """Req: A-01"""
    about = admin.get_namespace_properties()
    assert (about.messaging_sku, about.messaging_units) == ("Standard", None)
    assert about.name
    for at in (about.created_at_utc, about.modified_at_utc):
        assert abs(datetime.now(UTC) - at) < timedelta(hours=1)
    again = admin.get_namespace_properties()
    assert again.created_at_utc == about.created_at_utc


def test_a_namespace_is_as_old_after_a_restart(tmp_path: Path, tls_pair: tuple[Path, Path]) -> None:
    """Req: A-01"""
    found = []
    for _ in range(2):
        arguments = (f"--tls-cert={tls_pair[0]}", f"--tls-key={tls_pair[1]}")
        with (
            BrokerProcess(tmp_path, arguments) as process,
            azure.servicebus.management.ServiceBusAdministrationClient.from_connection_string(
                https(process), connection_verify=str(tls_pair[0])
            ) as client,
        ):
            found.append(client.get_namespace_properties().created_at_utc)
            assert process.stop() == 0
    assert found[0] == found[1]


# Authorization rules


@pytest.mark.parametrize(("form", "kind"), [("sync", "queue"), ("aio", "topic")])
def test_an_entity_s_keys_hold_for_it_at_once(
    admin: Any, broker: BrokerProcess, name: str, kind: str
) -> None:
    """Req: R-04"""
    made = getattr(admin, f"create_{kind}")(
        name,
        authorization_rules=[
            AuthorizationRule(
                type="SharedAccessAuthorizationRule",
                claim_type="SharedAccessKey",
                claim_value="None",
                rights=[AccessRights.SEND],
                key_name="sender",
            )
        ],
    )
    [rule] = made.authorization_rules
    other = getattr(admin, f"create_{kind}")(f"{name}-other").name

    def refusal(key: str, to: str = name) -> type[Exception] | None:
        """Send with a key, and return how that was refused."""
        endpoint = broker.connection_string.partition(";")[0]
        text = f"{endpoint};SharedAccessKeyName=sender;SharedAccessKey={key};UseDevelopmentEmulator=true"
        with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            try:
                with getattr(client, f"get_{kind}_sender")(to) as sender:
                    sender.send_messages(ServiceBusMessage(b"signed"))
            except ServiceBusError as failure:
                return type(failure)
        return None

    def refusals(*attempts: tuple[str, ...]) -> list[type[Exception] | None]:
        """Run several functions side by side: the client sleeps most of the time."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda attempt: refusal(*attempt), attempts))

    first, second = rule.primary_key, rule.secondary_key
    assert refusals((first,), (second,), (first, other)) == [None, None, ServiceBusAuthenticationError]
    rule.primary_key = "rotated"
    getattr(admin, f"update_{kind}")(made)
    assert refusals((first,), (second,), ("rotated",)) == [ServiceBusAuthenticationError, None, None]
    rule.rights = ["Listen"]
    getattr(admin, f"update_{kind}")(made)
    assert refusal("rotated") is ServiceBusAuthorizationError
    getattr(admin, f"update_{kind}")(made, authorization_rules=[])
    assert refusal("rotated") is ServiceBusAuthenticationError
    logged = broker.log.read_text()
    assert name in logged
    assert not any(key in logged for key in (first, second, "rotated"))


# Refusals


def test_refusals_have_the_client_s_own_classes(admin: Any, name: str) -> None:
    """Req: A-01"""
    queue, topic = admin.create_queue(f"{name}/q"), admin.create_topic(f"{name}/t")
    subscription = admin.create_subscription(topic.name, "a")
    rule = admin.get_rule(topic.name, "a", "$Default")
    attempt: Callable[[], Any]
    for attempt in (
        lambda: admin.create_queue(queue.name.upper()),
        lambda: admin.create_topic(queue.name),
        lambda: admin.create_queue(topic.name),
        lambda: admin.create_subscription(topic.name, "A"),
        lambda: admin.create_rule(topic.name, "a", "$default"),
    ):
        with pytest.raises(ResourceExistsError):
            attempt()
    admin.delete_subscription(topic.name, "a")
    for attempt in (
        lambda: admin.update_subscription(topic.name, subscription),
        lambda: admin.update_rule(topic.name, "a", rule),
        lambda: admin.get_subscription_runtime_properties(topic.name, "a"),
        lambda: admin.create_subscription("none", "a"),
        lambda: admin.create_rule(topic.name, "a", "new"),
        lambda: admin.delete_queue("none"),
        lambda: admin.delete_rule(topic.name, "a", "$Default"),
    ):
        with pytest.raises(ResourceNotFoundError):
            attempt()
    for attempt in (
        lambda: admin.create_queue(""),
        lambda: admin.create_queue("a b"),
        lambda: admin.create_queue("x" * 261),
        lambda: admin.create_queue(f"{name}/new", lock_duration=timedelta(days=25)),
        lambda: admin.create_queue(f"{name}/new", forward_to="none"),
        lambda: admin.create_queue(f"{name}/new", forward_to="sb://elsewhere.example/none"),
        lambda: admin.create_queue(f"{name}/new", max_message_size_in_kilobytes=2048),
        lambda: admin.update_queue(queue, requires_session=True),
        lambda: admin.update_queue(queue, lock_duration=timedelta(minutes=6)),
        lambda: admin.update_queue(queue, forward_to="none"),
        lambda: admin.update_queue(queue, forward_to=f"https://elsewhere.example/{queue.name}"),
        lambda: admin.create_subscription(topic.name, "a/b"),
    ):
        with pytest.raises(HttpResponseError) as failure:
            attempt()
        assert failure.value.status_code in (400, 404)
        assert "TrackingId:" in str(failure.value)
    assert admin.get_queue(queue.name).lock_duration == queue.lock_duration


def test_a_wrong_key_is_no_key(form: str, broker: BrokerProcess, tls_pair: tuple[Path, Path]) -> None:
    """Req: R-04"""
    loop = Loop()
    module = CLIENTS[form]
    text = https(broker).replace("SharedAccessKey=", "SharedAccessKey=x")
    client = loop.run(
        module.ServiceBusAdministrationClient.from_connection_string,
        text,
        connection_verify=str(tls_pair[0]),
        retry_total=0,
    )
    with pytest.raises(ClientAuthenticationError):
        loop.run(client.get_namespace_properties)
    loop.run(client.close)
    loop.close()


def test_an_update_under_another_etag_is_refused(
    admins: dict[str, Any], broker: BrokerProcess, tls_pair: tuple[Path, Path]
) -> None:
    """Req: A-01. Over plain HTTPS, since the client sends `*` always."""
    from azure.core.pipeline.transport import RequestsTransport
    from azure.core.rest import HttpRequest

    from peeklock.auth import DEVELOPMENT_KEY, DEVELOPMENT_KEY_NAME, generate

    admins["sync"].create_queue("administration/etag")
    url = f"https://localhost:{broker.http_port}/administration%2Fetag"
    expires_at_ms = int(datetime.now(UTC).timestamp() * 1000) + 60_000
    token = generate(url, DEVELOPMENT_KEY_NAME, DEVELOPMENT_KEY, expires_at_ms)

    def ask(method: str, body: bytes = b"", **headers: str) -> Any:
        headers = {"Authorization": token} | {key.replace("_", "-"): value for key, value in headers.items()}
        with RequestsTransport(connection_verify=str(tls_pair[0])) as transport:
            answer = transport.send(HttpRequest(method, url, headers=headers, content=body))
            answer.read()
            return answer

    first = ask("GET")
    etag = first.headers["ETag"]
    entry = (
        b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription>'
        b"<UserMetadata>%s</UserMetadata></QueueDescription></content></entry>"
    )
    second = ask("PUT", entry % b"first", If_Match=etag)
    assert (second.status_code, second.headers["ETag"] != etag) == (200, True)
    assert ask("PUT", entry % b"second", If_Match=etag).status_code == 412
    assert ask("DELETE", If_Match=etag).status_code == 412
    assert admins["sync"].get_queue("administration/etag").user_metadata == "first"
    assert ask("DELETE", If_Match=second.headers["ETag"]).status_code == 200
