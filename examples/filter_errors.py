"""A rule that cannot be evaluated: the message is a dead letter, and says why.

    python examples/filter_errors.py

Parcels with heavy boxes go to a crane. One parcel has no boxes at all, so that the rule divides by zero. It
is neither heavy nor light, and guessing would lose it: it goes to the dead-letter queue of the subscription,
with what was wrong. (A subscription made with `dead_lettering_on_filter_evaluation_exceptions` off takes the
rule for false instead.) A property that is missing is no error: what is asked of it is unknown, and the rule
does not choose the message.

The rule is corrected while all runs. The dead letter is worked off where it lies: sent to the topic again, it
would come to all the other subscriptions a second time.
"""

from __future__ import annotations

from typing import Any

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus.management import SqlRuleFilter
from common import Properties, administration, connection_string, own_topic

PARCELS: list[tuple[str, Properties]] = [
    ("piano", {"weight": 400, "boxes": 1}),
    ("books", {"weight": 200, "boxes": 20}),
    ("nothing", {"weight": 0, "boxes": 0}),
    ("letter", {}),
]


def send(sender: ServiceBusSender) -> None:
    """Send all parcels."""
    sender.send_messages([ServiceBusMessage(name, application_properties=about) for name, about in PARCELS])


def take(receiver: ServiceBusReceiver) -> Any:
    """Receive and complete one message."""
    (message,) = receiver.receive_messages(max_wait_time=10)
    receiver.complete_message(message)
    return message


def main() -> None:
    """Send parcels, look at the dead letter, correct the rule, and send them again."""
    broker = connection_string()
    heavy = {"filter": SqlRuleFilter("weight / boxes > 50")}
    with (
        own_topic(broker, "parcels", crane={"rules": {"heavy": heavy}}) as topic,
        administration(broker) as admin,
        ServiceBusClient.from_connection_string(broker) as client,
        client.get_topic_sender(topic) as sender,
        client.get_subscription_receiver(topic, "crane") as crane,
        client.get_subscription_receiver(
            topic, "crane", sub_queue=ServiceBusSubQueue.DEAD_LETTER
        ) as dead_letters,
    ):
        send(sender)
        first = take(crane)
        print(f"crane: {first}")
        dead = take(dead_letters)
        print(f"dead letter: {dead}, because {dead.dead_letter_reason}")
        print(dead.dead_letter_error_description)
        assert (str(first), str(dead)) == ("piano", "nothing"), "books and letter are not chosen"

        rule = admin.get_rule(topic, "crane", "heavy")
        rule.filter = SqlRuleFilter("weight > 50 * boxes")
        admin.update_rule(topic, "crane", rule)
        send(sender)
        print(f"with the corrected rule, crane: {take(crane)}")
        counts = admin.get_subscription_runtime_properties(topic, "crane")
        assert counts.total_message_count == 0, "no further copy and no further dead letter"


if __name__ == "__main__":
    main()
