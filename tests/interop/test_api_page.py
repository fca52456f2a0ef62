"""The examples of docs/how-to/api.md run in one shell, with the port replaced, and print what the page
shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess

PAGE = Path(__file__).parents[2] / "docs/how-to/api.md"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    """Req: T-09."""
    found = re.findall(r"^```sh\n(.*?)^```\n^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 12
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
