"""Keys that may only send or only receive, used by the official client."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.demo.broker import READY
from tests.interop.clients import Api, Background, Links

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [{"Name": "q"}],
                "Topics": [{"Name": "t", "Subscriptions": [{"Name": "a"}, {"Name": "b"}]}],
            }
        ],
        "Logging": {"Type": "Console"},
    }
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """AMQP and administration port of a broker with one key that may send and one that may listen."""
    folder = tmp_path_factory.mktemp("rights")
    config = folder / "Config.json"
    config.write_text(json.dumps(CONFIG))
    command = [sys.executable, "-m", "tests.interop.rights_broker", str(folder / "data"), str(config)]
    root = Path(__file__).parents[2]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    ready = READY.match(process.stdout.readline().rstrip())
    assert ready is not None, (folder / "log").read_text()
    yield int(ready[2]), int(ready[3])
    process.terminate()
    assert process.wait(15) == 0
    process.stdout.close()


@pytest.fixture
def client(api: Api, ports: tuple[int, int]) -> Iterator[Callable[[str], Any]]:
    """Return a client with the key of a rule."""
    made: list[Any] = []

    def make(rule: str) -> Any:
        made.append(api.client(_connection_string(ports[0], rule), retry_total=0))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _client(port: int, rule: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(_connection_string(port, rule), retry_total=0)


def _connection_string(port: int, rule: str) -> str:
    keys = f"SharedAccessKeyName={rule};SharedAccessKey={rule}-key"
    return f"Endpoint=sb://localhost:{port};{keys};UseDevelopmentEmulator=true;"


def test_a_key_that_may_send_sends_and_cannot_receive(client: Callable[[str], Any]) -> None:
    """Req: R-04, T-03. Source: wire contract 1.7: a missing right is reported at attach."""
    sender = client("sender").get_queue_sender("q")
    sender.send_messages(ServiceBusMessage("hello"))
    sender.close()
    with pytest.raises(ServiceBusAuthorizationError):
        client("sender").get_queue_receiver("q").receive_messages(max_wait_time=5)


def test_a_key_that_may_listen_receives_and_cannot_send(client: Callable[[str], Any]) -> None:
    """Req: R-04, T-03"""
    receiver = client("listener").get_queue_receiver("q")
    receiver.peek_messages()
    receiver.close()
    with pytest.raises(ServiceBusAuthorizationError):
        client("listener").get_queue_sender("q").send_messages(ServiceBusMessage("hello"))


def test_a_key_opens_the_subscriptions_of_what_it_belongs_to(
    ports: tuple[int, int], background: Background
) -> None:
    """That of a topic sends to it and receives from all its subscriptions, and from nothing else; that of a
    subscription receives from this one, its dead letters too, and cannot send.

    Req: R-04, P-01
    """
    with ExitStack() as stack:
        of_topic, of_subscription, sender, listener = (
            Links(stack.enter_context(_client(ports[0], rule)), background)
            for rule in ("of-topic", "of-subscription", "sender", "listener")
        )
        stack.callback(background.join)
        allowed = (
            of_topic.get_topic_sender("t"),
            of_topic.get_subscription_receiver("t", "a"),
            of_topic.get_subscription_receiver("t", "b"),
            of_subscription.get_subscription_receiver("t", "a"),
            of_subscription.get_subscription_receiver("t", "a", sub_queue=ServiceBusSubQueue.DEAD_LETTER),
        )
        refused = (
            of_topic.get_queue_receiver("q"),
            of_subscription.get_subscription_receiver("t", "b"),
            of_subscription.get_topic_sender("t"),
            sender.get_subscription_receiver("t", "a"),
            listener.get_topic_sender("t"),
        )
        for link in (*allowed, *refused):
            stack.enter_context(link)
        for link in allowed:
            link.opened()
        for link in refused:
            with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)):
                link.opened()


@pytest.mark.parametrize("rule", ["sender", "listener"])
def test_neither_may_manage(ports: tuple[int, int], rule: str) -> None:
    """Req: R-04, A-01"""
    with (
        ServiceBusAdministrationClient.from_connection_string(
            _connection_string(ports[1], rule), connection_verify=False
        ) as administration,
        pytest.raises(HttpResponseError) as refused,
    ):
        administration.get_queue("q")
    assert refused.value.status_code == 401
