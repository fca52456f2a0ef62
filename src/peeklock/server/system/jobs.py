"""The jobs of a namespace, as facts of the process: one fact a job.

It owns their keys; it must not know what a job does. Jobs have no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peeklock.server.system.store import SystemStore, Values

PREFIX = "jobs/"


class JobFacts:
    """The facts of the jobs of one namespace."""

    def __init__(self, system: SystemStore, namespace: str) -> None:
        """Name the namespace, in any case."""
        self._system = system
        self._prefix = prefix_of(namespace)

    def all(self) -> dict[str, Any]:
        """Return what is kept of each job, by id. Raises: StoreDamaged."""
        keys = self._system.keys_below(self._prefix)
        return {key.removeprefix(self._prefix): self._system.get(key) for key in keys}

    async def put(self, job_id: str, kept: Mapping[str, Any] | None) -> None:
        """Keep a job durably; None = forget it. Raises: StoreError."""
        await self._system.put({self._prefix + job_id: kept})


def prefix_of(namespace: str) -> str:
    """Return what the keys of the facts of a namespace begin with."""
    return f"{PREFIX}{namespace.lower()}/"


def forgotten(system: SystemStore, namespace: str) -> Values:
    """Return what is to be put to forget all jobs of a namespace."""
    return dict.fromkeys(system.keys_below(prefix_of(namespace)))
