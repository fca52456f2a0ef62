"""What the queues of a namespace share, and what they need of the layer above."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from peeklock.broker.queue.awaited_bodies import AwaitedBodies
from peeklock.broker.queue.links import LinkRegistry
from peeklock.broker.queue.timers import Timers
from peeklock.broker.queue.wall_clock import CLOCK_STEP_LIMIT_MS, WallClock

if TYPE_CHECKING:
    from peeklock.amqp.messaging import Sections
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.queue.outcome import Outcome
    from peeklock.broker.vocabulary.addresses import LockToken
    from peeklock.broker.vocabulary.message import Message


class Forwarder(Protocol):
    """What a queue needs of the forwards between entities; see `entities.forwarding`."""

    def pass_on(
        self, source: MessageQueue, path: str, message: Message, sections: Sections | None, out: Outcome
    ) -> None: ...

    def pass_on_stored(self, source: MessageQueue, count_max: int, out: Outcome) -> int: ...

    def forget(self, queue_id: int) -> None: ...

    def routes_changed(self) -> None: ...


class Distributor(Protocol):
    """What a queue needs of its topic's subscriptions; see `entities.fan_out`."""

    size_bytes: int

    def send_on(
        self, message: Message, sections: Sections | None, head: Sections, turn: int | None, out: Outcome
    ) -> int: ...


class Issuer(Protocol):
    """What issues positions and numbers."""

    queue_id: int
    numbers_dirty: bool


class Shared:
    """State shared by the queues of a namespace."""

    __slots__ = (
        "bodies",
        "failed_evaluations",
        "forwarding",
        "issued",
        "links",
        "low_space",
        "timers",
        "tokens",
        "wall",
    )

    forwarding: Forwarder
    """Set by `Entities`."""

    def __init__(
        self, tokens: Callable[[], LockToken], clock_step_limit_ms: int = CLOCK_STEP_LIMIT_MS
    ) -> None:
        self.tokens = tokens
        self.timers = Timers()
        self.wall = WallClock(clock_step_limit_ms)
        self.links = LinkRegistry()
        self.bodies = AwaitedBodies()
        self.issued: list[Issuer] = []  # those that issued numbers since the last batch
        self.low_space = False  # on the disk: messages and session states are refused
        self.failed_evaluations = 0  # of rules, since the start
