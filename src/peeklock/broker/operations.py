"""What is asked about messages: send, settle, and the operations of the management node.

Owns: what is checked before anything changes, what is refused and why. Must not know: links and their credit,
how a queue keeps its messages. A handler raises a `ServiceBusError` before its first change, or does all it
was asked. What a transaction can hold is also offered in two steps, `check` and `perform`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn
from uuid import UUID

from peeklock.broker import arrival, settlement
from peeklock.broker import commands as ask
from peeklock.broker import effects as do
from peeklock.broker.browsing import browse, deferred_by_number, oldest_unlocked, scheduled_by_number
from peeklock.broker.changes import Change
from peeklock.broker.commands import Disposition, ReceiveMode
from peeklock.broker.effects import Accepted, Effect, Settled
from peeklock.broker.entities import Entities
from peeklock.broker.entity import Entity
from peeklock.broker.errors import (
    ArgumentOutOfRange,
    EntityDeleted,
    InvalidOperation,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    NotSupported,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    SessionLockLost,
)
from peeklock.broker.events import EventType
from peeklock.broker.message import Message, MessageView
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.message_session import MessageSession
from peeklock.broker.message_sessions import MessageSessions
from peeklock.broker.peek_lock import Lock
from peeklock.broker.quotas import DEFERRED_BYTES_MAX
from peeklock.broker.shared import Shared

_LOCK_LOST = (
    "The lock supplied is invalid. "
    "Either the lock expired, or the message has already been removed from the queue"
)
"""The service's own wording."""

Sending = ask.Send | ask.SendBatch
Settling = ask.Complete | ask.Abandon | ask.Defer | ask.DeadLetter


class Operations:
    """The handlers of all commands about messages."""

    def __init__(self, entities: Entities, shared: Shared) -> None:
        self.dropped_sends = 0
        self._entities = entities
        self._queues = entities.queues
        self._links = shared.links
        self._forwarding = shared.forwarding
        self._limited = False
        self._low_space = False
        self._capture_full = False

    # Sending

    def send(self, command: ask.Send, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
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
        queue.accessed_at_ms = now_ms
        if command.destination is None:
            arrival.store(queue, message, command.payload, now_ms, changes, effects)
        else:
            arrival.store(
                queue, message, command.payload, now_ms, changes, effects, forward_to=command.destination.path
            )
        reply_to = command.reply_to
        if reply_to is not None:
            effects.append(Accepted(reply_to))
        if queue.sessions is not None or queue.line.receivers.turns:
            queue.serve(now_ms, changes, effects)

    def send_batch(
        self, command: ask.SendBatch, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        self.check(command, now_ms)
        if command.reply_to is not None:
            effects.append(Accepted(command.reply_to))
        self.perform(command, now_ms, changes, effects)

    def _store_all(
        self,
        queue: MessageQueue,
        messages: list[tuple[Message, bytes]],
        destination: ask.Address | None,
        now_ms: int,
        changes: list[Change],
        effects: list[Effect],
    ) -> list[int]:
        """Store checked messages; those without a key go to one partition (S-03)."""
        queue.accessed_at_ms = now_ms
        turn = None if queue.partitions is None else queue.partitions.next_in_turn()
        forward_to = None if destination is None else destination.path
        return [
            arrival.store(queue, message, payload, now_ms, changes, effects, turn=turn, forward_to=forward_to)
            for message, payload in messages
        ]

    def _check_send(
        self,
        queue_id: int,
        messages: Sequence[Message],
        size_bytes: int,
        destination: ask.Address | None = None,
        *,
        total_bytes: int | None = None,
    ) -> MessageQueue:
        """Give the queue if these messages may be sent to it; else raise why not.

        Args:
            size_bytes: what is held to the limit of a message: a batch counts as one.
            total_bytes: what the entity must have room for; `size_bytes` unless given.
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
            if self._low_space:
                raise QuotaExceeded(f"'{queue.name}' takes no message: the broker's disk is nearly full")
            if self._capture_full:
                raise ServerBusy(
                    f"'{queue.name}' takes no message now: the event log lags behind by all that it may, and "
                    f"nothing is to be missing there; look at the broker's /health, and try again later"
                )
            raise ServerBusy(f"'{queue.name}' takes no message now: the broker lags behind; try again later")
        chain = self._forwarding.chain(queue, None if destination is None else destination.path)
        if destination is None:
            self._check_sessions(queue, messages)
            self._check_ids(queue)
        elif chain and chain[0].main.reads_routing and any(message.routing is None for message in messages):
            raise EntityDeleted(
                f"'{destination.path}', to which is sent via '{queue.name}', was deleted and made anew since "
                f"this link was attached"
            )
        for target in chain:
            self._check_ids(target.main)
        self._check_room(chain[-1] if chain else entity, size_bytes if total_bytes is None else total_bytes)
        return queue

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

    def _check_room(self, entity: Entity, size_bytes: int) -> None:
        entity = entity.topic or entity  # what a subscription holds counts there
        if self._entities.is_full(entity, size_bytes):
            raise QuotaExceeded(
                f"The maximum entity size has been reached or exceeded: '{entity.name}' holds "
                f"{entity.size_bytes()} of {entity.size_bytes_max()} bytes, "
                f"{size_bytes} more do not fit"
            )

    def limit_sending(
        self, command: ask.LimitSending, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        self._low_space = command.low_space
        self._capture_full = command.capture_full
        self._limited = command.low_space or command.lagging or command.capture_full

    def reject(self, command: Sending, error: ServiceBusError) -> Effect | None:
        if command.reply_to is None:
            self.dropped_sends += 1
            return None
        return do.Rejected(command.reply_to, error)

    # In two steps, for transactions

    def check(self, command: Sending | Settling | ask.UpdateDisposition, now_ms: int) -> None:
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

    def check_all(self, commands: Sequence[Sending | Settling | ask.UpdateDisposition], now_ms: int) -> None:
        """Raise what doing all of these would raise; change nothing. Room is checked for all at once."""
        sizes: dict[int, int] = {}
        for command in commands:
            self.check(command, now_ms)
            if isinstance(command, ask.Send | ask.SendBatch):
                queue = self._queues[command.queue_id]
                path = None if command.destination is None else command.destination.path
                chain = self._forwarding.chain(queue, path)
                entity = chain[-1] if chain else self._entities.of_queue(command.queue_id)
                assert entity is not None
                sizes[entity.entity_id] = sizes.get(entity.entity_id, 0) + _size_of(command)
        for entity_id, size_bytes in sizes.items():
            entity = self._entities.by_id(entity_id)
            assert entity is not None
            self._check_room(entity, size_bytes)

    def locks_of(self, command: Sending | Settling | ask.UpdateDisposition, now_ms: int) -> list[Lock]:
        """Give the locks that a command settles. Raises: MessageLockLost and the entity's own obstacles."""
        if isinstance(command, ask.Send | ask.SendBatch):
            return []
        if isinstance(command, ask.UpdateDisposition):
            queue = self._readable(command.address)
            tokens = dict.fromkeys(command.lock_tokens)
            return [self._held(queue.queue_id, token, now_ms) for token in tokens]
        return [self._held(command.queue_id, command.lock_token, now_ms)]

    def perform(
        self,
        command: Sending | Settling | ask.UpdateDisposition,
        now_ms: int,
        changes: list[Change],
        effects: list[Effect],
    ) -> None:
        """Do a command that was checked just now; nobody is answered."""
        if isinstance(command, ask.Send | ask.SendBatch):
            queue = self._queues[command.queue_id]
            messages = (
                [(command.message, command.payload)] if isinstance(command, ask.Send) else command.messages
            )
            self._store_all(queue, messages, command.destination, now_ms, changes, effects)
            queue.serve(now_ms, changes, effects)
            return
        locks = self.locks_of(command, now_ms)
        disposition = (
            command.disposition
            if isinstance(command, ask.UpdateDisposition)
            else _DISPOSITIONS[type(command)]
        )
        properties = getattr(command, "properties", None)
        for lock in locks:
            if disposition is Disposition.COMPLETED:
                lock.queue.complete(lock, changes)
            elif disposition is Disposition.ABANDONED:
                settlement.abandon(lock, now_ms, changes, effects, properties)
            elif disposition is Disposition.DEFERRED:
                settlement.defer(lock, now_ms, changes, effects, properties)
            else:
                assert isinstance(command, ask.DeadLetter | ask.UpdateDisposition)
                settlement.dead_letter(
                    lock, now_ms, changes, effects, command.reason, command.description, properties
                )
        for queue in dict.fromkeys(lock.queue for lock in locks):
            queue.serve(now_ms, changes, effects)

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

    def settle(
        self,
        command: ask.Abandon | ask.Defer | ask.DeadLetter,
        now_ms: int,
        changes: list[Change],
        effects: list[Effect],
    ) -> None:
        self.check(command, now_ms)
        if command.reply_to is not None:
            effects.append(Settled(command.reply_to))
        self.perform(command, now_ms, changes, effects)

    def release(
        self, command: ask.Release, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        lock = self._held(command.queue_id, command.lock_token, now_ms)
        lock.queue.give_back(lock, now_ms, changes, effects, counted=False, why=EventType.RELEASED)
        if command.reply_to is not None:
            effects.append(Settled(command.reply_to))
        lock.queue.serve(now_ms, changes, effects)

    def _check_disposition(self, lock: Lock, disposition: Disposition, properties: Any) -> None:
        if disposition is Disposition.DEFERRED and not self._entities.limits.deferral:
            raise NotSupported(
                f"'{lock.queue.name}' cannot defer: deferral is not in tier {self._entities.limits.name}"
            )
        if disposition is Disposition.SUSPENDED:
            settlement.require_dead_lettering(lock)
        elif disposition is not Disposition.COMPLETED:
            settlement.require_change(lock, properties)

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
        if queue.sessions is not None:
            raise SessionLockLost(
                "The session lock has expired on the MessageSession. Accept a new MessageSession: "
                f"token {_guid(token)} of '{queue.name}'"
            )
        if lock is None:
            raise MessageLockLost(f"{_LOCK_LOST}: token {_guid(token)} of '{queue.name}'")
        if lock.transaction is not None:
            raise MessageLockLost(
                f"{_LOCK_LOST}: sequence number {lock.message.sequence_number} of '{queue.name}' is settled "
                f"in a transaction that is still open"
            )
        raise MessageLockLost(
            f"{_LOCK_LOST}: the lock on sequence number {lock.message.sequence_number} of '{queue.name}' "
            f"expired at {lock.locked_until_ms} ms, now {now_ms} ms"
        )

    # Management of messages

    def _readable(self, address: ask.Address) -> MessageQueue:
        entity, queue = self._entities.queue(address)
        entity.require_receivable(queue)
        entity.require_receiving()
        return queue

    def renew_locks(
        self, command: ask.RenewLocks, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        if queue.sessions is not None:
            raise InvalidOperation(
                f"the messages of '{queue.name}' are locked with their session: renew the session's lock"
            )
        locks = [self._renewable(queue, token, now_ms) for token in command.lock_tokens]
        effects.append(do.LocksRenewed(command.reply_to, [queue.renew(lock, now_ms) for lock in locks]))

    def _renewable(self, queue: MessageQueue, token: bytes, now_ms: int) -> Lock:
        """Give a lock that is held, also one whose settlement waits in a transaction."""
        lock = queue.locks.get(token)
        if lock is None or lock.locked_until_ms <= now_ms:
            self._lost(queue.queue_id, token, now_ms)
        return lock

    def peek(self, command: ask.Peek, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        queue = self._readable(command.address)
        queue.accessed_at_ms = now_ms
        views = browse(
            queue, command.from_sequence_number, command.count_max, command.bytes_max, command.session_id
        )
        effects.append(do.MessagesFound(command.reply_to, views, queue.main.partitions is not None))

    def schedule(
        self, command: ask.Schedule, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        _, queue = self._entities.queue(command.address)
        messages = [message for message, _ in command.messages]
        sizes = [message.size_bytes for message in messages]
        self._check_send(queue.queue_id, messages, max(sizes, default=0), total_bytes=sum(sizes))
        numbers = self._store_all(queue, command.messages, None, now_ms, changes, effects)
        effects.append(do.MessagesScheduled(command.reply_to, numbers))
        queue.serve(now_ms, changes, effects)

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
        queue.accessed_at_ms = now_ms
        events = queue.shared.events
        for message in found.values():
            if events is not None:
                events.message(EventType.CANCELLED, queue, message)
            queue.remove(message, changes)
        effects.append(do.Done(command.reply_to))

    def receive_deferred(
        self, command: ask.ReceiveDeferred, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        locks = self._links.connection(command.reply_to[0]).locks
        if queue.sessions is not None:
            session = self._session(queue, command.session_id, command.reply_to, now_ms)
            assert session.lock is not None
            locks = session.lock.receiver.locks
        found: dict[int, Message] = {}
        for number in command.sequence_numbers:
            message = deferred_by_number(queue, number)
            if message is None or (queue.sessions is not None and message.session_id != command.session_id):
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
        queue.accessed_at_ms = now_ms
        holder = locks if command.mode is ReceiveMode.PEEK_LOCK else None
        views = [queue.hand_over(message, holder, now_ms, changes) for message in found.values()]
        effects.append(do.MessagesFound(command.reply_to, views, queue.main.partitions is not None))

    def update_disposition(
        self, command: ask.UpdateDisposition, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        self.check(command, now_ms)
        effects.append(do.Done(command.reply_to))
        self.perform(command, now_ms, changes, effects)

    def delete_messages(
        self, command: ask.DeleteMessages, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        if queue.main.partitions is not None:
            raise InvalidOperation(f"'{queue.name}' is partitioned: batch delete is not possible there")
        count_max = min(command.count_max, self._entities.limits.batch_delete_max)
        found = oldest_unlocked(queue, count_max, command.enqueued_before_ms, now_ms, command.session_id)
        queue.accessed_at_ms = now_ms
        events = queue.shared.events
        for message in found:
            if events is not None:
                events.message(EventType.PURGED, queue, message)
            queue.remove(message, changes)
        queue.forget_returned()
        effects.append(do.MessagesDeleted(command.reply_to, len(found)))

    def fetched(
        self, command: ask.Fetched, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._queues.get(command.queue_id)
        if queue is not None:
            self._forwarding.fetched(queue, command.position, command.payload)

    # Sessions

    def _sessions(self, address: ask.Address) -> tuple[MessageQueue, MessageSessions]:
        queue = self._readable(address)
        if queue.sessions is None:
            raise InvalidOperation(f"'{queue.name}' does not require sessions, so it has none")
        return queue, queue.sessions

    def _session(
        self, queue: MessageQueue, session_id: str | None, reply_to: ask.ReplyTo, now_ms: int
    ) -> MessageSession:
        """Give the session that the asking connection holds. Raises: SessionLockLost, InvalidOperation."""
        assert queue.sessions is not None
        if session_id is None:
            raise InvalidOperation(f"'{queue.name}' requires sessions: the request names none")
        return queue.sessions.holder_of(session_id, reply_to[0], now_ms)

    def renew_session(
        self, command: ask.RenewSessionLock, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue, sessions = self._sessions(command.address)
        session = self._session(queue, command.session_id, command.reply_to, now_ms)
        effects.append(do.SessionLockRenewed(command.reply_to, sessions.renew(session, now_ms)))

    def get_session_state(
        self, command: ask.GetSessionState, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue, _ = self._sessions(command.address)
        state = self._session(queue, command.session_id, command.reply_to, now_ms).state
        views = [] if state is None else [MessageView(state, None, 0, 0, None, state.state)]
        effects.append(do.MessagesFound(command.reply_to, views))

    def set_session_state(
        self, command: ask.SetSessionState, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue, sessions = self._sessions(command.address)
        session = self._session(queue, command.session_id, command.reply_to, now_ms)
        size_bytes = len(command.state or b"")
        size_max = self._entities.limits.session_state_bytes_max
        if size_bytes > size_max:
            raise MessageSizeExceeded(
                f"the state of session '{command.session_id}' of '{queue.name}' is {size_bytes} bytes, the "
                f"limit is {size_max}"
            )
        if size_bytes and self._low_space:
            raise QuotaExceeded(f"'{queue.name}' takes no session state: the broker's disk is nearly full")
        entity = self._entities.of_queue(queue.queue_id)
        assert entity is not None
        before = 0 if session.state is None else session.state.size_bytes
        if size_bytes > before:
            self._check_room(entity, size_bytes - before)
        queue.accessed_at_ms = now_ms
        sessions.set_state(session, command.state, now_ms, changes)
        effects.append(do.Done(command.reply_to))

    def list_sessions(
        self, command: ask.ListSessions, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        if command.skip < 0 or command.top < 0:
            raise ArgumentOutOfRange(f"skip {command.skip} and top {command.top} must not be negative")
        _, sessions = self._sessions(command.address)
        found = sessions.listed(command.updated_since_ms, command.skip, command.top)
        effects.append(do.SessionsFound(command.reply_to, found, command.skip + len(found)))


_DISPOSITIONS: dict[type, Disposition] = {
    ask.Complete: Disposition.COMPLETED,
    ask.Abandon: Disposition.ABANDONED,
    ask.Defer: Disposition.DEFERRED,
    ask.DeadLetter: Disposition.SUSPENDED,
}


def _size_of(command: Sending) -> int:
    if isinstance(command, ask.Send):
        return command.message.size_bytes
    return sum(message.size_bytes for message, _ in command.messages)


def _guid(token: bytes) -> str:
    return str(UUID(bytes_le=token)) if len(token) == 16 else token.hex()
