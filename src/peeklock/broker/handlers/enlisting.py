"""Enlisting: commands of a transaction, checked when they are enlisted and again at the commit, which does
them.

Source: wire contract 6, C12, C30; semantics F-03.
"""

from __future__ import annotations

from collections.abc import Sequence

from peeklock.broker.entities.entities import Entities
from peeklock.broker.entities.entity import Entity
from peeklock.broker.handlers import scheduled
from peeklock.broker.handlers.enlisted import (
    Cancelled,
    Enlisted,
    Numbered,
    StateSet,
    WithMessages,
    messages_of,
)
from peeklock.broker.handlers.operations import Operations, Plain
from peeklock.broker.handlers.session_operations import (
    held_session,
    require_state,
    state_growth,
    with_sessions,
)
from peeklock.broker.queue import enqueue
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_session import MessageSession
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary.errors import EntityDeleted, SessionLockLost


class Enlisting:
    """Access of transactions to the entities."""

    def __init__(self, entities: Entities, operations: Operations, shared: Shared) -> None:
        self._entities = entities
        self._queues = entities.queues
        self._operations = operations
        self._shared = shared

    def kept(
        self, command: Plain | ask.Schedule | ask.CancelScheduled | ask.SetSessionState, now_ms: int
    ) -> Enlisted:
        """Return what a transaction keeps of a command; the messages of a schedule are not numbered yet.

        Raises: EntityNotFound; of a state, also SessionLockLost and what forbids to receive.
        """
        if isinstance(command, ask.Schedule):
            _, queue = self._entities.queue(command.address)
            return Numbered(queue.queue_id, command.messages, command.reply_to)
        if isinstance(command, ask.CancelScheduled):
            _, queue = self._entities.queue(command.address)
            return Cancelled(queue.queue_id, list(dict.fromkeys(command.sequence_numbers)), command.reply_to)
        if isinstance(command, ask.SetSessionState):
            queue, _ = with_sessions(self._entities, command.address)
            session = held_session(queue, command.session_id, command.reply_to, now_ms)
            lock = session.lock
            assert lock is not None
            return StateSet(queue.queue_id, lock.session_id, lock, command.state, command.reply_to)
        return command

    def queue_of(self, command: Enlisted) -> MessageQueue:
        """Return the queue of a checked command."""
        if isinstance(command, ask.UpdateDisposition):
            return self._entities.readable(command.address)
        return self._queues[command.queue_id]

    def entity_of(self, queue_id: int) -> tuple[Entity, MessageQueue]:
        """Return the entity of a checked command, and its queue."""
        entity = self._entities.of_queue(queue_id)
        assert entity is not None
        return entity, self._queues[queue_id]

    def other_entity(self, entity: Entity, name: str) -> Entity | None:
        """Return the top-level entity of a name, None if it is an entity's own or does not exist."""
        found = self._entities.target(name)
        return None if found is (entity.topic or entity) else found

    def check(self, command: Enlisted, now_ms: int) -> None:
        """Raise what the command would raise; change nothing."""
        if isinstance(command, Numbered):
            self._operations.check_scheduled(command.queue_id, command.messages)
        elif isinstance(command, Cancelled):
            scheduled.check_cancel(*self._existing(command.queue_id), command.numbers)
        elif isinstance(command, StateSet):
            queue, session = self._session_of(command, now_ms)
            require_state(self._entities, self._shared, queue, session, command.state)
        else:
            self._operations.check(command, now_ms)

    def locks_of(self, command: Enlisted, now_ms: int) -> list[Lock]:
        """Return the locks that a command settles. Raises: see `Operations.locks_of`."""
        if isinstance(command, Numbered | Cancelled | StateSet):
            return []
        return self._operations.locks_of(command, now_ms)

    def check_all(self, commands: Sequence[Enlisted], now_ms: int) -> list[Enlisted]:
        """Raise what all of these together would raise, their total size included; change nothing.

        Returns: what is to be done: of several states of a session the last one.
        """
        states: dict[tuple[int, str], StateSet] = {}
        sizes: dict[int, int] = {}
        for command in commands:
            self.check(command, now_ms)
            if isinstance(command, StateSet):
                states[command.queue_id, command.session_id] = command  # the last one counts
            elif isinstance(command, WithMessages):
                queue = self._queues[command.queue_id]
                destination = None if isinstance(command, Numbered) else command.destination
                path = None if destination is None else destination.path
                chain = self._entities.forwarding.chain(queue, path)
                entity = chain[-1] if chain else self._entities.of_queue(command.queue_id)
                assert entity is not None
                size_bytes = sum(message.size_bytes for message, _ in messages_of(command))
                sizes[entity.entity_id] = sizes.get(entity.entity_id, 0) + size_bytes
        for state in states.values():
            queue, session = self._session_of(state, now_ms)
            entity, _ = self.entity_of(queue.queue_id)
            growth_bytes = state_growth(session, state.state)
            sizes[entity.entity_id] = sizes.get(entity.entity_id, 0) + growth_bytes
        for entity_id, size_bytes in sizes.items():
            entity_found = self._entities.by_id(entity_id)
            assert entity_found is not None
            if size_bytes:
                self._entities.require_room(entity_found, size_bytes)
        last = {id(state) for state in states.values()}
        return [each for each in commands if not isinstance(each, StateSet) or id(each) in last]

    def perform(self, command: Enlisted, partition: int | None, out: Outcome) -> None:
        """Do a command that was checked just now, without an answer.

        Args:
            partition: of the transaction, in a partitioned entity.
        """
        if isinstance(command, Numbered):
            queue = self._queues[command.queue_id]
            for message, sections in command.messages:
                enqueue.store_numbered(queue, message, sections, out)
        elif isinstance(command, Cancelled):
            scheduled.cancel(self._queues[command.queue_id], command.numbers, out)
        elif isinstance(command, StateSet):
            queue, session = self._session_of(command, out.now_ms)
            assert queue.sessions is not None
            queue.accessed_at_ms = out.now_ms
            queue.sessions.set_state(session, command.state, out)
        else:
            self._operations.perform(command, partition, out)

    def _existing(self, queue_id: int) -> tuple[Entity, MessageQueue]:
        """Return an entity and its queue. Raises: EntityDeleted."""
        queue = self._queues.get(queue_id)
        entity = self._entities.of_queue(queue_id)
        if queue is None or entity is None:
            raise EntityDeleted(f"the entity of queue id {queue_id} was deleted")
        return entity, queue

    def _session_of(self, command: StateSet, now_ms: int) -> tuple[MessageQueue, MessageSession]:
        """Return the session whose state a transaction sets.

        Raises: SessionLockLost, also if the session has another lock by now; and what forbids to receive.
        """
        entity, queue = self._existing(command.queue_id)
        entity.require_receiving()
        session = held_session(queue, command.session_id, command.reply_to, now_ms)
        if session.lock is not command.lock:
            raise SessionLockLost(
                f"session '{command.session_id}' of '{queue.name}' has another lock than when its state was "
                f"set in the transaction"
            )
        return queue, session
