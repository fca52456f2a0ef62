"""`peeklock` alone and its help show the commands by task, and start without what a command alone needs."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections import Counter

from click.testing import CliRunner

from peeklock.cli import main
from peeklock.cli.tasks import TASKS, Commands, overview

assert isinstance(main, Commands)
REGISTERED = set(main.commands)


def test_each_command_is_in_exactly_one_task() -> None:
    listed = Counter(name for task in TASKS for name in task.commands)
    assert {name for name, count in listed.items() if count > 1} == set()
    assert set(listed) >= REGISTERED


def test_the_help_shows_each_registered_command_once_below_its_task() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    sections = re.split(r"^([A-Z].*):\n", shown, flags=re.MULTILINE)
    by_title = dict(zip(sections[1::2], sections[2::2], strict=True))
    names = {
        title: set(re.findall(r"^  ([a-z-]+)  ", text, re.MULTILINE)) for title, text in by_title.items()
    }
    for task in TASKS:
        assert names.get(task.title, set()) == set(task.commands) & REGISTERED


def test_no_summary_is_cut() -> None:
    for words in ([], ["dead-letters"], ["queues"], ["connections"]):
        _, _, shown = CliRunner().invoke(main, [*words, "--help"]).output.partition("\n")
        assert "...\n" not in shown


def test_examples_name_registered_commands_and_parse() -> None:
    lines = [*overview(REGISTERED)]
    for task in TASKS:
        for _, example in task.examples:
            used = set(re.findall(r"peeklock ([a-z-]+)", example))
            assert used <= {name for each in TASKS for name in each.commands}
            assert any(example in line for line in lines) is (used <= REGISTERED)
    assert not any("peeklock send" in line for line in overview(REGISTERED - {"send"}))
    assert max(map(len, lines)) <= 100


def test_alone_in_a_terminal_it_shows_what_there_is_to_do() -> None:
    reader, writer = pty.openpty()
    with os.fdopen(reader, "rb", 0) as shown:
        process = subprocess.Popen([sys.executable, "-m", "peeklock"], stdout=writer)
        os.close(writer)
        text = b""
        try:
            while chunk := shown.read(65536):
                text += chunk
        except OSError:
            pass  # Linux: the other end is closed
        assert process.wait(30) == 0
    assert text.decode().splitlines() == [*overview(REGISTERED)]


def test_alone_without_a_terminal_it_is_a_wrong_use() -> None:
    done = subprocess.run([sys.executable, "-m", "peeklock"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: peeklock [OPTIONS] COMMAND")


def test_the_start_imports_nothing_that_one_command_alone_needs() -> None:
    code = "import sys, peeklock.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    slow = {"asyncio", "ssl", "http.client", "sqlite3", "rich", "concurrent.futures", "xml"}
    slow |= {"peeklock.amqp", "peeklock.broker", "peeklock.server", "peeklock.client.connection"}
    assert slow & set(done.stdout.split()) == set()
