"""The settings that a configuration file can give an entity, a table for each kind.

Keys are those of the emulator's `Schema/Config-schema.json`; settings that it lacks have their names in the
administration API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from peeklock.admin.forwards import read_forward
from peeklock.broker.entities.validation import NAME_LENGTH_MAX, is_name
from peeklock.broker.vocabulary.descriptions import (
    GIVEN_FORWARDS,
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from peeklock.broker.vocabulary.durations import format_duration, parse_duration
from peeklock.config.form import none_of, shown

NAME_RULE = (
    f"a name: 1 to {NAME_LENGTH_MAX} of A-Z, a-z, 0-9 and ._-/, no part between slashes empty, '.' or '..'"
)


# Readers raise ValueError.


def _boolean(value: Any) -> bool:
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


def _forward(value: Any) -> tuple[str | None, str | None]:
    """Return the target's name and the address that names it."""
    if not isinstance(value, str):
        raise ValueError(f'{shown(value)} is not a name in quotation marks ("" for none)')
    try:
        name, address = read_forward(value)
    except ValueError as failure:
        raise ValueError(f"{shown(value)} {failure}") from failure
    if value and (name is None or not is_name(name) or (address is None and name != value)):
        raise ValueError(f"{shown(value)} is not {NAME_RULE}")
    return name, address


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f'{shown(value)} is not a string ("" for none)')
    return value or None


def _status(value: Any) -> EntityStatus:
    for status in EntityStatus:
        if status.value == value:
            return status
    raise ValueError(none_of(value, [status.value for status in EntityStatus]))


@dataclass(frozen=True, slots=True)
class _Form:
    """Conversion of a setting's value."""

    read: Callable[[Any], Any]
    """From JSON. Raises: ValueError."""
    write: Callable[[Any], Any] = lambda value: value
    """To JSON; not called for defaults, so not for None."""


_BOOLEAN = _Form(_boolean)
_WHOLE_NUMBER = _Form(_whole_number)
_DURATION = _Form(_duration, format_duration)
_FORWARD = _Form(_forward)
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
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_to", _FORWARD),
    "ForwardTo": ("forward_to", _FORWARD),
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
    has = {field.name for field in fields(kind)}  # what the kind lacks are constants of its class
    return {key: (field, form) for key, (field, form) in _ALL.items() if field in has}


PROPERTIES: Mapping[type[Description], Mapping[str, tuple[str, _Form]]] = {
    kind: _settings_of(kind) for kind in (QueueDescription, TopicDescription, SubscriptionDescription)
}
"""By kind: key in the file -> field of the description, and its form."""

FORWARDS = {"ForwardTo": "forward_to", "ForwardDeadLetteredMessagesTo": "forward_dead_lettered_to"}
"""Settings that name another entity -> field; a topic has none."""

IMMUTABLE = ("EnablePartitioning", "RequiresDuplicateDetection", "RequiresSession")
"""Settings that are fixed at creation. Source: wire contract 7.3, column "mutable"."""


def read_settings(
    given: Mapping[str, Any], kind: type[Description], read: Callable[[Callable[[Any], Any], str], Any]
) -> dict[str, Any]:
    """Read the `Properties` of an entity, by field of its description.

    Args:
        given: keys that the kind lacks are ignored.
        kind: of the entity.
        read: returns what a reader makes of the value of a key; None = a problem was reported.
    """
    known = PROPERTIES[kind]
    settings = {known[key][0]: read(known[key][1].read, key) for key in given if key in known}
    for field, address in GIVEN_FORWARDS.items():
        if field in settings:
            settings[field], settings[address] = settings[field] or (None, None)
    return settings


def write_settings(description: Description, default: Description) -> dict[str, Any]:
    """Return the `Properties` of an entity that differ from the default.

    MaxDeliveryCount is always written, since the emulator's default is 3 (our choice). A forward is written
    as it was given.
    """
    settings = {
        key: form.write(value)
        for key, (field, form) in PROPERTIES[type(description)].items()
        if (value := getattr(description, field)) != getattr(default, field) or key == "MaxDeliveryCount"
    }
    for key, field in FORWARDS.items():
        if key in settings:
            settings[key] = getattr(description, GIVEN_FORWARDS[field]) or settings[key]
    return settings
