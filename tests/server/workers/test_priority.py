"""Work that can wait leaves the processor to whoever wakes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


# The reason: macOS lacks it; there a process has its niceness alone.
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system has no such scheduling")
def test_a_process_yields_and_stays_so() -> None:
    program = (
        "import os\n"
        "from peeklock.worker.priority import yield_to_clients\n"
        "yield_to_clients()\n"
        "yield_to_clients()\n"
        "print(os.sched_getscheduler(0) == os.SCHED_IDLE, os.nice(0) >= 10)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "True True\n"
