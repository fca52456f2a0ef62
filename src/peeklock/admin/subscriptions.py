"""SubscriptionDescription: the element that clients send and are sent.

Owns: its elements and their order, and the first rule that stands in it. Must not know: HTTP, ranges of
values (the broker's). Source: wire contract 7.5.
"""

from __future__ import annotations

from peeklock.admin.elements import (
    ACCESSED_AT,
    AVAILABILITY,
    BOOLEAN,
    COUNT_DETAILS,
    CREATED_AT,
    DURATION,
    FORWARD_DEAD_LETTERED_TO,
    FORWARD_TO,
    MESSAGE_COUNT,
    NOTE,
    STATUS,
    UPDATED_AT,
    WHOLE_NUMBER,
    Setting,
    Shown,
    Table,
    kept_of,
    read_settings,
    write_description,
)
from peeklock.admin.reading import Description
from peeklock.admin.rules import read_rule
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    RuleDescription,
    SubscriptionDescription,
)
from peeklock.broker.vocabulary.descriptions import Description as EntityDescription

ELEMENTS: Table = (
    Setting("LockDuration", "lock_duration_ms", DURATION),
    Setting("RequiresSession", "requires_session", BOOLEAN, kept=True),
    Setting("DefaultMessageTimeToLive", "default_ttl_ms", DURATION),
    Setting("DeadLetteringOnMessageExpiration", "dead_lettering_on_expiration", BOOLEAN),
    Setting("DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_errors", BOOLEAN),
    MESSAGE_COUNT,
    Setting("MaxDeliveryCount", "max_delivery_count", WHOLE_NUMBER),
    Setting("EnableBatchedOperations", "enable_batched_operations", BOOLEAN),
    Setting("Status", "status", STATUS),
    FORWARD_TO,
    CREATED_AT,
    UPDATED_AT,
    ACCESSED_AT,
    COUNT_DETAILS,
    FORWARD_DEAD_LETTERED_TO,
    Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", DURATION),
    AVAILABILITY,
    Setting("UserMetadata", "user_metadata", NOTE),
)

KEPT = kept_of(ELEMENTS)


def read_subscription(
    given: Description, topic: str, name: str, existing: EntityDescription | None = None
) -> SubscriptionDescription:
    """Read a subscription's settings; what is left out has its default, or for the kept one what `existing`
    has.

    Raises: ArgumentInvalid.
    """
    return SubscriptionDescription(topic, name, **read_settings(ELEMENTS, given, 0, existing))


def read_first_rule(given: Description) -> RuleDescription | None:
    """Read the rule that a subscription is to have instead of `$Default`; None = none was given.

    Raises: ArgumentInvalid.
    """
    if not given.has("DefaultRuleDescription"):
        return None
    rule = given.child("DefaultRuleDescription")
    return read_rule(rule, rule.text("Name") if rule.has("Name") else DEFAULT_RULE_NAME)


def write_subscription(shown: Shown) -> str:
    """Write a subscription's settings and figures."""
    return write_description("SubscriptionDescription", ELEMENTS, shown)
