"""The user's own keys: created at the first start, rotated while clients are connected, for single entities;
and tokens that expire."""

from __future__ import annotations

import contextlib
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient

from peeklock.auth import SasRule, generate
from peeklock.demo.broker import BrokerFailed, BrokerProcess
from peeklock.server.net.auth_throttle import REFUSALS_MAX
from tests.kept_keys import KeptKeys

ROOT = "RootManageSharedAccessKey"
TOLD_S_MAX = 15.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path, ("--auth=sas", "--durability=os")) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture
def root(broker: BrokerProcess) -> SasRule:
    return KeptKeys(broker.data).load()[0]


def connection_string(port: int, name: str, key: str) -> str:
    return (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName={name};SharedAccessKey={key};"
        "UseDevelopmentEmulator=true;"
    )


def client_of(broker: BrokerProcess, name: str, key: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        connection_string(broker.amqp_port, name, key), retry_total=0
    )


def administration_of(broker: BrokerProcess, name: str, key: str) -> ServiceBusAdministrationClient:
    ca = broker.data / "tls" / "ca.pem"
    until = time.monotonic() + TOLD_S_MAX
    while not ca.exists():  # created beside the loop, soon after the start
        assert time.monotonic() < until
        time.sleep(0.05)
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string(broker.http_port, name, key), connection_verify=str(ca)
    )


def sends(broker: BrokerProcess, name: str, key: str, queue: str = "q") -> bool:
    with client_of(broker, name, key) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    return True


def test_the_keys_are_the_folder_s_own(broker: BrokerProcess, root: SasRule) -> None:
    """The well-known key is refused for data and for administration; no key is logged or readable by others.
    Req: R-04."""
    with administration_of(broker, ROOT, root.primary_key) as administration:
        administration.create_queue("q")
    for key in root.keys:
        assert sends(broker, ROOT, key)
    with pytest.raises(ServiceBusAuthenticationError):
        sends(broker, ROOT, "SAS_KEY_VALUE")
    with (
        administration_of(broker, ROOT, "SAS_KEY_VALUE") as stranger,
        pytest.raises(ClientAuthenticationError),
    ):
        stranger.create_queue("other")
    logged = broker.log.read_text()
    assert not any(key in logged + broker.connection_string for key in (*root.keys, "SAS_KEY_VALUE"))
    assert "SharedAccessSignature" not in logged
    for file in broker.data.rglob("*"):
        public = file.name in ("ca.p12", "ca.pem", "certificate.pem")  # what clients get
        assert public or not stat.S_IMODE(file.stat().st_mode) & 0o077, file


def test_a_rotation_is_followed_while_clients_are_connected(broker: BrokerProcess, root: SasRule) -> None:
    """A client with the old key continues until the next rotation, which ends it, on an open link too; other
    clients are not affected. Req: R-04."""
    file = KeptKeys(broker.data)
    other = file.add("other", ["Send"])
    with administration_of(broker, ROOT, root.primary_key) as administration:
        administration.create_queue("q")
    time.sleep(1.5)  # the broker checks once a second
    with (
        client_of(broker, ROOT, root.primary_key) as client,
        client.get_queue_sender("q") as sender,
        client_of(broker, "other", other.secondary_key) as bystander,
        bystander.get_queue_sender("q") as steady,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        steady.send_messages(ServiceBusMessage("before"))
        file.rotate(ROOT, revoke=False)
        time.sleep(1.5)
        sender.send_messages(ServiceBusMessage("by the key that is the secondary one now"))
        newest = file.rotate(ROOT, revoke=False)
        until = time.monotonic() + TOLD_S_MAX
        with pytest.raises(ServiceBusError):  # noqa: PT012  # the rotation is noticed between two of them
            while time.monotonic() < until:
                sender.send_messages(ServiceBusMessage("by a key that is gone soon"))
                time.sleep(0.1)
        steady.send_messages(ServiceBusMessage("after"))
    with pytest.raises(ServiceBusAuthenticationError):
        sends(broker, ROOT, root.primary_key)
    assert sends(broker, ROOT, newest.primary_key)


def test_a_queue_s_own_rule_is_good_for_that_queue_alone(broker: BrokerProcess, root: SasRule) -> None:
    """A key counts from the administration's answer on, until its rule is removed. Req: R-04, A-01."""
    with administration_of(broker, ROOT, root.primary_key) as administration:
        administration.create_queue("other")
        made = administration.create_queue(
            "q",
            authorization_rules=[
                AuthorizationRule(
                    type="SharedAccessAuthorizationRule",
                    claim_type="SharedAccessKey",
                    claim_value="None",
                    rights=[AccessRights.SEND],
                    key_name="worker",
                    primary_key="primary key of the worker",
                    secondary_key="its secondary key",
                )
            ],
        )
        assert made.authorization_rules is not None
        assert [rule.key_name for rule in made.authorization_rules] == ["worker"]
        assert sends(broker, "worker", "primary key of the worker")
        assert sends(broker, "worker", "its secondary key")
        with pytest.raises(ServiceBusAuthenticationError):
            sends(broker, "worker", "its secondary key", "other")
        with (
            client_of(broker, "worker", "its secondary key") as client,
            pytest.raises(ServiceBusAuthorizationError),
            client.get_queue_receiver("q") as receiver,
        ):
            receiver.receive_messages(max_wait_time=5)
        with (
            administration_of(broker, "worker", "its secondary key") as lesser,
            pytest.raises(HttpResponseError) as refused,
        ):
            lesser.get_queue("q")
        assert refused.value.status_code == 401
        broker.stop()
        broker.start()
        assert sends(broker, "worker", "its secondary key")
        made.authorization_rules = []
        administration.update_queue(made)
        with pytest.raises(ServiceBusAuthenticationError):
            sends(broker, "worker", "its secondary key")


def test_a_token_that_runs_out_takes_its_own_links_alone(broker: BrokerProcess, root: SasRule) -> None:
    """A ready token cannot be renewed: its client is detached with the reason. Req: R-04."""
    with administration_of(broker, ROOT, root.primary_key) as administration:
        administration.create_queue("q")
    now_ms = round(time.time() * 1000)
    token = generate("sb://localhost/q", ROOT, root.primary_key, now_ms + 3_000)
    endpoint = f"Endpoint=sb://localhost:{broker.amqp_port};SharedAccessSignature={token};"
    with (
        ServiceBusClient.from_connection_string(
            endpoint + "UseDevelopmentEmulator=true;", retry_total=0
        ) as client,
        client.get_queue_receiver("q") as receiver,
        client_of(broker, ROOT, root.primary_key) as bystander,
        bystander.get_queue_sender("q") as steady,
    ):
        steady.send_messages(ServiceBusMessage("in time"))
        assert [str(message) for message in receiver.receive_messages(max_wait_time=5)] == ["in time"]
        with pytest.raises(ServiceBusError):
            receiver.receive_messages(max_wait_time=TOLD_S_MAX)
        assert time.time() * 1000 >= now_ms + 2_000
        steady.send_messages(ServiceBusMessage("goes on"))


def test_a_client_renews_its_tokens_by_itself(broker: BrokerProcess, root: SasRule) -> None:
    """A credential whose token changes is put again before the old one expires, on the same link. Req:
    R-04."""
    with administration_of(broker, ROOT, root.primary_key) as administration:
        administration.create_queue("q")

    def token(lives_ms: int) -> str:
        return generate("sb://localhost/q", ROOT, root.primary_key, round(time.time() * 1000) + lives_ms)

    credential = AzureSasCredential(token(4_000))
    with (
        ServiceBusClient(
            f"localhost:{broker.amqp_port}",
            credential,
            custom_endpoint_address=f"sb://localhost:{broker.amqp_port}",
            connection_verify=str(broker.data / "tls" / "ca.pem"),
            retry_total=1,
        ) as client,
        client.get_queue_sender("q") as sender,
    ):
        sender.send_messages(ServiceBusMessage("by the first token"))
        credential.update(token(600_000))
        time.sleep(5)
        sender.send_messages(ServiceBusMessage("by the second one"))


def test_a_client_with_bad_keys_is_slowed_down_and_no_other_is_locked_out(
    broker: BrokerProcess, root: SasRule
) -> None:
    """Open connections are not affected. Req: R-04, R-05."""
    with administration_of(broker, ROOT, root.primary_key) as administration:
        administration.create_queue("q")
    header = b"AMQP\x03\x01\x00\x00"
    plain = b"\x00\x53\x41\xc0\x1a\x03\xa3\x05PLAIN\xa0\x0f\x00RootManage\x00bad" + b"\x40"
    frame = (len(plain) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + plain

    def guess() -> float:
        started = time.monotonic()
        with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=30) as guesser:
            guesser.sendall(header + frame)
            with contextlib.suppress(ConnectionError):
                while guesser.recv(4096):
                    pass
        return time.monotonic() - started

    with client_of(broker, ROOT, root.primary_key) as client, client.get_queue_sender("q") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        for _ in range(REFUSALS_MAX + 1):
            guess()
        started = time.monotonic()
        for _ in range(10):
            guess()
        assert time.monotonic() - started > 0.5
        sender.send_messages(ServiceBusMessage("during"))
    assert sends(broker, ROOT, root.primary_key)


def test_others_may_not_be_served_with_the_key_that_everybody_knows(tmp_path: Path) -> None:
    """Req: R-04."""
    with pytest.raises(BrokerFailed, match="--auth sas"):
        BrokerProcess(tmp_path, ("--host=0.0.0.0",)).start()


def test_with_authorization_off_any_key_will_do(tmp_path: Path) -> None:
    """Req: R-04."""
    with BrokerProcess(tmp_path, ("--auth=off",)) as broker:
        with administration_of(broker, "anybody", "any") as administration:
            administration.create_queue("q")
        assert sends(broker, "anybody", "any")
        assert "authorization is off" in broker.log.read_text()
