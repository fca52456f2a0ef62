"""`peeklock demo` as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).with_name("peeklock")
START = "import sys; from peeklock.cli import main; main(sys.argv[1:])"


@pytest.mark.interop
def test_every_job_ends_once_where_it_should_although_the_broker_is_killed() -> None:
    """In a pipe: plain lines, no control sequences.

    Req: R-02, L-15, T-11
    """
    done = subprocess.run(
        [PROGRAM, "demo", "--broker-only", "--jobs", "150", "--seed", "5"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "killed the broker (SIGKILL)" in done.stdout
    assert re.search(r"restarted.* it .* ready after [\d.]+ s", done.stdout)
    assert "Every job ended exactly once, where it should." in done.stdout
    assert "\x1b" not in done.stdout
    counted = re.search(r"counted (\d+) words, a count without a queue (\d+)", done.stdout)
    assert counted is not None
    assert counted[1] == counted[2]


def test_without_the_official_client_it_says_how_to_get_it() -> None:
    code = f"import sys; sys.modules['azure.servicebus'] = None; {START}"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "pip install 'peeklock[demo]'" in done.stdout
    assert "Traceback" not in done.stderr
