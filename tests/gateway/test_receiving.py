"""Clients that receive: credit, deliveries and the settlement handshake."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import DeliveryReceived, DispositionReceived, LinkDetached, LinkDrained
from peeklock.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    Accepted,
    Modified,
    Received,
    Rejected,
    Released,
)
from peeklock.amqp.types import Role, Symbol, Timestamp, UInt
from peeklock.broker.commands import (
    DELIVERY_BYTES,
    RUN_MAX,
    Abandon,
    CloseLink,
    Complete,
    DeadLetter,
    Defer,
    LinkId,
    OpenReceiver,
    ReceiveMode,
    Release,
    ReplyTo,
    SetCredit,
)
from peeklock.broker.effects import Deliver, DetachLink, Drained, ReceiverOpened, Settled, SettlementFailed
from peeklock.broker.errors import EntityDisabled, InvalidOperation, MessageLockLost
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.receiver_link import SHARE_BYTES_MIN
from tests.gateway.playbook import CONNECTION_ID, QUEUE_ID, TOKEN, Desk, message_bytes

MIB = 1_048_576


@pytest.fixture
def desk() -> Desk:
    return Desk()


def delivered(desk: Desk, count: int = 1) -> list[int]:
    """Attach a receiver, deliver to it, and give the delivery ids."""
    _, opened = desk.receiver(credit=count + 1)
    for number in range(1, count + 1):
        desk.effect(desk.deliver(opened.link, message_bytes(), number=number, token=uuid.UUID(int=number)))
    desk.commands.clear()
    return [desk.take_event(DeliveryReceived).delivery_id for _ in range(count)]


def tokens(count: int) -> list[bytes]:
    return [uuid.UUID(int=number).bytes_le for number in range(1, count + 1)]


# Credit and delivery


def test_nothing_is_asked_of_the_broker_before_there_is_credit(desk: Desk) -> None:
    """Source: wire contract 2.7: peek shows all messages while a fresh receiver is open."""
    handle, _ = desk.receiver()
    assert desk.commands == []
    desk.client.flow(desk.channel, handle, 0)
    desk.pump()
    assert desk.take(SetCredit).deliveries_max == 0


def test_a_delivery_carries_the_lock_token_as_tag_and_as_uuid(desk: Desk) -> None:
    """Req: L-04, L-02. The tag is in .NET's order, the annotation in RFC order. Source: wire contract 3.4."""
    _, opened = desk.receiver(credit=1)
    assert opened.mode is ReceiveMode.PEEK_LOCK
    desk.effect(desk.deliver(opened.link, message_bytes()))
    event = desk.take_event(DeliveryReceived)
    assert event.delivery_tag == bytes.fromhex("33221100554477668899aabbccddeeff")
    assert uuid.UUID(bytes_le=event.delivery_tag) == TOKEN
    assert bytes.fromhex("98 00112233445566778899aabbccddeeff") in event.payload
    assert (event.settled, event.message_format, event.delivery_id) == (False, 0, 0)


def test_receive_and_delete_is_settled_when_sent(desk: Desk) -> None:
    """Req: L-01. With a tag too, but no lock. Source: wire contract 2.4, 3.4."""
    _, opened = desk.receiver(credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    assert opened.mode is ReceiveMode.RECEIVE_AND_DELETE
    desk.effect(desk.deliver(opened.link, message_bytes(), locked=False))
    event = desk.take_event(DeliveryReceived)
    assert event.settled
    assert event.delivery_tag == TOKEN.bytes_le
    assert b"x-opt-lock-token" not in event.payload
    desk.commands.clear()
    desk.settle(event.delivery_id, event.delivery_id, ACCEPTED, settled=True)
    assert desk.commands == []


def test_credit_is_told_as_totals_so_that_deliveries_under_way_need_no_care(desk: Desk) -> None:
    """Req: L-16."""
    handle, opened = desk.receiver(credit=5)
    first = desk.take(SetCredit)
    assert (first.link, first.deliveries_max, first.bytes_max, first.drain) == (opened.link, 5, MIB, False)
    desk.effect(
        desk.deliver(opened.link, message_bytes()), desk.deliver(opened.link, message_bytes(), number=2)
    )
    desk.client.flow(desk.channel, handle, 3)  # absolute: three more than now
    desk.pump()
    second = desk.take(SetCredit)
    assert second.deliveries_max == 2 + 3
    assert second.bytes_max == MIB + 2 * (len(message_bytes()) + DELIVERY_BYTES)


def test_credit_that_comes_before_the_link_is_open_is_not_lost(desk: Desk) -> None:
    """Req: L-16. Clients pipeline attach and flow."""
    handle = desk.attach(Role.RECEIVER, "orders")
    desk.client.flow(desk.channel, handle, 7)
    desk.pump()
    command = desk.take(OpenReceiver)
    assert desk.commands == []
    desk.effect(ReceiverOpened(command.link, QUEUE_ID))
    assert desk.take(SetCredit).deliveries_max == 7


def test_a_drain_is_answered_after_the_deliveries_before_it(desk: Desk) -> None:
    """Req: L-16. Source: wire contract 2.7."""
    handle, opened = desk.receiver()
    desk.client.flow(desk.channel, handle, 5, drain=True)
    desk.pump()
    assert desk.take(SetCredit).drain
    desk.effect(desk.deliver(opened.link, message_bytes()), Drained(opened.link))
    kinds = [type(event) for event in desk.events if isinstance(event, (DeliveryReceived, LinkDrained))]
    assert kinds == [DeliveryReceived, LinkDrained]
    assert desk.client.credit(desk.channel, handle) == 0
    desk.commands.clear()
    desk.client.flow(desk.channel, handle, 4)
    desk.pump()
    credit = desk.take(SetCredit)
    assert (credit.deliveries_max, credit.drain) == (1 + 4, False)


def test_a_drain_without_credit_is_passed_on_too(desk: Desk) -> None:
    """Source: wire contract 2.7: reply at once even when credit is already 0."""
    handle, opened = desk.receiver()
    desk.client.flow(desk.channel, handle, 0, drain=True)
    desk.pump()
    assert desk.take(SetCredit).drain
    desk.effect(Drained(opened.link))
    assert desk.take_event(LinkDrained)


def test_a_late_answer_to_a_drain_does_not_take_newer_credit(desk: Desk) -> None:
    """Req: L-16. The client has given credit anew while the broker's answer was under way."""
    handle, opened = desk.receiver()
    desk.client.flow(desk.channel, handle, 5, drain=True)
    desk.pump()
    desk.client.flow(desk.channel, handle, 7)
    desk.pump()
    desk.effect(Drained(opened.link))
    assert not any(isinstance(event, LinkDrained) for event in desk.events)
    assert desk.client.credit(desk.channel, handle) == 7
    desk.effect(desk.deliver(opened.link, message_bytes()))
    assert desk.take_event(DeliveryReceived)


def test_a_further_allowance_of_bytes_does_not_drain_again() -> None:
    """Req: L-16."""
    desk = Desk(limits=GatewayLimits(output_bytes_max=10_000))
    handle, opened = desk.receiver()
    desk.client.flow(desk.channel, handle, 5, drain=True)
    desk.pump()
    assert desk.take(SetCredit).drain
    desk.effect(desk.deliver(opened.link, message_bytes(b"x" * 6_000)))
    assert not desk.take(SetCredit).drain


def test_a_delivery_after_the_credit_was_taken_back_is_released(desk: Desk) -> None:
    """Req: L-16."""
    handle, opened = desk.receiver(credit=2)
    desk.client.flow(desk.channel, handle, 0)
    desk.pump()
    desk.commands.clear()
    late = desk.deliver(opened.link, message_bytes(b"late"))
    desk.effect(late)
    assert not any(isinstance(event, DeliveryReceived) for event in desk.events)
    release = desk.take(Release)
    assert (release.queue_id, release.lock_token, release.reply_to) == (QUEUE_ID, TOKEN.bytes_le, None)
    desk.client.flow(desk.channel, handle, 2)
    desk.pump()
    # The broker has counted the released one: the total allows for it.
    assert desk.take(SetCredit).deliveries_max == 1 + 2


def test_a_deleted_message_is_never_dropped_for_want_of_credit(desk: Desk) -> None:
    """Req: L-01, L-16. In receive-and-delete it is gone from the queue: it waits for the next credit."""
    handle, opened = desk.receiver(credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    desk.client.flow(desk.channel, handle, 0)
    desk.pump()
    desk.commands.clear()
    desk.effect(desk.deliver(opened.link, message_bytes(b"late"), locked=False))
    assert desk.commands == []
    desk.client.flow(desk.channel, handle, 1)
    desk.pump()
    assert desk.take_event(DeliveryReceived).payload.endswith(b"late")


def test_deliveries_for_a_link_that_is_gone_are_released(desk: Desk) -> None:
    """Req: L-16. Close and re-attach never lose a message, nor lock it for nothing."""
    handle, opened = desk.receiver(credit=2)
    desk.client.detach(desk.channel, handle)
    desk.pump()
    assert desk.take(CloseLink).link == opened.link
    _, again = desk.receiver(credit=1)
    desk.commands.clear()
    desk.effect(desk.deliver(opened.link, message_bytes(b"for the old link")))
    assert desk.take(Release).lock_token == TOKEN.bytes_le
    assert not any(isinstance(event, DeliveryReceived) for event in desk.events)
    assert again.link != opened.link
    desk.effect(desk.deliver(again.link, message_bytes(b"for the new link")))
    assert desk.take_event(DeliveryReceived).payload.endswith(b"for the new link")


def test_a_message_without_its_body_waits_and_other_links_pass(desk: Desk) -> None:
    """Req: L-16. What comes later on the same link keeps its order."""
    handle, slow = desk.receiver()
    desk.client.flow(desk.channel, handle, 9, drain=True)
    _, fast = desk.receiver(credit=9)
    first = desk.deliver(slow.link, message_bytes(b"1"), number=1)
    second = desk.deliver(slow.link, message_bytes(b"2"), number=2)
    other = desk.deliver(fast.link, message_bytes(b"3"), number=3)
    body = desk.payloads.pop(1)
    desk.effect(first, second, Drained(slow.link), other)
    assert desk.take_event(DeliveryReceived).payload.endswith(b"3")
    assert not any(isinstance(event, (DeliveryReceived, LinkDrained)) for event in desk.events)
    assert desk.gateway.bodies_wanted() == {1}
    desk.payloads[1] = body
    desk.gateway.bodies_arrived(lambda message: desk.payloads.get(message.body_row), desk.clock.now_ms)
    desk.pump()
    order = [event for event in desk.events if isinstance(event, (DeliveryReceived, LinkDrained))]
    assert [type(event) for event in order] == [DeliveryReceived, DeliveryReceived, LinkDrained]
    assert [event.payload[-1:] for event in order[:2] if isinstance(event, DeliveryReceived)] == [b"1", b"2"]
    assert desk.gateway.bodies_wanted() == set()


def test_answers_to_settlements_keep_their_order_behind_a_waiting_delivery(desk: Desk) -> None:
    [delivery_id] = delivered(desk)
    desk.settle(delivery_id, delivery_id, ACCEPTED)
    complete = desk.take(Complete)
    assert complete.reply_to is not None
    link = LinkId(*complete.reply_to[:2])
    waiting = desk.deliver(link, message_bytes(b"later"), number=9)
    body = desk.payloads.pop(9)
    desk.effect(waiting, Settled(complete.reply_to))
    assert desk.events == [event for event in desk.events if not isinstance(event, DispositionReceived)]
    desk.payloads[9] = body
    desk.gateway.bodies_arrived(lambda message: desk.payloads.get(message.body_row), desk.clock.now_ms)
    desk.pump()
    assert desk.take_event(DispositionReceived).first == delivery_id


def test_what_waits_on_a_link_that_goes_is_released(desk: Desk) -> None:
    """Req: L-16."""
    handle, opened = desk.receiver(credit=2)
    waiting = desk.deliver(opened.link, message_bytes())
    desk.payloads.clear()
    desk.commands.clear()
    desk.effect(waiting)
    desk.client.detach(desk.channel, handle)
    desk.pump()
    assert desk.take(Release).lock_token == TOKEN.bytes_le
    assert desk.take(CloseLink).link == opened.link
    assert desk.gateway.bodies_wanted() == set()


def test_bytes_are_allowed_as_far_as_the_output_is_free() -> None:
    """Req: T-08. Nothing is locked that cannot be written. Source: architecture, back-pressure."""
    desk = Desk(limits=GatewayLimits(output_bytes_max=10_000))
    _, opened = desk.receiver(credit=1000)
    assert desk.take(SetCredit).bytes_max == 10_000
    body = message_bytes(b"x" * 2500)
    for number in range(1, 3):
        desk.effect(desk.deliver(opened.link, body, number=number))
    each = len(body) + DELIVERY_BYTES
    assert desk.take(SetCredit).bytes_max == 10_000 + 2 * each  # half was used
    now = desk.clock.now_ms
    assert desk.gateway.written(10_001, now) == []
    desk.gateway.handle(
        [desk.deliver(opened.link, body, number=3)], lambda m: desk.payloads.get(m.body_row), now
    )
    desk.gateway.handle(
        [desk.deliver(opened.link, body, number=4)], lambda m: desk.payloads.get(m.body_row), now
    )
    desk.gateway.data_to_send()
    assert desk.gateway.written(10_001, now) == []  # due, but there is no room
    assert desk.gateway.written(10_000, now) == []
    [credit] = desk.gateway.written(0, now)
    assert isinstance(credit, SetCredit)
    assert credit.bytes_max == 10_000 + 4 * each
    assert credit.deliveries_max == 1000
    assert desk.gateway.written(0, now) == []


def test_the_receivers_of_a_connection_share_its_output() -> None:
    """Each may fill its part before anything of it is seen to wait. Req: T-08."""
    desk = Desk(limits=GatewayLimits(output_bytes_max=100_000))
    allowed = []
    handles = []
    for _ in range(8):
        handle, _ = desk.receiver(credit=1000)
        handles.append(handle)
        allowed.append(desk.take(SetCredit).bytes_max)
    assert allowed == [100_000 // number for number in range(1, 7)] + [SHARE_BYTES_MIN] * 2
    for handle in handles:
        desk.client.detach(desk.channel, handle)
    desk.pump()
    desk.receiver(credit=1000)
    assert desk.take(SetCredit).bytes_max == 100_000


# Settlement: the handshake


@pytest.mark.parametrize(
    ("state", "kind", "echo", "bytes_of_echo"),
    [
        (ACCEPTED, Complete, Accepted, "00532445"),
        (RELEASED, Release, Released, "00532645"),
        (Modified(True, False), Abandon, Modified, "005327c003024142"),
        (Modified(), Abandon, Modified, "005327c003024242"),
        (Modified(True, True), Defer, Modified, "005327c003024141"),
        (Rejected(AmqpError("com.microsoft:dead-letter", "")), DeadLetter, Rejected, "00532545"),
        (Rejected(), DeadLetter, Rejected, "00532545"),
    ],
)
def test_a_settlement_is_answered_with_the_same_outcome_settled(
    desk: Desk, state: Any, kind: type[Any], echo: type, bytes_of_echo: str
) -> None:
    """Req: L-05, L-06, L-09, L-10. A rejected is echoed without error: with one it would mean failure.

    Source: wire contract 4.2, 4.3.
    """
    [delivery_id] = delivered(desk)
    before = len(desk.sent)
    desk.settle(delivery_id, delivery_id, state)
    command = desk.take(kind)
    assert (command.queue_id, command.lock_token) == (QUEUE_ID, tokens(1)[0])
    assert len(desk.sent) == before  # nothing before the broker has answered
    desk.effect(Settled(command.reply_to))
    answer = desk.take_event(DispositionReceived)
    assert (answer.role, answer.first, answer.last, answer.settled) == (
        Role.SENDER,
        delivery_id,
        delivery_id,
        True,
    )
    assert type(answer.state) is echo
    assert getattr(answer.state, "error", None) is None
    frame = desk.sent[before:]
    assert frame[8:11] == b"\x00\x53\x15"
    assert bytes.fromhex(bytes_of_echo) in frame


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (MessageLockLost("The lock supplied is invalid."), "com.microsoft:message-lock-lost"),
        (EntityDisabled("disabled"), "com.microsoft:entity-disabled"),
        (InvalidOperation("There is no dead-letter queue of a dead-letter queue."), "amqp:not-allowed"),
    ],
)
@pytest.mark.parametrize("state", [ACCEPTED, Modified(True), Rejected()])
def test_a_settlement_that_fails_is_answered_rejected_with_its_own_condition(
    desk: Desk, state: Any, error: MessageLockLost, condition: str
) -> None:
    """Req: L-11, T-02. Never with silence. Source: wire contract 4.3."""
    [delivery_id] = delivered(desk)
    desk.settle(delivery_id, delivery_id, state)
    [command] = desk.commands
    desk.effect(SettlementFailed(command.reply_to, error))  # type: ignore[union-attr]  # a settlement has one
    found = desk.rejection(delivery_id)
    assert str(found.condition) == condition
    assert "TrackingId:" in found.description


@pytest.mark.parametrize("state", [ACCEPTED, RELEASED, Modified(), Modified(True, True), Rejected()])
def test_a_client_that_settles_itself_gets_no_answer(desk: Desk, state: Any) -> None:
    """Source: wire contract 4.3: apply, send nothing."""
    [delivery_id] = delivered(desk)
    before = len(desk.sent)
    desk.settle(delivery_id, delivery_id, state, settled=True)
    [command] = desk.commands
    assert command.reply_to is None  # type: ignore[union-attr]  # a settlement has one
    desk.settle(delivery_id, delivery_id, state, settled=True)
    assert len(desk.commands) == 1
    assert len(desk.sent) == before


def test_settled_without_an_outcome_makes_the_message_available_again(desk: Desk) -> None:
    """Our choice: AMQP 3.4 leaves it to the source's default outcome, which for this service is released."""
    [delivery_id] = delivered(desk)
    desk.settle(delivery_id, delivery_id, None, settled=True)
    assert desk.take(Release).reply_to is None


@pytest.mark.parametrize("state", [None, Received(1, 2)])
def test_what_is_no_outcome_settles_nothing(desk: Desk, state: Any) -> None:
    [delivery_id] = delivered(desk)
    desk.settle(delivery_id, delivery_id, state)
    assert desk.commands == []
    desk.settle(delivery_id, delivery_id, ACCEPTED)
    assert desk.take(Complete)


def test_a_delivery_settled_before_is_answered_lock_lost(desk: Desk) -> None:
    """Req: L-11. A retried settlement gets the same error each time. Source: wire contract 4.3."""
    [delivery_id] = delivered(desk)
    desk.settle(delivery_id, delivery_id, ACCEPTED)
    command = desk.take(Complete)
    assert command.reply_to
    desk.effect(SettlementFailed(command.reply_to, MessageLockLost("gone")))
    assert desk.rejection(delivery_id)
    for _ in range(2):
        desk.settle(delivery_id, delivery_id, ACCEPTED)
        assert desk.commands == []
        assert str(desk.rejection(delivery_id).condition) == "com.microsoft:message-lock-lost"


def test_a_range_settles_each_delivery_and_is_answered_as_a_range(desk: Desk) -> None:
    """Source: wire contract 4.3."""
    delivered(desk, 4)
    desk.settle(0, 3, ACCEPTED)
    command = desk.take(Complete)
    assert [command.lock_token, *command.further] == tokens(4)
    assert command.reply_to is not None
    desk.effect(Settled(command.reply_to, 4))
    answer = desk.take_event(DispositionReceived)
    assert (answer.first, answer.last, answer.state) == (0, 3, ACCEPTED)


def test_a_range_over_two_links_is_a_command_for_each_run_of_neighbours(desk: Desk) -> None:
    """Req: T-04"""
    links = [desk.receiver(credit=5, name=name)[1].link for name in ("one", "two")]
    for number, link in enumerate((0, 0, 1, 1, 1, 0), 1):
        token = uuid.UUID(int=number)
        desk.effect(desk.deliver(links[link], message_bytes(), number=number, token=token))
    desk.commands.clear()
    desk.settle(0, 5, ACCEPTED)
    completes = [command for command in desk.commands if isinstance(command, Complete)]
    assert len(completes) == len(desk.commands)
    found = [(command.reply_to, [command.lock_token, *command.further]) for command in completes]
    given = tokens(6)
    assert found == [
        (ReplyTo(*links[0], 0), given[:2]),
        (ReplyTo(*links[1], 2), given[2:5]),
        (ReplyTo(*links[0], 5), given[5:]),
    ]


def test_a_range_is_completed_in_commands_of_bounded_work(desk: Desk) -> None:
    """Req: R-06"""
    count = 2 * RUN_MAX + 1
    delivered(desk, count)
    desk.settle(0, count - 1, ACCEPTED)
    runs = [
        [command.lock_token, *command.further] for command in desk.commands if isinstance(command, Complete)
    ]
    assert [len(run) for run in runs] == [RUN_MAX, RUN_MAX, 1]
    assert [token for run in runs for token in run] == tokens(count)


def test_settlements_of_a_command_may_end_differently(desk: Desk) -> None:
    """Req: T-04"""
    delivered(desk, 5)
    desk.settle(0, 4, ACCEPTED)
    asked = desk.take(Complete).reply_to
    assert asked is not None
    behind = asked._replace(number=asked.number + 2)
    lost = SettlementFailed(behind, MessageLockLost("gone"))
    desk.effect(Settled(asked, 2), lost, Settled(asked._replace(number=asked.number + 3), 2))
    answers = [desk.take_event(DispositionReceived) for _ in range(3)]
    assert [(answer.first, answer.last) for answer in answers] == [(0, 1), (2, 2), (3, 4)]
    assert isinstance(answers[1].state, Rejected)


def test_a_range_answers_lock_lost_for_the_deliveries_it_does_not_know(desk: Desk) -> None:
    """Req: L-11."""
    delivered(desk, 5)
    for known in (0, 2, 3):
        desk.settle(known, known, ACCEPTED, settled=True)
    desk.commands.clear()
    desk.settle(0, 4, Modified(True))
    settlements = [desk.take(Abandon), desk.take(Abandon)]
    assert [command.lock_token for command in settlements] == [tokens(5)[1], tokens(5)[4]]
    assert desk.commands == []
    lost = [desk.take_event(DispositionReceived) for _ in range(2)]
    assert [(event.first, event.last) for event in lost] == [(0, 0), (2, 3)]
    for event in lost:
        assert isinstance(event.state, Rejected)
        assert event.state.error is not None
        assert str(event.state.error.condition) == "com.microsoft:message-lock-lost"


def test_a_range_of_two_thousand_million_deliveries_costs_nothing(desk: Desk) -> None:
    """Req: R-05."""
    delivered(desk, 2)
    # The client half would refuse: `disposition` with first 0 and last 2^31-16, unsettled, accepted.
    body = (
        bytes.fromhex("005315")
        + b"\xd0\x00\x00\x00\x10\x00\x00\x00\x05"
        + bytes.fromhex("41 43 707ffffff0 42 00532445")
    )
    frame = (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + desk.channel.to_bytes(2, "big") + body
    desk.commands += desk.gateway.receive(frame, desk.clock.now_ms)
    command = desk.take(Complete)
    assert [command.lock_token, *command.further] == tokens(2)
    assert desk.commands == []


# Settlement: what comes with it


def test_properties_to_modify_come_from_the_annotations_of_modified(desk: Desk) -> None:
    """Req: L-06, L-10. Keys as symbols or strings, values with their types. Source: wire contract 4.2."""
    [first, second] = delivered(desk, 2)
    changes = {Symbol("tries"): UInt(3), "note": None, 7: "no name"}
    desk.settle(first, first, Modified(True, False, changes))
    found = desk.take(Abandon).properties
    assert found == {"tries": 3, "note": None}
    assert {type(key) for key in found} == {str}
    assert type(found["tries"]) is UInt
    desk.settle(second, second, Modified(False, True, {Symbol("k"): "v"}))
    assert desk.take(Defer).properties == {"k": "v"}


@pytest.mark.parametrize(
    ("error", "reason", "description", "properties"),
    [
        (None, None, None, None),
        (AmqpError("com.microsoft:dead-letter", "text"), None, "text", None),
        (
            AmqpError(
                "com.microsoft:dead-letter",
                "text",
                {Symbol("DeadLetterReason"): "r", Symbol("DeadLetterErrorDescription"): "d"},
            ),
            "r",
            "d",
            None,
        ),
        (
            AmqpError(
                "com.microsoft:dead-letter",
                "",
                {"DeadLetterReason": None, "DeadLetterErrorDescription": None},
            ),
            None,
            None,
            None,
        ),
        (
            AmqpError("com.microsoft:dead-letter", "text", {"DeadLetterReason": "r", Symbol("k"): UInt(1)}),
            "r",
            "text",
            {"k": 1},
        ),
        (
            AmqpError("com.microsoft:dead-letter", "text", {"DeadLetterReason": Symbol("r")}),
            "r",
            "text",
            None,
        ),
        (
            AmqpError(
                "com.microsoft:dead-letter",
                "text",
                {Symbol("DeadLetterReason"): UInt(7), "DeadLetterErrorDescription": Timestamp(5)},
            ),
            None,
            None,
            {"DeadLetterReason": UInt(7), "DeadLetterErrorDescription": Timestamp(5)},
        ),
    ],
)
def test_reason_and_description_of_a_dead_letter_come_from_the_info_map(
    desk: Desk, error: AmqpError | None, reason: str | None, description: str | None, properties: Any
) -> None:
    """Req: L-09, C31. Texts, a symbol too; what is no text is a property of its own type, and no other
    description stands in for it. Source: wire contract 4.2."""
    [delivery_id] = delivered(desk)
    desk.settle(delivery_id, delivery_id, Rejected(error))
    command = desk.take(DeadLetter)
    assert (command.reason, command.description, command.properties) == (reason, description, properties)
    assert {type(text) for text in (command.reason, command.description)} <= {str, type(None)}
    if error is not None and command.properties is not None:
        sent = error.info or {}
        assert all(type(value) is type(sent[Symbol(key)]) for key, value in command.properties.items())


# The end of a link


def test_answers_for_a_link_that_is_gone_are_dropped(desk: Desk) -> None:
    [delivery_id] = delivered(desk)
    desk.settle(delivery_id, delivery_id, ACCEPTED)
    command = desk.take(Complete)
    desk.client.detach(desk.channel, 0)
    desk.pump()
    before = len(desk.sent)
    assert command.reply_to
    desk.effect(Settled(command.reply_to), SettlementFailed(command.reply_to, MessageLockLost("x")))
    assert len(desk.sent) == before


def test_deliveries_of_a_closed_link_are_forgotten_and_their_locks_left_alone(desk: Desk) -> None:
    """Req: L-13. Settled over `$management` then, or lapsing."""
    [first] = delivered(desk)
    desk.client.detach(desk.channel, 0)
    desk.pump()
    assert [type(command) for command in desk.commands] == [CloseLink]
    desk.commands.clear()
    desk.settle(first, first, ACCEPTED)
    assert desk.commands == []
    assert str(desk.rejection(first).condition) == "com.microsoft:message-lock-lost"


def test_the_broker_may_detach_a_receiver(desk: Desk) -> None:
    """Req: L-11."""
    _, opened = desk.receiver(credit=1)
    desk.effect(DetachLink(opened.link, EntityDisabled("'orders' is disabled.")))
    detached = desk.take_event(LinkDetached)
    assert detached.error is not None
    assert str(detached.error.condition) == "com.microsoft:entity-disabled"
    desk.commands.clear()
    desk.effect(desk.deliver(opened.link, message_bytes()))
    assert desk.commands == []  # the broker has forgotten the link and its locks


def test_what_was_delivered_over_a_link_that_the_broker_detached_is_answered_with_the_reason(
    desk: Desk,
) -> None:
    """Until a receiver is opened on that session again. Clients settle before they have read the detach, and
    are to learn what stands in the way.

    Req: L-11, A-04.
    """
    _, opened = desk.receiver(credit=2)
    for _ in range(2):
        desk.effect(desk.deliver(opened.link, message_bytes()))
    first, second = (desk.take_event(DeliveryReceived).delivery_id for _ in range(2))
    desk.effect(DetachLink(opened.link, EntityDisabled("'orders' is disabled.")))
    desk.commands.clear()
    desk.settle(first, first, ACCEPTED)
    assert str(desk.rejection(first).condition) == "com.microsoft:entity-disabled"
    desk.receiver()
    desk.commands.clear()
    desk.settle(second, second, ACCEPTED)
    assert str(desk.rejection(second).condition) == "com.microsoft:message-lock-lost"
    assert desk.commands == []


def test_one_connection_s_effects_never_reach_an_unknown_link(desk: Desk) -> None:
    """Req: R-05. Effects for links long gone are dropped."""
    before = len(desk.sent)
    link = LinkId(CONNECTION_ID, 99)
    late = desk.deliver(link, message_bytes())
    assert isinstance(late, Deliver)
    desk.effect(
        late,
        Drained(link),
        Settled(ReplyTo(*link, 0)),
        SettlementFailed(ReplyTo(*link, 0), MessageLockLost("x")),
    )
    assert len(desk.sent) == before
    assert desk.commands == []
