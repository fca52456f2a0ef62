"""Conditions of the AMQP specification, the error value on the wire, and errors of the AMQP machines.

Must not know the broker's errors: the gateway maps them to conditions.
Source: OASIS AMQP 1.0 sections 2.8.14-2.8.18.
"""

from __future__ import annotations

import enum
from typing import Any, Final

from .types import Symbol

INTERNAL_ERROR: Final = Symbol("amqp:internal-error")
NOT_FOUND: Final = Symbol("amqp:not-found")
UNAUTHORIZED_ACCESS: Final = Symbol("amqp:unauthorized-access")
DECODE_ERROR: Final = Symbol("amqp:decode-error")
RESOURCE_LIMIT_EXCEEDED: Final = Symbol("amqp:resource-limit-exceeded")
NOT_ALLOWED: Final = Symbol("amqp:not-allowed")
INVALID_FIELD: Final = Symbol("amqp:invalid-field")
NOT_IMPLEMENTED: Final = Symbol("amqp:not-implemented")
ILLEGAL_STATE: Final = Symbol("amqp:illegal-state")
FRAME_SIZE_TOO_SMALL: Final = Symbol("amqp:frame-size-too-small")
CONNECTION_FORCED: Final = Symbol("amqp:connection:forced")
FRAMING_ERROR: Final = Symbol("amqp:connection:framing-error")
HANDLE_IN_USE: Final = Symbol("amqp:session:handle-in-use")
UNATTACHED_HANDLE: Final = Symbol("amqp:session:unattached-handle")
MESSAGE_SIZE_EXCEEDED: Final = Symbol("amqp:link:message-size-exceeded")


class AmqpError:
    """The `error` of a close, end, detach or rejected outcome (AMQP 2.8.14)."""

    __slots__ = ("condition", "description", "info")

    def __init__(self, condition: str, description: str = "", info: dict[Any, Any] | None = None) -> None:
        self.condition = condition if isinstance(condition, Symbol) else Symbol(condition)
        self.description = description
        self.info = info

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AmqpError):
            return NotImplemented
        mine = (self.condition, self.description, self.info)
        return mine == (other.condition, other.description, other.info)

    def __hash__(self) -> int:
        return hash((self.condition, self.description))

    def __repr__(self) -> str:
        info = f", {self.info!r}" if self.info else ""
        return f"AmqpError({str(self.condition)!r}, {self.description!r}{info})"


class Scope(enum.Enum):
    """What ends when the peer breaks the protocol."""

    CONNECTION = "connection"
    SESSION = "session"
    LINK = "link"


class RemoteProtocolError(Exception):
    """The peer broke the protocol: `Connection.receive` ends `scope` with `error` and catches this."""

    def __init__(self, condition: Symbol, description: str, scope: Scope = Scope.CONNECTION) -> None:
        super().__init__(f"{condition}: {description}")
        self.error = AmqpError(condition, description)
        self.scope = scope


class LocalProtocolError(Exception):
    """The owner made a call that the protocol forbids in this state: a defect of the caller."""
