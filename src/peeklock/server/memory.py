"""How much memory this process may use, read once from the system."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the machine's memory, or the limit of our control group or one above it if that is lower.

    Source: Linux, "Control Group v2", `memory.max`; "Memory Resource Controller" (v1),
    `memory.limit_in_bytes`.
    """
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_group_limits(root)])


def _group_limits(root: Path) -> list[int]:
    """Return the limits of the control groups that this process is in, from its own up to the root."""
    limits: list[int] = []
    with contextlib.suppress(OSError):  # another system, or no control groups
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                mount, file = root / "sys/fs/cgroup", "memory.max"
            elif "memory" in controllers.split(","):
                mount, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
            else:
                continue
            group = Path(path.lstrip("/"))
            # Within a container the path may be that of the host: the limit is at the mount then.
            for folder in (group, *group.parents):
                limits += _limit(mount / folder / file)
    return limits


def _limit(file: Path) -> list[int]:
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # not there, or `max`
        return []
