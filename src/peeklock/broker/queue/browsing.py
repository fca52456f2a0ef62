"""Reading a queue by sequence number: browse, oldest first, one number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from operator import attrgetter, itemgetter
from typing import Final

from peeklock.broker.queue.cursor import Claim
from peeklock.broker.queue.message_queue import MessageQueue
from peeklock.broker.queue.message_session import MessageSession
from peeklock.broker.queue.message_table import MessageTable
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.queue.sequence_numbers import PARTITION_COUNT, Partitions, order_to_browse_from
from peeklock.broker.queue.wall_clock import WallClock
from peeklock.broker.vocabulary.addresses import SequenceNumber
from peeklock.broker.vocabulary.message import NEVER_MS, Message, MessageState, MessageView

PASSED_OVER_MAX: Final = 5_000
"""Messages of other states that a browse of one state passes over: 2 ms of work. Our choice."""


def browse(
    queue: MessageQueue,
    from_number: SequenceNumber,
    count_max: int,
    bytes_max: int,
    session_id: str | None = None,
    state: MessageState | None = None,
) -> tuple[list[MessageView], SequenceNumber | None]:
    """Return messages in any state or in one, of a topic those scheduled, by ascending number; at least one
    if there is one (S-11). Also return the number to go on from, if too many of other states are passed over.
    """
    views: list[MessageView] = []
    start = key_to_browse_from(queue, from_number)
    if session_id is not None:
        found = _of_session(queue, session_id, start)
    elif state is not None:
        found = _with_state(queue, state, start)
    else:
        found = in_order_of_number(queue, start)
    if queue.fan_out is not None:  # what fell due is on its way to the subscriptions
        found = _scheduled(found) if state in (None, MessageState.SCHEDULED) else iter(())
    passed_over = 0
    for message in found:
        if len(views) >= count_max:
            break
        if state is not None and message.state is not state:
            passed_over += 1
            if passed_over > PASSED_OVER_MAX:
                return views, message.sequence_number
            continue
        bytes_max -= message.size_bytes + len(message.overlay or b"")
        if views and bytes_max < 0:
            break
        views.append(seen_in(queue, message))
    return views, None


def _with_state(queue: MessageQueue, state: MessageState, key: int) -> Iterator[Message]:
    """Return messages from a key on, by ascending number: all in a state, and maybe others among them."""
    tables = {
        MessageState.ACTIVE: queue.active,
        MessageState.DEFERRED: queue.deferred,
        MessageState.SCHEDULED: queue.scheduled,
    }
    table = tables[state]
    if queue.numbers is None:
        return table.iterate(key)
    if len(table) > PASSED_OVER_MAX:  # too many to be sorted
        return queue.numbers.iterate(key)
    found = [(queue.key_of(message.sequence_number), message) for message in table]
    found.sort(key=itemgetter(0))
    return (message for at, message in found if at >= key)


def _scheduled(messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        if message.state is MessageState.SCHEDULED:
            yield message


def seen_in(queue: MessageQueue, message: Message) -> MessageView:
    """Return the view of a message that browses its queue."""
    view = view_of(message, queue.shared.wall)
    view.of_session = queue.sessions is not None and message.state is MessageState.DEFERRED
    return view


def view_of(message: Message, wall: WallClock) -> MessageView:
    """Return the view of a message without a lock of one's own."""
    # It shows the message's own time-to-live alone (E-05).
    ttl_ms = message.ttl_ms
    if message.expires_at_ms != NEVER_MS:
        ttl_ms = message.expires_at_ms - message.enqueued_at_ms
    held = message.lock
    locked_until_ms, cursor = 0, None
    if isinstance(held, Claim):
        cursor = held.cursor.name
    elif isinstance(held, Lock):
        locked_until_ms = wall.shown_ms(held.until_ms())
    count, state, overlay = message.delivery_count, message.state, message.overlay
    return MessageView(message, None, locked_until_ms, count, ttl_ms, state, overlay, cursor=cursor)


def oldest_unlocked(
    queue: MessageQueue, count_max: int, enqueued_before_ms: int, now_ms: int, session_id: str | None = None
) -> list[Message]:
    """Return active messages enqueued at or before a time, oldest first: neither locked nor expired."""
    found: list[Message] = []
    candidates: Iterable[Message] = ()
    if session_id is None:
        candidates = _as_enqueued(queue)
    elif queue.sessions is not None and (session := queue.sessions.get(session_id)) is not None:
        candidates = session.messages(queue)
    for message in candidates:
        if message.state is not MessageState.ACTIVE:
            continue
        if message.enqueued_at_ms > enqueued_before_ms or len(found) >= count_max:
            break
        if message.lock is None and not queue.has_expired(message, now_ms):
            found.append(message)
    return found


def _as_enqueued(queue: MessageQueue) -> Iterable[Message]:
    """Return the messages of a queue by enqueued time; deferred ones may be among them."""
    if queue.numbers is None or queue is queue.main:
        return queue.active
    # The position of a dead letter is the order of its arrival. Number and enqueued time rise together in a
    # partition.
    partitions = queue.main.partitions
    if partitions is None:
        return queue.numbers
    return merge(
        *(_of_partition(queue.numbers, partitions, each) for each in range(PARTITION_COUNT)),
        key=attrgetter("enqueued_at_ms"),
    )


def _of_partition(numbers: MessageTable, partitions: Partitions, partition: int) -> Iterator[Message]:
    for message in numbers.iterate(partitions.first_key(partition)):
        if partitions.of_number(message.sequence_number) != partition:
            return
        yield message


def key_to_browse_from(queue: MessageQueue, number: SequenceNumber) -> int:
    """Return the lowest key of this number and higher ones."""
    main = queue.main
    if main.partitions is not None:
        return main.partitions.key_to_browse_from(number)
    return order_to_browse_from(number, main.next_position)


def message_by_number(queue: MessageQueue, number: SequenceNumber) -> Message | None:
    """Return the message with this sequence number, in any state."""
    if number < 0:
        return None
    key = queue.key_of(number)
    return queue.find(key) if queue.numbers is None else queue.numbers.get(key)


def scheduled_by_number(queue: MessageQueue, number: SequenceNumber) -> Message | None:
    """Return the scheduled message with this sequence number."""
    message = message_by_number(queue, number)
    return None if message is None or message.state is not MessageState.SCHEDULED else message


def deferred_by_number(queue: MessageQueue, number: SequenceNumber) -> Message | None:
    """Return the deferred message with this sequence number, unless it is locked."""
    message = message_by_number(queue, number)
    if message is None or message.state is not MessageState.DEFERRED or message.lock is not None:
        return None
    return message


def _of_session(queue: MessageQueue, session_id: str, key: int) -> Iterator[Message]:
    """Return the messages of one session from a key on, by ascending number."""
    session = None if queue.sessions is None else queue.sessions.get(session_id)
    if session is None:
        return iter(())
    if queue.partitions is None or queue.numbers is None:
        return session.messages(queue, key)
    first = queue.numbers.first_from(key)
    return iter(()) if first is None else _by_partition(queue, queue.partitions, session, first)


def _by_partition(
    queue: MessageQueue, partitions: Partitions, session: MessageSession, first: Message
) -> Iterator[Message]:
    """Yield the messages of a session from one on. They are in one partition, except for those sent when each
    spelling was a separate session."""
    begins_in = partitions.of_number(first.sequence_number)
    for partition in range(begins_in, PARTITION_COUNT):
        if not session.partitions >> partition & 1:
            continue
        found = session.messages(queue, first.position if partition == begins_in else 0)
        if session.partitions == 1 << partition:
            yield from found
            continue
        for message in found:
            if partitions.of_number(message.sequence_number) == partition:
                yield message


def in_order_of_number(queue: MessageQueue, key: int) -> Iterator[Message]:
    """Return all messages of a queue from a key on, by ascending number."""
    if queue.numbers is not None:
        return queue.numbers.iterate(key)
    tables = [table for table in (queue.active, queue.deferred, queue.scheduled) if len(table)]
    if len(tables) == 1:
        return tables[0].iterate(key)
    return merge(*(table.iterate(key) for table in tables), key=attrgetter("position"))
