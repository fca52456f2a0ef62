"""A namespace that is locked against deletion."""

from __future__ import annotations

import pytest

from peeklock.broker.vocabulary.commands import DeleteEntity
from peeklock.broker.vocabulary.errors import EntityNotFound, InvalidOperation
from tests.broker.harness import MINUTE_MS, Broker


@pytest.fixture
def broker() -> Broker:
    made = Broker(delete_lock=True)
    made.create(auto_delete_on_idle_ms=5 * MINUTE_MS)
    return made


def test_nobody_can_delete_and_the_refusal_names_the_lock(broker: Broker) -> None:
    """Req: A-03"""
    broker.send()
    error = broker.refused(DeleteEntity("orders", broker.reply_to()))
    assert type(error) is InvalidOperation
    assert str(error) == "'orders' cannot be deleted: the namespace has the lock CanNotDelete"
    assert len(broker.receive()) == 1


def test_what_is_not_there_is_still_said_not_to_be(broker: Broker) -> None:
    assert type(broker.refused(DeleteEntity("absent", broker.reply_to()))) is EntityNotFound


def test_idleness_deletes_all_the_same(broker: Broker) -> None:
    """Req: A-03"""
    broker.advance(5 * MINUTE_MS)
    assert broker.namespace.entity_views() == []
