"""The commands of docs/how-to/look-at-messages.md run, and its connection string is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from peeklock.admin.elements import write_settings
from peeklock.broker.vocabulary.descriptions import (
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.cli import main
from peeklock.cli.importing import administration_of
from peeklock.cli.running import find
from peeklock.client import ConnectionString
from peeklock.testing.served import ServedBroker

PAGE = (Path(__file__).parents[2] / "docs/how-to/look-at-messages.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_run() -> None:
    """Req: T-11."""
    commands = re.findall(r"^peeklock .*", PAGE, re.MULTILINE)
    assert len(commands) == PAGE.count("\npeeklock ") == 12
    with ServedBroker() as broker:
        administration = administration_of(find(connection_string=broker.connection_string))
        administration.create(QueueDescription("orders"))
        administration.create(TopicDescription("news"))
        settings = write_settings(SubscriptionDescription("news", "sport"))
        administration._put("news/Subscriptions/sport", settings, updates=False)
        for command in commands:
            _, *words = shlex.split(command)
            result = CliRunner().invoke(
                main, words, env={"SERVICEBUS_CONNECTION_STRING": broker.connection_string}
            )
            assert (result.exit_code, result.stderr) == (0, ""), command


def test_the_connection_string_of_the_page_is_one() -> None:
    [text] = re.findall(r'^export SERVICEBUS_CONNECTION_STRING="(.*)"$', PAGE, re.MULTILINE)
    assert ConnectionString.parse(text).host == "localhost"
