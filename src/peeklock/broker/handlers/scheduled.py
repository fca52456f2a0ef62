"""Scheduled messages: cancelled by their numbers, or shifted to an earlier or later time.

A shifted message keeps its number, so it can still be cancelled. All slices of a shift are in one batch, and
no other command comes between them. The event log has no event for a shift: the end of a scheduled life
states the last scheduled time.
Source: wire contract 5.2; semantics S-05 to S-09. Shifts are our choice, the service has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from peeklock.broker.content import overlay as overlays
from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.queue.browsing import scheduled_by_number
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.changes import MessageStored
from peeklock.broker.vocabulary.effects import ScheduledShifted
from peeklock.broker.vocabulary.errors import ArgumentInvalid, MessageNotFound
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import ShiftScheduled
from peeklock.broker.vocabulary.message import Message

LATEST_MS = 253_402_300_799_999
"""End of the year 9999, the latest time that clients can schedule."""


def check_cancel(entity: Entity, queue: MessageQueue, numbers: Iterable[SequenceNumber]) -> None:
    """Check that all numbers can be cancelled. Raises: MessageNotFound, EntityDisabled."""
    if not entity.receives:
        entity.require_sending()
    for number in numbers:
        if scheduled_by_number(queue, number) is None:
            raise MessageNotFound(f"no scheduled message with sequence number {number} in '{queue.name}'")


def cancel(queue: MessageQueue, numbers: Iterable[SequenceNumber], out: Outcome) -> None:
    """Remove scheduled messages that were checked just now; a number given twice counts once."""
    queue.accessed_at_ms = out.now_ms
    for number in dict.fromkeys(numbers):
        message = scheduled_by_number(queue, number)
        assert message is not None
        out.happened(EventType.CANCELLED, queue, message)
        if queue.duplicates is not None and (freed := queue.duplicates.free(message.sequence_number)):
            out.changes.append(freed)
        queue.remove(message, out)


class Shifting:
    """A shift under way."""

    __slots__ = ("_count", "_instant_ms", "_left", "command")

    def __init__(self, entities: Entities, command: ShiftScheduled, instant_ms: int) -> None:
        """Find the messages. Raises: EntityNotFound, MessageNotFound, ArgumentInvalid.

        Args:
            instant_ms: UTC; messages that become due are due at it.
        """
        self.command = command
        self._instant_ms = instant_ms
        self._count = 0
        self._left = _found(entities, command)

    def advance(self, count: int, out: Outcome) -> bool:
        """Shift up to `count` messages; return whether there may be more. The last call answers."""
        shifted = 0
        for queue, message in islice(self._left, count):
            shifted += 1
            before_ms = message.scheduled_at_ms
            assert before_ms is not None
            after_ms = self._shifted_ms(before_ms)
            if after_ms != before_ms:
                _shift(queue, message, after_ms, out)
        self._count += shifted
        if shifted == count:
            return True
        out.effects.append(ScheduledShifted(self.command.reply_to, self._count))
        return False

    def _shifted_ms(self, at_ms: int) -> int:
        by_ms = self.command.by_ms
        if self.command.at_ms is not None:
            return min(max(self.command.at_ms, 0), LATEST_MS)
        if by_ms is None:
            return min(at_ms, self._instant_ms)
        # Messages that become due may have different past instants, which keep their order.
        return min(max(at_ms + by_ms, 0), LATEST_MS)


def _found(entities: Entities, command: ShiftScheduled) -> Iterator[tuple[MessageQueue, Message]]:
    """Return the messages to shift; the command is checked before the first one."""
    if command.address is None:
        if command.sequence_numbers is not None:
            raise ArgumentInvalid("sequence numbers mean nothing without the queue that issued them")
        return _all_of([entity.main for entity in entities if not entity.is_hidden])
    _, queue = entities.queue(command.address)
    if command.sequence_numbers is None:
        return _all_of([queue])
    named: list[tuple[MessageQueue, Message]] = []
    for number in dict.fromkeys(command.sequence_numbers):
        message = scheduled_by_number(queue, number)
        if message is None:
            raise MessageNotFound(f"no scheduled message with sequence number {number} in '{queue.name}'")
        named.append((queue, message))
    return iter(named)


def _all_of(queues: list[MessageQueue]) -> Iterator[tuple[MessageQueue, Message]]:
    for queue in queues:
        for message in queue.scheduled:
            yield queue, message


def _shift(queue: MessageQueue, message: Message, at_ms: int, out: Outcome) -> None:
    message.scheduled_at_ms = at_ms
    message.overlay = overlays.with_scheduled_time(message.overlay, at_ms)  # for readers
    queue.wake(queue.shared.wall.core_ms(queue.activation.note(message)))
    out.changes.append(MessageStored(queue.queue_id, message))
