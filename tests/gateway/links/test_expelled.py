"""A peer that was sent away."""

from __future__ import annotations

from typing import Any

from peeklock.amqp.events import ConnectionClosed
from peeklock.auth import Authority, Grant, SasRule
from peeklock.gateway.context import GatewayLimits
from tests.gateway.harness import KEY, KEY_NAME, Harness, message_bytes


class _Counting(Authority):
    asked = 0

    def authorize(self, *given: Any) -> Grant:
        self.asked += 1
        return super().authorize(*given)


def test_what_it_has_sent_besides_is_not_looked_at() -> None:
    """Req: R-05. It may have sent hundreds of tokens in one go, each of which costs as much as a send."""
    authority = _Counting([SasRule(KEY_NAME, KEY)])
    rig = Harness(mechanism="ANONYMOUS", authority=authority, limits=GatewayLimits(refusals_max=3))
    cbs, _ = rig.pair("$cbs")
    token = message_bytes(
        "SharedAccessSignature sr=x&sig=y&se=1&skn=z",
        application_properties={
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": "sb://localhost/orders",
        },
    )
    for number in range(90):
        rig.client.send(rig.channel, cbs, number.to_bytes(4, "big"), token)
    rig.pump()
    assert authority.asked == 3
    assert rig.take_event(ConnectionClosed).error is not None
