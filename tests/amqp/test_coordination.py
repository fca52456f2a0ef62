"""Transactions on the wire, both roles: the coordinator's link, declare, discharge, states of deliveries."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp import composites
from peeklock.amqp.codec import DecodeError
from peeklock.amqp.composites import composite
from peeklock.amqp.coordination import Declare, Discharge, decode_coordination, encode_coordination
from peeklock.amqp.encoding import encode
from peeklock.amqp.errors import NOT_IMPLEMENTED, AmqpError
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkAttached, LinkDetached
from peeklock.amqp.frames import frame
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Coordinator,
    Declared,
    DeliveryState,
    Modified,
    Received,
    Source,
    Target,
    TransactionalState,
)
from peeklock.amqp.types import Array, Described, Role, Symbol, UInt
from tests.amqp.pair import (
    Pair,
    attach,
    bare_server,
    begin,
    every,
    flow,
    frames_of,
    only,
    opened_pair,
    transfer,
)

TXN = bytes(range(16))
LOCAL = Symbol("amqp:local-transactions")


def coordinated(pair: Pair, capabilities: Any = None) -> tuple[int, int]:
    """Attach the client's controller to the server's coordinator."""
    channel = pair.client.begin()
    handle = pair.client.attach(channel, "control", Role.SENDER, Source(), Coordinator(capabilities))
    pair.exchange()
    pair.server.flow(channel, handle, 10)
    pair.exchange()
    return channel, handle


@pytest.mark.parametrize("capabilities", [None, LOCAL, (LOCAL,), (LOCAL, Symbol("amqp:multi-txns-per-ssn"))])
def test_a_coordinator_is_told_apart_and_echoed_byte_for_byte(capabilities: Any) -> None:
    """Capabilities come as null, one symbol or an array; the reply offers none.

    Req: F-03. Source: AMQP 4.5.1; wire contract 0.1, 6.
    """
    pair = opened_pair()
    coordinated(pair, capabilities)
    asked = only(pair.at_server, LinkAttached)
    told = only(pair.at_client, LinkAttached)
    assert isinstance(asked.target, Coordinator)
    assert told.target == asked.target
    assert (told.target_raw, told.source_raw) == (asked.target_raw, asked.source_raw)
    assert asked.target_raw.startswith(b"\x00\x53\x30")
    [fields] = [fields for _, code, fields, _ in frames_of(pair.to_client) if code == composites.ATTACH]
    assert fields[11] is None


def test_a_coordinator_can_be_refused() -> None:
    """Source: wire contract 2.2."""
    pair = opened_pair()
    error = AmqpError(NOT_IMPLEMENTED, "no")
    pair.on_attach = lambda event: pair.server.refuse_link(event.channel, event.handle, error)
    coordinated(pair)
    assert only(pair.at_client, LinkAttached).target is None
    assert only(pair.at_client, LinkDetached).error == error


def test_declare_and_discharge_have_the_bytes_of_the_specification() -> None:
    """Req: F-03. Source: AMQP 4.5.2, 4.5.3: lists 0x31 and 0x32 in an amqp-value."""
    assert encode_coordination(Declare()).hex() == "005377" + "00533145"
    discharge = encode_coordination(Discharge(b"id", True))
    assert discharge.hex() == "005377" + "005332" + "c00602" + "a0026964" + "41"


@pytest.mark.parametrize("request_", [Declare(), Declare(b"g"), Discharge(TXN), Discharge(TXN, True)])
def test_what_is_said_to_a_coordinator_reads_as_written(request_: Declare | Discharge) -> None:
    assert decode_coordination(encode_coordination(request_)) == request_


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Described(0x31, [None]), Declare()),
        (Described(Symbol("amqp:declare:list"), []), Declare()),
        (Described(0x32, [TXN]), Discharge(TXN)),
        (Described(0x32, [TXN, None]), Discharge(TXN)),
        (Described(Symbol("amqp:discharge:list"), [TXN, False]), Discharge(TXN)),
        # The coordinator refuses an invalid id.
        (Described(0x32, []), Discharge(b"")),
        (Described(0x32, [None, True]), Discharge(b"", True)),
        (Described(0x32, ["text", True]), Discharge(b"", True)),
        (Described(0x32, [b"x" * 33]), Discharge(b"x" * 33)),
    ],
)
def test_every_form_of_a_request_is_read(value: Any, expected: Declare | Discharge) -> None:
    """Source: AMQP 4.5.2, 4.5.3; a null `fail` is false."""
    payload = b"\x00\x53\x77" + encode(value)
    assert decode_coordination(payload) == expected
    assert decode_coordination(b"\x00\x53\x70\x45" + payload) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"noise",
        b"\x00\x53\x77",
        encode_message(data=b"declare"),
        encode_message(value="declare"),
        encode_message(value=None),
        encode_message(value=[]),
        encode_message(value=Described(0x33, [TXN])),
        encode_message(value=Described(0x31, {})),
        encode_message(value=Described(0x31, [None, None])),
        encode_message(value=Described(0x32, [TXN, 1])),
        encode_message(value=Described(0x32, [TXN, False, None])),
        encode_message(value=Described("amqp:unknown:list", [])),
    ],
)
def test_anything_else_is_a_decode_error_of_the_message_alone(payload: bytes) -> None:
    """Req: R-05."""
    with pytest.raises(DecodeError):
        decode_coordination(payload)


def test_a_transaction_from_declare_to_discharge() -> None:
    """Req: F-03. Both ends of the engine, all states of the exchange."""
    pair = opened_pair()
    channel, control = coordinated(pair)
    sender = pair.client.attach(channel, "work", Role.SENDER, Source("s"), Target("t"))
    receiver = pair.client.attach(channel, "more", Role.RECEIVER, Source("s"), Target("t"))
    pair.exchange()
    pair.server.flow(channel, sender, 10)
    pair.client.flow(channel, receiver, 10)
    pair.exchange()
    pair.server.send(channel, receiver, b"lock", b"message")
    pair.take()

    declare = pair.client.send(channel, control, b"1", encode_coordination(Declare()))
    _, at_server = pair.take()
    assert decode_coordination(only(at_server, DeliveryReceived).payload) == Declare()
    pair.server.disposition(channel, Role.RECEIVER, declare, declare, Declared(TXN))
    at_client, _ = pair.take()
    answer = only(at_client, DispositionReceived)
    assert (answer.first, answer.settled, answer.state) == (declare, True, Declared(TXN))

    within = TransactionalState(TXN)
    accepted = TransactionalState(TXN, ACCEPTED)
    work = pair.client.send(channel, sender, b"2", b"work", state=within)
    pair.client.disposition(channel, Role.RECEIVER, 0, 0, accepted, settled=False)
    _, at_server = pair.take()
    assert only(at_server, DeliveryReceived).state == within
    assert only(at_server, DispositionReceived).state == accepted
    pair.server.disposition(channel, Role.RECEIVER, work, work, accepted)
    pair.server.disposition(channel, Role.SENDER, 0, 0, accepted)
    at_client, _ = pair.take()
    assert [(event.role, event.state) for event in every(at_client, DispositionReceived)] == [
        (Role.RECEIVER, accepted),
        (Role.SENDER, accepted),
    ]

    end = pair.client.send(channel, control, b"3", encode_coordination(Discharge(TXN)))
    _, at_server = pair.take()
    assert decode_coordination(only(at_server, DeliveryReceived).payload) == Discharge(TXN)
    pair.server.disposition(channel, Role.RECEIVER, end, end, ACCEPTED)
    at_client, _ = pair.take()
    assert only(at_client, DispositionReceived).state == ACCEPTED


def test_answers_within_one_transaction_become_a_range() -> None:
    """Req: T-04, F-03."""
    pair = opened_pair()
    channel, handle = pair.attach(Role.SENDER, credit=100)
    for _ in range(10):
        pair.client.send(channel, handle, b"t", b"x", state=TransactionalState(TXN))
    pair.take()
    pair.to_client = b""
    for number in range(10):
        txn_id = TXN if number < 6 else b"other"
        pair.server.disposition(channel, Role.RECEIVER, number, number, TransactionalState(txn_id, ACCEPTED))
    at_client, _ = pair.take()
    assert [(event.first, event.last) for event in every(at_client, DispositionReceived)] == [(0, 5), (6, 9)]


def coordinating_server() -> Any:
    """Return a server with an attached link that receives, and one that has sent a delivery."""
    server = bare_server()
    server.receive(begin() + attach(0, Role.SENDER) + attach(1, Role.RECEIVER, name="out"), 0)
    server.accept_link(0, 0)
    server.accept_link(0, 1)
    server.receive(flow(1, credit=5), 0)
    server.send(0, 1, b"lock", b"message")
    server.data_to_send()
    return server


WRONG_IDS = [None, "text", 5, [b"t"], Described(0x34, []), b"x" * 33, b"x" * 300]


@pytest.mark.parametrize("txn_id", WRONG_IDS)
def test_a_txn_id_that_cannot_be_one_is_reported_as_one_that_nothing_has(txn_id: Any) -> None:
    """The connection lives on: the coordinator will say unknown-id. Req: R-05, F-03."""
    server = coordinating_server()
    found = txn_id if isinstance(txn_id, bytes) else b""
    events = server.receive(transfer(0, 0, b"x", state=Described(0x34, [txn_id])), 0)
    assert only(events, DeliveryReceived).state == TransactionalState(found)
    state = Described(0x34, [txn_id, Described(0x24, [])])
    data = frame(0, composite(composites.DISPOSITION, [True, UInt(0), None, False, state]))
    assert only(server.receive(data, 0), DispositionReceived).state == TransactionalState(found, ACCEPTED)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([], TransactionalState(b"")),
        ([TXN, Described(0x34, [TXN])], TransactionalState(TXN, TransactionalState(TXN))),
        ([TXN, Described(0x34, [])], TransactionalState(TXN, TransactionalState(b""))),
        ([TXN, Described(0x33, [TXN])], TransactionalState(TXN, Declared(TXN))),
        ([TXN, Described(0x23, [UInt(1), UInt(2)])], TransactionalState(TXN, Received(1, 2))),
    ],
)
def test_what_is_no_outcome_within_a_transaction_is_left_to_the_owner(
    fields: list[Any], expected: DeliveryState
) -> None:
    """The connection lives on. Req: R-05, F-03."""
    server = coordinating_server()
    data = frame(0, composite(composites.DISPOSITION, [True, UInt(0), None, False, Described(0x34, fields)]))
    assert only(server.receive(data, 0), DispositionReceived).state == expected


@pytest.mark.parametrize("where", [0, 1, 2])
def test_the_state_may_be_on_any_frame_of_a_delivery(where: int) -> None:
    """Source: AMQP 2.7.5, state."""
    server = coordinating_server()
    state = Described(0x34, [TXN])
    data = b"".join(
        transfer(0, 0, b"x", more=number < 2, state=state if number == where else None) for number in range(3)
    )
    assert only(server.receive(data, 0), DeliveryReceived).state == TransactionalState(TXN)


def test_the_same_state_on_every_frame_is_one_state() -> None:
    server = coordinating_server()
    state = Described(0x34, [TXN])
    data = transfer(0, 0, b"x", more=True, state=state) + transfer(0, None, b"y", tag=None, state=state)
    assert only(server.receive(data, 0), DeliveryReceived).state == TransactionalState(TXN)


@pytest.mark.parametrize("second", [Described(0x34, [b"other"]), Described(0x24, [])])
def test_a_delivery_cannot_leave_its_transaction(second: Any) -> None:
    """Else part of it would be enlisted and the whole stored outside. Ends the link, no more. Req: R-05."""
    server = coordinating_server()
    data = transfer(0, 0, b"x", more=True, state=Described(0x34, [TXN])) + transfer(
        0, None, b"y", tag=None, state=second
    )
    error = only(server.receive(data, 0), LinkDetached).error
    assert error is not None
    assert error.condition == "amqp:invalid-field"


def test_a_long_delivery_carries_its_state_once() -> None:
    """Req: T-10."""
    pair = opened_pair(client={"max_frame_size": 512}, server={"max_frame_size": 512})
    channel, handle = pair.attach(Role.SENDER, credit=5)
    payload = b"x" * 2000
    pair.client.send(channel, handle, b"t", payload, state=TransactionalState(TXN))
    _, at_server = pair.take()
    event = only(at_server, DeliveryReceived)
    assert (event.payload, event.state) == (payload, TransactionalState(TXN))


def test_other_outcomes_pass_within_a_transaction() -> None:
    pair = opened_pair()
    channel, handle = pair.attach(Role.RECEIVER, credit=5)
    for _ in range(2):
        pair.server.send(channel, handle, b"t", b"x")
    pair.take()
    states = [
        TransactionalState(TXN, Modified(True, True, {Symbol("k"): 1})),
        TransactionalState(TXN, RELEASED),
    ]
    for number, state in enumerate(states):
        pair.client.disposition(channel, Role.RECEIVER, number, number, state, settled=False)
    _, at_server = pair.take()
    assert [event.state for event in every(at_server, DispositionReceived)] == states


def test_capabilities_of_a_coordinator_are_read_in_any_form() -> None:
    server = bare_server()
    server.receive(begin(), 0)
    forms: list[list[Any]] = [[], [None], [LOCAL], [Array.of(Symbol, [LOCAL])]]
    for handle, fields in enumerate(forms):
        target = Described(0x30, fields)
        values = [f"link{handle}", UInt(handle), False, None, None, Described(0x28, []), target, None, None]
        data = frame(0, composite(composites.ATTACH, [*values, UInt(0)]))
        found = only(server.receive(data, 0), LinkAttached).target
        assert found == Coordinator(fields[0] if fields else None)
