"""The commands of docs/how-to/scheduled-messages.md run, one after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from peeklock.cli import main
from peeklock.client import Administration, ConnectionString
from peeklock.testing.served import ServedBroker

PAGE = (Path(__file__).parents[2] / "docs/how-to/scheduled-messages.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_run() -> None:
    """Req: T-11."""
    commands = re.findall(r"^peeklock .*", PAGE, re.MULTILINE)
    assert len(commands) == PAGE.count("\npeeklock ") == 11
    with ServedBroker() as broker:
        administration = Administration.of(ConnectionString.parse(broker.connection_string))
        administration.create("queue", "orders", {})
        for command in commands:
            _, *words = shlex.split(command)
            result = CliRunner().invoke(
                main, words, env={"SERVICEBUS_CONNECTION_STRING": broker.connection_string}
            )
            assert (result.exit_code, result.stderr) == (0, ""), command
            assert not result.stdout.startswith("0 messages"), command
        queue = administration.entity("orders")
        assert queue is not None
        assert (queue.counts["ScheduledMessageCount"], queue.counts["ActiveMessageCount"]) == (3, 2)


def test_the_connection_string_of_the_page_is_one() -> None:
    [text] = re.findall(r'^export SERVICEBUS_CONNECTION_STRING="(.*)"$', PAGE, re.MULTILINE)
    assert ConnectionString.parse(text).host == "localhost"
