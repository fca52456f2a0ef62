"""`python -m tests.cost COMMAND...`: run a step, and print the CPU seconds of it and all its children last.

Owns: the counting. Knows nothing of steps. The exit status is the command's. SIGABRT is passed on; SIGINT
reaches the whole group, so that the command ends by itself.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time

REAPER = 36
"""PR_SET_CHILD_SUBREAPER of Linux: orphans of the step become our children. Spark's Java does, and is most of
what its tests cost."""

LEFT_S_MAX = 20.0
"""Time for orphans of the command to end and be counted. Our choice: what Java takes under load."""


def run(command: list[str]) -> int:
    """Run the command, wait for its orphans, and return its exit status; a signal's is negative."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(REAPER, 1, 0, 0, 0)
    # Handlers, which the command does not inherit: it would also ignore signals that are ignored here.
    signal.signal(signal.SIGINT, lambda *_: None)
    process = subprocess.Popen(command)
    signal.signal(signal.SIGABRT, lambda *_: process.send_signal(signal.SIGABRT))
    status = process.wait()
    until = time.monotonic() + LEFT_S_MAX
    while time.monotonic() < until and _any_is_left():
        time.sleep(0.05)
    return status


def _any_is_left() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def main(command: list[str]) -> int:
    """Run the command and print its CPU time."""
    status = run(command)
    took = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU time: {took.ru_utime + took.ru_stime:.1f} s", flush=True)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
