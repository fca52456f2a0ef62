"""What the disk says of bodies: that one was read, or that some are damaged.

Owns: who goes on with that. Must not know: how a body is read, how damage is found.
"""

from __future__ import annotations

from peeklock.broker.entities.entities import Entities
from peeklock.broker.handlers import lost_bodies
from peeklock.broker.handlers.operations import Operations
from peeklock.broker.handlers.searching import Searching
from peeklock.broker.handlers.session_operations import SessionOperations
from peeklock.broker.queue import delivery
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.errors import ServiceBusError, SessionLockLost


class BodyOperations:
    """The handlers of the commands that answer what was asked of the disk."""

    def __init__(
        self,
        entities: Entities,
        shared: Shared,
        operations: Operations,
        sessions: SessionOperations,
        searching: Searching,
    ) -> None:
        self._entities = entities
        self._shared = shared
        self._operations = operations
        self._sessions = sessions
        self._searching = searching

    def fetched(self, command: ask.Fetched, out: Outcome) -> None:
        queue = self._entities.queues.get(command.queue_id)
        if queue is not None:
            self._entities.forwarding.fetched(queue, command.position, command.payload)
        receivers, requests = self._shared.bodies.came(command.queue_id, command.position)
        for receiver in receivers:
            assert queue is not None, "a link goes with its entity"
            assert receiver.ready_queue is not None
            delivery.deliver(queue, receiver.ready_queue, out)
        for request in requests:
            # Without its connection nobody would get what is deleted.
            if request.reply_to.connection_id in self._shared.links.connections:
                self._go_on(request, out)
        self._searching.fetched(command, out)

    def _go_on(self, request: ask.ReceiveDeferred, out: Outcome) -> None:
        """Do a request that waited for bodies, or refuse it: what it asks for may be gone meanwhile."""
        out.attribute(request)
        try:
            self._operations.receive_deferred(request, out)
        except ServiceBusError as error:
            error.__traceback__ = None  # as in `Namespace.apply`
            out.effects.append(do.Failed(request.reply_to, error))
            if type(error) is SessionLockLost:
                self._sessions.refused_session_lock(request, out)

    def lose_bodies(self, command: ask.LoseBodies, out: Outcome) -> None:
        lost = []
        for queue_id, position in command.messages:
            each = lost_bodies.lose(self._entities, queue_id, position, out)
            if each is not None:
                lost.append(each)
        out.effects.append(do.BodiesLost(command.reply_to, lost))
