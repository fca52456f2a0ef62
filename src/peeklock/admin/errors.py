"""What a refusal is called over HTTP: one table, every leaf of the broker's and of authorization's errors.

Owns: leaf class -> status, and the administration's own refusal. Must not know: how the body is written.
Source: wire contract 7.2. Official clients retry 408, 429, 500, 502, 503 and 504; 501 is not among them, so
what is not offered is told at once.
"""

from __future__ import annotations

from peeklock.auth.errors import (
    AudienceNotCovered,
    AuthorizationError,
    ClaimMissing,
    IssuerRefused,
    KeyRefused,
    KeysUnavailable,
    SignatureInvalid,
    TokenExpired,
    TokenMalformed,
    TokenNotYetValid,
    TokenTypeUnsupported,
)
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    ClaimCommitted,
    ClaimNotFound,
    CursorNotFound,
    EntityAlreadyExists,
    EntityDeleted,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    LowSpace,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    NameInvalid,
    NotSupported,
    PreconditionFailed,
    QuotaExceeded,
    RuleAlreadyExists,
    RuleNotFound,
    ServerBusy,
    ServiceBusError,
    SessionCannotBeLocked,
    SessionLockLost,
    SessionWaitTimedOut,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
)

Refusal = ServiceBusError | AuthorizationError

STATUSES: dict[type[Refusal], int] = {
    ArgumentInvalid: 400,
    ArgumentOutOfRange: 400,
    AudienceNotCovered: 401,
    ClaimCommitted: 404,
    ClaimMissing: 401,  # the service does not answer 403 here: that means quota to its clients
    ClaimNotFound: 404,
    CursorNotFound: 404,
    EntityAlreadyExists: 409,
    RuleNotFound: 404,
    RuleAlreadyExists: 409,
    EntityDeleted: 404,
    EntityDisabled: 403,
    EntityNotFound: 404,
    InvalidOperation: 403,
    IssuerRefused: 401,
    KeyRefused: 401,
    KeysUnavailable: 503,
    LowSpace: 403,
    MessageLockLost: 404,
    MessageNotFound: 404,
    MessageSizeExceeded: 403,
    NameInvalid: 400,
    NotSupported: 400,  # not in the tier
    PreconditionFailed: 412,
    QuotaExceeded: 403,
    ServerBusy: 503,
    SessionCannotBeLocked: 409,
    SessionLockLost: 404,
    SessionWaitTimedOut: 408,
    SignatureInvalid: 401,
    TokenExpired: 401,
    TokenMalformed: 401,
    TokenNotYetValid: 401,
    TokenTypeUnsupported: 401,
    TransactionRolledBack: 409,
    TransactionTimedOut: 408,
    TransactionUnknown: 404,
}

_SUB_CODES: dict[type[Refusal], str] = {
    NameInvalid: "SubCode=40000. ",
    InvalidOperation: "SubCode=40301. ",
    EntityDisabled: "SubCode=40301. ",
}
"""As the service has them; by those of 403 the JavaScript client tells an invalid operation from a full
quota. Source: wire contract 7.2, C32."""


def status_of(error: Refusal) -> tuple[int, str]:
    """Give the status and the text of a refusal."""
    return STATUSES[type(error)], _SUB_CODES.get(type(error), "") + str(error)
