"""Credentials that give web tokens, as those of azure-identity do; the broker accepts nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from peeklock.client.connection import BlockingConnection, wall_ms
from peeklock.client.connection_string import ConnectionString
from peeklock.client.credentials import SCOPE, entra_credential
from peeklock.client.errors import OptionError, ServiceBusError
from peeklock.client.token_file import NO_TOKEN
from peeklock.demo.broker import BrokerProcess
from tests.client.test_connection import peek
from tests.server.issuer import Issuer


class Token(NamedTuple):
    token: str
    expires_on: int


class Credential:
    """Gives tokens of an issuer."""

    def __init__(self, issuer: Issuer, role: str = "worker", valid_s: int = 3600) -> None:
        self._issuer, self._role, self._valid_s = issuer, role, valid_s
        self.asked: list[tuple[str, ...]] = []

    def get_token(self, *scopes: str) -> Token:
        self.asked.append(scopes)
        ends = int(time.time()) + self._valid_s
        return Token(self._issuer.token(exp=ends, roles=[self._role]), ends)


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer() as serving:
        yield serving


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("entra")
    (folder / "jwt.toml").write_text(
        f'issuer = "{issuer.url}"\n[roles]\nworker = "Listen:orders"\nboss = "Manage"\n'
    )
    (folder / "Config.json").write_text(
        '{"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": [{"Name": "orders"}]}]}}'
    )
    arguments = ("--auth=jwt", f"--jwt={folder / 'jwt.toml'}", f"--config={folder / 'Config.json'}")
    with BrokerProcess(folder, (*arguments, "--durability=os")) as running:
        yield running
        assert running.stop() == 0
        assert "eyJ" not in running.log.read_text()  # how every token begins


def settings(process: BrokerProcess, credential: Any, **more: Any) -> ConnectionString:
    text = f"Endpoint=sb://localhost:{process.amqp_port};UseDevelopmentEmulator=true"
    return ConnectionString.parse(text, credential=credential, timeout_s=10, **more)


@pytest.mark.parametrize("websocket", [False, True])
def test_a_credential_opens_links(process: BrokerProcess, issuer: Issuer, websocket: bool) -> None:
    """Req: R-04"""
    credential = Credential(issuer)
    made = BlockingConnection(settings(process, credential, websocket=websocket))
    assert peek(made, "orders") == []
    assert credential.asked[0] == (SCOPE,)
    made.close()


def test_a_token_is_asked_for_again_in_its_last_tenth(process: BrokerProcess, issuer: Issuer) -> None:
    """Req: R-04"""
    now_ms = wall_ms()
    credential = Credential(issuer)
    made = BlockingConnection(settings(process, credential), now_ms=lambda: now_ms)
    peek(made, "orders")
    first = len(credential.asked)  # more than one if the broker waits for the issuer's keys
    now_ms += 53 * 60_000
    peek(made, "orders")
    assert len(credential.asked) == first
    now_ms += 2 * 60_000
    peek(made, "orders")
    assert len(credential.asked) == first + 1
    made.close()


def test_a_credential_without_a_token_is_named_in_one_line(process: BrokerProcess) -> None:
    class Broken:
        def get_token(self, *scopes: str) -> Token:
            raise RuntimeError("run az login\nand so on")

    with pytest.raises(ServiceBusError, match=r"the credential Broken gives no .*: run az login$") as raised:
        peek(BlockingConnection(settings(process, Broken())), "orders")
    assert (raised.value.condition, raised.value.retryable) == (NO_TOKEN, False)


def test_a_key_and_a_credential_exclude_each_other(issuer: Issuer) -> None:
    text = "Endpoint=sb://h;SharedAccessKeyName=a;SharedAccessKey=b"
    with pytest.raises(OptionError, match="a credential is given; use one of them"):
        ConnectionString.parse(text, credential=Credential(issuer))


def test_http_takes_the_token_as_bearer(issuer: Issuer) -> None:
    found = ConnectionString.parse("Endpoint=sb://h", credential=Credential(issuer))
    assert found.authorization(0).startswith("Bearer eyJ")
    assert "eyJ" not in repr(found)


def test_azure_identity_is_needed_for_entra_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "azure.identity", None)
    with pytest.raises(OptionError, match=r"peeklock\[entra\]"):
        entra_credential()
