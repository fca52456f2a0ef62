"""How much of a read an owner has worked on at a time."""

from __future__ import annotations

import pytest

from peeklock.amqp.connection import FRAME_UNITS, Connection
from peeklock.amqp.errors import LocalProtocolError
from peeklock.amqp.events import (
    ConnectionClosed,
    DeliveryReceived,
    Event,
    LinkAttached,
    LinkDetached,
    SaslInit,
)
from peeklock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, frame
from peeklock.amqp.performatives import encode_detach
from peeklock.amqp.types import Role
from tests.amqp.pair import attach, bare_server, begin, every, transfer
from tests.amqp.test_connection import sasl_init


def receiving_server() -> Connection:
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    server.accept_link(0, 0)
    return server


def ids(events: list[Event]) -> list[int]:
    return [event.delivery_id for event in every(events, DeliveryReceived)]


def test_a_transfer_is_one_unit_and_each_4_kib_another_one() -> None:
    """Req: T-08."""
    server = receiving_server()
    data = b"".join(transfer(0, number, b"") for number in range(5))
    assert ids(server.receive(data, 0, 2)) == [0, 1]
    assert server.unread
    assert ids(server.receive(b"", 0, 2)) == [2, 3]
    assert ids(server.receive(b"", 0, 2)) == [4]
    assert not server.unread
    data = b"".join(transfer(0, number, bytes(8200)) for number in (5, 6))
    assert ids(server.receive(data, 0, 3)) == [5]
    assert server.units_left == 0
    assert ids(server.receive(b"", 0, 1)) == [6]


@pytest.mark.parametrize("frames", [EMPTY_FRAME * 50, b"".join(begin(channel) for channel in range(50))])
def test_frames_of_every_other_kind_are_eight(frames: bytes) -> None:
    """Req: T-08."""
    server = bare_server()
    server.receive(frames, 0, 3 * FRAME_UNITS)
    reads = 1
    while server.unread:
        server.receive(b"", 0, 3 * FRAME_UNITS)
        reads += 1
    assert reads == 50 // 3 + 1


def test_what_comes_while_bytes_wait_is_behind_them() -> None:
    server = receiving_server()
    third = transfer(0, 2, b"x" * 100)
    events = server.receive(transfer(0, 0, b"") + transfer(0, 1, b"") + third[:50], 0, 1)
    events += server.receive(third[50:] + transfer(0, 3, b""), 0, 1)
    while server.unread:
        events += server.receive(b"", 0, 1)
    assert ids(events) == [0, 1, 2, 3]


def test_a_stall_gives_no_further_units() -> None:
    """Req: R-05. Handles freed and taken again stall the reading each time; that is no way to read more."""
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    data = (frame(0, encode_detach(0, True, None)) + attach(0, Role.SENDER)) * 10
    units, detached = 4 * FRAME_UNITS, 0
    events = server.receive(data, 0, units)
    while True:
        detached += len(every(events, LinkDetached))
        for event in every(events, LinkAttached):
            server.accept_link(event.channel, event.handle)
        if not server.stalled:
            break
        events = server.receive(b"", 0, server.units_left)
    assert detached == 2
    assert server.unread
    assert server.next_deadline_ms() != 0  # the owner reads on when it has time, not by a tick


def test_bytes_behind_a_sasl_response_wait_for_the_outcome_alone() -> None:
    server = Connection("server", container_id="server", now_ms=0, sasl_mechanisms=("ANONYMOUS",))
    events = server.receive(SASL_HEADER + sasl_init("ANONYMOUS") + AMQP_HEADER, 0, 1)
    while not every(events, SaslInit):
        assert server.unread
        events = server.receive(b"", 0, 1)
    assert not bool(server.unread)  # bool(): else mypy takes the later one for impossible
    assert server.receive(b"", 0, 1) == []
    server.sasl_outcome()
    assert server.unread
    server.receive(b"", 0, 1)
    assert not server.unread
    with pytest.raises(LocalProtocolError):
        server.open()  # the header was read, an open has not come


def test_the_end_drops_what_is_unread() -> None:
    server = receiving_server()
    data = b"".join(transfer(0, number, b"") for number in range(5))
    server.receive(data, 0, 1)
    assert server.unread
    assert every(server.tick(10**9), ConnectionClosed)
    assert not server.stalled
    server.data_to_send()
    assert server.receive(b"", 10**9, 1) == []
    assert not server.unread
    assert server.buffered_bytes == 0
