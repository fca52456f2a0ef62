"""How long to lock: a bit longer than a job usually takes, and renew for the rare one that takes longer.

    python examples/lock_duration.py

Jobs take a tenth of a second, so the queue locks for five seconds, the shortest there is. One job takes six:
its worker renews the lock meanwhile, and it is done once. Another worker hangs and holds its job. The short
lock frees the job for another worker after five seconds; with the longest lock it would wait five minutes.
"""

from __future__ import annotations

import time
from datetime import timedelta

from azure.servicebus import AutoLockRenewer, ServiceBusClient, ServiceBusMessage
from common import connection_string, known, own_queues

LOCK_S = 5
LONG_S = 6


def main() -> None:
    """Run one worker that takes long and another that hangs."""
    deliveries: dict[str, int] = {}
    broker = connection_string()
    settings = {"lock_duration": timedelta(seconds=LOCK_S)}
    with (
        own_queues(broker, jobs=settings) as (queue,),
        ServiceBusClient.from_connection_string(broker) as client,
    ):
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(
                [ServiceBusMessage(job) for job in ("rare long job", "job of a worker that hangs")]
            )
        with (
            client.get_queue_receiver(queue) as good,
            client.get_queue_receiver(queue) as hanging,
            AutoLockRenewer() as renewer,
        ):
            (long_job,) = good.receive_messages(max_wait_time=10)
            renewer.register(good, long_job, max_lock_renewal_duration=60)
            # This worker does nothing after that.
            (held,) = hanging.receive_messages(max_wait_time=10)
            held_since = time.monotonic()
            print(f"{long_job}: begun, the lock is renewed meanwhile")
            time.sleep(LONG_S)
            good.complete_message(long_job)
            deliveries[str(long_job)] = known(long_job.delivery_count) + 1
            print(f"{long_job}: done after {LONG_S} s")

            (again,) = good.receive_messages(max_wait_time=10)
            waited = time.monotonic() - held_since
            good.complete_message(again)
            deliveries[str(again)] = known(again.delivery_count) + 1
            print(f"{again}: done by the other worker, {waited:.1f} s after it was taken")
            assert not good.receive_messages(max_wait_time=0.5), "nothing is left"
    assert deliveries == {"rare long job": 1, "job of a worker that hangs": 2}
    assert str(held) == str(again)


if __name__ == "__main__":
    main()
