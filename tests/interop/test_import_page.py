"""The commands of docs/how-to/import.md and of the pages that name it run, and print what the page shows."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess, program
from peeklock.templates.arm_functions import _FUNCTIONS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/import.md").read_text(encoding="utf-8")
FILES = ROOT / "tests/templates/files"

TEMPLATE = {
    "contentVersion": "1.0.0.0",
    "parameters": {"environment": {"type": "string", "defaultValue": "none"}},
    "resources": [
        {"type": "Microsoft.ServiceBus/namespaces/queues", "name": "bus/orders"},
        {"type": "Microsoft.ServiceBus/namespaces/topics", "name": "bus/news"},
        {"type": "Microsoft.ServiceBus/namespaces/topics/subscriptions", "name": "bus/news/sport"},
        {
            "type": "Microsoft.ServiceBus/namespaces/topics/subscriptions/rules",
            "name": "bus/news/sport/goals",
            "properties": {"filterType": "SqlFilter", "sqlFilter": {"sqlExpression": "goals > 3"}},
        },
    ],
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("azure"), ["--durability=os"]) as running:
        yield running


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on ./data, beside the files that the pages name."""
    (tmp_path / "azuredeploy.json").write_text(json.dumps(TEMPLATE))
    (tmp_path / "azuredeploy.parameters.json").write_text('{"parameters": {}}')
    shutil.copy(ROOT / "tests/config/emulator_config.json", tmp_path / "Config.json")
    shutil.copy(FILES / "state.json", tmp_path / "state.json")
    shutil.copy(FILES / "bicep.json", tmp_path / "main.json")
    with BrokerProcess(tmp_path, ["--durability=os"]) as running:
        yield running


def run(command: str, broker: BrokerProcess, source: BrokerProcess) -> subprocess.CompletedProcess[str]:
    """Run a command as a page has it, with the source in place of Azure."""
    azure = r'"Endpoint=sb://shop\.servicebus\.windows\.net;[^"]*"'
    words = shlex.split(re.sub(azure, f'"{source.connection_string}"', command))
    assert words[0] == "peeklock"
    return subprocess.run(
        [program(), *words[1:]],
        cwd=broker.data.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_plan_is_as_the_page_shows_it(broker: BrokerProcess, source: BrokerProcess) -> None:
    """Req: A-02, T-11."""
    [(command, output)] = re.findall(r"^```\n\$ ([^\n]*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert run(command, broker, source).stdout == output


COMMANDS = [
    *re.findall(r"^peeklock import .*", PAGE, re.MULTILINE),
    *re.findall(
        r"^peeklock import .*", (ROOT / "docs/how-to/migrate-from-azure.md").read_text(), re.MULTILINE
    ),
    *re.findall(
        r"`(peeklock import [^`]*)`", (ROOT / "docs/how-to/migrate-from-the-emulator.md").read_text()
    ),
    "peeklock import main.json --data ./data --dry-run",
    "peeklock import state.json --data ./data",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_pages_run(command: str, broker: BrokerProcess, source: BrokerProcess) -> None:
    """Req: A-02, T-11."""
    done = run(command, broker, source)
    if "main.json" in command:  # a namespace of the premium tier
        assert (done.returncode, "cannot be set in tier Standard" in done.stderr) == (1, True), done.stderr
    else:
        assert done.returncode == 0, done.stderr


def test_the_commands_are_there() -> None:
    assert len(COMMANDS) == 6


def test_the_page_lists_the_functions_that_are_offered() -> None:
    """Req: T-11."""
    listed = re.findall(r"`(\w+)`", PAGE.split("## Template functions\n")[1].split(". A template")[0])
    known = {"and", "copyindex", "if", "or", "parameters", "variables", *_FUNCTIONS}
    assert {name.lower() for name in listed} == known
    assert len(listed) == len(known)


def test_the_page_lists_the_properties_of_copies() -> None:
    from peeklock.moving import copying

    names = {value for name, value in vars(copying).items() if name.startswith("SOURCE")}
    assert names == set(re.findall(r"`(peeklock-source[a-z-]*)`", PAGE))
