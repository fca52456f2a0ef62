"""The commands of docs/how-to/send-and-receive.md run, as a shell runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from peeklock.client import Administration, BlockingConnection, ConnectionString, Properties, encode_message
from peeklock.testing.served import ServedBroker

PAGE = (Path(__file__).parents[2] / "docs/how-to/send-and-receive.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    """Req: T-11."""
    commands = re.findall(r"^peeklock .*", PAGE, re.MULTILINE)
    assert len(commands) == PAGE.count("\npeeklock ") == 28
    [line] = re.findall(r"```json\n(.*)\n```", PAGE)
    (tmp_path / "orders.jsonl").write_text(f"{line}\n{line}\n")
    (tmp_path / "order.json").write_text("{}")
    python = f"{sys.executable} -m peeklock "
    with ServedBroker() as broker:
        administration = Administration.of(ConnectionString.parse(broker.connection_string))
        administration.create("queue", "orders", {})
        administration.create("queue", "backup", {})
        administration.create("queue", "chats", {"RequiresSession": True})
        connection = BlockingConnection(ConnectionString.parse(broker.connection_string))
        chats = connection.sender("chats")
        for session in ("ann", "ben"):
            chats.send(encode_message(properties=Properties(group_id=session), data=b"hello"))
        chats.flush()
        connection.close()
        for command in commands:
            result = subprocess.run(
                ["/bin/sh", "-c", re.sub(r"\bpeeklock (?=\w+ )", lambda _: python, command)],
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                    "SERVICEBUS_CONNECTION_STRING": broker.connection_string,
                },
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert (result.returncode, result.stderr) == (0, ""), command
            assert result.stdout


def test_the_connection_string_of_the_page_is_one() -> None:
    [text] = re.findall(r'^export SERVICEBUS_CONNECTION_STRING="(.*)"$', PAGE, re.MULTILINE)
    assert ConnectionString.parse(text).host == "localhost"
