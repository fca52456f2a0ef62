"""The errors of the client: their conditions, which of them to retry, and what to do about them.

No text holds a key or a token. Source: wire contract 4.6 (conditions, and what official clients retry).
"""

from __future__ import annotations

from typing import Final

CONNECTION_LOST: Final = "peeklock:connection-lost"
"""The connection broke or could not be opened. Our own name: it is never on the wire."""
TIMEOUT: Final = "com.microsoft:timeout"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
NOT_FOUND: Final = "amqp:not-found"
SERVER_BUSY: Final = "com.microsoft:server-busy"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
MESSAGE_LOCK_LOST: Final = "com.microsoft:message-lock-lost"
MESSAGE_NOT_FOUND: Final = "com.microsoft:message-not-found"
SESSION_CANNOT_BE_LOCKED: Final = "com.microsoft:session-cannot-be-locked"
NOT_ALLOWED: Final = "amqp:not-allowed"

_RETRYABLE: Final = frozenset(
    {
        CONNECTION_LOST,
        TIMEOUT,
        SERVER_BUSY,
        "amqp:internal-error",
        "amqp:connection:forced",
        "amqp:link:detach-forced",
        "com.microsoft:operation-cancelled",
    }
)

_ADVICE: Final = {
    UNAUTHORIZED: "Check SharedAccessKeyName and SharedAccessKey in the connection string: the key must "
    "match, and its rule needs the right Listen to read, Send to write; a web token needs a role with it.",
    NOT_FOUND: "Create the entity, or correct its path; it may have been deleted.",
    "amqp:resource-deleted": "The entity was deleted. Create it again, or correct its path.",
    "com.microsoft:entity-disabled": "Enable the entity, then start again.",
    "amqp:resource-limit-exceeded": "Receive from an entity that is full, or raise the limit that is named.",
    MESSAGE_SIZE_EXCEEDED: "Send a smaller message, or raise the entity's limit.",
    NOT_IMPLEMENTED: "This broker does not know the operation: cursors need peeklock, peek-lock and "
    "browsing work with any Service Bus. A broker named by a URL, amqp://..., only sends and receives.",
    CONNECTION_LOST: "Check the host and port in the connection string, and that the broker runs.",
    SESSION_CANNOT_BE_LOCKED: "Another receiver holds the session: close it, wait until its lock expires, or "
    "take another session.",
    SERVER_BUSY: "Try again later, or with fewer requests at a time.",
}

_STATUS_CONDITIONS: Final = {
    400: "com.microsoft:argument-error",
    401: UNAUTHORIZED,
    403: "amqp:resource-limit-exceeded",
    404: NOT_FOUND,
    408: TIMEOUT,
    409: "com.microsoft:entity-already-exists",
    410: MESSAGE_LOCK_LOST,
    500: "amqp:internal-error",
    501: NOT_IMPLEMENTED,
    503: SERVER_BUSY,
}


class OptionError(ValueError):
    """A connection string or an option is unknown, missing or wrong; the text names it."""


class ServiceBusError(Exception):
    """The broker refused an operation, or could not be reached.

    Attributes:
        condition: AMQP condition, e.g. `amqp:not-found`; of our own: `peeklock:connection-lost`.
        text: as `str(error)`: host, entity, what happened, what to do.
        entity: path of the entity.
        retryable: whether a later attempt may succeed.
        index: place of the message among those given to its sender, from 0; None if not about one message.
        tag: of that message, as given to `Sender.send`.
    """

    def __init__(
        self,
        condition: str,
        text: str,
        entity: str,
        retryable: bool,
        *,
        index: int | None = None,
        tag: object = None,
    ) -> None:
        super().__init__(text)
        self.condition = condition
        self.text = text
        self.entity = entity
        self.retryable = retryable
        self.index = index
        self.tag = tag


def refused(
    condition: str | None,
    description: str,
    *,
    host: str,
    entity: str,
    index: int | None = None,
    tag: object = None,
) -> ServiceBusError:
    """Return the error for a broker's answer; no condition counts as temporary (wire contract 2.9)."""
    name = condition or "amqp:link:detach-forced"
    said = description.strip().rstrip(".") or "the broker gave no reason"
    where = f"sb://{host}/{entity}"
    which = "" if index is None else f", message {index}" + ("" if tag is None else f" ({tag})")
    advice = _ADVICE.get(name)
    text = f"{where}{which}: {said} [{name}]." + (f" {advice}" if advice else "")
    return ServiceBusError(name, text, entity, name in _RETRYABLE, index=index, tag=tag)


def condition_of_status(status: int) -> str:
    """Return the condition of a status, for an answer that names none. Source: wire contract 4.6."""
    return _STATUS_CONDITIONS.get(status, "amqp:internal-error")
