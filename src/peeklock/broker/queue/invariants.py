"""Invariants between the indexes of a queue, for tests and simulation."""

from __future__ import annotations

from peeklock.broker.queue.browsing import scheduled_by_number
from peeklock.broker.queue.cursor import Claim
from peeklock.broker.queue.message_queue import DEFERRED, SCHEDULED, MessageQueue
from peeklock.broker.queue.message_session import MessageSession
from peeklock.broker.queue.message_sessions import MessageSessions
from peeklock.broker.queue.peek_lock import Lock
from peeklock.broker.queue.sequence_numbers import number_of
from peeklock.broker.queue.session_ids import folded
from peeklock.broker.vocabulary.message import ACTIVE, MessageState


def check_queue(queue: MessageQueue, now_ms: int) -> None:
    """Assert that all indexes of a queue agree."""
    returned = set(queue.ready_queue.returned)
    assert len(returned) == len(queue.ready_queue.returned)
    assert all(position < queue.ready_queue.cursor for position in returned)
    claimed = 0
    for table, state in ((queue.active, ACTIVE), (queue.deferred, DEFERRED), (queue.scheduled, SCHEDULED)):
        table.check()
        for message in table:
            assert message.state is state
            assert message.position < queue.next_position
            if queue.numbers is None:
                assert message.sequence_number == number_of(message.position)
            else:
                assert queue.numbers.get(queue.key_of(message.sequence_number)) is message
            assert (message.session_id is not None) == (queue.sessions is not None)
            assert message.routing is None
            if isinstance(message.lock, Claim):
                claimed += 1
            elif isinstance(message.lock, Lock):
                assert queue.locks[message.lock.token] is message.lock
            if message.lock is not None:
                assert message.position not in returned
    if queue.sessions is None:
        for message in queue.active:
            if message.lock is None and not queue.has_expired(message, now_ms):
                assert message.position >= queue.ready_queue.cursor or message.position in returned
    for token, lock in queue.locks.items():
        assert lock.token == token
        assert lock.message.lock is lock
        assert lock.queue is queue
        assert lock.holder[token] is lock
        assert queue.timer_ms <= (lock.locked_until_ms if lock.session is None else lock.until_ms())
        assert (lock.session is not None) == (queue.sessions is not None)
    until = [lock.locked_until_ms for lock in queue.locks.values()]
    assert until == sorted(until)
    assert queue.size_bytes == sum(message.size_bytes for message in queue.all_messages())
    if queue.numbers is not None:
        queue.numbers.check()
        assert len(queue.numbers) == len(queue.active) + len(queue.deferred) + len(queue.scheduled)
    queue.ready_queue.receivers.check()
    if queue.sessions is not None:
        check_sessions(queue.sessions, queue, now_ms)
        assert queue.timer_ms <= queue.sessions.next_ms()
    assert queue.timer_ms <= queue.forward_due_ms
    assert claimed == (0 if queue.cursors is None else queue.cursors.claimed_count)
    if queue.cursors is not None:
        queue.cursors.check()
    if queue.expiry is not None:
        queue.expiry.check()
        assert queue.timer_ms <= queue.shared.wall.core_ms(queue.expiry.next_ms())
    if queue.duplicates is not None:
        queue.duplicates.check()
        assert all(scheduled_by_number(queue, number) for number in queue.duplicates.waiting)
    queue.activation.check()
    assert queue.timer_ms <= queue.shared.wall.core_ms(queue.activation.next_ms())


def check_sessions(sessions: MessageSessions, queue: MessageQueue, now_ms: int) -> None:
    """Assert that the indexes of sessions agree."""
    assert not (sessions.waiting and sessions.available)
    assert not sessions._touched or queue.timer_ms <= now_ms
    until = []
    for key, session in sessions._held.items():
        assert session.lock is not None
        assert session.lock.receiver.ready_queue is session
        assert folded(session.lock.session_id) == key
        assert sessions._by_key[key] is session
        until.append(session.lock.locked_until_ms)
    assert until == sorted(until)
    sessions.lapsed.check(queue.locks)
    for key, session in sessions._by_key.items():
        _check_session(sessions, key, session, queue, now_ms)
    assert sum(len(list(s.messages(queue))) for s in sessions._by_key.values()) == sum(
        1 for _ in queue.all_messages()
    )
    assert sessions.states.size_bytes == sum(record.size_bytes for record in sessions.states.all_messages())
    for record in sessions.states.all_messages():
        assert record.session_id is not None
        assert (
            sessions._by_key[folded(record.session_id)].state is record or record in sessions.states.replaced
        )


def _check_session(
    sessions: MessageSessions, key: str, session: MessageSession, queue: MessageQueue, now_ms: int
) -> None:
    assert session.lock is None or sessions.lapsed.of(key) is None
    assert session.key == key == folded(session.text)
    assert not session.is_empty
    assert (session.lock is not None) == (key in sessions._held)
    free = session.lock is None and session.cursor is None
    assert (key in sessions.available) == (free and session.active > 0)
    assert (session.cursor is None) == (session.claimed == 0)
    claimed = 0
    messages = list(session.messages(queue))
    positions = [message.position for message in messages]
    assert positions == sorted(set(positions))
    assert session.first(queue) is (messages[0] if messages else None)
    for state, count in (
        (MessageState.ACTIVE, session.active),
        (MessageState.DEFERRED, session.deferred),
        (MessageState.SCHEDULED, session.scheduled),
    ):
        assert count == sum(message.state is state for message in messages)
    for message in messages:
        assert message.session_id is not None
        assert folded(message.session_id) == key
        if isinstance(message.lock, Claim):
            claimed += 1
            assert message.lock.cursor is session.cursor
        elif isinstance(message.lock, Lock):
            assert session.lock is not None
            assert message.lock.session is session
            assert message.lock.holder is session.lock.receiver.locks
    assert claimed == session.claimed
    returned = set(session.returned)
    assert len(returned) == len(session.returned)
    waiting = set(session._positions[session._next :]) | returned
    for message in messages:
        unlocked = message.state is MessageState.ACTIVE and message.lock is None
        if unlocked and not queue.has_expired(message, now_ms):
            assert message.position in waiting
            assert session.cursor is None or key in session.cursor.ready
    session.receivers.check()
