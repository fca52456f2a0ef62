"""JSON web tokens of an issuer, as the official clients send them: a credential of Azure's own interface."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AioAdministrationClient
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.demo.broker import BrokerProcess, program
from peeklock.server.keys.jwt_keys import DISCOVERY
from tests.interop.clients import Api
from tests.interop.helpers import take_one
from tests.server.issuer import AUDIENCE, Issuer, respond

ROLES = """
[roles]
boss = "Manage"
worker = ["Listen:orders", "Send:results"]
"""


class Credential:
    """Returns tokens of an issuer, as a credential of `azure-identity` does for the synchronous clients."""

    def __init__(self, issuer: Issuer, *roles: str, valid_s: int = 3600, said_s: int | None = None) -> None:
        """Set up; `said_s`: the lifetime that the client gets with a token; None = the true one."""
        self._issuer = issuer
        self._roles = roles
        self.valid_s = valid_s
        self._said_s = valid_s if said_s is None else said_s
        self.given: list[float] = []
        """When tokens were requested, monotonic seconds."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes[0].startswith(AUDIENCE)
        self.given.append(time.monotonic())
        now_s = int(time.time())
        token = self._issuer.token(exp=now_s + self.valid_s, iat=now_s, roles=list(self._roles))
        return AccessToken(token, now_s + self._said_s)


class AioCredential:
    """The same for the asynchronous clients."""

    def __init__(self, inner: Credential) -> None:
        self._inner = inner

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return self._inner.get_token(*scopes, **options)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as serving:
        yield serving


@pytest.fixture(scope="module")
def jwt_broker(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[BrokerProcess]:
    """A broker that accepts JSON web tokens of the issuer and nothing else."""
    folder = tmp_path_factory.mktemp("jwt")
    (folder / "jwt.toml").write_text(f'issuer = "{issuer.url}"\n{ROLES}')
    arguments = ("--durability=os", "--auth=jwt", f"--jwt={folder / 'jwt.toml'}")
    with BrokerProcess(folder, arguments) as process:
        with _administration(process, Credential(issuer, "boss")) as client:
            for name in ("orders", "results", "secrets"):
                client.create_queue(name)
        yield process
        assert process.stop() == 0
        log = process.log.read_text()
        assert "keys of the issuer fetched" in log
        assert "eyJ" not in log  # how every token begins


def _administration(broker: BrokerProcess, credential: Credential, **options: Any) -> Any:
    return ServiceBusAdministrationClient(
        f"localhost:{broker.http_port}", credential, connection_verify=str(broker.authority()), **options
    )


@pytest.fixture
def client(api: Api, jwt_broker: BrokerProcess) -> Iterator[Callable[..., Any]]:
    """Return a client with a credential, over TLS."""
    made: list[Any] = []

    def make(credential: Credential, **options: Any) -> Any:
        made.append(_client(api, jwt_broker, credential, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _client(api: Api, broker: BrokerProcess, credential: Credential, **options: Any) -> Any:
    return api.client_with(
        "localhost",
        AioCredential(credential) if api.form == "aio" else credential,
        custom_endpoint_address=f"sb://localhost:{broker.amqp_port}",
        connection_verify=str(broker.authority()),
        transport_type=TransportType.Amqp,
        **{"retry_total": 0, **options},
    )


def test_roles_decide_what_a_client_may_do(client: Callable[..., Any], issuer: Issuer) -> None:
    """Req: R-04"""
    boss = client(Credential(issuer, "boss"))
    worker = client(Credential(issuer, "worker"))
    with boss.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("an order"))
    with worker.get_queue_receiver("orders") as orders, worker.get_queue_sender("results") as results:
        message = take_one(orders)
        orders.renew_message_lock(message)
        results.send_messages(ServiceBusMessage("a result"))
        orders.complete_message(message)
    with boss.get_queue_receiver("results") as receiver:
        receiver.complete_message(take_one(receiver))


def test_a_right_that_no_role_gives_is_refused(client: Callable[..., Any], issuer: Issuer) -> None:
    """Req: R-04, T-02"""
    worker = client(Credential(issuer, "worker"))
    needs_send = pytest.raises(ServiceBusAuthorizationError, match=r"'Send' claim\(s\) are required")
    with needs_send, worker.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("not mine to send"))
    needs_listen = pytest.raises(ServiceBusAuthorizationError, match=r"'Listen' claim\(s\) are required")
    with needs_listen, worker.get_queue_receiver("secrets") as receiver:
        receiver.receive_messages(max_wait_time=5)


def test_a_token_that_is_refused_opens_nothing(
    client: Callable[..., Any], issuer: Issuer, jwt_broker: BrokerProcess
) -> None:
    """With a custom endpoint, the client has one error for all refused tokens. Req: R-04."""
    stranger = Issuer()  # serves no one, and has a key of the same name
    stranger.url = issuer.url
    for credential, reason in (
        (Credential(stranger, "boss"), "InvalidSignature"),
        (Credential(issuer, "unknown"), "has no known role"),
        (Credential(issuer, "boss", valid_s=-1, said_s=60), "ExpiredToken"),
    ):
        with (
            pytest.raises(ServiceBusConnectionError),
            client(credential).get_queue_sender("orders") as sender,
        ):
            sender.send_messages(ServiceBusMessage("refused"))
        assert reason in jwt_broker.log.read_text()


def test_shared_access_signatures_are_refused_beside_web_tokens_alone(
    jwt_broker: BrokerProcess, api: Api
) -> None:
    """The emulator's key is refused too. Req: R-04."""
    text = (
        f"Endpoint=sb://localhost:{jwt_broker.amqp_port};SharedAccessKeyName=RootManageSharedAccessKey;"
        "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
    )
    refused = pytest.raises(ServiceBusAuthenticationError)
    with api.client(text, retry_total=0) as client, refused, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("x"))


def test_a_client_renews_its_token_before_it_expires(jwt_broker: BrokerProcess, issuer: Issuer) -> None:
    """Req: R-04. Both forms at once, since 10 s are the shortest life of which the client sees a tenth left.

    The link stays: the message that was received with the first token is completed with the second.
    """

    def work(form: str) -> int:
        api = Api(form)
        credential = Credential(issuer, "boss", valid_s=10)
        queue = f"renewed-{form}"
        try:
            with _administration(jwt_broker, Credential(issuer, "boss")) as administration:
                administration.create_queue(queue)
            with _client(api, jwt_broker, credential) as client:
                with client.get_queue_sender(queue) as sender:
                    sender.send_messages(ServiceBusMessage("long work"))
                with client.get_queue_receiver(queue) as receiver:
                    message = take_one(receiver)
                    opened_with = len(credential.given)
                    ends_at = credential.given[-1] + 11.5
                    while (left_s := ends_at - time.monotonic()) > 0:
                        assert not receiver.receive_messages(max_wait_time=max(0.1, left_s))
                    receiver.complete_message(message)
                    return len(credential.given) - opened_with
        finally:
            api.close()

    with ThreadPoolExecutor(2) as pool:
        renewals = list(pool.map(work, ["sync", "aio"]))
    assert all(count >= 1 for count in renewals)


def test_a_token_that_runs_out_ends_its_links_and_a_fresh_one_brings_them_back(
    client: Callable[..., Any], issuer: Issuer
) -> None:
    """A client with a wrong expiry is detached, and continues with its next token. Req: R-04."""
    credential = Credential(issuer, "boss", valid_s=2, said_s=3600)
    with client(credential).get_queue_receiver("results") as receiver:
        assert receiver.receive_messages(max_wait_time=0.1) == []
        _wait_past(credential.given[-1] + 3.5)  # the broker checks every second
        credential.valid_s = 3600
        given = len(credential.given)
        with pytest.raises(ServiceBusAuthorizationError, match="ExpiredToken"):
            receiver.receive_messages(max_wait_time=5)
        assert receiver.receive_messages(max_wait_time=2) == []
        assert len(credential.given) == given + 1


def test_a_client_that_goes_on_with_an_expired_token_is_refused(
    client: Callable[..., Any], issuer: Issuer
) -> None:
    """Req: R-04"""

    class Stubborn(Credential):
        only: AccessToken | None = None

        def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            self.only = self.only or super().get_token(*scopes, **options)
            return self.only

    credential = Stubborn(issuer, "boss", valid_s=2, said_s=3600)
    with client(credential).get_queue_receiver("results") as receiver:
        assert receiver.receive_messages(max_wait_time=0.1) == []
        _wait_past(credential.given[-1] + 3.5)
        with pytest.raises((ServiceBusAuthorizationError, ServiceBusConnectionError)):
            receiver.receive_messages(max_wait_time=5)
        with pytest.raises(ServiceBusConnectionError):
            receiver.receive_messages(max_wait_time=5)


def _wait_past(monotonic_s: float) -> None:
    """Let the broker's own clock pass a token's expiry; it is another process, with the machine's clock."""
    time.sleep(max(0.0, monotonic_s - time.monotonic()))


def test_the_administration_client_needs_manage(jwt_broker: BrokerProcess, issuer: Issuer) -> None:
    """Req: R-04"""
    with _administration(jwt_broker, Credential(issuer, "boss")) as client:
        client.create_queue("made", forward_to="results")
        assert client.get_queue("made").forward_to
        assert {"orders", "made"} <= {queue.name for queue in client.list_queues()}
        client.delete_queue("made")
    with _administration(jwt_broker, Credential(issuer, "worker")) as client:
        with pytest.raises(ClientAuthenticationError, match="Manage,EntityRead claims required"):
            client.get_queue("orders")
        with pytest.raises(ClientAuthenticationError, match="action: Manage,EntityWrite"):
            client.create_queue("mine")
    stranger = _administration(jwt_broker, Credential(Issuer(), "boss"))
    with stranger as client, pytest.raises(ClientAuthenticationError, match="InvalidSignature"):
        client.get_queue("orders")


def test_the_asynchronous_administration_client_too(jwt_broker: BrokerProcess, issuer: Issuer) -> None:
    """Req: R-04"""

    async def scenario() -> None:
        def make(*roles: str) -> AioAdministrationClient:
            return AioAdministrationClient(
                f"localhost:{jwt_broker.http_port}",
                AioCredential(Credential(issuer, *roles)),
                connection_verify=str(jwt_broker.authority()),
            )

        async with make("boss") as client:
            assert (await client.get_queue("orders")).name == "orders"
        async with make("worker") as client:
            with pytest.raises(ClientAuthenticationError, match="Manage,EntityRead claims required"):
                await client.get_queue("orders")

    asyncio.run(scenario())


def test_a_broker_starts_without_its_issuer_and_clients_get_in_once_it_is_there(tmp_path: Path) -> None:
    """A key that the issuer made since is found when the first token names it. Req: R-04."""
    with Issuer() as late:
        late.answers[DISCOVERY] = lambda handler: respond(handler, 503, b"")
        (tmp_path / "jwt.toml").write_text(f'issuer = "{late.url}"\n{ROLES}')
        arguments = ("--durability=os", "--auth=jwt", f"--jwt={tmp_path / 'jwt.toml'}")
        boss = Credential(late, "boss")
        with BrokerProcess(tmp_path, arguments) as broker:
            administration = _administration(broker, boss, retry_total=20, retry_backoff_max=0.5)
            api = Api("sync")
            refused = pytest.raises(ServiceBusConnectionError)
            with _client(api, broker, boss) as client, refused, client.get_queue_sender("q") as sender:
                sender.send_messages(ServiceBusMessage("x"))
            assert "are not there yet. Please try again" in broker.log.read_text()
            late.answers.clear()
            administration.create_queue("q")  # the client tries again by itself, and so does the broker
            late.rotate("second")
            patient = _client(api, broker, boss, retry_total=3)
            with patient as client, client.get_queue_sender("q") as sender:
                sender.send_messages(ServiceBusMessage("x"))
            assert "The token's key is new here" in broker.log.read_text()
            administration.close()
            assert broker.stop() == 0


def test_a_data_folder_names_no_key_where_there_is_none(jwt_broker: BrokerProcess) -> None:
    command = [program(), "peek", "orders", "--data", str(jwt_broker.data)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, "a client needs a web token" in ended.stderr) == (1, True)


def test_a_wrong_file_ends_the_start_with_what_to_do(tmp_path: Path) -> None:
    """Req: R-04"""
    (tmp_path / "jwt.toml").write_text('isuer = "https://id.example.com"')
    command = [program(), "serve", "--durability=memory", "--auth=jwt", f"--jwt={tmp_path / 'jwt.toml'}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert f"peeklock: --jwt: {tmp_path / 'jwt.toml'}: `isuer`: unknown key" in ended.stderr


def test_a_role_that_loses_a_right_loses_the_links_and_no_other_does(tmp_path: Path, issuer: Issuer) -> None:
    """Req: R-04"""
    file = tmp_path / "jwt.toml"
    file.write_text(f'issuer = "{issuer.url}"\n{ROLES}')
    api = Api("sync")
    with BrokerProcess(tmp_path, ["--durability=os", "--auth=jwt", f"--jwt={file}"]) as process:
        with _administration(process, Credential(issuer, "boss")) as administration:
            administration.create_queue("orders")
            administration.create_queue("results")
        with (
            _client(api, process, Credential(issuer, "worker")) as worker,
            _client(api, process, Credential(issuer, "boss")) as boss,
            worker.get_queue_sender("results") as ended,
            boss.get_queue_sender("results") as steady,
        ):
            ended.send_messages(ServiceBusMessage("before"))
            steady.send_messages(ServiceBusMessage("before"))
            file.write_text(file.read_text().replace(', "Send:results"', ""))
            until = time.monotonic() + 15
            with pytest.raises(ServiceBusError):  # noqa: PT012  # the change is noticed between two of them
                while time.monotonic() < until:
                    ended.send_messages(ServiceBusMessage("with a right that is gone soon"))
                    time.sleep(0.1)
            steady.send_messages(ServiceBusMessage("after"))
        assert "web tokens followed" in process.log.read_text()
