"""The broker in the calling thread does for effects what the server does."""

from __future__ import annotations

import pytest

from peeklock.broker.commands import Send, UpdateEntity
from peeklock.broker.descriptions import QueueDescription
from peeklock.broker.effects import EntityFound
from peeklock.broker.message import Message
from peeklock.engine.bodies import BUDGET_BYTES
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.playbook import message_bytes


@pytest.mark.parametrize("body_cache_bytes", [1, BUDGET_BYTES])
def test_routing_fields_of_stored_messages_are_read_for_the_core(body_cache_bytes: int) -> None:
    """Whether their bodies are in memory or not. Req: F-01, D-01."""
    broker = InProcessBroker(body_cache_bytes=body_cache_bytes)
    orders = broker.create_queue("orders")
    broker.create_queue("unique", requires_duplicate_detection=True)
    for number in range(6):
        payload = message_bytes(properties=[f"id {number // 2}"])
        broker.offer([Send(orders.entity_id * 4, Message(len(payload)), payload, None)])
        broker.run()
    description = QueueDescription("orders", forward_to="unique")
    assert isinstance(broker.ask(lambda to: UpdateEntity(description, to)), EntityFound)
    broker.advance(1000)
    assert broker.queue("orders").active_count == 0
    assert broker.queue("unique").active_count == 3
    broker.close()
