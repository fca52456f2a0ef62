"""Deletions that wait until a body has been read: of messages that are deleted as they are received.

Owns: who waits for which body. Must not know: where bodies are, who reads them, what a delivery is.

A message that is received and deleted is gone with that delivery. Were its body found damaged afterwards,
nothing would be left to dead-letter. So whoever deletes waits for a body that is not in memory: it is asked
for with an effect `Fetch`, and the message stays where it is, free for everybody else. A damaged body takes
it to the dead-letter queue from there, as any other. Who waited is told with the answer, and goes on with
what is there then.

The body that was just read counts as at hand for who waited, also when it had to make room for others: so
each wait ends in a delivery, however little is kept in memory.
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
    """A request that is done once all bodies that it asks for were read."""

    __slots__ = ("command", "missing")

    def __init__(self, command: ReceiveDeferred, missing: int) -> None:
        self.command = command
        self.missing = missing


class AwaitedBodies:
    """The bodies of one namespace that somebody waits for."""

    __slots__ = ("_waiting", "at_hand")

    def __init__(self) -> None:
        self.at_hand: Callable[[Message], bool] = _always
        """Whether a body can be handed out at once."""
        self._waiting: dict[tuple[int, int], list[Consumer | _Request]] = {}

    def let_wait(self, receiver: Consumer, queue_id: int, message: Message, out: Outcome) -> None:
        """Have a receiver that deletes wait for the body of the message that is next."""
        assert receiver.ready_queue is not None
        receiver.ready_queue.receivers.wait_for_body(receiver, message.position)
        self._wait(receiver, queue_id, message, out)

    def hold_back(
        self, command: ReceiveDeferred, queue_id: int, messages: Iterable[Message], out: Outcome
    ) -> bool:
        """Return whether a request waits now, since one of these bodies is not at hand.

        `came` returns it when all are.
        """
        missing = [message for message in messages if not self.at_hand(message)]
        if not missing or command.bodies_read:
            return False
        request = _Request(replace(command, bodies_read=True), len(missing))
        for message in missing:
            self._wait(request, queue_id, message, out)
        return True

    def came(self, queue_id: int, position: int) -> tuple[list[Consumer], list[ReceiveDeferred]]:
        """Take note that a body was read, or is lost; return the receivers and requests that go on."""
        receivers: list[Consumer] = []
        requests: list[ReceiveDeferred] = []
        for waiting in self._waiting.pop((queue_id, position), ()):
            if isinstance(waiting, _Request):
                waiting.missing -= 1
                if not waiting.missing:
                    requests.append(waiting.command)
            elif waiting.awaits_body and waiting.body_position == position:
                assert waiting.ready_queue is not None
                waiting.ready_queue.receivers.body_came(waiting)
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
        """Each receiver that waits for a body is told of it; an assertion fails when one is not."""
        for receiver in receivers:
            if receiver.awaits_body:
                assert receiver in self._waiting[receiver.queue_id, receiver.body_position]


def _always(message: Message) -> bool:
    return True
