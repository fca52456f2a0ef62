"""One broker process a test session, and a fresh queue a test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Api, Background, Links

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def tls_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for `localhost` and its key, as PEM files."""
    from datetime import UTC, datetime

    from peeklock.server.tls.certificates import make_pair

    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate_pem, key_pem = make_pair(["localhost", "127.0.0.1"], datetime.now(UTC))
    certificate.write_bytes(certificate_pem)
    key.touch(0o600)
    key.write_bytes(key_pem)
    return certificate, key


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, tls_pair: tuple[Path, Path]) -> Iterator[BrokerProcess]:
    """The broker that most tests share. It gives broken connections no grace, for which tests would wait."""
    arguments = (f"--tls-cert={tls_pair[0]}", f"--tls-key={tls_pair[1]}", "--lock-grace=0")
    with BrokerProcess(tmp_path_factory.mktemp("broker"), arguments) as process:
        yield process
        assert process.stop() == 0


@pytest.fixture(scope="session")
def administration(broker: BrokerProcess, tls_pair: tuple[Path, Path]) -> Iterator[Any]:
    """The official administration client, over HTTPS."""
    connection_string = broker.connection_string.replace(f":{broker.amqp_port};", f":{broker.http_port};")
    with ServiceBusAdministrationClient.from_connection_string(
        connection_string, connection_verify=str(tls_pair[0])
    ) as client:
        yield client


@pytest.fixture(scope="session")
def make_queue(administration: Any) -> Callable[..., str]:
    """Make queues with unique names; takes the arguments of `create_queue`."""
    numbers = itertools.count(1)

    def make(**settings: Any) -> str:
        name = f"queue-{next(numbers)}"
        administration.create_queue(name, **settings)
        return name

    return make


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    """A fresh queue with default settings."""
    return make_queue()


@pytest.fixture(scope="session")
def make_topic(administration: Any) -> Callable[..., str]:
    """Make topics with unique names, and the named subscriptions; takes the arguments of `create_topic`."""
    numbers = itertools.count(1)

    def make(*subscriptions: str, **settings: Any) -> str:
        name = f"topic-{next(numbers)}"
        administration.create_topic(name, **settings)
        for subscription in subscriptions:
            administration.create_subscription(name, subscription)
        return name

    return make


@pytest.fixture(scope="session")
def background() -> Iterator[Background]:
    """Threads in which links open and close during tests."""
    made = Background()
    yield made
    made.close()


@pytest.fixture(scope="session")
def apis(background: Background) -> Iterator[dict[str, Api]]:
    """The official client's forms."""
    made = {form: Api(form) for form in ("sync", "aio")}
    yield made
    background.join()
    for api in made.values():
        api.close()


@pytest.fixture(scope="session")
def clients(
    apis: dict[str, Api], broker: BrokerProcess, background: Background
) -> Iterator[dict[str, Links]]:
    """Make clients by connection string, without TLS or retries, so that the first answer is seen."""
    made = {form: api.client(broker.connection_string, retry_total=0) for form, api in apis.items()}
    yield {form: Links(client, background) for form, client in made.items()}
    background.join()
    for client in made.values():
        client.close()


@pytest.fixture(params=["sync", "aio"])
def api(request: pytest.FixtureRequest, apis: dict[str, Api]) -> Api:
    """One form of the official client; a test that uses it runs with each."""
    return apis[request.param]


@pytest.fixture
def client(api: Api, clients: dict[str, Links]) -> Links:
    """A client in that form."""
    return clients[api.form]


@pytest.fixture
def any_client(clients: dict[str, Links]) -> Links:
    """A synchronous client, where the broker's answer matters and both forms would ask the same."""
    return clients["sync"]
