"""Transfers of clients that send: frames in -> commands out, outcomes in -> dispositions out."""

from __future__ import annotations

import pickle
import sys
from types import FrameType
from typing import Any

import pytest

from peeklock.amqp.events import DispositionReceived, LinkAttached, LinkDetached, LinkFlow
from peeklock.amqp.messaging import BATCH_FORMAT, scan
from peeklock.amqp.performatives import ACCEPTED
from peeklock.amqp.types import Role, Symbol, Timestamp, UInt
from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.commands import (
    CloseLink,
    CountDroppedSend,
    LinkId,
    OpenSender,
    Send,
    SendBatch,
)
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.broker.vocabulary.effects import Accepted, DetachLink, Rejected, SenderOpened
from peeklock.broker.vocabulary.errors import EntityDeleted, EntityDisabled, QuotaExceeded, ServerBusy
from peeklock.broker.vocabulary.message import Routing
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.links.incoming_link import MESSAGE_OVERHEAD_BYTES
from peeklock.rules.filters import SqlFilter
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import (
    CONNECTION_ID,
    QUEUE_ID,
    SIZE_MAX,
    Harness,
    LiveHarness,
    everything,
    message_bytes,
    section,
)


@pytest.fixture
def rig() -> Harness:
    return Harness()


def test_a_transfer_becomes_a_send_and_its_acceptance_a_settled_disposition(rig: Harness) -> None:
    """Req: T-01. Source: wire contract 4.1."""
    handle = rig.sender()
    payload = message_bytes(
        header=[True, None, UInt(9)], annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5)}
    )
    delivery_id = rig.transfer(handle, payload)
    send = rig.take(Send)
    assert (send.queue_id, send.sections.payload) == (QUEUE_ID, payload)
    assert (send.message.ttl_ms, send.message.scheduled_at_ms, send.message.size_bytes) == (
        9,
        5,
        len(payload),
    )
    assert send.reply_to is not None
    assert send.reply_to.connection_id == CONNECTION_ID
    assert not any(isinstance(event, DispositionReceived) for event in rig.events)  # not before it is stored
    rig.effect(Accepted(send.reply_to))
    outcome = rig.take_event(DispositionReceived)
    assert (outcome.first, outcome.last, outcome.settled, outcome.state) == (
        delivery_id,
        delivery_id,
        True,
        ACCEPTED,
    )


def test_a_send_is_a_plain_value(rig: Harness) -> None:
    """With the spans of its message."""
    rig.transfer(rig.sender(), message_bytes(header=[True], properties=["id"]))
    send = rig.take(Send)
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
    rig = LiveHarness(broker)
    sender = rig.sender("news")
    scanned: list[object] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is scan.__code__:
            scanned.append(frame.f_back)

    payload = message_bytes(b"x" * 10_000, properties=properties, application_properties={"n": 1})
    sys.setprofile(note)
    try:
        rig.transfer(sender, payload)
    finally:
        sys.setprofile(None)
    assert len(scanned) == 1
    assert broker.queue("orders").active_count == 1
    assert broker.subscription("news", "some").active_count == 1


def test_outcomes_of_a_turn_are_merged_into_ranges(rig: Harness) -> None:
    """Req: T-04."""
    handle = rig.sender()
    for _ in range(5):
        rig.transfer(handle, message_bytes())
    sends = [rig.take(Send) for _ in range(5)]
    rig.effect(*(Accepted(send.reply_to) for send in sends if send.reply_to))
    outcome = rig.take_event(DispositionReceived)
    assert (outcome.first, outcome.last) == (0, 4)
    assert not any(isinstance(event, DispositionReceived) for event in rig.events)


def together(rig: Harness, *transfers: tuple[int, dict[str, Any]]) -> None:
    """Send deliveries so that the gateway reads all of them at once."""
    for number, (handle, options) in enumerate(transfers):
        rig.client.send(rig.channel, handle, str(number).encode(), message_bytes(), **options)
    rig.pump()


def test_what_comes_behind_a_message_is_part_of_its_command(rig: Harness) -> None:
    """Req: T-04."""
    first, second = rig.sender(name="one", takes_runs=True), rig.sender(name="two", takes_runs=True)
    together(
        rig, (first, {}), (first, {}), (first, {}), (second, {}), (first, {}), (first, {"settled": True})
    )
    sends = [command for command in rig.commands if isinstance(command, Send)]
    assert [(send.reply_to and send.reply_to.number, len(send.further)) for send in sends] == [
        (0, 2), (3, 0), (4, 0), (None, 0),
    ]  # fmt: skip
    asked = sends[0].reply_to
    assert asked is not None
    assert rig.gateway.uncommitted_bytes > 0
    rig.effect(Accepted(asked, 2), Rejected(asked._replace(number=2), QuotaExceeded("full")))
    assert [rig.take_event(DispositionReceived).last for _ in range(2)] == [1, 2]
    rig.effect(*(Accepted(send.reply_to) for send in sends[1:] if send.reply_to))
    assert rig.gateway.uncommitted_bytes == 0


def test_a_topic_is_sent_each_message_by_itself(rig: Harness) -> None:
    """One of them may become thousands of copies. Req: R-06"""
    handle = rig.sender()
    together(rig, (handle, {}), (handle, {}))
    assert [len(rig.take(Send).further) for _ in range(2)] == [0, 0]


def test_outcomes_may_come_out_of_order(rig: Harness) -> None:
    """Req: T-04."""
    handle = rig.sender()
    for _ in range(3):
        rig.transfer(handle, message_bytes())
    sends = [rig.take(Send) for _ in range(3)]
    for send in (sends[2], sends[0]):
        assert send.reply_to is not None
        rig.effect(Accepted(send.reply_to))
    assert [rig.take_event(DispositionReceived).first for _ in range(2)] == [2, 0]


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (QuotaExceeded("'orders' is full."), "amqp:resource-limit-exceeded"),
        (ServerBusy("The broker lags."), "com.microsoft:server-busy"),
        (EntityDisabled("'orders' is disabled."), "com.microsoft:entity-disabled"),
    ],
)
def test_a_refusal_of_the_broker_rejects_with_condition_and_tracking_id(
    rig: Harness, error: QuotaExceeded, condition: str
) -> None:
    """Req: T-02, T-03. The same id stands in the log line; the error on the wire is a list of three."""
    delivery_id = rig.transfer(rig.sender(), message_bytes())
    send = rig.take(Send)
    assert send.reply_to is not None
    rig.effect(Rejected(send.reply_to, error))
    found = rig.rejection(delivery_id)
    assert str(found.condition) == condition
    [(event, fields)] = rig.logged
    assert event == "refused"
    assert (
        f"TrackingId:{fields['tracking_id']}, SystemTracker:localhost:orders, Timestamp:" in found.description
    )
    assert fields["entity"] == "orders"
    # A client that reads errors by position needs all three fields: `00 53 1d`, a list of three, the last one
    # null.
    at = rig.sent.rindex(b"\x00\x53\x1d")
    assert rig.sent[at + 3] in (0xC0, 0xD0)
    assert rig.sent[at + 5 if rig.sent[at + 3] == 0xC0 else at + 11] == 3


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
    rig: Harness, payload: bytes, condition: str
) -> None:
    """Req: T-02, T-03. Source: wire contract 3.3."""
    handle = rig.sender()
    delivery_id = rig.transfer(handle, payload)
    assert str(rig.rejection(delivery_id).condition) == condition
    assert rig.commands == []
    rig.transfer(handle, message_bytes())  # the link lives on
    rig.take(Send)


def test_an_oversized_message_is_rejected_and_the_link_lives_on(rig: Harness) -> None:
    """Req: T-10. At the limit, and one past it. Source: wire contract 3.3."""
    handle = rig.sender()
    overhead = len(message_bytes(b"x" * 1000)) - 1000
    fits = message_bytes(b"x" * (SIZE_MAX - overhead))
    assert len(fits) == SIZE_MAX
    rig.transfer(handle, fits)
    assert rig.take(Send).sections.payload == fits
    delivery_id = rig.transfer(handle, message_bytes(b"x" * (SIZE_MAX - overhead + 1)))
    error = rig.rejection(delivery_id)
    assert str(error.condition) == "amqp:link:message-size-exceeded"
    assert str(SIZE_MAX) in error.description
    rig.transfer(handle, message_bytes())
    rig.take(Send)


def test_a_batch_is_one_command_and_one_outcome(rig: Harness) -> None:
    """Req: T-07. Source: wire contract 3.7."""
    handle = rig.sender()
    members = [message_bytes(b"a"), message_bytes("b")]
    envelope = b"".join(section(0x75, member) for member in members)
    rig.transfer(handle, envelope, message_format=BATCH_FORMAT)
    batch = rig.take(SendBatch)
    assert (batch.queue_id, [sections.payload for _, sections in batch.messages]) == (QUEUE_ID, members)
    assert batch.reply_to is not None
    rig.effect(Accepted(batch.reply_to))
    outcome = rig.take_event(DispositionReceived)
    assert (outcome.first, outcome.last, outcome.state) == (0, 0, ACCEPTED)
    assert not rig.commands


def test_one_bad_member_rejects_the_whole_batch(rig: Harness) -> None:
    """Req: T-07."""
    envelope = section(0x75, message_bytes()) + section(0x75, message_bytes(properties=["m" * 129]))
    delivery_id = rig.transfer(rig.sender(), envelope, message_format=BATCH_FORMAT)
    assert str(rig.rejection(delivery_id).condition) == "com.microsoft:argument-error"
    assert rig.commands == []


def test_several_data_sections_in_the_ordinary_format_are_one_message(rig: Harness) -> None:
    """Source: wire contract 3.7."""
    payload = section(0x75, b"a") + section(0x75, b"b")
    rig.transfer(rig.sender(), payload)
    assert rig.take(Send).sections.payload == payload


def test_pre_settled_transfers_have_no_outcome_either_way(rig: Harness) -> None:
    """Req: T-06. A refused one is dropped without outcome or detach, logged, and counted by the broker."""
    handle = rig.sender()
    events = len(rig.events)
    rig.transfer(handle, message_bytes(), settled=True)
    assert rig.take(Send).reply_to is None
    for payload, message_format, condition in (
        (b"no message", 0, "amqp:decode-error"),
        (message_bytes(b"x" * SIZE_MAX), 0, "amqp:link:message-size-exceeded"),
        (message_bytes(properties=["m" * 129]), 0, "com.microsoft:argument-error"),
        (section(0x75, b"no message"), BATCH_FORMAT, "amqp:decode-error"),
    ):
        rig.transfer(handle, payload, settled=True, message_format=message_format)
        assert rig.logged.pop()[1]["condition"] == condition
        assert rig.commands == [CountDroppedSend()]
        rig.commands.clear()
    assert len(rig.events) == events
    assert rig.gateway.uncommitted_bytes == 0


def test_a_refused_send_whose_sender_learns_it_is_not_counted_as_dropped(rig: Harness) -> None:
    """Req: T-06."""
    delivery_id = rig.transfer(rig.sender(), b"no message")
    assert str(rig.rejection(delivery_id).condition) == "amqp:decode-error"
    assert rig.commands == []


def test_a_refused_request_that_wants_no_outcome_is_no_dropped_send(rig: Harness) -> None:
    """Req: T-06. It was no message for an entity."""
    sender, _ = rig.pair("orders/$management")
    rig.transfer(sender, b"no message", settled=True)
    rig.transfer(rig.controller(), b"no message", settled=True)
    assert len(rig.logged) == 2
    assert rig.commands == []


def test_credit_is_given_at_attach_and_topped_up_at_half(rig: Harness) -> None:
    """Req: T-08. Source: wire contract 2.7."""
    handle = rig.sender()
    assert rig.take_event(LinkFlow).credit == 1000
    for _ in range(499):
        rig.transfer(handle, message_bytes(), settled=True)
    assert not any(isinstance(event, LinkFlow) for event in rig.events)
    rig.transfer(handle, message_bytes(), settled=True)
    assert rig.take_event(LinkFlow).credit == 1000
    assert rig.client.credit(rig.channel, handle) == 1000


def test_uncommitted_bytes_count_what_waits_for_its_outcome(rig: Harness) -> None:
    """Req: T-08. The server stops reading a connection above 8 MiB of them."""
    handle = rig.sender()
    payload = message_bytes(b"x" * 1000)
    for _ in range(3):
        rig.transfer(handle, payload)
    cost = len(payload) + MESSAGE_OVERHEAD_BYTES
    assert rig.gateway.uncommitted_bytes == 3 * cost
    sends = [rig.take(Send) for _ in range(3)]
    assert sends[0].reply_to
    rig.effect(Accepted(sends[0].reply_to))
    assert rig.gateway.uncommitted_bytes == 2 * cost
    assert sends[1].reply_to
    rig.effect(Rejected(sends[1].reply_to, QuotaExceeded("full")))
    assert rig.gateway.uncommitted_bytes == cost
    rig.client.detach(rig.channel, handle)
    rig.pump()
    assert rig.gateway.uncommitted_bytes == 0


def test_transfers_before_the_attach_is_answered_are_kept(rig: Harness) -> None:
    """Python sends before it has credit. Source: wire contract 2.7."""
    handle = rig.attach(Role.SENDER, "orders")
    command = rig.take(OpenSender)
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
        rig.commands += rig.gateway.receive(
            (8 + len(body) + len(payload)).to_bytes(4, "big") + b"\x02\x00\x00\x00" + body + payload,
            rig.clock.now_ms,
        )
    assert rig.commands == []
    assert rig.gateway.uncommitted_bytes == sum(map(len, payloads)) + 2 * MESSAGE_OVERHEAD_BYTES
    rig.effect(SenderOpened(command.link, QUEUE_ID, SIZE_MAX, False))
    sends = [rig.take(Send) for _ in payloads]
    assert [send.sections.payload for send in sends] == payloads
    assert [send.reply_to.number for send in sends if send.reply_to] == [0, 1]
    assert rig.gateway.uncommitted_bytes == sum(map(len, payloads)) + 2 * MESSAGE_OVERHEAD_BYTES


def test_routing_is_read_where_the_entity_decides_by_it(rig: Harness) -> None:
    """Req: D-01, G-01."""
    payload = message_bytes(properties=["id", *[None] * 9, "s"])
    rig.transfer(rig.sender(), payload)
    assert rig.take(Send).message.routing is None
    handle = rig.sender(routed=True)
    rig.transfer(handle, payload)
    assert rig.take(Send).message.routing == Routing(b"\xa1\x02id", "s", None)
    delivery_id = rig.transfer(handle, message_bytes(properties=[None] * 10 + [7]))
    assert str(rig.rejection(delivery_id).condition) == "com.microsoft:argument-error"


def test_outcomes_for_a_link_that_is_gone_are_not_given_to_its_successor(rig: Harness) -> None:
    """Req: T-01. A handle and a delivery id may be taken anew while the old outcome is still under way."""
    handle = rig.sender()
    rig.transfer(handle, message_bytes(b"old"))
    old = rig.take(Send)
    rig.client.end(rig.channel)
    rig.pump()
    rig.take(CloseLink)
    rig.channel = rig.client.begin()
    assert rig.sender() == handle
    assert rig.transfer(handle, message_bytes(b"new")) == 0
    new = rig.take(Send)
    assert old.reply_to is not None
    assert new.reply_to is not None
    assert old.reply_to != new.reply_to
    rig.effect(Accepted(old.reply_to))
    assert not any(isinstance(event, DispositionReceived) for event in rig.events)
    rig.effect(Accepted(new.reply_to))
    assert rig.take_event(DispositionReceived).state == ACCEPTED


def test_the_broker_may_detach_an_open_link(rig: Harness) -> None:
    """Req: L-11. Source: wire contract 2.9."""
    rig.sender()
    command_link = LinkId(CONNECTION_ID, 1)
    rig.effect(DetachLink(command_link, EntityDeleted("'orders' was deleted.")))
    attached = rig.take_event(LinkAttached)
    assert attached.max_message_size == SIZE_MAX
    assert rig.commands == []
    [error] = [event.error for event in rig.events if isinstance(event, LinkDetached)]
    assert error is not None
    assert str(error.condition) == "amqp:resource-deleted"


def test_a_small_credit_is_topped_up_too() -> None:
    """Req: R-05."""
    rig = Harness(limits=GatewayLimits(link_credit=2))
    handle = rig.sender()
    for _ in range(7):
        rig.transfer(handle, message_bytes(), settled=True)
    assert sum(isinstance(command, Send) for command in rig.commands) == 7


def test_messages_that_are_too_large_use_up_credit_that_is_given_again() -> None:
    """Req: T-10. A sender of nothing else must not run dry."""
    rig = Harness(limits=GatewayLimits(link_credit=4))
    handle = rig.sender()
    for _ in range(10):
        assert rig.client.credit(rig.channel, handle) > 0
        assert rig.rejection(rig.transfer(handle, b"x" * (SIZE_MAX + 1)))


def test_each_message_of_a_batch_counts_as_one_under_way(rig: Harness) -> None:
    """Req: T-08. A batch of many tiny messages costs more memory than its bytes."""
    handle = rig.sender()
    batch = section(0x75, message_bytes(b"")) * 100
    rig.transfer(handle, batch, message_format=BATCH_FORMAT)
    assert rig.gateway.uncommitted_bytes == len(batch) + 100 * MESSAGE_OVERHEAD_BYTES
    command = rig.take(SendBatch)
    assert command.reply_to
    rig.effect(Accepted(command.reply_to))
    assert rig.gateway.uncommitted_bytes == 0
