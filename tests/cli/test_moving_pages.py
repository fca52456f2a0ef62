"""The commands of docs/how-to/dead-letters.md and move-messages.md run, as a shell runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock.client import (
    Administration,
    BlockingConnection,
    ConnectionString,
    Properties,
    ReceiveMode,
    encode_message,
)
from peeklock.client.links import dead_letter
from peeklock.testing.served import ServedBroker

HOW_TO = Path(__file__).parents[2] / "docs/how-to"


def fill(settings: ConnectionString) -> None:
    """Make 40 messages, half of them dead letters, of each kind that the pages name."""
    connection = BlockingConnection(settings)
    sender = connection.sender("orders")
    for number in range(40):
        sender.send(
            encode_message(
                properties=Properties(subject="pizza"),
                application_properties={"n": number, "kind": "pizza"},
                data=b'{"order": {"kind": "pizza"}}',
            )
        )
    sender.flush()
    receiver = connection.receiver("orders", ReceiveMode.PEEK_LOCK)
    for delivery in receiver.receive(20, 5):
        receiver.settle(delivery, dead_letter("MaxDeliveryCountExceeded"))
    receiver.flush()
    connection.close()


@pytest.mark.parametrize(("name", "count"), [("dead-letters.md", 13), ("move-messages.md", 9)])
def test_the_commands_of_a_page_run(name: str, count: int, tmp_path: Path) -> None:
    """Req: T-11."""
    page = (HOW_TO / name).read_text(encoding="utf-8")
    commands = [
        command
        for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
        for command in re.findall(r"^peeklock .*", block, re.MULTILINE)
    ]
    assert len(commands) == count
    with ServedBroker() as broker:
        settings = ConnectionString.parse(broker.connection_string)
        administration = Administration.of(settings)
        for queue in ("orders", "backup", "orders-mended"):
            administration.create("queue", queue, {})
        administration.create("queue", "chats", {"RequiresSession": True})
        fill(settings)
        for command in commands:
            result = subprocess.run(
                ["/bin/sh", "-c", command.replace("peeklock ", f"{sys.executable} -m peeklock ", 1)],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                    "SERVICEBUS_CONNECTION_STRING": broker.connection_string,
                    "XDG_STATE_HOME": str(tmp_path),
                },
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (result.returncode, result.stderr) == (0, ""), command
            assert result.stdout


@pytest.mark.parametrize("name", ["dead-letters.md", "move-messages.md"])
def test_the_connection_string_of_a_page_is_one(name: str) -> None:
    page = (HOW_TO / name).read_text(encoding="utf-8")
    [text] = re.findall(r'^export SERVICEBUS_CONNECTION_STRING="(.*)"$', page, re.MULTILINE)
    assert ConnectionString.parse(text).host == "localhost"
