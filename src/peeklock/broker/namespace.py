"""The namespace: everything a client can ask for comes in here, and only here.

Owns: the dispatch of commands, links and connections, what is refused and why. Must not know: the wire, the
store, the clock. `apply` and `advance` answer what became true and what follows; neither raises for what a
client did.

Deterministic: the same commands at the same instants with the same tokens give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn
from uuid import UUID

from peeklock.broker import commands as ask
from peeklock.broker import effects as do
from peeklock.broker.browsing import browse, deferred_by_number, oldest_unlocked, scheduled_by_number
from peeklock.broker.changes import Change, EntityStored, MessageIdSeen, NumbersIssued
from peeklock.broker.commands import Command, Disposition, ReceiveMode
from peeklock.broker.effects import Accepted, Effect, Settled
from peeklock.broker.entities import Entities, Entity
from peeklock.broker.errors import (
    EntityDeleted,
    EntityDisabled,
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
from peeklock.broker.message_queue import MessageQueue, Shared
from peeklock.broker.peek_lock import Lock
from peeklock.broker.quotas import TierLimits
from peeklock.broker.receivers import Connection, ReceiverLink, SenderLink
from peeklock.broker.recovery import Recovery
from peeklock.broker.validation import drops_locks

SLICE = 1_000
"""Items one `advance` handles, about: at 5 to 10 us each it takes 10 ms at most."""

_LOCK_LOST = (
    "The lock supplied is invalid. "
    "Either the lock expired, or the message has already been removed from the queue"
)
"""The service's own wording."""

_Handler = Callable[[Any, int, list[Change], list[Effect]], None]
_Refusal = Callable[[Any, ServiceBusError], "Effect | None"]


@dataclass(slots=True)
class Totals:
    """Counters over a whole namespace, for health and measurements."""

    entities: int = 0
    connections: int = 0
    links: int = 0
    active_messages: int = 0
    deferred_messages: int = 0
    scheduled_messages: int = 0
    dead_letters: int = 0
    locks: int = 0
    size_bytes: int = 0
    dropped_sends: int = 0
    """Pre-settled sends that were refused, of which nobody else is told (T-06)."""


class Namespace:
    """All entities of one namespace and whoever is attached to them."""

    def __init__(
        self,
        *,
        limits: TierLimits,
        tokens: Callable[[], bytes],
        digest_key: bytes,
        enforce_quotas: bool = False,
        first_sequence_number: int = 1,
    ) -> None:
        """Make an empty namespace.

        Args:
            limits: of its tier.
            tokens: gives 16 random bytes a call, in .NET order of a GUID.
            digest_key: at most 64 secret bytes, kept over restarts: keys the digests of message ids.
            enforce_quotas: hold entities to their size and the namespace to its number of entities (A-05).
            first_sequence_number: of each new queue; a test of the roll-over sets it high (S-03).
        """
        self._shared = Shared(tokens)
        self._entities = Entities(
            limits,
            self._shared,
            digest_key,
            enforce_quotas=enforce_quotas,
            first_position=first_sequence_number,
        )
        self._queues = self._entities.queues
        self._enforce_quotas = enforce_quotas
        self._links: dict[ask.Link, SenderLink | ReceiverLink] = {}
        self._connections: dict[int, Connection] = {}
        self._recovery: Recovery | None = None
        self._limited = False
        self._low_space = False
        self._dropped_sends = 0
        self._handlers: dict[type, tuple[_Handler, _Refusal]] = {
            ask.OpenSender: (self._open_sender, _refuse_link),
            ask.OpenReceiver: (self._open_receiver, _refuse_link),
            ask.CloseLink: (self._close_link, _cannot_fail),
            ask.SetCredit: (self._set_credit, _cannot_fail),
            ask.DropConnection: (self._drop_connection, _cannot_fail),
            ask.Send: (self._send, self._reject),
            ask.SendBatch: (self._send_batch, self._reject),
            ask.Complete: (self._complete, _fail_settlement),
            ask.Abandon: (self._abandon, _fail_settlement),
            ask.Defer: (self._defer, _fail_settlement),
            ask.DeadLetter: (self._dead_letter, _fail_settlement),
            ask.Release: (self._release, _fail_settlement),
            ask.RenewLocks: (self._renew_locks, _fail),
            ask.Peek: (self._peek, _fail),
            ask.Schedule: (self._schedule, _fail),
            ask.CancelScheduled: (self._cancel_scheduled, _fail),
            ask.ReceiveDeferred: (self._receive_deferred, _fail),
            ask.UpdateDisposition: (self._update_disposition, _fail),
            ask.DeleteMessages: (self._delete_messages, _fail),
            ask.LookUp: (self._look_up, _fail),
            ask.CreateQueue: (self._create_queue, _fail),
            ask.UpdateQueue: (self._update_queue, _fail),
            ask.DeleteEntity: (self._delete_entity, _fail),
            ask.ListQueues: (self._list_queues, _fail),
            ask.LimitSending: (self._limit_sending, _cannot_fail),
        }

    def apply(self, command: Command, now_ms: int) -> tuple[list[Change], list[Effect]]:
        """Do what a command asks, or refuse it as a whole."""
        changes: list[Change] = []
        effects: list[Effect] = []
        handler, refusal = self._handlers[type(command)]
        try:
            handler(command, now_ms, changes, effects)
        except ServiceBusError as error:
            assert not changes, "a refused command must change nothing"
            effect = refusal(command, error)
            if effect is not None:
                effects.append(effect)
        return changes, effects

    def advance(self, now_ms: int) -> tuple[list[Change], list[Effect]]:
        """Do what is due, a bounded slice a call: while `next_deadline_ms` is past there is more."""
        changes: list[Change] = []
        effects: list[Effect] = []
        left = SLICE
        while left > 0:
            queue = self._shared.timers.take_due(now_ms)
            if queue is None:
                break
            left -= queue.advance(now_ms, left, changes, effects)
        return changes, effects

    def next_deadline_ms(self) -> int | None:
        """When `advance` has something to do; None when it never has."""
        return self._shared.timers.next_ms()

    def numbers_issued(self) -> list[NumbersIssued]:
        """State the counters of the queues that issued numbers since the last call."""
        issued = self._shared.issued
        self._shared.issued = []
        for queue in issued:
            queue.numbers_dirty = False
        return [queue.numbers_issued() for queue in issued if queue.queue_id in self._queues]

    # Links

    def _open_sender(
        self, command: ask.OpenSender, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity, queue = self._entities.queue(command.address)
        if queue.dead_letters is None:
            raise InvalidOperation(f"'{queue.name}' is a dead-letter queue: nothing can be sent to it")
        entity.require_sending()
        self._attach(entity, SenderLink(command.link, queue.queue_id))
        effects.append(
            do.SenderOpened(
                command.link, queue.queue_id, queue.message_size_bytes_max, queue.duplicates is not None
            )
        )

    def _open_receiver(
        self, command: ask.OpenReceiver, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity, queue = self._entities.queue(command.address)
        entity.require_receiving()
        deletes = command.mode is ReceiveMode.RECEIVE_AND_DELETE
        self._attach(entity, ReceiverLink(command.link, queue.queue_id, deletes=deletes))
        effects.append(do.ReceiverOpened(command.link, queue.queue_id, queue.message_size_bytes_max))

    def _attach(self, entity: Entity, opened: SenderLink | ReceiverLink) -> None:
        assert opened.link not in self._links, "a link was opened twice"
        self._links[opened.link] = opened
        entity.links[opened.link] = opened
        self._connection(opened.link[0]).links[opened.link] = opened

    def _connection(self, connection_id: int) -> Connection:
        connection = self._connections.get(connection_id)
        if connection is None:
            connection = self._connections[connection_id] = Connection()
        return connection

    def _detach(self, opened: SenderLink | ReceiverLink) -> None:
        """Forget a link everywhere; the locks taken over it stay until they lapse."""
        del self._links[opened.link]
        del self._connections[opened.link[0]].links[opened.link]
        entity = self._entities.of_queue(opened.queue_id)
        if entity is not None:
            del entity.links[opened.link]
        if isinstance(opened, ReceiverLink):
            queue = self._queues.get(opened.queue_id)
            if queue is not None:
                queue.receivers.remove(opened)

    def _close_link(
        self, command: ask.CloseLink, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        opened = self._links.get(command.link)
        if opened is not None:
            self._detach(opened)

    def _set_credit(
        self, command: ask.SetCredit, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        receiver = self._links.get(command.link)
        if not isinstance(receiver, ReceiverLink):
            return  # detached by us meanwhile
        receiver.deliveries_max = command.deliveries_max
        receiver.bytes_max = command.bytes_max
        queue = self._queues[receiver.queue_id]
        queue.accessed_at_ms = now_ms
        queue.receivers.credit_changed(receiver)
        if command.drain:
            queue.receivers.drain(receiver)
        queue.deliver(now_ms, changes, effects)

    def _drop_connection(
        self, command: ask.DropConnection, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        connection = self._connections.get(command.connection_id)
        if connection is None:
            return
        dropped = list(connection.locks.values())
        for opened in list(connection.links.values()):
            if isinstance(opened, ReceiverLink):
                dropped.extend(opened.locks.values())
            self._detach(opened)
        del self._connections[command.connection_id]
        if not command.broken:
            return
        touched: dict[int, MessageQueue] = {}
        for lock in dropped:
            queue = lock.queue
            if queue.locks.get(lock.token) is lock:  # else its entity is gone
                queue.give_back(lock, now_ms, changes, counted=True)
                touched[queue.queue_id] = queue
        for queue in touched.values():
            queue.serve(now_ms, changes, effects)

    # Sending

    def _send(self, command: ask.Send, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
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

    def _send_batch(
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

    def _limit_sending(
        self, command: ask.LimitSending, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        self._low_space = command.low_space
        self._limited = command.low_space or command.lagging

    def _reject(self, command: ask.Send | ask.SendBatch, error: ServiceBusError) -> Effect | None:
        if command.reply_to is None:
            self._dropped_sends += 1
            return None
        return do.Rejected(command.reply_to, error)

    # Settlement

    def _complete(
        self, command: ask.Complete, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._queues.get(command.queue_id)
        lock = None if queue is None else queue.held(command.lock_token, now_ms)
        if queue is None or lock is None:
            self._lost(command.queue_id, command.lock_token, now_ms)
        queue.complete(lock, changes)
        if command.reply_to is not None:
            effects.append(Settled(command.reply_to))

    def _abandon(
        self, command: ask.Abandon, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        lock = self._held(command.queue_id, command.lock_token, now_ms)
        lock.queue.abandon(lock, now_ms, changes, command.properties)
        self._settled(command.reply_to, lock.queue, now_ms, changes, effects)

    def _defer(self, command: ask.Defer, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        lock = self._held(command.queue_id, command.lock_token, now_ms)
        self._require_deferral(lock.queue)
        lock.queue.defer(lock, changes, command.properties)
        self._settled(command.reply_to, lock.queue, now_ms, changes, effects)

    def _dead_letter(
        self, command: ask.DeadLetter, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        lock = self._held(command.queue_id, command.lock_token, now_ms)
        lock.queue.dead_letter(lock, changes, command.reason, command.description, command.properties)
        self._settled(command.reply_to, lock.queue, now_ms, changes, effects)

    def _release(
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

    def _renew_locks(
        self, command: ask.RenewLocks, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        locks = [self._held(queue.queue_id, token, now_ms) for token in command.lock_tokens]
        effects.append(do.LocksRenewed(command.reply_to, [queue.renew(lock, now_ms) for lock in locks]))

    def _peek(self, command: ask.Peek, now_ms: int, changes: list[Change], effects: list[Effect]) -> None:
        queue = self._readable(command.address)
        views = browse(queue, command.from_sequence_number, command.count_max, command.bytes_max)
        effects.append(do.MessagesFound(command.reply_to, views))

    def _schedule(
        self, command: ask.Schedule, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        _, queue = self._entities.queue(command.address)
        sizes = [message.size_bytes for message, _ in command.messages]
        self._sendable(queue.queue_id, max(sizes, default=0), sum(sizes))
        queue.accessed_at_ms = now_ms
        numbers = [queue.store(message, payload, now_ms, changes) for message, payload in command.messages]
        effects.append(do.MessagesScheduled(command.reply_to, numbers))
        queue.deliver(now_ms, changes, effects)

    def _cancel_scheduled(
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

    def _receive_deferred(
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
            locks = self._connection(command.reply_to[0]).locks
        views = [queue.hand_over(message, locks, now_ms, changes) for message in found.values()]
        effects.append(do.MessagesFound(command.reply_to, views))

    def _update_disposition(
        self, command: ask.UpdateDisposition, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        tokens = dict.fromkeys(command.lock_tokens)
        locks = [self._held(queue.queue_id, token, now_ms) for token in tokens]
        disposition = command.disposition
        if disposition is Disposition.DEFERRED:
            self._require_deferral(queue)
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

    def _delete_messages(
        self, command: ask.DeleteMessages, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        queue = self._readable(command.address)
        count_max = min(command.count_max, self._entities.limits.batch_delete_max)
        found = oldest_unlocked(queue, count_max, command.enqueued_before_ms, now_ms)
        queue.delete(found, changes)
        effects.append(do.MessagesDeleted(command.reply_to, len(found)))

    # Entities

    def _look_up(
        self, command: ask.LookUp, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        effects.append(do.EntityFound(command.reply_to, self._entities.find(command.address.path).view()))

    def _create_queue(
        self, command: ask.CreateQueue, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity = self._entities.create(command.description, now_ms)
        changes.append(entity.stored())
        effects.append(do.EntityFound(command.reply_to, entity.view()))

    def _update_queue(
        self, command: ask.UpdateQueue, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity, description = self._entities.checked_update(command.description)
        if description != entity.description:
            if drops_locks(entity.description, description):
                for queue in entity.queues():
                    queue.drop_locks()
            entity.change(description, self._entities.limits, now_ms)
            changes.append(entity.stored())
        effects.append(do.EntityFound(command.reply_to, entity.view()))
        if not entity.receives:
            error = EntityDisabled(
                f"'{entity.name}' is {description.status.value}: nothing can be received from it"
            )
            receivers = [opened for opened in entity.links.values() if isinstance(opened, ReceiverLink)]
            self._detach_all(receivers, error, effects)
        for queue in entity.queues():
            queue.serve(now_ms, changes, effects)

    def _delete_entity(
        self, command: ask.DeleteEntity, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity = self._entities.find(command.path)
        error = EntityDeleted(f"The messaging entity '{entity.name}' was deleted.")
        self._detach_all(list(entity.links.values()), error, effects)
        changes.append(self._entities.remove(entity))
        effects.append(do.Done(command.reply_to))

    def _detach_all(
        self,
        opened: list[SenderLink] | list[ReceiverLink] | list[SenderLink | ReceiverLink],
        error: ServiceBusError,
        effects: list[Effect],
    ) -> None:
        for link in opened:
            self._detach(link)
            effects.append(do.DetachLink(link.link, error))

    def _list_queues(
        self, command: ask.ListQueues, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entities, more = self._entities.page(command.skip, command.top)
        effects.append(do.EntitiesFound(command.reply_to, [entity.view() for entity in entities], more))

    # Recovery and reclaim

    def restore_entity(self, stored: EntityStored) -> None:
        """Take in an entity that the store has; all of them come before the first frame."""
        self._recovering().restore_entity(stored)

    def restore(self, changes: Iterable[Change]) -> None:
        """Take in one frame of the journal; frames come in order, oldest first."""
        self._recovering().restore(changes)

    def finish_restore(self, now_ms: int, next_entity_id: int) -> None:
        """Build the indexes and timers; nothing is locked. What fell due meanwhile follows by `advance`."""
        self._recovering().finish(now_ms)
        self._entities.next_entity_id = max(self._entities.next_entity_id, next_entity_id)
        self._recovery = None

    def _recovering(self) -> Recovery:
        if self._recovery is None:
            self._recovery = Recovery(self._entities)
        return self._recovery

    def find(self, queue_id: int, position: int) -> Message | None:
        """Give a message that is stored now."""
        queue = self._queues.get(queue_id)
        return None if queue is None else queue.find(position)

    def still_holds(self, change: NumbersIssued | MessageIdSeen, now_ms: int) -> Change | None:
        """Give what has to be written again when the frame with this fact goes; None when it holds no
        more."""
        queue = self._queues.get(change.queue_id)
        if queue is None:
            return None
        if isinstance(change, NumbersIssued):
            return queue.numbers_issued()
        if queue.duplicates is not None and queue.duplicates.still_holds(change, now_ms):
            return change
        return None

    def removed_entity_messages(self, entity_id: int) -> Iterator[Message]:
        """Hand out the messages of a deleted entity, once; the caller takes them at its own pace."""
        entity = self._entities.removed.pop(entity_id, None)
        if entity is not None:
            for queue in entity.queues():
                yield from queue.all_messages()

    # Figures

    def queue_views(self) -> list[do.QueueView]:
        """Show all queues, sorted by name."""
        return [entity.view() for entity in self._entities.page(0, len(self._entities))[0]]

    def totals(self) -> Totals:
        """Add up the figures of all queues; costs about 2 us an entity."""
        totals = Totals(
            entities=len(self._entities),
            connections=len(self._connections),
            links=len(self._links),
            dropped_sends=self._dropped_sends,
        )
        for entity in self._entities:
            totals.active_messages += len(entity.main.active)
            totals.deferred_messages += len(entity.main.deferred)
            totals.scheduled_messages += len(entity.main.scheduled)
            totals.dead_letters += len(entity.dead_letters.active) + len(entity.dead_letters.deferred)
            totals.locks += sum(len(queue.locks) for queue in entity.queues())
            totals.size_bytes += entity.size_bytes()
        return totals

    def check(self, now_ms: int) -> None:
        """Compare all indexes with each other; an assertion fails when they do not agree."""
        for queue in self._queues.values():
            queue.check(now_ms)
        for link, opened in self._links.items():
            assert opened.link == link
            assert self._connections[link[0]].links[link] is opened
        assert sum(len(entity.links) for entity in self._entities) == len(self._links)


def _guid(token: bytes) -> str:
    return str(UUID(bytes_le=token)) if len(token) == 16 else token.hex()


def _refuse_link(command: ask.OpenSender | ask.OpenReceiver, error: ServiceBusError) -> Effect:
    return do.LinkRefused(command.link, error)


def _fail_settlement(command: ask.Complete, error: ServiceBusError) -> Effect | None:
    return None if command.reply_to is None else do.SettlementFailed(command.reply_to, error)


def _fail(command: ask.Peek, error: ServiceBusError) -> Effect:
    return do.Failed(command.reply_to, error)


def _cannot_fail(command: Command, error: ServiceBusError) -> NoReturn:
    raise AssertionError(f"{type(command).__name__} has nobody to tell: {error}") from error
