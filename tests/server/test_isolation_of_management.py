"""Each operation of the management node is asked of one namespace with the locks and numbers of another.

So are its sessions and cursors. The same request works in that other one, so that none is refused for its
form. A new operation needs its request here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from peeklock.amqp.types import Array, Int, Long, Timestamp
from peeklock.client import DEFER, ServiceBusError, encode_message
from peeklock.demo.broker import BrokerProcess
from peeklock.gateway.nodes.management import OPERATIONS
from tests.server.sides import ENTITIES, Side, sides

ALL = "news/Subscriptions/all"


class Held:
    """What a namespace holds that a request can name."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.secret = f"of-{side.name}"
        side.send("orders", *[f"{self.secret} {number}" for number in range(4)])
        self._orders = side.receiver("orders")
        deferred, locked = self._orders.receive(2, 10)
        self._orders.settle(deferred, DEFER)
        self._orders.flush()
        self.tokens = Array.of(UUID, [UUID(bytes_le=locked.lock_token)])
        self.claim = side.ask("orders", "peeklock:cursor-claim", claim("reader"))["claim"]
        [self.scheduled] = side.ask("orders", "com.microsoft:schedule-message", later())["sequence-numbers"]
        side.send("carts", f"{self.secret} item", session="s1")
        self._carts = side.receiver("carts", "s1")
        self._carts.receive(1, 10)
        state = {"session-id": "s1", "session-state": self.secret.encode()}
        side.ask("carts", "com.microsoft:set-session-state", state)
        side.ask(ALL, "com.microsoft:add-rule", rule(f"rule-{self.secret}"))


def claim(cursor: str) -> dict[str, Any]:
    return {"cursor": cursor, "max-messages": Int(1), "max-bytes": Int(1000)}


def later() -> dict[str, Any]:
    at = Timestamp(round(time.time() + 86_400) * 1000)
    payload = encode_message(message_annotations={"x-opt-scheduled-enqueue-time": at}, data=b"later")
    return {"messages": [{"message": payload, "message-id": "later"}]}


def rule(name: str) -> dict[str, Any]:
    return {"rule-name": name, "rule-description": {"sql-filter": {"expression": "1=0"}}}


REQUESTS: dict[str, tuple[str, Callable[[Held], dict[str, Any]]]] = {
    "com.microsoft:renew-lock": ("orders", lambda of: {"lock-tokens": of.tokens}),
    "com.microsoft:peek-message": (
        "orders",
        lambda of: {"from-sequence-number": Long(0), "message-count": Int(100)},
    ),
    "com.microsoft:schedule-message": ("orders", lambda of: later()),
    "com.microsoft:cancel-scheduled-message": (
        "orders",
        lambda of: {"sequence-numbers": Array.of(Long, [of.scheduled])},
    ),
    "com.microsoft:receive-by-sequence-number": (
        "orders",
        lambda of: {"sequence-numbers": Array.of(Long, [Long(1)]), "receiver-settle-mode": Int(0)},
    ),
    "com.microsoft:update-disposition": (
        "orders",
        lambda of: {"lock-tokens": of.tokens, "disposition-status": "completed"},
    ),
    "com.microsoft:batch-delete-messages": (
        "orders",
        lambda of: {"message-count": Int(100), "enqueued-time-utc": Timestamp(2**42)},
    ),
    "com.microsoft:renew-session-lock": ("carts", lambda of: {"session-id": "s1"}),
    "com.microsoft:get-session-state": ("carts", lambda of: {"session-id": "s1"}),
    "com.microsoft:set-session-state": ("carts", lambda of: {"session-id": "s1", "session-state": b"x"}),
    "com.microsoft:get-message-sessions": (
        "carts",
        lambda of: {"last-updated-time": Timestamp(2**48), "skip": Int(0), "top": Int(100)},
    ),
    "com.microsoft:add-rule": (ALL, lambda of: rule("new")),
    "com.microsoft:remove-rule": (ALL, lambda of: {"rule-name": f"rule-{of.secret}"}),
    "com.microsoft:enumerate-rules": (ALL, lambda of: {"skip": Int(0), "top": Int(100)}),
    "peeklock:purge-messages": ("orders", lambda of: {}),
    "peeklock:cursor-take": (
        "orders",
        lambda of: {"cursor": "reader", "owner": "another", "take-over": True},
    ),
    "peeklock:cursor-claim": ("orders", lambda of: claim("reader")),
    "peeklock:cursor-read": (
        "orders",
        lambda of: {**claim("reader"), "claim": Long(of.claim), "skip": Int(0), "max-messages": Int(100)},
    ),
    "peeklock:cursor-commit": ("orders", lambda of: {"cursor": "reader", "claim": Long(of.claim)}),
    "peeklock:cursor-release": ("orders", lambda of: {"cursor": "reader"}),
    "peeklock:cursor-list": ("orders", lambda of: {}),
}
"""By operation: the entity, and a request that names what is held."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("isolation"), ["--durability=os"]) as made:
        yield made


def asked(side: Side, operation: str, of: Held) -> dict[str, Any] | str:
    """Return the answer, or the condition of a refusal."""
    path, request = REQUESTS[operation]
    try:
        return side.ask(path, operation, request(of))
    except ServiceBusError as refused:
        return f"refused: {refused.condition}"


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_request_of_one_does_nothing_in_the_other(broker: BrokerProcess, operation: str) -> None:
    """Nor where the one has the same numbers, sessions and cursors. Req: X-06."""
    with sides(broker.http_port, ENTITIES, ENTITIES, ENTITIES) as (empty, alike, b):
        Held(alike)
        held = Held(b)
        before = b.content()
        from_empty, from_alike = (asked(side, operation, held) for side in (empty, alike))
        assert held.secret not in repr(from_empty)
        assert held.secret not in repr(from_alike)
        assert b.content() == before
        own = asked(b, operation, held)
        assert isinstance(own, dict), own
        assert (own, b.content()) != (from_empty, before)
