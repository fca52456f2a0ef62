"""The checks of the audit: their names and promises, findings, the verdict and its exit status."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

CLEAN, VIOLATED, NOT_PROVEN = 0, 1, 2
"""Exit statuses: all checks hold; one is violated; no violation, but some checks were not possible."""

SAMPLES_MAX = 10
"""Offending rows shown for each check."""

RETURNED_MAX = 1_000
"""Messages that a restore brought back, in a report. Our choice: a few hundred kilobytes of JSON."""


class AuditInput(ValueError):
    """The audit cannot begin; the text names the folder or file and what to do."""


class Check(IntEnum):
    """A check and its promise. Spark carries the number; users see the name in lower case."""

    SEGMENT_GAP = 1, "Each file of the log begins with the batch after the last one of the previous file."
    FILE_REMOVED = 2, "Each file that the manifest lists is there, unless retention removed it."
    FILE_CHANGED = (
        3,
        "A file has the bytes that the manifest lists: it was not cut, changed or replaced by an "
        "older version.",
    )
    FILE_ADDED = 4, "The manifest lists each file, but for the newest one."
    FILE_MISNAMED = 5, "A file has only events of the batches in its name."
    MANIFEST_DAMAGED = 6, "Each line of the manifest follows from the line before."
    BATCH_DAMAGED = 7, "The events of a batch are numbered from 0, without gaps or repeats."
    UNKNOWN_EVENT = 8, "Each event is of a known type and has the entity and the number that this type needs."
    NUMBER_GAP = (
        9,
        "An entity, or each partition of it, issues sequence numbers without gaps; `number_issued` "
        "explains a number without a message.",
    )
    NUMBER_TWICE = 10, "An entity gives a sequence number to one message only."
    NUMBER_ORDER = 11, "An entity, or each partition of it, issues sequence numbers in the order of arrival."
    ENQUEUED_BACK = (
        12,
        "Enqueued times of an entity, or of each partition of it, never go back from one sequence "
        "number to the next.",
    )
    NO_BEGINNING = 13, "Events of a message come after it was enqueued or scheduled."
    LOCK_OVERDUE = (
        14,
        "A lock ends with a settlement, or lapses when its duration or its connection's grace is over.",
    )
    EXPIRY_OVERDUE = 15, "A message expires when its time-to-live is over."
    DOUBLE_SETTLEMENT = 16, "A message ends once, and is not settled after that."
    DELIVERED_AFTER_COMPLETION = 17, "A completed message is not delivered again."
    DELIVERED_AFTER_END = 18, "A message that ended in another way is not delivered again."
    CHANGED_AFTER_END = 19, "Nothing happens to a message after its end."
    DELETION_MISSING = 20, "A message received in mode receive-and-delete is deleted with that delivery."
    OVERLAPPING_LOCKS = 21, "A message is not delivered while it is locked."
    NO_LOCK = 22, "A message is settled or renewed only with the lock that holds it."
    LOCK_ENDED = 23, "A message is settled before its lock ends, not at that instant or later."
    LOCK_CUT_SHORT = (
        24,
        "A lock lapses only when its duration or its connection's grace is over, or its entity is deleted.",
    )
    WRONG_LOCK_DURATION = 25, "A delivery or a renewal locks for the LockDuration of the entity."
    TOKEN_REUSED = 26, "A delivery has another lock token than the delivery before."
    TAKEN_UNDER_LOCK = 27, "A locked message does not expire; no purge or claim takes it."
    WRONG_COUNT = (
        28,
        "An abandon, a deferral and a lapsed lock add 1 to the delivery count, but not in a "
        "dead-letter queue; nothing else changes it.",
    )
    DELIVERED_TOO_OFTEN = (
        29,
        "A message whose delivery count reaches MaxDeliveryCount is dead-lettered, and not delivered again.",
    )
    DEAD_LETTERED_EARLY = (
        30,
        "A message is dead-lettered with `MaxDeliveryCountExceeded` only when its count has reached "
        "MaxDeliveryCount.",
    )
    WRONG_STATE = 31, "Scheduled messages are activated or cancelled, and only those."
    WRONG_STATE_BEFORE = 32, "An event finds its message in the state in which the event before it left it."
    TIME_BACK = 33, "The time of an event is not before that of the event before it, while the broker runs."
    IDENTITY_CHANGED = (
        34,
        "Session, size, times of arrival and expiry, and the number at the topic stay the same "
        "through a life.",
    )
    DELIVERED_EXPIRED = 35, "No message is delivered when its time-to-live is over."
    EXPIRED_EARLY = 36, "No message expires before its time-to-live is over."
    TTL_OVER_DEFAULT = 37, "A message arrives with a time-to-live that is at most the default of the entity."
    WRONG_EXPIRY = (
        38,
        "An expired message goes to the dead-letter queue if its entity has dead-lettering on "
        "expiration, and is removed if not.",
    )
    ACTIVATED_EARLY = 39, "A scheduled message is not activated before its time."
    CLAIM_BROKEN = 40, "A message that a cursor claims is only committed or released."
    DEAD_LETTER_LOST = 41, "A dead-lettered message arrives in the dead-letter queue in the same commit."
    DEAD_LETTER_UNEXPLAINED = 42, "A message that arrives in a dead-letter queue was dead-lettered."
    FORWARD_LOST = 43, "A forwarded or activated message arrives at its destination in the same commit."
    COPIES_WRONG = 44, "A topic's message arrives in its subscriptions in as many copies as the topic made."
    SESSION_SHARED = 45, "A session has one holder until its lock ends, and only the holder gets messages."
    SESSION_ORDER = 46, "Messages of a session are delivered in the order in which they arrived."
    DUPLICATE = (
        47,
        "Within the duplicate detection window a message id is accepted once, unless the first was "
        "cancelled.",
    )
    TRANSACTION_TORN = 48, "All events of a transaction are in one commit."
    LOST = 49, "A message that has not ended is in its entity at the end."
    LEFT_BEHIND = 50, "A message that has ended is not in its entity at the end."
    SENT_LOST = 51, "A message whose send was acknowledged to a client was enqueued."
    SENT_TWICE = 52, "A message is enqueued at most as often as clients sent it, and not for a refused send."
    RECEIVED_UNKNOWN = 53, "A message that a client received was enqueued."
    COMPLETION_LOST = 54, "A message whose completion was acknowledged to a client was completed."

    promise: str
    """What holds where the check finds nothing."""

    def __new__(cls, number: int, promise: str = "") -> Check:
        """Keep the promise beside the number."""
        check = int.__new__(cls, number)
        check._value_ = number
        check.promise = promise
        return check

    @property
    def title(self) -> str:
        """The name that users see."""
        return self.name.lower().replace("_", " ")


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


@dataclass(frozen=True, slots=True)
class ReturnedMessage:
    """A message that was settled after a back-up, and was live again when that was restored."""

    namespace: str
    entity: str
    sequence_number: int
    """Before the restore and after it."""
    settled: str
    """The event that ended its life before the restore."""
    settled_at_ms: int
    """UTC."""
    batch_no: int
    """Of that event."""
    settled_since: str | None
    """The event that ended it after the restore; None = it is live."""

    def cells(self) -> tuple[str, ...]:
        """Return it as a row of a table for people."""
        at = datetime.fromtimestamp(self.settled_at_ms / 1000, UTC)
        settled_at = at.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
        number, settled_since = str(self.sequence_number), self.settled_since or "live"
        return self.entity, number, self.settled, settled_at, settled_since


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
    """UTC; later events are not checked."""
    seconds: float = 0.0
    findings: dict[Check, Finding] = field(default_factory=dict)
    not_proven: list[str] = field(default_factory=list)
    """Sentences: what could not be checked, and why. With any of them the audit is not clean."""
    notes: list[str] = field(default_factory=list)
    """Sentences: what was rightly not checked."""
    returned_count: int = 0
    returned_live: int = 0
    """Of these, without another end since the restore."""
    returned: list[ReturnedMessage] = field(default_factory=list)
    """The first of them, up to `RETURNED_MAX`."""

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
            "returned": {
                "count": self.returned_count,
                "live": self.returned_live,
                "messages": [asdict(message) for message in self.returned],
            },
        }

    def _report(self, check: Check) -> dict[str, Any]:
        finding = self.findings.get(check) or Finding(check)
        return {
            "check": check.name.lower(),
            "promise": check.promise,
            "violations": finding.count,
            "namespaces": finding.by_namespace,
            "samples": [asdict(sample) for sample in finding.samples],
        }
