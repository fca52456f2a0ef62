"""Sequence order is the order of retrieval; sessions give an order of processing.

    python examples/processing_order.py

Five messages and two consumers: the one with message 1 is slow, so 2 and 3 are completed before it, although
both consumers received in order.

Then messages 1, 4, 8 belong to one session and 2, 3, 6 to another. A session has one consumer at a time, so
the slow one keeps 4 and 8 waiting, and each session is processed in its order.

Its queues: plain, and one that requires sessions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)
from common import connection_string, own_queues, say

WORK_S = 0.3
SESSIONS = {"a": [1, 4, 8], "b": [2, 3, 6]}


class Work:
    """What was completed, in order. Message 1 takes as long as it takes to complete two others."""

    def __init__(self, count: int) -> None:
        self.completed: list[int] = []
        self._count = count
        self._changed = threading.Condition()

    @property
    def left(self) -> bool:
        """Whether a message is not completed yet."""
        return len(self.completed) < self._count

    def do(self, consumer: str, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        """Process a message and complete it."""
        number = int(str(message))
        with self._changed:
            say(f"{consumer}: {number} begun{', which will take long' if number == 1 else ''}")
        if number != 1:
            time.sleep(WORK_S)
        with self._changed:
            if number == 1:
                self._changed.wait_for(lambda: len(self.completed) >= 2, timeout=30)
            receiver.complete_message(message)
            self.completed.append(number)
            self._changed.notify_all()
            say(f"{consumer}: {number} completed")


Consume = Callable[[str, str, str, Work], None]
"""Receives for one consumer, of which the third argument is the name."""


def consume(broker: str, queue: str, consumer: str, work: Work) -> None:
    """Take one message after the other while some are left."""
    with (
        ServiceBusClient.from_connection_string(broker) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        while work.left:
            for message in receiver.receive_messages(max_wait_time=0.5):
                work.do(consumer, receiver, message)


def consume_session(broker: str, queue: str, consumer: str, work: Work) -> None:
    """Take the session that has been waiting longest, and its messages one after the other."""
    with (
        ServiceBusClient.from_connection_string(broker) as client,
        client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as receiver,
    ):
        say(f"{consumer}: has session {receiver.session.session_id}")
        for _ in SESSIONS[receiver.session.session_id]:
            (message,) = receiver.receive_messages(max_wait_time=10)
            work.do(consumer, receiver, message)


def run(broker: str, queue: str, consume_some: Consume, messages: Sequence[ServiceBusMessage]) -> list[int]:
    """Send the messages, run two consumers, and return the order of completion."""
    with ServiceBusClient.from_connection_string(broker) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(list(messages))
    work = Work(len(messages))
    with ThreadPoolExecutor() as threads:
        names = ("consumer 1", "consumer 2")
        consumers = [threads.submit(consume_some, broker, queue, name, work) for name in names]
    for consumer in consumers:
        consumer.result()  # raises what failed there
    return work.completed


def main() -> None:
    """Run two consumers without and with sessions."""
    broker = connection_string()
    with own_queues(broker, plain={}, ordered={"requires_session": True}) as (plain, ordered):
        completed = run(broker, plain, consume, [ServiceBusMessage(str(number)) for number in range(1, 6)])
        print(f"without sessions, completed: {completed}")
        assert completed[:3] == [2, 3, 1], "the slow one is overtaken"
        assert sorted(completed) == [1, 2, 3, 4, 5]

        session_of = {number: name for name, numbers in SESSIONS.items() for number in numbers}
        messages = [
            ServiceBusMessage(str(number), session_id=session_of[number]) for number in sorted(session_of)
        ]
        completed = run(broker, ordered, consume_session, messages)
        print(f"with sessions, completed: {completed}")
        for numbers in SESSIONS.values():
            assert [number for number in completed if number in numbers] == numbers, (
                "a session keeps its order"
            )


if __name__ == "__main__":
    main()
