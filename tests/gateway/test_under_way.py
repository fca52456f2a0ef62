"""What a send holds in memory until it is answered, beside what its connection counts for it."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from peeklock.amqp.messaging import BATCH_FORMAT
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import LiveHarness, message_bytes, section

COUNT = 900


@pytest.mark.parametrize("body_bytes", [0, 1024])
@pytest.mark.parametrize("together", [1, 100])
def test_what_counts_for_a_send_is_what_it_takes(body_bytes: int, together: int) -> None:
    """Req: T-08. As a command, as a change of the open batch, and in the batch under way: the most of it."""
    broker = InProcessBroker()
    broker.create_queue("orders")
    rig = LiveHarness(broker)
    sender = rig.sender()
    rig.transfer(sender, message_bytes())  # the first one makes what all share
    message = message_bytes(bytes(body_bytes))
    payload = message if together == 1 else section(0x75, message) * together
    reads = []  # each a command of its own: what comes in a row takes less
    for _ in range(COUNT // together):
        rig.client.send(
            rig.channel, sender, b"tag", payload, message_format=0 if together == 1 else BATCH_FORMAT
        )
        reads.append(rig.client.data_to_send())
    driver, now_ms = broker.driver, broker.clock.now_ms
    held = []
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        commands = [command for data in reads for command in rig.gateway.receive(data, now_ms)]
        counted = rig.gateway.uncommitted_bytes
        held.append(tracemalloc.get_traced_memory()[0])
        driver.offer(commands, now_ms)
        del commands
        held.append(tracemalloc.get_traced_memory()[0])
        actions = driver.step(now_ms)
        held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
        gc.enable()
    assert actions
    assert max(held) <= counted
    assert counted < (1.1 if together == 1 else 1.4) * max(held)
