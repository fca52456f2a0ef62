"""What clients of any language report, and what must follow from it.

Owns: the promises, and the rows for the audit. Must not know: how a client works; what fails when.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SENT, UNKNOWN, RECEIVED, COMPLETED = "sent", "send_unknown", "received", "completed"
"""Actions of a ledger, see `peeklock.pipeline.audit.ledger`."""


@dataclass
class Book:
    """Takes reports from threads."""

    queue: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    """For the audit."""
    sent: set[str] = field(default_factory=set)
    """Message ids whose send was acknowledged."""
    asked: set[str] = field(default_factory=set)
    """Message ids whose send was not answered."""
    seen: Counter[str] = field(default_factory=Counter)
    """Deliveries of each message id."""
    completed: set[str] = field(default_factory=set)
    """Message ids whose completion was acknowledged."""
    faults: list[str] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    """When a send or a completion was acknowledged."""
    by_client: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Actions of each client."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, client: str, action: str, message_id: str, number: int = 0) -> None:
        """Take a report; `number`: the sequence number of what was received."""
        with self._lock:
            self.by_client[client, action] += 1
            named = {"client": client, "action": action, "entity": self.queue}
            if action in (SENT, UNKNOWN):
                (self.sent if action == SENT else self.asked).add(message_id)
                self.rows.append({**named, "message_id": message_id})
            elif action == RECEIVED:
                self.seen[message_id] += 1
                if message_id in self.completed:
                    self.faults.append(f"{message_id} came back to {client} after its completion")
                self.rows.append({**named, "sequence_number": number})
            else:
                if message_id in self.completed:
                    self.faults.append(f"{message_id} was completed twice, then by {client}")
                self.completed.add(message_id)
                self.rows.append({**named, "sequence_number": number})
            if action in (SENT, COMPLETED):
                self.moments.append(time.monotonic())

    def count(self) -> int:
        """Return how many sends and completions were acknowledged."""
        return len(self.moments)

    def gap_s(self, from_s: float) -> float:
        """Return the longest time without an acknowledgement, of those that ended after a moment."""
        with self._lock:
            moments = sorted(self.moments)
        return max((b - a for a, b in itertools.pairwise(moments) if b > from_s), default=0.0)

    def is_drained(self) -> bool:
        """Return whether all that must come has come."""
        with self._lock:
            return not self.sent - self.seen.keys()

    def judge(self) -> list[str]:
        """Return what is wrong, as texts, once all that was left has been received."""
        lost = sorted(self.sent - self.seen.keys())
        strange = sorted(self.seen.keys() - self.sent - self.asked)
        found = list(self.faults)
        if lost:
            found.append(f"{len(lost)} acknowledged messages are lost: {', '.join(lost[:3])}")
        if strange:
            found.append(f"{len(strange)} messages were never sent: {', '.join(strange[:3])}")
        return found

    def write(self, file: Path, namespace: str) -> None:
        """Write the rows as JSON lines."""
        file.write_text("".join(json.dumps({"namespace": namespace, **row}) + "\n" for row in self.rows))
