"""The settings that a configuration file can give an entity, a table for each kind.

Owns: the key of each setting, how its value is read and written. Must not know: where
in the file they stand (`config`), ranges of values and the form of names (`broker.validation`). Pure.

Keys are those of the emulator's `Schema/Config-schema.json`; settings that it lacks go by their names in the
administration API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from peeklock.broker.descriptions import (
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.durations import format_duration, parse_duration
from peeklock.broker.validation import NAME_LENGTH_MAX, is_name
from peeklock.server.config_form import none_of, shown

NAME_RULE = (
    f"a name: 1 to {NAME_LENGTH_MAX} of A-Z, a-z, 0-9 and ._-/, the first and the last a letter or digit"
)


def boolean(value: Any) -> bool:
    """Raises: ValueError, as all that read."""
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not true or false")
    return value


def _whole_number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{shown(value)} is not a whole number")
    return value


def _duration(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not an ISO 8601 duration such as PT1M, in quotation marks")
    return parse_duration(value)


def _entity_name(value: Any) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f'{shown(value)} is not a name in quotation marks ("" for none)')
    if value and not is_name(value):
        raise ValueError(f"{shown(value)} is not {NAME_RULE}")
    return value or None


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f'{shown(value)} is not a text in quotation marks ("" for none)')
    return value or None


def _status(value: Any) -> EntityStatus:
    for status in EntityStatus:
        if status.value == value:
            return status
    raise ValueError(none_of(value, [status.value for status in EntityStatus]))


@dataclass(frozen=True, slots=True)
class _Form:
    """How the values of a setting stand in the file."""

    read: Callable[[Any], Any]
    """From JSON. Raises: ValueError."""
    write: Callable[[Any], Any] = lambda value: value
    """To JSON; never asked for a default, so not for None."""


_BOOLEAN = _Form(boolean)
_WHOLE_NUMBER = _Form(_whole_number)
_DURATION = _Form(_duration, format_duration)
_ENTITY_NAME = _Form(_entity_name)
_TEXT = _Form(_text)
_STATUS = _Form(_status, lambda status: status.value)

_ALL: dict[str, tuple[str, _Form]] = {
    "AutoDeleteOnIdle": ("auto_delete_on_idle_ms", _DURATION),
    "DeadLetteringOnFilterEvaluationExceptions": ("dead_lettering_on_filter_errors", _BOOLEAN),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_expiration", _BOOLEAN),
    "DefaultMessageTimeToLive": ("default_ttl_ms", _DURATION),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_window_ms", _DURATION),
    "EnableBatchedOperations": ("enable_batched_operations", _BOOLEAN),
    "EnableExpress": ("enable_express", _BOOLEAN),
    "EnablePartitioning": ("enable_partitioning", _BOOLEAN),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", _ENTITY_NAME),
    "ForwardTo": ("forward_to", _ENTITY_NAME),
    "LockDuration": ("lock_duration_ms", _DURATION),
    "MaxDeliveryCount": ("max_delivery_count", _WHOLE_NUMBER),
    "MaxMessageSizeInKilobytes": ("max_message_size_kb", _WHOLE_NUMBER),
    "MaxSizeInMegabytes": ("max_size_mb", _WHOLE_NUMBER),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", _BOOLEAN),
    "RequiresSession": ("requires_session", _BOOLEAN),
    "Status": ("status", _STATUS),
    "SupportOrdering": ("support_ordering", _BOOLEAN),
    "UserMetadata": ("user_metadata", _TEXT),
}


def _settings_of(kind: type[Description]) -> dict[str, tuple[str, _Form]]:
    has = {field.name for field in fields(kind)}  # without what the kind cannot have: constants of its class
    return {key: (field, form) for key, (field, form) in _ALL.items() if field in has}


QUEUE_PROPERTIES = _settings_of(QueueDescription)
TOPIC_PROPERTIES = _settings_of(TopicDescription)
SUBSCRIPTION_PROPERTIES = _settings_of(SubscriptionDescription)
"""Key in the file -> field of the description and its form."""

PROPERTIES: Mapping[type[Description], Mapping[str, tuple[str, _Form]]] = {
    QueueDescription: QUEUE_PROPERTIES,
    TopicDescription: TOPIC_PROPERTIES,
    SubscriptionDescription: SUBSCRIPTION_PROPERTIES,
}

FORWARDS = {"ForwardTo": "forward_to", "ForwardDeadLetteredMessagesTo": "forward_dead_lettered_to"}
"""Settings that name another entity -> field; a topic's are None."""

IMMUTABLE = ("EnablePartitioning", "RequiresDuplicateDetection", "RequiresSession")
"""Settings that are fixed at creation. Source: wire contract 7.3, column "mutable"."""


def write_settings(description: Description, default: Description) -> dict[str, Any]:
    """Give the `Properties` of an entity: all that differs from the default.

    MaxDeliveryCount always stands there, since left out it is 3 in the emulator. Source: our choice.
    """
    return {
        key: form.write(value)
        for key, (field, form) in PROPERTIES[type(description)].items()
        if (value := getattr(description, field)) != getattr(default, field) or key == "MaxDeliveryCount"
    }
