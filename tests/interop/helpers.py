"""Short helpers that many tests use."""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusMessage

WAIT_S = 10
"""For messages that are there: how long a loaded machine may take to deliver them."""

NOTHING_S = 0.3
"""For messages that must not be there: they are available at once or never."""


def send(client: Any, queue: str, *bodies: str, **settings: Any) -> None:
    """Send a message for each body, as one list."""
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(body, **settings) for body in bodies])


def publish(client: Any, topic: str, *bodies: str, **settings: Any) -> None:
    """Send a message for each body to a topic, as one list."""
    with client.get_topic_sender(topic) as sender:
        sender.send_messages([ServiceBusMessage(body, **settings) for body in bodies])


def take(receiver: Any, count: int = 1, wait_s: float = WAIT_S) -> list[Any]:
    """Receive exactly `count` messages, in as many calls as it takes."""
    messages: list[Any] = []
    while len(messages) < count:
        more = receiver.receive_messages(max_message_count=count - len(messages), max_wait_time=wait_s)
        assert more, f"received {len(messages)} of {count} messages"
        messages += more
    return messages


def take_one(receiver: Any) -> Any:
    """Receive one message."""
    return take(receiver)[0]


def assert_empty(receiver: Any) -> None:
    """Check that nothing can be received."""
    assert bodies(receiver.receive_messages(max_message_count=10, max_wait_time=NOTHING_S)) == []


def bodies(messages: list[Any]) -> list[str]:
    """Return the text of each message."""
    return [str(message) for message in messages]
