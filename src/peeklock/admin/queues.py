"""QueueDescription: the element that clients send and are sent.

Owns: its elements, their order and defaults, and forwarding addresses. Must not know: HTTP, ranges of
values (the broker's). Source: wire contract 7.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from peeklock.admin.atom import SERVICE_BUS_NAMESPACE, escape, timestamp
from peeklock.admin.durations import format_duration
from peeklock.admin.errors import NotOffered
from peeklock.admin.reading import Description
from peeklock.broker.descriptions import EntityStatus, QueueDescription
from peeklock.broker.effects import EntityView
from peeklock.broker.errors import ArgumentInvalid
from peeklock.broker.sequence_numbers import PARTITION_COUNT
from peeklock.broker.validation import MAX_SIZE_MB_MIN

IMMUTABLE = {
    "RequiresDuplicateDetection": "requires_duplicate_detection",
    "RequiresSession": "requires_session",
    "EnablePartitioning": "enable_partitioning",
}
"""Elements that are set at creation only; an update that leaves one out means what is there."""

SETTINGS: dict[str, tuple[str, Callable[[Description, str], Any]]] = {
    "LockDuration": ("lock_duration_ms", Description.duration),
    "MaxSizeInMegabytes": ("max_size_mb", Description.whole_number),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", Description.boolean),
    "RequiresSession": ("requires_session", Description.boolean),
    "DefaultMessageTimeToLive": ("default_ttl_ms", Description.duration),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_expiration", Description.boolean),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_window_ms", Description.duration),
    "MaxDeliveryCount": ("max_delivery_count", Description.whole_number),
    "EnableBatchedOperations": ("enable_batched_operations", Description.boolean),
    "Status": ("status", lambda given, name: _status(given.text(name))),
    "ForwardTo": ("forward_to", lambda given, name: _entity_name(given.text(name))),
    "UserMetadata": ("user_metadata", lambda given, name: given.exact_text(name) or None),
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", Description.duration),
    "EnablePartitioning": ("enable_partitioning", Description.boolean),
    "EnableExpress": ("enable_express", Description.boolean),
    "ForwardDeadLetteredMessagesTo": (
        "forward_dead_lettered_to",
        lambda given, name: _entity_name(given.text(name)),
    ),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", Description.whole_number),
}
"""Element -> field of QueueDescription and its reader; all others are the broker's own, or unknown."""


def read_queue(
    given: Description, name: str, message_size_kb_default: int, existing: QueueDescription | None = None
) -> QueueDescription:
    """Read a queue's settings; what is left out has its default, or for immutable ones what `existing` has.

    `message_size_kb_default`: the tier's; clients that update what they have read send it back, where
    setting it would be refused.

    Raises: ArgumentInvalid, NotOffered.
    """
    settings = {
        field: read(given, element) for element, (field, read) in SETTINGS.items() if given.has(element)
    }
    if given.has_children("AuthorizationRules"):
        raise NotOffered("Authorization rules of a single entity are not offered; use the namespace's.")
    if settings.get("max_message_size_kb") == message_size_kb_default:
        del settings["max_message_size_kb"]
    if existing is not None:
        for field in IMMUTABLE.values():
            settings.setdefault(field, getattr(existing, field))
    size_mb = settings.get("max_size_mb", 0)
    if settings.get("enable_partitioning") and size_mb >= MAX_SIZE_MB_MIN * PARTITION_COUNT:
        # As it is shown. No partition may be so large, so that nobody can have meant the size of one.
        settings["max_size_mb"] = size_mb // PARTITION_COUNT
    return QueueDescription(name, **settings)


def write_queue(view: EntityView, host: str, message_size_kb_default: int) -> str:
    """Write a queue's settings and figures, in the service's order of elements."""
    about = view.description
    message_count = (
        view.active_count + view.scheduled_count + view.dead_letter_count + view.transfer_dead_letter_count
    )
    elements = [
        ("LockDuration", format_duration(about.lock_duration_ms)),
        # Asked for is the size of one partition, shown that of all. Source: wire contract 7.3.
        ("MaxSizeInMegabytes", about.max_size_mb * (PARTITION_COUNT if about.enable_partitioning else 1)),
        ("RequiresDuplicateDetection", about.requires_duplicate_detection),
        ("RequiresSession", about.requires_session),
        ("DefaultMessageTimeToLive", format_duration(about.default_ttl_ms)),
        ("DeadLetteringOnMessageExpiration", about.dead_lettering_on_expiration),
        ("DuplicateDetectionHistoryTimeWindow", format_duration(about.duplicate_window_ms)),
        ("MaxDeliveryCount", about.max_delivery_count),
        ("EnableBatchedOperations", about.enable_batched_operations),
        ("SizeInBytes", view.size_bytes),
        ("MessageCount", message_count),
        ("IsAnonymousAccessible", False),
        ("AuthorizationRules", ""),
        ("Status", about.status.value),
        ("ForwardTo", _address(host, about.forward_to)),
        ("UserMetadata", about.user_metadata),
        ("CreatedAt", timestamp(view.created_at_ms)),
        ("UpdatedAt", timestamp(view.updated_at_ms)),
        ("AccessedAt", timestamp(view.accessed_at_ms)),
        ("SupportOrdering", True),
        ("CountDetails", view),
        ("AutoDeleteOnIdle", format_duration(about.auto_delete_on_idle_ms)),
        ("EnablePartitioning", about.enable_partitioning),
        ("EntityAvailabilityStatus", "Available"),
        ("EnableExpress", about.enable_express),
        ("ForwardDeadLetteredMessagesTo", _address(host, about.forward_dead_lettered_to)),
        ("MaxMessageSizeInKilobytes", about.max_message_size_kb or message_size_kb_default),
    ]
    return (
        f'<QueueDescription xmlns="{SERVICE_BUS_NAMESPACE}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        + "".join(_element(name, value) for name, value in elements if value is not None)
        + "</QueueDescription>"
    )


def _element(name: str, value: object) -> str:
    if isinstance(value, EntityView):
        return _count_details(value)
    if isinstance(value, bool):
        return f"<{name}>{'true' if value else 'false'}</{name}>"
    text = escape(str(value))
    return f"<{name}>{text}</{name}>" if text else f"<{name}/>"


def _count_details(view: EntityView) -> str:
    # The JavaScript client expects one attribute here, a prefix, and children that carry this prefix.
    counts = [
        ("ActiveMessageCount", view.active_count),
        ("DeadLetterMessageCount", view.dead_letter_count),
        ("ScheduledMessageCount", view.scheduled_count),
        ("TransferMessageCount", 0),  # a message is passed on in the moment it arrives
        ("TransferDeadLetterMessageCount", view.transfer_dead_letter_count),
    ]
    return (
        '<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        + "".join(f"<d2p1:{name}>{count}</d2p1:{name}>" for name, count in counts)
        + "</CountDetails>"
    )


def _status(text: str) -> EntityStatus:
    for status in EntityStatus:
        if status.value == text:
            return status
    raise ArgumentInvalid(
        f"The value {text!r} of Status is none of {', '.join(s.value for s in EntityStatus)}."
    )


def _entity_name(text: str) -> str | None:
    """Take the entity's name from `name`, `sb://host/name` or `https://host/name`."""
    _, separator, rest = text.partition("://")
    if separator:
        text = unquote(rest.partition("/")[2])
    return text.strip("/") or None


def _address(host: str, name: str | None) -> str | None:
    return None if name is None else f"sb://{host}/{name}"
