"""What the broker refuses, one class per reason a client can tell apart.

Owns: the reasons. Must not know: AMQP conditions or HTTP statuses; `gateway.errors` and `admin.errors` map
every leaf class in one table each. Every message names the entity and the values.
"""

from __future__ import annotations


class ServiceBusError(Exception):
    """Something a client asked for is refused; nothing was changed."""


class EntityNotFound(ServiceBusError):
    """No entity of that name."""


class EntityAlreadyExists(ServiceBusError):
    """An entity of that name is there already."""


class EntityDisabled(ServiceBusError):
    """The entity's status forbids this."""


class EntityDeleted(ServiceBusError):
    """The entity was deleted while a link was attached to it."""


class InvalidOperation(ServiceBusError):
    """The entity does not allow this operation."""


class ArgumentInvalid(ServiceBusError):
    """A value is malformed or contradicts another."""


class NameInvalid(ServiceBusError):
    """No entity or rule can have this name."""


class ArgumentOutOfRange(ServiceBusError):
    """A value is outside the allowed range."""


class NotSupported(ServiceBusError):
    """The operation or feature is not offered."""


class MessageLockLost(ServiceBusError):
    """The lock token is unknown, settled already, or has lapsed."""


class SessionLockLost(ServiceBusError):
    """The session is not held by who asks, or its lock has lapsed."""


class SessionCannotBeLocked(ServiceBusError):
    """Another receiver holds the session."""


class SessionWaitTimedOut(ServiceBusError):
    """No session became available while the receiver waited for one."""


class TransactionUnknown(ServiceBusError):
    """No open transaction of this connection has that id."""


class TransactionTimedOut(ServiceBusError):
    """The transaction was open for too long and has been rolled back."""


class TransactionRolledBack(ServiceBusError):
    """Not all that was enlisted can still be done, so none of it was."""


class RuleNotFound(ServiceBusError):
    """The subscription has no rule of that name."""


class RuleAlreadyExists(ServiceBusError):
    """The subscription has a rule of that name already."""


class CursorNotFound(ServiceBusError):
    """The queue has no cursor of that name (any more)."""


class ClaimNotFound(ServiceBusError):
    """The cursor has made no claim of that number."""


class ClaimCommitted(ServiceBusError):
    """The claim was committed: what it held is gone."""


class MessageNotFound(ServiceBusError):
    """No message with that sequence number in the state asked for."""


class MessageSizeExceeded(ServiceBusError):
    """The message is larger than the entity or the link allows."""


class QuotaExceeded(ServiceBusError):
    """The entity is full, or there are as many of something as there may be."""


class LowSpace(ServiceBusError):
    """The broker's disk is nearly full; there may be room for it later."""


class PreconditionFailed(ServiceBusError):
    """The entity or rule is no longer as it was when the client read it."""


class ServerBusy(ServiceBusError):
    """The broker lags behind; the same request may succeed later."""
