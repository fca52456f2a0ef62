"""What all requests over HTTP that wait for the broker have in common.

Owns: the commands that they ask, their answers, the links that they are. Must not know: what is asked for,
who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from peeklock.admin.exchange import Response
from peeklock.broker.vocabulary.commands import Command, LinkId, Release
from peeklock.broker.vocabulary.effects import Deliver
from peeklock.broker.vocabulary.message import Message

Body: TypeAlias = Callable[[Message], bytes | None]
"""Returns a message's payload if it is in memory."""


class WaitingRequests:
    """Requests of one connection to the broker that are not answered yet. Each has a number."""

    def __init__(self, connection_id: int, on_defect: Callable[[Exception, dict[str, object]], None]) -> None:
        """Begin with none.

        Args:
            connection_id: under which they are known to the broker, as if all came by one connection.
            on_defect: takes a defect of ours that a request met, and what it was about.
        """
        self._on_defect = on_defect
        self._connection_id = connection_id
        self._last = 0
        self._commands: list[Command] = []
        self._ended: list[tuple[int, Response]] = []

    def take_commands(self) -> list[Command]:
        """Return what is asked of the broker since the last call."""
        taken, self._commands = self._commands, []
        return taken

    def take_ended(self) -> list[tuple[int, Response]]:
        """Return the answers since the last call, by the numbers of their requests."""
        taken, self._ended = self._ended, []
        return taken

    def _release(self, delivery: Deliver) -> None:
        """Give back a message that no client was told of (L-16)."""
        assert delivery.lock_token is not None
        self._commands.append(Release(delivery.message.queue_id, delivery.lock_token, None))

    def _link(self, number: int) -> LinkId:
        return LinkId(self._connection_id, number)
