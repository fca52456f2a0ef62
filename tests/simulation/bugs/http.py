"""Planted bugs in HTTP: each subclasses the real receives or the namespace."""

from __future__ import annotations

from peeklock.admin.exchange import Response
from peeklock.broker.vocabulary.commands import Complete
from peeklock.broker.vocabulary.effects import Deliver
from peeklock.rest.receives import Receives
from peeklock.rest.waiting import Body


class ReleasedLocks(Receives):
    """Ends a lock with the connection that asked for it."""

    def _end(self, number: int, response: Response) -> None:
        waiting = self._waiting.get(number)
        super()._end(number, response)
        if waiting is not None and waiting.delivery is not None and not waiting.receive.deletes:
            self._release(waiting.delivery)


class HastyDeletions(Receives):
    """Answers with a message before its deletion is durable."""

    def _show(self, number: int, waiting: object, body: Body) -> None:
        super()._show(number, waiting, body)  # type: ignore[arg-type]
        held = self._waiting.get(number)
        if held is not None and held.response is not None:
            self._end(number, held.response)


class LostLeavers(Receives):
    """Deletes a message for a client that left while it waited."""

    def cancel(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and waiting.delivery is not None and waiting.response is None:
            self._release(waiting.delivery)

    def _release(self, delivery: Deliver) -> None:
        assert delivery.lock_token is not None
        self._commands.append(Complete(delivery.message.queue_id, delivery.lock_token, None))
