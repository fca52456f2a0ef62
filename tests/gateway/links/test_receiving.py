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
from peeklock.broker.vocabulary.commands import (
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
from peeklock.broker.vocabulary.effects import (
    Deliver,
    DetachLink,
    Drained,
    ReceiverOpened,
    Settled,
    SettlementFailed,
)
from peeklock.broker.vocabulary.errors import EntityDisabled, InvalidOperation, MessageLockLost
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.links.receiver_endpoint import SHARE_BYTES_MIN
from tests.gateway.harness import CONNECTION_ID, QUEUE_ID, TOKEN, Harness, message_bytes

MIB = 1_048_576


@pytest.fixture
def rig() -> Harness:
    return Harness()


def delivered(rig: Harness, count: int = 1) -> list[int]:
    """Attach a receiver, deliver to it, and give the delivery ids."""
    _, opened = rig.receiver(credit=count + 1)
    for number in range(1, count + 1):
        rig.effect(rig.deliver(opened.link, message_bytes(), number=number, token=uuid.UUID(int=number)))
    rig.commands.clear()
    return [rig.take_event(DeliveryReceived).delivery_id for _ in range(count)]


def tokens(count: int) -> list[bytes]:
    return [uuid.UUID(int=number).bytes_le for number in range(1, count + 1)]


# Credit and delivery


def test_nothing_is_asked_of_the_broker_before_there_is_credit(rig: Harness) -> None:
    """Source: wire contract 2.7: peek shows all messages while a fresh receiver is open."""
    handle, _ = rig.receiver()
    assert rig.commands == []
    rig.client.flow(rig.channel, handle, 0)
    rig.pump()
    assert rig.take(SetCredit).deliveries_max == 0


def test_a_delivery_carries_the_lock_token_as_tag_and_as_uuid(rig: Harness) -> None:
    """Req: L-04, L-02. The tag is in .NET's order, the annotation in RFC order. Source: wire contract 3.4."""
    _, opened = rig.receiver(credit=1)
    assert opened.mode is ReceiveMode.PEEK_LOCK
    rig.effect(rig.deliver(opened.link, message_bytes()))
    event = rig.take_event(DeliveryReceived)
    assert event.delivery_tag == bytes.fromhex("33221100554477668899aabbccddeeff")
    assert uuid.UUID(bytes_le=event.delivery_tag) == TOKEN
    assert bytes.fromhex("98 00112233445566778899aabbccddeeff") in event.payload
    assert (event.settled, event.message_format, event.delivery_id) == (False, 0, 0)


def test_receive_and_delete_is_settled_when_sent(rig: Harness) -> None:
    """Req: L-01. With a tag too, but no lock. Source: wire contract 2.4, 3.4."""
    _, opened = rig.receiver(credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    assert opened.mode is ReceiveMode.RECEIVE_AND_DELETE
    rig.effect(rig.deliver(opened.link, message_bytes(), locked=False))
    event = rig.take_event(DeliveryReceived)
    assert event.settled
    assert event.delivery_tag == TOKEN.bytes_le
    assert b"x-opt-lock-token" not in event.payload
    rig.commands.clear()
    rig.settle(event.delivery_id, event.delivery_id, ACCEPTED, settled=True)
    assert rig.commands == []


def test_credit_is_told_as_totals_so_that_deliveries_under_way_need_no_care(rig: Harness) -> None:
    """Req: L-16."""
    handle, opened = rig.receiver(credit=5)
    first = rig.take(SetCredit)
    assert (first.link, first.deliveries_max, first.bytes_max, first.drain) == (opened.link, 5, MIB, False)
    rig.effect(rig.deliver(opened.link, message_bytes()), rig.deliver(opened.link, message_bytes(), number=2))
    rig.client.flow(rig.channel, handle, 3)  # absolute: three more than now
    rig.pump()
    second = rig.take(SetCredit)
    assert second.deliveries_max == 2 + 3
    assert second.bytes_max == MIB + 2 * (len(message_bytes()) + DELIVERY_BYTES)


def test_credit_that_comes_before_the_link_is_open_is_not_lost(rig: Harness) -> None:
    """Req: L-16. Clients pipeline attach and flow."""
    handle = rig.attach(Role.RECEIVER, "orders")
    rig.client.flow(rig.channel, handle, 7)
    rig.pump()
    command = rig.take(OpenReceiver)
    assert rig.commands == []
    rig.effect(ReceiverOpened(command.link, QUEUE_ID))
    assert rig.take(SetCredit).deliveries_max == 7


def test_a_drain_is_answered_after_the_deliveries_before_it(rig: Harness) -> None:
    """Req: L-16. Source: wire contract 2.7."""
    handle, opened = rig.receiver()
    rig.client.flow(rig.channel, handle, 5, drain=True)
    rig.pump()
    assert rig.take(SetCredit).drain
    rig.effect(rig.deliver(opened.link, message_bytes()), Drained(opened.link))
    kinds = [type(event) for event in rig.events if isinstance(event, (DeliveryReceived, LinkDrained))]
    assert kinds == [DeliveryReceived, LinkDrained]
    assert rig.client.credit(rig.channel, handle) == 0
    rig.commands.clear()
    rig.client.flow(rig.channel, handle, 4)
    rig.pump()
    credit = rig.take(SetCredit)
    assert (credit.deliveries_max, credit.drain) == (1 + 4, False)


def test_a_drain_without_credit_is_passed_on_too(rig: Harness) -> None:
    """Source: wire contract 2.7: reply at once even when credit is already 0."""
    handle, opened = rig.receiver()
    rig.client.flow(rig.channel, handle, 0, drain=True)
    rig.pump()
    assert rig.take(SetCredit).drain
    rig.effect(Drained(opened.link))
    rig.take_event(LinkDrained)


def test_a_late_answer_to_a_drain_does_not_take_newer_credit(rig: Harness) -> None:
    """Req: L-16. The client has given credit anew while the broker's answer was under way."""
    handle, opened = rig.receiver()
    rig.client.flow(rig.channel, handle, 5, drain=True)
    rig.pump()
    rig.client.flow(rig.channel, handle, 7)
    rig.pump()
    rig.effect(Drained(opened.link))
    assert not any(isinstance(event, LinkDrained) for event in rig.events)
    assert rig.client.credit(rig.channel, handle) == 7
    rig.effect(rig.deliver(opened.link, message_bytes()))
    rig.take_event(DeliveryReceived)


def test_a_further_allowance_of_bytes_does_not_drain_again() -> None:
    """Req: L-16."""
    rig = Harness(limits=GatewayLimits(output_bytes_max=10_000))
    handle, opened = rig.receiver()
    rig.client.flow(rig.channel, handle, 5, drain=True)
    rig.pump()
    assert rig.take(SetCredit).drain
    rig.effect(rig.deliver(opened.link, message_bytes(b"x" * 6_000)))
    assert not rig.take(SetCredit).drain


def test_a_delivery_after_the_credit_was_taken_back_is_released(rig: Harness) -> None:
    """Req: L-16."""
    handle, opened = rig.receiver(credit=2)
    rig.client.flow(rig.channel, handle, 0)
    rig.pump()
    rig.commands.clear()
    late = rig.deliver(opened.link, message_bytes(b"late"))
    rig.effect(late)
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)
    release = rig.take(Release)
    assert (release.queue_id, release.lock_token, release.reply_to) == (QUEUE_ID, TOKEN.bytes_le, None)
    rig.client.flow(rig.channel, handle, 2)
    rig.pump()
    # The broker has counted the released one: the total allows for it.
    assert rig.take(SetCredit).deliveries_max == 1 + 2


def test_a_deleted_message_is_never_dropped_for_want_of_credit(rig: Harness) -> None:
    """Req: L-01, L-16. In receive-and-delete it is gone from the queue: it waits for the next credit."""
    handle, opened = rig.receiver(credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    rig.client.flow(rig.channel, handle, 0)
    rig.pump()
    rig.commands.clear()
    rig.effect(rig.deliver(opened.link, message_bytes(b"late"), locked=False))
    assert rig.commands == []
    rig.client.flow(rig.channel, handle, 1)
    rig.pump()
    assert rig.take_event(DeliveryReceived).payload.endswith(b"late")


def test_deliveries_for_a_link_that_is_gone_are_released(rig: Harness) -> None:
    """Req: L-16. Close and re-attach never lose a message, nor lock it for nothing."""
    handle, opened = rig.receiver(credit=2)
    rig.client.detach(rig.channel, handle)
    rig.pump()
    assert rig.take(CloseLink).link == opened.link
    _, again = rig.receiver(credit=1)
    rig.commands.clear()
    rig.effect(rig.deliver(opened.link, message_bytes(b"for the old link")))
    assert rig.take(Release).lock_token == TOKEN.bytes_le
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)
    assert again.link != opened.link
    rig.effect(rig.deliver(again.link, message_bytes(b"for the new link")))
    assert rig.take_event(DeliveryReceived).payload.endswith(b"for the new link")


def test_a_message_without_its_body_waits_and_other_links_pass(rig: Harness) -> None:
    """Req: L-16. What comes later on the same link keeps its order."""
    handle, slow = rig.receiver()
    rig.client.flow(rig.channel, handle, 9, drain=True)
    _, fast = rig.receiver(credit=9)
    first = rig.deliver(slow.link, message_bytes(b"1"), number=1)
    second = rig.deliver(slow.link, message_bytes(b"2"), number=2)
    other = rig.deliver(fast.link, message_bytes(b"3"), number=3)
    body = rig.payloads.pop(1)
    rig.effect(first, second, Drained(slow.link), other)
    assert rig.take_event(DeliveryReceived).payload.endswith(b"3")
    assert not any(isinstance(event, (DeliveryReceived, LinkDrained)) for event in rig.events)
    assert rig.gateway.bodies_wanted() == {1}
    rig.payloads[1] = body
    rig.gateway.bodies_arrived(lambda message: rig.payloads.get(message.body_row), rig.clock.now_ms)
    rig.pump()
    order = [event for event in rig.events if isinstance(event, (DeliveryReceived, LinkDrained))]
    assert [type(event) for event in order] == [DeliveryReceived, DeliveryReceived, LinkDrained]
    assert [event.payload[-1:] for event in order[:2] if isinstance(event, DeliveryReceived)] == [b"1", b"2"]
    assert rig.gateway.bodies_wanted() == set()


def test_answers_to_settlements_keep_their_order_behind_a_waiting_delivery(rig: Harness) -> None:
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, ACCEPTED)
    complete = rig.take(Complete)
    assert complete.reply_to is not None
    link = LinkId(*complete.reply_to[:2])
    waiting = rig.deliver(link, message_bytes(b"later"), number=9)
    body = rig.payloads.pop(9)
    rig.effect(waiting, Settled(complete.reply_to))
    assert rig.events == [event for event in rig.events if not isinstance(event, DispositionReceived)]
    rig.payloads[9] = body
    rig.gateway.bodies_arrived(lambda message: rig.payloads.get(message.body_row), rig.clock.now_ms)
    rig.pump()
    assert rig.take_event(DispositionReceived).first == delivery_id


def test_what_waits_on_a_link_that_goes_is_released(rig: Harness) -> None:
    """Req: L-16."""
    handle, opened = rig.receiver(credit=2)
    waiting = rig.deliver(opened.link, message_bytes())
    rig.payloads.clear()
    rig.commands.clear()
    rig.effect(waiting)
    rig.client.detach(rig.channel, handle)
    rig.pump()
    assert rig.take(Release).lock_token == TOKEN.bytes_le
    assert rig.take(CloseLink).link == opened.link
    assert rig.gateway.bodies_wanted() == set()


def test_bytes_are_allowed_as_far_as_the_output_is_free() -> None:
    """Req: T-08. Nothing is locked that cannot be written. Source: architecture, back-pressure."""
    rig = Harness(limits=GatewayLimits(output_bytes_max=10_000))
    _, opened = rig.receiver(credit=1000)
    assert rig.take(SetCredit).bytes_max == 10_000
    body = message_bytes(b"x" * 2500)
    for number in range(1, 3):
        rig.effect(rig.deliver(opened.link, body, number=number))
    each = len(body) + DELIVERY_BYTES
    assert rig.take(SetCredit).bytes_max == 10_000 + 2 * each  # half was used
    now = rig.clock.now_ms
    assert rig.gateway.written(10_001, now) == []
    rig.gateway.handle(
        [rig.deliver(opened.link, body, number=3)], lambda m: rig.payloads.get(m.body_row), now
    )
    rig.gateway.handle(
        [rig.deliver(opened.link, body, number=4)], lambda m: rig.payloads.get(m.body_row), now
    )
    rig.gateway.data_to_send()
    assert rig.gateway.written(10_001, now) == []  # due, but there is no room
    assert rig.gateway.written(10_000, now) == []
    [credit] = rig.gateway.written(0, now)
    assert isinstance(credit, SetCredit)
    assert credit.bytes_max == 10_000 + 4 * each
    assert credit.deliveries_max == 1000
    assert rig.gateway.written(0, now) == []


def test_the_receivers_of_a_connection_share_its_output() -> None:
    """Each may fill its part before anything of it is seen to wait. Req: T-08."""
    rig = Harness(limits=GatewayLimits(output_bytes_max=100_000))
    allowed = []
    handles = []
    for _ in range(8):
        handle, _ = rig.receiver(credit=1000)
        handles.append(handle)
        allowed.append(rig.take(SetCredit).bytes_max)
    assert allowed == [100_000 // number for number in range(1, 7)] + [SHARE_BYTES_MIN] * 2
    for handle in handles:
        rig.client.detach(rig.channel, handle)
    rig.pump()
    rig.receiver(credit=1000)
    assert rig.take(SetCredit).bytes_max == 100_000


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
    rig: Harness, state: Any, kind: type[Any], echo: type, bytes_of_echo: str
) -> None:
    """Req: L-05, L-06, L-09, L-10. A rejected is echoed without error: with one it would mean failure.

    Source: wire contract 4.2, 4.3.
    """
    [delivery_id] = delivered(rig)
    before = len(rig.sent)
    rig.settle(delivery_id, delivery_id, state)
    command = rig.take(kind)
    assert (command.queue_id, command.lock_token) == (QUEUE_ID, tokens(1)[0])
    assert len(rig.sent) == before  # nothing before the broker has answered
    rig.effect(Settled(command.reply_to))
    answer = rig.take_event(DispositionReceived)
    assert (answer.role, answer.first, answer.last, answer.settled) == (
        Role.SENDER,
        delivery_id,
        delivery_id,
        True,
    )
    assert type(answer.state) is echo
    assert getattr(answer.state, "error", None) is None
    frame = rig.sent[before:]
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
    rig: Harness, state: Any, error: MessageLockLost, condition: str
) -> None:
    """Req: L-11, T-02. Never with silence. Source: wire contract 4.3."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, state)
    command: Any
    [command] = rig.commands
    rig.effect(SettlementFailed(command.reply_to, error))
    found = rig.rejection(delivery_id)
    assert str(found.condition) == condition
    assert "TrackingId:" in found.description


@pytest.mark.parametrize("state", [ACCEPTED, RELEASED, Modified(), Modified(True, True), Rejected()])
def test_a_client_that_settles_itself_gets_no_answer(rig: Harness, state: Any) -> None:
    """Source: wire contract 4.3: apply, send nothing."""
    [delivery_id] = delivered(rig)
    before = len(rig.sent)
    rig.settle(delivery_id, delivery_id, state, settled=True)
    [command] = rig.commands
    assert command.reply_to is None  # type: ignore[union-attr]  # a settlement has one
    rig.settle(delivery_id, delivery_id, state, settled=True)
    assert len(rig.commands) == 1
    assert len(rig.sent) == before


def test_settled_without_an_outcome_makes_the_message_available_again(rig: Harness) -> None:
    """Our choice: AMQP 3.4 leaves it to the source's default outcome, which for this service is released."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, None, settled=True)
    assert rig.take(Release).reply_to is None


@pytest.mark.parametrize("state", [None, Received(1, 2)])
def test_what_is_no_outcome_settles_nothing(rig: Harness, state: Any) -> None:
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, state)
    assert rig.commands == []
    rig.settle(delivery_id, delivery_id, ACCEPTED)
    rig.take(Complete)


def test_a_delivery_settled_before_is_answered_lock_lost(rig: Harness) -> None:
    """Req: L-11. A retried settlement gets the same error each time. Source: wire contract 4.3."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, ACCEPTED)
    command = rig.take(Complete)
    assert command.reply_to
    rig.effect(SettlementFailed(command.reply_to, MessageLockLost("gone")))
    assert rig.rejection(delivery_id)
    for _ in range(2):
        rig.settle(delivery_id, delivery_id, ACCEPTED)
        assert rig.commands == []
        assert str(rig.rejection(delivery_id).condition) == "com.microsoft:message-lock-lost"


def test_a_range_settles_each_delivery_and_is_answered_as_a_range(rig: Harness) -> None:
    """Source: wire contract 4.3."""
    delivered(rig, 4)
    rig.settle(0, 3, ACCEPTED)
    command = rig.take(Complete)
    assert [command.lock_token, *command.further] == tokens(4)
    assert command.reply_to is not None
    rig.effect(Settled(command.reply_to, 4))
    answer = rig.take_event(DispositionReceived)
    assert (answer.first, answer.last, answer.state) == (0, 3, ACCEPTED)


def test_a_range_over_two_links_is_a_command_for_each_run_of_neighbours(rig: Harness) -> None:
    """Req: T-04"""
    links = [rig.receiver(credit=5, name=name)[1].link for name in ("one", "two")]
    for number, link in enumerate((0, 0, 1, 1, 1, 0), 1):
        token = uuid.UUID(int=number)
        rig.effect(rig.deliver(links[link], message_bytes(), number=number, token=token))
    rig.commands.clear()
    rig.settle(0, 5, ACCEPTED)
    completes = [command for command in rig.commands if isinstance(command, Complete)]
    assert len(completes) == len(rig.commands)
    found = [(command.reply_to, [command.lock_token, *command.further]) for command in completes]
    given = tokens(6)
    assert found == [
        (ReplyTo(*links[0], 0), given[:2]),
        (ReplyTo(*links[1], 2), given[2:5]),
        (ReplyTo(*links[0], 5), given[5:]),
    ]


def test_a_range_is_completed_in_commands_of_bounded_work(rig: Harness) -> None:
    """Req: R-06"""
    count = 2 * RUN_MAX + 1
    delivered(rig, count)
    rig.settle(0, count - 1, ACCEPTED)
    runs = [
        [command.lock_token, *command.further] for command in rig.commands if isinstance(command, Complete)
    ]
    assert [len(run) for run in runs] == [RUN_MAX, RUN_MAX, 1]
    assert [token for run in runs for token in run] == tokens(count)


def test_settlements_of_a_command_may_end_differently(rig: Harness) -> None:
    """Req: T-04"""
    delivered(rig, 5)
    rig.settle(0, 4, ACCEPTED)
    asked = rig.take(Complete).reply_to
    assert asked is not None
    behind = asked._replace(number=asked.number + 2)
    lost = SettlementFailed(behind, MessageLockLost("gone"))
    rig.effect(Settled(asked, 2), lost, Settled(asked._replace(number=asked.number + 3), 2))
    answers = [rig.take_event(DispositionReceived) for _ in range(3)]
    assert [(answer.first, answer.last) for answer in answers] == [(0, 1), (2, 2), (3, 4)]
    assert isinstance(answers[1].state, Rejected)


def test_a_range_answers_lock_lost_for_the_deliveries_it_does_not_know(rig: Harness) -> None:
    """Req: L-11."""
    delivered(rig, 5)
    for known in (0, 2, 3):
        rig.settle(known, known, ACCEPTED, settled=True)
    rig.commands.clear()
    rig.settle(0, 4, Modified(True))
    settlements = [rig.take(Abandon), rig.take(Abandon)]
    assert [command.lock_token for command in settlements] == [tokens(5)[1], tokens(5)[4]]
    assert rig.commands == []
    lost = [rig.take_event(DispositionReceived) for _ in range(2)]
    assert [(event.first, event.last) for event in lost] == [(0, 0), (2, 3)]
    for event in lost:
        assert isinstance(event.state, Rejected)
        assert event.state.error is not None
        assert str(event.state.error.condition) == "com.microsoft:message-lock-lost"


def test_a_range_of_two_thousand_million_deliveries_costs_nothing(rig: Harness) -> None:
    """Req: R-05."""
    delivered(rig, 2)
    # The client half would refuse: `disposition` with first 0 and last 2^31-16, unsettled, accepted.
    body = (
        bytes.fromhex("005315")
        + b"\xd0\x00\x00\x00\x10\x00\x00\x00\x05"
        + bytes.fromhex("41 43 707ffffff0 42 00532445")
    )
    frame = (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + rig.channel.to_bytes(2, "big") + body
    rig.commands += rig.gateway.receive(frame, rig.clock.now_ms)
    command = rig.take(Complete)
    assert [command.lock_token, *command.further] == tokens(2)
    assert rig.commands == []


# Settlement: what comes with it


def test_properties_to_modify_come_from_the_annotations_of_modified(rig: Harness) -> None:
    """Req: L-06, L-10. Keys as symbols or strings, values with their types. Source: wire contract 4.2."""
    [first, second] = delivered(rig, 2)
    changes = {Symbol("tries"): UInt(3), "note": None, 7: "no name"}
    rig.settle(first, first, Modified(True, False, changes))
    found = rig.take(Abandon).properties
    assert found == {"tries": 3, "note": None}
    assert {type(key) for key in found} == {str}
    assert type(found["tries"]) is UInt
    rig.settle(second, second, Modified(False, True, {Symbol("k"): "v"}))
    assert rig.take(Defer).properties == {"k": "v"}


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
    rig: Harness, error: AmqpError | None, reason: str | None, description: str | None, properties: Any
) -> None:
    """Req: L-09, C31. Texts, a symbol too; what is no text is a property of its own type, and no other
    description stands in for it. Source: wire contract 4.2."""
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, Rejected(error))
    command = rig.take(DeadLetter)
    assert (command.reason, command.description, command.properties) == (reason, description, properties)
    assert {type(text) for text in (command.reason, command.description)} <= {str, type(None)}
    if error is not None and command.properties is not None:
        sent = error.info or {}
        assert all(type(value) is type(sent[Symbol(key)]) for key, value in command.properties.items())


# The end of a link


def test_answers_for_a_link_that_is_gone_are_dropped(rig: Harness) -> None:
    [delivery_id] = delivered(rig)
    rig.settle(delivery_id, delivery_id, ACCEPTED)
    command = rig.take(Complete)
    rig.client.detach(rig.channel, 0)
    rig.pump()
    before = len(rig.sent)
    assert command.reply_to
    rig.effect(Settled(command.reply_to), SettlementFailed(command.reply_to, MessageLockLost("x")))
    assert len(rig.sent) == before


def test_deliveries_of_a_closed_link_are_forgotten_and_their_locks_left_alone(rig: Harness) -> None:
    """Req: L-13. Settled over `$management` then, or lapsing."""
    [first] = delivered(rig)
    rig.client.detach(rig.channel, 0)
    rig.pump()
    assert [type(command) for command in rig.commands] == [CloseLink]
    rig.commands.clear()
    rig.settle(first, first, ACCEPTED)
    assert rig.commands == []
    assert str(rig.rejection(first).condition) == "com.microsoft:message-lock-lost"


def test_the_broker_may_detach_a_receiver(rig: Harness) -> None:
    """Req: L-11."""
    _, opened = rig.receiver(credit=1)
    rig.effect(DetachLink(opened.link, EntityDisabled("'orders' is disabled.")))
    detached = rig.take_event(LinkDetached)
    assert detached.error is not None
    assert str(detached.error.condition) == "com.microsoft:entity-disabled"
    rig.commands.clear()
    rig.effect(rig.deliver(opened.link, message_bytes()))
    assert rig.commands == []  # the broker has forgotten the link and its locks


def test_what_was_delivered_over_a_link_that_the_broker_detached_is_answered_with_the_reason(
    rig: Harness,
) -> None:
    """Until a receiver is opened on that session again. Clients settle before they have read the detach, and
    are to learn what stands in the way.

    Req: L-11, A-04.
    """
    _, opened = rig.receiver(credit=2)
    for _ in range(2):
        rig.effect(rig.deliver(opened.link, message_bytes()))
    first, second = (rig.take_event(DeliveryReceived).delivery_id for _ in range(2))
    rig.effect(DetachLink(opened.link, EntityDisabled("'orders' is disabled.")))
    rig.commands.clear()
    rig.settle(first, first, ACCEPTED)
    assert str(rig.rejection(first).condition) == "com.microsoft:entity-disabled"
    rig.receiver()
    rig.commands.clear()
    rig.settle(second, second, ACCEPTED)
    assert str(rig.rejection(second).condition) == "com.microsoft:message-lock-lost"
    assert rig.commands == []


def test_one_connection_s_effects_never_reach_an_unknown_link(rig: Harness) -> None:
    """Req: R-05. Effects for links long gone are dropped."""
    before = len(rig.sent)
    link = LinkId(CONNECTION_ID, 99)
    late = rig.deliver(link, message_bytes())
    assert isinstance(late, Deliver)
    rig.effect(
        late,
        Drained(link),
        Settled(ReplyTo(*link, 0)),
        SettlementFailed(ReplyTo(*link, 0), MessageLockLost("x")),
    )
    assert len(rig.sent) == before
    assert rig.commands == []
