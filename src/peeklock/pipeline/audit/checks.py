"""What the audit checks, and what it says of it.

Owns: the names and sentences of the checks, findings, the verdict and its exit status. Must not know: Spark,
how a check is computed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

CLEAN, VIOLATED, NOT_PROVEN = 0, 1, 2
"""Exit statuses: all checks hold; one does not; none is known not to, but not all could be looked at."""

SAMPLES_MAX = 10
"""Offending rows shown for each check."""


class Check(IntEnum):
    """What is checked. The number goes through Spark, the name in lower case is what people see."""

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
        """The name that people see."""
        return self.name.lower().replace("_", " ")


SENTENCES = {
    Check.SEGMENT_GAP: "Each file of the log begins with the batch after the last one of the file before.",
    Check.BATCH_DAMAGED: "The events of a batch are numbered from 0 without a gap, each number once.",
    Check.NUMBER_GAP: (
        "An entity, or each partition of it, gives out sequence numbers without gaps; `number_issued` "
        "explains one that no message has."
    ),
    Check.NUMBER_TWICE: "A sequence number of an entity is given to one message.",
    Check.NO_BEGINNING: "What happens to a message happens after it was enqueued or scheduled.",
    Check.LOCK_OVERDUE: (
        "A lock ends by a settlement, or lapses when its time is up, or the grace of its connection."
    ),
    Check.EXPIRY_OVERDUE: "A message whose time-to-live is over goes.",
    Check.DOUBLE_SETTLEMENT: "A message ends once, and is not settled after that.",
    Check.DELIVERED_AFTER_COMPLETION: "A completed message is not delivered again.",
    Check.DELIVERED_AFTER_END: "A message that ended in some other way is not delivered again.",
    Check.CHANGED_AFTER_END: "Nothing happens to a message after its end.",
    Check.DELETION_MISSING: "A message that is received to be deleted is gone with that delivery.",
    Check.OVERLAPPING_LOCKS: "A message is not delivered while somebody else holds it.",
    Check.NO_LOCK: "Who settles a message or renews its lock holds it, by that lock.",
    Check.LOCK_ENDED: "A message is settled before its lock ends, not at that instant or later.",
    Check.LOCK_CUT_SHORT: (
        "A lock lasts until its time is up, or the grace of its connection, or until its entity goes."
    ),
    Check.TAKEN_UNDER_LOCK: "A message that somebody holds does not expire; no purge or claim takes it.",
    Check.WRONG_COUNT: "An abandon, a deferral and a lapsed lock add 1 to the delivery count, but not in a "
    "dead-letter queue; nothing else changes it.",
    Check.WRONG_STATE: "Scheduled messages are activated or cancelled, and only those.",
    Check.DELIVERED_EXPIRED: "No message is delivered when its time-to-live is over.",
    Check.EXPIRED_EARLY: "No message expires before its time-to-live is over.",
    Check.ACTIVATED_EARLY: "A scheduled message is not activated before its time.",
    Check.CLAIM_BROKEN: "A message that a cursor claims is nobody else's until it is committed or released.",
    Check.DEAD_LETTER_LOST: "What is dead-lettered arrives in the dead-letter queue with the same commit.",
    Check.DEAD_LETTER_UNEXPLAINED: "What arrives in a dead-letter queue was dead-lettered somewhere.",
    Check.FORWARD_LOST: "What is forwarded or activated goes on in its new place with the same commit.",
    Check.COPIES_WRONG: "As many copies of a topic's message arrive in subscriptions as it was forwarded to.",
    Check.SESSION_SHARED: "A session has one holder, until its lock ends, and that one alone gets messages.",
    Check.SESSION_ORDER: "Messages of a session are delivered in the order in which they arrived.",
    Check.DUPLICATE: (
        "Within the window of duplicate detection a message id is taken once, unless the first was cancelled."
    ),
    Check.TRANSACTION_TORN: "What happens in a transaction is in one commit.",
    Check.LOST: "A message that has not ended is there at the end.",
    Check.LEFT_BEHIND: "A message that has ended is not there at the end.",
    Check.SENT_LOST: "A message whose send was acknowledged to a client was enqueued.",
    Check.SENT_TWICE: "A message is enqueued as often as clients sent it, and not when its send was refused.",
    Check.RECEIVED_UNKNOWN: "A message that a client received was enqueued.",
    Check.COMPLETION_LOST: "A message whose completion was acknowledged to a client was completed.",
}
"""What holds where a check finds nothing."""

ALWAYS = tuple(check for check in Check if check < Check.LOST)
WITH_LEFT = (Check.LOST, Check.LEFT_BEHIND)
"""With what is there at the end."""
WITH_LEDGER = tuple(check for check in Check if check >= Check.SENT_LOST)
"""With what clients say."""


SENDS = ("sent", "send_refused", "send_unknown")
RECEIPTS = ("received", "completed")
OTHERS = ("abandoned", "deferred", "dead_lettered", "released", "renewed")
"""Actions of a ledger (see `ledger`); the others are not compared."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One offending row. What does not apply is None."""

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
    """What one check came to."""

    check: Check
    count: int = 0
    by_namespace: dict[str, int] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)

    def add(self, count: int, *samples: Sample) -> None:
        """Count offending rows of one namespace, and keep a few of them: at least one."""
        namespace = samples[0].namespace
        self.count += count
        self.by_namespace[namespace] = self.by_namespace.get(namespace, 0) + count
        self.samples.extend(samples[: SAMPLES_MAX - len(self.samples)])


@dataclass(slots=True)
class Verdict:
    """What an audit came to."""

    checked: tuple[Check, ...]
    events: int = 0
    lives: int = 0
    open_lives: int = 0
    batches: int = 0
    entities: int = 0
    ledger_rows: int = 0
    horizon_ms: int = 0
    """UTC; what happened later is not judged."""
    seconds: float = 0.0
    findings: dict[Check, Finding] = field(default_factory=dict)
    not_proven: list[str] = field(default_factory=list)
    """Sentences: what could not be looked at, and why. They keep the audit from being clean."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what was left out rightly."""

    def add(self, check: Check, count: int, *samples: Sample) -> None:
        """Count offending rows of a check in one namespace, with at least one of them."""
        if count:
            self.findings.setdefault(check, Finding(check)).add(count, *samples)

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
        looked = f"{self.events:,} events of {self.lives:,} message lives in {self.entities:,} entities"
        if self.findings:
            names = ", ".join(check.title for check in sorted(self.findings))
            return f"{self.violations:,} violations in {looked}: {names}."
        if self.not_proven:
            return f"No violation in {looked}, but not all of it could be proven."
        return f"No violation in {looked}."

    def report(self) -> dict[str, Any]:
        """Give all of it as a tree for JSON."""
        return {
            "outcome": self.outcome,
            "exit_status": self.exit_status,
            "events": self.events,
            "lives": self.lives,
            "open_lives": self.open_lives,
            "batches": self.batches,
            "entities": self.entities,
            "ledger_rows": self.ledger_rows,
            "horizon_ms": self.horizon_ms,
            "seconds": round(self.seconds, 3),
            "checks": [
                {
                    "check": check.name.lower(),
                    "promise": SENTENCES[check],
                    "violations": self.findings[check].count if check in self.findings else 0,
                    "namespaces": self.findings[check].by_namespace if check in self.findings else {},
                    "samples": [asdict(sample) for sample in self.findings[check].samples]
                    if check in self.findings
                    else [],
                }
                for check in self.checked
            ],
            "not_proven": self.not_proven,
            "notes": self.notes,
        }
