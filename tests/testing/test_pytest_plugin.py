"""The fixtures for users' tests: the example passes, also in parallel; a failure says what was there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytest"

FAILS = """
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

pytestmark = pytest.mark.servicebus(config="Config.json")


def test_it_fails(servicebus_namespace):
    message = ServiceBusMessage("something else", subject="s", application_properties={"n": 1})
    with ServiceBusClient.from_connection_string(servicebus_namespace.connection_string) as client:
        client.get_queue_sender("orders").send_messages(message)
    servicebus_namespace.wait_for("orders", where=lambda message: message["body"] == "a cake", timeout_s=0.2)


@pytest.mark.servicebus(config={"UserConfig": {"Namespaces": [{"Name": "x", "Queues": [{"Name": ""}]}]}})
def test_its_configuration_is_wrong(servicebus_namespace):
    pass
"""


def run(folder: Path, *arguments: str, module: str = "pytest") -> str:
    """Run the tests of a folder in a process of their own; return what it prints."""
    plugin = ["-p", "peeklock.testing.pytest_plugin"] if module == "pytest" else []
    done = subprocess.run(
        [sys.executable, "-m", module, *plugin, *arguments],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def example(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "shop" / "pytest.ini").write_text("[pytest]\n")
    return tmp_path / "shop"


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_example_passes(example: Path, workers: str) -> None:
    """In parallel each worker has a broker."""
    assert "4 passed" in run(example, "-q", "-p", "no:cacheprovider", "-n", workers)


def test_the_broker_may_be_in_the_process(example: Path) -> None:
    (example / "pytest.ini").write_text("[pytest]\nservicebus_broker = in-process\n")
    assert "3 passed" in run(example, "-q", "-p", "no:cacheprovider", "test_bakery.py")


def test_unittest_runs_it(example: Path) -> None:
    assert "OK" in run(example, "test_bakery_with_unittest", module="unittest")


def test_a_failure_says_what_was_there(example: Path) -> None:
    (example / "test_fails.py").write_text(FAILS)
    said = run(example, "-q", "-p", "no:cacheprovider", "test_fails.py")
    assert "0 of 1 messages came to 'orders' within 0.2 s." in said
    assert "1  active        'something else' subject='s' properties={'n': 1}" in said
    assert "Dead letters: 0" in said
    assert "the broker refused POST /$api/v1/namespaces: " in said
    assert "UserConfig.Namespaces[0].Queues[0].Name" in said
