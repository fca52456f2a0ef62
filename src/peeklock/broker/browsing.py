"""Looking through a queue by sequence number: browse, oldest first, by one number.

Owns: in which order and how much is found. Must not know: how messages are stored, locked or removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter

from peeklock.broker.message import NEVER_MS, Message, MessageState, MessageView
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.peek_lock import Claim


def browse(
    queue: MessageQueue, from_number: int, count_max: int, bytes_max: int, session_id: str | None = None
) -> list[MessageView]:
    """Show messages in any state in the order of their numbers, at least one if there is one (S-11)."""
    views: list[MessageView] = []
    start = queue.key_to_browse_from(from_number)
    if session_id is None:
        found = _in_order_of_number(queue, start)
    else:
        found = _of_session(queue, session_id, start)
    for message in islice(found, max(count_max, 0)):
        bytes_max -= message.size_bytes + len(message.overlay or b"")
        if views and bytes_max < 0:
            break
        views.append(view_of(message))
    return views


def view_of(message: Message) -> MessageView:
    """Show a message to who only looks at it."""
    # Only the message's own time-to-live is shown to who looks (E-05).
    ttl_ms = message.ttl_ms
    if message.expires_at_ms != NEVER_MS:
        ttl_ms = message.expires_at_ms - message.enqueued_at_ms
    held = message.lock
    cursor = held.cursor.name if isinstance(held, Claim) else None
    return MessageView(message, None, 0, message.delivery_count, ttl_ms, message.state, cursor=cursor)


def oldest_unlocked(
    queue: MessageQueue,
    count_max: int,
    enqueued_before_ms: int,
    now_ms: int,
    session_id: str | None = None,
) -> list[Message]:
    """Find active messages enqueued at or before a time, oldest first: neither locked nor expired."""
    found: list[Message] = []
    # Sequence numbers and enqueued times rise together, in a dead-letter queue too.
    candidates: Iterable[Message] = queue.active if queue.numbers is None else queue.numbers
    if session_id is not None:
        candidates = _of_session(queue, session_id)
    for message in candidates:
        if message.state is not MessageState.ACTIVE:
            continue
        if message.enqueued_at_ms > enqueued_before_ms or len(found) >= count_max:
            break
        if message.lock is None and not queue.has_expired(message, now_ms):
            found.append(message)
    return found


def scheduled_by_number(queue: MessageQueue, number: int) -> Message | None:
    """Find the scheduled message with this sequence number."""
    message = queue.by_number(number)
    return None if message is None or message.state is not MessageState.SCHEDULED else message


def deferred_by_number(queue: MessageQueue, number: int) -> Message | None:
    """Find the deferred message with this sequence number, unless it is locked."""
    message = queue.by_number(number)
    if message is None or message.state is not MessageState.DEFERRED or message.lock is not None:
        return None
    return message


def _of_session(queue: MessageQueue, session_id: str, key: int = 0) -> Iterator[Message]:
    """Go through the messages of one session from a key on, in the order of their numbers: all are in one
    partition."""
    session = None if queue.sessions is None else queue.sessions.get(session_id)
    if session is None:
        return iter(())
    if queue.partitions is None or queue.numbers is None:
        return session.messages(queue, key)
    first = queue.numbers.first_from(key)
    if first is None:
        return iter(())
    beyond = queue.partitions.of_number(first.sequence_number) - queue.partitions.of_key(session_id.encode())
    if beyond > 0:
        return iter(())
    return session.messages(queue, 0 if beyond else first.position)


def _in_order_of_number(queue: MessageQueue, key: int) -> Iterator[Message]:
    if queue.numbers is not None:
        return queue.numbers.iterate(key)
    tables = [table for table in (queue.active, queue.deferred, queue.scheduled) if len(table)]
    if len(tables) == 1:
        return tables[0].iterate(key)
    return merge(*(table.iterate(key) for table in tables), key=attrgetter("position"))
