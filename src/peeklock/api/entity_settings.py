"""Settings of entities as JSON: one table for both directions. Ranges of values are the broker's.

Source: wire contract 7.3 to 7.5 for the settings of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from peeklock.admin.forwards import read_forward
from peeklock.api.schema import Schema, record
from peeklock.broker.vocabulary.descriptions import (
    GIVEN_FORWARDS,
    KINDS,
    UNLIMITED_MS,
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.errors import ArgumentInvalid
from peeklock.rest.names import shortened


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type are read and shown."""

    schema: Schema
    read: Callable[[Any], Any] = lambda value: value
    """Raises: ValueError."""
    show: Callable[[Any], Any] = lambda value: value
    """None = the member is absent."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A member, and its field in the broker's description."""

    field: str
    form: Form
    description: str


_SECONDS = Form(
    {"type": ["number", "null"], "minimum": 0},
    lambda value: round(min(value * 1000, UNLIMITED_MS)),
    lambda ms: None if ms >= UNLIMITED_MS else ms / 1000,
)
_BOOLEAN = Form({"type": ["boolean", "null"]})
_NUMBER = Form({"type": ["integer", "null"], "minimum": 0, "maximum": (1 << 31) - 1})
_TEXT = Form({"type": ["string", "null"], "maxLength": 1024}, lambda value: value or None)
_STATUS = Form(
    {"type": "string", "enum": [status.value for status in EntityStatus]},
    EntityStatus,
    lambda status: status.value,
)
_FORWARD = Form({"type": ["string", "null"], "maxLength": 2048}, read_forward)

SETTINGS: Mapping[str, Setting] = {
    "autoDeleteOnIdle": Setting(
        "auto_delete_on_idle_ms", _SECONDS, "Delete the entity after so long without use."
    ),
    "batchedOperations": Setting(
        "enable_batched_operations", _BOOLEAN, "Batch store access; the broker always does."
    ),
    "deadLetteringOnExpiration": Setting(
        "dead_lettering_on_expiration", _BOOLEAN, "Dead-letter messages that expire."
    ),
    "deadLetteringOnFilterErrors": Setting(
        "dead_lettering_on_filter_errors", _BOOLEAN, "Dead-letter messages whose filter fails."
    ),
    "defaultTimeToLive": Setting(
        "default_ttl_ms", _SECONDS, "How long a message lives, unless it says less."
    ),
    "duplicateDetectionWindow": Setting(
        "duplicate_window_ms", _SECONDS, "How long message ids are remembered."
    ),
    "express": Setting("enable_express", _BOOLEAN, "Keep messages in memory first; the broker does not."),
    "forwardDeadLetteredTo": Setting(
        "forward_dead_lettered_to", _FORWARD, "Queue or topic that gets dead-lettered messages."
    ),
    "forwardTo": Setting("forward_to", _FORWARD, "Queue or topic that gets each message."),
    "lockDuration": Setting("lock_duration_ms", _SECONDS, "How long a received message stays locked."),
    "maxDeliveryCount": Setting(
        "max_delivery_count", _NUMBER, "Deliveries before a message is dead-lettered."
    ),
    "maxMessageSizeKilobytes": Setting("max_message_size_kb", _NUMBER, "Largest message; premium tier only."),
    "maxSizeMegabytes": Setting(
        "max_size_mb", _NUMBER, "Size of all messages of a partition at which sends are refused."
    ),
    "partitioned": Setting("enable_partitioning", _BOOLEAN, "Divide the entity into partitions. Fixed."),
    "requiresDuplicateDetection": Setting(
        "requires_duplicate_detection", _BOOLEAN, "Drop messages whose id came before. Fixed."
    ),
    "requiresSession": Setting("requires_session", _BOOLEAN, "Receive by session only. Fixed."),
    "status": Setting("status", _STATUS, "What the entity lets clients do."),
    "supportOrdering": Setting("support_ordering", _BOOLEAN, "Keep the order of messages."),
    "userMetadata": Setting("user_metadata", _TEXT, "A note."),
}

SCHEMA: Schema = record(
    {name: {**setting.form.schema, "description": setting.description} for name, setting in SETTINGS.items()},
    (),
    description="Of an entity. Durations are in seconds. A kind has not all of them. A fixed one is set at "
    "creation alone. An unlimited duration, and what is not set, is absent. To set null sets the default.",
    examples=[{"lockDuration": 30, "maxDeliveryCount": 5}],
)

_OF_KIND: Mapping[type, Mapping[str, Setting]] = {
    kind: {
        name: setting
        for name, setting in SETTINGS.items()
        if setting.field in {field.name for field in fields(kind)}
    }
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription)
}


def read_settings(given: Mapping[str, Any], kind: type[Description], message_size_kb: int) -> dict[str, Any]:
    """Return fields of a description by name.

    Args:
        given: as the schema allows.
        kind: of the entity.
        message_size_kb: the tier's limit of a message, which means the default.

    Raises: ArgumentInvalid.
    """
    known = _OF_KIND[kind]
    defaults = {field.name: field.default for field in fields(kind)}
    found: dict[str, Any] = {}
    for name, value in given.items():
        setting = known.get(name)
        if setting is None:
            raise ArgumentInvalid(
                f"A {KINDS[kind].value} has no setting '{name}'; it has {', '.join(known)}."
            )
        if value is None:
            value = (None, None) if setting.form is _FORWARD else defaults[setting.field]
        else:
            try:
                value = setting.form.read(value)
            except ValueError as failure:
                raise ArgumentInvalid(
                    f"The value '{shortened(str(value))}' of '{name}' {failure}."
                ) from failure
        found[setting.field] = value
    for field, address in GIVEN_FORWARDS.items():
        if field in found:
            found[field], found[address] = found[field]
    if found.get("max_message_size_kb") == message_size_kb:
        found["max_message_size_kb"] = None
    return found


def settings_json(description: Description) -> dict[str, Any]:
    """Return the settings of an entity as JSON."""
    shown = {
        name: setting.form.show(getattr(description, setting.field))
        for name, setting in _OF_KIND[type(description)].items()
    }
    if not description.requires_duplicate_detection:
        shown.pop("duplicateDetectionWindow", None)
    return {name: value for name, value in shown.items() if value is not None}
