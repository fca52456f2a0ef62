"""What must always be true between the indexes of a queue.

Owns: the comparison, for tests and simulation. Must not know: how a queue got there.
"""

from __future__ import annotations

from peeklock.broker.queue.browsing import scheduled_by_number
from peeklock.broker.queue.message_queue import DEFERRED, SCHEDULED, MessageQueue
from peeklock.broker.queue.peek_lock import Claim, Lock
from peeklock.broker.queue.sequence_numbers import number_of
from peeklock.broker.vocabulary.message import ACTIVE


def check_queue(queue: MessageQueue, now_ms: int) -> None:
    """Compare all indexes of a queue with each other; an assertion fails when they do not agree."""
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
        queue.sessions.check(now_ms)
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
