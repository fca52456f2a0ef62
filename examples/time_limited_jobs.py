"""Time-limited jobs under a spike: the user is told of an expired job, and its result is mailed later.

    python examples/time_limited_jobs.py

A web front end sends jobs that are of use for two seconds only, and gets confirmations on a reply queue. In
a spike the backend falls behind, and jobs expire. The broker moves them to the dead-letter queue on time.
There the front end finds them, tells the user that it takes longer, and sends the job to a second queue,
without a limit: its result is mailed.

Its queues: jobs (dead-letters what expires), replies, slow-jobs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue
from common import connection_string, own_queues, say

LIMIT = timedelta(seconds=2)
WORK_S = 0.4
SPIKE = [f"job-{number}" for number in range(1, 11)]
TOLD_WITHIN = timedelta(seconds=2)
"""The broker expires a message within two seconds of its time."""

Handler = Callable[[Any], tuple[str, ServiceBusMessage] | None]
"""Takes a message and may answer with another one, and the queue to send it to."""


class Role(threading.Thread):
    """Handles the messages of one queue, one at a time, with its own client."""

    def __init__(self, broker: str, queue: str, handle: Handler, **receiving: Any) -> None:
        super().__init__(daemon=True)
        self._client = ServiceBusClient.from_connection_string(broker)
        self._receiver = self._client.get_queue_receiver(queue, **receiving)
        self._senders: dict[str, Any] = {}
        self._handle = handle
        self.over = threading.Event()

    def run(self) -> None:
        with self._client, self._receiver:
            while not self.over.is_set():
                for message in self._receiver.receive_messages(max_wait_time=0.5):
                    answer = self._handle(message)
                    if answer is not None:
                        self._send(*answer)
                    self._receiver.complete_message(message)

    def _send(self, queue: str, message: ServiceBusMessage) -> None:
        if queue not in self._senders:
            self._senders[queue] = self._client.get_queue_sender(queue)
        self._senders[queue].send_messages(message)


def main() -> None:
    """Send a spike to a slow backend, and check that each job ends in one of two good ways."""
    confirmed: list[str] = []
    told: dict[str, timedelta] = {}
    mailed: list[str] = []

    def work(job: Any) -> tuple[str, ServiceBusMessage]:
        time.sleep(WORK_S)
        return job.reply_to, ServiceBusMessage("done", correlation_id=job.message_id)

    def confirm(reply: Any) -> None:
        say(f"{reply.correlation_id}: {reply}")
        confirmed.append(reply.correlation_id)

    def tell(dead: Any) -> tuple[str, ServiceBusMessage]:
        say(f"{dead.message_id}: takes longer, the result will be mailed")
        told[dead.message_id] = datetime.now(UTC) - dead.expires_at_utc
        return slow_jobs, ServiceBusMessage(str(dead), message_id=dead.message_id)

    def mail(job: Any) -> None:
        say(f"{job.message_id}: result mailed")
        mailed.append(job.message_id)

    broker = connection_string()
    expiring = {"dead_lettering_on_message_expiration": True}
    with own_queues(broker, jobs=expiring, replies={}, slow_jobs={}) as (jobs, replies, slow_jobs):
        roles = [
            Role(broker, jobs, work),
            Role(broker, replies, confirm),
            Role(broker, jobs, tell, sub_queue=ServiceBusSubQueue.DEAD_LETTER),
            Role(broker, slow_jobs, mail),
        ]
        for role in roles:
            role.start()
        with ServiceBusClient.from_connection_string(broker) as web, web.get_queue_sender(jobs) as sender:
            sender.send_messages(
                [ServiceBusMessage("", message_id=job, reply_to=replies, time_to_live=LIMIT) for job in SPIKE]
            )
        give_up_at = time.monotonic() + 30
        while len(confirmed) + len(mailed) < len(SPIKE) and time.monotonic() < give_up_at:
            time.sleep(0.1)
        for role in roles:
            role.over.set()
        for role in roles:
            role.join()

    latest = max(told.values(), default=timedelta())
    print(f"{len(confirmed)} confirmed, {len(mailed)} mailed")
    print(f"users were told within {latest.total_seconds():.2f} s of the limit")
    assert sorted(confirmed + mailed) == sorted(SPIKE), "each job ends once"
    assert confirmed, "some jobs are done within their time"
    assert mailed, "the backend falls behind: some are not"
    assert sorted(told) == sorted(mailed), "each user who waits for a mail was told so"
    assert latest < TOLD_WITHIN, "on time"


if __name__ == "__main__":
    main()
