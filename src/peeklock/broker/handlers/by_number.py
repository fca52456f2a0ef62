"""One message settled by its number, for an operator who has seen it in a peek.

Nobody holds the message: it is not delivered, and its delivery count stays. What somebody holds stays. Two
who settle the same message never both succeed.
"""

from __future__ import annotations

from typing import assert_never

from peeklock.broker.content import overlay as overlays
from peeklock.broker.entities.entities import Entities
from peeklock.broker.handlers import scheduled
from peeklock.broker.queue.browsing import message_by_number
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    InvalidOperation,
    MessageLocked,
    MessageNotFound,
    NotSupported,
)
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import SettleByNumber
from peeklock.broker.vocabulary.message import Disposition, Message, MessageState


class ByNumber:
    """The handler of `SettleByNumber`."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities

    def settle(self, command: SettleByNumber, out: Outcome) -> None:
        """Raises: MessageNotFound, MessageLocked, InvalidOperation, NotSupported, ArgumentInvalid, and those
        of a queue that cannot be received from."""
        entity, queue = self._entities.queue(command.address)
        entity.require_receiving()
        message = self._free_message(queue, command, out.now_ms)
        queue.accessed_at_ms = out.now_ms
        if message.state is MessageState.SCHEDULED:
            self._cancel(queue, message, command, out)
        else:
            self._settle(queue, message, command, out)
        out.effects.append(do.Done(command.reply_to))
        queue.forget_returned()

    def _free_message(self, queue: MessageQueue, command: SettleByNumber, now_ms: int) -> Message:
        number = command.sequence_number
        message = message_by_number(queue, number)
        is_here = message is not None and (
            queue.fan_out is None or message.state is MessageState.SCHEDULED  # else on its way
        )
        if message is None or not is_here:
            raise MessageNotFound(f"no message with sequence number {number} in '{queue.name}'")
        if message.lock is not None:
            raise MessageLocked(
                f"sequence number {number} of '{queue.name}' is locked by a receiver or held for a cursor: "
                f"wait until it is settled or the lock ends"
            )
        if message.state is MessageState.ACTIVE and queue.has_expired(message, now_ms):
            # Left to the sweep, which may dead-letter it.
            raise MessageNotFound(f"sequence number {number} of '{queue.name}' has expired")
        return message

    def _cancel(self, queue: MessageQueue, message: Message, command: SettleByNumber, out: Outcome) -> None:
        if command.disposition is not Disposition.COMPLETED:
            raise InvalidOperation(
                f"sequence number {message.sequence_number} of '{queue.name}' is scheduled: it can be "
                f"cancelled, or scheduled for another time"
            )
        scheduled.cancel(queue, (message.sequence_number,), out)

    def _settle(self, queue: MessageQueue, message: Message, command: SettleByNumber, out: Outcome) -> None:
        match command.disposition:
            case Disposition.COMPLETED:
                out.happened(EventType.PURGED, queue, message)
                queue.remove(message, out)
            case Disposition.DEFERRED:
                self._defer(queue, message, out)
            case Disposition.SUSPENDED:
                _dead_letter(queue, message, command, out)
            case Disposition.ABANDONED:
                raise ArgumentInvalid("a message that nobody holds cannot be abandoned")
            case _:
                assert_never(command.disposition)

    def _defer(self, queue: MessageQueue, message: Message, out: Outcome) -> None:
        if not self._entities.limits.deferral:
            raise NotSupported(
                f"'{queue.name}' cannot defer: tier {self._entities.limits.name} has no deferral"
            )
        if message.state is MessageState.DEFERRED:
            raise InvalidOperation(
                f"sequence number {message.sequence_number} of '{queue.name}' is deferred already"
            )
        queue.set_aside(message, out)


def _dead_letter(queue: MessageQueue, message: Message, command: SettleByNumber, out: Outcome) -> None:
    if queue.dead_letters is None:
        raise InvalidOperation(
            f"'{queue.name}' is a dead-letter queue: its messages cannot be dead-lettered further"
        )
    overlay = overlays.with_reason(message.overlay, command.reason, command.description)
    if overlay is not None and len(overlay) > overlays.OVERLAY_BYTES_MAX:
        raise ArgumentInvalid(
            f"reason and description are too long: with earlier changes they are {len(overlay)} bytes, "
            f"at most {overlays.OVERLAY_BYTES_MAX} are allowed"
        )
    queue.dead_letter(message, overlay, out)
