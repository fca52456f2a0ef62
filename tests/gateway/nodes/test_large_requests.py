"""Requests and answers of any size: what a link says of sizes, what becomes of a request over its limit."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp import coordination
from peeklock.amqp.coordination import encode_coordination
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkAttached, LinkDetached
from peeklock.amqp.performatives import Accepted, TransactionalState
from peeklock.amqp.types import Int, Long, Role
from peeklock.broker.vocabulary.commands import (
    Declare,
    Discharge,
    LookUp,
    OpenReceiver,
    Peek,
    ReceiveDeferred,
)
from peeklock.broker.vocabulary.effects import Declared, EntityFound, MessagesFound, ReceiverOpened
from peeklock.gateway.bounds import CBS_REQUEST_BYTES_MAX
from peeklock.gateway.context import GatewayLimits
from tests.amqp.pair import transfer
from tests.gateway.harness import QUEUE_ID, Harness, ask, message_bytes, section, view, view_of_queue

NODE = "orders/$management"
LEAST = 1_114_112
TOO_LARGE = "amqp:link:message-size-exceeded"
PEEK = {"from-sequence-number": Long(0), "message-count": Int(9)}


def attached(rig: Harness) -> LinkAttached:
    return rig.take_event(LinkAttached)


def request_bytes(size: int, properties: list[Any] | None, **named: Any) -> bytes:
    """Encode a request of exactly `size` bytes."""
    head = b"" if properties is None else section(0x73, properties)
    head += section(0x74, {"operation": "com.microsoft:peek-message", **named})
    return head + section(0x75, bytes(size - len(head) - 8))


def detached(rig: Harness, handle: int) -> str:
    event = rig.take_event(LinkDetached)
    assert (event.handle, event.closed) == (handle, True)
    assert event.error is not None
    return str(event.error.condition)


# What a link says


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_receiver_is_told_no_size(mode: int) -> None:
    """Req: C24. Clients hold what they receive to it, and messages grow."""
    rig = Harness()
    rig.attach(Role.RECEIVER, "orders", snd_settle_mode=mode, max_message_size=262_144)
    rig.effect(ReceiverOpened(rig.take(OpenReceiver).link, QUEUE_ID))
    assert attached(rig).max_message_size is None
    assert attach_is_whole(rig)


@pytest.mark.parametrize("node", ["$cbs", NODE])
def test_who_receives_replies_is_told_no_size(node: str) -> None:
    """Req: C24."""
    rig = Harness()
    rig.attach(Role.RECEIVER, node)
    if node == NODE:
        rig.effect(EntityFound(rig.take(LookUp).reply_to, view_of_queue()))
    assert attached(rig).max_message_size is None
    assert attach_is_whole(rig)


def attach_is_whole(rig: Harness) -> bool:
    """Say whether the last attach has all 14 fields, null ones too."""
    at = rig.sent.rindex(b"\x00\x53\x12") + 3
    assert rig.sent[at] in (0xC0, 0xD0)
    return rig.sent[at + 2] == 14 if rig.sent[at] == 0xC0 else rig.sent[at + 8] == 14


def test_a_sender_is_told_the_size_of_the_entity() -> None:
    """Req: C24. Clients make their batches by it."""
    rig = Harness()
    rig.sender()
    assert attached(rig).max_message_size == 262_144


@pytest.mark.parametrize(
    ("message_bytes_max", "expected"),
    [
        (0, LEAST),
        (262_144, LEAST),
        (1_048_576, LEAST),
        (1_048_577, LEAST + 1),
        (104_857_600, 104_857_600 + 65_536),
    ],
)
def test_a_request_may_be_larger_than_the_largest_message(message_bytes_max: int, expected: int) -> None:
    """Req: C25. So that each message can be scheduled."""
    rig = Harness()
    handle = rig.attach(Role.SENDER, NODE)
    found = view_of_queue()
    found.message_size_bytes_max = message_bytes_max
    rig.effect(EntityFound(rig.take(LookUp).reply_to, found))
    assert attached(rig).max_message_size == expected
    rig.attach(Role.RECEIVER, NODE, near=NODE)
    rig.effect(EntityFound(rig.take(LookUp).reply_to, found))
    if expected < 2 * LEAST:
        rig.transfer(handle, request_bytes(expected, ["id", None, None, None, NODE]))
        assert isinstance(rig.take_event(DispositionReceived).state, Accepted)


# Over the limit


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("size", [LEAST + 1, 3 * LEAST])
def test_a_request_that_is_too_large_is_answered(size: int, settled: bool) -> None:
    """Req: C25. The pair lives on. The .NET client sends requests settled and waits for answers alone."""
    rig = Harness(limits=GatewayLimits(request_credit=4))
    sender, _ = rig.pair(NODE)
    fields = [Long(77), None, None, None, NODE]
    named = {"com.microsoft:tracking-id": "t"}
    delivery_id = rig.transfer(sender, request_bytes(size, fields, **named), settled=settled)
    if not settled:
        outcome = rig.take_event(DispositionReceived)
        assert (outcome.first, outcome.settled) == (delivery_id, True)
        assert isinstance(outcome.state, Accepted)
    response = rig.response()
    assert (response.correlation_id, response.status, response.condition) == (77, 403, TOO_LARGE)
    assert str(LEAST) in response.description
    assert response.event.payload.count(b"com.microsoft:tracking-id") == 1
    assert not any(isinstance(event, LinkDetached | DispositionReceived) for event in rig.events)
    for _ in range(9):  # its credit comes back
        rig.transfer(sender, request_bytes(LEAST + 1, fields), settled=True)
        assert rig.response().status == 403
    ask(rig, sender, "peek-message", PEEK)
    rig.take(Peek)


def test_who_asks_must_stand_in_the_first_4_kib_of_a_request_too_large() -> None:
    """Req: C25. Else the link is detached (AMQP 2.7.3)."""
    for padding, answered in ((3_000, True), (5_000, False)):
        rig = Harness()
        sender, _ = rig.pair(NODE)
        fields = ["i" * padding, None, None, None, NODE]
        rig.transfer(sender, request_bytes(LEAST + 1, fields), settled=True)
        if answered:
            assert rig.response().status == 403
        else:
            assert detached(rig, sender) == TOO_LARGE


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(bytes(LEAST + 1), id="no message"),
        pytest.param(request_bytes(LEAST + 1, None), id="no properties"),
        pytest.param(request_bytes(LEAST + 1, [None, None, None, None, NODE]), id="no message-id"),
        pytest.param(request_bytes(LEAST + 1, ["id"]), id="no reply-to"),
        pytest.param(request_bytes(LEAST + 1, ["id", None, None, None, 7]), id="reply-to is no string"),
        pytest.param(section(0x73, "id") + bytes(LEAST), id="properties are no list"),
    ],
)
@pytest.mark.parametrize("settled", [True, False])
def test_a_request_too_large_of_nobody_detaches_the_link(payload: bytes, settled: bool) -> None:
    """Req: C25."""
    rig = Harness()
    sender, _ = rig.pair(NODE)
    rig.transfer(sender, payload, settled=settled)
    assert detached(rig, sender) == TOO_LARGE
    assert rig.logged[-1][1]["condition"] == TOO_LARGE
    again, _ = rig.pair(NODE)
    ask(rig, again, "peek-message", PEEK)
    rig.take(Peek)


def test_a_request_too_large_without_a_link_for_the_answer_detaches_it() -> None:
    """Req: C25."""
    rig = Harness()
    sender = rig.attach(Role.SENDER, NODE)
    rig.effect(EntityFound(rig.take(LookUp).reply_to, view_of_queue()))
    rig.transfer(sender, request_bytes(LEAST + 1, ["id", None, None, None, NODE]), settled=True)
    assert detached(rig, sender) == TOO_LARGE


def test_a_request_to_cbs_too_large_detaches_the_link() -> None:
    """Req: C25, R-05. The limit is announced; a token has 16 KiB at most."""
    rig = Harness(mechanism="ANONYMOUS")
    sender, _ = rig.pair("$cbs")
    number = rig.transfer(sender, bytes(CBS_REQUEST_BYTES_MAX))
    assert rig.rejection(number).condition == "amqp:decode-error"  # it was read
    fields = ["id", None, None, None, "$cbs"]
    rig.transfer(sender, request_bytes(CBS_REQUEST_BYTES_MAX + 1, fields))
    assert detached(rig, sender) == TOO_LARGE
    again, _ = rig.pair("$cbs")
    rig.put_token(again, "sb://localhost")
    assert rig.gateway.known


def test_a_transaction_with_a_request_too_large_of_nobody_cannot_be_committed() -> None:
    """Req: C25, F-03. The client has no other sign of it than the detach."""
    rig = Harness()
    sender, _ = rig.pair(NODE)
    control = rig.controller()
    transaction_id = declare(rig, control)
    state = TransactionalState(transaction_id)
    rig.transfer(sender, bytes(LEAST + 1), settled=True, state=state)
    assert detached(rig, sender) == TOO_LARGE
    assert rig.gateway._transactions.open[transaction_id].refusal is not None
    assert not any(isinstance(command, Discharge) for command in rig.commands)


def declare(rig: Harness, control: int) -> bytes:
    rig.transfer(control, encode_coordination(coordination.Declare()))
    rig.effect(Declared(rig.take(Declare).reply_to, b"t1"))
    rig.events.clear()
    return b"t1"


def test_a_whole_delivery_that_came_before_its_node_was_found_is_held_to_the_limit() -> None:
    """Req: R-05, C25. The limit of a management link is announced only when it is accepted."""
    rig = Harness(limits=GatewayLimits(request_bytes_max=70_000))
    rig.attach(Role.RECEIVER, NODE, near=NODE)
    rig.effect(EntityFound(rig.take(LookUp).reply_to, view_without_sizes()))
    rig.client.flow(rig.channel, 0, 10)
    handle = rig.attach(Role.SENDER, NODE, near=NODE)
    for number, size in ((0, 70_000), (1, 70_001)):
        payload = request_bytes(size, [Long(number), None, None, None, NODE])
        half = len(payload) // 2
        for part, more in ((payload[:half], True), (payload[half:], False)):
            data = transfer(handle, number, part, channel=rig.channel, more=more, settled=True)
            rig.gateway.receive(data, rig.clock.now_ms)
    rig.effect(EntityFound(rig.take(LookUp).reply_to, view_without_sizes()))
    assert [rig.response().status for _ in range(2)] == [400, 403]
    assert rig.gateway.uncommitted_bytes == 0


def view_without_sizes() -> Any:
    found = view_of_queue()
    found.message_size_bytes_max = 0
    return found


# Answers


@pytest.mark.parametrize("credit", [100, 0])
@pytest.mark.parametrize("operation", ["peek-message", "receive-by-sequence-number"])
def test_an_answer_is_sent_however_large(operation: str, credit: int) -> None:
    """Req: C24, C25. With the client's credit at once, or as soon as it is there."""
    rig = Harness()
    sender, receiver = rig.pair(NODE)
    rig.client.flow(rig.channel, receiver, credit)
    body: Any = PEEK if operation == "peek-message" else {"sequence-numbers": [Long(1)]}
    ask(rig, sender, operation, body)
    payload = message_bytes(bytes(6_000_000))
    rig.payloads[1] = payload
    command = rig.take(Peek) if operation == "peek-message" else rig.take(ReceiveDeferred)
    rig.effect(MessagesFound(command.reply_to, [view(payload, 1)]))
    rig.client.flow(rig.channel, receiver, 100)
    rig.pump()
    [found] = rig.response().body["messages"]
    assert len(found["message"]) >= len(payload)


def test_who_takes_no_answers_is_detached_and_told_to_come_later() -> None:
    """Req: C25, R-05. An answer that cannot be kept is a detach, never silence; nothing is looked up for one
    that could not leave."""
    rig = Harness(limits=GatewayLimits(unsent_replies_bytes_max=5000))
    sender, receiver = rig.pair(NODE)
    rig.client.flow(rig.channel, receiver, 0)
    payload = message_bytes(bytes(6_000))
    rig.payloads[1] = payload
    for _ in range(2):
        ask(rig, sender, "peek-message", PEEK)
    first, second = rig.take(Peek), rig.take(Peek)
    rig.effect(MessagesFound(first.reply_to, [view(payload, 1)]))
    assert not any(isinstance(event, LinkDetached) for event in rig.events)
    rig.effect(MessagesFound(second.reply_to, [view(payload, 1)]))
    assert detached(rig, receiver) == "amqp:resource-limit-exceeded"
    assert rig.gateway.buffered_bytes == 0
    again = rig.attach(Role.RECEIVER, NODE, near=NODE)
    rig.effect(EntityFound(rig.take(LookUp).reply_to, view_of_queue()))
    ask(rig, sender, "peek-message", PEEK)
    rig.effect(MessagesFound(rig.take(Peek).reply_to, [view(payload, 1)]))
    rig.commands.clear()
    rig.client.flow(rig.channel, again, 1)
    rig.pump()
    assert rig.response().status == 200
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)
