"""Enqueueing: a message is numbered, then stored, scheduled, or passed on.

`operations` decides before who is refused.
Source: semantics S-01 to S-07, D-01, E-01, F-01.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from peeklock.amqp.messaging import Sections
from peeklock.broker.content import overlay as overlays
from peeklock.broker.content.routing import with_id
from peeklock.broker.queue.outcome import Outcome
from peeklock.broker.queue.sequence_numbers import SEQUENCE_NUMBER_MAX, number_of
from peeklock.broker.queue.session_ids import folded
from peeklock.broker.vocabulary.changes import MessageStored, NumbersIssued
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.events import NUMBERED_AHEAD, EventType
from peeklock.broker.vocabulary.message import SHARED, SHARED_MAX, Message, MessageState, Routing

if TYPE_CHECKING:
    from peeklock.broker.queue.duplicates import Duplicates
    from peeklock.broker.queue.message_queue import MessageQueue
    from peeklock.broker.vocabulary.addresses import SequenceNumber

COPIES_MAX = 2_000
"""Copies by topics in one command, some 10 ms of work. Further messages are pending, for `advance`."""

FORWARDED_COPIES_MAX = 1_000
"""Copies and forwards in one call, 3 to 5 ms, after which no forward begins: the message is pending in its
subscription or topic. The last forward may become as many copies as a topic has subscriptions."""

ACTIVATION_LAG_MS: Final = 1_000
"""A message that is activated so late is enqueued at that time, not at the scheduled one (S-07)."""


def store(
    queue: MessageQueue,
    message: Message,
    sections: Sections | None,
    out: Outcome,
    *,
    turn: int | None = None,
    partition: int | None = None,
    forward_to: str | None = None,
) -> SequenceNumber:
    """Store an arriving message, at once or scheduled, or pass it on; return its sequence number.

    A duplicate is dropped, and the number is that of the first message (D-01, S-01).

    Args:
        sections: None for a message whose body is stored already.
        turn: the partition of a message without a key, when the caller has chosen one.
        partition: that of its transaction, for a message without a partition key; goes before its id.
        forward_to: send it via the queue to this entity, which checks its id and schedules it.
    """
    now_ms = out.now_ms
    routing = message.routing
    instant_ms = now_ms + queue.shared.wall.due_ahead_ms
    if sections is not None and sections.lacks_message_id:
        sections = _given_id(queue, message, sections)
    digest = None
    duplicates = queue.duplicates
    if duplicates is not None and routing is not None and forward_to is None:
        digest = _digest(queue, duplicates, routing)
        first_number = None if digest is None else duplicates.first_number(digest, now_ms)
        if first_number is not None:
            out.duplicate_dropped(queue, message, first_number, sections)
            return first_number
    number = _take_position(queue, message)
    if queue.partitions is not None:
        key = None if routing is None else _key(queue, routing, via=forward_to is not None)
        number = queue.partitions.take(_partition_of(queue, routing, key, turn, partition))
    message.sequence_number = number
    if message.hops:
        out.passed_in(queue, message)
    else:
        message.enqueued_sequence_number = number
        out.sent(queue, message)
    scheduled_at_ms = message.scheduled_at_ms
    waits = scheduled_at_ms is not None and scheduled_at_ms > instant_ms and forward_to is None
    if digest is not None:
        assert duplicates is not None
        out.changes.append(duplicates.note(digest, number, now_ms, instant_ms))
        if duplicates.count == 1:
            queue.set_timer()
        if waits:
            duplicates.waiting[number] = digest
    if waits:
        _schedule(queue, message, sections, instant_ms, out)
    elif queue.passes_on or forward_to is not None:
        _pass_on_arriving(queue, message, sections, instant_ms, out, forward_to)
    else:
        _enqueue(queue, message, sections, instant_ms, out)
        out.arrived(queue, message, sections)
    return number


def _pass_on_arriving(
    queue: MessageQueue,
    message: Message,
    sections: Sections | None,
    at_ms: int,
    out: Outcome,
    forward_to: str | None = None,
) -> None:
    """Pass a numbered message on: to the subscriptions, to where the queue forwards, or to `forward_to`.

    It is pending after other pending messages, and after too many copies in one call.
    """
    copies_max = FORWARDED_COPIES_MAX if message.hops else COPIES_MAX
    is_next = not len(queue.active)
    to = forward_to or (queue.forward_to if is_next else None)
    if to is not None:
        message.enqueued_at_ms = _stamp(queue, at_ms, out.now_ms)
        out.arrived(queue, message, sections, reason="sent via" if forward_to else None)
        queue.shared.forwarding.pass_on(queue, to, message, sections, out)
    elif queue.fan_out is not None and sections is not None and is_next and out.copies < copies_max:
        message.enqueued_at_ms = _stamp(queue, at_ms, out.now_ms)
        partitions = queue.partitions
        turn = None if partitions is None else partitions.of_number(message.sequence_number)
        out.arrived(queue, message, sections)
        forwarded = out.forwarded(queue, message)
        out.fanned_out(forwarded, queue.fan_out.send_on(message, sections, sections, turn, out))
    else:
        _enqueue(queue, message, sections, at_ms, out)
        out.arrived(queue, message, sections)
        queue.forward_stored_from(message.position)


def number_ahead(
    queue: MessageQueue,
    message: Message,
    sections: Sections,
    partition: int | None,
    transaction_id: bytes,
    out: Outcome,
) -> tuple[SequenceNumber, Sections | None]:
    """Number a message that a transaction schedules; `store_numbered` stores it with the commit.

    The counters must be durable before the number is answered.

    Args:
        partition: that of the transaction, in a partitioned queue.

    Returns: the number and the message to store; for a duplicate the first message's number and None.
    """
    if sections.lacks_message_id:
        sections = _given_id(queue, message, sections)
    duplicates = queue.duplicates
    if duplicates is not None and message.routing is not None:
        digest = _digest(queue, duplicates, message.routing)
        first_number = None if digest is None else duplicates.first_number(digest, out.now_ms)
        if first_number is not None:
            out.duplicate_dropped(queue, message, first_number, sections)
            return first_number, None
    number = _take_position(queue, message)
    if queue.partitions is not None:
        key = None if message.routing is None else _key(queue, message.routing)
        number = queue.partitions.take(_partition_of(queue, message.routing, key, None, partition))
    message.sequence_number = message.enqueued_sequence_number = number
    out.number_issued(queue, message, transaction_id)
    return number, sections


def store_numbered(queue: MessageQueue, message: Message, sections: Sections, out: Outcome) -> None:
    """Store a message that was numbered ahead. It is scheduled even if its time has come, since its
    activation numbers its arrival. A duplicate of a message stored meanwhile is dropped."""
    now_ms = out.now_ms
    number = message.sequence_number
    instant_ms = queue.shared.wall.instant_ms(now_ms)
    duplicates = queue.duplicates
    assert message.routing is not None
    if duplicates is not None and (digest := _digest(queue, duplicates, message.routing)) is not None:
        first_number = duplicates.first_number(digest, now_ms)
        if first_number is not None:
            out.duplicate_dropped(queue, message, first_number, sections, number)
            return
        out.changes.append(duplicates.note(digest, number, now_ms, instant_ms))
        duplicates.waiting[number] = digest
        if duplicates.count == 1:
            queue.set_timer()
    out.sent(queue, message)
    _schedule(queue, message, sections, instant_ms, out, reason=NUMBERED_AHEAD)


def hold_pending(queue: MessageQueue, message: Message, sections: Sections | None, out: Outcome) -> None:
    """Store a numbered message that cannot be passed on yet."""
    if queue.holds_dead_letters:
        store_dead_letter(queue, message, sections, out)
    else:
        _enqueue(queue, message, sections, queue.shared.wall.instant_ms(out.now_ms), out)
    queue.forward_stored_from(message.position)


def activate(queue: MessageQueue, waiting: Message, out: Outcome) -> None:
    """Enqueue a scheduled message as if just sent (S-07)."""
    now_ms = out.now_ms
    assert waiting.scheduled_at_ms is not None
    instant_ms = queue.shared.wall.instant_ms(now_ms)
    lags = instant_ms - waiting.scheduled_at_ms >= ACTIVATION_LAG_MS
    queue.remove(waiting, out)
    message = waiting.moved()
    message.was_scheduled = True
    message.sequence_number = _take_position(queue, message)
    if queue.partitions is not None:
        message.sequence_number = queue.partitions.take(queue.partitions.of_number(waiting.sequence_number))
    out.happened(
        EventType.ACTIVATED, queue, waiting, related=queue.name, related_number=message.sequence_number
    )
    at_ms = instant_ms if lags else waiting.scheduled_at_ms
    if queue.passes_on:
        _pass_on_arriving(queue, message, None, at_ms, out)
    else:
        _enqueue(queue, message, None, at_ms, out)
        out.arrived(queue, message, None)


def number_copy(queue: MessageQueue, copy: Message, turn: int | None) -> None:
    """Number a topic's copy in its subscription; its enqueued sequence number stays the topic's.

    Args:
        turn: the partition of the message in the topic, None without partitions.
    """
    copy.sequence_number = _take_position(queue, copy)
    if queue.partitions is not None:
        assert turn is not None
        if queue.sessions is not None and copy.routing is not None and copy.routing.session_id is not None:
            # A session is in one partition, also after an action has set its id.
            turn = queue.partitions.of_key(folded(copy.routing.session_id).encode())
        copy.sequence_number = queue.partitions.take(turn)


def store_copy(
    queue: MessageQueue, copy: Message, sections: Sections | None, turn: int | None, out: Outcome
) -> None:
    """Store a topic's copy in a subscription, or pass it on. Its enqueued time is the topic's.

    Args:
        sections: the same object for all copies of a message; None if its body is stored already.
        turn: see `number_copy`.
    """
    number_copy(queue, copy, turn)
    at_once = not len(queue.active) and out.copies < FORWARDED_COPIES_MAX
    if queue.forward_to is not None and at_once:
        copy.enqueued_at_ms = _stamp(queue, copy.enqueued_at_ms, out.now_ms)
        out.arrived(queue, copy, sections)
        queue.shared.forwarding.pass_on(queue, queue.forward_to, copy, sections, out)
        return
    _enqueue(queue, copy, sections, copy.enqueued_at_ms, out)
    out.arrived(queue, copy, sections)
    if queue.forward_to is not None:
        queue.forward_stored_from(copy.position)
    if queue.sessions is not None or queue.ready_queue.receivers.turns:
        out.touch(queue)


def dead_letter_arriving(
    queue: MessageQueue, message: Message, sections: Sections | None, out: Outcome
) -> None:
    """Store a new dead letter, or pass it on to where its queue forwards."""
    out.arrived(queue, message, sections)
    if queue.forward_to is None or overlays.is_bodiless(message):
        store_dead_letter(queue, message, sections, out)
        out.touch(queue)
    else:
        queue.shared.forwarding.pass_on(queue, queue.forward_to, message, sections, out)


def store_dead_letter(queue: MessageQueue, message: Message, sections: Sections | None, out: Outcome) -> None:
    """Store a dead letter, which keeps its number and rests here."""
    assert queue.holds_dead_letters
    message.session_id = None  # dead letters have no sessions
    _take_position(queue, message)
    queue.active.put(message.position, message)
    _keep(queue, message, sections, out)


def numbers_issued(queue: MessageQueue) -> NumbersIssued:
    """Return the counters of a queue as a fact."""
    return NumbersIssued(
        queue.queue_id,
        queue.next_position,
        queue.next_position & SEQUENCE_NUMBER_MAX,  # type: ignore[arg-type]  # `number_of` without a call
        queue.last_enqueued_at_ms,
        () if queue.partitions is None else tuple(queue.partitions.nexts),
    )


def _take_position(queue: MessageQueue, message: Message) -> SequenceNumber:
    """Assign a message the next position; return its number without partitions."""
    message.position = position = queue.next_position
    queue.next_position = position + 1
    if not queue.numbers_dirty:
        queue.numbers_dirty = True
        queue.shared.issued.append(queue)
    if position > SEQUENCE_NUMBER_MAX:
        return number_of(position)
    return position  # type: ignore[return-value]  # no call for each send


def _given_id(queue: MessageQueue, message: Message, sections: Sections) -> Sections:
    """Write an id into a message; return it as it is stored."""
    size_bytes = len(sections.payload)
    sections, message_id = with_id(sections, queue.shared.tokens)
    message.size_bytes += len(sections.payload) - size_bytes
    if message.routing is not None:
        message.routing.message_id = message_id
    return sections


def _digest(queue: MessageQueue, duplicates: Duplicates, routing: Routing) -> bytes | None:
    """Return what duplicates have in common: the id, and in a partitioned queue the key (contract 10.3)."""
    if routing.message_id is None:
        return None
    return duplicates.digest(routing.message_id, None if queue.partitions is None else _key(queue, routing))


def _partition_of(
    queue: MessageQueue, routing: Routing | None, key: str | None, turn: int | None, partition: int | None
) -> int:
    """Return the partition: by session id or partition key, that of the transaction, with duplicate detection
    by the message id, or the next in turn (S-02)."""
    assert queue.partitions is not None
    if key is not None:
        if queue.sessions is not None:
            key = folded(key)
        return queue.partitions.of_key(key.encode())
    if partition is not None:
        return partition
    if routing is not None and routing.message_id is not None and queue.duplicates is not None:
        return queue.partitions.of_key(routing.message_id)
    return queue.partitions.next_in_turn() if turn is None else turn


def _key(queue: MessageQueue, routing: Routing, *, via: bool = False) -> str | None:
    """Return the partition key; of a message that is sent via the queue, the one for that."""
    if via:
        return routing.via_partition_key
    return routing.key(requires_sessions=queue.sessions is not None)


def _schedule(
    queue: MessageQueue,
    message: Message,
    sections: Sections | None,
    instant_ms: int,
    out: Outcome,
    *,
    reason: str | None = None,
) -> None:
    """Store a message with a new position until its time."""
    message.state = MessageState.SCHEDULED
    message.enqueued_at_ms = max(instant_ms, queue.last_enqueued_at_ms)
    queue.scheduled.put(message.position, message)
    if queue.sessions is not None:
        assert message.routing is not None
        message.session_id = message.routing.session_id
        queue.sessions.stored(message)
    queue.wake(queue.shared.wall.core_ms(queue.activation.note(message)))
    _keep(queue, message, sections, out)
    out.scheduled(queue, message, sections, reason=reason)


def _enqueue(
    queue: MessageQueue, message: Message, sections: Sections | None, at_ms: int, out: Outcome
) -> None:
    """Make a message with a new position active; its time-to-live begins (E-01, S-04).

    Args:
        at_ms: the enqueued time, unless the wall clock went back.
    """
    now_ms = out.now_ms
    queue.arrived_at_ms = now_ms  # `_stamp` inlined
    if at_ms > queue.last_enqueued_at_ms:
        queue.last_enqueued_at_ms = at_ms
    message.enqueued_at_ms = enqueued_at_ms = queue.last_enqueued_at_ms
    instant_ms = now_ms + queue.shared.wall.due_ahead_ms
    if enqueued_at_ms > instant_ms:
        message.lead_ms = enqueued_at_ms - instant_ms
        if queue.expiry is not None:
            queue.expiry.has_leads = True
    ttl_ms = message.ttl_ms
    if ttl_ms is not None:
        message.expires_at_ms = enqueued_at_ms + min(ttl_ms, queue.default_ttl_ms)
        message.ttl_ms = None  # from here on: expires_at_ms - enqueued_at_ms
    queue.active.put(message.position, message)
    if ttl_ms is not None or queue.default_ttl_ms < UNLIMITED_MS:
        queue.note_expiry(message)
    if queue.sessions is not None:
        if message.routing is not None:
            message.session_id = message.routing.session_id
        queue.sessions.stored(message)
    _keep(queue, message, sections, out)


def _stamp(queue: MessageQueue, at_ms: int, now_ms: int) -> int:
    """Return the enqueued time of an arriving message, which never goes back (S-04)."""
    queue.arrived_at_ms = now_ms
    if at_ms > queue.last_enqueued_at_ms:
        queue.last_enqueued_at_ms = at_ms
    return queue.last_enqueued_at_ms


def _keep(queue: MessageQueue, message: Message, sections: Sections | None, out: Outcome) -> None:
    """Count and record a message that is in its table."""
    message.routing = None  # not kept for stored messages
    size_bytes = message.size_bytes
    queue.size_bytes += size_bytes
    if size_bytes < SHARED_MAX:
        message.size_bytes = SHARED[size_bytes]
    if queue.copied_by is not None:
        queue.copied_by.size_bytes += size_bytes
    if queue.numbers is not None:
        queue.numbers.put(queue.key_of(message.sequence_number), message)
    payload = None if sections is None else sections.payload
    out.changes.append(MessageStored(queue.queue_id, message, payload))
