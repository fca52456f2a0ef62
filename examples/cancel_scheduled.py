"""Scheduled messages: cancel in good time, for close to the due time it may be too late.

    python examples/cancel_scheduled.py

A reminder is scheduled, and its cause may go away. Until it is due it can be cancelled by its sequence
number. Then it is a message like any other, under a new number, and a cancel of the old one finds nothing.
Activation and cancellation do not wait for each other: a program that cancels close to the due time must be
ready for either, and so must the receiver, which asks once more whether the reminder is still wanted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageNotFoundError
from common import connection_string, own_queues


def main() -> None:
    """Cancel one reminder in good time, and another too late."""
    broker = connection_string()
    with (
        own_queues(broker, reminders={}) as (queue,),
        # Without this the client asks three times more, although the answer stays "not found".
        ServiceBusClient.from_connection_string(broker, retry_total=0) as client,
    ):
        wanted = {"pay": True, "call back": True}
        with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
            now = datetime.now(UTC)
            (pay,) = sender.schedule_messages(ServiceBusMessage("pay"), now + timedelta(hours=1))
            (call,) = sender.schedule_messages(ServiceBusMessage("call back"), now + timedelta(seconds=1))

            wanted["pay"] = False
            sender.cancel_scheduled_messages(pay)
            print("pay: cancelled an hour ahead")

            (reminder,) = receiver.receive_messages(max_wait_time=10)
            wanted["call back"] = False
            try:
                sender.cancel_scheduled_messages(call)
            except MessageNotFoundError:
                print("call back: too late to cancel, the reminder is on its way")
            else:
                raise AssertionError("a message that was activated cannot be cancelled")

            assert str(reminder) == "call back"
            assert reminder.sequence_number != call, "an activated message has a number of its own"
            assert not wanted[str(reminder)], "the receiver asks whether it is still wanted"
            print("call back: received, and not wanted any more: completed without a call")
            receiver.complete_message(reminder)
            assert not receiver.peek_messages(sequence_number=1), "what was cancelled is gone"


if __name__ == "__main__":
    main()
