"""The programs that the explorer's page Connect shows run, with the connection string that it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.explorer.brokers import ExploredBroker
from tests.interop.builds import build, clients

SNIPPETS = Path(__file__).parents[2] / "src/peeklock/explorer/page/snippets.js"
CONNECTION_STRING = (
    "Endpoint=sb://localhost:{}/;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true"
)
"""As tests/explorer/test_connect.py finds it on the page."""

RUN_S_MAX = 240
"""Of a program and its compiler, on a busy machine. Our choice."""

Commands = list[list[str | Path]]


def python(program: str, built: Path, folder: Path) -> Commands:
    (folder / "program.py").write_text(program)
    return [[sys.executable, "program.py"]]


def javascript(program: str, built: Path, folder: Path) -> Commands:
    (folder / "program.mjs").write_text(program)
    (folder / "node_modules").symlink_to(built / "node_modules")
    return [["node", "program.mjs"]]


def java(program: str, built: Path, folder: Path) -> Commands:
    (folder / "Orders.java").write_text(program)
    path = f"{built / 'lib'}/*"
    return [["javac", "-cp", path, "Orders.java"], ["java", "-Xmx256m", "-cp", f"{path}:.", "Orders"]]


def go(program: str, built: Path, folder: Path) -> Commands:
    (folder / "main.go").write_text(program)
    for name in ("go.mod", "go.sum"):
        shutil.copy(clients()["go"].folder / name, folder)
    return [["go", "vet", "."], ["go", "run", "."]]


PROGRAMS: dict[str, tuple[str, Callable[[str, Path, Path], Commands]]] = {
    "PYTHON": ("python-sync", python),
    "JAVASCRIPT": ("javascript", javascript),
    "JAVA": ("java", java),
    "GO": ("go", go),
}
"""Constant of the page -> the client, and how its program is run. No machine of the tests has .NET."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExploredBroker]:
    """A broker in development mode with a queue `orders`."""
    with ExploredBroker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.mark.clients
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_page_sends_and_receives(name: str, broker: ExploredBroker, tmp_path: Path) -> None:
    client_name, prepare = PROGRAMS[name]
    client = clients()[client_name]
    if client.missing:
        # The reason: each contributor has the toolchains of some languages; CI has all.
        pytest.skip(client.missing)  # the reason: the machine lacks a tool of the client's language
    [program] = re.findall(rf"^const {name} = `([^`\\$]*)`;$", SNIPPETS.read_text(), re.MULTILINE)
    commands = prepare(program, build(client), tmp_path)
    environment = {**os.environ, "SERVICEBUS_CONNECTION_STRING": CONNECTION_STRING.format(broker.http_port)}
    for command in commands:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "a coffee, please" in done.stdout
    assert broker.api("GET", "entities/orders")["counts"]["active"] == 0
