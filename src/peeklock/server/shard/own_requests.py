"""What this process asks its own namespace: a connection without a peer.

Owns: who is told which answer. Must not know: what is asked, when an answer is durable (see `engine.driver`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from peeklock.broker.vocabulary.commands import NO_LINK, OWN_CONNECTION_ID, Command, ReplyTo
from peeklock.broker.vocabulary.effects import BodiesLost, Effect
from peeklock.server.shard.losses import tell_lost_bodies


class OwnRequests:
    """A `Connection` under `OWN_CONNECTION_ID`."""

    def __init__(self, offer: Callable[[Iterable[Command]], None]) -> None:
        """Begin with none; `offer` applies commands."""
        self._offer = offer
        self._waiters: dict[int, Callable[[Effect], None]] = {}
        self._number = 0

    def submit(self, make: Callable[[ReplyTo], Command]) -> asyncio.Future[Effect]:
        """Ask something; `make` is given the reply-to. The future gives the answering effect."""
        future: asyncio.Future[Effect] = asyncio.get_running_loop().create_future()

        def answered(effect: Effect) -> None:
            if not future.done():
                future.set_result(effect)

        self.ask(make, answered)
        return future

    def ask(self, make: Callable[[ReplyTo], Command], then: Callable[[Effect], None]) -> None:
        """Do the same without a future: `then` is called with the answering effect, and must not raise."""
        self._number += 1
        self._waiters[self._number] = then
        self._offer((make(ReplyTo(OWN_CONNECTION_ID, NO_LINK, self._number)),))

    # As a connection

    def handle(self, effects: Iterable[Any], now_ms: int) -> None:
        """Answer the requests. No request leads to lost bodies: they are logged."""
        for effect in effects:
            if type(effect) is BodiesLost:
                tell_lost_bodies(effect)
                continue
            then = self._waiters.pop(effect.reply_to.number, None)
            if then is not None:
                then(effect)

    def flush(self, now_ms: int) -> None:
        """Write nothing: the answers were given."""

    def bodies_wanted(self) -> set[int]:
        """Return none: no answer to this process has a body."""
        return set()

    def bodies_arrived(self, now_ms: int) -> None:
        """Do nothing, as nothing waits."""
