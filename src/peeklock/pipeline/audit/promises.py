"""Every promise of the broker that its event log can show: the checks of it, or why there is none.

Owns: the table from requirements to checks. `docs/reference/audit.md` is written from it
(`python -m docs.audit`); a test holds that each requirement of `FAMILIES` and each check is in it.
Must not know: Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

from peeklock.pipeline.audit.checks import Check

FAMILIES = ("L", "E", "S", "G", "D", "P", "F")
"""Families of requirements that concern what happens to messages: each of them is in `PROMISES`."""


@dataclass(frozen=True, slots=True)
class Promise:
    """One requirement, by its id in docs/requirements.toml."""

    requirement: str
    checks: tuple[Check, ...] = ()
    reason: str = ""
    """Why there is no check, or what the checks leave out."""


NOT_MESSAGES = "The answer to a client is not in the log."
NO_READS = "The log has no rows of reads that change nothing."
NO_PROPERTIES = "The log has no properties of messages."
CLIENTS = "It concerns a client's program."
SPEED = "It concerns speed."

PROMISES = (
    Promise("T-01", (Check.SENT_LOST, Check.SENT_TWICE), "With a ledger of clients."),
    Promise("T-07", (Check.SENT_LOST,), "With a ledger; batches are not in the log."),
    Promise("L-01", (Check.DELETION_MISSING,)),
    Promise("L-02", (Check.OVERLAPPING_LOCKS, Check.TAKEN_UNDER_LOCK, Check.NO_LOCK, Check.WRONG_STATE)),
    Promise("L-03", (Check.WRONG_LOCK_DURATION, Check.LOCK_CUT_SHORT, Check.LOCK_OVERDUE)),
    Promise("L-04", (Check.TOKEN_REUSED,), "Compared with the delivery before."),
    Promise("L-05", (Check.DELIVERED_AFTER_COMPLETION, Check.DOUBLE_SETTLEMENT, Check.COMPLETION_LOST)),
    Promise("L-06", (Check.WRONG_COUNT, Check.WRONG_STATE_BEFORE), f"Changed properties: {NO_PROPERTIES}"),
    Promise("L-07", (Check.SESSION_ORDER,), "Without sessions, receivers compete."),
    Promise("L-08", (Check.WRONG_COUNT, Check.DELIVERED_TOO_OFTEN, Check.DEAD_LETTERED_EARLY)),
    Promise("L-09", (Check.DEAD_LETTER_LOST, Check.DEAD_LETTER_UNEXPLAINED), f"Properties: {NO_PROPERTIES}"),
    Promise("L-10", (Check.WRONG_STATE_BEFORE, Check.LOST), f"Peeks: {NO_READS}"),
    Promise("L-11", (Check.NO_LOCK, Check.LOCK_ENDED), f"The error: {NOT_MESSAGES}"),
    Promise("L-12", (Check.NO_LOCK,), "After a restart. Not after an update: not all end locks."),
    Promise("L-13", (Check.LOCK_CUT_SHORT, Check.LOCK_OVERDUE, Check.LOCK_ENDED)),
    Promise("L-14", (Check.NO_LOCK, Check.LOCK_ENDED), "The log does not show the way of a request."),
    Promise("L-15", reason=CLIENTS),
    Promise("L-16", (Check.LOST, Check.LEFT_BEHIND, Check.NO_LOCK)),
    Promise("L-17", (Check.WRONG_COUNT, Check.DEAD_LETTER_LOST), "Nothing expires or is counted there."),
    Promise("L-18", reason=CLIENTS),
    Promise("E-01", (Check.IDENTITY_CHANGED,), "The log has the time of expiry, not the time-to-live sent."),
    Promise("E-02", (Check.DELIVERED_EXPIRED, Check.EXPIRY_OVERDUE), "Overdue is a minute, not 2 s."),
    Promise("E-03", (Check.TAKEN_UNDER_LOCK,)),
    Promise(
        "E-04",
        (Check.TTL_OVER_DEFAULT, Check.DELIVERED_EXPIRED, Check.EXPIRED_EARLY, Check.EXPIRY_OVERDUE),
    ),
    Promise("E-05", reason=NOT_MESSAGES),
    Promise("E-06", (Check.EXPIRED_EARLY,), "A message without a time-to-live does not expire."),
    Promise("E-07", (Check.TTL_OVER_DEFAULT, Check.DELIVERED_EXPIRED, Check.EXPIRED_EARLY)),
    Promise("E-08", (Check.WRONG_EXPIRY, Check.DEAD_LETTER_LOST)),
    Promise("E-09", (Check.DELIVERED_EXPIRED, Check.EXPIRED_EARLY)),
    Promise("E-10", reason=CLIENTS),
    Promise("S-01", (Check.NUMBER_GAP, Check.NUMBER_TWICE, Check.NUMBER_ORDER)),
    Promise("S-02", (Check.NUMBER_GAP, Check.NUMBER_ORDER)),
    Promise("S-03", (Check.NUMBER_GAP, Check.NUMBER_ORDER)),
    Promise("S-04", (Check.ENQUEUED_BACK, Check.TIME_BACK)),
    Promise("S-05", (Check.FORWARD_LOST, Check.WRONG_STATE), "The log does not show the way of a request."),
    Promise("S-06", (Check.ACTIVATED_EARLY, Check.WRONG_STATE)),
    Promise("S-07", (Check.ACTIVATED_EARLY, Check.FORWARD_LOST, Check.ENQUEUED_BACK)),
    Promise("S-08", reason=NO_READS),
    Promise("S-09", (Check.DOUBLE_SETTLEMENT,), "Counts are not in the log."),
    Promise("S-10", (Check.NUMBER_TWICE, Check.CHANGED_AFTER_END)),
    Promise("S-11", reason=NO_READS),
    Promise("S-12", reason=CLIENTS),
    Promise("S-13", reason=CLIENTS),
    Promise("G-01", (Check.SESSION_SHARED, Check.SESSION_ORDER)),
    Promise("G-02", (Check.SESSION_SHARED, Check.LOCK_ENDED, Check.WRONG_LOCK_DURATION)),
    Promise("G-03", (Check.SESSION_SHARED,), "Only the holder sets it; the state itself is not in the log."),
    Promise("G-04", (Check.SESSION_SHARED,), f"Waiting: {NOT_MESSAGES}"),
    Promise("G-05", (Check.SESSION_SHARED, Check.IDENTITY_CHANGED)),
    Promise("G-06", reason="Which sessions a receiver could have had is not in the log."),
    Promise("G-07", reason=NO_READS),
    Promise("D-01", (Check.DUPLICATE,), "In partitions with sessions only."),
    Promise("P-01", (Check.COPIES_WRONG,), "Which rules match: the log has no rules."),
    Promise("P-02", (Check.COPIES_WRONG,), "The log has the number of copies, not the rules."),
    Promise("P-03", reason="The log has no rules."),
    Promise("P-04", (Check.DEAD_LETTER_LOST,), "Which filters fail: the log has no rules."),
    Promise("P-05", reason=SPEED),
    Promise("F-01", (Check.FORWARD_LOST, Check.DEAD_LETTER_LOST), "Hops are not in the log."),
    Promise("F-02", reason="When an entity was last used is not in the log."),
    Promise("F-03", (Check.TRANSACTION_TORN, Check.NUMBER_TWICE), "What a roll-back undoes has no rows."),
    Promise("A-06", (Check.TAKEN_UNDER_LOCK, Check.DELIVERED_AFTER_END)),
    Promise("R-01", (Check.SENT_LOST, Check.COMPLETION_LOST), "With a ledger of clients."),
    Promise(
        "R-02",
        (
            Check.DELIVERED_AFTER_COMPLETION,
            Check.NUMBER_TWICE,
            Check.TRANSACTION_TORN,
            Check.LOST,
            Check.LEFT_BEHIND,
            Check.RECEIVED_UNKNOWN,
            Check.NO_BEGINNING,
        ),
    ),
    Promise(
        "X-03",
        (
            Check.SEGMENT_GAP,
            Check.FILE_REMOVED,
            Check.FILE_CHANGED,
            Check.FILE_ADDED,
            Check.FILE_MISNAMED,
            Check.MANIFEST_DAMAGED,
            Check.BATCH_DAMAGED,
            Check.UNKNOWN_EVENT,
            Check.NO_BEGINNING,
        ),
    ),
    Promise("X-06", (Check.CLAIM_BROKEN,)),
    Promise("C26", (Check.LOCK_CUT_SHORT, Check.LOCK_OVERDUE, Check.LOCK_ENDED)),
    Promise("C27", (Check.SESSION_SHARED,), "Sessions are compared by their keys."),
)
