"""Planted bugs in HTTP: each subclasses the real receives or the namespace."""

from __future__ import annotations

from peeklock.admin.exchange import Response
from peeklock.broker.vocabulary.commands import Complete
from peeklock.broker.vocabulary.effects import Deliver
from peeklock.rest.receives import Receives, Taking


class ReleasedLocks(Receives):
    """Ends a lock with the connection that asked for it."""

    def _end(self, number: int, response: Response) -> None:
        waiting = self._waits.get(number)
        super()._end(number, response)
        if waiting is not None and not waiting.take.deletes:
            self._release_all(waiting.deliveries)


class HastyDeletions(Receives):
    """Answers with a message before its deletion is durable."""

    def _show(self, number: int, waiting: Taking) -> None:
        super()._show(number, waiting)
        if waiting.completing:
            self._end(number, waiting.take.answer(list(waiting.shown.values())))


class LostLeavers(Receives):
    """Deletes a message for a client that left while it waited."""

    def cancel(self, number: int) -> None:
        waiting = self._waits.get(number)
        if waiting is not None:
            self._forget(number)
            if not waiting.completing:
                self._release_all(waiting.deliveries)

    def _release(self, delivery: Deliver) -> None:
        assert delivery.lock_token is not None
        self._commands.append(Complete(delivery.message.queue_id, delivery.lock_token, None))
