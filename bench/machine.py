"""The machine and interpreter of the benchmarks, and their speed at the moment.

Owns: the calibration loop. Must not know: what is measured beside it.

A shared machine is up to a third faster in one minute than in the next. The loop does work like the broker's,
always the same: a figure that needs more CPU time beside it than before has risen.
"""

from __future__ import annotations

import os
import platform
import struct
import sysconfig
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROUNDS = 250_000
"""CPU time of the loop: 0.2 s on the machine of the published results."""

KEPT_S = 2.0
"""How long a time of the loop counts as the present one."""


def machine() -> dict[str, str]:
    """Describe the machine as far as it explains the figures."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": str(os.cpu_count()),
        "processor": models[0] if models else platform.processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": interpreter(),
    }


def interpreter() -> str:
    """Return the name of the interpreter's build: version, compiler, and how it was optimized."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    optimized = [
        text for flag, text in (("--enable-optimizations", "PGO"), ("--with-lto", "LTO")) if flag in options
    ]
    build = " and ".join(optimized) or "no PGO, no LTO"
    if not optimized and "deb_system" in sysconfig.get_scheme_names():
        build = "Debian's build (PGO and LTO)"  # which its options do not show
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{version}, {platform.python_compiler()}, {build}"


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class _Item:
    number: int
    body: bytes
    state: str = "ready"


def calibration_s(rounds: int = ROUNDS) -> float:
    """Return the CPU seconds of the loop: small objects, bytes packed and unpacked, dict changes."""
    head = struct.Struct(">BIQ")
    items: dict[int, _Item] = {}
    started = time.thread_time()
    for number in range(rounds):
        packed = head.pack(number & 255, number, number * number)
        kind, low, high = head.unpack_from(packed)
        items[low] = _Item(low, packed[1:5])
        if kind & 1 and low > 100:
            item = items.pop(low - 100)
            item.state = "done" if high else "none"
    return time.thread_time() - started


@dataclass(slots=True)
class Calibration:
    """The loop's present time."""

    taken_at: float = float("-inf")
    seconds: float = 0

    def __call__(self) -> float:
        """Return the time of the loop, run again unless that was just done."""
        if time.monotonic() - self.taken_at > KEPT_S:
            self.seconds = calibration_s()
            self.taken_at = time.monotonic()
        return self.seconds
