"""The commands of docs/how-to/measure-a-broker.md run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from peeklock.cli import main
from peeklock.client import ConnectionString
from peeklock.testing.served import ServedBroker

PAGE = (Path(__file__).parents[2] / "docs/how-to/measure-a-broker.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_run() -> None:
    """Req: T-11."""
    commands = re.findall(r"^peeklock .*", PAGE, re.MULTILINE)
    assert len(commands) == PAGE.count("\npeeklock ") == 6
    with ServedBroker() as broker:
        for command in commands:
            _, *words = shlex.split(command)
            environment = {"SERVICEBUS_CONNECTION_STRING": broker.connection_string}
            result = CliRunner().invoke(main, words, env=environment)
            assert (result.exit_code, result.stderr) == (0, ""), command
            assert result.stdout


def test_the_connection_string_of_the_page_is_one() -> None:
    [text] = re.findall(r'^export SERVICEBUS_CONNECTION_STRING="(.*)"$', PAGE, re.MULTILINE)
    assert ConnectionString.parse(text).host == "localhost"
