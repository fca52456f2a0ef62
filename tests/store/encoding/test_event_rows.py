"""Rows of events: what goes in comes out, and no damage passes unseen."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.events import Event, EventType
from peeklock.store.base import StoreDamaged
from peeklock.store.encoding import event_rows

LONG = st.integers(-(2**63), 2**63 - 1)
TEXT = st.one_of(st.none(), st.text(max_size=20))
BYTES = st.one_of(st.none(), st.binary(min_size=1, max_size=40))
EVENTS = st.builds(
    Event,
    type=st.sampled_from(EventType).map(int),
    at_ms=LONG,
    queue_id=LONG,
    queue_name=TEXT,
    sequence_number=LONG,
    enqueued_sequence_number=LONG,
    delivery_count=st.integers(0, 2**32 - 1),
    state=st.integers(0, 2),
    size_bytes=LONG,
    enqueued_at_ms=LONG,
    expires_at_ms=LONG,
    scheduled_at_ms=LONG,
    locked_until_ms=LONG,
    related_number=LONG,
    connection_id=LONG,
    related_entity=TEXT,
    session_id=TEXT,
    reason=TEXT,
    link_name=TEXT,
    transaction_id=BYTES,
    lock_token=BYTES,
    head=BYTES,
    connection_lost=st.integers(0, 1),
)
SOME = [
    Event(
        4,
        5,
        8,
        "orders",
        n,
        n,
        0,
        0,
        1024,
        5,
        0,
        0,
        30_005,
        0,
        3,
        None,
        "s",
        None,
        "r",
        None,
        LockToken(b"t" * 16),
        None,
        0,
    )
    for n in range(3)
]


@given(events=st.lists(EVENTS, max_size=5), no=st.integers(1, 2**63))
def test_events_come_back_as_they_were(events: list[Event], no: int) -> None:
    assert event_rows.unpack(no, event_rows.seal(no, event_rows.pack(events))) == events


@given(events=st.lists(EVENTS, min_size=1, max_size=5), no=st.integers(1, 2**63))
def test_a_row_of_version_1_is_read_without_what_it_has_not(events: list[Event], no: int) -> None:
    """It is that of a version 2 but for the field at its end. Req: R-07."""
    before = [event._replace(connection_lost=0) for event in events]
    packed = bytearray(event_rows.pack(before))
    del packed[4 + 22]  # whether the column is there
    checked = struct.pack("<QI", no, len(events)) + zlib.compress(packed[4:])
    row = struct.pack("<BI", 1, zlib.crc32(checked, 1)) + checked
    assert event_rows.unpack(no, row) == before


def test_a_row_of_another_version_is_named() -> None:
    """Req: R-07."""
    checked = struct.pack("<QI", 7, 0)
    with pytest.raises(StoreDamaged, match="event row 7 has version 9; this release knows 1 to 2"):
        event_rows.unpack(7, struct.pack("<BI", 9, zlib.crc32(checked, 9)) + checked)


def test_a_row_without_events_is_a_row() -> None:
    """A missing number is a gap, so that each batch has a row."""
    row = event_rows.seal(7, event_rows.pack([]))
    assert event_rows.unpack(7, row) == []
    assert event_rows.read_columns(7, row).count == 0


def test_every_flipped_byte_is_found() -> None:
    row = event_rows.seal(9, event_rows.pack(SOME))
    for place in range(len(row)):
        damaged = bytearray(row)
        damaged[place] ^= 0x10
        with pytest.raises(StoreDamaged, match="event row 9"):
            event_rows.unpack(9, bytes(damaged))


def test_a_row_cut_off_or_in_anothers_place_is_found() -> None:
    row = event_rows.seal(9, event_rows.pack(SOME))
    for size in (0, 5, 16, len(row) - 1):
        with pytest.raises(StoreDamaged):
            event_rows.unpack(9, row[:size])
    with pytest.raises(StoreDamaged, match="it has the number 9"):
        event_rows.unpack(10, row)


def test_columns_hold_the_values_by_field() -> None:
    columns = event_rows.read_columns(9, event_rows.seal(9, event_rows.pack(SOME)))
    assert columns.count == 3
    assert list(columns.integers["sequence_number"]) == [0, 1, 2]
    assert [columns.texts[place] for place in columns.places["queue_name"]] == ["orders"] * 3
    assert bytes(columns.binaries["lock_token"]) == b"t" * 48
    assert list(columns.lengths["head"]) == [0, 0, 0]
