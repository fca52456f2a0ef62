"""Sessions of a queue or subscription: their ids, states and locks, at any Service Bus.

Source: wire contract 5.2 (get-message-sessions, get-session-state, set-session-state, renew-session-lock).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from peeklock.amqp.types import Int, Timestamp
from peeklock.client.connection import BlockingConnection, wall_ms
from peeklock.client.errors import ServiceBusError
from peeklock.client.links import Receiver

LIST: Final = "com.microsoft:get-message-sessions"
GET_STATE: Final = "com.microsoft:get-session-state"
SET_STATE: Final = "com.microsoft:set-session-state"
RENEW: Final = "com.microsoft:renew-session-lock"

_ALL: Final = Timestamp(253402300800000)
"""Asks for all sessions with messages or a state. Source: wire contract 5.2."""

PAGE_COUNT: Final = 100
"""Sessions of a request. As the official Python client."""

RENEW_S: Final = (2.0, 30.0)
"""Shortest and longest time between renewals. Our choice: the shortest lock lasts 5 s; a wrong clock here
does not matter for one of a minute."""


class MessageSessions:
    """The sessions of an entity. Those of AMQP are others."""

    def __init__(self, connection: BlockingConnection, path: str) -> None:
        self._management = connection.management(path)

    def ids(self) -> Iterator[str]:
        """Yield the ids of the sessions that have messages or a state. Raises: ServiceBusError."""
        skip = 0
        while True:
            asked = {"last-updated-time": _ALL, "skip": Int(skip), "top": Int(PAGE_COUNT)}
            found = self._management.request(LIST, asked).body.get("sessions-ids") or ()
            yield from map(str, found)
            if len(found) < PAGE_COUNT:
                return
            skip += len(found)

    def state(self, session_id: str) -> bytes | None:
        """Return the state of a session that a receiver of this connection holds. Raises: ServiceBusError."""
        body = self._management.request(GET_STATE, {"session-id": session_id}).body
        found: bytes | None = body.get("session-state")
        return found

    def set_state(self, session_id: str, state: bytes | None) -> None:
        """Set the state of such a session; None clears it. Raises: ServiceBusError."""
        self._management.request(SET_STATE, {"session-id": session_id, "session-state": state})

    def renew(self, session_id: str) -> None:
        """Renew the lock of such a session. Raises: ServiceBusError."""
        self._management.request(RENEW, {"session-id": session_id})


class SessionLock:
    """The lock of the session that a receiver holds, renewed as long as it is needed."""

    def __init__(self, connection: BlockingConnection, receiver: Receiver) -> None:
        """`receiver`: has locked a session."""
        self._sessions = MessageSessions(connection, receiver.entity)
        self._receiver = receiver
        half_s = (receiver.locked_until_ms - wall_ms()) / 2000
        self._renew_s = min(max(half_s, RENEW_S[0]), RENEW_S[1])
        self._renew_at = time.monotonic() + self._renew_s

    def left_s(self) -> float:
        """Return how long the lock needs no renewal, seconds."""
        return max(0.0, self._renew_at - time.monotonic())

    def keep(self) -> None:
        """Renew the lock, if it is time to.

        Raises:
            ServiceBusError: refused; or the link is lost, and the lock with it.
        """
        if not self._receiver.is_open:
            raise self._receiver.lost_error()
        if self.left_s():
            return
        try:
            self._sessions.renew(self._receiver.session_id or "")
        except ServiceBusError as error:
            if self._receiver.is_open:
                raise
            raise self._receiver.lost_error() from error  # the request went over the next connection
        self._renew_at = time.monotonic() + self._renew_s
