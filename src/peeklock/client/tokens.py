"""The tokens that a client puts for its entities: made from a key, or taken from where the settings say.

Source: wire contract 1.7.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Final

from peeklock.auth.authority import JWT_TOKEN_TYPE, SAS_TOKEN_TYPE
from peeklock.auth.sas import generate
from peeklock.client.connection_string import ConnectionString
from peeklock.client.credentials import web_token
from peeklock.client.token_file import WebToken, read_token

TOKEN_MS: Final = 3_600_000
"""Lifetime of our tokens. Source: wire contract 1.7 (the official clients' hour)."""

RENEWAL_PART: Final = 10
"""The next token is put in the last tenth of a token's lifetime. Source: wire contract 1.7."""

LATE_MS: Final = 1000
"""How often a file is read again whose next token is late. Our choice."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token that the broker has, and when to put the next one, UTC ms."""

    text: str = field(repr=False)
    renew_at_ms: int
    type: str = SAS_TOKEN_TYPE


def token_for(settings: ConnectionString, audience: str, now_ms: int) -> Token:
    """Return a token for an audience. Raises: ServiceBusError, if a file or a credential has none."""
    if settings.signature:
        return Token(settings.signature, sys.maxsize)
    if settings.token_file is not None:
        return _of_web(read_token(settings.token_file, now_ms), now_ms)
    if settings.credential is not None:
        return _of_web(web_token(settings.credential), now_ms)
    expires_ms = now_ms + TOKEN_MS
    text = generate(audience, settings.key_name, settings.key, expires_ms)
    return Token(text, expires_ms - TOKEN_MS // RENEWAL_PART)


def _of_web(found: WebToken, now_ms: int) -> Token:
    """Return a token to put until the last tenth of its lifetime."""
    return Token(found.text, found.expires_ms - (found.expires_ms - now_ms) // RENEWAL_PART, JWT_TOKEN_TYPE)
