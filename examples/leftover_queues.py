"""Queues that an aborted test run has left over go by themselves, and the next run starts clean.

    python examples/leftover_queues.py [--for-real]

A test run makes a queue and deletes it at its end, unless it is aborted. So the queue lives for five minutes
without use, the shortest there is, and its messages for one minute. A run soon after finds the queue, but no
message of the run before; a later run creates it again.

The minutes pass in a moment, on a broker of our own whose clock is moved. With --for-real, they are minutes.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Any

from azure.core.exceptions import ResourceExistsError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from common import administration, exists, passing_time

QUEUE = "orders-under-test"
SETTINGS: dict[str, Any] = {
    "auto_delete_on_idle": timedelta(minutes=5),
    "default_message_time_to_live": timedelta(minutes=1),
}


def aborted_run(broker: str) -> str:
    """Do a test run that is aborted; return what it found."""
    with administration(broker) as admin:
        try:
            admin.create_queue(QUEUE, **SETTINGS)
        except ResourceExistsError:
            found = "the queue of the run before"
        else:
            found = "nothing"
    with ServiceBusClient.from_connection_string(broker) as client:
        with client.get_queue_receiver(QUEUE) as receiver:
            assert not receiver.receive_messages(max_wait_time=1), "no run sees messages of another"
        with client.get_queue_sender(QUEUE) as sender:
            sender.send_messages([ServiceBusMessage("order") for _ in range(3)])
    print(f"a run found {found} and no message, sent three, and was aborted")
    return found


def main() -> None:
    """Abort test runs one after the other."""
    parser = argparse.ArgumentParser(description="Queues that go by themselves.")
    parser.add_argument("--for-real", action="store_true", help="wait, on the broker of the environment")
    options = parser.parse_args()
    with passing_time(options.for_real) as (broker, wait):
        assert aborted_run(broker) == "nothing"

        wait(timedelta(minutes=2))
        print("two minutes later:")
        assert aborted_run(broker) == "the queue of the run before", "two minutes are too short to be idle"

        wait(timedelta(minutes=4))
        assert exists(broker, QUEUE), "it was used four minutes ago"
        wait(timedelta(minutes=2))
        assert not exists(broker, QUEUE), "after five minutes without use it is gone, with the messages in it"
        print("six minutes later the queue is gone")
        assert aborted_run(broker) == "nothing", "the next run starts clean"

        with administration(broker) as admin:
            admin.delete_queue(QUEUE)


if __name__ == "__main__":
    main()
