"""A store in which sessions that differ in case alone were different ones: it opens and drains.

`tests.golden.stores.spellings` wrote it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import ACCEPTED
from peeklock.amqp.types import Array, Long, Timestamp, UInt
from peeklock.store.check import SOUND, check
from peeklock.testing.clock import ManualClock
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness
from tests.gateway.live import accept, bodies, message, request, send
from tests.golden.stores.spellings import ENTITIES, NOW_MS, OTHERS, SPELLINGS, STATES
from tests.store.synchronous import Synchronous

GOLDEN = Path(__file__).parent.parent / "golden" / "stores" / "spellings"
PEEK = {"from-sequence-number": Long(0), "message-count": 99}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def broker(folder: Path) -> Iterator[InProcessBroker]:
    store: Any = Synchronous(folder)
    broker = InProcessBroker(store=store, clock=ManualClock(NOW_MS + 120_000))
    broker.namespace.check(broker.clock.now_ms)
    yield broker
    broker.namespace.check(broker.clock.now_ms)
    store.end()
    assert check(folder).exit_status == SOUND


def peeked(desk: LiveHarness, address: str, session_id: str) -> list[tuple[int, str]]:
    """Return number and body of each message that a peek of a session shows."""
    found = request(desk, address, "peek-message", {**PEEK, "session-id": session_id})
    sections = [scan(item["message"]) for item in found.body.get("messages", [])]
    return [
        (each.decode_message_annotations()["x-opt-sequence-number"], each.decode_body()[0][1].decode())
        for each in sections
    ]


def in_order(spellings: tuple[str, ...], first: int) -> list[str]:
    return [f"{spelling} {number}" for number in range(first, 3) for spelling in spellings]


@pytest.mark.parametrize("address", ENTITIES)
def test_two_sessions_become_one_and_drain_in_order(address: str, broker: InProcessBroker) -> None:
    """Its messages may be in several partitions. Req: C27, R-07"""
    desk = LiveHarness(broker)
    asked = {"last-updated-time": Timestamp(253_402_300_799_999), "skip": UInt(0), "top": UInt(10)}
    listed = request(desk, address, "get-message-sessions", asked).body["sessions-ids"]
    assert list(listed) == [SPELLINGS[0], OTHERS[0]]
    shown = peeked(desk, address, "ORDER-ä")
    assert [number for number, _ in shown] == sorted(number for number, _ in shown)
    handle, session_id = accept(desk, address=address, credit=99)
    assert session_id == SPELLINGS[0]
    found = desk.deliveries()
    assert bodies(found) == in_order(SPELLINGS, 0)[2:]
    desk.settle(found[0].delivery_id, found[-1].delivery_id, ACCEPTED)
    state = request(desk, address, "get-session-state", {"session-id": "ORDER-ä"})
    assert state.body["session-state"] == STATES[1]
    deferred = [number for number, body in shown if body in in_order(SPELLINGS, 0)[:2]]
    body = {
        "sequence-numbers": Array.of(Long, deferred),
        "receiver-settle-mode": UInt(0),
        "session-id": "Order-ä",
    }
    items = request(desk, address, "receive-by-sequence-number", body).body["messages"]
    assert {scan(item["message"]).decode_properties().group_id for item in items} == {*SPELLINGS[:2]}
    desk.client.detach(desk.channel, handle)
    desk.pump()
    desk.events.clear()
    accept(desk, OTHERS[1], address=address, credit=99)
    assert bodies(desk.deliveries()) == in_order(OTHERS, 0)
    assert peeked(desk, address, SPELLINGS[2]) == []


def test_the_state_that_was_set_last_counts_and_the_other_is_gone_for_good(
    broker: InProcessBroker,
) -> None:
    """Req: C27, G-03"""
    assert broker.namespace.replaced_states() == []  # the broker has done what was due
    for address in ENTITIES:
        desk = LiveHarness(broker)
        accept(desk, SPELLINGS[1], address=address)
        request(desk, address, "set-session-state", {"session-id": SPELLINGS[1], "session-state": None})
        assert request(desk, address, "get-session-state", {"session-id": SPELLINGS[0]}).body == {
            "session-state": None
        }


def test_duplicates_of_the_older_release_are_known_by_their_spelling(broker: InProcessBroker) -> None:
    """Req: C27, D-01"""
    desk = LiveHarness(broker)
    before = len(peeked(desk, "wide", SPELLINGS[0]))
    send(desk, message(f"{SPELLINGS[0]} 1", SPELLINGS[0]), to="wide")
    assert len(peeked(desk, "wide", SPELLINGS[0])) == before
    send(desk, message(f"{SPELLINGS[0]} 1", SPELLINGS[2]), to="wide")
    assert len(peeked(desk, "wide", SPELLINGS[0])) == before + 1
