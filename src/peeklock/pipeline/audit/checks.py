"""The checks of the audit: their names and promises, findings, the verdict and its exit status."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

CLEAN, VIOLATED, NOT_PROVEN = 0, 1, 2
"""Exit statuses: all checks hold; one is violated; no violation, but some checks were not possible."""

SAMPLES_MAX = 10
"""Offending rows shown for each check."""


class Check(IntEnum):
    """A check. Spark carries the number; users see the name in lower case."""

    SEGMENT_GAP = 1
    BATCH_DAMAGED = 2
    NUMBER_GAP = 3
    NUMBER_TWICE = 4
    NO_BEGINNING = 5
    LOCK_OVERDUE = 6
    EXPIRY_OVERDUE = 7
    DOUBLE_SETTLEMENT = 8
    DELIVERED_AFTER_COMPLETION = 9
    DELIVERED_AFTER_END = 10
    CHANGED_AFTER_END = 11
    DELETION_MISSING = 12
    OVERLAPPING_LOCKS = 13
    NO_LOCK = 14
    LOCK_ENDED = 15
    LOCK_CUT_SHORT = 16
    TAKEN_UNDER_LOCK = 17
    WRONG_COUNT = 18
    WRONG_STATE = 19
    DELIVERED_EXPIRED = 20
    EXPIRED_EARLY = 21
    ACTIVATED_EARLY = 22
    CLAIM_BROKEN = 23
    DEAD_LETTER_LOST = 24
    DEAD_LETTER_UNEXPLAINED = 25
    FORWARD_LOST = 26
    COPIES_WRONG = 27
    SESSION_SHARED = 28
    SESSION_ORDER = 29
    DUPLICATE = 30
    TRANSACTION_TORN = 31
    LOST = 32
    LEFT_BEHIND = 33
    SENT_LOST = 34
    SENT_TWICE = 35
    RECEIVED_UNKNOWN = 36
    COMPLETION_LOST = 37

    @property
    def title(self) -> str:
        """The name that users see."""
        return self.name.lower().replace("_", " ")


SENTENCES = {
    Check.SEGMENT_GAP: "Each file of the log begins with the batch after the last one of the file before.",
    Check.BATCH_DAMAGED: "The events of a batch are numbered from 0 without a gap, each number once.",
    Check.NUMBER_GAP: (
        "An entity, or each partition of it, gives out sequence numbers without gaps; `number_issued` "
        "explains one that no message has."
    ),
    Check.NUMBER_TWICE: "A sequence number of an entity is given to one message.",
    Check.NO_BEGINNING: "Events of a message come after it was enqueued or scheduled.",
    Check.LOCK_OVERDUE: (
        "A lock ends by a settlement, or lapses when its time is up, or the grace of its connection."
    ),
    Check.EXPIRY_OVERDUE: "A message expires when its time-to-live is over.",
    Check.DOUBLE_SETTLEMENT: "A message ends once, and is not settled after that.",
    Check.DELIVERED_AFTER_COMPLETION: "A completed message is not delivered again.",
    Check.DELIVERED_AFTER_END: "A message that ended in some other way is not delivered again.",
    Check.CHANGED_AFTER_END: "Nothing happens to a message after its end.",
    Check.DELETION_MISSING: "A message received in mode receive-and-delete is deleted with that delivery.",
    Check.OVERLAPPING_LOCKS: "A message is not delivered while it is locked.",
    Check.NO_LOCK: "A message is settled or renewed only with the lock that holds it.",
    Check.LOCK_ENDED: "A message is settled before its lock ends, not at that instant or later.",
    Check.LOCK_CUT_SHORT: (
        "A lock lasts until its time is up, or the grace of its connection, or until its entity goes."
    ),
    Check.TAKEN_UNDER_LOCK: "A locked message does not expire; no purge or claim takes it.",
    Check.WRONG_COUNT: "An abandon, a deferral and a lapsed lock add 1 to the delivery count, but not in a "
    "dead-letter queue; nothing else changes it.",
    Check.WRONG_STATE: "Scheduled messages are activated or cancelled, and only those.",
    Check.DELIVERED_EXPIRED: "No message is delivered when its time-to-live is over.",
    Check.EXPIRED_EARLY: "No message expires before its time-to-live is over.",
    Check.ACTIVATED_EARLY: "A scheduled message is not activated before its time.",
    Check.CLAIM_BROKEN: "A message that a cursor claims is only committed or released.",
    Check.DEAD_LETTER_LOST: "A dead-lettered message arrives in the dead-letter queue with the same commit.",
    Check.DEAD_LETTER_UNEXPLAINED: "A message that arrives in a dead-letter queue was dead-lettered.",
    Check.FORWARD_LOST: "A forwarded or activated message arrives in its new place with the same commit.",
    Check.COPIES_WRONG: "A topic's message arrives in as many subscriptions as it was forwarded to.",
    Check.SESSION_SHARED: "A session has one holder until its lock ends, and only the holder gets messages.",
    Check.SESSION_ORDER: "Messages of a session are delivered in the order in which they arrived.",
    Check.DUPLICATE: (
        "Within the window of duplicate detection a message id is taken once, unless the first was cancelled."
    ),
    Check.TRANSACTION_TORN: "All events of a transaction are in one commit.",
    Check.LOST: "A message that has not ended is there at the end.",
    Check.LEFT_BEHIND: "A message that has ended is not there at the end.",
    Check.SENT_LOST: "A message whose send was acknowledged to a client was enqueued.",
    Check.SENT_TWICE: "A message is enqueued as often as clients sent it, and not when its send was refused.",
    Check.RECEIVED_UNKNOWN: "A message that a client received was enqueued.",
    Check.COMPLETION_LOST: "A message whose completion was acknowledged to a client was completed.",
}
"""The promise that holds where a check finds nothing."""

ALWAYS = tuple(check for check in Check if check < Check.LOST)
WITH_LEFT = (Check.LOST, Check.LEFT_BEHIND)
"""Checks that need the messages left at the end."""
WITH_LEDGER = tuple(check for check in Check if check >= Check.SENT_LOST)
"""Checks that need a ledger of clients."""

SENDS = ("sent", "send_refused", "send_unknown")
RECEIPTS = ("received", "completed")
OTHERS = ("abandoned", "deferred", "dead_lettered", "released", "renewed")
"""Actions of a ledger (see `ledger`); OTHERS are not compared."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One offending row; None = does not apply."""

    namespace: str
    entity: str | None
    sequence_number: int | None
    batch_no: int | None
    detail: str = ""

    def __str__(self) -> str:
        parts = [self.entity or self.namespace]
        if self.sequence_number is not None:
            parts.append(f"sequence number {self.sequence_number}")
        if self.batch_no is not None:
            parts.append(f"batch {self.batch_no}")
        if self.detail:
            parts.append(self.detail)
        return ", ".join(parts)


@dataclass(slots=True)
class Finding:
    """Result of one check with violations."""

    check: Check
    count: int = 0
    by_namespace: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)


@dataclass(slots=True)
class Verdict:
    """Result of an audit."""

    checked: tuple[Check, ...]
    events: int = 0
    lives: int = 0
    open_lives: int = 0
    batches: int = 0
    entities: int = 0
    ledger_rows: int = 0
    horizon_ms: int = 0
    """UTC; later events are not judged."""
    seconds: float = 0.0
    findings: dict[Check, Finding] = field(default_factory=dict)
    not_proven: list[str] = field(default_factory=list)
    """Sentences: what could not be checked, and why. With any of them the audit is not clean."""
    notes: list[str] = field(default_factory=list)
    """Sentences: what was rightly not judged."""

    def add(
        self,
        check: Check,
        count: int,
        namespace: str,
        entity: str | None = None,
        number: int | None = None,
        batch: int | None = None,
        detail: str = "",
    ) -> None:
        """Count offending rows of a check in one namespace, and keep one of them as a sample."""
        finding = self.findings.setdefault(check, Finding(check))
        finding.count += count
        finding.by_namespace[namespace] = finding.by_namespace.get(namespace, 0) + count
        if len(finding.samples) < SAMPLES_MAX:
            finding.samples.append(Sample(namespace, entity, number, batch, detail))

    @property
    def violations(self) -> int:
        return sum(finding.count for finding in self.findings.values())

    @property
    def exit_status(self) -> int:
        if self.findings:
            return VIOLATED
        return NOT_PROVEN if self.not_proven else CLEAN

    @property
    def outcome(self) -> str:
        """The verdict in a sentence."""
        scope = f"{self.events:,} events of {self.lives:,} message lives in {self.entities:,} entities"
        if self.findings:
            names = ", ".join(check.title for check in sorted(self.findings))
            return f"{self.violations:,} violations in {scope}: {names}."
        if self.not_proven:
            return f"No violation in {scope}, but not all promises could be proven."
        return f"No violation in {scope}."

    def report(self) -> dict[str, Any]:
        """Return the verdict as a tree for JSON."""
        figures = ("events", "lives", "open_lives", "batches", "entities", "ledger_rows", "horizon_ms")
        return {
            "outcome": self.outcome,
            "exit_status": self.exit_status,
            **{name: getattr(self, name) for name in figures},
            "seconds": round(self.seconds, 3),
            "checks": [self._report(check) for check in self.checked],
            "not_proven": self.not_proven,
            "notes": self.notes,
        }

    def _report(self, check: Check) -> dict[str, Any]:
        finding = self.findings.get(check) or Finding(check)
        return {
            "check": check.name.lower(),
            "promise": SENTENCES[check],
            "violations": finding.count,
            "namespaces": finding.by_namespace,
            "samples": [asdict(sample) for sample in finding.samples],
        }
