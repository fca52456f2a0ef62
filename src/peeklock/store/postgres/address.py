"""The address of a database: a URL as libpq reads it, and what is shown of it.

Source: postgresql.org/docs/current/libpq-connect.html, 34.1.1 and 34.1.2.
"""

from __future__ import annotations

import re

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict

SCHEMES = ("postgresql://", "postgres://")

CONNECT_S = 5
"""For a connection. Our choice: a machine that is gone answers nothing, and another host may be named."""

UNANSWERED_MS = 5_000
"""A connection whose bytes are not confirmed for so long is broken. Our choice: the length of a lease."""


class AddressInvalid(ValueError):
    """A URL names no database; the text says what to write."""


class Address:
    """A database by its URL."""

    def __init__(self, url: str) -> None:
        """Raises: AddressInvalid."""
        example = "write postgresql://USER:PASSWORD@HOST:5432/DATABASE"
        if not url.startswith(SCHEMES):
            raise AddressInvalid(f"it does not begin with postgresql://: {example}")
        if _has_stray_at(url):
            raise AddressInvalid(
                f"it has an @ behind the host: {example}; write an @ in a user or password as %40, a / as %2F"
            )
        try:
            found = {key: str(value) for key, value in conninfo_to_dict(url).items() if value is not None}
        except Error as error:
            raise AddressInvalid(f"{_reason(str(error).strip(), url)}: {example}") from None
        if not found.get("dbname"):
            raise AddressInvalid(f"it names no database: {example}")
        self._given = found
        hosts = (found.get("host") or "localhost").split(",")
        ports = found.get("port", "").split(",")
        if not all(_is_port(port) for port in ports):
            raise AddressInvalid(f"its port is not a number from 1 to 65535: {example}")
        ports *= len(hosts) if len(ports) == 1 else 1
        where = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
        self.shown = f"{SCHEMES[0]}{where}/{found['dbname']}"
        """Without user and password."""

    def parameters(self, application_name: str) -> dict[str, str]:
        """Return libpq's parameters of a connection: those of the URL win."""
        ours = {
            "connect_timeout": str(CONNECT_S),
            "tcp_user_timeout": str(UNANSWERED_MS),
            "keepalives_idle": "5",
            "keepalives_interval": "2",
            "keepalives_count": "3",
            # Of several hosts the one that may write: after a promotion it is another one.
            "target_session_attrs": "read-write",
        }
        return {**ours, **self._given, "application_name": application_name, "client_encoding": "UTF8"}


def _is_port(text: str) -> bool:
    """Return whether libpq takes a port; none means the usual one. It may be a part of a password."""
    return not text or (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536)


def _has_stray_at(url: str) -> bool:
    """Return whether an `@` follows the first `@` or `/`: libpq reads what is before it as host or database.

    Then it may be a part of a password, and a host or database is shown.
    """
    behind = re.sub("^[^@/]*@", "", url.partition("://")[2])
    return "@" in behind.partition("?")[0]


def _reason(text: str, url: str) -> str:
    """Return libpq's reason for refusing a URL, without what it quotes if that may be part of a password."""
    before_at = url.partition("://")[2].rpartition("@")[0]
    if ":" in before_at or "password" in url or url in text:
        return text.partition(': "')[0]
    return text
