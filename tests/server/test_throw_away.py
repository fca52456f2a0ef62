"""Namespaces for tests: made by a request or by naming them, ended by their lease, with a clock to move."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
import uuid
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from peeklock.auth import DEVELOPMENT_KEY, generate
from peeklock.demo.broker import BrokerProcess
from peeklock.server.app import Broker
from peeklock.server.namespaces.throw_away import Lease
from peeklock.server.settings import Settings
from tests.kept_keys import KeptKeys

CONFIG = {"UserConfig": {"Namespaces": [{"Name": "any", "Queues": [{"Name": "orders"}]}]}}


class Api:
    """The HTTP API of a broker, without a key unless given."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(
        self, method: str, path: str, body: Any = None, *, key: tuple[str, str] | None = None
    ) -> Any:
        """Return the JSON of an answer, or its status where it is refused."""
        headers = {"Content-Type": "application/json"}
        if key is not None:
            headers["Authorization"] = generate("sb://localhost/", *key, round(time.time() + 600) * 1000)
        data = None if body is None else json.dumps(body).encode()
        url = f"http://localhost:{self.port}{path}"
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data, headers, method=method), timeout=30
            ) as answer:
                text = answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code
        return json.loads(text) if text else None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), ["--namespaces=on-use", "--durability=os"]) as made:
        yield made


@pytest.fixture
def api(broker: BrokerProcess) -> Api:
    return Api(broker.http_port)


def send(text: str, body: str, queue: str = "orders") -> None:
    client = ServiceBusClient.from_connection_string(text, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(body))


def bodies(text: str, queue: str = "orders") -> list[str]:
    client = ServiceBusClient.from_connection_string(text, retry_total=0)
    with client, client.get_queue_receiver(queue) as receiver:
        return [str(message) for message in receiver.peek_messages(10)]


# Made by a request


def test_a_namespace_is_made_with_its_configuration_and_ended_by_its_owner(api: Api) -> None:
    one = api("POST", "/$api/v1/namespaces", CONFIG)
    two = api("POST", "/$api/v1/namespaces", CONFIG)
    assert one["kind"] == "throw-away"
    assert one["lease"] == "PT1H"
    send(one["connectionString"], "for one")
    assert bodies(one["connectionString"]) == ["for one"]
    assert bodies(two["connectionString"]) == []
    shown = {each["name"]: each["kind"] for each in api("GET", "/$api/v1/namespaces")["namespaces"]}
    assert shown["sbemulatorns"] == "default"
    assert shown[one["name"]] == shown[two["name"]] == "throw-away"
    api("DELETE", f"/$api/v1/namespaces/{one['name']}")
    assert api("GET", f"/$api/v1/namespaces/{one['name']}") == 404
    assert bodies(two["connectionString"]) == []


def test_a_client_of_a_namespace_that_is_deleted_is_told(api: Api) -> None:
    made = api("POST", "/$api/v1/namespaces", CONFIG)
    with ServiceBusClient.from_connection_string(made["connectionString"], retry_total=0) as client:
        sender = client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("a"))
        api("DELETE", f"/$api/v1/namespaces/{made['name']}")
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("b"))


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/$api/v1/namespaces?name=a%2Fb", None, 400),
        ("/$api/v1/namespaces?name=%C3%A4%20%00", None, 400),
        ("/$api/v1/namespaces?name=-a", None, 400),
        ("/$api/v1/namespaces?name=" + "a" * 64, None, 400),
        ("/$api/v1/namespaces?name=SBEMULATORNS", None, 409),
        ("/$api/v1/namespaces?name=LocalHost", None, 400),
        ("/$api/v1/namespaces?lease=soon", None, 400),
        ("/$api/v1/namespaces?lease=PT0S", None, 400),
        ("/$api/v1/namespaces", {"UserConfig": {}}, 400),
        ("/$api/v1/namespaces/nowhere/clock", {"advance": "PT1S"}, 404),
        ("/$api/v1/namespaces/sbemulatorns/clock", {}, 400),
        ("/$api/v1/namespaces/sbemulatorns/clock", {"advance": "-PT1S"}, 400),
        ("/$api/v1/namespaces/sbemulatorns/clock", {"advance": "P9999D"}, 400),
        ("/$api/v1/namespaces/sbemulatorns/clock", [1], 400),
    ],
)
def test_what_cannot_be_done_is_refused(api: Api, path: str, body: Any, status: int) -> None:
    before = api("GET", "/$api/v1/namespaces")
    assert api("POST", path, body) == status
    assert api("GET", "/$api/v1/namespaces") == before


def test_the_default_namespace_cannot_be_deleted(api: Api) -> None:
    assert api("DELETE", "/$api/v1/namespaces/sbemulatorns") == 409


# Made by naming it


def named(broker: BrokerProcess, name: str, key: str = DEVELOPMENT_KEY) -> str:
    where = f"Endpoint=sb://localhost:{broker.amqp_port};"
    return f"{where}SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true;"


def test_a_key_name_that_is_not_known_makes_a_namespace(broker: BrokerProcess, api: Api) -> None:
    names = [uuid.uuid4().hex, f"test-{uuid.uuid4()}"]
    for name in names:
        made = api("PUT", "/orders?api-version=2021-05", key=(name, DEVELOPMENT_KEY))
        assert made == 400  # no description: but the namespace is there
        known = {each["name"] for each in api("GET", "/$api/v1/namespaces")["namespaces"]}
        assert name in known
        # Its key shows it, and no other.
        [own] = api("GET", "/$api/v1/namespaces", key=(name, DEVELOPMENT_KEY))["namespaces"]
        assert own["name"] == name
        other = api("GET", "/$api/v1/namespaces/sbemulatorns", key=(name, DEVELOPMENT_KEY))
        assert other == 404


def test_a_namespace_is_made_by_the_first_token_over_amqp(broker: BrokerProcess, api: Api) -> None:
    name = uuid.uuid4().hex
    with pytest.raises(ServiceBusError):
        bodies(named(broker, name))  # it is empty
    assert api("GET", f"/$api/v1/namespaces/{name}")["kind"] == "throw-away"


@pytest.mark.parametrize("name", ["with space", "a.b", "-a", "é", "a" * 64, "localhost"])
def test_a_key_name_that_is_no_host_label_makes_none(broker: BrokerProcess, api: Api, name: str) -> None:
    before = api("GET", "/$api/v1/namespaces")
    assert api("GET", "/$api/v1/namespaces", key=(name, DEVELOPMENT_KEY)) in (401, 403)
    assert api("GET", "/$api/v1/namespaces") == before


@pytest.mark.parametrize("name", ["sbemulatorns", "SBEmulatorNS"])
def test_the_name_of_the_default_namespace_is_a_key_of_it(broker: BrokerProcess, api: Api, name: str) -> None:
    """It makes none: that name is taken."""
    before = api("GET", "/$api/v1/namespaces")
    assert api("GET", "/$api/v1/namespaces", key=(name, DEVELOPMENT_KEY)) == before
    with pytest.raises(ServiceBusError):
        bodies(named(broker, name), f"no-such-queue-{uuid.uuid4()}")
    assert "a defect" not in broker.log.read_text()


def test_a_bad_signature_makes_none(broker: BrokerProcess, api: Api) -> None:
    before = api("GET", "/$api/v1/namespaces")
    with pytest.raises(ServiceBusError):
        bodies(named(broker, uuid.uuid4().hex, "not the key"))
    assert api("GET", "/$api/v1/namespaces") == before


# The clock


def test_a_clock_that_is_moved_lets_locks_lapse_and_schedules_fall_due(api: Api) -> None:
    """Req: P-02. Each at its time; the clock of another namespace stays."""
    made, other = (api("POST", "/$api/v1/namespaces", CONFIG) for _ in range(2))
    text = made["connectionString"]
    with ServiceBusClient.from_connection_string(text) as client:
        receiver, sender = client.get_queue_receiver("orders"), client.get_queue_sender("orders")
        sender.send_messages(ServiceBusMessage("locked"))
        [locked] = receiver.receive_messages(1, max_wait_time=20)
        again = client.get_queue_receiver("orders")
        assert again.receive_messages(1, max_wait_time=1) == []
        now = api("POST", f"/$api/v1/namespaces/{made['name']}/clock", {"advance": "PT61S"})["nowMs"]
        assert now > time.time() * 1000 + 60_000
        [lapsed] = again.receive_messages(1, max_wait_time=20)
        assert (str(lapsed), lapsed.delivery_count) == ("locked", 1)
        again.complete_message(lapsed)
        # Far beyond the token and idle time-outs of the client.
        api("POST", f"/$api/v1/namespaces/{made['name']}/clock", {"advance": "P30D"})
        sender.send_messages(ServiceBusMessage("later"))
        [later] = again.receive_messages(1, max_wait_time=20)
        assert str(later) == "later"
        again.complete_message(later)
        with pytest.raises(ServiceBusError):
            receiver.complete_message(locked)
    send(other["connectionString"], "there")
    client = ServiceBusClient.from_connection_string(other["connectionString"])
    with client, client.get_queue_receiver("orders") as receiver:
        [there] = receiver.receive_messages(1, max_wait_time=20)
        assert abs(there.enqueued_time_utc.timestamp() - time.time()) < 60  # type: ignore[union-attr]  # it is set
        receiver.complete_message(there)


# A reset

TOPICS = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "any",
                "Queues": [
                    {"Name": "orders", "Properties": {"ForwardDeadLetteredMessagesTo": "dead"}},
                    {"Name": "dead"},
                ],
                "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}, {"Name": "some"}]}],
            }
        ]
    }
}


def test_a_reset_removes_what_tests_have_left_and_keeps_links(api: Api) -> None:
    """Numbers go on, so that a late reader sees a gap and never a message twice."""
    made = api("POST", "/$api/v1/namespaces", TOPICS)
    path = f"/$api/v1/namespaces/{made['name']}/reset"
    before = api("GET", "/$api/v1/config", key=(made["name"], DEVELOPMENT_KEY))
    with ServiceBusClient.from_connection_string(made["connectionString"], retry_total=0) as client:
        sender, receiver = client.get_queue_sender("orders"), client.get_queue_receiver("orders")
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(days=1))
        [held] = receiver.receive_messages(1, max_wait_time=20)
        admin(made, "PUT", "extra")
        admin(made, "DELETE", "dead")
        admin(made, "DELETE", "news/Subscriptions/some")
        assert api("POST", path) is None
        assert api("GET", "/$api/v1/config", key=(made["name"], DEVELOPMENT_KEY)) == before
        with pytest.raises(ServiceBusError):
            receiver.complete_message(held)
        sender.send_messages(ServiceBusMessage("c"))
        [left] = receiver.receive_messages(1, max_wait_time=20)
        assert (str(left), left.sequence_number) == ("c", 4)
        admin(made, "PUT", "extra")
        assert api("POST", f"{path}?keep=entities") is None
        with pytest.raises(ServiceBusError):
            receiver.complete_message(left)
    assert bodies(made["connectionString"], "extra") == []
    assert api("POST", f"{path}?keep=messages") == 400
    assert api("POST", "/$api/v1/namespaces/nowhere/reset") == 404


def admin(made: Any, method: str, path: str) -> None:
    """Ask the administration of a namespace for an entity."""
    port = int(made["connectionString"].split(":")[2].split(";")[0])
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/>'
        "</content></entry>"
    )
    token = generate("sb://localhost/", made["name"], DEVELOPMENT_KEY, round(time.time() + 600) * 1000)
    request = urllib.request.Request(
        f"http://localhost:{port}/{path}?api-version=2021-05",
        body.encode() if method == "PUT" else None,
        {"Authorization": token, "Content-Type": "application/atom+xml"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status < 300


# With keys, and their number


def test_with_keys_of_its_own_a_broker_makes_none_unless_told(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, ["--auth=sas", "--throw-away=1"]) as broker:
        api = Api(broker.http_port)
        [rule] = KeptKeys(broker.data).load()
        root = (rule.name, rule.primary_key)
        assert api("POST", "/$api/v1/namespaces") == 401
        made = api("POST", "/$api/v1/namespaces?name=mine", CONFIG, key=root)
        send(made["connectionString"], "a")
        assert bodies(made["connectionString"]) == ["a"]
        own = ("mine", made["connectionString"].split("SharedAccessKey=")[1].split(";")[0])
        assert own[1] != DEVELOPMENT_KEY
        assert api("POST", "/$api/v1/namespaces", key=root) == 409  # one at a time
        assert api("POST", "/$api/v1/namespaces", key=own) == 409
        assert "nowMs" in api("POST", "/$api/v1/namespaces/mine/clock", {"advance": "PT1S"}, key=own)
        assert api("POST", "/$api/v1/namespaces/sbemulatorns/clock", {"advance": "PT1S"}, key=root) == 409
        assert api("DELETE", "/$api/v1/namespaces/mine", key=own) is None
        assert api("POST", "/$api/v1/namespaces?name=mine", key=root)["name"] == "mine"


def test_the_memory_of_ended_ones_is_freed() -> None:
    async def run() -> None:
        settings = Settings(None, None, "127.0.0.1", 0, 0, "memory", None, None, "standard", None)
        broker = Broker(settings)
        await broker.start()
        throw_away = broker.protocols.throw_away
        shards = []
        for _ in range(5):
            made = throw_away.make()
            shards.append(weakref.ref(made.shard))
            throw_away.end(made, "a test ended it")
        del made
        await throw_away.stop()
        throw_away.tick()
        assert [shard() for shard in shards] == [None] * 5
        broker.ask_to_stop()
        await broker.stopped()

    asyncio.run(run())


def test_a_thousand_are_made_and_end_by_their_lease() -> None:
    async def run() -> None:
        settings = Settings(None, None, "127.0.0.1", 0, 0, "memory", None, None, "standard", None)
        broker = Broker(settings)
        await broker.start()
        now_s = 0.0
        throw_away = broker.protocols.throw_away
        throw_away._clock_s = lambda: now_s
        made = [throw_away.make(f"n{number}", lease_s=10.0) for number in range(1_000)]
        with pytest.raises(Exception, match="1000 throw-away namespaces, the most"):
            throw_away.make()
        now_s = 9.0
        made[0].used = True
        throw_away.tick()
        assert throw_away.lease_of(made[0]) == Lease(10.0, 9.0)
        now_s = 10.0
        throw_away.tick()
        assert len(throw_away) == 1
        assert len(broker.registry) == 2
        await throw_away.stop()
        broker.ask_to_stop()
        assert await broker.stopped() == 0

    asyncio.run(run())
