"""What the queues of a namespace have in common.

Owns: the source of tokens, the timers, who is attached, the recorder of events, which queues issued numbers
or got messages lately.
Must not know: what queues do with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from peeklock.broker.changes import NumbersIssued
from peeklock.broker.receivers import Links
from peeklock.broker.recorder import Recorder
from peeklock.broker.timers import Timers

if TYPE_CHECKING:
    from peeklock.broker.forwarding import Forwarding
    from peeklock.broker.message_queue import MessageQueue


class Issuer(Protocol):
    """What gives out positions and numbers."""

    queue_id: int
    numbers_dirty: bool

    def numbers_issued(self) -> NumbersIssued: ...


class Shared:
    """What the queues of a namespace have in common."""

    __slots__ = (
        "copies",
        "events",
        "failed_evaluations",
        "forwarding",
        "issued",
        "links",
        "timers",
        "tokens",
        "touched",
    )

    forwarding: Forwarding
    """Set once the entities are there: it looks them up."""

    def __init__(
        self, tokens: Callable[[], bytes], captures_body: Callable[[str], bool] | None = None
    ) -> None:
        """Args: captures_body: as for `Recorder`; None = nothing is recorded."""
        self.tokens = tokens
        self.timers = Timers()
        self.links = Links()
        self.events = None if captures_body is None else Recorder(self.timers, captures_body)
        self.issued: list[Issuer] = []  # which issued numbers since somebody asked
        self.copies = 0  # that the command under way has made of messages to topics
        self.failed_evaluations = 0  # of rules, since start
        self.touched: dict[int, MessageQueue] = {}  # that a command changed although it did not name them

    def touch(self, queue: MessageQueue) -> None:
        """Have a queue served before the command's answer leaves."""
        self.touched[queue.queue_id] = queue
