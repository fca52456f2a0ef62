"""Messages whose bodies are damaged on the disk: each goes to the dead-letter queue without its body.

Owns: what becomes of such a message, whatever holds it. Must not know: how damage is found, where bodies are.

The record that is dead-lettered names the place of the damaged body still: the bytes stay there for rescue as
long as the dead letter does, and each start finds them damaged again. So nothing more has to be stored. What
is handed out in the place of the body is an empty one; properties and application properties stood in the
payload and are gone with it. A dead letter without a body is not forwarded, since whoever gets it could not
tell.
"""

from __future__ import annotations

from typing import Final

from peeklock.broker.content import overlay as overlays
from peeklock.broker.entities.entities import Entities
from peeklock.broker.queue import enqueue
from peeklock.broker.queue.cursor import Claim
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.vocabulary.changes import QUEUES_PER_ENTITY, SESSION_STATES, MessageStored
from peeklock.broker.vocabulary.effects import LostBody
from peeklock.broker.vocabulary.message import ACTIVE, Message

REASON: Final = overlays.STORE_DAMAGED
DESCRIPTION: Final = "The body of the message was damaged on the disk of the broker."


def lose(entities: Entities, queue_id: int, position: int, out: Outcome) -> LostBody | None:
    """Dead-letter a message without its body; None when it is gone, or is such a dead letter already."""
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
    message.bare_offset = 0  # nothing of what was sent stands before the empty body
    overlay = overlays.with_reason(message.overlay, REASON, DESCRIPTION)
    if queue.holds_dead_letters:
        message.overlay = overlay
        out.changes.append(MessageStored(queue_id, message))
        if was_held and message.state is ACTIVE:
            queue.return_to_line(message)
    elif queue.dead_letters is not None:
        queue.dead_letter(message, overlay, out)
    else:
        _dead_letter_of_topic(entities, queue, message, overlay, out)
    out.touch(queue)
    return lost


def _dead_letter_of_topic(
    entities: Entities, topic: MessageQueue, message: Message, overlay: bytes | None, out: Outcome
) -> None:
    """Take what waits in a topic to its transfer dead-letter queue: it has no other."""
    entity = entities.of_queue(topic.queue_id)
    assert entity is not None
    transfers = entities.transfers_of(entity)
    out.dead_lettered(topic, message, overlay, transfers.name)
    topic.remove(message, out)
    moved = message.moved()
    moved.overlay = overlay
    out.arrived(transfers, moved, None)
    enqueue.take_in(transfers, moved, None, out)
    out.touch(transfers)


def _lose_state(entities: Entities, entity_id: int, position: int, out: Outcome) -> LostBody | None:
    """Clear the state of a session: a state has no dead-letter queue to go to."""
    entity = entities.by_id(entity_id)
    sessions = None if entity is None else entity.main.sessions
    record = None if sessions is None else sessions.states.find(position)
    if sessions is None or entity is None or record is None or record.session_id is None:
        return None
    session = sessions.get(record.session_id)
    if session is None or session.state is not record:
        return None
    sessions.lose_state(session, out)
    return LostBody(f"{entity.name} (session states)", 0, record.session_id)
