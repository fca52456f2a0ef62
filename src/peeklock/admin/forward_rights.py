"""Whether a client may forward to the entities that a description names. Source: wire contract 7.1, 7.8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from peeklock.admin.exchange import Exchange
from peeklock.admin.forwards import authority_of
from peeklock.admin.typed_texts import cut
from peeklock.auth.errors import AuthorizationError, ClaimMissing
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.descriptions import GIVEN_FORWARDS, Description
from peeklock.broker.vocabulary.errors import ArgumentInvalid

_TOKENS = {
    "forward_to": "servicebussupplementaryauthorization",
    "forward_dead_lettered_to": "servicebusdlqsupplementaryauthorization",
}
"""Field of a description -> header with a token for the entity that it names. Source: wire contract 7.1."""


def foreign_forwards(exchange: Exchange, description: Description) -> Iterator[tuple[str, str]]:
    """Yield each field that forwards to another host, with its address."""
    for field in GIVEN_FORWARDS.values():
        address = getattr(description, field)
        if address is not None and not exchange.owns(authority_of(address)):
            yield field, address


def require_own_forwards(exchange: Exchange, description: Description, existing: Description | None) -> None:
    """Raise ArgumentInvalid if a forward names another host, unless it was there before."""
    for field, address in foreign_forwards(exchange, description):
        if existing is None or address != getattr(existing, field):
            raise ArgumentInvalid(
                f"The forward to {cut(address)!r} names another host: messages are forwarded within a "
                f"namespace."
            )


def authorize_forwards(exchange: Exchange, description: Description, fields: Iterable[str] = _TOKENS) -> None:
    """Raise AuthorizationError unless a token for each target of a forward, or the request's, has Send."""
    for field in fields:
        target = getattr(description, field)
        if target is not None:
            _authorize(exchange, exchange.request.headers.get(_TOKENS[field]) or exchange.token, target)


def _authorize(exchange: Exchange, token: str, target: str) -> None:
    missing = f"Unauthorized access. 'Send' claim(s) are required on '{target}' to forward to it"
    try:
        grant = exchange.granted(token, target)
    except AuthorizationError as failure:
        # The refusal of a token for this entity alone would not name what it lacks.
        refusal = type(failure)(f"{missing}: {failure}")
        refusal.key_name = failure.key_name
        raise refusal from failure
    if Right.SEND not in grant.rights:
        raise ClaimMissing(f"{missing}.")
