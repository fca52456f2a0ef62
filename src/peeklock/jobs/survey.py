"""What is there when a job starts: its messages are counted by peeks, before any is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from peeklock.search import STATES, Peeked

PARTITION_SHIFT: Final = 48
"""Bits of a sequence number below its partition. Source: wire contract 3.2."""


class Snapshot:
    """The highest sequence number of each partition at the start of a job. What is higher came later."""

    def __init__(self, highest: Mapping[int, int]) -> None:
        self.highest = dict(highest)
        self._last = max(self.highest.values(), default=-1)

    def has(self, number: int | None) -> bool:
        """Return whether a message was there."""
        return number is not None and number <= self.highest.get(number >> PARTITION_SHIFT, -1)

    def ends_before(self, number: int) -> bool:
        """Return whether no message that was there has this number or a higher one."""
        return number > self._last


class Survey:
    """Counts the messages of a job, by state and by session."""

    def __init__(
        self, snapshot: Snapshot, chooses: Callable[[Peeked], bool], limit: int | None, *, by_session: bool
    ) -> None:
        self._snapshot = snapshot
        self._chooses = chooses
        self._limit = limit
        self._by_session = by_session
        self.states: Counter[str] = Counter()
        self.sessions: Counter[str] = Counter()
        """Active messages by session, in the order of their first ones."""

    def add(self, messages: Iterable[bytes]) -> bool:
        """Count some messages, in their order; return whether later ones are needed."""
        for payload in messages:
            peeked = Peeked(payload)
            number = peeked.sequence_number
            if number is None or self._snapshot.ends_before(number):
                return False
            if not self._snapshot.has(number) or not self._chooses(peeked):
                continue
            state = STATES[peeked.state]
            self.states[state] += 1
            if self._by_session and state == "active":
                self.sessions[peeked.session_id or ""] += 1
            if self._limit is not None and self.states["active"] >= self._limit:
                return False
        return True


def highest_of(numbers: Iterable[int]) -> dict[int, int]:
    """Return the highest of some sequence numbers by partition."""
    found: dict[int, int] = {}
    for number in numbers:
        partition = number >> PARTITION_SHIFT
        found[partition] = max(number, found.get(partition, -1))
    return found
