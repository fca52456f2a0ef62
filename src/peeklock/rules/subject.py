"""What filters and actions see of a message.

Owns: the protocol. Must not know: how a message is read; the broker does that, as late as it can.
"""

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
"""System properties, `sys.`; found without regard to case. `Subject` is another name of `Label`. Source: wire
contract 9.3."""


ID_LENGTH_MAX = 128
"""Characters of ids and partition keys; no message with a longer one is accepted. Source: Learn "Service Bus
quotas"."""


class Subject(Protocol):
    """A message as its rules see it. A property that is absent, or null, or of a type that no expression can
    compare, is not in these mappings; whether it is there at all, `has_user` knows."""

    @property
    def user(self) -> Mapping[str, Value]:
        """Application properties by their names in lower case; of several spellings in one message, the
        first."""

    @property
    def system(self) -> Mapping[str, Value]:
        """System properties by their names in lower case; `subject` is found as `label`. Only `[name]` and
        `get(name)` are used."""

    def has_user(self, folded_name: str) -> bool:
        """Whether an application property is there, also with a null (EXISTS)."""

    def user_name(self, folded_name: str) -> str | None:
        """How the message spells an application property (SET, REMOVE); None when it has none."""

    def new_id(self) -> UUID:
        """Give a new random id (newid())."""
