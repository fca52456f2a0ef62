"""Messages of one command, stored in slices. No other command comes between them, see `engine`."""

from __future__ import annotations

from peeklock.broker.queue import enqueue
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.addresses import SequenceNumber

SLICE_MESSAGES = 256
"""Messages of a batch or schedule in one step: at 3 to 25 us each 1 to 6 ms."""


class Storing:
    """The messages of one checked command."""

    __slots__ = ("_done", "_forward_to", "_numbers", "_queue", "_turn", "command")

    def __init__(self, queue: MessageQueue, command: ask.SendBatch | ask.Schedule) -> None:
        self.command = command
        self._queue = queue
        self._done = 0
        self._numbers: list[SequenceNumber] = []
        # Messages without a key go to one partition (S-03).
        self._turn = None if queue.partitions is None else queue.partitions.next_in_turn()
        self._forward_to = None
        if isinstance(command, ask.SendBatch) and command.destination is not None:
            self._forward_to = command.destination.path

    def advance(self, count: int, out: Outcome) -> bool:
        """Store up to `count` messages; return whether there are more. The last call answers."""
        queue, command = self._queue, self.command
        queue.accessed_at_ms = out.now_ms
        messages = command.messages[self._done : self._done + count]
        self._numbers += [
            enqueue.store(queue, message, sections, out, turn=self._turn, forward_to=self._forward_to)
            for message, sections in messages
        ]
        self._done += len(messages)
        more = self._done < len(command.messages)
        if not more and command.reply_to is not None:
            if isinstance(command, ask.Schedule):
                out.effects.append(do.MessagesScheduled(command.reply_to, self._numbers))
            else:
                out.effects.append(do.Accepted(command.reply_to))
        queue.serve(out)
        return more
