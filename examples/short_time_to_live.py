"""A time-to-live that is too short: the message expires before it is received, which is no error.

    python examples/short_time_to_live.py

Three prices are sent, to live for ten milliseconds, a minute, and as long as the queue allows. The receiver
comes a second later. The sender cannot see that the first one was for nothing: the broker took it, and it
expired. Choose the largest time-to-live that works.
"""

from __future__ import annotations

import time
from datetime import timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from common import connection_string, own_queues


def main() -> None:
    """Send three messages and see which are received."""
    broker = connection_string()
    with own_queues(broker, prices={}) as (queue,), ServiceBusClient.from_connection_string(broker) as client:
        with client.get_queue_sender(queue) as sender:
            lives = {"10 ms": timedelta(milliseconds=10), "1 min": timedelta(minutes=1), "unlimited": None}
            for name, time_to_live in lives.items():
                sender.send_messages(ServiceBusMessage(name, time_to_live=time_to_live))
                print(f"{name}: sent, no error")
        time.sleep(1)
        with client.get_queue_receiver(queue) as receiver:
            received = []
            while messages := receiver.receive_messages(max_message_count=3, max_wait_time=1):
                for message in messages:
                    print(f"{message}: received")
                    received.append(str(message))
                    receiver.complete_message(message)
    assert received == ["1 min", "unlimited"], "the first one expired before anybody came"


if __name__ == "__main__":
    main()
