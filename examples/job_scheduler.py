"""A job scheduler whose message ids are job ids, and a worker that survives a completion that failed.

    python examples/job_scheduler.py [--second-delivery ignore|redo]

Peek-lock delivers at least once. When the worker is slower than the queue's lock lasts, its completion fails
with "lock lost", and the job comes a second time, under the same message id. Two answers are right:

- ignore: the work is kept by job id (here in a dictionary, elsewhere beside the work's result, in the same
  transaction). A job that is done already is only completed.
- redo: to do the work twice does no harm, so there is nothing to remember.

The first job is slow on purpose: its queue locks for five seconds, the shortest there is, and it takes six.
"""

from __future__ import annotations

import argparse
import time
from datetime import timedelta

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
)
from azure.servicebus.exceptions import MessageLockLostError
from common import connection_string, known, own_queues

LOCK = timedelta(seconds=5)
SLOW_S = 6.0
JOBS = {"invoice-1": "slow", "invoice-2": "quick", "invoice-3": "quick"}


def schedule(client: ServiceBusClient, queue: str) -> None:
    """Send each job under its own id, so that a scheduler that runs twice can be recognised as well."""
    with client.get_queue_sender(queue) as sender:
        for job_id, effort in JOBS.items():
            sender.send_messages(ServiceBusMessage(effort, message_id=job_id))


class Worker:
    """Does jobs, and knows which it has done."""

    def __init__(self, ignore_second: bool) -> None:
        self.ignore_second = ignore_second
        self.times_done = dict.fromkeys(JOBS, 0)

    def handle(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> bool:
        """Do one job and complete it; return whether the broker accepted the completion."""
        job_id, attempt = known(message.message_id), known(message.delivery_count) + 1
        if self.times_done[job_id] and self.ignore_second:
            print(f"{job_id}: done already, only completed (delivery {attempt})")
        else:
            if str(message) == "slow" and not self.times_done[job_id]:
                time.sleep(SLOW_S)
            self.times_done[job_id] += 1
            print(f"{job_id}: done (delivery {attempt})")
        try:
            receiver.complete_message(message)
        except MessageLockLostError:
            print(f"{job_id}: the lock was lost, it will come again")
            return False
        return True

    def run(self, client: ServiceBusClient, queue: str) -> None:
        """Work until every job was completed."""
        left = set(JOBS)
        with client.get_queue_receiver(queue) as receiver:
            while left:
                for message in receiver.receive_messages(max_message_count=1, max_wait_time=10):
                    if self.handle(receiver, message):
                        left.remove(known(message.message_id))


def main() -> None:
    """Schedule the jobs, do them, and say how often each was done."""
    parser = argparse.ArgumentParser(description="Jobs whose message ids are job ids.")
    parser.add_argument("--second-delivery", choices=("ignore", "redo"), default="ignore")
    options = parser.parse_args()
    worker = Worker(options.second_delivery == "ignore")
    broker = connection_string()
    with (
        own_queues(broker, jobs={"lock_duration": LOCK}) as (queue,),
        ServiceBusClient.from_connection_string(broker) as client,
    ):
        schedule(client, queue)
        worker.run(client, queue)
    for job_id, times in worker.times_done.items():
        print(f"{job_id}: done {times} times")
    again = 1 if worker.ignore_second else 2
    assert worker.times_done == {"invoice-1": again, "invoice-2": 1, "invoice-3": 1}, (
        "only the slow job came twice"
    )


if __name__ == "__main__":
    main()
