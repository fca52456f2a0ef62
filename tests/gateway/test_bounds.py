"""What a peer can make us hold before its first valid claim, after it, and all peers together."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from peeklock.amqp.composites import DETACH
from peeklock.amqp.events import ConnectionClosed, LinkAttached
from peeklock.amqp.incoming import TAILS_MAX
from peeklock.amqp.link import ReassemblyBudget
from peeklock.amqp.performatives import Coordinator
from peeklock.amqp.types import Role
from peeklock.auth import Authority, SasRule
from peeklock.broker.vocabulary.commands import LinkId, OpenCoordinator, OpenSender, Send
from peeklock.broker.vocabulary.effects import DetachLink, SenderOpened
from peeklock.broker.vocabulary.errors import EntityDeleted
from peeklock.broker.vocabulary.quotas import BASIC, PREMIUM, STANDARD, TierLimits
from peeklock.gateway.bounds import (
    CBS_REQUEST_BYTES_MAX,
    STRANGER_CBS_PAIRS_MAX,
    STRANGER_COORDINATORS_MAX,
    STRANGER_LIMITS,
    STRANGER_REPLIES_BYTES_MAX,
    Buffers,
)
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.connection import Gateway
from peeklock.server.net.amqp import STRANGER_WRITE_BUFFER_BYTES_HIGH
from tests.amqp.pair import attach, begin, end, flow, frames_of, sasl_and_open, transfer
from tests.gateway.harness import (
    CONNECTION_ID,
    KEY,
    KEY_NAME,
    QUEUE_ID,
    Harness,
    message_bytes,
    section,
)

MIB = 1024 * 1024
NOW_MS = 1_700_000_000_000
OVERHEAD = ReassemblyBudget.CHUNK_OVERHEAD
ROOM = STRANGER_LIMITS.reassembly_bytes - OVERHEAD
"""The most that a stranger may leave unfinished in one frame."""


def lone_gateway() -> Gateway:
    return Gateway(
        CONNECTION_ID,
        namespaces=OneNamespace(Authority([SasRule(KEY_NAME, KEY)])),
        tracking=lambda: "id",
        log=lambda event, fields: None,
        now_ms=NOW_MS,
    )


def buffers_of(known: int, strangers: int, *, connection_bytes_max: int = 10 * MIB) -> Buffers:
    return Buffers(connection_bytes_max, ReassemblyBudget(known), ReassemblyBudget(strangers))


def stranger(mechanism: str | None = "ANONYMOUS", **options: Any) -> Harness:
    return Harness(mechanism=mechanism, **options)


def condition(rig: Harness) -> str:
    closed = rig.take_event(ConnectionClosed)
    assert closed.error is not None
    return str(closed.error.condition)


def begin_delivery(rig: Harness, handle: int, size: int, *, more: bool = True) -> None:
    """Send the first frame of a delivery, from the client's channel."""
    data = transfer(handle, 0, bytes(size), channel=rig.channel, more=more)
    rig.commands += rig.gateway.receive(data, rig.clock.now_ms)
    rig.pump()


def _claim_is_revoked(rig: Harness, handle: int) -> None:
    rig.authority.set_rules("", [SasRule("other", "key")])
    rig.commands += rig.gateway.tick(rig.clock.now_ms)
    rig.pump()


def _outgrow(rig: Harness, handle: int) -> None:
    for _ in range(20):
        begin_delivery(rig, handle, 60_000)


def _detach(rig: Harness, handle: int) -> None:
    rig.client.detach(rig.channel, handle)
    rig.pump()


def _end(rig: Harness, handle: int) -> None:
    rig.client.end(rig.channel)
    rig.pump()


def _close(rig: Harness, handle: int) -> None:
    rig.client.close()
    rig.pump()


ENDS: dict[str, Callable[[Harness, int], object]] = {
    "finished": lambda rig, handle: begin_delivery(rig, handle, 1, more=False),
    "aborted": lambda rig, handle: feed(rig.gateway, transfer(handle, 0, b"", aborted=True)),
    "too large": _outgrow,
    "detach": _detach,
    "link error": lambda rig, handle: feed(rig.gateway, transfer(handle, 1, b"", tag=b"other")),
    "entity gone": lambda rig, handle: rig.effect(
        DetachLink(LinkId(CONNECTION_ID, 1), EntityDeleted("gone"))
    ),
    "claim revoked": _claim_is_revoked,
    "end": _end,
    "session error": lambda rig, handle: feed(rig.gateway, transfer(900, 1, b"")),
    "close": _close,
    "protocol error": lambda rig, handle: feed(rig.gateway, b"AMQP\x00\x01\x00\x00"),
    "end of stream": lambda rig, handle: rig.gateway.eof(NOW_MS),
    "idle": lambda rig, handle: rig.gateway.tick(rig.clock.now_ms + 240_001),
    "shutdown": lambda rig, handle: rig.gateway.shutdown(NOW_MS),
}


# Before the first claim


@pytest.mark.parametrize("mechanism", [None, "ANONYMOUS"])
def test_a_stranger_may_leave_64_kib_unfinished_and_not_one_byte_more(mechanism: str | None) -> None:
    """Req: R-05. On the frames of all its links."""
    assert ROOM + OVERHEAD == 64 * 1024
    rig = stranger(mechanism)
    first, _ = rig.pair("$cbs")
    second, _ = rig.pair("$cbs")
    begin_delivery(rig, first, CBS_REQUEST_BYTES_MAX)
    begin_delivery(rig, second, ROOM - CBS_REQUEST_BYTES_MAX - OVERHEAD)
    assert not rig.gateway.closing
    begin_delivery(rig, second, 1)
    assert condition(rig) == "amqp:resource-limit-exceeded"
    assert rig.gateway.buffered_bytes == 0


@pytest.mark.parametrize(
    ("role", "address", "most"),
    [
        (Role.SENDER, "$cbs", STRANGER_CBS_PAIRS_MAX),
        (Role.RECEIVER, "$cbs", STRANGER_CBS_PAIRS_MAX),
        (Role.SENDER, Coordinator(), STRANGER_COORDINATORS_MAX),
    ],
)
def test_links_of_a_stranger_past_the_limit_are_refused_until_its_claim(
    role: Role, address: object, most: int
) -> None:
    """Req: R-05."""
    rig = stranger()
    cbs = rig.pair("$cbs")
    for _ in range(most - (address == "$cbs")):
        rig.attach(role, address)
    rig.events.clear()
    rig.attach(role, address)
    refusal = rig.refusal()
    assert str(refusal.condition) == "amqp:resource-limit-exceeded"
    assert "valid claim" in str(refusal.description)
    rig.put_token(cbs[0], "sb://localhost")
    rig.events.clear()
    rig.commands.clear()
    rig.attach(role, address)
    rig.take_event(LinkAttached) if address == "$cbs" else rig.take(OpenCoordinator)


def cbs_pair(rig: Harness, channel: int, *, window: int, credit: int) -> bytes:
    """Make the frames of a session with a pair to `$cbs`, whose receiver has credit, behind such a window."""
    return (
        begin(channel, window=window)
        + attach(1, Role.SENDER, channel=channel, name="a", address="$cbs")
        + attach(2, Role.RECEIVER, channel=channel, name="b", address="$cbs")
        + flow(2, credit=credit, channel=channel, window=window)
    )


@pytest.mark.parametrize(("window", "credit"), [(0, 10_000), (65_536, 0)])
def test_replies_that_the_peer_does_not_take_are_bounded(window: int, credit: int) -> None:
    """Req: R-05. Credit alone does not bound them: a session may have a window of nothing."""
    rig = stranger()
    gateway = rig.gateway
    feed(gateway, cbs_pair(rig, 9, window=window, credit=credit))
    sizes, written = [], b""
    for number in range(1000):
        written += feed(gateway, transfer(1, number, UNKNOWN_OPERATION, channel=9, settled=True))
        sizes.append(gateway.buffered_bytes)
    assert STRANGER_REPLIES_BYTES_MAX - 1000 < max(sizes) <= STRANGER_REPLIES_BYTES_MAX
    assert not gateway.closing
    assert [fields[0] for _, code, fields, _ in frames_of(written) if code == DETACH] == [2]
    assert gateway.buffered_bytes == 0  # with the link goes what waited


UNKNOWN_OPERATION = section(0x74, {"operation": "unknown"}) + section(0x77, None)
"""A request that is answered with a refusal, and is no bad token."""


def feed(gateway: Gateway, data: bytes) -> bytes:
    """Hand bytes to a gateway and return what it writes."""
    gateway.receive(data, NOW_MS)
    written = gateway.data_to_send()
    gateway.written(0, NOW_MS)
    return written


def test_a_peer_without_a_claim_makes_us_hold_384_kib_at_most() -> None:
    """Req: R-05. It tries everything at once; reading from it stops when it reads nothing (`server.amqp`)."""
    hello = sasl_and_open()
    gateway = lone_gateway()
    feed(gateway, hello)  # the first makes what all connections share
    gateway = lone_gateway()
    unread: list[bytes] = []
    tracemalloc.start()
    try:
        feed(gateway, hello)
        for channel in range(STRANGER_LIMITS.sessions):
            feed(gateway, begin(channel))
        long = "\N{GRINNING FACE}" * (STRANGER_LIMITS.name_length - 3)  # four bytes a character in memory
        handle = 0
        while handle < 2 * STRANGER_CBS_PAIRS_MAX:
            role = Role.RECEIVER if handle % 2 else Role.SENDER
            feed(gateway, attach(handle, role, name=f"{long}{handle}", address="$cbs"))
            handle += 1
        while handle < 2 * STRANGER_LIMITS.links:
            feed(gateway, attach(handle, Role.SENDER, name=f"{long}{handle}", address="orders"))
            handle += 1
        feed(gateway, flow(1, credit=1000, window=0))
        for number in range(200):
            feed(gateway, transfer(0, number, UNKNOWN_OPERATION, settled=True))
        for number in range(TAILS_MAX):
            feed(gateway, transfer(0, number, b"", settled=True, message_format=number))
        for number in range(7):
            feed(gateway, transfer(2 if number < 4 else 4, 0, bytes(8000), more=True))
        while sum(map(len, unread)) < STRANGER_WRITE_BUFFER_BYTES_HIGH:
            unread.append(feed(gateway, flow(0, credit=1, window=0, echo=True)))
        feed(gateway, transfer(0, 0, bytes(65_000))[:-1])  # a frame that is not whole
        assert not gateway.closing
        assert gateway.buffered_bytes > 128 * 1024
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held <= 384 * 1024
    gateway.eof(NOW_MS)
    assert gateway.buffered_bytes == 0


@pytest.mark.parametrize(
    "frames",
    [
        begin(STRANGER_LIMITS.sessions),
        begin(STRANGER_LIMITS.sessions + 1000),
    ],
)
def test_one_session_more_ends_the_connection_of_a_stranger(frames: bytes) -> None:
    """Req: R-05. An ended one makes room."""
    rig = stranger()
    for channel in range(1, STRANGER_LIMITS.sessions):
        feed(rig.gateway, begin(channel))
    feed(rig.gateway, end(5) + begin(5))
    assert not rig.gateway.closing
    feed(rig.gateway, frames)
    assert rig.gateway.closing


# After it


@pytest.mark.parametrize(("tier", "expected"), [(BASIC, 8), (STANDARD, 8), (PREMIUM, 101)])
def test_the_bound_of_a_connection_has_room_for_the_largest_message(tier: TierLimits, expected: int) -> None:
    """Req: R-05."""
    assert Buffers.of_memory(0, tier).connection_bytes_max == expected * MIB


def sender_of(rig: Harness) -> int:
    handle = rig.attach(Role.SENDER, "orders")
    rig.effect(SenderOpened(rig.take(OpenSender).link, QUEUE_ID, MIB, False))
    return handle


def test_a_known_peer_may_leave_its_bound_unfinished_over_all_links_and_not_more() -> None:
    """Req: R-05."""
    rig = Harness(buffers=buffers_of(MIB, MIB, connection_bytes_max=200_000))
    handles = [sender_of(rig) for _ in range(5)]
    for handle in handles[:4]:
        begin_delivery(rig, handle, 50_000 - OVERHEAD)
    assert not rig.gateway.closing
    assert rig.gateway.buffered_bytes == 200_000
    begin_delivery(rig, handles[4], 1)
    assert condition(rig) == "amqp:resource-limit-exceeded"


def test_a_claim_on_cbs_opens_the_bound_of_a_known_peer() -> None:
    """Req: R-05."""
    buffers = buffers_of(MIB, MIB)
    rig = stranger(buffers=buffers)
    cbs, _ = rig.pair("$cbs")
    second, _ = rig.pair("$cbs")
    begin_delivery(rig, second, 20_000)
    assert (buffers.strangers.used, buffers.known.used) == (20_000 + OVERHEAD, 0)
    rig.put_token(cbs, "sb://localhost")
    handle = sender_of(rig)
    assert (buffers.strangers.used, buffers.known.used) == (0, 20_000 + OVERHEAD)
    for _ in range(4):
        begin_delivery(rig, handle, 60_000)
    assert not rig.gateway.closing
    rig.gateway.eof(NOW_MS)
    assert (buffers.strangers.used, buffers.known.used) == (0, 0)


# All together


def test_who_asks_for_more_than_is_left_for_all_is_ended_and_others_go_on() -> None:
    """Req: R-05. What it held comes back at once."""
    buffers = buffers_of(200_000, 200_000)
    greedy, honest = Harness(buffers=buffers), Harness(buffers=buffers)
    its, ours = sender_of(greedy), sender_of(honest)
    for _ in range(3):
        begin_delivery(greedy, its, 60_000)
    begin_delivery(honest, ours, 10_000)
    begin_delivery(greedy, its, 60_000)
    assert condition(greedy) == "amqp:resource-limit-exceeded"
    assert buffers.known.used == 10_000 + OVERHEAD
    feed(honest.gateway, transfer(ours, 0, b"", aborted=True))
    honest.transfer(ours, message_bytes(bytes(180_000)))
    assert len(honest.take(Send).sections.payload) > 180_000
    assert buffers.known.used == 0


def test_strangers_use_up_no_room_of_known_peers() -> None:
    """Req: R-05."""
    buffers = buffers_of(200_000, 50_000)
    many = []
    for _ in range(3):
        rig = stranger(buffers=buffers)
        cbs, _ = rig.pair("$cbs")
        begin_delivery(rig, cbs, 20_000)
        many.append(rig)
    assert condition(many[2]) == "amqp:resource-limit-exceeded"
    known = Harness(buffers=buffers)
    handle = sender_of(known)
    for _ in range(3):
        begin_delivery(known, handle, 60_000)
    assert not known.gateway.closing


@pytest.mark.parametrize("end_of", [*ENDS], ids=[*ENDS])
def test_the_bytes_come_back_at_every_end(end_of: str) -> None:
    """Req: R-05. Of the delivery, its link, its session and its connection."""
    buffers = buffers_of(200_000, 200_000)
    rig = Harness(buffers=buffers)
    handle = sender_of(rig)
    begin_delivery(rig, handle, 60_000)
    assert buffers.known.used == 60_000 + OVERHEAD
    ENDS[end_of](rig, handle)
    assert buffers.known.used == 0


def test_the_budgets_are_shares_of_memory() -> None:
    """Req: R-05. In a small container one largest message fits all the same."""
    large = Buffers.of_memory(16 * 1024 * MIB, STANDARD)
    assert (large.known.limit, large.strangers.limit) == (2048 * MIB, 512 * MIB)
    small = Buffers.of_memory(256 * MIB, PREMIUM)
    assert (small.known.limit, small.strangers.limit) == (101 * MIB, 101 * MIB // 4)
