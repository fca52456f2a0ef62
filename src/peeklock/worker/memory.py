"""How much memory a worker may have: what a client can make it need ends with a message, not with the host's.

`RLIMIT_DATA` counts what a process has reserved for itself, used or not. Source: getrlimit(2).
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final

from peeklock.worker.output import WorkFailed

DATA_BYTES_MAX: Final = 4 << 30
"""Our choice: a job receives 16 messages at first, has them twice while it edits them, and the largest have
100 MiB; pyarrow reserves 1 GiB."""


def limit_memory() -> None:
    """Limit the memory of this process, unless it has a lower limit."""
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    soft, hard = (DATA_BYTES_MAX if each == resource.RLIM_INFINITY else each for each in limits)
    with contextlib.suppress(OSError, ValueError):  # a system may lack it
        resource.setrlimit(resource.RLIMIT_DATA, (min(soft, hard, DATA_BYTES_MAX), limits[1]))


def out_of_memory() -> WorkFailed:
    """Return the failure of a work that has met the limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return WorkFailed(
        "out of memory",
        f"The work needs more memory than its process may have, {limit >> 20:,} MiB: choose fewer messages, "
        "or simpler criteria.",
    )
