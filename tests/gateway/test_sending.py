"""Transfers of clients that send: frames in -> commands out, outcomes in -> dispositions out."""

from __future__ import annotations

import pickle
import sys
from types import FrameType
from typing import Any

import pytest

from peeklock.amqp.events import DispositionReceived, LinkAttached, LinkFlow
from peeklock.amqp.messaging import BATCH_FORMAT, scan
from peeklock.amqp.performatives import ACCEPTED
from peeklock.amqp.types import Role, Symbol, Timestamp, UInt
from peeklock.broker.commands import CloseLink, CountDroppedSend, LinkId, OpenSender, Send, SendBatch
from peeklock.broker.descriptions import RuleDescription
from peeklock.broker.effects import Accepted, DetachLink, Rejected, SenderOpened
from peeklock.broker.errors import EntityDeleted, EntityDisabled, QuotaExceeded, ServerBusy
from peeklock.broker.history import History
from peeklock.broker.message import Routing
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.intake import MESSAGE_OVERHEAD_BYTES
from peeklock.rules.filters import SqlFilter
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.playbook import (
    CONNECTION_ID,
    QUEUE_ID,
    SIZE_MAX,
    Desk,
    LiveDesk,
    everything,
    message_bytes,
    section,
)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_transfer_becomes_a_send_and_its_acceptance_a_settled_disposition(desk: Desk) -> None:
    """Req: T-01. Source: wire contract 4.1."""
    handle = desk.sender()
    payload = message_bytes(
        header=[True, None, UInt(9)], annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5)}
    )
    delivery_id = desk.transfer(handle, payload)
    send = desk.take(Send)
    assert (send.queue_id, send.sections.payload) == (QUEUE_ID, payload)
    assert (send.message.ttl_ms, send.message.scheduled_at_ms, send.message.size_bytes) == (
        9,
        5,
        len(payload),
    )
    assert send.reply_to is not None
    assert send.reply_to.connection_id == CONNECTION_ID
    assert not any(isinstance(event, DispositionReceived) for event in desk.events)  # not before it is stored
    desk.effect(Accepted(send.reply_to))
    outcome = desk.take_event(DispositionReceived)
    assert (outcome.first, outcome.last, outcome.settled, outcome.state) == (
        delivery_id,
        delivery_id,
        True,
        ACCEPTED,
    )


def test_a_send_is_a_plain_value(desk: Desk) -> None:
    """With the spans of its message."""
    desk.transfer(desk.sender(), message_bytes(header=[True], properties=["id"]))
    send = desk.take(Send)
    again = pickle.loads(pickle.dumps(send))
    assert everything(again.sections) == everything(send.sections)
    assert (again.queue_id, again.reply_to) == (send.queue_id, send.reply_to)


@pytest.mark.parametrize("properties", [None, ["id", *[None] * 9, "session"]])
def test_the_bytes_of_a_transfer_are_scanned_once(properties: list[Any] | None) -> None:
    """By filters, the next entity, the event log and the history too; also when an id is written into it."""
    broker = InProcessBroker(captures_body=lambda name: False, history=History(10))
    broker.create_queue("orders", requires_duplicate_detection=True)
    broker.create_topic("news")
    broker.create_subscription("news", "all", forward_to="orders")
    rule = RuleDescription("n", SqlFilter("n = 1 AND sys.MessageId IS NOT NULL"))
    broker.create_subscription("news", "some", rule=rule)
    desk = LiveDesk(broker)
    sender = desk.sender("news")
    scanned: list[object] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is scan.__code__:
            scanned.append(frame.f_back)

    payload = message_bytes(b"x" * 10_000, properties=properties, application_properties={"n": 1})
    sys.setprofile(note)
    try:
        desk.transfer(sender, payload)
    finally:
        sys.setprofile(None)
    assert len(scanned) == 1
    assert broker.queue("orders").active_count == 1
    assert broker.subscription("news", "some").active_count == 1


def test_outcomes_of_a_turn_are_merged_into_ranges(desk: Desk) -> None:
    """Req: T-04."""
    handle = desk.sender()
    for _ in range(5):
        desk.transfer(handle, message_bytes())
    sends = [desk.take(Send) for _ in range(5)]
    desk.effect(*(Accepted(send.reply_to) for send in sends if send.reply_to))
    outcome = desk.take_event(DispositionReceived)
    assert (outcome.first, outcome.last) == (0, 4)
    assert not any(isinstance(event, DispositionReceived) for event in desk.events)


def together(desk: Desk, *transfers: tuple[int, dict[str, Any]]) -> None:
    """Send deliveries so that the gateway reads all of them at once."""
    for number, (handle, options) in enumerate(transfers):
        desk.client.send(desk.channel, handle, str(number).encode(), message_bytes(), **options)
    desk.pump()


def test_what_comes_behind_a_message_is_part_of_its_command(desk: Desk) -> None:
    """Req: T-04."""
    first, second = desk.sender(name="one", takes_runs=True), desk.sender(name="two", takes_runs=True)
    together(
        desk, (first, {}), (first, {}), (first, {}), (second, {}), (first, {}), (first, {"settled": True})
    )
    sends = [command for command in desk.commands if isinstance(command, Send)]
    assert [(send.reply_to and send.reply_to.number, len(send.further)) for send in sends] == [
        (0, 2), (3, 0), (4, 0), (None, 0),
    ]  # fmt: skip
    asked = sends[0].reply_to
    assert asked is not None
    assert desk.gateway.uncommitted_bytes > 0
    desk.effect(Accepted(asked, 2), Rejected(asked._replace(number=2), QuotaExceeded("full")))
    assert [desk.take_event(DispositionReceived).last for _ in range(2)] == [1, 2]
    desk.effect(*(Accepted(send.reply_to) for send in sends[1:] if send.reply_to))
    assert desk.gateway.uncommitted_bytes == 0


def test_a_topic_is_sent_each_message_by_itself(desk: Desk) -> None:
    """One of them may become thousands of copies. Req: R-06"""
    handle = desk.sender()
    together(desk, (handle, {}), (handle, {}))
    assert [len(desk.take(Send).further) for _ in range(2)] == [0, 0]


def test_outcomes_may_come_out_of_order(desk: Desk) -> None:
    """Req: T-04."""
    handle = desk.sender()
    for _ in range(3):
        desk.transfer(handle, message_bytes())
    sends = [desk.take(Send) for _ in range(3)]
    for send in (sends[2], sends[0]):
        assert send.reply_to is not None
        desk.effect(Accepted(send.reply_to))
    assert [desk.take_event(DispositionReceived).first for _ in range(2)] == [2, 0]


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (QuotaExceeded("'orders' is full."), "amqp:resource-limit-exceeded"),
        (ServerBusy("The broker lags."), "com.microsoft:server-busy"),
        (EntityDisabled("'orders' is disabled."), "com.microsoft:entity-disabled"),
    ],
)
def test_a_refusal_of_the_broker_rejects_with_condition_and_tracking_id(
    desk: Desk, error: QuotaExceeded, condition: str
) -> None:
    """Req: T-02, T-03. The same id stands in the log line; the error on the wire is a list of three."""
    delivery_id = desk.transfer(desk.sender(), message_bytes())
    send = desk.take(Send)
    assert send.reply_to is not None
    desk.effect(Rejected(send.reply_to, error))
    found = desk.rejection(delivery_id)
    assert str(found.condition) == condition
    [(event, fields)] = desk.logged
    assert event == "refused"
    assert (
        f"TrackingId:{fields['tracking_id']}, SystemTracker:localhost:orders, Timestamp:" in found.description
    )
    assert fields["entity"] == "orders"
    # A client that reads errors by position needs all three fields: `00 53 1d`, a list of three, the last one
    # null.
    at = desk.sent.rindex(b"\x00\x53\x1d")
    assert desk.sent[at + 3] in (0xC0, 0xD0)
    assert desk.sent[at + 5 if desk.sent[at + 3] == 0xC0 else at + 11] == 3


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (b"no message", "amqp:decode-error"),
        (message_bytes(properties=["m" * 129]), "com.microsoft:argument-error"),
        (
            message_bytes(annotations={Symbol("x-opt-partition-key"): "p"}, properties=[None] * 10 + ["g"]),
            "amqp:not-allowed",
        ),
        (message_bytes(application_properties={"k": "v" * 70_000}), "amqp:not-allowed"),
        (message_bytes(application_properties={"k": "v" * 32_769}), "amqp:not-allowed"),
    ],
)
def test_an_unacceptable_message_is_rejected_without_asking_the_broker(
    desk: Desk, payload: bytes, condition: str
) -> None:
    """Req: T-02, T-03. Source: wire contract 3.3."""
    handle = desk.sender()
    delivery_id = desk.transfer(handle, payload)
    assert str(desk.rejection(delivery_id).condition) == condition
    assert desk.commands == []
    desk.transfer(handle, message_bytes())  # the link lives on
    assert desk.take(Send)


def test_an_oversized_message_is_rejected_and_the_link_lives_on(desk: Desk) -> None:
    """Req: T-10. At the limit, and one past it. Source: wire contract 3.3."""
    handle = desk.sender()
    overhead = len(message_bytes(b"x" * 1000)) - 1000
    fits = message_bytes(b"x" * (SIZE_MAX - overhead))
    assert len(fits) == SIZE_MAX
    desk.transfer(handle, fits)
    assert desk.take(Send).sections.payload == fits
    delivery_id = desk.transfer(handle, message_bytes(b"x" * (SIZE_MAX - overhead + 1)))
    error = desk.rejection(delivery_id)
    assert str(error.condition) == "amqp:link:message-size-exceeded"
    assert str(SIZE_MAX) in error.description
    desk.transfer(handle, message_bytes())
    assert desk.take(Send)


def test_a_batch_is_one_command_and_one_outcome(desk: Desk) -> None:
    """Req: T-07. Source: wire contract 3.7."""
    handle = desk.sender()
    members = [message_bytes(b"a"), message_bytes("b")]
    envelope = b"".join(section(0x75, member) for member in members)
    desk.transfer(handle, envelope, message_format=BATCH_FORMAT)
    batch = desk.take(SendBatch)
    assert (batch.queue_id, [sections.payload for _, sections in batch.messages]) == (QUEUE_ID, members)
    assert batch.reply_to is not None
    desk.effect(Accepted(batch.reply_to))
    outcome = desk.take_event(DispositionReceived)
    assert (outcome.first, outcome.last, outcome.state) == (0, 0, ACCEPTED)
    assert not desk.commands


def test_one_bad_member_rejects_the_whole_batch(desk: Desk) -> None:
    """Req: T-07."""
    envelope = section(0x75, message_bytes()) + section(0x75, message_bytes(properties=["m" * 129]))
    delivery_id = desk.transfer(desk.sender(), envelope, message_format=BATCH_FORMAT)
    assert str(desk.rejection(delivery_id).condition) == "com.microsoft:argument-error"
    assert desk.commands == []


def test_several_data_sections_in_the_ordinary_format_are_one_message(desk: Desk) -> None:
    """Source: wire contract 3.7."""
    payload = section(0x75, b"a") + section(0x75, b"b")
    desk.transfer(desk.sender(), payload)
    assert desk.take(Send).sections.payload == payload


def test_pre_settled_transfers_have_no_outcome_either_way(desk: Desk) -> None:
    """Req: T-06. A refused one is dropped without outcome or detach, logged, and counted by the broker."""
    handle = desk.sender()
    events = len(desk.events)
    desk.transfer(handle, message_bytes(), settled=True)
    assert desk.take(Send).reply_to is None
    for payload, message_format, condition in (
        (b"no message", 0, "amqp:decode-error"),
        (message_bytes(b"x" * SIZE_MAX), 0, "amqp:link:message-size-exceeded"),
        (message_bytes(properties=["m" * 129]), 0, "com.microsoft:argument-error"),
        (section(0x75, b"no message"), BATCH_FORMAT, "amqp:decode-error"),
    ):
        desk.transfer(handle, payload, settled=True, message_format=message_format)
        assert desk.logged.pop()[1]["condition"] == condition
        assert desk.commands == [CountDroppedSend()]
        desk.commands.clear()
    assert len(desk.events) == events
    assert desk.gateway.uncommitted_bytes == 0


def test_a_refused_send_whose_sender_learns_it_is_not_counted_as_dropped(desk: Desk) -> None:
    """Req: T-06."""
    delivery_id = desk.transfer(desk.sender(), b"no message")
    assert str(desk.rejection(delivery_id).condition) == "amqp:decode-error"
    assert desk.commands == []


def test_a_refused_request_that_wants_no_outcome_is_no_dropped_send(desk: Desk) -> None:
    """Req: T-06. It was no message for an entity."""
    sender, _ = desk.pair("orders/$management")
    desk.transfer(sender, b"no message", settled=True)
    desk.transfer(desk.controller(), b"no message", settled=True)
    assert len(desk.logged) == 2
    assert desk.commands == []


def test_credit_is_given_at_attach_and_topped_up_at_half(desk: Desk) -> None:
    """Req: T-08. Source: wire contract 2.7."""
    handle = desk.sender()
    assert desk.take_event(LinkFlow).credit == 1000
    for _ in range(499):
        desk.transfer(handle, message_bytes(), settled=True)
    assert not any(isinstance(event, LinkFlow) for event in desk.events)
    desk.transfer(handle, message_bytes(), settled=True)
    assert desk.take_event(LinkFlow).credit == 1000
    assert desk.client.credit(desk.channel, handle) == 1000


def test_uncommitted_bytes_count_what_waits_for_its_outcome(desk: Desk) -> None:
    """Req: T-08. The server stops reading a connection above 8 MiB of them."""
    handle = desk.sender()
    payload = message_bytes(b"x" * 1000)
    for _ in range(3):
        desk.transfer(handle, payload)
    cost = len(payload) + MESSAGE_OVERHEAD_BYTES
    assert desk.gateway.uncommitted_bytes == 3 * cost
    sends = [desk.take(Send) for _ in range(3)]
    assert sends[0].reply_to
    desk.effect(Accepted(sends[0].reply_to))
    assert desk.gateway.uncommitted_bytes == 2 * cost
    assert sends[1].reply_to
    desk.effect(Rejected(sends[1].reply_to, QuotaExceeded("full")))
    assert desk.gateway.uncommitted_bytes == cost
    desk.client.detach(desk.channel, handle)
    desk.pump()
    assert desk.gateway.uncommitted_bytes == 0


def test_transfers_before_the_attach_is_answered_are_kept(desk: Desk) -> None:
    """Python sends before it has credit. Source: wire contract 2.7."""
    handle = desk.attach(Role.SENDER, "orders")
    command = desk.take(OpenSender)
    payloads = [message_bytes(b"early"), message_bytes(b"bird")]
    # The client half would hold them back: write the frames as Python does.
    for number, payload in enumerate(payloads):
        body = (
            bytes.fromhex("005314c00d0552")
            + bytes([handle])
            + b"\x52"
            + bytes([number])
            + b"\xa0\x03tag\x43\x42"
        )
        body = b"\x00\x53\x14\xc0" + bytes([len(body) - 5, 5]) + body[6:]
        desk.commands += desk.gateway.receive(
            (8 + len(body) + len(payload)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body + payload,
            desk.clock.now_ms,
        )
    assert desk.commands == []
    assert desk.gateway.uncommitted_bytes == sum(map(len, payloads)) + 2 * MESSAGE_OVERHEAD_BYTES
    desk.effect(SenderOpened(command.link, QUEUE_ID, SIZE_MAX, False))
    sends = [desk.take(Send) for _ in payloads]
    assert [send.sections.payload for send in sends] == payloads
    assert [send.reply_to.number for send in sends if send.reply_to] == [0, 1]
    assert desk.gateway.uncommitted_bytes == sum(map(len, payloads)) + 2 * MESSAGE_OVERHEAD_BYTES


def test_routing_is_read_where_the_entity_decides_by_it(desk: Desk) -> None:
    """Req: D-01, G-01."""
    payload = message_bytes(properties=["id", *[None] * 9, "s"])
    desk.transfer(desk.sender(), payload)
    assert desk.take(Send).message.routing is None
    handle = desk.sender(routed=True)
    desk.transfer(handle, payload)
    assert desk.take(Send).message.routing == Routing(b"\xa1\x02id", "s", None)
    delivery_id = desk.transfer(handle, message_bytes(properties=[None] * 10 + [7]))
    assert str(desk.rejection(delivery_id).condition) == "com.microsoft:argument-error"


def test_outcomes_for_a_link_that_is_gone_are_not_given_to_its_successor(desk: Desk) -> None:
    """Req: T-01. A handle and a delivery id may be taken anew while the old outcome is still under way."""
    handle = desk.sender()
    desk.transfer(handle, message_bytes(b"old"))
    old = desk.take(Send)
    desk.client.end(desk.channel)
    desk.pump()
    assert desk.take(CloseLink)
    desk.channel = desk.client.begin()
    assert desk.sender() == handle
    assert desk.transfer(handle, message_bytes(b"new")) == 0
    new = desk.take(Send)
    assert old.reply_to is not None
    assert new.reply_to is not None
    assert old.reply_to != new.reply_to
    desk.effect(Accepted(old.reply_to))
    assert not any(isinstance(event, DispositionReceived) for event in desk.events)
    desk.effect(Accepted(new.reply_to))
    assert desk.take_event(DispositionReceived).state == ACCEPTED


def test_the_broker_may_detach_an_open_link(desk: Desk) -> None:
    """Req: L-11. Source: wire contract 2.9."""
    desk.sender()
    command_link = LinkId(CONNECTION_ID, 1)
    desk.effect(DetachLink(command_link, EntityDeleted("'orders' was deleted.")))
    attached = desk.take_event(LinkAttached)
    assert attached.max_message_size == SIZE_MAX
    assert desk.commands == []
    [error] = [event.error for event in desk.events if type(event).__name__ == "LinkDetached"]
    assert error is not None
    assert str(error.condition) == "amqp:resource-deleted"


def test_a_small_credit_is_topped_up_too() -> None:
    """Req: R-05."""
    desk = Desk(limits=GatewayLimits(link_credit=2))
    handle = desk.sender()
    for _ in range(7):
        desk.transfer(handle, message_bytes(), settled=True)
    assert sum(isinstance(command, Send) for command in desk.commands) == 7


def test_messages_that_are_too_large_use_up_credit_that_is_given_again() -> None:
    """Req: T-10. A sender of nothing else must not run dry."""
    desk = Desk(limits=GatewayLimits(link_credit=4))
    handle = desk.sender()
    for _ in range(10):
        assert desk.client.credit(desk.channel, handle) > 0
        assert desk.rejection(desk.transfer(handle, b"x" * (SIZE_MAX + 1)))


def test_each_message_of_a_batch_counts_as_one_under_way(desk: Desk) -> None:
    """Req: T-08. A batch of many tiny messages costs more memory than its bytes."""
    handle = desk.sender()
    batch = section(0x75, message_bytes(b"")) * 100
    desk.transfer(handle, batch, message_format=BATCH_FORMAT)
    assert desk.gateway.uncommitted_bytes == len(batch) + 100 * MESSAGE_OVERHEAD_BYTES
    command = desk.take(SendBatch)
    assert command.reply_to
    desk.effect(Accepted(command.reply_to))
    assert desk.gateway.uncommitted_bytes == 0
