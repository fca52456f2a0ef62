"""The recipes for Testcontainers: each is built against the real library, and run against a broker.

No test has a container engine: the programs take the broker of the environment instead of starting one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples/testcontainers"
PAGE = ROOT / "docs/how-to/containers.md"

CONFIG = '{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": "orders"}]}]}}'

BUILDS = {
    "python": [],
    "node": ["npm", "install", "--no-audit", "--no-fund", "--silent"],
    "go": ["go", "build", "-o", "orders", "."],
    "java": ["mvn", "-q", "-B", "compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib"],
}
COMMANDS = {
    "python": [sys.executable, "orders.py"],
    "node": ["node", "orders.mjs"],
    "go": ["./orders"],
    "java": ["java", "-cp", "target/classes:target/lib/*", "Orders"],
}
SOURCES = {
    "python": "orders.py",
    "node": "orders.mjs",
    "go": "orders.go",
    "java": "src/main/java/Orders.java",
}

TOOLS = {"python": sys.executable, "node": "npm", "go": "go", "java": "mvn"}
LANGUAGES = [
    # The reason: a machine without the language's own tool cannot build its program; CI has all of them.
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is missing"))
    for name, tool in TOOLS.items()
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that is configured as the recipes configure the image."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONFIG_JSON", CONFIG)
        folder = tmp_path_factory.mktemp("broker")
        with BrokerProcess(folder, ["--durability=os", "--auth=development"]) as process:
            yield process
            assert process.stop() == 0


@pytest.mark.long
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_recipe_builds_and_runs(language: str, broker: BrokerProcess, tmp_path: Path) -> None:
    folder = tmp_path / language
    shutil.copytree(RECIPES / language, folder)
    if BUILDS[language]:
        built = subprocess.run(
            BUILDS[language], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert built.returncode == 0, built.stdout + built.stderr

    def run(connection_string: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            COMMANDS[language],
            cwd=folder,
            env={**os.environ, "SERVICEBUS_CONNECTION_STRING": connection_string},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    done = run(broker.connection_string)
    assert done.stdout.splitlines()[-1:] == ["received: hello"], done.stdout + done.stderr
    assert done.returncode == 0
    assert run(broker.connection_string.replace("SAS_KEY_VALUE", "wrong")).returncode != 0


@pytest.mark.parametrize("language", BUILDS)
def test_the_page_shows_the_recipe(language: str) -> None:
    source = (RECIPES / language / SOURCES[language]).read_text()
    found = re.search(r"^ *(?:#|//) start\n(.*?)^ *(?:#|//) end$", source, re.DOTALL | re.MULTILINE)
    assert found is not None
    lines = found[1].strip("\n").splitlines()
    indent = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    shown = "\n".join(line[indent:] for line in lines).strip()
    assert shown in PAGE.read_text()
