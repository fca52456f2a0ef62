"""Deliveries and answers that wait in the gateway: for a body, for credit, for room; and links that go
meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from peeklock.amqp.events import DeliveryReceived
from peeklock.amqp.performatives import Modified
from peeklock.amqp.types import Int, Long, Role, Symbol
from peeklock.broker.commands import (
    DELIVERY_BYTES,
    Abandon,
    Command,
    DropConnection,
    Peek,
    Release,
    SetCredit,
)
from peeklock.broker.effects import Deliver, MessagesFound
from peeklock.broker.message import MessageState, MessageView
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.receiver_link import ReceiverLink
from tests.gateway.playbook import QUEUE_ID, TOKEN, Desk, message_bytes, section, stored


@pytest.fixture
def desk() -> Desk:
    return Desk()


def arrive(desk: Desk) -> None:
    """Let the gateway look for bodies again, as after a read."""
    desk.gateway.bodies_arrived(lambda message: desk.payloads.get(message.body_row), desk.clock.now_ms)
    desk.pump()


def delivered(desk: Desk) -> list[bytes]:
    """Take the last byte of each delivery so far."""
    found = [event for event in desk.events if isinstance(event, DeliveryReceived)]
    desk.events = [event for event in desk.events if not isinstance(event, DeliveryReceived)]
    return [event.payload[-1:] for event in found]


def view(payload: bytes, number: int) -> MessageView:
    return MessageView(stored(payload, number=number), None, 0, 0, None, MessageState.ACTIVE, None)


def peek(desk: Desk, sender: int, count: int = 10) -> Peek:
    body = {"from-sequence-number": Long(0), "message-count": Int(count)}
    desk.request(sender, "com.microsoft:peek-message", body)
    return desk.take(Peek)


# What waits keeps what it needs


@pytest.mark.parametrize("options", [{}, {"snd_settle_mode": 1, "rcv_settle_mode": 0}])
def test_a_delivery_behind_a_missing_body_keeps_its_own(desk: Desk, options: dict[str, int]) -> None:
    """Req: L-16. Its message is gone from the queue before the other body comes: nothing could read it."""
    _, opened = desk.receiver(credit=9, **options)
    first = desk.deliver(opened.link, message_bytes(b"1"), number=1)
    second = desk.deliver(opened.link, message_bytes(b"2"), number=2)
    body = desk.payloads.pop(1)
    desk.effect(first, second)
    assert delivered(desk) == []
    desk.payloads = {1: body}  # that of the second is nowhere any more
    arrive(desk)
    assert delivered(desk) == [b"1", b"2"]
    assert desk.gateway.bodies_wanted() == set()


def test_a_delivery_without_credit_keeps_its_body(desk: Desk) -> None:
    """Req: L-01, L-16. Received and deleted, its credit withdrawn: the gateway has the only copy."""
    handle, opened = desk.receiver(credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    desk.client.flow(desk.channel, handle, 0)
    desk.pump()
    desk.effect(desk.deliver(opened.link, message_bytes(b"1"), locked=False))
    desk.payloads.clear()
    desk.client.flow(desk.channel, handle, 1)
    desk.pump()
    assert delivered(desk) == [b"1"]


def test_a_peek_answer_keeps_the_bodies_it_has_while_another_is_read(desk: Desk) -> None:
    """Req: S-11. The message of the one may be removed while that of the other is read."""
    sender, _ = desk.pair("orders/$management")
    desk.payloads = {2: message_bytes(b"2")}
    desk.effect(
        MessagesFound(
            peek(desk, sender).reply_to, [view(message_bytes(b"1"), 1), view(message_bytes(b"2"), 2)]
        )
    )
    desk.payloads = {1: message_bytes(b"1")}
    arrive(desk)
    assert [item["message"][-1:] for item in desk.response().body["messages"]] == [b"1", b"2"]


def test_a_peek_answer_waits_for_the_row_that_was_asked_for_when_the_body_moves(desk: Desk) -> None:
    """Req: S-11. A body copied forward is in memory, and in a row that no store can read yet."""
    sender, _ = desk.pair("orders/$management")
    moving = view(message_bytes(b"1"), 1)
    desk.effect(MessagesFound(peek(desk, sender).reply_to, [moving]))
    assert desk.gateway.bodies_wanted() == {1}
    moving.message.body_row = 7
    assert desk.gateway.bodies_wanted() == {1}
    desk.payloads = {7: message_bytes(b"1")}
    arrive(desk)  # the old row
    assert [item["message"][-1:] for item in desk.response().body["messages"]] == [b"1"]


def test_a_delivery_waits_for_the_row_that_was_asked_for_when_the_body_moves(desk: Desk) -> None:
    """Req: L-16."""
    _, opened = desk.receiver(credit=1)
    moving = desk.deliver(opened.link, message_bytes(b"1"))
    desk.payloads.clear()
    desk.effect(moving)
    moving.message.body_row = 7
    assert desk.gateway.bodies_wanted() == {1}
    desk.payloads = {7: message_bytes(b"1")}
    arrive(desk)
    assert delivered(desk) == [b"1"]


# Credit


def test_two_flows_in_one_read_let_a_waiting_delivery_use_only_the_last(desk: Desk) -> None:
    """Req: L-16. The first flow's credit is history when it is looked at."""
    handle, opened = desk.receiver(credit=2, snd_settle_mode=1, rcv_settle_mode=0)
    desk.client.flow(desk.channel, handle, 0)
    desk.pump()
    desk.effect(
        desk.deliver(opened.link, message_bytes(b"1"), number=1, locked=False),
        desk.deliver(opened.link, message_bytes(b"2"), number=2, locked=False),
    )
    desk.client.flow(desk.channel, handle, 2)
    desk.client.flow(desk.channel, handle, 0)
    desk.pump()
    assert delivered(desk) == []
    desk.client.flow(desk.channel, handle, 1)
    desk.client.flow(desk.channel, handle, 1)  # as the first one, had nothing been sent in between
    desk.pump()
    assert delivered(desk) == [b"1"]
    desk.client.flow(desk.channel, handle, 1)
    desk.pump()
    assert delivered(desk) == [b"2"]


def test_messages_of_a_session_wait_in_order_for_credit_that_was_taken_back(desk: Desk) -> None:
    """Req: G-01. One that went back to the queue would come behind those that are under way."""
    handle, opened = desk.receiver(
        credit=3,
        filter={Symbol("com.microsoft:session-filter"): "red"},
        opened={"session_id": "red", "locked_until_ms": 1_700_000_060_000},
    )
    first, second, third = (
        desk.deliver(opened.link, message_bytes(b"%d" % number), number=number) for number in (1, 2, 3)
    )
    desk.client.flow(desk.channel, handle, 0)
    desk.pump()
    desk.effect(first)
    desk.client.flow(desk.channel, handle, 2)
    desk.pump()
    desk.effect(second, third)
    assert delivered(desk) == [b"1", b"2"]
    assert not any(isinstance(command, Release) for command in desk.commands)
    desk.client.flow(desk.channel, handle, 1)
    desk.pump()
    assert delivered(desk) == [b"3"]


def test_credit_behind_a_settlement_does_not_overtake_it(desk: Desk) -> None:
    """Req: L-07, L-16. All in one read: what is abandoned is back in its place before the credit counts."""
    handle, opened = desk.receiver(credit=1)
    desk.effect(desk.deliver(opened.link, message_bytes(b"1"), number=1))
    [event] = [event for event in desk.events if isinstance(event, DeliveryReceived)]
    desk.client.flow(desk.channel, handle, 0)
    desk.client.disposition(
        desk.channel, Role.RECEIVER, event.delivery_id, event.delivery_id, Modified(True), settled=False
    )
    desk.client.flow(desk.channel, handle, 1)
    desk.pump()
    asked = [command for command in desk.commands if isinstance(command, SetCredit | Abandon)]
    assert [type(command) for command in asked[-3:]] == [SetCredit, Abandon, SetCredit]
    assert [command.deliveries_max for command in asked[-3::2]] == [1, 2]  # type: ignore[union-attr]


def test_two_flows_in_one_read_let_waiting_replies_use_only_the_last(desk: Desk) -> None:
    """Req: R-05. A peer's flows never end more than its own connection, and here nothing at all."""
    sender, receiver = desk.pair("orders/$management")
    desk.client.flow(desk.channel, receiver, 0)
    desk.pump()
    for number in range(3):
        desk.request(sender, "bogus", {}, message_id=f"m{number}")
    desk.client.flow(desk.channel, receiver, 1)
    desk.client.flow(desk.channel, receiver, 1)
    desk.pump()
    assert desk.response().correlation_id == "m0"
    assert not any(isinstance(event, DeliveryReceived) for event in desk.events)


def test_credit_withdrawn_behind_a_request_keeps_its_reply_waiting(desk: Desk) -> None:
    """Req: R-05. Both come in one read: the reply is made when the credit is gone already."""
    sender, receiver = desk.pair("orders/$management")
    request = section(0x74, {"operation": "bogus"}) + section(0x77, {})
    desk.client.send(desk.channel, sender, b"tag", request)
    desk.client.flow(desk.channel, receiver, 0)
    desk.pump()
    assert not any(isinstance(event, DeliveryReceived) for event in desk.events)
    desk.client.flow(desk.channel, receiver, 1)
    desk.pump()
    assert desk.response().status == 501


# Bytes


def test_credit_given_while_the_output_is_full_is_passed_on_when_there_is_room(desk: Desk) -> None:
    """Req: T-08. A full connection must not leave a link without bytes for ever."""
    handle, opened = desk.receiver()
    now = desk.clock.now_ms
    desk.gateway.written(GatewayLimits().output_bytes_max, now)
    desk.client.flow(desk.channel, handle, 5)
    commands: list[Command] = desk.gateway.receive(desk.client.data_to_send(), now)
    assert [(c.deliveries_max, c.bytes_max) for c in commands if isinstance(c, SetCredit)] == [(5, 0)]
    [credit] = desk.gateway.written(0, now)
    assert isinstance(credit, SetCredit)
    assert (credit.link, credit.deliveries_max, credit.drain) == (opened.link, 5, False)
    assert credit.bytes_max == GatewayLimits().output_bytes_max


def test_bytes_are_allowed_anew_when_deliveries_went_out_late() -> None:
    """Req: T-08. All that was allowed waited for bodies: when they come, the next bytes are due."""
    desk = Desk(limits=GatewayLimits(output_bytes_max=10_000))
    _, opened = desk.receiver(credit=100)
    body = message_bytes(b"x" * 5_000)
    waiting = [desk.deliver(opened.link, body, number=number) for number in (1, 2)]
    bodies, desk.payloads = desk.payloads, {}
    desk.effect(*waiting)
    assert desk.take(SetCredit).bytes_max == 10_000
    assert desk.commands == []
    desk.payloads = bodies
    arrive(desk)
    assert desk.take(SetCredit).bytes_max == 10_000 + 2 * (len(body) + DELIVERY_BYTES)


# Links and connections that go


def waiting_delivery(desk: Desk) -> Deliver:
    _, opened = desk.receiver(credit=2)
    waiting = desk.deliver(opened.link, message_bytes())
    desk.payloads.clear()
    desk.commands.clear()
    desk.effect(waiting)
    return waiting


def test_what_waits_when_the_client_closes_is_available_again(desk: Desk) -> None:
    """Req: L-13, L-16. A proper close leaves locks alone, but the client never had this message."""
    waiting_delivery(desk)
    desk.client.close()
    desk.pump()
    assert desk.commands == [DropConnection(7, False, [(QUEUE_ID, TOKEN.bytes_le)])]
    assert desk.gateway.bodies_wanted() == set()


def test_what_was_under_way_when_the_client_closed_is_available_again(desk: Desk) -> None:
    """Req: L-13, L-16."""
    _, opened = desk.receiver(credit=2)
    desk.client.close()
    desk.pump()
    desk.commands.clear()
    desk.effect(desk.deliver(opened.link, message_bytes()))
    assert desk.take(Release).lock_token == TOKEN.bytes_le


def test_what_waits_when_the_connection_breaks_is_available_again(desk: Desk) -> None:
    """Req: L-13, L-16, C26. It was not written to the socket, so it has no grace and is not counted."""
    waiting_delivery(desk)
    assert desk.gateway.eof(desk.clock.now_ms) == [DropConnection(7, True, [(QUEUE_ID, TOKEN.bytes_le)])]


def test_what_was_under_way_when_the_connection_broke_is_available_again(desk: Desk) -> None:
    """Req: L-13, L-16, C26."""
    _, opened = desk.receiver(credit=2)
    desk.gateway.receive(b"no frame of AMQP", desk.clock.now_ms)
    desk.commands.clear()
    desk.effect(desk.deliver(opened.link, message_bytes()))
    assert desk.take(Release).lock_token == TOKEN.bytes_le


def test_links_that_wait_for_nothing_are_not_looked_at(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: T-08. A flush of a connection with a thousand links costs what a flush with one does."""
    looked_at: list[int] = []
    original = ReceiverLink.body_rows_wanted

    def noted(link: ReceiverLink) -> Iterable[int]:
        looked_at.append(link.number)
        return original(link)

    monkeypatch.setattr(ReceiverLink, "body_rows_wanted", noted)
    links = [desk.receiver(credit=1)[1].link for _ in range(3)]
    waiting = desk.deliver(links[1], message_bytes(b"1"))
    body = desk.payloads.pop(1)
    desk.effect(waiting)
    assert desk.gateway.bodies_wanted() == {1}
    assert looked_at == [links[1].number]
    desk.payloads[1] = body
    arrive(desk)
    assert delivered(desk) == [b"1"]
    assert desk.gateway.bodies_wanted() == set()
    assert len(looked_at) == 1
