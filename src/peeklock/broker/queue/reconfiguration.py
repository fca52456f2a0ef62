"""Settings applied to a queue in use (A-07), and the locks that end with the old ones (L-12)."""

from __future__ import annotations

from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.vocabulary.descriptions import Description
from peeklock.broker.vocabulary.events import EventType
from peeklock.broker.vocabulary.message import ACTIVE


def configure(queue: MessageQueue, description: Description, default_ttl_ms: int) -> None:
    """Apply the settings of an entity.

    Args:
        default_ttl_ms: the entity's or, if it is shorter, its topic's (E-07).
    """
    queue.lock_duration_ms = description.lock_duration_ms
    forward_to = description.forward_dead_lettered_to if queue.holds_dead_letters else description.forward_to
    if queue.forward_to != forward_to:
        queue.forward_to = forward_to
        queue.passes_on = forward_to is not None or queue.fan_out is not None
        queue.shared.forwarding.forget(queue.queue_id)
        queue.shared.forwarding.routes_changed()
        queue.forward_stored_from(0)
    if queue.duplicates is not None:
        queue.duplicates.window_ms = description.duplicate_window_ms
        queue.set_timer()
    if queue.expiry is None:
        return
    queue.max_delivery_count = description.max_delivery_count
    queue.dead_letter_on_expiry = description.dead_lettering_on_expiration
    queue.default_ttl_ms = default_ttl_ms
    if queue.expiry.default_ttl_ms != default_ttl_ms:
        queue.expiry.change_default(default_ttl_ms)
        # A message that was skipped as expired may be receivable again.
        assert not queue.locks, "locks are dropped before settings change (L-12)"
        queue.forward_stored_from(0)
        queue.ready_queue.rescan()
        if queue.sessions is not None:
            queue.sessions.rescan()
        queue.wake(queue.shared.wall.core_ms(queue.expiry.next_ms()))


def drop_locks(queue: MessageQueue, out: Outcome) -> None:
    """End all locks, not counted: the entity changed (L-12). Expired messages are left to the sweep."""
    for lock in list(queue.locks.values()):
        out.happened(EventType.RELEASED, queue, lock.message, reason="the entity was changed")
        queue.end(lock)
        if lock.message.state is ACTIVE:
            queue.make_available(lock.message)
    if queue.sessions is not None:
        queue.sessions.drop_locks(out)
