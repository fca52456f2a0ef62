"""The broker in the calling thread does for effects what the server does."""

from __future__ import annotations

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import scan
from peeklock.broker.vocabulary.commands import Send, UpdateEntity
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.effects import EntityFound, MatchingDeleted, MessagesMatched
from peeklock.broker.vocabulary.extension_commands import DeleteMatching, SearchMessages
from peeklock.broker.vocabulary.message import Message
from peeklock.engine.bodies import BUDGET_BYTES
from peeklock.rules.filters import SqlFilter
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import message_bytes


@pytest.mark.parametrize("body_cache_bytes", [1, BUDGET_BYTES])
def test_routing_fields_of_stored_messages_are_read_for_the_core(body_cache_bytes: int) -> None:
    """Whether their bodies are in memory or not. Req: F-01, D-01."""
    broker = InProcessBroker(body_cache_bytes=body_cache_bytes)
    orders = broker.create_queue("orders")
    broker.create_queue("unique", requires_duplicate_detection=True)
    for number in range(6):
        payload = message_bytes(properties=[f"id {number // 2}"])
        broker.offer([Send(orders.entity_id * 4, Message(len(payload)), scan(payload), None)])
        broker.run()
    description = QueueDescription("orders", forward_to="unique")
    assert isinstance(broker.ask(lambda to: UpdateEntity(description, to)), EntityFound)
    broker.advance(1000)
    assert broker.queue("orders").active_count == 0
    assert broker.queue("unique").active_count == 3
    broker.close()


@pytest.mark.parametrize("body_cache_bytes", [1, BUDGET_BYTES])
def test_messages_are_found_by_properties_whether_they_are_in_memory_or_not(body_cache_bytes: int) -> None:
    """Req: A-08"""
    broker = InProcessBroker(body_cache_bytes=body_cache_bytes)
    orders = broker.create_queue("orders")
    for number in range(300):
        payload = encode_message(application_properties={"n": number}, data=bytes(2_000))
        broker.offer([Send(orders.entity_id * 4, Message(len(payload)), scan(payload), None)])
        broker.run()
    where = SqlFilter("n % 100 = 7")
    found = broker.ask(lambda to: SearchMessages(to, where, None, None, 9))
    assert isinstance(found, MessagesMatched)
    assert [match.view.message.sequence_number for match in found.matches] == [8, 108, 208]
    deleted = broker.ask(lambda to: DeleteMatching(to, where, None, None, 9))
    assert isinstance(deleted, MatchingDeleted)
    assert (deleted.deleted, deleted.locked, deleted.next) == (3, 0, None)
    assert broker.queue("orders").active_count == 297
    broker.close()
