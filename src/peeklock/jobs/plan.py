"""What a job does, to which messages, and what it promises."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from peeklock.jobs.edits import (
    DEAD_LETTER_PROPERTIES,
    RESUBMITS,
    RESUBMITTED_FROM,
    Edits,
    Value,
    edited,
    new_id,
)
from peeklock.jobs.groups import REASON, grouping
from peeklock.search import Criteria, Peeked, Search

Work: TypeAlias = Literal["purge", "move", "resubmit", "deadLetter", "reschedule"]

_SUB_QUEUES: Final = ("/$transfer/$deadletterqueue", "/$deadletterqueue")


class Guarantee(enum.Enum):
    """How often a message arrives at the target, if anything is killed at any instant."""

    TRANSACTIONS = "Exactly once: each message is sent and removed in one transaction."
    DUPLICATE_DETECTION = (
        "Exactly once: each message is sent, then removed. One that is sent again has the same new message "
        "id, and the target drops it, as long as its duplicate detection remembers the id."
    )
    AT_LEAST_ONCE = (
        "At least once: each message is sent, then removed. If this is interrupted in between, a message can "
        "be in both places, and arrive again."
    )
    REMOVED = "Each message that is removed is gone."
    DEAD_LETTERED = "Each message is moved to the dead-letter queue once, by the broker."
    RESCHEDULED = (
        "Each message is copied to its new time, then cancelled. If this is interrupted in between, the job "
        "completes it when it is resumed; a message that falls due meanwhile can come twice."
    )

    @property
    def sentence(self) -> str:
        """The promise, for people."""
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job does."""

    work: Work
    namespace: str
    """Host and port of the source's namespace."""
    source: str
    """Path of a queue, subscription or sub-queue."""
    target_namespace: str | None = None
    target: str | None = None
    """Path of a queue or topic; None = messages are removed, or dead-lettered."""
    criteria: Criteria = field(default_factory=Criteria)
    by: str = REASON
    group: str | None = None
    """Only messages of this group, see `peeklock.jobs.groups`."""
    numbers: frozenset[int] | None = None
    """Only messages with these sequence numbers."""
    edits: Edits = field(default_factory=Edits)
    limit: int | None = None
    rate: float | None = None
    """Messages a second, at most."""
    reason: str | None = None
    description: str | None = None
    """Why messages are dead-lettered."""
    is_marked: bool = False
    """Whether messages say that they were resubmitted, and from where."""
    has_new_ids: bool = False
    by_transactions: bool = False
    """Whether source and target are in one namespace, which has transactions."""
    detects_duplicates: bool = False
    """Whether the target is known to do so."""

    @property
    def guarantee(self) -> Guarantee:
        """What the job promises."""
        if self.work == "reschedule":
            return Guarantee.RESCHEDULED
        if self.target is None:
            return Guarantee.DEAD_LETTERED if self.work == "deadLetter" else Guarantee.REMOVED
        if self.by_transactions:
            return Guarantee.TRANSACTIONS
        if self.detects_duplicates and self.has_new_ids:
            return Guarantee.DUPLICATE_DETECTION
        return Guarantee.AT_LEAST_ONCE

    def chooser(self) -> Callable[[Peeked], bool]:
        """Return whether a message is one of the job's. Raises: SearchError."""
        search = Search.compile(self.criteria)
        name = None if self.group is None else grouping(self.by)

        def chooses(peeked: Peeked) -> bool:
            return (
                (self.numbers is None or peeked.sequence_number in self.numbers)
                and search.matches(peeked)
                and (name is None or name(peeked) == self.group)
            )

        return chooses

    def outgoing(self, peeked: Peeked) -> bytes:
        """Return a message as it is sent. Raises: DecodeError."""
        marks: dict[str, Value | None] = {}
        if self.work == "resubmit":
            marks.update(dict.fromkeys(DEAD_LETTER_PROPERTIES))
        if self.is_marked:
            before = peeked.application_properties.get(RESUBMITS)
            marks[RESUBMITS] = before + 1 if type(before) is int and before >= 0 else 1
            marks[RESUBMITTED_FROM] = owner(self.source)
        message_id = None
        if self.has_new_ids:
            number = peeked.sequence_number
            assert number is not None, "it was received"
            done = "resubmitted" if self.work == "resubmit" else "moved"
            message_id = new_id(peeked.properties.message_id, number, done)
        return edited(peeked.payload, self.edits, message_id=message_id, marks=marks)

    def with_facts(self, *, by_transactions: bool, detects_duplicates: bool | None, keeps_ids: bool) -> Plan:
        """Return the plan with what is known of the target; None = the key may not ask.

        New ids: where the target may detect duplicates, it may have seen the old ones.
        """
        return replace(
            self,
            by_transactions=by_transactions,
            detects_duplicates=detects_duplicates is True,
            has_new_ids=detects_duplicates is not False and not keeps_ids,
        )


def owner(path: str) -> str:
    """Return the queue or subscription of a sub-queue's path."""
    for suffix in _SUB_QUEUES:
        if path.lower().endswith(suffix):
            return path[: -len(suffix)]
    return path


def sends_to(path: str) -> str:
    """Return where messages of a path come from: the queue, or the topic of a subscription."""
    entity = owner(path)
    at = entity.lower().find("/subscriptions/")
    return entity if at < 0 else entity[:at]
