"""Settlement: ranges merged on the way out, ranges of any size on the way in, every outcome."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.amqp import composites
from peeklock.amqp.codec import encode
from peeklock.amqp.composites import composite
from peeklock.amqp.connection import Connection
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import ConnectionClosed, DeliveryReceived, DispositionReceived, Event, SessionEnded
from peeklock.amqp.frames import frame
from peeklock.amqp.incoming import TAILS_MAX
from peeklock.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Declared,
    DeliveryState,
    Modified,
    Received,
    Rejected,
    Released,
    TransactionalState,
)
from peeklock.amqp.serial import distance, ids_in_range
from peeklock.amqp.types import Described, Role, Symbol, UInt
from tests.amqp.pair import closed_with, every, frames_of, only, opened_pair

ERROR = AmqpError("com.microsoft:dead-letter", "because", {Symbol("DeadLetterReason"): "r"})
STATES: list[DeliveryState | None] = [
    None,
    ACCEPTED,
    RELEASED,
    Accepted(),
    Released(),
    Rejected(),
    Rejected(ERROR),
    Modified(),
    Modified(True, True),
    Modified(True, False, {Symbol("k"): "v" * 300}),
    Received(3, 4),
    Declared(b"txn"),
    TransactionalState(b"txn"),
    TransactionalState(b"txn", ACCEPTED),
    TransactionalState(b"txn", Rejected(ERROR)),
]


def server_that_sent(count: int) -> Connection:
    """Return a server that has sent `count` deliveries on channel 0."""
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER, credit=count)
    for _ in range(count):
        pair.server.send(channel, handle, b"t", b"")
    pair.take()
    return pair.server


def disposition(
    first: Any, last: Any, settled: Any = True, state: Any = None, *, receiver: bool = True
) -> bytes:
    fields = [receiver, UInt(first), None if last is None else UInt(last), settled, state]
    return frame(0, composite(composites.DISPOSITION, fields))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("settled", [True, False])
def test_every_state_crosses_as_it_is(state: DeliveryState | None, settled: bool) -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER, credit=5)
    for _ in range(3):
        pair.server.send(channel, handle, b"t", b"")
    pair.take()
    for _ in range(2):  # once decoded in full, once recognised
        pair.client.disposition(channel, Role.RECEIVER, 1, 1, state, settled=settled)
        _, at_server = pair.take()
        assert at_server == [DispositionReceived(channel, Role.RECEIVER, 1, 1, settled, state)]


def test_the_usual_outcomes_are_single_objects() -> None:
    server = server_that_sent(2)
    head = b"\x00\x53\x15\xc0\x09\x05\x41\x43\x40\x42"
    frames = frame(0, head + b"\x00\x53\x24\x45") + frame(0, head + b"\x00\x53\x26\x45")
    first, second = every(server.receive(frames, 0), DispositionReceived)
    assert first.state is ACCEPTED
    assert second.state is RELEASED


def test_our_disposition_has_its_five_fields() -> None:
    """Source: wire contract 0.2, 4.3."""
    pair = opened_pair()
    channel, _ = pair.attach(Role.SENDER)
    pair.to_client = b""
    pair.server.disposition(channel, Role.RECEIVER, 3, 3, ACCEPTED)
    pair.server.disposition(
        channel, Role.SENDER, 4, 4, Rejected(AmqpError("com.microsoft:message-lock-lost", "x"))
    )
    pair.server.disposition(channel, Role.SENDER, 9, 9, None, settled=False)
    pair.take()
    dispositions = [fields for _, code, fields, _ in frames_of(pair.to_client)]
    lost = Described(0x1D, ["com.microsoft:message-lock-lost", "x", None])
    assert dispositions == [
        [True, 3, 3, True, Described(0x24, [])],
        [False, 4, 4, True, Described(0x25, [lost])],
        [False, 9, 9, False, None],
    ]


def test_a_rejection_without_error_is_an_empty_list() -> None:
    """Source: wire contract 4.3: a rejected with an error in the reply means failure."""
    pair = opened_pair()
    channel, _ = pair.attach(Role.RECEIVER)
    pair.to_client = b""
    pair.server.disposition(channel, Role.SENDER, 0, 0, Rejected())
    pair.take()
    assert pair.to_client.endswith(b"\x00\x53\x25\x45")


def test_a_large_state_takes_the_long_form() -> None:
    pair = opened_pair()
    channel, _ = pair.attach(Role.SENDER)
    pair.to_client = b""
    pair.server.disposition(channel, Role.RECEIVER, 0, 0, Rejected(AmqpError("amqp:not-allowed", "x" * 400)))
    pair.take()
    assert frames_of(pair.to_client)[0][2][4].value[0].value[1] == "x" * 400


outcomes = st.sampled_from([ACCEPTED, RELEASED, Rejected(AmqpError("amqp:not-allowed", "no")), None])
settlements = st.lists(st.tuples(st.integers(0, 30), outcomes, st.booleans()), max_size=40)


@settings(deadline=None, max_examples=60)
@given(settlements)
def test_merging_changes_neither_what_is_said_nor_the_order_of_contradictions(
    said: list[tuple[int, DeliveryState | None, bool]],
) -> None:
    """Req: T-04"""
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=100)
    for _ in range(31):
        pair.client.send(channel, handle, b"t", b"")
    pair.take()
    expected: dict[int, tuple[DeliveryState | None, bool]] = {}
    for number, state, settled in said:
        expected[number] = (state, settled)
        pair.server.disposition(channel, Role.RECEIVER, number, number, state, settled=settled)
    at_client, _ = pair.take()
    heard: dict[int, tuple[DeliveryState | None, bool]] = {}
    for event in every(at_client, DispositionReceived):
        for number in range(event.first, event.last + 1):
            heard[number] = (event.state, event.settled)
    assert heard == expected


@pytest.mark.parametrize("order", [range(100), range(99, -1, -1)])
def test_neighbours_become_one_range(order: Any) -> None:
    """Req: T-04"""
    pair = opened_pair()
    channel, _ = pair.attach(Role.SENDER)
    pair.to_client = b""
    for number in order:
        pair.server.disposition(channel, Role.RECEIVER, number, number, ACCEPTED)
    pair.take()
    assert [fields[1:3] for _, _, fields, _ in frames_of(pair.to_client)] == [[0, 99]]


def test_a_range_continues_over_the_end_of_the_numbers() -> None:
    pair = opened_pair()
    channel, _ = pair.attach(Role.SENDER)
    pair.to_client = b""
    for number in (2**32 - 1, 0, 1):
        pair.server.disposition(channel, Role.RECEIVER, number, number, ACCEPTED)
    pair.take()
    assert [fields[1:3] for _, _, fields, _ in frames_of(pair.to_client)] == [[2**32 - 1, 1]]


def test_roles_and_sessions_are_not_mixed_in_a_range() -> None:
    """Source: wire contract 0.6: the Python client's sender does not look at the role."""
    pair = opened_pair()
    first, _ = pair.attach(Role.SENDER)
    second, _ = pair.attach(Role.SENDER, name="two")
    pair.to_client = b""
    pair.server.disposition(first, Role.RECEIVER, 0, 0, ACCEPTED)
    pair.server.disposition(first, Role.SENDER, 1, 1, ACCEPTED)
    pair.server.disposition(second, Role.RECEIVER, 1, 1, ACCEPTED)
    pair.take()
    said = [(channel, fields[0], fields[1], fields[2]) for channel, _, fields, _ in frames_of(pair.to_client)]
    assert said == [(first, True, 0, 0), (first, False, 1, 1), (second, True, 1, 1)]


def test_a_disposition_goes_out_before_the_flow_detach_or_close_that_follows_it() -> None:
    def after(act: Any) -> list[int]:
        pair = opened_pair()
        channel, handle = pair.attach(Role.SENDER)
        pair.to_client = b""
        pair.server.disposition(channel, Role.RECEIVER, 0, 0, ACCEPTED)
        act(pair.server, channel, handle)
        pair.take()
        return [code for _, code, _, _ in frames_of(pair.to_client)][:2]

    settled = composites.DISPOSITION
    assert after(lambda server, channel, handle: server.flow(channel, handle, 5)) == [
        settled,
        composites.FLOW,
    ]
    assert after(lambda server, channel, handle: server.detach(channel, handle)) == [
        settled,
        composites.DETACH,
    ]
    assert after(lambda server, channel, handle: server.end(channel)) == [settled, composites.END]
    assert after(lambda server, channel, handle: server.close()) == [settled, composites.CLOSE]


def test_a_settlement_straight_before_the_peers_end_or_close_does_no_harm() -> None:
    pair = opened_pair()
    channel, _ = pair.attach(Role.SENDER)
    pair.server.disposition(channel, Role.RECEIVER, 0, 0, ACCEPTED)
    pair.client.end(channel)
    pair.client.close()
    at_client, _ = pair.take()
    assert isinstance(at_client[-1], ConnectionClosed)
    pair.server.disposition(channel, Role.RECEIVER, 1, 1, ACCEPTED)
    assert pair.server.data_to_send() == b""


def test_neighbours_that_come_together_are_one_event() -> None:
    """Most clients write a frame for each delivery. Req: T-04"""
    server = server_that_sent(9)
    data = b"".join(disposition(number, number) for number in (0, 1, 2, 5, 4, 6, 7, 8))
    data += disposition(9, 9) + disposition(8, 8, receiver=False)
    events = every(server.receive(data, 0), DispositionReceived)
    assert [(event.first, event.last) for event in events] == [(0, 2), (5, 5), (4, 4), (6, 8)]


@given(st.lists(st.tuples(st.integers(0, 11), st.booleans(), st.booleans()), max_size=30))
def test_dispositions_mean_the_same_whether_they_come_together_or_one_by_one(
    said: list[tuple[int, bool, bool]],
) -> None:
    frames = [
        disposition(number, number, receiver=receiver, settled=settled) for number, receiver, settled in said
    ]

    def meant(events: list[Event]) -> list[tuple[int, Role, bool]]:
        return [
            (number, event.role, event.settled)
            for event in every(events, DispositionReceived)
            for number in range(event.first, event.last + 1)
        ]

    apart = server_that_sent(10)
    assert meant(server_that_sent(10).receive(b"".join(frames), 0)) == meant(
        [event for data in frames for event in apart.receive(data, 0)]
    )


def test_a_range_without_last_is_one_delivery() -> None:
    """Source: wire contract 4.3."""
    server = server_that_sent(5)
    event = only(server.receive(disposition(3, None, False), 0), DispositionReceived)
    assert (event.first, event.last, event.settled) == (3, 3, False)
    data = frame(0, composite(composites.DISPOSITION, [True, UInt(2)]))
    event = only(server.receive(data, 0), DispositionReceived)
    assert (event.first, event.last, event.settled, event.state) == (2, 2, False, None)


@pytest.mark.parametrize(
    ("first", "last", "reported"),
    [
        (0, 4, (0, 4)),
        (0, 2**31 - 1, (0, 9)),
        (3, 1_000_000, (3, 9)),
        (9, 10, (9, 9)),
        (10, 10, None),
        (10, 2**31, None),
        (500, 600, None),
        (2**32 - 5, 2, (2**32 - 5, 2)),
    ],
)
def test_a_range_is_cut_to_the_deliveries_there_were(
    first: int, last: int, reported: tuple[int, int] | None
) -> None:
    """Req: R-05"""
    events = server_that_sent(10).receive(disposition(first, last), 0)
    assert [(event.first, event.last) for event in every(events, DispositionReceived)] == (
        [] if reported is None else [reported]
    )


def test_a_disposition_before_any_delivery_is_about_nothing() -> None:
    assert server_that_sent(0).receive(disposition(0, 2**31 - 1), 0) == []
    assert server_that_sent(0).receive(disposition(0, 0, receiver=False), 0) == []


def test_a_range_that_runs_backwards_ends_the_session() -> None:
    """Req: R-05"""
    events = server_that_sent(10).receive(disposition(5, 4), 0)
    error = only(events, SessionEnded).error
    assert error is not None
    assert error.condition == "amqp:invalid-field"


def test_the_senders_word_on_its_deliveries_is_reported() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=5)
    for _ in range(3):
        pair.client.send(channel, handle, b"t", b"x")
    pair.client.disposition(channel, Role.SENDER, 0, 2, ACCEPTED)
    _, at_server = pair.take()
    event = only(at_server, DispositionReceived)
    assert (event.role, event.first, event.last) == (Role.SENDER, 0, 2)


@pytest.mark.parametrize("first", ["43", "5200", "7000000000"])
@pytest.mark.parametrize("last", ["40", "43", "5203", "7000000003"])
@pytest.mark.parametrize(
    "tail", ["", "41", "5601", "4140", "41" + "00532445", "41" + "00532445" + "42", "42" + "005325c00100"]
)
def test_every_encoding_of_a_disposition_gives_the_same_event(first: str, last: str, tail: str) -> None:
    server = server_that_sent(5)
    count = 3 + {0: 0, 2: 1, 4: 1 if tail == "5601" else 2, 10: 2, 12: 3, 14: 2}[len(tail)]
    fields = bytes.fromhex("41" + first + last + tail)
    short = b"\xc0" + bytes([len(fields) + 1, count]) + fields
    long = b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + fields
    state: DeliveryState | None = None
    if "24" in tail:
        state = ACCEPTED
    elif "25" in tail:
        state = Rejected()
    expected = DispositionReceived(
        0, Role.RECEIVER, 0, 3 if last.endswith("3") and last != "43" else 0, tail[:2] in ("41", "56"), state
    )
    for descriptor in (b"\x00\x53\x15", b"\x00" + encode(Symbol("amqp:disposition:list"))):
        for body in (short, long):
            data = frame(0, descriptor + body)
            assert server.receive(data + data, 0) == [expected, expected]


@pytest.mark.parametrize(
    "state",
    [
        "accepted",
        Described(0x70, []),
        Described(0x25, [Described(0x24, [])]),
        Described(0x25, ["amqp:not-found"]),
        Described(0x25, [Described(0x1D, [])]),
        Described(0x25, [Described(0x1D, [5])]),
        Described(0x27, [1, 2, 3]),
        Described(0x23, []),
        Described(0x33, ["not binary"]),
        Described(0x34, [b"t", "accepted"]),
        Described(0x34, [b"t", None, None]),
        Described("amqp:unknown:list", []),
    ],
)
def test_a_wrong_state_is_a_protocol_error(state: Any) -> None:
    server = server_that_sent(5)
    assert closed_with(server.receive(disposition(0, 0, False, state), 0)) == "amqp:invalid-field"


def test_a_condition_sent_as_a_string_is_taken() -> None:
    """Source: wire contract 0.3, 4.2: clients differ in string and symbol."""
    server = server_that_sent(5)
    state = Described(0x25, [Described(0x1D, ["com.microsoft:dead-letter"])])
    event = only(server.receive(disposition(0, 0, False, state), 0), DispositionReceived)
    assert event.state == Rejected(AmqpError("com.microsoft:dead-letter", "", None))


def test_a_peer_with_ever_new_forms_of_frames_is_remembered_within_bounds() -> None:
    """Req: R-05"""
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=1000)
    for number in range(300):
        pair.client.send(channel, handle, b"t", b"x", message_format=number + 1)
    assert len(every(pair.take()[1], DeliveryReceived)) == 300
    booleans = [b"\x40", b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"]
    for settled, failed, here in itertools.product(booleans, repeat=3):
        for count, batchable in ((5, b""), (6, b"\x40"), (6, b"\x41")):
            flags = failed + here
            state = b"\x00\x53\x27\xc0" + bytes([len(flags) + 1, 2]) + flags
            fields = b"\x42\x43\x43" + settled + state + batchable
            body = b"\x00\x53\x15\xc0" + bytes([len(fields) + 1, count]) + fields
            assert len(pair.server.receive(frame(channel, body), 0)) == 1
    tails = pair.server._shared.tails
    assert 0 < len(tails.transfers) <= TAILS_MAX
    assert 0 < len(tails.dispositions) <= TAILS_MAX


def test_the_longest_ranges_cost_no_more_than_what_is_known() -> None:
    """Req: R-05"""
    known = dict.fromkeys(range(100, 200))
    started = time.process_time()
    for _ in range(100):
        assert ids_in_range(150, 2**31 + 149, known) == list(range(150, 200))
    assert time.process_time() - started < 2
    assert ids_in_range(2**32 - 2, 1, {0, 1, 2, 2**32 - 1}) == [2**32 - 1, 0, 1]
    assert ids_in_range(5, 5, {5}) == [5]
    assert ids_in_range(5, 6, set()) == []


@given(st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1))
def test_distance_is_the_way_back_to_the_second_number(first: int, gap: int) -> None:
    assert distance(first, (first + gap) % 2**32) == gap


@pytest.mark.parametrize("form", ["list8", "list32"])
def test_a_list_of_either_form_is_recognised(form: str) -> None:
    """Some clients write every list in the long form: to decode each in full took six times as long."""
    server = server_that_sent(5)
    fields = bytes.fromhex("41" + "5200" + "40" + "41" + "00532445")
    short = b"\xc0" + bytes([len(fields) + 1, 5]) + fields
    long = b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + (5).to_bytes(4, "big") + fields
    server.receive(frame(0, b"\x00\x53\x15" + (short if form == "list8" else long)), 0)
    assert list(server._shared.tails.dispositions) == [bytes.fromhex("41" + "00532445")]
