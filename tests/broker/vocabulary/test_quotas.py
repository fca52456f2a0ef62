"""Limits that hold only where the namespace enforces them (A-05)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peeklock.broker.entities import entities
from peeklock.broker.vocabulary.commands import Address, CloseLink, CreateEntity, Send, SetSessionState
from peeklock.broker.vocabulary.descriptions import QueueDescription
from peeklock.broker.vocabulary.errors import QuotaExceeded
from peeklock.broker.vocabulary.quotas import STANDARD
from tests.broker.harness import EMPTY, Broker, arriving

CHUNK = 64 * 1024 * 1024
KIB = 1024
GIB = 1024 * 1024 * 1024


@pytest.mark.parametrize(("partitioned", "chunks"), [(False, GIB // CHUNK), (True, 16 * GIB // CHUNK)])
def test_an_entity_takes_no_more_than_its_size(partitioned: bool, chunks: int) -> None:
    """Req: A-05, S-02"""
    broker = Broker(replace(STANDARD, message_size_kb_default=CHUNK // 1024), enforce_quotas=True)
    broker.create(enable_partitioning=partitioned)
    for _ in range(chunks):
        broker.send(size=CHUNK)
    error = broker.refused(Send(4, arriving(1), EMPTY, broker.reply_to()))
    assert isinstance(error, QuotaExceeded)
    assert "'orders'" in str(error)
    broker.complete(broker.receive()[0])
    broker.send(size=CHUNK)


def test_the_states_of_sessions_count_too() -> None:
    """Req: A-05, G-03"""
    broker = Broker(replace(STANDARD, message_size_kb_default=CHUNK // 1024), enforce_quotas=True)
    broker.create(requires_session=True)
    broker.accept("a")
    for _ in range(GIB // CHUNK - 1):
        broker.send(size=CHUNK, session_id="b")
    broker.send(size=CHUNK - 256 * KIB, session_id="b")
    full = SetSessionState(Address("orders"), "a", bytes(256 * KIB), broker.reply_to())
    broker.do(full)
    broker.do(full)  # replacing one by another needs no more room
    more = broker.refused(Send(4, arriving(1, session_id="b"), EMPTY, broker.reply_to()))
    assert isinstance(more, QuotaExceeded)


def test_an_entity_has_a_largest_number_of_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: A-05, R-05"""
    monkeypatch.setattr(entities, "RECEIVE_REQUESTS_MAX", 3)
    broker = Broker(enforce_quotas=True)
    broker.create()
    broker.sender()
    links = [broker.receiver() for _ in range(3)]
    wish = broker.wish()
    wish.session = None
    assert isinstance(broker.refused(wish), QuotaExceeded)
    broker.do(CloseLink(links[0]))
    broker.receiver()


def test_a_namespace_has_a_largest_number_of_entities() -> None:
    """Req: A-05"""
    broker = Broker(replace(STANDARD, queues_max=1), enforce_quotas=True)
    broker.create()
    command = CreateEntity(QueueDescription("second"), broker.reply_to())
    assert isinstance(broker.refused(command), QuotaExceeded)
