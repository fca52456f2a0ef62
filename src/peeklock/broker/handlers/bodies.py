"""Answers of the disk about bodies: a body was read, or bodies are damaged.

A message with a damaged body is dead-lettered without it. Its record still names the place of the damaged
body: the bytes stay for rescue as long as the dead letter does, and each start finds them damaged again, so
nothing more is stored. Readers get an empty body; the properties were in the payload and are lost too. A dead
letter without a body is not forwarded, since its next reader could not recognize it.
"""

from __future__ import annotations

from peeklock.broker.content import overlay as overlays
from peeklock.broker.entities.entities import Entities
from peeklock.broker.handlers.operations import Operations
from peeklock.broker.handlers.searching import Searching
from peeklock.broker.handlers.session_operations import SessionOperations
from peeklock.broker.queue import delivery, enqueue
from peeklock.broker.queue.cursor import Claim
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.queue.shared import Shared
from peeklock.broker.vocabulary import commands as ask
from peeklock.broker.vocabulary import effects as do
from peeklock.broker.vocabulary.addresses import NOT_NUMBERED
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, SESSION_STATES, MessageStored
from peeklock.broker.vocabulary.effects import LostBody
from peeklock.broker.vocabulary.errors import ServiceBusError, SessionLockLost
from peeklock.broker.vocabulary.message import ACTIVE, Message

_DESCRIPTION = "The body of the message was damaged on the disk of the broker."


class BodyOperations:
    """Handlers of the commands about bodies."""

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
        receivers, requests = self._shared.bodies.arrived(command.queue_id, command.position)
        for receiver in receivers:
            assert queue is not None, "a link goes with its entity"
            assert receiver.ready_queue is not None
            delivery.deliver(queue, receiver.ready_queue, out)
        for request in requests:
            # The connection must be there: the answer deletes.
            if request.reply_to.connection_id in self._shared.links.connections:
                self._go_on(request, out)
        self._searching.fetched(command, out)

    def _go_on(self, request: ask.ReceiveDeferred, out: Outcome) -> None:
        """Do a request that waited for bodies, or refuse it if its messages are gone."""
        out.attribute(request)
        try:
            self._operations.receive_deferred(request, out)
        except ServiceBusError as error:
            error.__traceback__ = None  # see `Namespace.apply`
            out.effects.append(do.Failed(request.reply_to, error))
            if type(error) is SessionLockLost:
                self._sessions.refused_session_lock(request, out)

    def lose_bodies(self, command: ask.LoseBodies, out: Outcome) -> None:
        lost = []
        for queue_id, position in command.messages:
            each = _lose(self._entities, queue_id, position, out)
            if each is not None:
                lost.append(each)
        out.effects.append(do.BodiesLost(command.reply_to, lost))


def _lose(entities: Entities, queue_id: int, position: int, out: Outcome) -> LostBody | None:
    """Dead-letter a message without its body; return None if that is done, or it is gone."""
    entity_id, sub_queue = divmod(queue_id, QUEUES_PER_ENTITY)
    if sub_queue == SESSION_STATES:
        return _lose_state(entities, entity_id, position, out)
    queue = entities.queues.get(queue_id)
    message = None if queue is None else queue.find(position)
    if queue is None or message is None or (queue.holds_dead_letters and overlays.is_bodiless(message)):
        return None
    lost = LostBody(queue.name, message.sequence_number, message.session_id)
    was_held = isinstance(message.lock, Lock)
    if isinstance(message.lock, Lock):
        queue.end(message.lock)
    elif isinstance(message.lock, Claim):
        assert queue.cursors is not None
        queue.cursors.take_out(message.lock, message)
    message.bare_offset = 0  # the empty body has no header
    overlay = overlays.with_reason(message.overlay, overlays.STORE_DAMAGED, _DESCRIPTION)
    if queue.holds_dead_letters:
        message.overlay = overlay
        out.changes.append(MessageStored(queue_id, message))
        if was_held and message.state is ACTIVE:
            queue.make_available(message)
    elif queue.dead_letters is not None:
        queue.dead_letter(message, overlay, out)
    else:
        _dead_letter_of_topic(entities, queue, message, overlay, out)
    out.touch(queue)
    return lost


def _dead_letter_of_topic(
    entities: Entities, topic: MessageQueue, message: Message, overlay: bytes | None, out: Outcome
) -> None:
    """Move a message of a topic to its transfer dead-letter queue, the only one it has."""
    entity = entities.of_queue(topic.queue_id)
    assert entity is not None
    transfers = entities.transfers_of(entity)
    out.dead_lettered(topic, message, overlay, transfers.name)
    topic.remove(message, out)
    moved = message.moved()
    moved.overlay = overlay
    out.arrived(transfers, moved, None)
    enqueue.store_dead_letter(transfers, moved, None, out)
    out.touch(transfers)


def _lose_state(entities: Entities, entity_id: int, position: int, out: Outcome) -> LostBody | None:
    """Clear a session state, which has no dead-letter queue."""
    entity = entities.by_id(entity_id)
    sessions = None if entity is None else entity.main.sessions
    record = None if sessions is None else sessions.states.find(position)
    if sessions is None or entity is None or record is None or record.session_id is None:
        return None
    session = sessions.get(record.session_id)
    if session is None or session.state is not record:
        return None
    sessions.lose_state(session, out)
    return LostBody(f"{entity.name} (session states)", NOT_NUMBERED, record.session_id)
