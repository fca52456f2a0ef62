"""Commands about links and connections: open, close, credit; the end of a connection and its locks."""

from __future__ import annotations

from collections.abc import Iterable

from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.queue import delivery
from peeklock.broker.queue.graces import Graces
from peeklock.broker.queue.lapsed_sessions import LapsedSession
from peeklock.broker.queue.links import AnyLink, Consumer, Producer
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_session import MessageSession
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Holder
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.commands import ReceiveMode
from peeklock.broker.vocabulary.errors import InvalidOperation, ServiceBusError
from peeklock.broker.vocabulary.events import EventType


class Attachments:
    """Handlers of commands about links and connections."""

    def __init__(self, entities: Entities, shared: Shared, graces: Graces) -> None:
        self._entities = entities
        self._shared = shared
        self._graces = graces
        self._links = shared.links

    def open_sender(self, command: ask.OpenSender, out: Outcome) -> None:
        entity, queue = self._entities.queue(command.address)
        entity.require_sending_to(queue)
        destination = None
        if command.destination is not None:
            target = self._entities.find(command.destination.path)
            target.require_target()
            destination = target.name
        self._links.add(Producer(command.link, queue.queue_id, entity.links))
        out.effects.append(
            do.SenderOpened(
                command.link,
                queue.queue_id,
                queue.message_size_bytes_max,
                self._entities.forwarding.reads_routing(queue, destination),
                takes_runs=destination is None and not queue.passes_on,
            )
        )

    def open_receiver(self, command: ask.OpenReceiver, out: Outcome) -> None:
        entity, queue = self._entities.queue(command.address)
        entity.require_receiving()
        _require_receivable(entity, queue, command.session)
        self._entities.require_room_for_receiver(entity)
        deletes = command.mode is ReceiveMode.RECEIVE_AND_DELETE
        receiver = Consumer(command.link, queue.queue_id, entity.links, command.name, deletes=deletes)
        if command.session is not None:
            assert queue.sessions is not None
            queue.accessed_at_ms = out.now_ms
            queue.sessions.accept(receiver, command.session, out)
            self._links.add(receiver)
            queue.serve(out)
            return
        receiver.ready_queue = queue.ready_queue
        self._links.add(receiver)
        out.effects.append(do.ReceiverOpened(command.link, queue.queue_id, queue.main.partitions is not None))

    def close_link(self, command: ask.CloseLink, out: Outcome) -> None:
        opened = self._links.by_link.get(command.link)
        if opened is None:
            return
        queue = None
        if isinstance(opened, Consumer):
            queue = self._entities.queues[opened.queue_id]
            queue.accessed_at_ms = out.now_ms
            self._release_session(opened, queue, out, counted=False)
        self._links.forget(opened)
        if queue is not None and queue.sessions is not None:
            queue.serve(out)

    def set_credit(self, command: ask.SetCredit, out: Outcome) -> None:
        receiver = self._links.by_link.get(command.link)
        if not isinstance(receiver, Consumer) or receiver.ready_queue is None:
            return  # it was detached by the broker
        receiver.deliveries_max = command.deliveries_max
        receiver.bytes_max = command.bytes_max
        queue = self._entities.queues[receiver.queue_id]
        queue.accessed_at_ms = out.now_ms
        receivers = receiver.ready_queue.receivers
        receivers.credit_changed(receiver)
        if command.drain:
            receivers.drain(receiver)
        delivery.deliver(queue, receiver.ready_queue, out)

    def drop_connection(self, command: ask.DropConnection, out: Outcome) -> None:
        now_ms = out.now_ms
        connection = self._links.connections.get(command.connection_id)
        if connection is None:
            return
        out.attribute_to_end(command.connection_id, broken=command.broken)
        touched: dict[int, MessageQueue] = {}
        for queue_id, token in command.undelivered:
            queue = self._entities.queues.get(queue_id)
            lock = None if queue is None else queue.locks.get(token)
            if queue is not None and lock is not None:
                queue.give_back(lock, out, counted=False, why=EventType.RELEASED)
                touched[queue_id] = queue
        holders = [connection.locks]
        for opened in list(connection.links.values()):
            if isinstance(opened, Consumer):
                queue = self._entities.queues[opened.queue_id]
                queue.accessed_at_ms = now_ms
                touched[queue.queue_id] = queue
                self._release_session(opened, queue, out, counted=command.broken)
                holders.append(opened.locks)
            self._links.forget(opened)
        del self._links.connections[command.connection_id]
        if command.broken:
            self._begin_grace(command.connection_id, holders, out)
        for queue in touched.values():
            queue.serve(out)

    def _begin_grace(self, connection_id: int, holders: list[Holder], out: Outcome) -> None:
        left = [holder for holder in holders if holder]  # those of sessions are empty by now
        if left:
            out.connection_lost()
            self._graces.begin(connection_id, left, out.now_ms)

    def detach_all(self, opened: Iterable[AnyLink], error: ServiceBusError, out: Outcome) -> None:
        """Detach links for a reason; refuse those that wait for a session."""
        for link in list(opened):
            waits = isinstance(link, Consumer) and link.ready_queue is None
            if isinstance(link, Consumer):
                queue = self._entities.queues[link.queue_id]
                self._release_session(link, queue, out, counted=False)
            self._links.forget(link)
            out.effects.append(do.LinkRefused(link.link, error) if waits else do.DetachLink(link.link, error))

    def _release_session(
        self, receiver: Consumer, queue: MessageQueue, out: Outcome, *, counted: bool
    ) -> None:
        """End the session or the wait of a receiver: a session is released with its link (L-13)."""
        if queue.sessions is None:
            return
        if isinstance(receiver.ready_queue, MessageSession):
            queue.sessions.release(receiver.ready_queue, out, counted=counted)
        elif isinstance(receiver.ready_queue, LapsedSession):
            queue.sessions.lapsed.forget(receiver)
        else:
            queue.sessions.cancel(receiver)

    def check(self) -> None:
        """Assert that the indexes agree."""
        self._links.check()
        known = sum(len(entity.links) for entity in self._entities)
        coordinators = sum(
            not isinstance(opened, Producer | Consumer) for opened in self._links.by_link.values()
        )
        assert known + coordinators == len(self._links.by_link)


def _require_receivable(entity: Entity, queue: MessageQueue, session: ask.SessionRequest | None) -> None:
    """Check that a queue can be received from in this way. Source: wire contract 2.1, 2.6, 10.3."""
    entity.require_receivable(queue)
    if queue is entity.main and queue.forward_to is not None:
        raise InvalidOperation(
            f"It is not possible to receive from '{entity.name}': it forwards to '{queue.forward_to}'."
        )
    if session is None and queue.sessions is not None:
        raise InvalidOperation(
            "It is not possible for an entity that requires sessions to create a non-sessionful message "
            f"receiver. Entity: '{queue.name}'."
        )
    if session is not None and queue.sessions is None:
        raise InvalidOperation(
            f"It is not possible to create a session receiver for '{queue.name}': it does not require "
            f"sessions."
        )
