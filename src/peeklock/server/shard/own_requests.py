"""Requests of this process to its own namespace: a connection without a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from peeklock.broker.vocabulary.commands import NO_LINK, OWN_CONNECTION_ID, Command, ReplyTo
from peeklock.broker.vocabulary.effects import BodiesLost, Effect
from peeklock.server import log


class OwnRequests:
    """Unanswered requests under `OWN_CONNECTION_ID`."""

    def __init__(self, offer: Callable[[Iterable[Command]], None]) -> None:
        """Begin with none; `offer` applies commands."""
        self._offer = offer
        self._waiters: dict[int, Callable[[Effect], None]] = {}
        self._number = 0

    def submit(self, make: Callable[[ReplyTo], Command]) -> asyncio.Future[Effect]:
        """Run the command that `make` makes from the reply-to; the future has the answering effect."""
        future: asyncio.Future[Effect] = asyncio.get_running_loop().create_future()

        def answered(effect: Effect) -> None:
            if not future.done():
                future.set_result(effect)

        self.ask(make, answered)
        return future

    def ask(self, make: Callable[[ReplyTo], Command], then: Callable[[Effect], None]) -> None:
        """Do the same, and call `then`, which must not raise, with the answering effect."""
        self._number += 1
        self._waiters[self._number] = then
        self._offer((make(ReplyTo(OWN_CONNECTION_ID, NO_LINK, self._number)),))

    # As a connection

    def handle(self, effects: Iterable[Any], now_ms: int) -> None:
        """Answer the requests. Lost bodies answer none: they are logged."""
        for effect in effects:
            if type(effect) is BodiesLost:
                log_lost_bodies(effect)
                continue
            then = self._waiters.pop(effect.reply_to.number, None)
            if then is not None:
                then(effect)

    def flush(self, now_ms: int) -> None:
        """Do nothing: the answers have been handed out."""

    def bodies_wanted(self) -> set[int]:
        """Return none: no answer to this process has a body."""
        return set()

    def bodies_arrived(self, now_ms: int) -> None:
        """Do nothing: nothing waits."""


def log_lost_bodies(effect: BodiesLost) -> None:
    """Log which messages have lost their body; that is durable."""
    for lost in effect.lost:
        fields = {"queue": lost.queue_name, "sequence_number": lost.sequence_number}
        if lost.session_id is not None:
            fields["session_id"] = lost.session_id
        log.error("a body is damaged on the disk; its message was dead-lettered without it", fields)
