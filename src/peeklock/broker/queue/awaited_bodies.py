"""Deletions that wait for a body: of messages in receive-and-delete mode.

If a message were deleted and its body found damaged afterwards, nothing would be left to dead-letter. So a
deletion waits for a body that is not in memory: an effect `Fetch` asks for it, and the message stays where it
is, available to others. A damaged body dead-letters it from there. The receiver or request continues after
the answer with what is available then.

A body that was just read counts as in memory for those that waited, even if it was evicted since: so each
wait ends in a delivery, however small the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from peeklock.broker.queue.links import Consumer
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.commands import ReceiveDeferred
from peeklock.broker.vocabulary.effects import Fetch
from peeklock.broker.vocabulary.message import Message


class _Request:
    """A request that waits for several bodies."""

    __slots__ = ("command", "missing")

    def __init__(self, command: ReceiveDeferred, missing: int) -> None:
        self.command = command
        self.missing = missing


class AwaitedBodies:
    """The bodies that receivers and requests of one namespace wait for."""

    __slots__ = ("_waiting", "in_memory")

    def __init__(self) -> None:
        self.in_memory: Callable[[Message], bool] = _always
        """Whether a body is in memory."""
        self._waiting: dict[tuple[int, int], list[Consumer | _Request]] = {}

    def add_receiver(self, receiver: Consumer, queue_id: int, message: Message, out: Outcome) -> None:
        """Make a receiver that deletes wait for the body of the next message."""
        assert receiver.ready_queue is not None
        receiver.ready_queue.receivers.wait_for_body(receiver, message.position)
        self._wait(receiver, queue_id, message, out)

    def add_request(
        self, command: ReceiveDeferred, queue_id: int, messages: Iterable[Message], out: Outcome
    ) -> bool:
        """Return whether a request waits for one of these bodies; `arrived` returns it later."""
        missing = [message for message in messages if not self.in_memory(message)]
        if not missing or command.bodies_read:
            return False
        request = _Request(replace(command, bodies_read=True), len(missing))
        for message in missing:
            self._wait(request, queue_id, message, out)
        return True

    def arrived(self, queue_id: int, position: int) -> tuple[list[Consumer], list[ReceiveDeferred]]:
        """Return the receivers and requests that continue now that a body was read, or is lost."""
        receivers: list[Consumer] = []
        requests: list[ReceiveDeferred] = []
        for waiting in self._waiting.pop((queue_id, position), ()):
            if isinstance(waiting, _Request):
                waiting.missing -= 1
                if not waiting.missing:
                    requests.append(waiting.command)
            elif waiting.awaits_body and waiting.body_position == position:
                assert waiting.ready_queue is not None
                waiting.ready_queue.receivers.body_arrived(waiting)
                receivers.append(waiting)
        return receivers, requests

    def _wait(self, waiting: Consumer | _Request, queue_id: int, message: Message, out: Outcome) -> None:
        key = (queue_id, message.position)
        others = self._waiting.get(key)
        if others is not None:
            others.append(waiting)
            return
        self._waiting[key] = [waiting]
        out.effects.append(Fetch(queue_id, message))

    def check(self, receivers: Iterable[Consumer]) -> None:
        """Assert that each receiver that waits is known here."""
        for receiver in receivers:
            if receiver.awaits_body:
                assert receiver in self._waiting[receiver.queue_id, receiver.body_position]


def _always(message: Message) -> bool:
    return True
