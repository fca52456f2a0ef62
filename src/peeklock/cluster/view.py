"""The nodes of a cluster and the stores that they may own, as read at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

LIVE_S = 5.0
"""A node that has not reported for so long is not live. Our choice: the length of a lease."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One node."""

    name: str
    address: str
    """`HOST:PORT` at which other nodes reach it."""
    seen_s: float
    """Since it reported last, by the clock of the database."""
    is_leaving: bool = False
    """It stops, and gives its stores back."""
    is_sound: bool = True
    """Whether its own listener answers it."""
    unreached: frozenset[str] = frozenset()
    """Nodes that it could not reach."""
    started_s: float = 0.0
    """Since it started."""
    version: str = ""

    @property
    def is_live(self) -> bool:
        """Whether it has reported lately."""
        return self.seen_s < LIVE_S


@dataclass(frozen=True, slots=True)
class StoreLease:
    """The lease on one store."""

    owner: str | None
    """The node that has or had it last; None = it was given back, or has a process that is no node."""
    left_s: float
    """Until it ends, if it is not renewed; 0 or less = it has ended, or was given back."""
    epoch: int
    session: str | None = None
    """The process that has it; a node that starts again is another one."""
    place: str | None = None
    """The node that an operator has chosen for it."""
    batch_no: int = 0
    """The last batch that is committed."""

    @property
    def is_valid(self) -> bool:
        """Whether its owner may still write."""
        return self.session is not None and self.left_s > 0


FREE = StoreLease(None, 0.0, 0)
"""The lease on a store that no process has opened yet."""


@dataclass(frozen=True, slots=True)
class View:
    """What the database says."""

    nodes: Mapping[str, ClusterNode] = field(default_factory=dict)
    held: Mapping[str, StoreLease] = field(default_factory=dict)
    """By the name of the store, of all stores that were ever opened."""

    def lease(self, store: str) -> StoreLease:
        """Return the lease on a store."""
        return self.held.get(store, FREE)
