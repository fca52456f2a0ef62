"""Descriptions of entities and rules: their settings and defaults, as data.

A setting that a kind of entity cannot have is a constant of its class, so that all kinds have the same
fields. The ranges are in `validation`.
Source: wire contract 7.3 to 7.6, 10.1; Learn "Service Bus quotas".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import ClassVar, Final, TypeAlias

from peeklock.rules.filters import Filter, SqlAction, TrueFilter

UNLIMITED_MS: Final = 922_337_203_685_477
"""The largest time span, P10675199DT2H48M5.4775807S, in whole ms: means "never"."""


class EntityStatus(Enum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


@dataclass(frozen=True, slots=True)
class AuthorizationRule:
    """A shared access rule of an entity: a name, two keys, and the rights of both."""

    name: str
    rights: tuple[str, ...]
    """Some of `RIGHTS`, in the order given."""
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    created_at_ms: int = 0
    """UTC; set by the broker, as the next."""
    modified_at_ms: int = 0


RIGHTS: Final = ("Manage", "Send", "Listen")
"""Rights of a rule; Manage includes the others. Source: wire contract 7.3."""


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """Settings of a queue. Times in ms."""

    name: str
    lock_duration_ms: int = 60_000
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_ttl_ms: int = UNLIMITED_MS
    dead_lettering_on_expiration: bool = False
    duplicate_window_ms: int = 600_000
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = UNLIMITED_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    max_message_size_kb: int | None = None
    """None = the tier's default; premium tier only."""
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    forward_to_given: str | None = None
    """The address by which a client gave `forward_to`; None = the name alone. The next likewise."""
    forward_dead_lettered_to_given: str | None = None


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """Settings of a topic. Times in ms."""

    name: str
    max_size_mb: int = 1024
    requires_duplicate_detection: bool = False
    default_ttl_ms: int = UNLIMITED_MS
    duplicate_window_ms: int = 600_000
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = UNLIMITED_MS
    enable_partitioning: bool = False
    enable_express: bool = False
    support_ordering: bool = True
    max_message_size_kb: int | None = None
    """None = the tier's default; premium tier only."""
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    lock_duration_ms: ClassVar[int] = 60_000
    requires_session: ClassVar[bool] = False
    dead_lettering_on_expiration: ClassVar[bool] = False
    max_delivery_count: ClassVar[int] = 10
    forward_to: ClassVar[str | None] = None
    forward_dead_lettered_to: ClassVar[str | None] = None
    forward_to_given: ClassVar[str | None] = None
    forward_dead_lettered_to_given: ClassVar[str | None] = None


@dataclass(frozen=True, slots=True)
class SubscriptionDescription:
    """Settings of a subscription. Times in ms."""

    topic_name: str
    subscription_name: str
    lock_duration_ms: int = 60_000
    requires_session: bool = False
    default_ttl_ms: int = UNLIMITED_MS
    dead_lettering_on_expiration: bool = False
    dead_lettering_on_filter_errors: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle_ms: int = UNLIMITED_MS
    forward_to_given: str | None = None
    """The address by which a client gave `forward_to`; None = the name alone. The next likewise."""
    forward_dead_lettered_to_given: str | None = None

    requires_duplicate_detection: ClassVar[bool] = False
    duplicate_window_ms: ClassVar[int] = 600_000
    # These are the topic's.
    max_size_mb: ClassVar[int] = 1024
    max_message_size_kb: ClassVar[int | None] = None
    enable_partitioning: ClassVar[bool] = False
    authorization_rules: ClassVar[tuple[AuthorizationRule, ...]] = ()

    @property
    def name(self) -> str:
        """The path, topic included."""
        return subscription_path(self.topic_name, self.subscription_name)


GIVEN_FORWARDS: Final = {
    "forward_to": "forward_to_given",
    "forward_dead_lettered_to": "forward_dead_lettered_to_given",
}
"""Field that names another entity -> field with the address by which that was given."""

Description: TypeAlias = QueueDescription | TopicDescription | SubscriptionDescription


class EntityKind(Enum):
    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


KINDS: Final[dict[type, EntityKind]] = {
    QueueDescription: EntityKind.QUEUE,
    TopicDescription: EntityKind.TOPIC,
    SubscriptionDescription: EntityKind.SUBSCRIPTION,
}


SUBSCRIPTIONS: Final = "/Subscriptions/"
"""Part of a subscription's path and of no other entity's, in any case."""


def subscription_path(topic_name: str, subscription_name: str) -> str:
    """Return the path of a subscription. Source: wire contract 0.5."""
    return f"{topic_name}{SUBSCRIPTIONS}{subscription_name}"


def shown_source(name: str) -> str:
    """Return the DeadLetterSource as messages show it: a queue's name in lower case, a subscription's path as
    is.

    Facts, the event log and the administration keep the spelling. Source: wire contract C37.
    """
    return name if SUBSCRIPTIONS in name else name.lower()


DEFAULT_RULE_NAME: Final = "$Default"

_ALL_MESSAGES: Final = TrueFilter()


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """One rule of a subscription."""

    name: str
    filter: Filter = _ALL_MESSAGES
    action: SqlAction | None = None
    created_at_ms: int = 0
    """UTC; set by the broker."""

    @property
    def version(self) -> str:
        """Changes with the rule."""
        # As text, since 1, 1.0 and True are equal, but not to a filter.
        return blake2b(repr(self).encode(errors="replace"), digest_size=8).hexdigest()
