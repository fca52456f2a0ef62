"""Cancelling scheduled messages, by their numbers.

Owns: what must hold before, and what it does. Must not know: who asks, and whether in a transaction. Source:
wire contract 5.2; semantics S-06, S-09.
"""

from __future__ import annotations

from collections.abc import Iterable

from peeklock.broker.entities.entity import Entity
from peeklock.broker.queue.browsing import scheduled_by_number
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.errors import MessageNotFound
from peeklock.broker.vocabulary.events import EventType


def check(entity: Entity, queue: MessageQueue, numbers: Iterable[int]) -> None:
    """Raises: MessageNotFound: one of them names no scheduled message (any more); EntityDisabled."""
    if not entity.receives:
        entity.require_sending()
    for number in numbers:
        if scheduled_by_number(queue, number) is None:
            raise MessageNotFound(f"no scheduled message with sequence number {number} in '{queue.name}'")


def cancel(queue: MessageQueue, numbers: Iterable[int], out: Outcome) -> None:
    """Remove scheduled messages that were checked just now; a number that is named twice counts once."""
    queue.accessed_at_ms = out.now_ms
    for number in dict.fromkeys(numbers):
        message = scheduled_by_number(queue, number)
        assert message is not None
        out.happened(EventType.CANCELLED, queue, message)
        if queue.duplicates is not None and (freed := queue.duplicates.free(message.sequence_number)):
            out.changes.append(freed)
        queue.remove(message, out)
