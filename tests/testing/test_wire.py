"""The memory wire: TCP's manners, in virtual time."""

from __future__ import annotations

from random import Random

import pytest

from peeklock.testing.wire import BROKER, CLIENT, MemoryWire


def arrivals(wire: MemoryWire, end: int) -> bytes:
    """Read everything that arrives at an end, at the times the wire names."""
    read = bytearray()
    while (due_ms := wire.next_ms(end)) is not None:
        data = wire.read(end, due_ms)
        read += data
        if not data:
            break
    return bytes(read)


def test_what_is_written_arrives_at_the_other_end() -> None:
    wire = MemoryWire(Random(1))
    wire.write(CLIENT, b"hello", 100)
    assert wire.next_ms(BROKER) == 100
    assert wire.next_ms(CLIENT) is None
    assert wire.read(BROKER, 100) == b"hello"
    assert wire.read(BROKER, 100) == b""


@pytest.mark.parametrize("seed", range(20))
def test_pieces_keep_their_order_whatever_the_delays(seed: int) -> None:
    wire = MemoryWire(Random(seed), delay_ms_max=50, split=True)
    written = bytearray()
    for turn in range(30):
        data = bytes([turn]) * (turn + 1)
        wire.write(CLIENT, data, turn)
        written += data
    assert arrivals(wire, BROKER) == written


def test_nothing_arrives_before_its_delay_is_over() -> None:
    wire = MemoryWire(Random(3), delay_ms_max=50)
    wire.write(CLIENT, b"later", 100)
    due_ms = wire.next_ms(BROKER)
    assert due_ms is not None
    assert due_ms > 100
    assert wire.read(BROKER, due_ms - 1) == b""
    assert wire.read(BROKER, due_ms) == b"later"


def test_close_lets_arrive_what_was_written_before() -> None:
    wire = MemoryWire(Random(1), delay_ms_max=10)
    wire.write(CLIENT, b"goodbye", 0)
    wire.close(CLIENT, 0)
    wire.write(CLIENT, b"lost", 0)
    assert not wire.at_end(BROKER, 100)
    assert arrivals(wire, BROKER) == b"goodbye"
    assert wire.at_end(BROKER, 100)
    assert not wire.at_end(CLIENT, 100)


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_loses_the_end_of_what_is_under_way_and_tells_both_ends(seed: int) -> None:
    wire = MemoryWire(Random(seed), delay_ms_max=10, split=True)
    for letter in (b"a", b"b", b"c"):
        wire.write(CLIENT, letter * 10, 0)
    wire.cut(0)
    wire.write(CLIENT, b"after", 0)
    arrived = arrivals(wire, BROKER)
    assert (b"a" * 10 + b"b" * 10 + b"c" * 10).startswith(arrived)
    assert wire.at_end(BROKER, 100)
    assert wire.at_end(CLIENT, 100)


def test_some_cut_loses_something_and_some_does_not() -> None:
    lengths = set()
    for seed in range(40):
        wire = MemoryWire(Random(seed))
        wire.write(CLIENT, b"0123456789", 0)
        wire.cut(0)
        lengths.add(len(arrivals(wire, BROKER)))
    assert 10 in lengths
    assert 0 in lengths
    assert lengths - {0, 10}


def test_a_dropped_wire_tells_nobody() -> None:
    wire = MemoryWire(Random(1))
    wire.write(CLIENT, b"on its way", 0)
    wire.drop()
    wire.write(BROKER, b"answer", 0)
    wire.close(BROKER, 0)
    assert wire.next_ms(BROKER) is None
    assert wire.next_ms(CLIENT) is None
    assert not wire.at_end(CLIENT, 1_000_000)


def test_one_seed_is_one_behaviour() -> None:
    def run() -> list[tuple[int, bytes]]:
        wire = MemoryWire(Random(7), delay_ms_max=20, split=True)
        wire.write(CLIENT, b"abcdefghij", 0)
        seen = []
        while (due_ms := wire.next_ms(BROKER)) is not None:
            seen.append((due_ms, wire.read(BROKER, due_ms)))
        return seen

    assert run() == run()
