"""QueueDescription: the element that clients send and are sent.

Owns: its elements and their order. Must not know: HTTP, ranges of values (the broker's). Source: wire
contract 7.3.
"""

from __future__ import annotations

from peeklock.admin.elements import (
    ACCESSED_AT,
    AUTHORIZATION_RULES,
    AVAILABILITY,
    BOOLEAN,
    COUNT_DETAILS,
    CREATED_AT,
    DURATION,
    FORWARD_DEAD_LETTERED_TO,
    FORWARD_TO,
    IS_ANONYMOUS_ACCESSIBLE,
    MESSAGE_COUNT,
    MESSAGE_SIZE_KB,
    NOTE,
    SIZE_IN_BYTES,
    SIZE_MB,
    STATUS,
    UPDATED_AT,
    WHOLE_NUMBER,
    Figure,
    Setting,
    Shown,
    Table,
    kept_of,
    read_settings,
    write_description,
)
from peeklock.admin.reading import Description
from peeklock.broker.vocabulary.descriptions import Description as EntityDescription
from peeklock.broker.vocabulary.descriptions import QueueDescription

ELEMENTS: Table = (
    Setting("LockDuration", "lock_duration_ms", DURATION),
    Setting("MaxSizeInMegabytes", "max_size_mb", SIZE_MB),
    Setting("RequiresDuplicateDetection", "requires_duplicate_detection", BOOLEAN, kept=True),
    Setting("RequiresSession", "requires_session", BOOLEAN, kept=True),
    Setting("DefaultMessageTimeToLive", "default_ttl_ms", DURATION),
    Setting("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration", BOOLEAN),
    Setting("DuplicateDetectionHistoryTimeWindow", "duplicate_window_ms", DURATION),
    Setting("MaxDeliveryCount", "max_delivery_count", WHOLE_NUMBER),
    Setting("EnableBatchedOperations", "enable_batched_operations", BOOLEAN),
    SIZE_IN_BYTES,
    MESSAGE_COUNT,
    IS_ANONYMOUS_ACCESSIBLE,
    AUTHORIZATION_RULES,
    Setting("Status", "status", STATUS),
    FORWARD_TO,
    Setting("UserMetadata", "user_metadata", NOTE),
    CREATED_AT,
    UPDATED_AT,
    ACCESSED_AT,
    Figure("SupportOrdering", lambda _: True),
    COUNT_DETAILS,
    Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", DURATION),
    Setting("EnablePartitioning", "enable_partitioning", BOOLEAN, kept=True),
    AVAILABILITY,
    Setting("EnableExpress", "enable_express", BOOLEAN),
    FORWARD_DEAD_LETTERED_TO,
    Setting("MaxMessageSizeInKilobytes", "max_message_size_kb", MESSAGE_SIZE_KB),
)

KEPT = kept_of(ELEMENTS)


def read_queue(
    given: Description, name: str, message_size_kb_default: int, existing: EntityDescription | None = None
) -> QueueDescription:
    """Read a queue's settings; what is left out has its default, or for kept ones what `existing` has.

    Raises: ArgumentInvalid.
    """
    return QueueDescription(name, **read_settings(ELEMENTS, given, message_size_kb_default, existing))


def write_queue(shown: Shown) -> str:
    """Write a queue's settings and figures."""
    return write_description("QueueDescription", ELEMENTS, shown)
