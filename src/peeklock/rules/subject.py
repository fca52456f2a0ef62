"""A message as filters and actions see it; the broker implements it, and reads as late as it can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

from peeklock.rules.filters import Value

SYSTEM_NAMES = (
    "MessageId",
    "CorrelationId",
    "To",
    "ReplyTo",
    "ReplyToSessionId",
    "SessionId",
    "Label",
    "ContentType",
    "TimeToLive",
    "ScheduledEnqueueTimeUtc",
    "EnqueuedTimeUtc",
    "SequenceNumber",
    "EnqueuedSequenceNumber",
    "DeliveryCount",
    "LockedUntilUtc",
    "LockToken",
    "Size",
    "PartitionKey",
    "ViaPartitionKey",
    "ForcePersistence",
    "State",
    "DeadLetterSource",
    "ExpiresAtUtc",
)
"""System properties, `sys.`; case-insensitive. `Subject` is another name of `Label`. Source: wire contract
9.3."""

ID_LENGTH_MAX = 128
"""Characters of ids and partition keys in a message. Source: Learn "Service Bus quotas"."""


class Subject(Protocol):
    """A message as its rules see it. The mappings lack properties that are absent, null, or of a type that no
    expression can compare; `has_user` knows which are there."""

    @property
    def user(self) -> Mapping[str, Value]:
        """Application properties by lower-case name; the first of several spellings wins."""

    @property
    def system(self) -> Mapping[str, Value]:
        """System properties by lower-case name, `subject` as `label`. Needs only `[name]` and `get(name)`."""

    def has_user(self, folded_name: str) -> bool:
        """Whether an application property is there, even null (EXISTS)."""

    def user_name(self, folded_name: str) -> str | None:
        """Return the message's spelling of an application property (SET, REMOVE), or None."""

    def new_id(self) -> UUID:
        """Return a new random id (newid())."""
