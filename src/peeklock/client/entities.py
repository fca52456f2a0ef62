"""Queues, topics and subscriptions in XML, as a client of the administration reads and writes them. Pure.

Names are those of the elements. Source: wire contract 7.3 to 7.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import urlsplit

from peeklock.client.durations import iso_duration, parse_duration

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Kind: TypeAlias = Literal["queue", "topic", "subscription"]
Value: TypeAlias = bool | int | str | timedelta

NAMESPACE: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
SCHEMA_INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"

STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of an entity."""

    type: type
    """`bool`, `int`, `str` or `timedelta`."""
    about: str
    fixed: bool = False
    """Whether it can be set at creation alone."""
    names_entity: bool = False
    choices: tuple[str, ...] = ()


SETTINGS: Final[Mapping[str, Setting]] = {
    "LockDuration": Setting(timedelta, "How long a received message stays locked; at most 5m."),
    "MaxSizeInMegabytes": Setting(int, "Size of all messages at which sends are refused."),
    "RequiresDuplicateDetection": Setting(bool, "Drop messages whose id came before.", fixed=True),
    "RequiresSession": Setting(bool, "Receive by session only.", fixed=True),
    "DefaultMessageTimeToLive": Setting(timedelta, "How long a message lives, unless it says less."),
    "DeadLetteringOnMessageExpiration": Setting(bool, "Dead-letter messages that expire."),
    "DeadLetteringOnFilterEvaluationExceptions": Setting(bool, "Dead-letter messages whose filter fails."),
    "DuplicateDetectionHistoryTimeWindow": Setting(timedelta, "How long message ids are remembered."),
    "MaxDeliveryCount": Setting(int, "Deliveries before a message is dead-lettered."),
    "EnableBatchedOperations": Setting(bool, "Batch store access; peeklock always does."),
    "Status": Setting(str, "What the entity lets clients do.", choices=STATUSES),
    "ForwardTo": Setting(str, "Queue or topic that gets each message; '' = none.", names_entity=True),
    "ForwardDeadLetteredMessagesTo": Setting(
        str, "Queue or topic that gets dead-lettered messages; '' = none.", names_entity=True
    ),
    "UserMetadata": Setting(str, "A note."),
    "AutoDeleteOnIdle": Setting(timedelta, "Delete the entity after so long without use."),
    "EnablePartitioning": Setting(bool, "Divide the entity into partitions.", fixed=True),
    "EnableExpress": Setting(bool, "Keep messages in memory first; peeklock does not."),
    "SupportOrdering": Setting(bool, "Keep the order of messages."),
    "MaxMessageSizeInKilobytes": Setting(int, "Largest message; premium tier only."),
}
"""By element."""

_AUTHORIZATION: Final = "AuthorizationRules"
"""Kept as it is."""

ELEMENTS: Final[Mapping[Kind, tuple[str, ...]]] = {
    "queue": (
        "LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession",
        "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration", "DuplicateDetectionHistoryTimeWindow",
        "MaxDeliveryCount", "EnableBatchedOperations", _AUTHORIZATION, "Status", "ForwardTo", "UserMetadata",
        "AutoDeleteOnIdle", "EnablePartitioning", "EnableExpress", "ForwardDeadLetteredMessagesTo",
        "MaxMessageSizeInKilobytes",
    ),
    "topic": (
        "DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow", "EnableBatchedOperations", _AUTHORIZATION, "Status",
        "SupportOrdering", "AutoDeleteOnIdle", "EnablePartitioning", "EnableExpress", "UserMetadata",
        "MaxMessageSizeInKilobytes",
    ),
    "subscription": (
        "LockDuration", "RequiresSession", "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions", "MaxDeliveryCount", "EnableBatchedOperations", "Status",
        "ForwardTo", "ForwardDeadLetteredMessagesTo", "AutoDeleteOnIdle", "UserMetadata",
    ),
}  # fmt: skip
"""Settings of each kind, in the service's order, which is that of a request."""

COUNTS: Final = (
    "ActiveMessageCount",
    "DeadLetterMessageCount",
    "ScheduledMessageCount",
    "TransferMessageCount",
    "TransferDeadLetterMessageCount",
)


@dataclass(frozen=True, slots=True)
class Entity:
    """A queue, topic or subscription: its settings and figures."""

    kind: Kind
    path: str
    """A subscription's is `TOPIC/Subscriptions/NAME`."""
    settings: Mapping[str, Value]
    """By element; what is not set is missing."""
    counts: Mapping[str, int]
    """Messages by `COUNTS`."""
    size_bytes: int | None
    """None for a subscription, whose messages count for its topic."""
    subscriptions: int | None
    """Of a topic."""
    times: Mapping[str, str]
    """CreatedAt, UpdatedAt and AccessedAt, in ISO 8601; a time that never was is missing."""
    given: Element = field(repr=False, compare=False)
    """The description as the service wrote it."""

    @property
    def messages(self) -> int:
        """Messages in any state."""
        return sum(self.counts.values())


def subscription_path(topic: str, name: str) -> str:
    """Return the path of a subscription. Source: wire contract 0.5."""
    return f"{topic}/Subscriptions/{name}"


def read_entity(path: str, given: Element) -> Entity:
    """Return an entity of its description. Raises: ValueError: it is something else, or cannot be read."""
    kind = _KINDS.get(local(given))
    if kind is None:
        raise ValueError(f"{local(given)!r} is not a queue, topic or subscription")
    texts = {local(child): child.text or "" for child in given}
    details = next((child for child in given if local(child) == "CountDetails"), ())
    return Entity(
        kind,
        path,
        {name: _value(name, texts[name]) for name in ELEMENTS[kind] if name in texts and name in SETTINGS},
        {**dict.fromkeys(COUNTS, 0), **{local(child): int(child.text or 0) for child in details}},
        int(texts["SizeInBytes"]) if "SizeInBytes" in texts and kind != "subscription" else None,
        int(texts["SubscriptionCount"]) if "SubscriptionCount" in texts and kind == "topic" else None,
        {
            name: texts[name]
            for name in ("CreatedAt", "UpdatedAt", "AccessedAt")
            if not texts.get(name, "0001").startswith("0001")
        },
        given,
    )


def write_entity(
    kind: Kind, settings: Mapping[str, Value], existing: Entity | None = None, first_rule: str = ""
) -> str:
    """Return a description with these settings; those of `existing` that are not given stay.

    `first_rule`: XML of what a new subscription gets in place of `$Default`.
    Raises: ValueError: the kind has no such setting.
    """
    if unknown := [name for name in settings if name not in ELEMENTS[kind] or name not in SETTINGS]:
        raise ValueError(f"a {kind} has no setting {unknown[0]}; it has {', '.join(ELEMENTS[kind])}")
    there = {} if existing is None else {local(child): child for child in existing.given}
    parts = []
    for name in ELEMENTS[kind]:
        if name in settings:
            if settings[name] != "":  # an empty one is left out: there is none
                parts.append(f"<{name}>{escape(_text(settings[name]), quote=False)}</{name}>")
        elif name in there:
            parts.append(_xml(there[name]))
        if name == "DeadLetteringOnFilterEvaluationExceptions":
            parts.append(first_rule)
    tag = next(tag for tag, each in _KINDS.items() if each == kind)
    return f'<{tag} xmlns="{NAMESPACE}" xmlns:i="{SCHEMA_INSTANCE}">{"".join(parts)}</{tag}>'


def local(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


_KINDS: Final[Mapping[str, Kind]] = {
    "QueueDescription": "queue",
    "TopicDescription": "topic",
    "SubscriptionDescription": "subscription",
}


def _value(name: str, text: str) -> Value:
    setting = SETTINGS[name]
    if setting.type is bool:
        return text.strip().lower() in ("true", "1")
    if setting.type is int:
        return int(text)
    if setting.type is timedelta:
        return parse_duration(text)
    return urlsplit(text).path.strip("/") if setting.names_entity and "://" in text else text


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return iso_duration(value) if isinstance(value, timedelta) else str(value)


def _xml(element: Element) -> str:
    from xml.etree.ElementTree import tostring

    return tostring(element, encoding="unicode")
