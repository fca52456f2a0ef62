"""Logins: what the file keeps, who may read it, and how commands use it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result

from peeklock.cli import main
from peeklock.cli.connecting import Login, logins_file, read_logins
from peeklock.cli.running import find
from peeklock.demo.broker import BrokerProcess
from peeklock.testing.served import ServedBroker
from tests.client.test_credentials import Credential, issuer, process
from tests.server.issuer import Issuer

__all__ = ["issuer", "process"]

KEY = "Endpoint=sb://localhost:1;SharedAccessKeyName=web;SharedAccessKey=sekret;UseDevelopmentEmulator=true"


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    with ServedBroker() as served:
        yield served


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SERVICEBUS_CONNECTION_STRING", raising=False)
    return tmp_path


def run(*words: str, given: str | None = None) -> Result:
    return CliRunner().invoke(main, words, input=given)


def test_a_login_is_kept_used_and_removed(home: Path, broker: ServedBroker) -> None:
    """Req: R-04, T-11."""
    added = run("logins", "add", "shop", given=f"{broker.connection_string}\n")
    assert added.exit_code == 0, added.output
    assert "SharedAccessKey" not in added.output
    assert logins_file().stat().st_mode & 0o777 == 0o600
    assert run("queues", "create", "q", "--connection", "shop").exit_code == 0
    assert "q " in run("queues", "list", "--connection", "shop").output
    assert run("health", "--live", "--connection", "shop").exit_code == 0
    assert run("logins", "list").output.splitlines()[1].split() == [
        "shop",
        f"localhost:{broker.port}",
        "connection",
        "string",
        "no",
    ]
    assert run("logins", "remove", "shop").exit_code == 0
    gone = run("queues", "list", "--connection", "shop")
    assert (gone.exit_code, "add it with peeklock logins add shop" in gone.output) == (2, True)


def test_without_a_terminal_it_reads_a_line(home: Path) -> None:
    added = run("logins", "add", "shop", given=f"{KEY}\n")
    assert (added.exit_code, added.stderr) == (0, "")
    assert added.stdout.startswith("added login 'shop'")
    none = run("logins", "add", "shop", given="")
    assert (none.exit_code, "give --connection-string TEXT" in none.output) == (2, True)


def test_it_says_where_the_connection_string_came_from(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICEBUS_CONNECTION_STRING", KEY)
    assert ", from SERVICEBUS_CONNECTION_STRING: use it" in run("logins", "add", "shop").output
    assert "from SERV" not in run("logins", "add", "shop", "--connection-string", KEY).output


def test_all_of_a_login_comes_back(home: Path, broker: ServedBroker) -> None:
    words = ("logins", "add", 'a "b".c', "--connection-string", KEY, "--ca", broker.ca_file, "--websocket")
    assert run(*words).exit_code == 0
    assert read_logins(logins_file()) == {'a "b".c': Login(KEY, broker.ca_file, False, True)}
    found = find(connection='a "b".c').connection_string
    assert found is not None
    assert (found.websocket, found.certificates is not None) == (True, True)


def test_a_file_that_others_can_read_is_refused(home: Path) -> None:
    """Req: R-04."""
    run("logins", "add", "shop", "--connection-string", KEY)
    logins_file().chmod(0o640)
    for words, status in ((("logins", "list"), 1), (("queues", "list", "--connection", "shop"), 2)):
        refused = run(*words)
        assert refused.exit_code == status
        assert "mode 0640" in refused.output
        assert "chmod 600" in refused.output
        assert "sekret" not in refused.output


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[shop", "is not TOML"),
        ("[shop]\nca = 'x'", "needs connection-string"),
        ("[shop]\nconnection-string = 'x'\nother = 1", "needs connection-string"),
        (f"[shop]\nconnection-string = '{KEY};sekret'", "a part without"),
    ],
)
def test_a_wrong_file_is_named_without_its_keys(home: Path, text: str, why: str) -> None:
    file = logins_file()
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text(text)
    refused = run("queues", "list", "--connection", "shop")
    assert (refused.exit_code, why in " ".join(refused.output.split())) == (2, True), refused.output
    assert "sekret" not in refused.output


def test_a_wrong_connection_string_is_not_kept(home: Path) -> None:
    assert run("logins", "add", "shop", "--connection-string", "Endpoint=sb://h;sekret").exit_code == 1
    assert read_logins(logins_file()) == {}


def test_entra_gives_the_token(
    home: Path, process: BrokerProcess, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-04."""
    module: Any = ModuleType("azure.identity")
    module.DefaultAzureCredential = lambda: Credential(issuer, "boss")
    monkeypatch.setitem(sys.modules, "azure.identity", module)
    text = f"Endpoint=sb://localhost:{process.amqp_port};UseDevelopmentEmulator=true"
    listed = run("queues", "list", "--entra", "--connection-string", text)
    assert (listed.exit_code, "orders" in listed.output) == (0, True), listed.output
    assert run("logins", "add", "cloud", "--entra", "--connection-string", text).exit_code == 0
    assert "orders" in run("queues", "list", "--connection", "cloud").output
    assert "Entra" in run("logins", "list").output
