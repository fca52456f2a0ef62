"""Samples of what the broker uses, every few seconds: from its own metrics, and from /proc and the disk.

Owns: which figures, and where they come from. Must not know: how much is too much.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.site import Site

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_BOUND = re.compile(r'le="([^"]+)"')
MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen at one time."""

    at_s: float
    """Since the run began."""
    life: int
    age_s: float
    """Of the broker's process."""
    values: dict[str, float]


@dataclass(slots=True)
class _Before:
    """Counters of the sample before, of one life."""

    life: int = -1
    at_s: float = 0.0
    counts: dict[str, float] = field(default_factory=dict)
    sends: dict[float, float] = field(default_factory=dict)


class Watch(threading.Thread):
    """Samples a broker until it is stopped."""

    def __init__(self, site: Site, every_s: float) -> None:
        super().__init__(name="watch", daemon=True)
        self.samples: list[Sample] = []
        self.life = 0
        self.born_s = 0.0
        """When the present life was ready."""
        self.alive = False
        self.stopping = threading.Event()
        self._site = site
        self._every_s = every_s
        self._origin_s = time.monotonic()
        self._before = _Before()

    def now_s(self) -> float:
        """Return the time since the run began."""
        return time.monotonic() - self._origin_s

    def begins(self) -> None:
        """Record that the broker is ready, in a new life."""
        self.life += 1
        self.born_s = self.now_s()
        self.alive = True

    def run(self) -> None:
        """Take samples."""
        while not self.stopping.wait(self._every_s):
            life, pid = self.life, self._site.broker.pid
            if not self.alive or pid is None:
                continue
            try:
                values = self._look(life, pid)
            except (OSError, http.client.HTTPException, ValueError):
                continue  # it is dying, or has died
            if life == self.life:
                now_s = self.now_s()
                self.samples.append(Sample(now_s, life, now_s - self.born_s, values))

    def _look(self, life: int, pid: int) -> dict[str, float]:
        status, page = self._site.ask("GET", "/metrics")
        _, health = self._site.ask("GET", "/health")
        if status != 200:
            raise ValueError(status)
        counts, sends = read_metrics(page.decode())
        about = json.loads(health)
        values = {
            "memory, MB": counts["process_resident_memory_bytes"] / MB,
            "memory of the exporter, MB": sum(map(resident, children(pid))) / MB,
            "open files": float(len(os.listdir(f"/proc/{pid}/fd"))),
            "data folder, MB": size_of(self._site.broker.data) / MB,
            "event log, MB": size_of(self._site.log) / MB,
            "longest turn, ms": float(about.get("longest_turn_ms", 0)),
            "loop lag, ms": counts["peeklock_loop_lag_seconds"] * 1000,
            "messages held": float(about["active_messages"] + about["deferred_messages"]),
            "sessions": counts["peeklock_sessions"],
            "connections": counts["peeklock_connections"],
            "entities": counts["peeklock_entities"],
        }
        now_s, before = self.now_s(), self._before
        self._before = _Before(life, now_s, counts, sends)
        if before.life == life:
            values |= _rates(before, counts, now_s - before.at_s)
            recent = {bound: count - before.sends.get(bound, 0.0) for bound, count in sends.items()}
            for share in (0.5, 0.99):
                if (found := quantile(recent, share)) is not None:
                    values[f"send p{share * 100:.0f}, ms"] = found * 1000
        return values


def _rates(before: _Before, counts: dict[str, float], seconds: float) -> dict[str, float]:
    def rate(name: str) -> float:
        return (counts[name] - before.counts.get(name, 0.0)) / seconds

    return {
        "received, 1/s": rate("peeklock_messages_received_total"),
        "completed, 1/s": rate("peeklock_messages_completed_total"),
        "CPU, % of a core": rate("process_cpu_seconds_total") * 100,
    }


def read_metrics(page: str) -> tuple[dict[str, float], dict[float, float]]:
    """Return the sum of each series over the namespaces, and the histogram of sends by upper bound."""
    counts: dict[str, float] = {}
    sends: dict[float, float] = {}
    for line in page.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        name, labels, value = found[1], found[2] or "", float(found[3])
        if name == "peeklock_send_seconds_bucket" and (bound := _BOUND.search(labels)):
            sends[float(bound[1])] = sends.get(float(bound[1]), 0.0) + value
        elif name == "peeklock_loop_lag_seconds":
            counts[name] = max(counts.get(name, 0.0), value)
        else:
            counts[name] = counts.get(name, 0.0) + value
    return counts, sends


def quantile(buckets: dict[float, float], share: float) -> float | None:
    """Return a quantile of a cumulated histogram, interpolated as Prometheus does; None = nothing in it."""
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0
    if not total:
        return None
    below, lower = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= share * total:
            if bound == float("inf"):
                return lower
            inside = buckets[bound] - below
            return lower + (bound - lower) * ((share * total - below) / inside if inside else 1)
        below, lower = buckets[bound], bound
    return lower


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def resident(pid: int) -> int:
    """Return the resident bytes of a process, 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def size_of(folder: Path) -> int:
    """Return the bytes on disk of all files below a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            total += _stat(lambda: os.lstat(os.path.join(parent, name)).st_blocks * 512)  # noqa: B023
    return total


def _stat(ask: Callable[[], int]) -> int:
    try:
        return ask()
    except OSError:
        return 0  # removed meanwhile
