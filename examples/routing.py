"""Routing by content: a topic in front of queues, whose subscriptions pass on what belongs there.

    python examples/routing.py

Invoices are sent to one place and end in the queue of the department that handles them. Each
subscription forwards to one queue; the message is passed on within the broker, in the moment in which it is
sent. A rule's action writes on the copy what the department needs, so that neither the sender nor the
worker knows it: that it is urgent, and the session it belongs to, since the queue of the large ones has
sessions and is worked off customer by customer.

What no rule chooses would be gone. So the last subscription takes what the others do not: its rule says NOT
what theirs say, and asks for what is missing besides, for which neither a rule nor its opposite is true.
"""

from __future__ import annotations

from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.management import SqlRuleAction, SqlRuleFilter
from common import Properties, connection_string, known, own_queues, own_topic

INVOICES: list[tuple[str, Properties]] = [
    ("invoice-1", {"customer": "ann", "total": 40}),
    ("invoice-2", {"customer": "bob", "total": 7_000}),
    ("invoice-3", {"customer": "ann", "total": 9_000, "due": "today"}),
    ("invoice-4", {"customer": "bob"}),
]


RULES: dict[str, dict[str, Any]] = {
    "small": {"small": {"filter": SqlRuleFilter("total < 1000")}},
    "large": {
        "large": {
            "filter": SqlRuleFilter("total >= 1000 AND due IS NULL"),
            "action": SqlRuleAction("SET sys.SessionId = customer"),
        },
        "urgent": {
            "filter": SqlRuleFilter("total >= 1000 AND due IS NOT NULL"),
            "action": SqlRuleAction("SET sys.SessionId = customer; SET urgent = TRUE; REMOVE due"),
        },
    },
    "unclear": {"rest": {"filter": SqlRuleFilter("NOT (total < 1000 OR total >= 1000) OR total IS NULL")}},
}
"""What goes to which queue."""


def take(receiver: ServiceBusReceiver) -> str:
    """Receive and complete one message; return it with what the rule wrote on it."""
    (message,) = receiver.receive_messages(max_wait_time=10)
    receiver.complete_message(message)
    return f"{message} (urgent)" if known(message.application_properties).get(b"urgent") else str(message)


def main() -> None:
    """Send invoices to one topic, and find each in its queue."""
    broker = connection_string()
    with own_queues(broker, small={}, large={"requires_session": True}, unclear={}) as queues:
        small, large, unclear = queues
        passing = {
            name: {"forward_to": queue, "rules": rules}
            for queue, (name, rules) in zip(queues, RULES.items(), strict=True)
        }
        with (
            own_topic(broker, "invoices", **passing) as topic,
            ServiceBusClient.from_connection_string(broker) as client,
        ):
            with client.get_topic_sender(topic) as sender:
                sender.send_messages(
                    [ServiceBusMessage(name, application_properties=about) for name, about in INVOICES]
                )
            with client.get_queue_receiver(small) as receiver:
                found = take(receiver)
                print(f"small: {found}")
                assert found == "invoice-1", "it is below 1000"
            for customer, expected in (("bob", "invoice-2"), ("ann", "invoice-3 (urgent)")):
                with client.get_queue_receiver(large, session_id=NEXT_AVAILABLE_SESSION) as receiver:
                    found = take(receiver)
                    print(f"large, {receiver.session.session_id}: {found}")
                    assert (receiver.session.session_id, found) == (customer, expected), "as its rule says"
            with client.get_queue_receiver(unclear) as receiver:
                found = take(receiver)
                print(f"unclear: {found}")
                assert found == "invoice-4", "it has no total"


if __name__ == "__main__":
    main()
