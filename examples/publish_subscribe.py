"""Publish and subscribe: the sender does not know the receivers, and each receiver says what it wants.

    python examples/publish_subscribe.py

Orders are sent once, to a topic, and each subscription has copies of those that its rules choose: the archive
of all, the coffee bar of those with a certain subject (a correlation filter, which compares and no more), the
wholesale of large ones (a SQL filter, which can calculate). Each copy is a separate message: what the bar
completes is still in the archive.

A subscription that is made later has what is sent from then on. A message that no rule chooses is gone, which
is no error: where that must not be, keep a subscription that takes all.
"""

from __future__ import annotations

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter
from common import administration, connection_string, own_topic

ORDERS = [("tea", 2), ("coffee", 1), ("coffee", 400), ("tea", 300)]

LARGE = SqlRuleFilter("amount >= @least", parameters={"@least": 100})


def order(drink: str, amount: int) -> ServiceBusMessage:
    """Make the message of an order: rules see its subject and properties, and never its body."""
    return ServiceBusMessage(f"{amount} {drink}", subject=drink, application_properties={"amount": amount})


def show(client: ServiceBusClient, topic: str, subscription: str, message_count: int) -> list[str]:
    """Receive and complete what a subscription has."""
    orders: list[str] = []
    with client.get_subscription_receiver(topic, subscription) as receiver:
        while len(orders) < message_count:
            for message in receiver.receive_messages(message_count, max_wait_time=10):
                orders.append(str(message))
                receiver.complete_message(message)
    print(f"{subscription}: {', '.join(orders)}")
    return orders


def main() -> None:
    """Send orders to a topic, and see which subscription has which."""
    broker = connection_string()
    with (
        own_topic(
            broker,
            "orders",
            archive={},
            bar={"rules": {"coffee": {"filter": CorrelationRuleFilter(label="coffee")}}},
            wholesale={"rules": {"large": {"filter": LARGE}}},
        ) as topic,
        administration(broker) as admin,
        ServiceBusClient.from_connection_string(broker) as client,
        client.get_topic_sender(topic) as sender,
    ):
        sender.send_messages([order(drink, amount) for drink, amount in ORDERS])
        admin.create_subscription(topic, "latecomer")
        sender.send_messages(order("water", 1))

        assert show(client, topic, "bar", 2) == ["1 coffee", "400 coffee"], "chosen by the subject"
        assert show(client, topic, "wholesale", 2) == ["400 coffee", "300 tea"], "chosen by the amount"
        assert show(client, topic, "latecomer", 1) == ["1 water"], "sent after it was made"
        assert len(show(client, topic, "archive", 5)) == 5, "whatever others did with their copies"


if __name__ == "__main__":
    main()
