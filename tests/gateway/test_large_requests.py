"""Requests and answers of any size: what a link says of sizes, what becomes of a request over its limit."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp import coordination
from peeklock.amqp.coordination import encode_coordination
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkAttached, LinkDetached
from peeklock.amqp.performatives import Accepted, TransactionalState
from peeklock.amqp.types import Int, Long, Role
from peeklock.broker.commands import Declare, Discharge, LookUp, OpenReceiver, Peek, ReceiveDeferred
from peeklock.broker.effects import Declared, EntityFound, MessagesFound, ReceiverOpened
from peeklock.gateway.bounds import CBS_REQUEST_BYTES_MAX
from peeklock.gateway.context import GatewayLimits
from tests.amqp.pair import transfer
from tests.gateway.playbook import QUEUE_ID, Desk, ask, message_bytes, section, view, view_of_queue

NODE = "orders/$management"
LEAST = 1_114_112
TOO_LARGE = "amqp:link:message-size-exceeded"
PEEK = {"from-sequence-number": Long(0), "message-count": Int(9)}


def attached(desk: Desk) -> LinkAttached:
    return desk.take_event(LinkAttached)


def request_bytes(size: int, properties: list[Any] | None, **named: Any) -> bytes:
    """Encode a request of exactly `size` bytes."""
    head = b"" if properties is None else section(0x73, properties)
    head += section(0x74, {"operation": "com.microsoft:peek-message", **named})
    return head + section(0x75, bytes(size - len(head) - 8))


def detached(desk: Desk, handle: int) -> str:
    event = desk.take_event(LinkDetached)
    assert (event.handle, event.closed) == (handle, True)
    assert event.error is not None
    return str(event.error.condition)


# What a link says


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_receiver_is_told_no_size(mode: int) -> None:
    """Req: C24. Clients hold what they receive to it, and messages grow."""
    desk = Desk()
    desk.attach(Role.RECEIVER, "orders", snd_settle_mode=mode, max_message_size=262_144)
    desk.effect(ReceiverOpened(desk.take(OpenReceiver).link, QUEUE_ID))
    assert attached(desk).max_message_size is None
    assert attach_is_whole(desk)


@pytest.mark.parametrize("node", ["$cbs", NODE])
def test_who_receives_replies_is_told_no_size(node: str) -> None:
    """Req: C24."""
    desk = Desk()
    desk.attach(Role.RECEIVER, node)
    if node == NODE:
        desk.effect(EntityFound(desk.take(LookUp).reply_to, view_of_queue()))
    assert attached(desk).max_message_size is None
    assert attach_is_whole(desk)


def attach_is_whole(desk: Desk) -> bool:
    """Say whether the last attach has all 14 fields, null ones too."""
    at = desk.sent.rindex(b"\x00\x53\x12") + 3
    assert desk.sent[at] in (0xC0, 0xD0)
    return desk.sent[at + 2] == 14 if desk.sent[at] == 0xC0 else desk.sent[at + 8] == 14


def test_a_sender_is_told_the_size_of_the_entity() -> None:
    """Req: C24. Clients make their batches by it."""
    desk = Desk()
    desk.sender()
    assert attached(desk).max_message_size == 262_144


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
    desk = Desk()
    handle = desk.attach(Role.SENDER, NODE)
    found = view_of_queue()
    found.message_size_bytes_max = message_bytes_max
    desk.effect(EntityFound(desk.take(LookUp).reply_to, found))
    assert attached(desk).max_message_size == expected
    desk.attach(Role.RECEIVER, NODE, near=NODE)
    desk.effect(EntityFound(desk.take(LookUp).reply_to, found))
    if expected < 2 * LEAST:
        desk.transfer(handle, request_bytes(expected, ["id", None, None, None, NODE]))
        assert isinstance(desk.take_event(DispositionReceived).state, Accepted)


# Over the limit


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("size", [LEAST + 1, 3 * LEAST])
def test_a_request_that_is_too_large_is_answered(size: int, settled: bool) -> None:
    """Req: C25. The pair lives on. The .NET client sends requests settled and waits for answers alone."""
    desk = Desk(limits=GatewayLimits(request_credit=4))
    sender, _ = desk.pair(NODE)
    fields = [Long(77), None, None, None, NODE]
    named = {"com.microsoft:tracking-id": "t"}
    delivery_id = desk.transfer(sender, request_bytes(size, fields, **named), settled=settled)
    if not settled:
        outcome = desk.take_event(DispositionReceived)
        assert (outcome.first, outcome.settled) == (delivery_id, True)
        assert isinstance(outcome.state, Accepted)
    response = desk.response()
    assert (response.correlation_id, response.status, response.condition) == (77, 403, TOO_LARGE)
    assert str(LEAST) in response.description
    assert response.event.payload.count(b"com.microsoft:tracking-id") == 1
    assert not any(isinstance(event, LinkDetached | DispositionReceived) for event in desk.events)
    for _ in range(9):  # its credit comes back
        desk.transfer(sender, request_bytes(LEAST + 1, fields), settled=True)
        assert desk.response().status == 403
    ask(desk, sender, "peek-message", PEEK)
    assert desk.take(Peek)


def test_who_asks_must_stand_in_the_first_4_kib_of_a_request_too_large() -> None:
    """Req: C25. Else the link is detached (AMQP 2.7.3)."""
    for padding, answered in ((3_000, True), (5_000, False)):
        desk = Desk()
        sender, _ = desk.pair(NODE)
        fields = ["i" * padding, None, None, None, NODE]
        desk.transfer(sender, request_bytes(LEAST + 1, fields), settled=True)
        if answered:
            assert desk.response().status == 403
        else:
            assert detached(desk, sender) == TOO_LARGE


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
    desk = Desk()
    sender, _ = desk.pair(NODE)
    desk.transfer(sender, payload, settled=settled)
    assert detached(desk, sender) == TOO_LARGE
    assert desk.logged[-1][1]["condition"] == TOO_LARGE
    again, _ = desk.pair(NODE)
    ask(desk, again, "peek-message", PEEK)
    assert desk.take(Peek)


def test_a_request_too_large_without_a_link_for_the_answer_detaches_it() -> None:
    """Req: C25."""
    desk = Desk()
    sender = desk.attach(Role.SENDER, NODE)
    desk.effect(EntityFound(desk.take(LookUp).reply_to, view_of_queue()))
    desk.transfer(sender, request_bytes(LEAST + 1, ["id", None, None, None, NODE]), settled=True)
    assert detached(desk, sender) == TOO_LARGE


def test_a_request_to_cbs_too_large_detaches_the_link() -> None:
    """Req: C25, R-05. The limit is announced; a token has 16 KiB at most."""
    desk = Desk(mechanism="ANONYMOUS")
    sender, _ = desk.pair("$cbs")
    number = desk.transfer(sender, bytes(CBS_REQUEST_BYTES_MAX))
    assert desk.rejection(number).condition == "amqp:decode-error"  # it was read
    fields = ["id", None, None, None, "$cbs"]
    desk.transfer(sender, request_bytes(CBS_REQUEST_BYTES_MAX + 1, fields))
    assert detached(desk, sender) == TOO_LARGE
    again, _ = desk.pair("$cbs")
    desk.put_token(again, "sb://localhost")
    assert desk.gateway.known


def test_a_transaction_with_a_request_too_large_of_nobody_cannot_be_committed() -> None:
    """Req: C25, F-03. The client has no other sign of it than the detach."""
    desk = Desk()
    sender, _ = desk.pair(NODE)
    control = desk.controller()
    transaction_id = declare(desk, control)
    state = TransactionalState(transaction_id)
    desk.transfer(sender, bytes(LEAST + 1), settled=True, state=state)
    assert detached(desk, sender) == TOO_LARGE
    assert desk.gateway._context.transactions[transaction_id].refusal is not None
    assert not any(isinstance(command, Discharge) for command in desk.commands)


def declare(desk: Desk, control: int) -> bytes:
    desk.transfer(control, encode_coordination(coordination.Declare()))
    desk.effect(Declared(desk.take(Declare).reply_to, b"t1"))
    desk.events.clear()
    return b"t1"


def test_a_whole_delivery_that_came_before_its_node_was_found_is_held_to_the_limit() -> None:
    """Req: R-05, C25. The limit of a management link is announced only when it is accepted."""
    desk = Desk(limits=GatewayLimits(request_bytes_max=70_000))
    desk.attach(Role.RECEIVER, NODE, near=NODE)
    desk.effect(EntityFound(desk.take(LookUp).reply_to, view_without_sizes()))
    desk.client.flow(desk.channel, 0, 10)
    handle = desk.attach(Role.SENDER, NODE, near=NODE)
    for number, size in ((0, 70_000), (1, 70_001)):
        payload = request_bytes(size, [Long(number), None, None, None, NODE])
        half = len(payload) // 2
        for part, more in ((payload[:half], True), (payload[half:], False)):
            data = transfer(handle, number, part, channel=desk.channel, more=more, settled=True)
            desk.gateway.receive(data, desk.clock.now_ms)
    desk.effect(EntityFound(desk.take(LookUp).reply_to, view_without_sizes()))
    assert [desk.response().status for _ in range(2)] == [400, 403]
    assert desk.gateway.uncommitted_bytes == 0


def view_without_sizes() -> Any:
    found = view_of_queue()
    found.message_size_bytes_max = 0
    return found


# Answers


@pytest.mark.parametrize("credit", [100, 0])
@pytest.mark.parametrize("operation", ["peek-message", "receive-by-sequence-number"])
def test_an_answer_is_sent_however_large(operation: str, credit: int) -> None:
    """Req: C24, C25. With the client's credit at once, or as soon as it is there."""
    desk = Desk()
    sender, receiver = desk.pair(NODE)
    desk.client.flow(desk.channel, receiver, credit)
    body: Any = PEEK if operation == "peek-message" else {"sequence-numbers": [Long(1)]}
    ask(desk, sender, operation, body)
    payload = message_bytes(bytes(6_000_000))
    desk.payloads[1] = payload
    command = desk.take(Peek if operation == "peek-message" else ReceiveDeferred)
    desk.effect(MessagesFound(command.reply_to, [view(payload, 1)]))
    desk.client.flow(desk.channel, receiver, 100)
    desk.pump()
    [found] = desk.response().body["messages"]
    assert len(found["message"]) >= len(payload)


def test_who_takes_no_answers_is_detached_and_told_to_come_later() -> None:
    """Req: C25, R-05. An answer that cannot be kept is a detach, never silence; nothing is looked up for one
    that could not leave."""
    desk = Desk(limits=GatewayLimits(unsent_replies_bytes_max=5000))
    sender, receiver = desk.pair(NODE)
    desk.client.flow(desk.channel, receiver, 0)
    payload = message_bytes(bytes(6_000))
    desk.payloads[1] = payload
    for _ in range(2):
        ask(desk, sender, "peek-message", PEEK)
    first, second = desk.take(Peek), desk.take(Peek)
    desk.effect(MessagesFound(first.reply_to, [view(payload, 1)]))
    assert not any(isinstance(event, LinkDetached) for event in desk.events)
    desk.effect(MessagesFound(second.reply_to, [view(payload, 1)]))
    assert detached(desk, receiver) == "amqp:resource-limit-exceeded"
    assert desk.gateway.buffered_bytes == 0
    again = desk.attach(Role.RECEIVER, NODE, near=NODE)
    desk.effect(EntityFound(desk.take(LookUp).reply_to, view_of_queue()))
    ask(desk, sender, "peek-message", PEEK)
    desk.effect(MessagesFound(desk.take(Peek).reply_to, [view(payload, 1)]))
    desk.commands.clear()
    desk.client.flow(desk.channel, again, 1)
    desk.pump()
    assert desk.response().status == 200
    assert not any(isinstance(event, DeliveryReceived) for event in desk.events)
