"""Scenarios of the .NET client with boundary values put in."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from peeklock.amqp.link import Link
from peeklock.amqp.serial import distance
from peeklock.testing.inprocess import InProcessBroker
from tests.fuzz import replays
from tests.fuzz.performatives import Failed
from tests.fuzz.replays import Replay, corpus, run_replays
from tests.interop.dotnet.drivers import create
from tests.interop.dotnet.scenario import load

SEEDS = 60


@pytest.mark.parametrize("part", range(6))
def test_no_changed_scenario_meets_a_defect(part: int) -> None:
    """Req: R-05."""
    for seed in range(part, SEEDS, 6):
        run_replays(seed)


def test_a_replay_without_changes_goes_as_deep_as_the_scenario() -> None:
    """The lock tokens and numbers in its requests are those that the broker issues again."""
    name = "06-the-four-settlements"
    broker = InProcessBroker()
    create(broker, load(name).entities)
    for recorded in corpus()[name]:
        wire = broker.connect()
        for unit in recorded:
            wire.write(unit)
        assert b"message-not-found" in wire.read()  # of the last request
        wire.end()
    assert broker.queue("w-q").active_count == 0
    assert broker.queue("w-q").dead_letter_count == 4


@pytest.mark.long
def test_a_flow_without_a_delivery_count_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The field is null in a flow that is sent before the attach is answered (AMQP 2.7.4)."""

    def granted_by_peer(link: Link, delivery_count: int, credit: int) -> None:
        base = link.counted + distance(link.delivery_count, delivery_count)
        link.granted = max(base + credit, link.counted)

    corpus()
    monkeypatch.setattr(replays, "CHANGED", 0.3)
    monkeypatch.setattr(Link, "granted_by_peer", granted_by_peer)
    with pytest.raises(Failed) as found:
        deque(map(run_replays, range(10 * SEEDS)), maxlen=0)
    assert isinstance(found.value.__cause__, TypeError)
    assert found.value.__notes__


def test_a_seed_writes_the_same_bytes_again() -> None:
    def written() -> list[bytes]:
        random = Random(7)
        return [b"".join(Replay(random, each).reads()) for one in corpus().values() for each in one]

    assert written() == written()
    assert written() != [b"".join(each) for one in corpus().values() for each in one]
