"""The examples of docs/how-to/http.md run in one shell, with the port replaced, and print what the page
shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess
from tests.interop.test_http_edges import ENTRY
from tests.interop.test_rest import Http

PAGE = Path(__file__).parents[2] / "docs/how-to/http.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Req: T-09."""
    found = re.findall(r"^```sh\n(.*?)^```\n^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 7
    (tmp_path / ".venv").symlink_to(sys.prefix)
    with BrokerProcess(tmp_path) as broker:
        script = "".join(commands for commands, _ in found).replace(":5300", f":{broker.http_port}")
        done = subprocess.run(
            ["bash", "-eu", "-c", script],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
            check=False,
        )
    assert (done.stdout, done.stderr) == ("".join(output for _, output in found), "")


def test_the_python_on_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Req: T-09."""
    [(program, output)] = re.findall(
        r"^```python\n(.*?)^```\n^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    with BrokerProcess(tmp_path) as broker:
        web = Http(broker.http_port, None)
        assert web.ask("PUT", "/orders", ENTRY.format(""))[0] == 201
        web.close()
        script = program.replace(":5300", f":{broker.http_port}")
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.stdout, done.stderr) == (output, "")
