"""What is asked about messages: send, settle, and the operations of the management node.

Owns: what is checked before anything changes, what is refused and why. Must not know: links and their credit,
how a queue keeps its messages. A handler raises a `ServiceBusError` before its first change, or does all it
was asked.
"""

from __future__ import annotations

from typing import NoReturn
from uuid import UUID

from peeklock.broker import commands as ask
from peeklock.broker import effects as do
from peeklock.broker.attachments import Attachments
from peeklock.broker.browsing import browse, deferred_by_number, oldest_unlocked, scheduled_by_number
from peeklock.broker.changes import Change
from peeklock.broker.commands import Disposition, ReceiveMode
from peeklock.broker.effects import Accepted, Effect, Settled
from peeklock.broker.entities import Entities
from peeklock.broker.errors import (
    EntityDeleted,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
)
from peeklock.broker.message import Message
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.peek_lock import Lock

_LOCK_LOST = (
    "The lock supplied is invalid. "
    "Either the lock expired, or the message has already been removed from the queue"
)
"""The service's own wording."""


class Operations:
    """The handlers of all commands about messages."""

    def __init__(self, entities: Entities, attachments: Attachments, *, enforce_quotas: bool) -> None:
        self.dropped_sends = 0
        self._entities = entities
        self._queues = entities.queues
        self._attachments = attachments
        self._enforce_quotas = enforce_quotas
        self._limited = False
        self._low_space = False

    # Sending

    def send(self, command: ask.Send, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        queue = self._queues.get(command.queue_id)
        message = command.message
        if (
            queue is None
            or self._limited
            or not queue.accepts_sends
            or message.size_bytes > queue.message_size_bytes_max
            or self._enforce_quotas
        ):
            queue = self._sendable(command.queue_id, message.size_bytes, message.size_bytes)
        queue.accessed_at_ms = now_ms
        queue.store(message, command.payload, now_ms, changes)
        reply_to = command.reply_to
        if reply_to is not None:
            effects.append(Accepted(reply_to))
        if queue.receivers.turns:
            queue.deliver(now_ms, changes, effects)

    def send_batch(
        self, command: ask.SendBatch, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        size_bytes = sum(message.size_bytes for message, _ in command.messages)
        queue = self._sendable(command.queue_id, size_bytes, size_bytes)
        queue.accessed_at_ms = now_ms
        for message, payload in command.messages:
            queue.store(message, payload, now_ms, changes)
        if command.reply_to is not None:
            effects.append(Accepted(command.reply_to))
        queue.deliver(now_ms, changes, effects)

    def _sendable(self, queue_id: int, size_bytes: int, total_bytes: int) -> MessageQueue:
        """Give the queue if messages may be sent to it, of this size at most each; else raise why not."""
        queue = self._queues.get(queue_id)
        entity = self._entities.of_queue(queue_id)
        if queue is None or entity is None:
            raise EntityDeleted(f"the entity of queue id {queue_id} was deleted")
        if queue.dead_letters is None:
            raise InvalidOperation(f"'{queue.name}' is a dead-letter queue: nothing can be sent to it")
        entity.require_sending()
        if size_bytes > queue.message_size_bytes_max:
            raise MessageSizeExceeded(
                f"the message or batch for '{queue.name}' is {size_bytes} bytes, the limit is "
                f"{queue.message_size_bytes_max}"
            )
        if self._limited:
            if self._low_space:
                raise QuotaExceeded(f"'{queue.name}' takes no message: the broker's disk is nearly full")
            raise ServerBusy(f"'{queue.name}' takes no message now: the broker lags behind; try again later")
        if self._enforce_quotas:
            quota = entity.description.max_size_mb * 1024 * 1024
            if entity.size_bytes() + total_bytes > quota:
                raise QuotaExceeded(
                    f"The maximum entity size has been reached or exceeded: '{queue.name}' holds "
                    f"{entity.size_bytes()} of {quota} bytes, {total_bytes} more do not fit"
                )
        return queue

    def limit_sending(
        self, command: ask.LimitSending, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        self._low_space = command.low_space
        self._limited = command.low_space or command.lagging

    def reject(self, command: ask.Send | ask.SendBatch, error: ServiceBusError) -> Effect | None:
        if command.reply_to is None:
            self.dropped_sends += 1
            return None
        return do.Rejected(command.reply_to, error)

    # Settlement

    def complete(
        self, command: ask.Complete, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._queues.get(command.queue_id)
        lock = None if queue is None else queue.held(command.lock_token, now_ms)
        if queue is None or lock is None:
            self._lost(command.queue_id, command.lock_token, now_ms)
        queue.complete(lock, changes)
        if command.reply_to is not None:
            effects.append(Settled(command.reply_to))

    def abandon(
        self, command: ask.Abandon, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        lock = self._held(command.queue_id, command.lock_token, now_ms)
        lock.queue.abandon(lock, now_ms, changes, command.properties)
        self._settled(command.reply_to, lock.queue, now_ms, changes, effects)

    def defer(self, command: ask.Defer, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        lock = self._held(command.queue_id, command.lock_token, now_ms)
        self._require_deferral(lock.queue)
        lock.queue.defer(lock, changes, command.properties)
        self._settled(command.reply_to, lock.queue, now_ms, changes, effects)

    def dead_letter(
        self, command: ask.DeadLetter, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        lock = self._held(command.queue_id, command.lock_token, now_ms)
        lock.queue.dead_letter(lock, changes, command.reason, command.description, command.properties)
        self._settled(command.reply_to, lock.queue, now_ms, changes, effects)

    def release(
        self, command: ask.Release, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        lock = self._held(command.queue_id, command.lock_token, now_ms)
        lock.queue.give_back(lock, now_ms, changes, counted=False)
        self._settled(command.reply_to, lock.queue, now_ms, changes, effects)

    def _settled(
        self,
        reply_to: ask.ReplyTo | None,
        queue: MessageQueue,
        now_ms: int,
        changes: list[Change],
        effects: list[Effect],
    ) -> None:
        if reply_to is not None:
            effects.append(Settled(reply_to))
        queue.serve(now_ms, changes, effects)

    def _held(self, queue_id: int, token: bytes, now_ms: int) -> Lock:
        queue = self._queues.get(queue_id)
        lock = None if queue is None else queue.held(token, now_ms)
        if lock is None:
            self._lost(queue_id, token, now_ms)
        return lock

    def _lost(self, queue_id: int, token: bytes, now_ms: int) -> NoReturn:
        """Raise why a lock cannot be used (L-11): the entity's own obstacle first, then the lock's."""
        entity = self._entities.of_queue(queue_id)
        queue = self._queues.get(queue_id)
        if entity is None or queue is None:
            raise EntityDeleted(f"the entity of queue id {queue_id} was deleted")
        entity.require_receiving()
        lock = queue.locks.get(token)
        if lock is None:
            raise MessageLockLost(f"{_LOCK_LOST}: token {_guid(token)} of '{queue.name}'")
        raise MessageLockLost(
            f"{_LOCK_LOST}: the lock on sequence number {lock.message.sequence_number} of '{queue.name}' "
            f"expired at {lock.locked_until_ms} ms, now {now_ms} ms"
        )

    def _require_deferral(self, queue: MessageQueue) -> None:
        if not self._entities.limits.deferral:
            raise NotSupported(
                f"'{queue.name}' cannot defer: deferral is not in tier {self._entities.limits.name}"
            )

    # Management of messages

    def _readable(self, address: ask.Address) -> MessageQueue:
        entity, queue = self._entities.queue(address)
        entity.require_receiving()
        return queue

    def renew_locks(
        self, command: ask.RenewLocks, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        locks = [self._held(queue.queue_id, token, now_ms) for token in command.lock_tokens]
        effects.append(do.LocksRenewed(command.reply_to, [queue.renew(lock, now_ms) for lock in locks]))

    def peek(self, command: ask.Peek, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        queue = self._readable(command.address)
        views = browse(queue, command.from_sequence_number, command.count_max, command.bytes_max)
        effects.append(do.MessagesFound(command.reply_to, views))

    def schedule(
        self, command: ask.Schedule, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        _, queue = self._entities.queue(command.address)
        sizes = [message.size_bytes for message, _ in command.messages]
        self._sendable(queue.queue_id, max(sizes, default=0), sum(sizes))
        queue.accessed_at_ms = now_ms
        numbers = [queue.store(message, payload, now_ms, changes) for message, payload in command.messages]
        effects.append(do.MessagesScheduled(command.reply_to, numbers))
        queue.deliver(now_ms, changes, effects)

    def cancel_scheduled(
        self, command: ask.CancelScheduled, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity, queue = self._entities.queue(command.address)
        if not entity.receives:
            entity.require_sending()
        found: dict[int, Message] = {}
        for number in command.sequence_numbers:
            message = scheduled_by_number(queue, number)
            if message is None:
                raise MessageNotFound(f"no scheduled message with sequence number {number} in '{queue.name}'")
            found[number] = message
        queue.delete(list(found.values()), changes)
        effects.append(do.Done(command.reply_to))

    def receive_deferred(
        self, command: ask.ReceiveDeferred, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        found: dict[int, Message] = {}
        for number in command.sequence_numbers:
            message = deferred_by_number(queue, number)
            if message is None:
                raise MessageNotFound(
                    f"no deferred message with sequence number {number} that is not locked in '{queue.name}'"
                )
            found[number] = message
        queue.accessed_at_ms = now_ms
        locks = None
        if command.mode is ReceiveMode.PEEK_LOCK:
            locks = self._attachments.connection(command.reply_to[0]).locks
        views = [queue.hand_over(message, locks, now_ms, changes) for message in found.values()]
        effects.append(do.MessagesFound(command.reply_to, views))

    def update_disposition(
        self, command: ask.UpdateDisposition, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        tokens = dict.fromkeys(command.lock_tokens)
        locks = [self._held(queue.queue_id, token, now_ms) for token in tokens]
        disposition = command.disposition
        if disposition is Disposition.DEFERRED:
            self._require_deferral(queue)
        if disposition in (Disposition.ABANDONED, Disposition.DEFERRED):
            for lock in locks:
                queue.require_settleable(lock, command.properties)
        for lock in locks:
            if disposition is Disposition.COMPLETED:
                queue.complete(lock, changes)
            elif disposition is Disposition.ABANDONED:
                queue.abandon(lock, now_ms, changes, command.properties)
            elif disposition is Disposition.DEFERRED:
                queue.defer(lock, changes, command.properties)
            else:
                queue.dead_letter(lock, changes, command.reason, command.description, command.properties)
        effects.append(do.Done(command.reply_to))
        queue.serve(now_ms, changes, effects)

    def delete_messages(
        self, command: ask.DeleteMessages, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        count_max = min(command.count_max, self._entities.limits.batch_delete_max)
        found = oldest_unlocked(queue, count_max, command.enqueued_before_ms, now_ms)
        queue.delete(found, changes)
        effects.append(do.MessagesDeleted(command.reply_to, len(found)))


def _guid(token: bytes) -> str:
    return str(UUID(bytes_le=token)) if len(token) == 16 else token.hex()
