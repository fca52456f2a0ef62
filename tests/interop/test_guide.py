"""The Python blocks of the README and of pages in docs/ run with the port replaced; those for Spark run in
tests/spark."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from peeklock.auth import Right
from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Api
from tests.kept_keys import KeptKeys, write_keys

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for all pages, with the Config.json of its page."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "Config.json").write_text(_config(), encoding="utf-8")
    with BrokerProcess(folder, [f"--config={folder / 'Config.json'}"]) as broker:
        yield broker


PAGES = [
    "README.md",
    "docs/how-to/python-client.md",
    "docs/how-to/test-with-a-clock.md",
    "docs/reference/entities.md",
    "docs/reference/management-operations.md",
    "docs/tutorials/python.md",
    "docs/tutorials/topics.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_says(
    name: str, configured: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: T-11"""
    page = _text(name)
    found = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(found) == page.count("```python") > 0
    assert configured.authority() == configured.data / "tls" / "ca.pem"
    monkeypatch.chdir(configured.data.parent)  # pages use `data/tls/ca.pem`, as `--data ./data` makes it
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block.replace("5672", str(configured.amqp_port)), name, "exec"), names)


def test_each_figure_of_health_is_documented(configured: BrokerProcess) -> None:
    with urlopen(f"http://127.0.0.1:{configured.http_port}/health") as answer:
        figures = json.load(answer)
    page = _text("docs/reference/health.md").split("\n## `GET /health`\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    documented = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert set(figures) == documented - {"capture", "tls", "held", "relayed"}  # which are there at times


def test_tokens_without_an_issuer_open_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of web-tokens.md, in order, over the files that the page shows. Req: R-04, T-11."""
    page = _text("docs/how-to/web-tokens.md")
    makes_keys, connects = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (settings,) = re.findall(r'^```toml\n(issuer = "local"\n.*?)^```', page, re.MULTILINE | re.DOTALL)
    (tmp_path / "jwt.toml").write_text(settings, encoding="utf-8")
    (tmp_path / "Config.json").write_text(_config().replace('"jobs"', '"orders"'), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(makes_keys, "docs/how-to/web-tokens.md", "exec"), names)
    arguments = ["--config=Config.json", "--auth=jwt", "--jwt=jwt.toml", "--durability=os"]
    with BrokerProcess(tmp_path, arguments) as broker:
        exec(
            compile(connects.replace("5672", str(broker.amqp_port)), "docs/how-to/web-tokens.md", "exec"),
            names,
        )


def test_a_removed_key_ends_as_the_table_of_errors_says(api: Api, tmp_path: Path) -> None:
    """The receiver is detached with the reason; a client that connects with the old key is refused. Req:
    R-04."""
    _, rule = write_keys(tmp_path / "data", worker=[Right.SEND, Right.LISTEN])
    (tmp_path / "Config.json").write_text(_config(), encoding="utf-8")
    arguments = [f"--config={tmp_path / 'Config.json'}", "--auth=sas", "--durability=os"]
    with BrokerProcess(tmp_path, arguments) as broker:
        text = (
            f"Endpoint=sb://localhost:{broker.amqp_port};SharedAccessKeyName=worker;"
            f"SharedAccessKey={rule.primary_key};UseDevelopmentEmulator=true;"
        )
        with (
            api.client(text, retry_total=0) as client,
            client.get_queue_sender("jobs") as sender,
            client.get_queue_receiver("jobs") as receiver,
        ):
            sender.send_messages(ServiceBusMessage("before"))
            assert receiver.receive_messages(max_wait_time=5)
            KeptKeys(broker.data).remove("worker")
            ends_at = time.monotonic() + 20
            while broker.log.read_text().count("no longer valid") < 2 and time.monotonic() < ends_at:
                time.sleep(0.05)  # the file is checked every second
            with pytest.raises(ServiceBusAuthorizationError, match="no longer valid"):
                receiver.receive_messages(max_wait_time=5)
            with pytest.raises(ServiceBusAuthenticationError):
                receiver.receive_messages(max_wait_time=10)
            with pytest.raises(ServiceBusConnectionError, match="amqp:unknown-error"):
                sender.send_messages(ServiceBusMessage("after"))
            with pytest.raises(ServiceBusAuthenticationError):
                sender.send_messages(ServiceBusMessage("after"))


def _config() -> str:
    page = _text("docs/reference/config-json.md")
    (example,) = re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return str(example)


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")
