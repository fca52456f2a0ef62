"""What a rescue could not read, in lines for people.

Owns: how the losses of a rescue are told, and which of them cannot be known. Must not know: how rows are
read.

A batch that is lost says nothing of what was in it: how many messages it stored or removed, nobody knows. A
body that is lost is known by its message, whose record is in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from peeklock.store.telling import messages_named

BATCHES_NAMED_MAX = 10
"""Runs of lost batches that are named. Our choice."""

MESSAGES_NAMED_MAX = 20
"""Messages without a body that are named; the rest is counted. Our choice: one line of a log."""


NONE_MISSING = "no acknowledged message is missing"
"""How the line begins that says so."""


@dataclass(slots=True)
class Losses:
    """What was found out while what can be read was copied."""

    last_no: int = 0
    """The last batch that can be read; 0 = none."""
    batches: list[int] = field(default_factory=list)
    """Batches before that, which cannot be read."""
    doubts: list[str] = field(default_factory=list)
    """Why a batch that can be read may not be the one that was written, and what else makes all uncertain."""
    bodies: list[tuple[int, int]] = field(default_factory=list)
    """Queue id and sequence number of the messages whose bodies cannot be read."""
    bodies_known: int = 0
    """Messages that were dead-lettered before, since their bodies are damaged."""
    orphans: int = 0
    """Messages of entities that are not defined any more."""
    definitions: list[str] = field(default_factory=list)
    """Definitions that were given up, and why."""
    event_rows: int = 0
    """Event rows that cannot be read."""

    def lines(self, acknowledged_no: int | None, names: Mapping[int, str]) -> list[str]:
        """Return what is lost, or that nothing is.

        Args:
            acknowledged_no: the last batch that the witness knows of; None = there is no witness.
            names: of entities, by id.
        """
        said = [f"given up: {line}" for line in self.definitions]
        if self.batches:
            said.append(f"batches that cannot be read: {_runs(self.batches)}; {_UNKNOWN}")
        if acknowledged_no is not None and acknowledged_no > self.last_no:
            missing = sorted({*range(self.last_no + 1, acknowledged_no + 1)}.difference(self.batches))
            if missing:
                said.append(f"batches that were acknowledged and are not there: {_runs(missing)}; {_UNKNOWN}")
        said += self.doubts
        is_whole = not said
        if self.orphans:
            said.append(
                f"messages of entities that were deleted, or have no definition now: {self.orphans:,}"
            )
        if self.bodies:
            named = messages_named(sorted(self.bodies), names, MESSAGES_NAMED_MAX)
            said.append(f"bodies that cannot be read: {len(self.bodies):,}, of {named}")
        if self.bodies_known:
            said.append(f"dead letters whose bodies were known to be damaged before: {self.bodies_known:,}")
        if self.event_rows:
            said.append(f"event rows that cannot be read: {self.event_rows:,}")
        if acknowledged_no is None:
            said.append(
                f"there is no witness: whether more than batch {self.last_no:,} was acknowledged is not known"
            )
        elif is_whole:
            but = " but what is named here" if said else ""
            said.append(
                f"{NONE_MISSING}{but}: all batches are found, up to {self.last_no:,}, also those behind the "
                "damage"
            )
        return said


_UNKNOWN = (
    "the messages that they stored are lost, and nobody can know how many; those that they removed may be "
    "there again"
)


def _runs(numbers: list[int]) -> str:
    """Write sorted numbers as runs: 7, 12 to 15."""
    runs: list[list[int]] = []
    for no in numbers:
        if runs and no == runs[-1][1] + 1:
            runs[-1][1] = no
        else:
            runs.append([no, no])
    shown = ", ".join(
        f"{one:,}" if one == last else f"{one:,} to {last:,}" for one, last in runs[:BATCHES_NAMED_MAX]
    )
    rest = sum(last - one + 1 for one, last in runs[BATCHES_NAMED_MAX:])
    return shown + (f" and {rest:,} more" if rest else "")
