"""QueueDescription, TopicDescription and SubscriptionDescription in XML: one table each, for both directions.

Ranges of values are the broker's. Source: wire contract 7.3 to 7.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from peeklock.admin.atom import Markup, Text, timestamp, write_element
from peeklock.admin.authorization_rules import read_authorization_rules, write_authorization_rules
from peeklock.admin.forwards import read_forward
from peeklock.admin.reading import Description
from peeklock.admin.rules import read_rule, write_rule
from peeklock.admin.typed_texts import cut
from peeklock.broker.entities.validation import MAX_SIZE_MB_MIN
from peeklock.broker.queue.sequence_numbers import PARTITION_COUNT
from peeklock.broker.vocabulary.descriptions import (
    DEFAULT_RULE_NAME,
    GIVEN_FORWARDS,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.descriptions import Description as EntityDescription
from peeklock.broker.vocabulary.durations import format_duration
from peeklock.broker.vocabulary.effects import EntityView
from peeklock.broker.vocabulary.errors import ArgumentInvalid


@dataclass(frozen=True, slots=True)
class Shown:
    """An entity, and what else its description depends on."""

    view: EntityView
    host: str
    message_size_kb_default: int
    """The tier's."""
    after_put: bool = False
    """Whether this answers a PUT."""


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type are read and shown."""

    read: Callable[[Description, str], Any]
    show: Callable[[Any, Shown], Text] = lambda value, _: value


@dataclass(frozen=True, slots=True)
class Setting:
    """An element that clients set."""

    element: str
    field: str
    """Of the broker's description."""
    form: Form
    kept: bool = False
    """An update that leaves it out keeps it; any other setting gets its default then."""


@dataclass(frozen=True, slots=True)
class Figure:
    """An element of the broker; what clients send is ignored."""

    element: str
    show: Callable[[EntityView], Text]


Table: TypeAlias = tuple[Setting | Figure, ...]
"""All elements of a description, in the service's order."""


# Forms


def _status(given: Description, name: str) -> EntityStatus:
    text = given.text(name)
    for status in EntityStatus:
        if status.value == text:
            return status
    raise ArgumentInvalid(
        f"The value {cut(text)!r} of {name} is not one of {', '.join(s.value for s in EntityStatus)}."
    )


def _forward(given: Description, name: str) -> tuple[str | None, str | None]:
    """Read the target's name, and the address if one is given."""
    text = given.text(name)
    try:
        return read_forward(text)
    except ValueError as failure:
        raise ArgumentInvalid(f"The value {cut(text)!r} of {name} {failure}.") from failure


def _show_forward(field: str) -> Callable[[Any, Shown], Text]:
    """Show an address as it was given, and a plain name as an address."""

    def show(name: Any, shown: Shown) -> Text:
        address: str | None = getattr(shown.view.description, GIVEN_FORWARDS[field])
        return None if name is None else address or f"sb://{shown.host}/{name}"

    return show


BOOLEAN = Form(Description.boolean)
WHOLE_NUMBER = Form(Description.whole_number)
DURATION = Form(Description.duration, lambda value, _: format_duration(value))
STATUS = Form(_status, lambda value, _: value.value)
NOTE = Form(lambda given, name: given.exact_text(name) or None)
# Clients set the size of one partition, and are shown that of all. Source: wire contract 7.3.
SIZE_MB = Form(
    Description.whole_number,
    lambda value, shown: value * (PARTITION_COUNT if shown.view.description.enable_partitioning else 1),
)
MESSAGE_SIZE_KB = Form(Description.whole_number, lambda value, shown: value or shown.message_size_kb_default)


# Rows that more than one kind has


def message_count(view: EntityView) -> int:
    """Count an entity's messages in any state."""
    return view.active_count + view.scheduled_count + view.dead_letter_count + view.transfer_dead_letter_count


def _count_details(view: EntityView) -> Markup:
    # The JavaScript client expects one attribute here, a prefix, and children with this prefix.
    counts = [
        ("ActiveMessageCount", view.active_count),
        ("DeadLetterMessageCount", view.dead_letter_count),
        ("ScheduledMessageCount", view.scheduled_count),
        ("TransferMessageCount", 0),  # a message is forwarded when it arrives
        ("TransferDeadLetterMessageCount", view.transfer_dead_letter_count),
    ]
    return Markup(
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        + "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in counts)
        + "</CountDetails>"
    )


def _accessed_at_ms(view: EntityView) -> int:
    """Return the time of the last use; 0 = never. Source: wire contract C16."""
    if view.accessed_at_ms == 0 and isinstance(view.description, SubscriptionDescription):
        return view.created_at_ms
    return view.accessed_at_ms


SIZE_IN_BYTES = Figure("SizeInBytes", lambda view: view.size_bytes)
MESSAGE_COUNT = Figure("MessageCount", message_count)
FORWARD_TO = Setting("ForwardTo", "forward_to", Form(_forward, _show_forward("forward_to")))
FORWARD_DEAD_LETTERED_TO = Setting(
    "ForwardDeadLetteredMessagesTo",
    "forward_dead_lettered_to",
    Form(_forward, _show_forward("forward_dead_lettered_to")),
)
IS_ANONYMOUS_ACCESSIBLE = Figure("IsAnonymousAccessible", lambda _: False)
AUTHORIZATION_RULES = Setting(
    "AuthorizationRules",
    "authorization_rules",
    Form(
        read_authorization_rules,
        lambda rules, shown: write_authorization_rules(rules, with_times=not shown.after_put),
    ),
    kept=True,  # an update without them must keep clients connected
)
CREATED_AT = Figure("CreatedAt", lambda view: timestamp(view.created_at_ms))
UPDATED_AT = Figure("UpdatedAt", lambda view: timestamp(view.updated_at_ms))
ACCESSED_AT = Figure("AccessedAt", lambda view: timestamp(_accessed_at_ms(view)))
COUNT_DETAILS = Figure("CountDetails", _count_details)
AVAILABILITY = Figure("EntityAvailabilityStatus", lambda _: "Available")


# Descriptions

QUEUE_ELEMENTS: Table = (
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

TOPIC_ELEMENTS: Table = (
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

SUBSCRIPTION_ELEMENTS: Table = (
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


_FIRST_RULE = "DefaultRuleDescription"


def _read_settings(
    table: Table,
    given: Description,
    message_size_kb_default: int,
    existing: EntityDescription | None,
) -> dict[str, Any]:
    """Return settings by field: those given, and for kept ones that are left out those of `existing`.

    `message_size_kb_default` is the tier's. Clients that update what they have read send it back, and setting
    it would be refused.

    Raises: ArgumentInvalid.
    """
    found: dict[str, Any] = {}
    for row in table:
        if isinstance(row, Setting):
            if given.has(row.element):
                found[row.field] = row.form.read(given, row.element)
            elif row.kept and existing is not None:
                found[row.field] = getattr(existing, row.field)
    for field, address in GIVEN_FORWARDS.items():
        if field in found:
            found[field], found[address] = found[field]
    if found.get("max_message_size_kb") == message_size_kb_default:
        del found["max_message_size_kb"]
    size_mb = found.get("max_size_mb", 0)
    is_total = size_mb >= MAX_SIZE_MB_MIN * PARTITION_COUNT and size_mb % PARTITION_COUNT == 0
    if found.get("enable_partitioning") and is_total:
        # As it is shown: no partition may be so large.
        found["max_size_mb"] = size_mb // PARTITION_COUNT
    return found


def read_queue(
    given: Description, name: str, message_size_kb_default: int, existing: EntityDescription | None = None
) -> QueueDescription:
    """Read a queue's settings. Raises: ArgumentInvalid."""
    return QueueDescription(name, **_read_settings(QUEUE_ELEMENTS, given, message_size_kb_default, existing))


def read_topic(
    given: Description, name: str, message_size_kb_default: int, existing: EntityDescription | None = None
) -> TopicDescription:
    """Read a topic's settings. Raises: ArgumentInvalid."""
    settings = _read_settings(TOPIC_ELEMENTS, given, message_size_kb_default, existing)
    # A topic cannot keep an order over its partitions.
    settings.setdefault("support_ordering", not settings.get("enable_partitioning", False))
    return TopicDescription(name, **settings)


def read_subscription(
    given: Description, topic: str, name: str, existing: EntityDescription | None = None
) -> SubscriptionDescription:
    """Read a subscription's settings. Raises: ArgumentInvalid."""
    return SubscriptionDescription(topic, name, **_read_settings(SUBSCRIPTION_ELEMENTS, given, 0, existing))


def read_first_rule(given: Description) -> RuleDescription | None:
    """Read the rule that a subscription gets in place of `$Default`; None = none is given.

    Raises: ArgumentInvalid.
    """
    if not given.has(_FIRST_RULE):
        return None
    rule = given.child(_FIRST_RULE)
    return read_rule(rule, rule.text("Name") if rule.has("Name") else DEFAULT_RULE_NAME)


def write_description(shown: Shown) -> str:
    """Write an entity's settings and figures."""
    about = shown.view.description
    return write_element(
        type(about).__name__,
        (
            (
                row.element,
                row.form.show(getattr(about, row.field), shown)
                if isinstance(row, Setting)
                else row.show(shown.view),
            )
            for row in _ELEMENTS[type(about)]
        ),
    )


def write_settings(description: EntityDescription, first_rule: RuleDescription | None = None) -> str:
    """Write the settings of an entity as a client sets them: sizes of one partition, forwards by name.

    `first_rule`: what a new subscription gets in place of `$Default`.
    """
    children: list[tuple[str, Text]] = []
    for row in _ELEMENTS[type(description)]:
        if isinstance(row, Setting):
            value = getattr(description, row.field)
            if row.form is DURATION:
                value = format_duration(value)
            elif row.form is STATUS:
                value = value.value
            elif row is AUTHORIZATION_RULES:
                value = write_authorization_rules(value, with_times=False)
            children.append((row.element, value))
        if row.element == "DeadLetteringOnFilterEvaluationExceptions" and first_rule is not None:
            children.append((_FIRST_RULE, write_rule(first_rule, _FIRST_RULE)))
    return write_element(type(description).__name__, children)


_ELEMENTS: dict[type, Table] = {
    QueueDescription: QUEUE_ELEMENTS,
    TopicDescription: TOPIC_ELEMENTS,
    SubscriptionDescription: SUBSCRIPTION_ELEMENTS,
}
KEPT = {
    kind.__name__: [row.element for row in table if isinstance(row, Setting) and row.kept]
    for kind, table in _ELEMENTS.items()
}
"""Name of a description -> the elements whose settings an update keeps when it leaves them out."""
