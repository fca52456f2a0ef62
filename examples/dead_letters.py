"""Dead letters: look at messages that could not be processed, correct them, and send them again.

    python examples/dead_letters.py

Two orders go to the dead-letter queue: one that the worker cannot read, by its own decision and with its
reason, and one at which the worker fails each time, by the broker's, after the queue's maximum of
deliveries. The operator corrects and resubmits the first. The second is resubmitted as it is, once the
worker is fixed.

A resubmitted message is a new one: send it before the dead letter is completed, so that a failure in between
leaves two and not none, and keep its message id, so that two can be told to be one.
"""

from __future__ import annotations

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from common import connection_string, known, own_queues

MAX_DELIVERY_COUNT = 3


class Worker:
    """Takes orders such as `3 tea`."""

    def __init__(self) -> None:
        self.knows_coffee = False
        self.served: list[str] = []

    def handle(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        """Serve one order, or say why not."""
        number, _, drink = str(message).partition(" ")
        if not number.isdecimal():
            receiver.dead_letter_message(
                message, reason="NotAnOrder", error_description="it begins with how many"
            )
        elif drink == "coffee" and not self.knows_coffee:
            receiver.abandon_message(message)  # as after any failure that another attempt may mend
        else:
            self.served.append(str(message))
            print(f"{message.message_id}: served {message}")
            receiver.complete_message(message)

    def run(self, client: ServiceBusClient, queue: str) -> None:
        """Work until nothing is left."""
        with client.get_queue_receiver(queue) as receiver:
            while messages := receiver.receive_messages(max_wait_time=1):
                for message in messages:
                    self.handle(receiver, message)


def resubmit(client: ServiceBusClient, queue: str) -> dict[str, str]:
    """Send each dead letter again, corrected where needed; return the reason of each."""
    reasons: dict[str, str] = {}
    with (
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters,
    ):
        while messages := dead_letters.receive_messages(max_wait_time=1):
            for dead in messages:
                reasons[known(dead.message_id)] = known(dead.dead_letter_reason)
                print(f"{dead.message_id}: '{dead}', dead-lettered for {dead.dead_letter_reason}")
                order = "2 tea" if dead.dead_letter_reason == "NotAnOrder" else str(dead)
                sender.send_messages(ServiceBusMessage(order, message_id=dead.message_id))
                dead_letters.complete_message(dead)
    return reasons


def main() -> None:
    """Send orders that fail, resubmit them, and check that all are served."""
    broker = connection_string()
    settings = {"max_delivery_count": MAX_DELIVERY_COUNT}
    orders = {"order-1": "3 tea", "order-2": "two tea", "order-3": "1 coffee"}
    with (
        own_queues(broker, orders=settings) as (queue,),
        ServiceBusClient.from_connection_string(broker) as client,
    ):
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(text, message_id=name) for name, text in orders.items()])
        worker = Worker()
        worker.run(client, queue)
        assert worker.served == ["3 tea"], "only the first order can be served"
        worker.knows_coffee = True
        reasons = resubmit(client, queue)
        worker.run(client, queue)
    assert reasons == {"order-2": "NotAnOrder", "order-3": "MaxDeliveryCountExceeded"}, "both say why"
    assert sorted(worker.served) == ["1 coffee", "2 tea", "3 tea"], "in the end all are served"


if __name__ == "__main__":
    main()
