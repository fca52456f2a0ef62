"""The demo of a cluster as a user starts it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.official import JavaScriptClient
from tests.postgres_server import require_postgres


@pytest.mark.long
@pytest.mark.timeout(
    400
)  # servers, nodes, clients and Spark on cores that others use; 60 s on a quiet machine
def test_the_demo_loses_nothing_with_its_owner_and_its_primary() -> None:
    """Req: R-01, R-02."""
    require_postgres()
    if missing := JavaScriptClient.missing():
        pytest.skip(missing)  # the reason: the demo has clients in two languages, and one is Node.js
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == (
        "Nothing that was acknowledged is lost, and nothing came twice: clients and event log agree."
    )
    assert "No violation in" in done.stdout
