"""Receive-and-delete is for what may be lost: readings, not orders.

    python examples/receive_and_delete.py

Without a lock a message is gone once it is sent to the receiver: one round trip less, and no second
delivery. A worker that dies with readings in its hands has lost them, and new ones come soon. Orders are
received under a lock: when their worker dies, they are there again at once.
"""

from __future__ import annotations

import multiprocessing
import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from common import connection_string, own_queues

COUNT = 10


def receive_and_die(broker: str, queue: str, mode: str) -> None:
    """Be a worker that is killed as soon as it has received everything."""
    client = ServiceBusClient.from_connection_string(broker)
    receiver = client.get_queue_receiver(queue, receive_mode=mode)
    held = 0
    while held < COUNT:
        held += len(receiver.receive_messages(max_message_count=COUNT, max_wait_time=10))
    os._exit(0)


def left_after_a_crash(broker: str, queue: str, mode: str) -> int:
    """Send messages to a worker that dies; return how many the next worker receives."""
    with ServiceBusClient.from_connection_string(broker) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(f"number {number}") for number in range(COUNT)])
        worker = multiprocessing.get_context("spawn").Process(
            target=receive_and_die, args=(broker, queue, mode)
        )
        worker.start()
        worker.join()
        left = 0
        with client.get_queue_receiver(
            queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
        ) as receiver:
            # The broker keeps what a dead worker has locked for a grace of 5 s.
            while left < COUNT and (
                messages := receiver.receive_messages(max_message_count=COUNT, max_wait_time=8)
            ):
                left += len(messages)
    return left


def main() -> None:
    """Kill two workers and count the messages left."""
    broker = connection_string()
    with own_queues(broker, readings={}, orders={}) as (readings, orders):
        readings_left = left_after_a_crash(broker, readings, ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        print(f"receive-and-delete: the worker died, {readings_left} of {COUNT} readings are left")
        orders_left = left_after_a_crash(broker, orders, ServiceBusReceiveMode.PEEK_LOCK)
        print(f"peek-lock: the worker died, {orders_left} of {COUNT} orders are left")
    assert readings_left == 0, "what was received is gone"
    assert orders_left == COUNT, "what was locked is there again"


if __name__ == "__main__":
    main()
