"""Who is attached: links and connections, their credit, and what their end means.

Owns: the registry of links. Must not know: what is sent or settled over them.
"""

from __future__ import annotations

from peeklock.broker import commands as ask
from peeklock.broker import effects as do
from peeklock.broker.changes import Change
from peeklock.broker.commands import ReceiveMode
from peeklock.broker.effects import Effect
from peeklock.broker.entities import Entities, Entity
from peeklock.broker.errors import InvalidOperation, ServiceBusError
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.receivers import Connection, ReceiverLink, SenderLink


class Attachments:
    """All links of a namespace, by name and by connection."""

    def __init__(self, entities: Entities) -> None:
        self.links: dict[ask.Link, SenderLink | ReceiverLink] = {}
        self.connections: dict[int, Connection] = {}
        self._entities = entities

    def open_sender(
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

    def open_receiver(
        self, command: ask.OpenReceiver, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        entity, queue = self._entities.queue(command.address)
        entity.require_receiving()
        deletes = command.mode is ReceiveMode.RECEIVE_AND_DELETE
        self._attach(entity, ReceiverLink(command.link, queue.queue_id, deletes=deletes))
        effects.append(do.ReceiverOpened(command.link, queue.queue_id, queue.message_size_bytes_max))

    def _attach(self, entity: Entity, opened: SenderLink | ReceiverLink) -> None:
        assert opened.link not in self.links, "a link was opened twice"
        self.links[opened.link] = opened
        entity.links[opened.link] = opened
        self.connection(opened.link[0]).links[opened.link] = opened

    def connection(self, connection_id: int) -> Connection:
        connection = self.connections.get(connection_id)
        if connection is None:
            connection = self.connections[connection_id] = Connection()
        return connection

    def _detach(self, opened: SenderLink | ReceiverLink) -> None:
        """Forget a link everywhere; the locks taken over it stay until they lapse."""
        del self.links[opened.link]
        del self.connections[opened.link[0]].links[opened.link]
        entity = self._entities.of_queue(opened.queue_id)
        if entity is not None:
            del entity.links[opened.link]
        if isinstance(opened, ReceiverLink):
            queue = self._entities.queues.get(opened.queue_id)
            if queue is not None:
                queue.receivers.remove(opened)

    def close_link(
        self, command: ask.CloseLink, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        opened = self.links.get(command.link)
        if opened is not None:
            self._detach(opened)

    def set_credit(
        self, command: ask.SetCredit, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        receiver = self.links.get(command.link)
        if not isinstance(receiver, ReceiverLink):
            return  # detached by us meanwhile
        receiver.deliveries_max = command.deliveries_max
        receiver.bytes_max = command.bytes_max
        queue = self._entities.queues[receiver.queue_id]
        queue.accessed_at_ms = now_ms
        queue.receivers.credit_changed(receiver)
        if command.drain:
            queue.receivers.drain(receiver)
        queue.deliver(now_ms, changes, effects)

    def drop_connection(
        self, command: ask.DropConnection, now_ms: int, changes: list[Change], effects: list[Effect]
    ) -> None:
        connection = self.connections.get(command.connection_id)
        if connection is None:
            return
        dropped = list(connection.locks.values())
        for opened in list(connection.links.values()):
            if isinstance(opened, ReceiverLink):
                dropped.extend(opened.locks.values())
            self._detach(opened)
        del self.connections[command.connection_id]
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

    def detach_all(
        self,
        opened: list[SenderLink] | list[ReceiverLink] | list[SenderLink | ReceiverLink],
        error: ServiceBusError,
        effects: list[Effect],
    ) -> None:
        for link in opened:
            self._detach(link)
            effects.append(do.DetachLink(link.link, error))

    def check(self) -> None:
        """Compare the indexes with each other; an assertion fails when they do not agree."""
        for link, opened in self.links.items():
            assert opened.link == link
            assert self.connections[link[0]].links[link] is opened
            if isinstance(opened, ReceiverLink):
                assert opened.waiting == opened.has_credit()
        assert sum(len(entity.links) for entity in self._entities) == len(self.links)
        assert sum(len(connection.links) for connection in self.connections.values()) == len(self.links)
