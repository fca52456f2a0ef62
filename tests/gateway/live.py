"""What a client of sessions does, for tests that drive a whole broker over AMQP."""

from __future__ import annotations

from typing import Any

from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkAttached
from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import ACCEPTED, Source
from peeklock.amqp.types import Symbol, UInt
from tests.gateway.harness import LiveHarness, Response, message_bytes

LOCK_MS = 30_000
FILTER = Symbol("com.microsoft:session-filter")
TIMEOUT = Symbol("com.microsoft:timeout")
SETTINGS: dict[str, Any] = {"requires_session": True, "lock_duration_ms": LOCK_MS, "max_delivery_count": 3}
"""Of a queue of sessions."""


def message(body: str, session_id: str | None = None, **options: Any) -> bytes:
    """Encode a message whose id is its body."""
    return message_bytes(body.encode(), properties=[body, *[None] * 9, session_id], **options)


def send(rig: LiveHarness, *messages: bytes, to: str = "orders") -> None:
    """Send messages that are accepted, over a link of their own."""
    before = rig.events[:]
    rig.events.clear()
    handle = rig.sender(to)
    for payload in messages:
        rig.transfer(handle, payload)
    outcomes = [event for event in rig.events if isinstance(event, DispositionReceived)]
    assert sum(event.last - event.first + 1 for event in outcomes) == len(messages)
    assert all(event.state == ACCEPTED for event in outcomes)
    rig.client.detach(rig.channel, handle)
    rig.pump()
    rig.events = before + [
        event
        for event in rig.events
        if getattr(event, "handle", handle) != handle and not isinstance(event, DispositionReceived)
    ]


def ask_for(
    rig: LiveHarness,
    session_id: str | None,
    *,
    credit: int = 0,
    address: str = "orders",
    wait_ms: int | None = None,
    **options: Any,
) -> int:
    """Attach a receiver of a session."""
    if wait_ms is not None:
        options["properties"] = {TIMEOUT: UInt(wait_ms)}
    return rig.listen(address, credit=credit, filter={FILTER: session_id}, **options)


def got(rig: LiveHarness, handle: int) -> str | None:
    """Return the session that a receiver was given; None: no answer yet."""
    for event in rig.events:
        if isinstance(event, LinkAttached) and event.handle == handle:
            rig.events.remove(event)
            assert isinstance(event.source, Source), "the link was refused"
            assert event.source.filter is not None
            return str(event.source.filter[FILTER])
    return None


def accept(rig: LiveHarness, session_id: str | None = None, **options: Any) -> tuple[int, str]:
    """Attach a receiver that is given a session at once."""
    handle = ask_for(rig, session_id, **options)
    given = got(rig, handle)
    assert given is not None
    return handle, given


def bodies(deliveries: list[DeliveryReceived]) -> list[str]:
    return [scan(event.payload).decode_body()[0][1].decode() for event in deliveries]


def counts(deliveries: list[DeliveryReceived]) -> list[int]:
    return [scan(event.payload).decode_header().delivery_count for event in deliveries]


def request(rig: LiveHarness, node: str, operation: str, body: dict[str, Any]) -> Response:
    """Ask the management node something over a pair of links of its own."""
    before = rig.events[:]
    rig.events.clear()
    halves = rig.pair(f"{node}/$management")
    rig.request(halves[0], operation if ":" in operation else f"com.microsoft:{operation}", body)
    [response] = [
        event for event in rig.events if isinstance(event, DeliveryReceived) and event.handle == halves[1]
    ]
    for handle in halves:
        rig.client.detach(rig.channel, handle)
    rig.pump()
    rig.events = before + [
        event
        for event in rig.events
        if getattr(event, "handle", halves[0]) not in halves and not isinstance(event, DispositionReceived)
    ]
    return Response(response)
