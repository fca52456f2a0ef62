"""Deliveries and answers that wait in the gateway: for a body, for credit, for room; and links that go
meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.performatives import Modified
from peeklock.amqp.types import Int, Long, Role, Symbol
from peeklock.broker.vocabulary.commands import (
    DELIVERY_BYTES,
    Abandon,
    Command,
    DropConnection,
    LockToken,
    Peek,
    Release,
    SetCredit,
)
from peeklock.broker.vocabulary.effects import Deliver, MessagesFound
from peeklock.broker.vocabulary.message import MessageState, MessageView
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.links.receiver_endpoint import ReceiverEndpoint
from tests.gateway.harness import QUEUE_ID, TOKEN, Harness, message_bytes, section, stored


@pytest.fixture
def rig() -> Harness:
    return Harness()


def arrive(rig: Harness) -> None:
    """Let the gateway look for bodies again, as after a read."""
    rig.gateway.bodies_arrived(lambda message: rig.payloads.get(message.body_row), rig.clock.now_ms)
    rig.pump()


def delivered(rig: Harness) -> list[bytes]:
    """Take the last byte of each delivery so far."""
    found = [event for event in rig.events if isinstance(event, DeliveryReceived)]
    rig.events = [event for event in rig.events if not isinstance(event, DeliveryReceived)]
    return [event.payload[-1:] for event in found]


def view(payload: bytes, number: int) -> MessageView:
    return MessageView(stored(payload, number=number), None, 0, 0, None, MessageState.ACTIVE, None)


def peek(rig: Harness, sender: int, count: int = 10) -> Peek:
    body = {"from-sequence-number": Long(0), "message-count": Int(count)}
    rig.request(sender, "com.microsoft:peek-message", body)
    return rig.take(Peek)


# What waits keeps what it needs


@pytest.mark.parametrize("options", [{}, {"snd_settle_mode": 1, "rcv_settle_mode": 0}])
def test_a_delivery_behind_a_missing_body_keeps_its_own(rig: Harness, options: dict[str, Any]) -> None:
    """Req: L-16. Its message is gone from the queue before the other body comes: nothing could read it."""
    _, opened = rig.receiver(credit=9, **options)
    first = rig.deliver(opened.link, message_bytes(b"1"), number=1)
    second = rig.deliver(opened.link, message_bytes(b"2"), number=2)
    body = rig.payloads.pop(1)
    rig.effect(first, second)
    assert delivered(rig) == []
    rig.payloads = {1: body}  # that of the second is nowhere any more
    arrive(rig)
    assert delivered(rig) == [b"1", b"2"]
    assert rig.gateway.bodies_wanted() == set()


def test_a_delivery_without_credit_keeps_its_body(rig: Harness) -> None:
    """Req: L-01, L-16. Received and deleted, its credit withdrawn: the gateway has the only copy."""
    handle, opened = rig.receiver(credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    rig.client.flow(rig.channel, handle, 0)
    rig.pump()
    rig.effect(rig.deliver(opened.link, message_bytes(b"1"), locked=False))
    rig.payloads.clear()
    rig.client.flow(rig.channel, handle, 1)
    rig.pump()
    assert delivered(rig) == [b"1"]


def test_a_peek_answer_keeps_the_bodies_it_has_while_another_is_read(rig: Harness) -> None:
    """Req: S-11. The message of the one may be removed while that of the other is read."""
    sender, _ = rig.pair("orders/$management")
    rig.payloads = {2: message_bytes(b"2")}
    rig.effect(
        MessagesFound(
            peek(rig, sender).reply_to, [view(message_bytes(b"1"), 1), view(message_bytes(b"2"), 2)]
        )
    )
    rig.payloads = {1: message_bytes(b"1")}
    arrive(rig)
    assert [item["message"][-1:] for item in rig.response().body["messages"]] == [b"1", b"2"]


def test_a_peek_answer_waits_for_the_row_that_was_asked_for_when_the_body_moves(rig: Harness) -> None:
    """Req: S-11. A body copied forward is in memory, and in a row that no store can read yet."""
    sender, _ = rig.pair("orders/$management")
    moving = view(message_bytes(b"1"), 1)
    rig.effect(MessagesFound(peek(rig, sender).reply_to, [moving]))
    assert rig.gateway.bodies_wanted() == {1}
    moving.message.body_row = 7
    assert rig.gateway.bodies_wanted() == {1}
    rig.payloads = {7: message_bytes(b"1")}
    arrive(rig)  # the old row
    assert [item["message"][-1:] for item in rig.response().body["messages"]] == [b"1"]


def test_a_delivery_waits_for_the_row_that_was_asked_for_when_the_body_moves(rig: Harness) -> None:
    """Req: L-16."""
    _, opened = rig.receiver(credit=1)
    moving = rig.deliver(opened.link, message_bytes(b"1"))
    rig.payloads.clear()
    rig.effect(moving)
    moving.message.body_row = 7
    assert rig.gateway.bodies_wanted() == {1}
    rig.payloads = {7: message_bytes(b"1")}
    arrive(rig)
    assert delivered(rig) == [b"1"]


# Credit


def test_two_flows_in_one_read_let_a_waiting_delivery_use_only_the_last(rig: Harness) -> None:
    """Req: L-16. The first flow's credit is history when it is looked at."""
    handle, opened = rig.receiver(credit=2, snd_settle_mode=1, rcv_settle_mode=0)
    rig.client.flow(rig.channel, handle, 0)
    rig.pump()
    rig.effect(
        rig.deliver(opened.link, message_bytes(b"1"), number=1, locked=False),
        rig.deliver(opened.link, message_bytes(b"2"), number=2, locked=False),
    )
    rig.client.flow(rig.channel, handle, 2)
    rig.client.flow(rig.channel, handle, 0)
    rig.pump()
    assert delivered(rig) == []
    rig.client.flow(rig.channel, handle, 1)
    rig.client.flow(rig.channel, handle, 1)  # as the first one, had nothing been sent in between
    rig.pump()
    assert delivered(rig) == [b"1"]
    rig.client.flow(rig.channel, handle, 1)
    rig.pump()
    assert delivered(rig) == [b"2"]


def test_messages_of_a_session_wait_in_order_for_credit_that_was_taken_back(rig: Harness) -> None:
    """Req: G-01. One that went back to the queue would come behind those that are under way."""
    handle, opened = rig.receiver(
        credit=3,
        filter={Symbol("com.microsoft:session-filter"): "red"},
        opened={"session_id": "red", "locked_until_ms": 1_700_000_060_000},
    )
    first, second, third = (
        rig.deliver(opened.link, message_bytes(b"%d" % number), number=number) for number in (1, 2, 3)
    )
    rig.client.flow(rig.channel, handle, 0)
    rig.pump()
    rig.effect(first)
    rig.client.flow(rig.channel, handle, 2)
    rig.pump()
    rig.effect(second, third)
    assert delivered(rig) == [b"1", b"2"]
    assert not any(isinstance(command, Release) for command in rig.commands)
    rig.client.flow(rig.channel, handle, 1)
    rig.pump()
    assert delivered(rig) == [b"3"]


def test_credit_behind_a_settlement_does_not_overtake_it(rig: Harness) -> None:
    """Req: L-07, L-16. All in one read: what is abandoned is back in its place before the credit counts."""
    handle, opened = rig.receiver(credit=1)
    rig.effect(rig.deliver(opened.link, message_bytes(b"1"), number=1))
    [event] = [event for event in rig.events if isinstance(event, DeliveryReceived)]
    rig.client.flow(rig.channel, handle, 0)
    rig.client.disposition(
        rig.channel, Role.RECEIVER, event.delivery_id, event.delivery_id, Modified(True), settled=False
    )
    rig.client.flow(rig.channel, handle, 1)
    rig.pump()
    asked = [command for command in rig.commands if isinstance(command, SetCredit | Abandon)]
    assert [type(command) for command in asked[-3:]] == [SetCredit, Abandon, SetCredit]
    assert [command.deliveries_max for command in asked[-3::2]] == [1, 2]  # type: ignore[union-attr]  # these two are of SetCredit


def test_two_flows_in_one_read_let_waiting_replies_use_only_the_last(rig: Harness) -> None:
    """Req: R-05. A peer's flows never end more than its own connection, and here nothing at all."""
    sender, receiver = rig.pair("orders/$management")
    rig.client.flow(rig.channel, receiver, 0)
    rig.pump()
    for number in range(3):
        rig.request(sender, "bogus", {}, message_id=f"m{number}")
    rig.client.flow(rig.channel, receiver, 1)
    rig.client.flow(rig.channel, receiver, 1)
    rig.pump()
    assert rig.response().correlation_id == "m0"
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)


def test_credit_withdrawn_behind_a_request_keeps_its_reply_waiting(rig: Harness) -> None:
    """Req: R-05. Both come in one read: the reply is made when the credit is gone already."""
    sender, receiver = rig.pair("orders/$management")
    request = section(0x74, {"operation": "bogus"}) + section(0x77, {})
    rig.client.send(rig.channel, sender, b"tag", request)
    rig.client.flow(rig.channel, receiver, 0)
    rig.pump()
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)
    rig.client.flow(rig.channel, receiver, 1)
    rig.pump()
    assert rig.response().status == 501


# Bytes


def test_credit_given_while_the_output_is_full_is_passed_on_when_there_is_room(rig: Harness) -> None:
    """Req: T-08. A full connection must not leave a link without bytes for ever."""
    handle, opened = rig.receiver()
    now = rig.clock.now_ms
    rig.gateway.written(GatewayLimits().output_bytes_max, now)
    rig.client.flow(rig.channel, handle, 5)
    commands: list[Command] = rig.gateway.receive(rig.client.data_to_send(), now)
    assert [(c.deliveries_max, c.bytes_max) for c in commands if isinstance(c, SetCredit)] == [(5, 0)]
    [credit] = rig.gateway.written(0, now)
    assert isinstance(credit, SetCredit)
    assert (credit.link, credit.deliveries_max, credit.drain) == (opened.link, 5, False)
    assert credit.bytes_max == GatewayLimits().output_bytes_max


def test_bytes_are_allowed_anew_when_deliveries_went_out_late() -> None:
    """Req: T-08. All that was allowed waited for bodies: when they come, the next bytes are due."""
    rig = Harness(limits=GatewayLimits(output_bytes_max=10_000))
    _, opened = rig.receiver(credit=100)
    body = message_bytes(b"x" * 5_000)
    waiting = [rig.deliver(opened.link, body, number=number) for number in (1, 2)]
    bodies, rig.payloads = rig.payloads, {}
    rig.effect(*waiting)
    assert rig.take(SetCredit).bytes_max == 10_000
    assert rig.commands == []
    rig.payloads = bodies
    arrive(rig)
    assert rig.take(SetCredit).bytes_max == 10_000 + 2 * (len(body) + DELIVERY_BYTES)


# Links and connections that go


def waiting_delivery(rig: Harness) -> Deliver:
    _, opened = rig.receiver(credit=2)
    waiting = rig.deliver(opened.link, message_bytes())
    rig.payloads.clear()
    rig.commands.clear()
    rig.effect(waiting)
    return waiting


def test_what_waits_when_the_client_closes_is_available_again(rig: Harness) -> None:
    """Req: L-13, L-16. A proper close leaves locks alone, but the client never had this message."""
    waiting_delivery(rig)
    rig.client.close()
    rig.pump()
    assert rig.commands == [DropConnection(7, False, [(QUEUE_ID, LockToken(TOKEN.bytes_le))])]
    assert rig.gateway.bodies_wanted() == set()


def test_what_was_under_way_when_the_client_closed_is_available_again(rig: Harness) -> None:
    """Req: L-13, L-16."""
    _, opened = rig.receiver(credit=2)
    rig.client.close()
    rig.pump()
    rig.commands.clear()
    rig.effect(rig.deliver(opened.link, message_bytes()))
    assert rig.take(Release).lock_token == TOKEN.bytes_le


def test_what_waits_when_the_connection_breaks_is_available_again(rig: Harness) -> None:
    """Req: L-13, L-16, C26. It was not written to the socket, so it has no grace and is not counted."""
    waiting_delivery(rig)
    assert rig.gateway.eof(rig.clock.now_ms) == [
        DropConnection(7, True, [(QUEUE_ID, LockToken(TOKEN.bytes_le))])
    ]


def test_what_was_under_way_when_the_connection_broke_is_available_again(rig: Harness) -> None:
    """Req: L-13, L-16, C26."""
    _, opened = rig.receiver(credit=2)
    rig.gateway.receive(b"no frame of AMQP", rig.clock.now_ms)
    rig.commands.clear()
    rig.effect(rig.deliver(opened.link, message_bytes()))
    assert rig.take(Release).lock_token == TOKEN.bytes_le


def test_links_that_wait_for_nothing_are_not_looked_at(rig: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: T-08. A flush of a connection with a thousand links costs what a flush with one does."""
    looked_at: list[int] = []
    original = ReceiverEndpoint.body_rows_wanted

    def noted(link: ReceiverEndpoint) -> Iterable[int]:
        looked_at.append(link.number)
        return original(link)

    monkeypatch.setattr(ReceiverEndpoint, "body_rows_wanted", noted)
    links = [rig.receiver(credit=1)[1].link for _ in range(3)]
    waiting = rig.deliver(links[1], message_bytes(b"1"))
    body = rig.payloads.pop(1)
    rig.effect(waiting)
    assert rig.gateway.bodies_wanted() == {1}
    assert looked_at == [links[1].number]
    rig.payloads[1] = body
    arrive(rig)
    assert delivered(rig) == [b"1"]
    assert rig.gateway.bodies_wanted() == set()
    assert len(looked_at) == 1
