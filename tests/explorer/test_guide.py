"""The commands of docs/how-to/explorer.md do what the page says, and so does its proxy."""

from __future__ import annotations

import http.client
import re
import shlex
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess
from tests.explorer.test_frame import PREFIX

PAGE = (Path(__file__).parents[2] / "docs/how-to/explorer.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```sh\n(.*)\n^```", PAGE, re.MULTILINE)


def test_each_block_of_the_page_is_tried() -> None:
    assert len(COMMANDS) + len(re.findall("^```nginx", PAGE, re.MULTILINE)) == PAGE.count("\n```") / 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_serves_the_page_or_leaves_it_out(command: str, tmp_path: Path) -> None:
    program, verb, *words = shlex.split(command)
    assert (program, verb, *words[:2]) == ("peeklock", "serve", "--data", "./data")
    with BrokerProcess(tmp_path, words[2:]) as broker:
        connection = http.client.HTTPConnection("localhost", broker.http_port, timeout=20)
        connection.request("GET", "/")
        answer = connection.getresponse()
        found = answer.status, b"<title>peeklock</title>" in answer.read()
        connection.close()
    assert found == ((401, False) if "--explorer off" in command else (200, True))


def test_the_proxy_of_the_page_is_that_of_the_tests() -> None:
    """`test_frame` opens the page behind one that replaces the path: `proxy_pass` ends with a slash."""
    [(path, target)] = re.findall(r"^location (\S+) \{\n    proxy_pass (\S+);$", PAGE, re.MULTILINE)
    assert path == f"{PREFIX}/"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", target)
