"""TopicDescription: the element that clients send and are sent.

Owns: its elements and their order. Must not know: HTTP, ranges of values (the broker's). Source: wire
contract 7.4.
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
    IS_ANONYMOUS_ACCESSIBLE,
    MESSAGE_SIZE_KB,
    NOTE,
    SIZE_IN_BYTES,
    SIZE_MB,
    STATUS,
    UPDATED_AT,
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
from peeklock.broker.vocabulary.descriptions import TopicDescription

ELEMENTS: Table = (
    Setting("DefaultMessageTimeToLive", "default_ttl_ms", DURATION),
    Setting("MaxSizeInMegabytes", "max_size_mb", SIZE_MB),
    Setting("RequiresDuplicateDetection", "requires_duplicate_detection", BOOLEAN, kept=True),
    Setting("DuplicateDetectionHistoryTimeWindow", "duplicate_window_ms", DURATION),
    Setting("EnableBatchedOperations", "enable_batched_operations", BOOLEAN),
    SIZE_IN_BYTES,
    Figure("FilteringMessagesBeforePublishing", lambda _: False),
    IS_ANONYMOUS_ACCESSIBLE,
    AUTHORIZATION_RULES,
    Setting("Status", "status", STATUS),
    CREATED_AT,
    UPDATED_AT,
    ACCESSED_AT,
    Setting("SupportOrdering", "support_ordering", BOOLEAN),
    COUNT_DETAILS,
    Figure("SubscriptionCount", lambda view: view.subscription_count),
    Figure("SqlFilterCount", lambda view: view.sql_filter_count),
    Figure("CorrelationFilterCount", lambda view: view.correlation_filter_count),
    Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", DURATION),
    Setting("EnablePartitioning", "enable_partitioning", BOOLEAN, kept=True),
    AVAILABILITY,
    Figure("EnableSubscriptionPartitioning", lambda _: False),
    Setting("EnableExpress", "enable_express", BOOLEAN),
    Setting("UserMetadata", "user_metadata", NOTE),
    Setting("MaxMessageSizeInKilobytes", "max_message_size_kb", MESSAGE_SIZE_KB),
)

KEPT = kept_of(ELEMENTS)


def read_topic(
    given: Description, name: str, message_size_kb_default: int, existing: EntityDescription | None = None
) -> TopicDescription:
    """Read a topic's settings; what is left out has its default, or for kept ones what `existing` has.

    Raises: ArgumentInvalid.
    """
    settings = read_settings(ELEMENTS, given, message_size_kb_default, existing)
    # Over its partitions a topic has no order that it could keep.
    settings.setdefault("support_ordering", not settings.get("enable_partitioning", False))
    return TopicDescription(name, **settings)


def write_topic(shown: Shown) -> str:
    """Write a topic's settings and figures."""
    return write_description("TopicDescription", ELEMENTS, shown)
