"""One entity, many spellings."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.commands import SubQueue
from peeklock.gateway.address import NodeKind, parse_node, shown

MAIN, DEAD, TRANSFER = SubQueue.MAIN, SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER
ENTITY, MANAGEMENT = NodeKind.ENTITY, NodeKind.MANAGEMENT


@pytest.mark.parametrize(
    ("text", "kind", "entity", "sub_queue", "path"),
    [
        ("orders", ENTITY, "orders", MAIN, "orders"),
        ("/orders", ENTITY, "orders", MAIN, "orders"),
        ("Orders/", ENTITY, "Orders", MAIN, "orders"),
        ("amqps://localhost:5672/orders", ENTITY, "orders", MAIN, "orders"),
        ("amqps://ns.servicebus.windows.net/orders", ENTITY, "orders", MAIN, "orders"),
        ("sb://localhost/a/b/c", ENTITY, "a/b/c", MAIN, "a/b/c"),
        ("a%2Fb%20c", ENTITY, "a/b c", MAIN, "a/b c"),
        ("sb://localhost/.Fault--/_b./", ENTITY, ".Fault--/_b.", MAIN, ".fault--/_b."),
        ("Fault--/$DeadLetterQueue", ENTITY, "Fault--", DEAD, "fault--/$deadletterqueue"),
        ("orders/$DeadLetterQueue", ENTITY, "orders", DEAD, "orders/$deadletterqueue"),
        ("orders/$deadletterqueue", ENTITY, "orders", DEAD, "orders/$deadletterqueue"),
        (
            "orders/$Transfer/$DeadLetterQueue",
            ENTITY,
            "orders",
            TRANSFER,
            "orders/$transfer/$deadletterqueue",
        ),
        ("orders/$management", MANAGEMENT, "orders", MAIN, "orders/$management"),
        ("/orders/$Management", MANAGEMENT, "orders", MAIN, "orders/$management"),
        (
            "orders/$DeadLetterQueue/$management",
            MANAGEMENT,
            "orders",
            DEAD,
            "orders/$deadletterqueue/$management",
        ),
        ("topic/Subscriptions/sub", ENTITY, "topic/Subscriptions/sub", MAIN, "topic/subscriptions/sub"),
        ("/topic/Subscriptions/sub", ENTITY, "topic/Subscriptions/sub", MAIN, "topic/subscriptions/sub"),
        (
            "amqps://localhost:5671/a/b/subscriptions/sub",
            ENTITY,
            "a/b/subscriptions/sub",
            MAIN,
            "a/b/subscriptions/sub",
        ),
        (
            "topic/Subscriptions/sub/$DeadLetterQueue",
            ENTITY,
            "topic/Subscriptions/sub",
            DEAD,
            "topic/subscriptions/sub/$deadletterqueue",
        ),
        (
            "amqps://localhost/topic/Subscriptions/sub/$Transfer/$DeadLetterQueue",
            ENTITY,
            "topic/Subscriptions/sub",
            TRANSFER,
            "topic/subscriptions/sub/$transfer/$deadletterqueue",
        ),
        (
            "topic/Subscriptions/sub/$management",
            MANAGEMENT,
            "topic/Subscriptions/sub",
            MAIN,
            "topic/subscriptions/sub/$management",
        ),
        (
            "topic/Subscriptions/sub/$DeadLetterQueue/$management",
            MANAGEMENT,
            "topic/Subscriptions/sub",
            DEAD,
            "topic/subscriptions/sub/$deadletterqueue/$management",
        ),
        ("$cbs", NodeKind.CBS, "", MAIN, "$cbs"),
        ("/$CBS", NodeKind.CBS, "", MAIN, "$cbs"),
        ("amqps://localhost/$cbs", NodeKind.CBS, "", MAIN, "$cbs"),
        ("sb://localhost/", ENTITY, "", MAIN, ""),
        ("sb://localhost", ENTITY, "", MAIN, ""),
        ("$management", ENTITY, "$management", MAIN, "$management"),
        ("", ENTITY, "", MAIN, ""),
    ],
)
def test_every_sdk_s_spelling_means_the_same_node(
    text: str, kind: NodeKind, entity: str, sub_queue: SubQueue, path: str
) -> None:
    """Req: T-11. Source: wire contract 0.5."""
    node = parse_node(text)
    assert (node.kind, node.address.path, node.address.sub_queue, node.path) == (
        kind,
        entity,
        sub_queue,
        path,
    )


def test_an_address_is_shown_with_its_sub_queue() -> None:
    assert shown(parse_node("/orders/$deadletterqueue").address) == "orders/$deadletterqueue"
    assert shown(parse_node("orders").address) == "orders"
