"""Credit with boundary values against a whole broker: it is echoed, and the connection goes on."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp import composites
from peeklock.amqp.composites import composite
from peeklock.amqp.frames import frame
from peeklock.amqp.types import Role, UInt
from peeklock.testing.inprocess import InProcessBroker
from tests.amqp.pair import frames_of
from tests.gateway.harness import LiveHarness
from tests.gateway.live import bodies, message, send

HALF = 2**31


@pytest.mark.parametrize(
    ("mechanism", "address"),
    [("ANONYMOUS", "$cbs"), ("PLAIN", "orders"), ("PLAIN", "orders/$management")],
)
@pytest.mark.parametrize(("delivery_count", "credit"), [(1, 2**32 - 1), (HALF - 1, HALF + 1)])
def test_credit_from_a_count_ahead_of_ours_is_echoed_within_32_bits(
    mechanism: str, address: str, delivery_count: int, credit: int
) -> None:
    """Req: R-05."""
    broker = InProcessBroker()
    broker.create_queue("orders")
    rig = LiveHarness(broker, mechanism=mechanism)
    handle = rig.attach(Role.RECEIVER, address, near=address)
    rig.sent = b""
    values: list[Any] = [UInt(0), UInt(65536), UInt(0), UInt(65536)]
    values += [UInt(handle), UInt(delivery_count), UInt(credit), None, False, True]
    rig.write(frame(rig.channel, composite(composites.FLOW, values)))
    [fields] = [fields for _, code, fields, _ in frames_of(rig.sent) if code == composites.FLOW]
    assert fields[4:7] == [handle, 0, HALF - 1]
    if address == "orders":
        send(LiveHarness(broker), message("one"))
        rig.pump()
        assert bodies(rig.deliveries()) == ["one"]
