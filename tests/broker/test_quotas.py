"""Limits that hold only where the namespace enforces them (A-05)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peeklock.broker import entities
from peeklock.broker.commands import Address, CloseLink, CreateQueue, Send, SetSessionState
from peeklock.broker.descriptions import QueueDescription
from peeklock.broker.errors import QuotaExceeded
from peeklock.broker.quotas import STANDARD
from tests.broker.playbook import Broker, arriving

CHUNK = 256 * 1024
GIB = 1024 * 1024 * 1024


def fill(broker: Broker, chunks: int) -> None:
    broker.checks = False
    for _ in range(chunks):
        broker.send(size=CHUNK)
    broker.checks = True


@pytest.mark.parametrize(("partitioned", "chunks"), [(False, GIB // CHUNK), (True, 16 * GIB // CHUNK)])
def test_an_entity_takes_no_more_than_its_size(partitioned: bool, chunks: int) -> None:
    """Req: A-05, S-02"""
    broker = Broker(enforce_quotas=True)
    broker.create(enable_partitioning=partitioned)
    fill(broker, chunks)
    error = broker.refused(Send(4, arriving(1), b"", broker.reply_to()))
    assert isinstance(error, QuotaExceeded)
    assert "'orders'" in str(error)
    broker.complete(broker.receive()[0])
    broker.send(size=CHUNK)


def test_the_states_of_sessions_count_too() -> None:
    """Req: A-05, G-03"""
    broker = Broker(enforce_quotas=True)
    broker.create(requires_session=True)
    broker.accept("a")
    broker.checks = False
    for _ in range(GIB // CHUNK - 1):
        broker.send(size=CHUNK, session_id="b")
    broker.checks = True
    full = SetSessionState(Address("orders"), "a", bytes(CHUNK), broker.reply_to())
    broker.do(full)
    broker.do(full)  # replacing one by another needs no more room
    more = broker.refused(Send(4, arriving(1, session_id="b"), b"", broker.reply_to()))
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
    command = CreateQueue(QueueDescription("second"), broker.reply_to())
    assert isinstance(broker.refused(command), QuotaExceeded)
