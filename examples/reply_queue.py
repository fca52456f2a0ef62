"""A reply queue for each web process, which is deleted when the process is gone.

    python examples/reply_queue.py [--for-real]

A web process makes a queue for the answers to its requests when it starts. While it listens there, the queue
is in use, however long no answer comes. When the process ends, orderly or not, there is nothing to clean up:
a little more than five minutes later the broker deletes the queue.

The minutes pass in a moment, on a broker of our own whose clock is moved. With --for-real, they are minutes.
"""

from __future__ import annotations

import argparse
import os
import queue
import socket
import threading
from datetime import timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from common import administration, exists, known, own_queues, passing_time


class WebProcess(threading.Thread):
    """Listens for answers on its reply queue."""

    def __init__(self, broker: str) -> None:
        super().__init__(daemon=True)
        self.reply_queue = f"replies-{socket.gethostname()}-{os.getpid()}"
        self.replies: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.over = threading.Event()
        self._broker = broker
        with administration(broker) as admin:
            admin.create_queue(self.reply_queue, auto_delete_on_idle=timedelta(minutes=5))

    def run(self) -> None:
        with (
            ServiceBusClient.from_connection_string(self._broker) as client,
            # Prefetching, the receiver listens all the time, not only within a call.
            client.get_queue_receiver(self.reply_queue, prefetch_count=10) as receiver,
        ):
            while not self.over.is_set():
                for reply in receiver.receive_messages(max_wait_time=0.5):
                    self.replies.put(str(reply))
                    receiver.complete_message(reply)


def ask(client: ServiceBusClient, requests: str, web: WebProcess, question: str) -> str:
    """Send a request, answer it as the backend, and return the answer that the web process got."""
    with client.get_queue_sender(requests) as sender:
        sender.send_messages(ServiceBusMessage(question, reply_to=web.reply_queue))
    with client.get_queue_receiver(requests) as backend:
        (request,) = backend.receive_messages(max_wait_time=10)
        with client.get_queue_sender(known(request.reply_to)) as sender:
            sender.send_messages(ServiceBusMessage(f"{request}: yes"))
        backend.complete_message(request)
    reply = web.replies.get(timeout=10)
    print(f"the web process got: {reply}")
    return reply


def main() -> None:
    """Run a web process that waits long, and end it."""
    parser = argparse.ArgumentParser(description="A reply queue that goes with its process.")
    parser.add_argument("--for-real", action="store_true", help="wait, on the broker of the environment")
    options = parser.parse_args()
    with (
        passing_time(options.for_real) as (broker, wait),
        own_queues(broker, requests={}) as (requests,),
        ServiceBusClient.from_connection_string(broker) as client,
    ):
        web = WebProcess(broker)
        web.start()
        print(f"the web process listens on {web.reply_queue}")
        assert ask(client, requests, web, "paid?") == "paid?: yes"

        wait(timedelta(minutes=20))
        assert exists(broker, web.reply_queue), "a queue with a listener is in use"
        print("twenty minutes without a request later, it listens still")
        assert ask(client, requests, web, "sent?") == "sent?: yes"

        web.over.set()
        web.join()
        print("the web process is gone")
        wait(timedelta(minutes=6))
        assert not exists(broker, web.reply_queue), "after five minutes without use it is gone"
        print("six minutes later its queue is gone too")


if __name__ == "__main__":
    main()
