"""What a rescue lost, as lines of text, and the names of queues and messages in such lines.

A lost batch leaves no trace of its content: how many messages it stored or removed is unknown. A lost body is
known by its message, whose record is in the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY

BATCHES_NAMED_MAX = 10
"""Runs of lost batches that are named. Our choice."""

MESSAGES_NAMED_MAX = 20
"""Messages without a body that are named; the rest is counted. Our choice: one line of a log."""

NONE_MISSING = "no acknowledged message is missing"
"""Beginning of the line that reports it."""

_SUB_QUEUES = ("", " (dead letters)", " (transfer dead letters)", " (session states)")
_UNKNOWN = "the messages that they stored are lost, an unknown number; messages that they removed may be back"


@dataclass(slots=True)
class Losses:
    """What a rescue could not copy."""

    last_no: int = 0
    """The last readable batch; 0 = none."""
    batches: list[int] = field(default_factory=list)
    """Unreadable batches before that."""
    doubts: list[str] = field(default_factory=list)
    """Reasons why a readable batch may not be the one that was written, or why rows may be missing."""
    bodies: list[tuple[int, SequenceNumber]] = field(default_factory=list)
    """Queue id and sequence number of the messages with unreadable bodies."""
    bodies_known: int = 0
    """Messages that are dead-lettered already because their bodies are damaged."""
    orphans: int = 0
    """Messages of entities that are no longer defined."""
    definitions: list[str] = field(default_factory=list)
    """Definitions that could not be copied, and why."""
    event_rows: int = 0
    """Unreadable event rows."""

    def lines(self, acknowledged_no: int | None, names: Mapping[int, str]) -> list[str]:
        """Return what is lost, or that nothing is.

        Args:
            acknowledged_no: the last batch that the witness knows of; None = there is no witness.
            names: of entities, by id.
        """
        said = [f"not copied: {line}" for line in self.definitions]
        if self.batches:
            said.append(f"batches that cannot be read: {_runs(self.batches)}; {_UNKNOWN}")
        if acknowledged_no is not None and acknowledged_no > self.last_no:
            missing = sorted({*range(self.last_no + 1, acknowledged_no + 1)}.difference(self.batches))
            if missing:
                said.append(f"acknowledged batches that are missing: {_runs(missing)}; {_UNKNOWN}")
        said += self.doubts
        is_whole = not said
        if self.orphans:
            said.append(f"messages of entities that are deleted or no longer defined: {self.orphans:,}")
        if self.bodies:
            named = messages_named(sorted(self.bodies), names, MESSAGES_NAMED_MAX)
            said.append(f"bodies that cannot be read: {len(self.bodies):,}, of {named}")
        if self.bodies_known:
            said.append(f"dead letters whose bodies were already known to be damaged: {self.bodies_known:,}")
        if self.event_rows:
            said.append(f"event rows that cannot be read: {self.event_rows:,}")
        if acknowledged_no is None:
            said.append(
                f"there is no witness: whether more than batch {self.last_no:,} was acknowledged is unknown"
            )
        elif is_whole:
            but = " except those above" if said else ""
            found = f"all batches up to {self.last_no:,} were found, including those after the damage"
            said.append(f"{NONE_MISSING}{but}: {found}")
        return said


def queue_name(queue_id: int, names: Mapping[int, str]) -> str:
    """Return the name of a queue as users know it; `names`: of entities, by id."""
    entity_id, sub_queue = divmod(queue_id, QUEUES_PER_ENTITY)
    return f"'{names[entity_id]}'" + _SUB_QUEUES[sub_queue]


def messages_named(
    messages: Sequence[tuple[int, SequenceNumber]], names: Mapping[int, str], most: int
) -> str:
    """Name up to `most` messages, given as queue id and sequence number, and count the others."""
    named = ", ".join(
        f"message {number} of {queue_name(queue_id, names)}" for queue_id, number in messages[:most]
    )
    more = len(messages) - most
    return named + (f" and {more:,} more" if more > 0 else "")


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
