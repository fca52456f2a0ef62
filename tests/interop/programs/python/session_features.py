"""Sessions: by name, the next one, their state and their lock."""

from __future__ import annotations

import datetime as dt
import time

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from surroundings import Surroundings, complete_all, feature

from tests.interop.helpers import assert_empty, bodies, send, take, take_one


@feature
def session(ours: Surroundings) -> None:
    queue = ours.queue(requires_session=True)
    with ours.client.get_queue_sender(queue) as sender:
        for number in range(3):
            for name in ("a", "b"):
                sender.send_messages(ServiceBusMessage(f"{name}{number}", session_id=name))
    for name in ("b", "a"):
        with ours.client.get_queue_receiver(queue, session_id=name) as receiver:
            messages = take(receiver, 3)
            assert bodies(messages) == [f"{name}{number}" for number in range(3)]
            assert {message.session_id for message in messages} == {name}
            complete_all(receiver, messages)
            assert_empty(receiver)


@feature
def next_session(ours: Surroundings) -> None:
    queue = ours.queue(requires_session=True)
    send(ours.client, queue, "x", session_id="with messages")
    with ours.client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        assert receiver.session.session_id == "with messages"
        receiver.complete_message(take_one(receiver))


@feature
def session_state(ours: Surroundings) -> None:
    queue = ours.queue(requires_session=True)
    with ours.client.get_queue_receiver(queue, session_id="s") as receiver:
        assert not receiver.session.get_state()
        receiver.session.set_state(b"\x00half way")
        assert receiver.session.get_state() == b"\x00half way"
        receiver.close()
    with ours.client.get_queue_receiver(queue, session_id="s") as receiver:
        assert receiver.session.get_state() == b"\x00half way"
        receiver.session.set_state(None)
        assert not receiver.session.get_state()


@feature
def renew_session(ours: Surroundings) -> None:
    queue = ours.queue(requires_session=True, lock_duration=dt.timedelta(seconds=5))
    send(ours.client, queue, "x", session_id="s")
    with ours.client.get_queue_receiver(queue, session_id="s") as receiver:
        first_end = receiver.session.locked_until_utc
        time.sleep(1)
        assert receiver.session.renew_lock() > first_end
        assert receiver.session.locked_until_utc > first_end
        receiver.complete_message(take_one(receiver))
    with ours.client.get_queue_receiver(queue, session_id="waits") as receiver:
        # Longer than the lock lasts: the wait ends in peace, and the session is free for others then.
        assert receiver.receive_messages(max_wait_time=6) == []
        with ours.client.get_queue_receiver(queue, session_id="waits") as other:
            assert other.session.renew_lock() > first_end
