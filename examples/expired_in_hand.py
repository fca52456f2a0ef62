"""A message whose time-to-live runs out while a worker holds it: process it, or abandon it.

    python examples/expired_in_hand.py

A locked message does not expire: the worker decides. What it completes is done, and no copy goes to the
dead-letter queue. What it abandons expires at once and is not received again. The queue dead-letters expired
messages, so that the second one can be seen.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusSubQueue,
)
from common import connection_string, known, own_queues

TIME_TO_LIVE = timedelta(seconds=1)


def wait_until_expired(message: ServiceBusReceivedMessage) -> None:
    """Work slowly."""
    time.sleep(max(0.0, (known(message.expires_at_utc) - datetime.now(UTC)).total_seconds()) + 0.1)


def main() -> None:
    """Hold two messages beyond their time-to-live; process one and abandon the other."""
    expiring = {"dead_lettering_on_message_expiration": True}
    broker = connection_string()
    with (
        own_queues(broker, offers=expiring) as (queue,),
        ServiceBusClient.from_connection_string(broker) as client,
    ):
        with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
            for offer in ("tea", "coffee"):
                sender.send_messages(ServiceBusMessage(offer, message_id=offer, time_to_live=TIME_TO_LIVE))
            held: list[ServiceBusReceivedMessage] = []
            while len(held) < 2:
                held += receiver.receive_messages(max_message_count=2 - len(held), max_wait_time=10)
            tea, coffee = held
            wait_until_expired(coffee)

            print(f"{tea.message_id}: expired in hand, processed all the same")
            receiver.renew_message_lock(tea)  # goes on working, as with any message
            receiver.complete_message(tea)

            print(f"{coffee.message_id}: expired in hand, abandoned")
            receiver.abandon_message(coffee)
            assert not receiver.receive_messages(max_wait_time=0.5), (
                "an expired message is not received again"
            )

        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
            (dead,) = dead_letters.receive_messages(max_message_count=2, max_wait_time=10)
            print(f"{dead.message_id}: in the dead-letter queue, because {dead.dead_letter_reason}")
            assert (dead.message_id, dead.dead_letter_reason) == ("coffee", "TTLExpiredException")
            dead_letters.complete_message(dead)
            assert not dead_letters.receive_messages(max_wait_time=0.5), "what was processed leaves no copy"


if __name__ == "__main__":
    main()
