"""A JSON web token in a file that another program replaces before the token expires.

Only the token's expiry is read here; the broker verifies it. No text quotes the file's content.
"""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from peeklock.client.errors import ServiceBusError

NO_TOKEN: Final = "peeklock:no-token"
"""The file has no token, or an expired one. Our own name: it is never on the wire."""


@dataclass(frozen=True, slots=True)
class WebToken:
    """A token and when it expires, UTC ms."""

    text: str
    expires_ms: int


def read_token(file: str, now_ms: int) -> WebToken:
    """Return the token of a file.

    Raises:
        ServiceBusError: there is none; or it has expired, which is retryable: its program may be late.
    """
    try:
        text = Path(file).read_text(encoding="ascii").strip()
    except OSError as error:
        raise _refused(file, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise _refused(file, "has no JSON web token") from None
    expires_ms = _expiry_ms(text)
    if expires_ms is None:
        raise _refused(file, "has no JSON web token with an expiry 'exp'")
    if expires_ms <= now_ms:
        expired, now = (
            datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")
            for ms in (expires_ms, now_ms)
        )
        raise _refused(file, f"has a token that expired at {expired}, and it is {now}", retryable=True)
    return WebToken(text, expires_ms)


def _expiry_ms(token: str) -> int | None:
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return int(float(claims["exp"]) * 1000)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def _refused(file: str, what: str, *, retryable: bool = False) -> ServiceBusError:
    host = socket.gethostname()
    text = (
        f"option tokenFile is {file!r}: on host {host} the file {what}. Each host of Spark needs the file, "
        "and a program that puts a new token there before the old one expires."
    )
    return ServiceBusError(NO_TOKEN, text, "", retryable)
