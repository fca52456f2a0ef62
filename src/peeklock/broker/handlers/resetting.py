"""Reset of a namespace between two tests: its messages go, its entities, links and numbers stay.

It is one command, so that a test never sees half of it. Open transactions are rolled back first, and claims
of cursors given back, so that every message is free to go. A lock that is held ends without a word: its
holder is answered lock-lost. Ids for duplicate detection and session states are forgotten.
"""

from __future__ import annotations

from peeklock.broker.entities.entities import Entities
from peeklock.broker.handlers.transactions import Transactions
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.vocabulary.effects import Done
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import Reset


class Resetting:
    """Resets a namespace."""

    def __init__(self, entities: Entities, transactions: Transactions) -> None:
        self._entities = entities
        self._transactions = transactions

    def reset(self, command: Reset, out: Outcome) -> None:
        """Handle the command."""
        self._transactions.roll_back_all(out)
        for queue in list(self._entities.queues.values()):
            _empty(queue, out)
        out.effects.append(Done(command.reply_to))


def _empty(queue: MessageQueue, out: Outcome) -> None:
    if queue.cursors is not None:
        queue.cursors.end_all(out)
    for message in list(queue.all_messages()):
        if isinstance(message.lock, Lock):
            queue.end(message.lock)
        out.happened(EventType.PURGED, queue, message)
        queue.remove(message, out)
    queue.forget_returned()
    if queue.sessions is not None:
        for session in list(queue.sessions):
            if session.state is not None:
                queue.sessions.lose_state(session, out)
    if queue.duplicates is not None:
        out.changes += queue.duplicates.forget_all(out.now_ms)
    queue.set_timer()
