"""What the queues of a namespace have in common.

Owns: the source of tokens, the timers, what is known of the wall clock, who is attached, who waits for
bodies, the recorder of events, which queues issued numbers or got messages lately, whether the disk is nearly
full.
Must not know: what queues do with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from peeklock.broker.awaited_bodies import AwaitedBodies
from peeklock.broker.changes import NumbersIssued
from peeklock.broker.history_recorder import HistoryRecorder
from peeklock.broker.receivers import Links
from peeklock.broker.recorder import Recorder
from peeklock.broker.timers import Timers
from peeklock.broker.wall_clock import CLOCK_STEP_LIMIT_MS, WallClock

if TYPE_CHECKING:
    from peeklock.broker.forwarding import Forwarding
    from peeklock.broker.history import History
    from peeklock.broker.message_queue import MessageQueue


class Issuer(Protocol):
    """What gives out positions and numbers."""

    queue_id: int
    numbers_dirty: bool

    def numbers_issued(self) -> NumbersIssued: ...


class Shared:
    """What the queues of a namespace have in common."""

    __slots__ = (
        "bodies",
        "copies",
        "events",
        "failed_evaluations",
        "forwarding",
        "issued",
        "links",
        "low_space",
        "timers",
        "tokens",
        "touched",
        "wall",
    )

    forwarding: Forwarding
    """Set once the entities are there: it looks them up."""

    def __init__(
        self,
        tokens: Callable[[], bytes],
        captures_body: Callable[[str], bool] | None = None,
        clock_step_limit_ms: int = CLOCK_STEP_LIMIT_MS,
        history: History | None = None,
    ) -> None:
        """Args: captures_body: as for `Recorder`; None = nothing is recorded, but for the history."""
        self.tokens = tokens
        self.timers = Timers()
        self.wall = WallClock(clock_step_limit_ms)
        self.links = Links()
        self.bodies = AwaitedBodies()
        self.events: Recorder | None = None
        if history is not None:
            self.events = HistoryRecorder(self.timers, self.wall, captures_body, history)
        elif captures_body is not None:
            self.events = Recorder(self.timers, self.wall, captures_body)
        self.issued: list[Issuer] = []  # which issued numbers since somebody asked
        self.copies = 0  # and forwards, that the command or slice under way has made
        self.low_space = False  # on the disk: messages and states of sessions are refused
        self.failed_evaluations = 0  # of rules, since start
        self.touched: dict[int, MessageQueue] = {}  # that a command changed although it did not name them

    def touch(self, queue: MessageQueue) -> None:
        """Have a queue served before the command's answer leaves."""
        self.touched[queue.queue_id] = queue
