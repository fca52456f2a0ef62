"""Reasons for a refusal: one class for each that a client can tell apart.

`gateway.errors` and `admin.errors` map every leaf class to an AMQP condition or HTTP status, in one table
each. A message names the entity and the values.
"""

from __future__ import annotations


class ServiceBusError(Exception):
    """A request is refused; nothing was changed."""


class EntityNotFound(ServiceBusError):
    """No entity of that name."""


class EntityAlreadyExists(ServiceBusError):
    """An entity of that name exists."""


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
    """A value is out of range."""


class NotSupported(ServiceBusError):
    """The operation or feature is not available."""


class MessageLockLost(ServiceBusError):
    """The lock token is unknown or settled, or its lock has lapsed."""


class SessionLockLost(ServiceBusError):
    """The requester does not hold the session, or its lock has lapsed."""


class SessionCannotBeLocked(ServiceBusError):
    """Another receiver holds the session."""


class SessionWaitTimedOut(ServiceBusError):
    """No session became available while the receiver waited for one."""


class TransactionUnknown(ServiceBusError):
    """The connection has no open transaction of that id."""


class TransactionTimedOut(ServiceBusError):
    """The transaction was open for too long and was rolled back."""


class TransactionRolledBack(ServiceBusError):
    """A part of the transaction can no longer be done, so none of it was."""


class RuleNotFound(ServiceBusError):
    """The subscription has no rule of that name."""


class RuleAlreadyExists(ServiceBusError):
    """The subscription has a rule of that name."""


class CursorNotFound(ServiceBusError):
    """The queue has no cursor of that name (any more)."""


class CursorOwned(ServiceBusError):
    """The cursor belongs to another reader."""


class ClaimNotFound(ServiceBusError):
    """The cursor has made no claim of that number."""


class ClaimCommitted(ServiceBusError):
    """The claim is committed: its messages are gone."""


class MessageNotFound(ServiceBusError):
    """No message with that sequence number is in the requested state."""


class MessageLocked(ServiceBusError):
    """A receiver or a cursor holds the message."""


class MessageSizeExceeded(ServiceBusError):
    """The message is larger than the entity or the link allows."""


class QuotaExceeded(ServiceBusError):
    """The entity is full, or a limit on a number is reached."""


class LowSpace(ServiceBusError):
    """The broker's disk is nearly full; space may come back later."""


class PreconditionFailed(ServiceBusError):
    """The entity or rule has changed since the client read it."""


class ServerBusy(ServiceBusError):
    """The broker lags behind; the same request may succeed later."""
