"""`peeklock demo` as a user runs it, to its last act."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark_session import QUICK_JAVA

PROGRAM = Path(sys.executable).with_name("peeklock")
START = "import sys; from peeklock.cli import main; main(sys.argv[1:])"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(320)
def test_the_audit_of_its_own_log_agrees(tmp_path: Path) -> None:
    """Req: X-03, X-04, X-05"""
    done = subprocess.run(
        [PROGRAM, "demo", "--jobs", "150", "--seed", "5"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "SPARK_SUBMIT_OPTS": QUICK_JAVA},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for job in ("lives", "metrics", "audit"):
        assert f"peeklock pipeline {job} --from" in done.stdout
    assert "No violation in" in done.stdout
    assert "Every job ended exactly once, where it should." in done.stdout
    plot = re.search(r"the plot stays: (\S+)", done.stdout)
    assert plot is not None
    picture = Path(plot[1])
    assert picture.read_bytes().startswith(b"\x89PNG")
    picture.unlink()
    picture.parent.rmdir()


def test_without_spark_it_says_how_to_get_it_before_anything_else() -> None:
    code = f"import sys; sys.modules['pyspark'] = None; {START}"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "pip install 'peeklock[spark]'" in done.stdout
    assert "--broker-only" in done.stdout
    assert "jobs" not in done.stdout
    assert "Traceback" not in done.stderr
