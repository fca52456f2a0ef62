"""What the queues of a namespace have in common.

Owns: the source of tokens, the timers, and which queues issued numbers lately. Must not know: what queues do
with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from peeklock.broker.timers import Timers

if TYPE_CHECKING:
    from peeklock.broker.message_queue import MessageQueue


class Shared:
    """What the queues of a namespace have in common."""

    __slots__ = ("issued", "timers", "tokens")

    def __init__(self, tokens: Callable[[], bytes]) -> None:
        self.tokens = tokens
        self.timers = Timers()
        self.issued: list[MessageQueue] = []  # queues that issued numbers since somebody asked
