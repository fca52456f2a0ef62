"""The types of events, in the groups that the audit needs. Must not know: Spark."""

from __future__ import annotations

KINDS = (
    "enqueued", "delivered", "completed", "abandoned", "lock_lapsed", "forwarded", "dead_lettered", "renewed",
    "deferred", "released", "expired", "scheduled", "activated", "claimed", "claim_released", "purged",
    "cancelled", "unmatched", "number_issued",
)  # fmt: skip
"""Events of messages."""

INCARNATIONS = ("entity_created", "entity_deleted")
OF_ENTITIES = (*INCARNATIONS, "entity_present", "entity_updated")
OF_LOG = ("epoch_started", "gap", "clock_stepped", "connection_lost", "restored")
OF_SESSIONS = ("session_locked", "session_renewed", "session_released", "session_state_set")
KNOWN = (*KINDS, "duplicate_dropped", *OF_SESSIONS, *OF_ENTITIES, *OF_LOG)
"""All types of events."""
