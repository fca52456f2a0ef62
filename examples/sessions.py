"""Sessions: related messages stay together, with one consumer at a time and a state.

    python examples/sessions.py

Customers fill baskets, and their messages come mixed. A session for each customer keeps them together: a
consumer accepts the next session, holds it under a lock that it renews, and no other gets a message of it.
The basket is the session's state, kept by the broker: when the consumer goes in the middle, the next one goes
on where it was. State is set before the message is completed; setting it twice does no harm.

Its queue requires sessions.
"""

from __future__ import annotations

import json

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import OperationTimeoutError, SessionCannotBeLockedError
from common import connection_string, known, own_queues

PUT = [("ann", "tea"), ("bob", "milk"), ("ann", "bread"), ("bob", "salt"), ("ann", "jam")]


def fill_basket(receiver: ServiceBusReceiver, message_count: int) -> list[str]:
    """Handle messages of the session that the receiver holds; return the basket."""
    session = receiver.session
    basket: list[str] = json.loads(session.get_state() or b"[]")
    for _ in range(message_count):
        (message,) = receiver.receive_messages(max_wait_time=10)
        basket.append(str(message))
        session.set_state(json.dumps(basket))
        receiver.complete_message(message)
        print(f"{session.session_id}: {basket}")
    return basket


def main() -> None:
    """Fill two baskets, one of them by two consumers after each other."""
    broker = connection_string()
    with (
        own_queues(broker, baskets={"requires_session": True}) as (queue,),
        ServiceBusClient.from_connection_string(broker, retry_total=0) as client,
    ):
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(thing, session_id=customer) for customer, thing in PUT])

        with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as first:
            assert first.session.session_id == "ann", "the session that has been waiting longest"
            fill_basket(first, 1)
            until = known(first.session.locked_until_utc)
            assert first.session.renew_lock() > until, "a renewed lock lasts longer"
            print("ann: the lock is renewed")
            try:
                client.get_queue_receiver(queue, session_id="ann").receive_messages(max_wait_time=10)
            except SessionCannotBeLockedError:
                print("ann: another consumer was refused")
            else:
                raise AssertionError("a session has one consumer at a time")
            with client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION) as second:
                assert second.session.session_id == "bob", "ann's session is held"
                assert fill_basket(second, 2) == ["milk", "salt"]
                second.session.set_state(None)  # the basket is paid for

        with client.get_queue_receiver(queue, session_id="ann") as third:
            print("ann: the next consumer goes on")
            assert fill_basket(third, 2) == ["tea", "bread", "jam"], "the state was kept"
            third.session.set_state(None)

        try:
            third = client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
            third.receive_messages(max_wait_time=1)
        except OperationTimeoutError:
            print("no session is left")
        else:
            raise AssertionError("all sessions are done")


if __name__ == "__main__":
    main()
