"""The limits of one namespace: connections, messages a second, size. Another one does not feel them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from peeklock.demo.broker import BrokerProcess
from peeklock.server.shard.back_pressure import TokenBucket

LIMITS = {
    "slow": {"MaxMessagesPerSecond": 20},
    "small": {"MaxSizeInMegabytes": 1},
    "narrow": {"MaxConnections": 1, "HostNames": ["narrow.example.org"]},
    "premium": {"Tier": "Premium"},
    "free": {},
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("limits")
    namespaces = [
        {"Name": name, "Properties": limits, "Queues": [{"Name": "orders"}]}
        for name, limits in LIMITS.items()
    ]
    (folder / "Config.json").write_text(
        json.dumps({"UserConfig": {"Namespaces": [{"Name": "first"}, *namespaces]}})
    )
    with BrokerProcess(folder, [f"--config={folder / 'Config.json'}", "--durability=os"]) as made:
        yield made


def client(broker: BrokerProcess, name: str) -> ServiceBusClient:
    text = (
        f"Endpoint=sb://localhost:{broker.amqp_port};SharedAccessKeyName={name};"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )
    return ServiceBusClient.from_connection_string(text, retry_total=0)


def test_more_messages_a_second_than_allowed_are_answered_server_busy(broker: BrokerProcess) -> None:
    with client(broker, "slow") as slow, slow.get_queue_sender("orders") as sender:
        began = time.monotonic()
        refused = [failure for _ in range(60) if (failure := _why_refused(sender)) is not None]
        took_s = time.monotonic() - began
        assert refused
        assert all("MaxMessagesPerSecond" in str(failure) for failure in refused)
        assert 60 - len(refused) <= 20 * (took_s + 2)
        until_s = time.monotonic() + 20
        while _why_refused(sender) is not None:  # the broker's clock gives it a new second
            assert time.monotonic() < until_s
    with client(broker, "free") as free, free.get_queue_sender("orders") as sender:
        for number in range(60):
            sender.send_messages(ServiceBusMessage(str(number)))


def test_a_namespace_that_is_full_refuses_sends_until_there_is_room(broker: BrokerProcess) -> None:
    with client(broker, "small") as small, small.get_queue_sender("orders") as sender:
        large = ServiceBusMessage(bytes(100_000))
        until_s = time.monotonic() + 20
        while (failure := _why_refused(sender, large)) is None:  # its size is looked at from time to time
            assert time.monotonic() < until_s
        assert isinstance(failure, ServiceBusQuotaExceededError)
        assert "MaxSizeInMegabytes" in str(failure)
        with small.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver:
            while receiver.receive_messages(10, max_wait_time=1):
                pass
        until_s = time.monotonic() + 20
        while _why_refused(sender) is not None:
            assert time.monotonic() < until_s


def test_one_connection_more_than_allowed_is_refused(broker: BrokerProcess) -> None:
    """Its peer is told by the answer to its token; the official client shows that as an error of its own."""
    with client(broker, "narrow") as first, first.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("a"))
        with client(broker, "narrow") as second, pytest.raises(ServiceBusError):
            second.get_queue_sender("orders").send_messages(ServiceBusMessage("b"))
        sender.send_messages(ServiceBusMessage("c"))
    assert "the most its MaxConnections allows" in broker.log.read_text()


def test_each_has_its_own_tier(broker: BrokerProcess) -> None:
    large = ServiceBusMessage(bytes(900_000))
    with client(broker, "premium") as premium, premium.get_queue_sender("orders") as sender:
        assert _why_refused(sender, large) is None
    with client(broker, "free") as free, free.get_queue_sender("orders") as sender:
        assert _why_refused(sender, large) is not None


def _why_refused(sender: ServiceBusSender, message: ServiceBusMessage | None = None) -> Exception | None:
    """Send a message; return what the client raises."""
    try:
        sender.send_messages(ServiceBusMessage("a") if message is None else message)
    except ServiceBusError as failure:
        return failure
    return None


@pytest.mark.parametrize(
    ("waited_s", "came", "empty"),
    [(0, 9, False), (0, 10, True), (0.5, 14, False), (60, 19, False), (60, 20, True)],
)
def test_a_bucket_fills_with_time_and_holds_a_second(waited_s: float, came: int, empty: bool) -> None:
    now_s, counted = 0.0, 0
    bucket = TokenBucket(10, lambda: counted, lambda: now_s)
    if waited_s:
        counted = 10 if waited_s >= 60 else 9
        assert bucket.is_empty() == (counted == 10)
    now_s, counted = waited_s, came
    assert bucket.is_empty() is empty
