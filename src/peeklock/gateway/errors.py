"""One table: every refusal of the broker and of authorization -> AMQP condition and management status.

A test requires every leaf class to be here. Conditions make official clients retry what a retry can help and
nothing else (T-03). Source: wire contract 4.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from peeklock.amqp.errors import (
    CONNECTION_FORCED,
    DECODE_ERROR,
    INVALID_FIELD,
    MESSAGE_SIZE_EXCEEDED,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    UNAUTHORIZED_ACCESS,
    AmqpError,
)
from peeklock.amqp.types import Symbol
from peeklock.auth import errors as auth
from peeklock.broker.vocabulary import errors as broker

ARGUMENT_ERROR = Symbol("com.microsoft:argument-error")
MESSAGE_LOCK_LOST = Symbol("com.microsoft:message-lock-lost")

Log = Callable[[str, dict[str, object]], None]
"""Takes an event's name and its fields, none of them a secret."""

LOG_LINES_MAX = 20
LOG_WINDOW_MS = 60_000
"""Log lines of one connection, and in which time. Our choice: enough to see what is wrong with a client,
while 1,000 bad ones write 330 lines a second and not as many as they can provoke."""


class GatewayError(Exception):
    """Refused by the gateway, before the broker."""


class MessageMalformed(GatewayError):
    """The payload is no AMQP message."""


class AddressInvalid(GatewayError):
    """A link names no node, or one that cannot be."""


class FilterInvalid(GatewayError):
    """A filter of the source has a value of a wrong type."""


class FrameSettingInvalid(GatewayError):
    """A setting of the link contradicts the protocol or its node."""


class TooManyGrants(GatewayError):
    """A connection holds tokens for too many audiences."""


class TooManyLinks(GatewayError):
    """A peer without a claim attaches more links than it needs to show one."""


class ClaimOverdue(GatewayError):
    """The peer has not shown a claim in time."""


class Inactive(GatewayError):
    """The peer has valid tokens and no link to an entity."""


class TooManyRefusals(GatewayError):
    """The peer keeps sending tokens or keys that are refused."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets for a refusal."""

    condition: Symbol
    status: int
    """HTTP-like status of a management or CBS response."""


TABLE: dict[type[Exception], Answer] = {
    broker.EntityNotFound: Answer(NOT_FOUND, 404),
    broker.EntityAlreadyExists: Answer(Symbol("com.microsoft:entity-already-exists"), 409),
    broker.RuleNotFound: Answer(NOT_FOUND, 404),
    broker.PreconditionFailed: Answer(Symbol("amqp:precondition-failed"), 412),
    broker.RuleAlreadyExists: Answer(Symbol("com.microsoft:entity-already-exists"), 409),
    broker.EntityDisabled: Answer(Symbol("com.microsoft:entity-disabled"), 403),
    broker.EntityDeleted: Answer(Symbol("amqp:resource-deleted"), 404),
    broker.InvalidOperation: Answer(NOT_ALLOWED, 400),
    broker.ArgumentInvalid: Answer(ARGUMENT_ERROR, 400),
    broker.NameInvalid: Answer(ARGUMENT_ERROR, 400),
    broker.ArgumentOutOfRange: Answer(Symbol("com.microsoft:argument-out-of-range"), 400),
    broker.NotSupported: Answer(NOT_IMPLEMENTED, 501),
    broker.MessageLockLost: Answer(MESSAGE_LOCK_LOST, 410),
    broker.SessionLockLost: Answer(Symbol("com.microsoft:session-lock-lost"), 410),
    broker.SessionCannotBeLocked: Answer(Symbol("com.microsoft:session-cannot-be-locked"), 409),
    broker.SessionWaitTimedOut: Answer(Symbol("com.microsoft:timeout"), 408),
    broker.TransactionUnknown: Answer(Symbol("amqp:transaction:unknown-id"), 404),
    broker.TransactionTimedOut: Answer(Symbol("amqp:transaction:timeout"), 408),
    broker.TransactionRolledBack: Answer(Symbol("amqp:transaction:rollback"), 409),
    broker.CursorNotFound: Answer(Symbol("peeklock:cursor-not-found"), 404),
    broker.CursorOwned: Answer(Symbol("peeklock:cursor-owned"), 409),
    broker.ClaimNotFound: Answer(Symbol("peeklock:claim-not-found"), 404),
    broker.ClaimCommitted: Answer(Symbol("peeklock:claim-committed"), 410),
    broker.MessageNotFound: Answer(Symbol("com.microsoft:message-not-found"), 404),
    broker.MessageLocked: Answer(Symbol("peeklock:message-locked"), 409),
    broker.MessageSizeExceeded: Answer(MESSAGE_SIZE_EXCEEDED, 403),
    broker.LowSpace: Answer(RESOURCE_LIMIT_EXCEEDED, 403),
    broker.QuotaExceeded: Answer(RESOURCE_LIMIT_EXCEEDED, 403),
    broker.ServerBusy: Answer(Symbol("com.microsoft:server-busy"), 503),
    auth.TokenMalformed: Answer(ARGUMENT_ERROR, 400),
    auth.TokenTypeUnsupported: Answer(UNAUTHORIZED_ACCESS, 401),
    auth.SignatureInvalid: Answer(UNAUTHORIZED_ACCESS, 401),
    auth.TokenExpired: Answer(UNAUTHORIZED_ACCESS, 401),
    auth.TokenNotYetValid: Answer(UNAUTHORIZED_ACCESS, 401),
    auth.IssuerRefused: Answer(UNAUTHORIZED_ACCESS, 401),
    auth.KeysUnavailable: Answer(Symbol("com.microsoft:server-busy"), 503),  # a retry helps
    auth.AudienceNotCovered: Answer(UNAUTHORIZED_ACCESS, 401),
    auth.AnotherNamespace: Answer(UNAUTHORIZED_ACCESS, 401),
    auth.NamespaceFull: Answer(RESOURCE_LIMIT_EXCEEDED, 403),
    auth.ClaimMissing: Answer(UNAUTHORIZED_ACCESS, 401),
    auth.KeyRefused: Answer(UNAUTHORIZED_ACCESS, 401),
    MessageMalformed: Answer(DECODE_ERROR, 400),
    AddressInvalid: Answer(INVALID_FIELD, 400),
    FilterInvalid: Answer(INVALID_FIELD, 400),
    FrameSettingInvalid: Answer(NOT_ALLOWED, 400),
    TooManyGrants: Answer(RESOURCE_LIMIT_EXCEEDED, 403),
    TooManyLinks: Answer(RESOURCE_LIMIT_EXCEEDED, 403),
    ClaimOverdue: Answer(CONNECTION_FORCED, 401),  # a client may reconnect with a token
    Inactive: Answer(CONNECTION_FORCED, 408),
    TooManyRefusals: Answer(UNAUTHORIZED_ACCESS, 401),
}


class Reporter:
    """Makes the error that a client sees and its log line, with one tracking id in both.

    After `LOG_LINES_MAX` lines, only one more follows until `LOG_WINDOW_MS` are over: it counts the rest.
    """

    def __init__(
        self,
        connection_id: int,
        tracking: Callable[[], str],
        log: Log,
        peer: Callable[[], str] = str,
        first_uses: set[str] | None = None,
    ) -> None:
        """`tracking` returns a fresh GUID text a call; `peer` the other end's address, empty = not known."""
        self._connection_id = connection_id
        self._tracking = tracking
        self._log = log
        self._peer = peer
        self._first_uses = set() if first_uses is None else first_uses
        self._window_ends_ms: int | None = None
        """Of the lines below; None before the next line."""
        self._lines = 0
        self._left_out = 0
        self.host_name = "localhost"

    def report(self, error: Exception, entity: str, now_ms: int) -> AmqpError:
        """Log a refusal; return its condition and text.

        Source: requirement T-02; the layout of the text is the service's.
        """
        condition = TABLE[type(error)].condition
        text = str(error)
        if type(error) is broker.EntityNotFound:
            # JavaScript recognises the error by this wording (wire contract 2.1).
            text = f"The messaging entity 'sb://{self.host_name}/{entity}' could not be found."
        tracking_id = self.track()
        at = datetime.fromtimestamp(now_ms / 1000, UTC)
        fields = {"tracking_id": tracking_id, "condition": str(condition), "entity": entity, "text": text}
        if isinstance(error, auth.AuthorizationError) and error.key_name:
            fields["key_name"] = error.key_name
        self.note("refused", fields, now_ms)
        return AmqpError(
            condition,
            f"{text.rstrip('.')}. TrackingId:{tracking_id}, SystemTracker:{self.host_name}:{entity}, "
            f"Timestamp:{at:%Y-%m-%dT%H:%M:%S}",
        )

    def track(self) -> str:
        """Return a fresh tracking id."""
        return f"{self._tracking()}_G{self._connection_id}"

    def note(self, event: str, fields: Mapping[str, object], now_ms: int) -> None:
        """Log an event of this connection, or count it."""
        self.tick(now_ms)
        if self._window_ends_ms is None:
            self._window_ends_ms = now_ms + LOG_WINDOW_MS
        if self._lines < LOG_LINES_MAX:
            self._lines += 1
            peer = self._peer()
            who = {"connection": self._connection_id, **({"peer": peer} if peer else {})}
            self._log(event, {**fields, **who})
        else:
            self._left_out += 1

    def note_first_use(self, what: str, how: str, now_ms: int) -> None:
        """Log, once for all connections, the use of something that Azure does differently."""
        if what not in self._first_uses:
            self._first_uses.add(what)
            self.note("differs from azure", {"what": what, "how": how}, now_ms)

    def tick(self, now_ms: int) -> None:
        """Log how many lines were left out, once the window is over."""
        if self._window_ends_ms is not None and now_ms >= self._window_ends_ms:
            self.finish()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to log, UTC ms; None for never."""
        return self._window_ends_ms if self._left_out else None

    def finish(self) -> None:
        """Log now how many lines were left out; the next line begins a new window."""
        if self._left_out:
            self._log("log lines left out", {"count": self._left_out, "connection": self._connection_id})
        self._lines = self._left_out = 0
        self._window_ends_ms = None
