"""The priority of a process whose work can wait for the broker's other clients."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

NICENESS: Final = 10
"""Our choice: as the exporter of the event log."""


def be_nice() -> None:
    """Lower the priority of this process, which may read what the broker writes."""
    with suppress(OSError):
        os.nice(max(0, NICENESS - os.nice(0)))


def yield_to_clients() -> None:
    """Have this process work when no other one wants its core, as far as the system can do that.

    For a client of the broker: a reader of its files that waits long in mid-read would hold up its writes.

    Linux groups processes by session, and compares niceness within a group alone: a command in another
    terminal than the broker's would take its turns of 3 ms like the broker. A process of `SCHED_IDLE` yields
    to any that wakes. Source: sched(7), "The autogroup feature" and "SCHED_IDLE".
    """
    be_nice()
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # a sandbox may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
