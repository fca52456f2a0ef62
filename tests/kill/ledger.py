"""What clients learnt, and what must therefore hold (R-02).

Owns: the promises. Must not know: sockets or processes. Each message carries `uid=NNNNNNNN;` in its body.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, takewhile
from random import Random

LATE = 300


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(slots=True)
class Fate:
    """What is known of one message."""

    uid: int
    group: int
    """Number of its batch; 0 = sent alone."""
    accepted: bool = False
    rejected: str | None = None
    seen: int = 0
    """How often it was delivered."""
    number: int = 0
    completing: bool = False
    completed: bool = False


class Ledger:
    """All messages of one run, over any number of broker processes."""

    def __init__(self) -> None:
        self.fates: dict[int, Fate] = {}
        self._by_number: dict[int, int] = {}

    def sending(self, group: int = 0) -> int:
        """Return the uid of a message about to be sent."""
        uid = len(self.fates) + 1
        self.fates[uid] = Fate(uid, group)
        return uid

    def sent_before(self, random: Random) -> list[int]:
        """Choose what was sent once already: a message, or all of a batch. Half of the choices are recent
        ones, whose outcome is mostly unknown."""
        last = len(self.fates)
        first = max(1, last - LATE) if random.random() < 0.5 else 1
        uid = random.randint(first, last)
        group = self.fates[uid].group
        if not group:
            return [uid]
        return list(takewhile(lambda member: self._is_in(member, group), count(group)))

    def _is_in(self, uid: int, group: int) -> bool:
        return uid in self.fates and self.fates[uid].group == group

    def answered(self, uid: int, condition: str | None) -> None:
        """Record the outcome of its send; None = accepted."""
        fate = self.fates[uid]
        if condition is None:
            fate.accepted = True
        else:
            fate.rejected = condition
            if fate.seen:
                raise Broken(f"refused with {condition}, yet delivered: {fate}")

    def delivered(self, uid: int, number: int) -> None:
        """Check a delivery."""
        fate = self.fates.get(uid)
        if fate is None:
            raise Broken(f"uid {uid} was never sent")
        if fate.completed:
            raise Broken(f"came back after its completion was acknowledged: {fate}")
        if fate.rejected is not None:
            raise Broken(f"refused, yet delivered: {fate}")
        if fate.number not in (0, number):
            raise Broken(f"delivered as {number}, before as another: {fate}")
        if self._by_number.setdefault(number, uid) != uid:
            raise Broken(f"number {number} was given to uid {self._by_number[number]}, and again to {uid}")
        fate.number = number
        fate.seen += 1

    def completing(self, uid: int) -> None:
        """Record that a receiver sends its completion."""
        self.fates[uid].completing = True

    def completed(self, uid: int) -> None:
        """Record that its completion was acknowledged."""
        fate = self.fates[uid]
        if fate.completed:
            raise Broken(f"two completions were acknowledged: {fate}")
        fate.completed = True

    def audit_rows(self, queue: str) -> list[dict[str, object]]:
        """Return everything as rows for the audit. What was sent again was dropped as a duplicate, so that
        each message counts once; where it was sent it may have been forwarded to `queue`."""
        rows: list[dict[str, object]] = []
        for fate in self.fates.values():
            sent = "sent" if fate.accepted else "send_refused" if fate.rejected else "send_unknown"
            rows.append({"action": sent, "entity": queue, "message_id": str(fate.uid)})
            if fate.seen:
                done = "completed" if fate.completed else "received"
                rows.append({"action": done, "entity": queue, "sequence_number": fate.number})
        return rows

    def is_drained(self) -> bool:
        """Whether nothing more must come: all that was accepted, and the rest of each batch that was stored
        without a known outcome."""
        begun = {fate.group for fate in self.fates.values() if fate.group and fate.seen}
        return all(
            fate.completed or fate.completing
            for fate in self.fates.values()
            if fate.accepted or fate.group in begun
        )

    def finish(self) -> dict[str, int]:
        """Check everything, once all that was left has been received and completed. Raises: Broken."""
        lost = [f for f in self.fates.values() if f.accepted and not f.completed and not f.completing]
        if lost:
            raise Broken(f"{len(lost)} acknowledged messages are lost, the first: {lost[:3]}")
        groups: dict[int, list[Fate]] = {}
        for fate in self.fates.values():
            if fate.group:
                groups.setdefault(fate.group, []).append(fate)
        for members in groups.values():
            # Every stored message was delivered at some time, since all of them have been drained.
            if len({fate.seen > 0 for fate in members}) > 1:
                raise Broken(f"a batched send was stored in part: {members}")
        fates = self.fates.values()
        return {
            "sent": len(fates),
            "accepted": sum(fate.accepted for fate in fates),
            "refused": sum(fate.rejected is not None for fate in fates),
            "completed": sum(fate.completed for fate in fates),
            "redelivered": sum(fate.seen > 1 for fate in fates),
        }
