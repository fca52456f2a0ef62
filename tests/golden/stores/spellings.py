"""`python -m tests.golden.stores.spellings FOLDER`: write a store of sessions that differ in case alone.

Run once, by the last release that took them for different sessions; `test_golden_sessions` states what is in
it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import Modified
from peeklock.testing.clock import ManualClock
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness
from tests.gateway.live import accept, message, request, send
from tests.store.synchronous import Synchronous

NOW_MS = 1_700_000_000_000
SPELLINGS = ("order-ä", "ORDER-Ä", "Order-Ä")
"""Of one session, in the order in which they were used."""

OTHERS = ("ΣΊΣΥΦΟΣ", "σίσυφος")
"""Of another one, whose last letter has two small forms."""

STATES = (b"set first", b"set last")
"""Of the first two spellings."""

QUEUE: dict[str, Any] = {"requires_session": True, "lock_duration_ms": 60_000}
ENTITIES = ("plain", "wide", "events/Subscriptions/wide")


def make(folder: Path) -> None:
    store: Any = Synchronous(folder)
    clock = ManualClock(NOW_MS)
    broker = InProcessBroker(store=store, clock=clock)
    broker.create_queue("plain", **QUEUE)
    broker.create_queue("wide", **QUEUE, enable_partitioning=True, requires_duplicate_detection=True)
    broker.create_topic("events", enable_partitioning=True)
    broker.create_subscription("events", "wide", **QUEUE)
    rig = LiveHarness(broker)
    for address in ENTITIES:
        top = address.split("/")[0]
        for number in range(3):
            for spelling in (*SPELLINGS, *OTHERS):
                clock.advance(1)
                send(rig, message(f"{spelling} {number}", spelling), to=top)
        for spelling, state in zip(SPELLINGS, STATES, strict=False):
            clock.advance(1)
            handle, _ = accept(rig, spelling, address=address, credit=1)
            [first] = [event for event in rig.deliveries() if event.handle == handle]
            assert scan(first.payload).decode_body()[0][1].decode() == f"{spelling} 0"
            rig.settle(first.delivery_id, first.delivery_id, Modified(True, True))
            body = {"session-id": spelling, "session-state": state}
            assert request(rig, address, "set-session-state", body).status == 200
            rig.client.detach(rig.channel, handle)
            rig.pump()
            rig.events.clear()
    rig.client.close()
    rig.pump()
    store.end()
    (folder / "peeklock.lock").unlink()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
