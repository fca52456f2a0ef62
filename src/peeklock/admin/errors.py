"""HTTP statuses of refusals: one table, every leaf of the broker's and of authorization's errors.

Official clients retry 408, 429, 500, 502, 503 and 504. Source: wire contract 7.2.
"""

from __future__ import annotations

from peeklock.auth import errors as auth
from peeklock.broker.vocabulary import errors as broker

Refusal = broker.ServiceBusError | auth.AuthorizationError

STATUSES: dict[type[Refusal], int] = {
    broker.ArgumentInvalid: 400,
    broker.ArgumentOutOfRange: 400,
    auth.AudienceNotCovered: 401,
    auth.AnotherNamespace: 401,
    auth.NamespaceFull: 403,
    broker.ClaimCommitted: 404,
    auth.ClaimMissing: 401,  # the service does not answer 403 here: that means quota to its clients
    broker.ClaimNotFound: 404,
    broker.CursorNotFound: 404,
    broker.CursorOwned: 409,
    broker.EntityAlreadyExists: 409,
    broker.RuleNotFound: 404,
    broker.RuleAlreadyExists: 409,
    broker.EntityDeleted: 404,
    broker.EntityDisabled: 403,
    broker.EntityNotFound: 404,
    broker.InvalidOperation: 403,
    auth.IssuerRefused: 401,
    auth.KeyRefused: 401,
    auth.KeysUnavailable: 503,
    broker.LowSpace: 403,
    broker.MessageLocked: 409,
    broker.MessageLockLost: 404,
    broker.MessageNotFound: 404,
    broker.MessageSizeExceeded: 403,
    broker.NameInvalid: 400,
    broker.NotSupported: 400,  # not in the tier
    broker.PreconditionFailed: 412,
    broker.QuotaExceeded: 403,
    broker.ServerBusy: 503,
    broker.SessionCannotBeLocked: 409,
    broker.SessionLockLost: 404,
    broker.SessionWaitTimedOut: 408,
    auth.SignatureInvalid: 401,
    auth.TokenExpired: 401,
    auth.TokenMalformed: 401,
    auth.TokenNotYetValid: 401,
    auth.TokenTypeUnsupported: 401,
    broker.TransactionRolledBack: 409,
    broker.TransactionTimedOut: 408,
    broker.TransactionUnknown: 404,
}

_SUB_CODES: dict[type[Refusal], str] = {
    broker.NameInvalid: "SubCode=40000. ",
    broker.InvalidOperation: "SubCode=40301. ",
    broker.EntityDisabled: "SubCode=40301. ",
}
"""The service's. By those of 403 the JavaScript client tells an invalid operation from a full quota. Source:
wire contract 7.2, C32."""


def status_of(error: Refusal) -> tuple[int, str]:
    """Return the status and the text of a refusal."""
    return STATUSES[type(error)], _SUB_CODES.get(type(error), "") + str(error)
