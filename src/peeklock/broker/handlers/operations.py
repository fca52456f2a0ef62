"""Commands about messages: send, settle, and the operations of the management node except those about
sessions.

Commands that a transaction can hold are also available in two steps, `check` and `perform`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NoReturn
from uuid import UUID

from peeklock.amqp.messaging import Sections
from peeklock.broker.entities.entities import Entities
from peeklock.broker.handlers import scheduled
from peeklock.broker.handlers.enlisted import Settling, messages_of
from peeklock.broker.handlers.scheduled import Shifting
from peeklock.broker.handlers.session_operations import held_session
from peeklock.broker.handlers.storing import Storing
from peeklock.broker.queue import delivery, enqueue, settlement
from peeklock.broker.queue.browsing import browse, deferred_by_number, oldest_unlocked
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.commands import Disposition, LockToken, ReceiveMode
from peeklock.broker.vocabulary.effects import Accepted, Effect, Settled
from peeklock.broker.vocabulary.errors import (
    ArgumentOutOfRange,
    EntityDeleted,
    InvalidOperation,
    LowSpace,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    SessionLockLost,
)
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.extension_commands import ShiftScheduled
from peeklock.broker.vocabulary.message import Message
from peeklock.broker.vocabulary.quotas import DEFERRED_BYTES_MAX

_LOCK_LOST: Final = (
    "The lock supplied is invalid. "
    "Either the lock expired, or the message has already been removed from the queue"
)
"""The service's own wording."""

Sending = ask.Send | ask.SendBatch
Plain = Sending | Settling | ask.UpdateDisposition
"""What a transaction keeps unchanged."""


class Operations:
    """Handlers of commands about messages."""

    def __init__(self, entities: Entities, shared: Shared, slice_messages: int) -> None:
        self.dropped_sends = 0
        self.storing: Storing | Shifting | None = None
        """The unfinished command."""
        self._slice_messages = slice_messages
        self._entities = entities
        self._queues = entities.queues
        self._shared = shared
        self._links = shared.links
        self._forwarding = entities.forwarding
        self._limited = False
        self._limits = ask.LimitSending()

    # Sending

    def send(self, command: ask.Send, out: Outcome) -> None:
        queue = self._queues.get(command.queue_id)
        message = command.message
        if (
            queue is None
            or self._limited
            or not queue.accepts_sends
            or message.size_bytes > queue.message_size_bytes_max
            or queue.checks_sends
            or (queue.duplicates is not None and queue.duplicates.full)
            or command.destination is not None
        ):
            queue = self._check_send(command.queue_id, (message,), message.size_bytes, command.destination)
        queue.accessed_at_ms = out.now_ms
        if command.destination is None:
            enqueue.store(queue, message, command.sections, out)
        else:
            enqueue.store(queue, message, command.sections, out, forward_to=command.destination.path)
        count = self._send_further(queue, command, out) if command.further else 1
        reply_to = command.reply_to
        if reply_to is not None:
            out.effects.append(Accepted(reply_to, count))
        if queue.sessions is not None or queue.ready_queue.receivers.turns:
            queue.serve(out)

    def _send_further(self, queue: MessageQueue, command: ask.Send, out: Outcome) -> int:
        """Store the messages after the first, up to one that may be refused; return how many are stored."""
        count = 1
        if not queue.checks_sends:
            size_bytes_max, duplicates = queue.message_size_bytes_max, queue.duplicates
            for message, sections in command.further:
                if message.size_bytes > size_bytes_max or (duplicates is not None and duplicates.full):
                    break
                enqueue.store(queue, message, sections, out)
                count += 1
        out.further = count - 1
        out.left = command.after(count)
        return count

    def send_batch(self, command: ask.SendBatch, out: Outcome) -> None:
        self.check(command, out.now_ms)
        self.storing = Storing(self._queues[command.queue_id], command)
        self.store_on(out)

    def send_to(self, command: ask.SendTo, out: Outcome) -> None:
        _, queue = self._entities.queue(command.address)
        batch = ask.SendBatch(queue.queue_id, command.messages, command.reply_to)
        self.send_batch(batch, out)

    def store_on(self, out: Outcome) -> None:
        """Do the next step of the unfinished command."""
        assert self.storing is not None
        if not self.storing.advance(self._slice_messages, out):
            self.storing = None

    def _check_send(
        self,
        queue_id: int,
        messages: Sequence[Message],
        size_bytes: int,
        destination: ask.Address | None = None,
        *,
        total_bytes: int | None = None,
    ) -> MessageQueue:
        """Return the queue if these messages may be sent to it.

        Args:
            size_bytes: compared with the limit of a message: a batch counts as one.
            total_bytes: room needed in the entity, `size_bytes` by default.
        """
        queue = self._queues.get(queue_id)
        entity = self._entities.of_queue(queue_id)
        if queue is None or entity is None:
            raise EntityDeleted(f"the entity of queue id {queue_id} was deleted")
        entity.require_sending_to(queue)
        if size_bytes > queue.message_size_bytes_max:
            raise MessageSizeExceeded(
                f"the message or batch for '{queue.name}' is {size_bytes} bytes, the limit is "
                f"{queue.message_size_bytes_max}"
            )
        if self._limited:
            raise self._refusal(queue.name)
        chain = self._forwarding.chain(queue, None if destination is None else destination.path)
        if destination is None:
            self._check_sessions(queue, messages)
            self._check_ids(queue)
        elif chain and chain[0].main.reads_routing and any(message.routing is None for message in messages):
            raise EntityDeleted(
                f"'{destination.path}', the destination of sends via '{queue.name}', was deleted and created "
                f"again since this link was attached"
            )
        for target in chain:
            self._check_ids(target.main)
        last = chain[-1] if chain else entity
        self._entities.require_room(last, size_bytes if total_bytes is None else total_bytes)
        return queue

    def _refusal(self, name: str) -> ServiceBusError:
        """Return why nothing may be sent to the entity of this name."""
        limits = self._limits
        if limits.low_space:
            return LowSpace(f"'{name}' accepts no messages: the broker's disk is nearly full")
        if limits.full:
            return QuotaExceeded(
                f"'{name}' accepts no messages: the namespace is as large as its MaxSizeInMegabytes allows"
            )
        if limits.capture_full:
            why = "the event log backlog is full (--capture-policy block); see the broker's /health, and"
        elif limits.throttled:
            why = "the namespace gets more messages a second than its MaxMessagesPerSecond allows;"
        else:
            why = "the broker lags behind;"
        return ServerBusy(f"'{name}' accepts no messages now: {why} try again later")

    def _check_sessions(self, queue: MessageQueue, messages: Sequence[Message]) -> None:
        if queue.sessions is None:
            return
        for message in messages:
            if message.routing is None or message.routing.session_id is None:
                raise InvalidOperation(
                    f"The SessionId was not set on a message, and it cannot be sent to '{queue.name}'. "
                    f"Entities that have session support enabled can only receive messages that have the "
                    f"SessionId set to a valid value."
                )

    def _check_ids(self, queue: MessageQueue) -> None:
        if queue.duplicates is not None and queue.duplicates.full:
            raise QuotaExceeded(
                f"'{queue.name}' remembers {len(queue.duplicates)} message ids, the most it may within its "
                f"duplicate detection window: shorten the window or send more slowly"
            )

    def limit_sending(self, command: ask.LimitSending, out: Outcome) -> None:
        self._shared.low_space = command.low_space
        self._limits = command
        self._limited = command != ask.LimitSending()

    def count_dropped_send(self, command: ask.CountDroppedSend, out: Outcome) -> None:
        self.dropped_sends += 1

    def reject(self, command: Sending, error: ServiceBusError) -> Effect | None:
        if command.reply_to is None:
            self.dropped_sends += 1
            return None
        return do.Rejected(command.reply_to, error)

    # Check and perform, for transactions

    def check(self, command: Plain, now_ms: int) -> None:
        """Raise what the command would raise; change nothing."""
        if isinstance(command, ask.Send):
            message = command.message
            self._check_send(command.queue_id, (message,), message.size_bytes, command.destination)
        elif isinstance(command, ask.SendBatch):
            messages = [message for message, _ in command.messages]
            size_bytes = sum(message.size_bytes for message in messages)
            self._check_send(command.queue_id, messages, size_bytes, command.destination)
        elif isinstance(command, ask.UpdateDisposition):
            for lock in self.locks_of(command, now_ms):
                self._check_disposition(lock, command.disposition, command.properties)
        else:
            lock = self._held(command.queue_id, command.lock_token, now_ms)
            self._check_disposition(lock, _DISPOSITIONS[type(command)], getattr(command, "properties", None))

    def locks_of(self, command: Plain, now_ms: int) -> list[Lock]:
        """Return the locks that a command settles. Raises: MessageLockLost, SessionLockLost, and others."""
        if isinstance(command, Sending):
            return []
        if isinstance(command, ask.UpdateDisposition):
            queue = self._entities.readable(command.address)
            locks = [
                self._held(queue.queue_id, token, now_ms) for token in dict.fromkeys(command.lock_tokens)
            ]
            if queue.sessions is not None:
                for lock in locks:
                    queue.sessions.require_holder(lock, command.reply_to.connection_id)
            return locks
        return [self._held(command.queue_id, command.lock_token, now_ms)]

    def perform(self, command: Plain, partition: int | None, out: Outcome) -> None:
        """Do a command that was checked just now, without an answer.

        Args:
            partition: of the transaction, in a partitioned entity.
        """
        if isinstance(command, ask.Send | ask.SendBatch):
            queue = self._queues[command.queue_id]
            queue.accessed_at_ms = out.now_ms
            to = None if command.destination is None else command.destination.path
            for message, sections in messages_of(command):
                enqueue.store(queue, message, sections, out, partition=partition, forward_to=to)
            queue.serve(out)
            return
        locks = self.locks_of(command, out.now_ms)
        disposition = (
            command.disposition
            if isinstance(command, ask.UpdateDisposition)
            else _DISPOSITIONS[type(command)]
        )
        properties = getattr(command, "properties", None)
        for lock in locks:
            if disposition is Disposition.COMPLETED:
                lock.queue.complete(lock, out)
            elif disposition is Disposition.ABANDONED:
                settlement.abandon(lock, out, properties)
            elif disposition is Disposition.DEFERRED:
                settlement.defer(lock, out, properties)
            else:
                assert isinstance(command, ask.DeadLetter | ask.UpdateDisposition)
                settlement.dead_letter(lock, out, command.reason, command.description, properties)
        for queue in dict.fromkeys(lock.queue for lock in locks):
            queue.serve(out)

    # Settlement

    def complete(self, command: ask.Complete, out: Outcome) -> None:
        queue = self._queues.get(command.queue_id)
        lock = None if queue is None else queue.held(command.lock_token, out.now_ms)
        if queue is None or lock is None:
            self._lost(command.queue_id, command.lock_token, out.now_ms)
        queue.complete(lock, out)
        count = 1
        if command.further:
            for token in command.further:
                lock = queue.held(token, out.now_ms)
                if lock is None:
                    break
                queue.complete(lock, out)
                count += 1
            out.further = count - 1
            out.left = command.after(count)
        if command.reply_to is not None:
            out.effects.append(Settled(command.reply_to, count))

    def settle(self, command: ask.Abandon | ask.Defer | ask.DeadLetter, out: Outcome) -> None:
        self.check(command, out.now_ms)
        if command.reply_to is not None:
            out.effects.append(Settled(command.reply_to))
        self.perform(command, None, out)

    def release(self, command: ask.Release, out: Outcome) -> None:
        lock = self._held(command.queue_id, command.lock_token, out.now_ms)
        if lock.session is None:
            lock.queue.ready_queue.receivers.go_last(lock.holder)  # so that another receiver gets it next
        lock.queue.give_back(lock, out, counted=False, why=EventType.RELEASED)
        if command.reply_to is not None:
            out.effects.append(Settled(command.reply_to))
        lock.queue.serve(out)

    def _check_disposition(self, lock: Lock, disposition: Disposition, properties: Any) -> None:
        if disposition is Disposition.DEFERRED and not self._entities.limits.deferral:
            raise NotSupported(
                f"'{lock.queue.name}' cannot defer: tier {self._entities.limits.name} has no deferral"
            )
        if disposition is Disposition.SUSPENDED:
            settlement.require_dead_lettering(lock)
        elif disposition is not Disposition.COMPLETED:
            settlement.require_change(lock, properties)

    def _held(self, queue_id: int, token: LockToken, now_ms: int) -> Lock:
        queue = self._queues.get(queue_id)
        lock = None if queue is None else queue.held(token, now_ms)
        if lock is None:
            self._lost(queue_id, token, now_ms)
        return lock

    def _lost(self, queue_id: int, token: LockToken, now_ms: int) -> NoReturn:
        """Raise why a lock cannot be used (L-11): the obstacle of the entity, else that of the lock."""
        entity = self._entities.of_queue(queue_id)
        queue = self._queues.get(queue_id)
        if entity is None or queue is None:
            raise EntityDeleted(f"the entity of queue id {queue_id} was deleted")
        entity.require_receiving()
        lock = queue.locks.get(token)
        if queue.sessions is not None:
            raise SessionLockLost(
                "The session lock has expired on the MessageSession. Accept a new MessageSession: "
                f"token {_guid(token)} of '{queue.name}'"
            )
        if lock is None:
            raise MessageLockLost(f"{_LOCK_LOST}: token {_guid(token)} of '{queue.name}'")
        if lock.transaction_id is not None:
            raise MessageLockLost(
                f"{_LOCK_LOST}: sequence number {lock.message.sequence_number} of '{queue.name}' is settled "
                f"in a transaction that is still open"
            )
        raise MessageLockLost(
            f"{_LOCK_LOST}: the lock on sequence number {lock.message.sequence_number} of '{queue.name}' "
            f"expired at {lock.until_ms()} ms, now {now_ms} ms"
        )

    # Management of messages

    def renew_locks(self, command: ask.RenewLocks, out: Outcome) -> None:
        queue = self._entities.readable(command.address)
        if queue.sessions is not None:
            raise InvalidOperation(
                f"the messages of '{queue.name}' are locked with their session: renew the session's lock"
            )
        locks = [self._renewable(queue, token, out.now_ms) for token in command.lock_tokens]
        # "Renewal moves a lock to the connection of the renewal, always": C26.
        holder = self._links.connection(command.reply_to.connection_id).locks
        wall = queue.shared.wall
        until_ms = [wall.shown_ms(queue.renew(lock, holder, out)) for lock in locks]
        out.effects.append(do.LocksRenewed(command.reply_to, until_ms))

    def _renewable(self, queue: MessageQueue, token: LockToken, now_ms: int) -> Lock:
        """Return a held lock, even if its settlement waits in a transaction."""
        lock = queue.locks.get(token)
        if lock is None or lock.until_ms() <= now_ms:
            self._lost(queue.queue_id, token, now_ms)
        return lock

    def peek(self, command: ask.Peek, out: Outcome) -> None:
        queue = self._entities.browsable(command.address)
        queue.accessed_at_ms = out.now_ms
        views, stopped_at = browse(
            queue,
            command.from_sequence_number,
            command.count_max,
            command.bytes_max,
            command.session_id,
            command.state,
        )
        partitioned = queue.main.partitions is not None
        out.effects.append(do.MessagesFound(command.reply_to, views, partitioned, stopped_at))

    def schedule(self, command: ask.Schedule, out: Outcome) -> None:
        _, queue = self._entities.queue(command.address)
        self.check_scheduled(queue.queue_id, command.messages)
        self.storing = Storing(queue, command)
        self.store_on(out)

    def check_scheduled(self, queue_id: int, messages: list[tuple[Message, Sections]]) -> None:
        sizes = [message.size_bytes for message, _ in messages]
        records = [message for message, _ in messages]
        self._check_send(queue_id, records, max(sizes, default=0), total_bytes=sum(sizes))

    def cancel_scheduled(self, command: ask.CancelScheduled, out: Outcome) -> None:
        entity, queue = self._entities.queue(command.address)
        scheduled.check_cancel(entity, queue, command.sequence_numbers)
        scheduled.cancel(queue, command.sequence_numbers, out)
        out.effects.append(do.Done(command.reply_to))

    def shift_scheduled(self, command: ShiftScheduled, out: Outcome) -> None:
        self.storing = Shifting(self._entities, command, self._shared.wall.instant_ms(out.now_ms))
        self.store_on(out)

    def receive_deferred(self, command: ask.ReceiveDeferred, out: Outcome) -> None:
        queue = self._entities.readable(command.address)
        locks = self._links.connection(command.reply_to.connection_id).locks
        session, sessions = None, queue.sessions
        if sessions is not None:
            session = held_session(queue, command.session_id, command.reply_to, out.now_ms)
            assert session.lock is not None
            locks = session.lock.receiver.locks
        found: dict[int, Message] = {}
        for number in command.sequence_numbers:
            message = deferred_by_number(queue, number)
            if message is None or (sessions is not None and sessions.session_of(message) is not session):
                raise MessageNotFound(
                    f"no deferred message with sequence number {number} that is not locked in '{queue.name}'"
                )
            found[number] = message
        size_bytes = sum(message.size_bytes for message in found.values())
        if len(found) > 1 and size_bytes > DEFERRED_BYTES_MAX:
            raise ArgumentOutOfRange(
                f"the {len(found)} deferred messages of '{queue.name}' are {size_bytes} bytes, at most "
                f"{DEFERRED_BYTES_MAX} are given at once: ask for fewer"
            )
        queue.accessed_at_ms = out.now_ms
        spent = [message for message in found.values() if message.delivery_count >= queue.max_delivery_count]
        if spent:  # MaxDeliveryCount was lowered since they were set aside (L-08)
            for message in spent:
                queue.dead_letter_exhausted(message, out)
            error = MessageNotFound(
                f"sequence number {spent[0].sequence_number} of '{queue.name}' is dead-lettered: it was "
                f"delivered {spent[0].delivery_count} times, and MaxDeliveryCount is "
                f"{queue.max_delivery_count} now"
            )
            out.effects.append(do.Failed(command.reply_to, error))
            return
        holder = locks if command.mode is ReceiveMode.PEEK_LOCK else None
        if holder is None and self._shared.bodies.add_request(command, queue.queue_id, found.values(), out):
            return
        views = [delivery.hand_over(queue, message, holder, out) for message in found.values()]
        out.effects.append(do.MessagesFound(command.reply_to, views, queue.main.partitions is not None))

    def update_disposition(self, command: ask.UpdateDisposition, out: Outcome) -> None:
        self.check(command, out.now_ms)
        out.effects.append(do.Done(command.reply_to))
        self.perform(command, None, out)

    def delete_messages(self, command: ask.DeleteMessages, out: Outcome) -> None:
        queue = self._entities.readable(command.address)
        found = oldest_unlocked(
            queue, command.count_max, command.enqueued_before_ms, out.now_ms, command.session_id
        )
        queue.accessed_at_ms = out.now_ms
        for message in found:
            out.happened(EventType.PURGED, queue, message)
            queue.remove(message, out)
        queue.forget_returned()
        out.effects.append(do.MessagesDeleted(command.reply_to, len(found)))


_DISPOSITIONS: Final[dict[type, Disposition]] = {
    ask.Complete: Disposition.COMPLETED,
    ask.Abandon: Disposition.ABANDONED,
    ask.Defer: Disposition.DEFERRED,
    ask.DeadLetter: Disposition.SUSPENDED,
}


def _guid(token: LockToken) -> str:
    return str(UUID(bytes_le=token)) if len(token) == 16 else token.hex()
