"""What receive-and-delete requests over HTTP may remove.

Owns: one message for each of these requests, for as long as it may still take one. Must not know: who asks,
any structure of the broker. A request that is answered without a message has taken none. One whose client
left has taken none either, once nothing of it is in flight: a message that is gone then is a violation.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.oracle.history import History
from tests.simulation.oracle.records import Violation

Place = tuple[str, int]
"""Name of an entity, and which of its queues."""


@dataclass(slots=True, eq=False)
class Deletion:
    """One receive-and-delete request."""

    place: Place
    asked_ms: int
    charged: int
    """How many messages had been removed there unseen before it."""


class Deletions:
    """All of these requests."""

    def __init__(self, history: History) -> None:
        self._history = history

    def asking(self, place: Place) -> Deletion:
        """Record a request: one message may be removed."""
        budget = self._history.delete_budget
        budget[place] = budget.get(place, 0) + 1
        return Deletion(place, self._history.now_ms(), self._charged(place))

    def answered(self, deletion: Deletion, uid: int | None) -> None:
        """Check the answer, with a message or without one. Raises: Violation."""
        if uid is None:
            self._take_back(deletion)
        elif uid not in self._history.charged.get(deletion.place, ()):
            self._take_back(deletion)  # it may have been removed for another reason, and was charged to this

    def over(self, deletion: Deletion) -> None:
        """Record that the answer does not come, and that the broker knows it, or is dead. Raises:
        Violation."""
        if self._charged(deletion.place) == deletion.charged:
            self._take_back(deletion)

    def _charged(self, place: Place) -> int:
        return len(self._history.charged.get(place, ()))

    def _take_back(self, deletion: Deletion) -> None:
        left = self._history.delete_budget[deletion.place] - 1
        if left < 0:
            gone = self._history.charged[deletion.place][-1]
            raise Violation(
                f"uid {gone} is gone for a request that got none: {deletion}; {self._history.story(gone)}"
            )
        self._history.delete_budget[deletion.place] = left
