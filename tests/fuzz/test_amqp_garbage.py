"""Broken and hostile bytes: the codec raises its own error, the connection closes with the right
condition."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp import composites
from peeklock.amqp.codec import DecodeError, decode, decode_typed, encode, iter_map_raw, skip
from peeklock.amqp.composites import composite
from peeklock.amqp.connection import Connection
from peeklock.amqp.coordination import Declare, Discharge, decode_coordination, encode_coordination
from peeklock.amqp.events import ConnectionClosed, DeliveryReceived, Event
from peeklock.amqp.frames import AMQP_HEADER, SASL_HEADER, frame
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, iter_batch, scan
from peeklock.amqp.types import Array, Described, Role, Symbol, UInt
from tests.amqp.pair import attach, bare_server, begin, closed_with, transfer

few = settings(deadline=None, max_examples=150)

CONDITIONS = {
    "amqp:connection:framing-error",
    "amqp:decode-error",
    "amqp:frame-size-too-small",
    "amqp:illegal-state",
    "amqp:invalid-field",
    "amqp:not-allowed",
    "amqp:resource-limit-exceeded",
    "amqp:unauthorized-access",
}

MESSAGE = encode_message(
    header=Header(ttl=1000),
    message_annotations={"x-opt-partition-key": "p"},
    properties=Properties(message_id="m", group_id="g"),
    application_properties={"n": 5, "a": [1, {"k": None}]},
    data=b"payload",
)
VALUE = encode(
    [None, {"k": Array.of(Symbol, ["a", "bc"])}, Described(0x24, [1, 2.0, "é"]), Array.of(list, [[1], [2]])]
)
SESSION = (
    begin()
    + attach(0, Role.SENDER)
    + attach(1, Role.RECEIVER, name="out")
    + transfer(0, 0, MESSAGE, more=True)
    + transfer(0, None, b"more", tag=None, message_format=None)
    + transfer(0, 1, MESSAGE)
    + frame(0, composite(composites.FLOW, [UInt(0), UInt(9), UInt(0), UInt(9), UInt(1), UInt(0), UInt(5)]))
    + frame(0, composite(composites.DISPOSITION, [True, UInt(0), UInt(5), True, Described(0x24, [])]))
    + frame(0, composite(composites.DETACH, [UInt(0), True]))
    + frame(0, composite(composites.END, []))
    + frame(0, composite(composites.CLOSE, []))
)

DISCHARGE = encode_coordination(Discharge(b"txn-id", True))
COORDINATOR = Described(0x30, [Array.of(Symbol, ["amqp:local-transactions"])])
WITHIN = Described(0x34, [b"txn-id"])
TRANSACTION = (
    begin()
    + frame(
        0,
        composite(
            composites.ATTACH,
            ["control", UInt(0), False, None, None, Described(0x28, []), COORDINATOR, None, None, UInt(0)],
        ),
    )
    + attach(1, Role.SENDER)
    + transfer(0, 0, encode_coordination(Declare()))
    + transfer(1, 1, MESSAGE, more=True, state=WITHIN)
    + transfer(1, None, b"more", tag=None, state=WITHIN)
    + frame(
        0,
        composite(
            composites.DISPOSITION,
            [True, UInt(0), UInt(5), False, Described(0x34, [b"txn-id", Described(0x24, [])])],
        ),
    )
    + transfer(0, 2, DISCHARGE)
)


def mutated(data: bytes) -> st.SearchStrategy[bytes]:
    """Change, drop, repeat or insert a few bytes of something valid: it gets further than noise."""
    place = st.integers(0, len(data) - 1)
    change = st.tuples(place, st.binary(min_size=0, max_size=3), st.integers(0, 3))

    def apply(changes: list[tuple[int, bytes, int]]) -> bytes:
        out = bytearray(data)
        for at, new, dropped in changes:
            out[at : at + dropped] = new
        return bytes(out)

    return st.lists(change, min_size=1, max_size=4).map(apply)


def check(server: Connection, data: bytes) -> list[Event]:
    """Feed `data`; whatever it is, the connection goes on, or closes with a known condition."""
    events = server.receive(data, 0)
    while server.stalled:
        events += server.receive(b"", 0)
    for event in events:
        if isinstance(event, ConnectionClosed) and not event.clean:
            assert event.error is not None
            assert event.error.condition in CONDITIONS
            assert server.closed
    server.data_to_send()
    assert server.pending_bytes >= 0
    return events


@few
@given(st.one_of(st.binary(max_size=200), mutated(VALUE)))
def test_the_codec_gives_a_value_or_a_decode_error(data: bytes) -> None:
    """Req: R-05"""
    for read in (decode, decode_typed, skip, lambda buf: list(iter_map_raw(buf))):
        with contextlib.suppress(DecodeError):
            read(data)


@few
@given(st.one_of(st.binary(max_size=200), mutated(MESSAGE)))
def test_a_message_is_read_or_refused(data: bytes) -> None:
    """Req: R-05"""
    with contextlib.suppress(DecodeError):
        list(iter_batch(data))
    try:
        sections = scan(data)
    except DecodeError:
        return
    readers: list[Any] = [
        sections.decode_header,
        sections.decode_properties,
        sections.decode_message_annotations,
        sections.decode_application_properties,
        sections.decode_body,
        lambda: sections.property_raw(0),
        lambda: sections.property_raw(10),
    ]
    for read in readers:
        with contextlib.suppress(DecodeError):
            read()


@few
@given(st.binary(max_size=300))
def test_noise_on_an_open_connection_never_escapes(data: bytes) -> None:
    """Req: R-05"""
    check(bare_server(), data)


@few
@given(st.binary(max_size=100))
def test_noise_in_a_frame_of_the_right_size_never_escapes(data: bytes) -> None:
    """Req: R-05"""
    check(bare_server(), begin() + frame(0, data))
    check(bare_server(), begin() + frame(0, b"\x00\x53" + data))


@few
@given(
    st.sampled_from(sorted(composites.NAMES)),
    st.lists(
        st.one_of(
            st.none(),
            st.integers(),
            st.text(max_size=3),
            st.booleans(),
            st.binary(max_size=3),
            st.just({}),
            st.just([]),
        ),
        max_size=16,
    ),
)
def test_performatives_with_any_fields_never_escape(code: int, fields: list[Any]) -> None:
    """Req: R-05"""
    fields = [UInt(value % 2**32) if type(value) is int else value for value in fields]
    check(bare_server(), begin() + attach(0, Role.SENDER) + frame(0, composite(code, fields)))


@few
@given(mutated(SESSION))
def test_a_damaged_session_never_escapes(data: bytes) -> None:
    """Req: R-05"""
    check(bare_server(), data)


@few
@given(mutated(TRANSACTION))
def test_a_damaged_transaction_never_escapes(data: bytes) -> None:
    """Req: R-05, F-03"""
    check(bare_server(), data)


@few
@given(st.one_of(st.binary(max_size=64), mutated(DISCHARGE), mutated(encode_coordination(Declare()))))
def test_what_is_said_to_a_coordinator_is_read_or_refused(data: bytes) -> None:
    """Req: R-05, F-03"""
    with contextlib.suppress(DecodeError):
        decode_coordination(data)


@few
@given(mutated(SESSION), st.integers(1, 9))
def test_damage_reads_the_same_in_pieces(data: bytes, size: int) -> None:
    """Req: R-05"""
    whole, pieces = bare_server(), bare_server()
    expected = check(whole, data)
    seen: list[Event] = []
    for start in range(0, len(data), size):
        seen += check(pieces, data[start : start + size])
    assert seen == expected


@few
@given(
    st.one_of(st.binary(max_size=64), mutated(SASL_HEADER + frame(0, composite(0x41, [Symbol("PLAIN")]), 1)))
)
def test_noise_before_the_handshake_never_escapes(data: bytes) -> None:
    """Req: R-05"""
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("PLAIN",))
    check(server, data)


def _frame_head(size: int, offset: int = 2, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", size, offset, kind, 0)


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (_frame_head(7), "amqp:connection:framing-error"),
        (_frame_head(0), "amqp:connection:framing-error"),
        (_frame_head(65537), "amqp:connection:framing-error"),
        (_frame_head(0xFFFFFFFF), "amqp:connection:framing-error"),
        (_frame_head(16, offset=1) + bytes(8), "amqp:connection:framing-error"),
        (_frame_head(16, offset=5) + bytes(8), "amqp:connection:framing-error"),
        (_frame_head(16, kind=1) + bytes(8), "amqp:connection:framing-error"),
        (_frame_head(16, kind=7) + bytes(8), "amqp:connection:framing-error"),
        (_frame_head(16) + b"\x40" * 8, "amqp:decode-error"),
        (frame(0, b"\x00\x53\x99\x45"), "amqp:decode-error"),
        (frame(0, b"\x00\xa3\x01x\x45"), "amqp:decode-error"),
        (frame(0, b"\x00\x53\x24\x45"), "amqp:decode-error"),
        (frame(0, b"\x00\x53\x11\x40"), "amqp:decode-error"),
        (frame(0, b"\x00\x53\x11\xc0\x05\x01\x43"), "amqp:decode-error"),
        (
            frame(0, composite(composites.BEGIN, [None, UInt(0), UInt(1), UInt(1)]) + b"x"),
            "amqp:decode-error",
        ),
        (frame(0, composite(composites.BEGIN, [None] * 4)), "amqp:invalid-field"),
        (frame(0, composite(composites.BEGIN, [])), "amqp:invalid-field"),
        (frame(0, b"\x00\x53\x11\xc0\x0a\x09" + b"\x43" * 9), "amqp:invalid-field"),
    ],
)
def test_each_damage_has_its_condition(data: bytes, condition: str) -> None:
    """Req: R-05"""
    server = bare_server()
    assert closed_with(server.receive(data, 0)) == condition
    assert condition.encode() in server.data_to_send()


def test_a_frame_of_the_largest_size_is_taken_and_one_past_it_is_not() -> None:
    """Req: R-05"""
    head = len(transfer(0, 0, b""))
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    (event,) = server.receive(transfer(0, 0, bytes(65536 - head)), 0)
    assert isinstance(event, DeliveryReceived)
    # The size alone is enough: the engine does not wait for the rest of the frame.
    too_large = transfer(0, 1, bytes(65537 - head))
    assert closed_with(server.receive(too_large[:8], 0)) == "amqp:connection:framing-error"


def test_a_sasl_frame_past_its_limit_ends_the_connection() -> None:
    """Req: R-05"""
    server = Connection("server", container_id="s", now_ms=0, sasl_mechanisms=("PLAIN",))
    server.receive(SASL_HEADER, 0)
    assert closed_with(server.receive(_frame_head(4097, kind=1), 0)) == "amqp:connection:framing-error"


def test_a_deeply_nested_performative_ends_the_connection() -> None:
    """Req: R-05"""
    value: Any = None
    for _ in range(100):
        value = {"k": value}
    fields = [None, UInt(0), UInt(1), UInt(1), None, None, None, value]
    server = bare_server()
    events = server.receive(frame(0, composite(composites.BEGIN, fields)), 0)
    assert closed_with(events) == "amqp:decode-error"


def test_a_small_frame_cannot_blow_up_into_many_values() -> None:
    """Req: R-05"""
    bomb = b"\xf0" + struct.pack(">II", 5, 0x7FFFFFFF) + b"\x41"
    body = b"\x00\x53\x11\xc0" + bytes([7 + len(bomb), 8]) + b"\x40\x43\x43\x43\x40" + bomb + b"\x40\x40"
    assert closed_with(bare_server().receive(frame(0, body), 0)) == "amqp:decode-error"


@pytest.mark.parametrize("payload_end", range(1, 17))
def test_a_transfer_that_lies_about_its_length_is_not_read_past_its_frame(payload_end: int) -> None:
    """Req: R-05"""
    whole = transfer(0, 0, b"")
    shorter = (len(whole) - payload_end).to_bytes(4, "big") + whole[4 : len(whole) - payload_end]
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER), 0)
    events = server.receive(shorter + transfer(0, 1, b"next") * 2, 0)
    assert isinstance(events[0], ConnectionClosed)


def test_the_first_bytes_may_be_of_another_protocol() -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03",
        b"AMQP\x00\x00\x09\x01",
    ):
        server = Connection("server", container_id="s", now_ms=0)
        assert closed_with(server.receive(data, 0)) == "amqp:connection:framing-error"
        assert server.data_to_send() == AMQP_HEADER
