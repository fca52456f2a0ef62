"""Message sessions on the wire: what an attach asks for, what it is told, and how a wait or a lock ends."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.encoding import encode
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.events import (
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
    SessionEnded,
)
from peeklock.amqp.messaging import scan
from peeklock.amqp.performatives import ACCEPTED, Rejected, Source
from peeklock.amqp.types import (
    Array,
    Char,
    Described,
    Encoded,
    Int,
    Long,
    Role,
    Symbol,
    UInt,
    ULong,
)
from peeklock.auth import generate
from peeklock.broker.commands import (
    Address,
    CloseLink,
    Complete,
    DropConnection,
    LookUp,
    OpenReceiver,
    OpenSender,
    Release,
    SessionWish,
    SetCredit,
    SubQueue,
)
from peeklock.broker.effects import (
    DetachLink,
    Drained,
    EntityFound,
    LinkRefused,
    ReceiverOpened,
    SenderOpened,
    SessionLockLapsed,
    Settled,
    SettlementFailed,
)
from peeklock.broker.errors import (
    EntityDeleted,
    InvalidOperation,
    SessionCannotBeLocked,
    SessionLockLost,
    SessionWaitTimedOut,
)
from peeklock.gateway.annotations import INSTANT_MS_MAX
from tests.gateway.playbook import (
    KEY,
    KEY_NAME,
    QUEUE_ID,
    SIZE_MAX,
    TOKEN,
    Desk,
    message_bytes,
    view_of_queue,
)

FILTER = Symbol("com.microsoft:session-filter")
TIMEOUT = Symbol("com.microsoft:timeout")
LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
GO = ULong(0x137000000C)
WAIT_MS = 65_000
DAY_MS = 86_400_000


@pytest.fixture
def desk() -> Desk:
    return Desk()


def ask(desk: Desk, wish: Any = None, **options: Any) -> int:
    """Attach a receiver of a session; None: of the next one."""
    filters = options.pop("filter", {FILTER: wish})
    return desk.attach(Role.RECEIVER, "orders", **{"rcv_settle_mode": 1, "filter": filters, **options})


def give(desk: Desk, command: OpenReceiver, session_id: str = "s", until_ms: int = 60_000) -> LinkAttached:
    """Let the broker give a session; the client's attach."""
    desk.effect(
        ReceiverOpened(
            command.link,
            QUEUE_ID,
            session_id=session_id,
            locked_until_ms=until_ms,
        )
    )
    return desk.take_event(LinkAttached)


def hold(desk: Desk, session_id: str = "s", *, credit: int = 0, **options: Any) -> tuple[int, OpenReceiver]:
    """Attach a receiver that is given its session."""
    handle = ask(desk, session_id, **options)
    command = desk.take(OpenReceiver)
    give(desk, command, session_id)
    if credit:
        desk.client.flow(desk.channel, handle, credit)
        desk.pump()
        desk.commands.clear()
    return handle, command


# What is asked for


@pytest.mark.parametrize(
    ("value", "session_id"),
    [
        ("s", "s"),
        ("", ""),
        ("é" * 128, "é" * 128),
        (None, None),
        (Described(GO, "s"), "s"),
        (Described(GO, ""), ""),
        (Described(GO, None), None),
        (Described(FILTER, "s"), "s"),
    ],
)
@pytest.mark.parametrize("key", [FILTER, str(FILTER)])
@pytest.mark.parametrize("address", ["orders", "orders/$DeadLetterQueue"])
def test_the_session_filter_names_a_session_or_asks_for_the_next_one(
    desk: Desk, value: Any, session_id: str | None, key: str, address: str
) -> None:
    """Req: G-01, G-04. Go describes the value. Whether there are sessions is the broker's to say. Source:
    wire contract 2.6."""
    desk.attach(Role.RECEIVER, address, rcv_settle_mode=1, filter={key: value, Symbol("other"): 7})
    sub_queue = SubQueue.DEAD_LETTER if "Dead" in address else SubQueue.MAIN
    command = desk.take(OpenReceiver)
    assert command.address == Address("orders", sub_queue)
    assert command.session == SessionWish(session_id, desk.clock.now_ms + WAIT_MS)


@pytest.mark.parametrize("filters", [None, {}, {Symbol("com.microsoft:session-filter-2"): "s"}])
def test_without_the_filter_no_session_is_asked_for(desk: Desk, filters: Any) -> None:
    """Source: wire contract 2.6."""
    ask(desk, filter=filters)
    assert desk.take(OpenReceiver).session is None


@pytest.mark.parametrize(
    ("value", "condition"),
    [
        (Int(7), "amqp:invalid-field"),
        (Symbol("s"), "amqp:invalid-field"),
        (Char("s"), "amqp:invalid-field"),
        (b"s", "amqp:invalid-field"),
        (["s"], "amqp:invalid-field"),
        (True, "amqp:invalid-field"),
        (Described(ULong(0x137000000D), "s"), "amqp:invalid-field"),
        (Described(Symbol("other"), "s"), "amqp:invalid-field"),
        (Described(GO, Int(7)), "amqp:invalid-field"),
        (Described(GO, Described(GO, "s")), "amqp:invalid-field"),
        ("s" * 129, "com.microsoft:argument-error"),
        (Described(GO, "s" * 129), "com.microsoft:argument-error"),
    ],
)
def test_a_filter_that_names_no_session_is_refused(desk: Desk, value: Any, condition: str) -> None:
    """Req: G-01, R-05. Source: wire contract 2.6, 10.1."""
    ask(desk, value)
    error = desk.refusal()
    assert str(error.condition) == condition
    assert "SystemTracker:localhost:orders," in error.description
    assert desk.commands == []


@pytest.mark.parametrize(
    ("timeout", "wait_ms"),
    [
        (UInt(10_000), 10_000),
        (ULong(10_000), 10_000),
        (Int(10_000), 10_000),
        (Long(10_000), 10_000),
        (UInt(0), 0),
        (Long(-5), 0),
        (UInt(DAY_MS), DAY_MS),
        (UInt(0xFFFFFFFF), DAY_MS),
        (ULong(2**64 - 1), DAY_MS),
        (None, WAIT_MS),
        ("10000", WAIT_MS),
        (True, WAIT_MS),
        (10.5, WAIT_MS),
    ],
)
def test_the_client_says_how_long_it_waits(desk: Desk, timeout: Any, wait_ms: int) -> None:
    """Req: G-04. 65 s when it does not say, a day at most. Source: wire contract 2.5, 2.6."""
    ask(desk, properties={TIMEOUT: timeout})
    assert desk.take(OpenReceiver).session == SessionWish(None, desk.clock.now_ms + wait_ms)


# What is told


def test_a_session_that_was_given_is_told_byte_for_byte(desk: Desk) -> None:
    """Req: G-02. Golden bytes: Python compares the address, JavaScript reads the ticks as 8 raw bytes.

    Of the filters only the one in force comes back. Source: wire contract 0.1, 0.4, 2.6, C42.
    """
    address = b"\xb1\x00\x00\x00\x06orders"  # not as we would write it
    outcomes = Array.of(Symbol, ["amqp:accepted:list"])
    fields = [Encoded(address), UInt(2), None, UInt(43), False, None, None]
    fields += [{Symbol("first"): 1, FILTER: None, Symbol("last"): "z"}, None, outcomes]
    source = b"\x00\x53\x28" + encode(fields)
    handle = desk.client.attach(
        desk.channel, "r", Role.RECEIVER, Encoded(source), Encoded(b"\x00\x53\x29\x45")
    )
    desk.pump()
    before = len(desk.sent)
    attached = give(desk, desk.take(OpenReceiver), "the-one", 1_700_000_000_000)
    fields[7] = {FILTER: "the-one"}
    assert b"\x00\x53\x28" + encode(fields) in desk.sent[before:]
    assert (attached.handle, attached.properties) == (handle, {LOCKED_UNTIL: 638_355_968_000_000_000})
    golden = encode(LOCKED_UNTIL) + b"\x81" + (638_355_968_000_000_000).to_bytes(8, "big")
    assert golden in desk.sent[before:]


@pytest.mark.parametrize("session_id", ["s", "", "é" * 128])
@pytest.mark.parametrize(
    ("asked", "described"),
    [
        (None, None),
        ("s", None),
        (Described(GO, None), GO),
        (Described(GO, "s"), GO),
        (Described(FILTER, "s"), FILTER),
    ],
)
def test_the_filter_is_answered_in_the_form_it_came(
    desk: Desk, asked: Any, described: Any, session_id: str
) -> None:
    """Req: G-02. Go reads a described value only, the others a plain string only. Source: wire contract
    2.6."""
    ask(desk, asked)
    attached = give(desk, desk.take(OpenReceiver), session_id)
    assert isinstance(attached.source, Source)
    assert attached.source.address == "orders"
    expected = session_id if described is None else Described(described, session_id)
    assert attached.source.filter == {FILTER: expected}
    assert attached.source.filter is not None
    [(key, value)] = attached.source.filter.items()
    assert type(key) is Symbol
    assert isinstance(value, Described) == (described is not None)
    assert attached.initial_delivery_count == 0


def test_a_receiver_without_a_session_is_told_nothing_of_one(desk: Desk) -> None:
    desk.receiver()
    attached = desk.take_event(LinkAttached)
    assert (attached.properties, attached.source.filter) == ({}, None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (SessionCannotBeLocked("held"), "com.microsoft:session-cannot-be-locked"),
        (SessionWaitTimedOut("none"), "com.microsoft:timeout"),
        (InvalidOperation("no sessions here"), "amqp:not-allowed"),
    ],
)
def test_a_session_that_is_not_given_is_refused(desk: Desk, error: Any, condition: str) -> None:
    """Req: G-04, T-03. Source: wire contract 2.6, 4.6."""
    ask(desk)
    desk.effect(LinkRefused(desk.take(OpenReceiver).link, error))
    assert str(desk.refusal().condition) == condition
    assert desk.commands == []


# Waiting


def test_nothing_is_answered_while_a_receiver_waits_and_other_links_go_on(desk: Desk) -> None:
    """Req: G-04. Not even to a flow that wants an echo. Source: wire contract 2.6."""
    handle = ask(desk)
    waiting = desk.take(OpenReceiver)
    before = len(desk.sent)
    desk.client.flow(desk.channel, handle, 5, echo=True)
    desk.pump()
    assert len(desk.sent) == before
    sender = desk.sender()
    delivery_id = desk.transfer(sender, message_bytes())
    assert delivery_id == 0
    _, other = hold(desk, "other", credit=1)
    desk.events.clear()
    desk.effect(desk.deliver(other.link, message_bytes()))
    assert desk.take_event(DeliveryReceived)
    desk.commands.clear()
    attached = give(desk, waiting, "late")
    assert attached.handle == handle
    assert desk.take(SetCredit).deliveries_max == 5  # what it allowed while it waited


def test_a_wait_ends_with_a_detach(desk: Desk) -> None:
    """Req: G-04, L-16. The handle is free at once, and never gets what the last owner waited for."""
    for closed in (True, False):
        handle = ask(desk, name="first")
        waiting = desk.take(OpenReceiver)
        desk.client.detach(desk.channel, handle, closed=closed)
        again = desk.client.attach(
            desk.channel, "second", Role.RECEIVER, Source("orders", filter={FILTER: "x"}), None
        )
        desk.pump()
        assert desk.take(CloseLink).link == waiting.link
        second = desk.take(OpenReceiver)
        assert second.link != waiting.link
        desk.events.clear()
        before = len(desk.sent)
        desk.effect(
            ReceiverOpened(waiting.link, QUEUE_ID, session_id="late", locked_until_ms=1),
            LinkRefused(waiting.link, SessionWaitTimedOut("late")),
            DetachLink(waiting.link, SessionLockLost("late")),
        )
        assert len(desk.sent) == before
        give(desk, second, "x")
        desk.client.detach(desk.channel, again)
        desk.pump()
        assert desk.take(CloseLink).link == second.link
        desk.events.clear()


def test_a_handle_that_is_used_again_in_one_read_belongs_to_its_new_owner(desk: Desk) -> None:
    """Req: G-04. As the official Python client may do."""
    handle = ask(desk, name="first")
    first = desk.take(OpenReceiver)
    source = Source("orders", filter={FILTER: "second"})
    desk.client.detach(desk.channel, handle)
    out = desk.client.data_to_send()
    other = Desk()
    other.client.attach(other.channel, "second", Role.RECEIVER, source, None)
    out += other.client.data_to_send()
    desk.commands += desk.gateway.receive(out, desk.clock.now_ms)
    assert [type(command) for command in desk.commands] == [CloseLink, OpenReceiver]
    assert desk.take(CloseLink).link == first.link
    second = desk.take(OpenReceiver)
    assert second.session is not None
    assert (second.session.session_id, second.link != first.link) == ("second", True)


def test_a_wait_ends_with_the_end_of_its_amqp_session(desk: Desk) -> None:
    """Req: G-04, L-13. Waits on other sessions go on."""
    ask(desk)
    waiting = desk.take(OpenReceiver)
    first, desk.channel = desk.channel, desk.client.begin()
    ask(desk)
    other = desk.take(OpenReceiver)
    desk.client.end(first)
    desk.pump()
    assert desk.commands == [CloseLink(waiting.link)]
    desk.events.clear()
    before = len(desk.sent)
    desk.effect(ReceiverOpened(waiting.link, QUEUE_ID, session_id="s", locked_until_ms=1))
    assert len(desk.sent) == before
    assert give(desk, other).channel == desk.channel


def test_a_wait_ends_with_its_connection(desk: Desk) -> None:
    """Req: G-04, L-13. Closed, cut off, idle for too long, or with a broken protocol."""
    for end, broken in (("close", False), ("cut", True), ("idle", True), ("garbage", True)):
        desk = Desk()
        ask(desk)
        waiting = desk.take(OpenReceiver)
        now = desk.clock.now_ms
        if end == "close":
            desk.client.close()
            desk.pump()
        elif end == "cut":
            desk.commands += desk.gateway.eof(now)
        elif end == "idle":
            desk.commands += desk.gateway.tick(now + 10_000_000)
        else:
            desk.commands += desk.gateway.receive(b"\x00\x00\x00\x08\x00\x00\x00\x00", now)
        [command] = desk.commands
        assert isinstance(command, DropConnection)
        assert command.broken is broken
        desk.gateway.data_to_send()
        desk.gateway.handle(
            [ReceiverOpened(waiting.link, QUEUE_ID, session_id="s", locked_until_ms=1)],
            lambda message: None,
            now,
        )
        assert desk.gateway.data_to_send() == b""
        assert desk.gateway.take_commands() == []


def test_a_wait_ends_with_its_token(desk: Desk) -> None:
    """Req: R-04, G-04."""
    desk = Desk(mechanism="ANONYMOUS")
    cbs, _ = desk.pair("$cbs")
    audience = "sb://localhost/orders"
    desk.put_token(cbs, audience, generate(audience, KEY_NAME, KEY, desk.clock.now_ms + 9_000))
    desk.effect(EntityFound(desk.take(LookUp).reply_to, view_of_queue()))
    assert desk.response().status == 202
    ask(desk)
    waiting = desk.take(OpenReceiver)
    desk.clock.now_ms += 10_000
    desk.commands += desk.gateway.tick(desk.clock.now_ms)
    desk.pump()
    assert str(desk.refusal().condition) == "amqp:unauthorized-access"
    assert desk.commands == [CloseLink(waiting.link)]
    desk.events.clear()
    desk.effect(ReceiverOpened(waiting.link, QUEUE_ID, session_id="s", locked_until_ms=1))
    assert desk.events == []


def test_a_broker_that_stops_gives_no_session_any_more(desk: Desk) -> None:
    ask(desk)
    waiting = desk.take(OpenReceiver)
    desk.gateway.shutdown(desk.clock.now_ms)
    desk.gateway.data_to_send()
    desk.gateway.handle(
        [ReceiverOpened(waiting.link, QUEUE_ID, session_id="s", locked_until_ms=1)],
        lambda message: None,
        desk.clock.now_ms,
    )
    assert desk.gateway.data_to_send() == b""


# Deliveries and settlement


def test_a_delivery_of_a_session_has_its_token_and_a_lock_without_end(desk: Desk) -> None:
    """Req: G-02, C28. Source: wire contract 3.2, 3.4."""
    _, command = hold(desk, credit=2)
    desk.effect(desk.deliver(command.link, message_bytes(), locked=False))
    delivery = desk.take_event(DeliveryReceived)
    sections = scan(delivery.payload)
    assert delivery.delivery_tag == TOKEN.bytes_le
    assert not delivery.settled
    assert sections.decode_delivery_annotations() == {"x-opt-lock-token": TOKEN}
    assert sections.decode_message_annotations()["x-opt-locked-until"] == INSTANT_MS_MAX


def test_received_and_deleted_from_a_session_the_token_is_a_tag_only(desk: Desk) -> None:
    """Req: L-01, G-01."""
    _, command = hold(desk, credit=2, snd_settle_mode=1, rcv_settle_mode=0)
    desk.effect(desk.deliver(command.link, message_bytes(), locked=False))
    delivery = desk.take_event(DeliveryReceived)
    assert (delivery.delivery_tag, delivery.settled) == (TOKEN.bytes_le, True)
    assert scan(delivery.payload).delivery_annotations is None


def test_a_delivery_of_a_partitioned_entity_shows_its_partition(desk: Desk) -> None:
    """Req: S-02."""
    _, command = desk.receiver(credit=1, opened={"partitioned": True})
    desk.effect(desk.deliver(command.link, message_bytes(), number=3 << 48 | 7))
    annotations = scan(desk.take_event(DeliveryReceived).payload).decode_message_annotations()
    assert (annotations["x-opt-partition-id"], annotations["x-opt-sequence-number"]) == (3, 3 << 48 | 7)


def test_a_lapsed_session_is_detached_and_later_settlements_do_no_harm(desk: Desk) -> None:
    """Req: G-02, L-11. Source: wire contract 2.6, 2.9, 4.3, 10.4."""
    _, command = hold(desk, credit=5)
    for number in (1, 2, 3, 4):
        desk.effect(desk.deliver(command.link, message_bytes(), number=number, locked=False))
    desk.settle(0, 0, ACCEPTED)
    complete = desk.take(Complete)
    desk.settle(1, 1, ACCEPTED)
    lost = desk.take(Complete)
    desk.effect(Settled(complete.reply_to))  # type: ignore[arg-type]  # it has one
    assert desk.take_event(DispositionReceived).state == ACCEPTED
    desk.events.clear()
    desk.effect(
        SettlementFailed(lost.reply_to, SessionLockLost("lapsed")),  # type: ignore[arg-type]  # it has one
        DetachLink(command.link, SessionLockLost("lapsed")),
    )
    assert str(desk.rejection(1).condition) == "com.microsoft:session-lock-lost"
    detached = desk.take_event(LinkDetached)
    assert detached.closed
    assert detached.error is not None
    assert str(detached.error.condition) == "com.microsoft:session-lock-lost"
    assert desk.commands == []
    desk.settle(2, 2, ACCEPTED)
    assert str(desk.rejection(2).condition) == "com.microsoft:session-lock-lost"
    desk.settle(3, 3, ACCEPTED, settled=True)
    desk.settle(0, 3, ACCEPTED)
    ranged = desk.take_event(DispositionReceived)
    assert (ranged.first, ranged.last) == (0, 3)
    assert isinstance(ranged.state, Rejected)
    assert ranged.state.error is not None
    assert str(ranged.state.error.condition) == "com.microsoft:session-lock-lost"
    assert (desk.events, desk.commands) == ([], [])


def test_a_settlement_that_crossed_the_detach_finds_nobody(desk: Desk) -> None:
    """Req: L-11. The broker's answer to it comes when the link is gone."""
    _, command = hold(desk, credit=1)
    desk.effect(desk.deliver(command.link, message_bytes(), locked=False))
    desk.settle(0, 0, ACCEPTED)
    complete = desk.take(Complete)
    before = len(desk.sent)
    desk.gateway.handle(
        [DetachLink(command.link, SessionLockLost("lapsed"))], lambda message: None, desk.clock.now_ms
    )
    desk.effect(SettlementFailed(complete.reply_to, SessionLockLost("lapsed")))  # type: ignore[arg-type]  # it has one
    assert len(desk.sent) > before
    assert not any(isinstance(event, DispositionReceived) for event in desk.events)


def test_what_waited_for_its_body_is_given_up_with_the_session(desk: Desk) -> None:
    """Req: G-02, L-16."""
    _, command = hold(desk, credit=3)
    effect = desk.deliver(command.link, message_bytes(), locked=False)
    desk.payloads.clear()
    desk.effect(effect)
    assert desk.gateway.bodies_wanted() == {1}
    desk.effect(DetachLink(command.link, SessionLockLost("lapsed")))
    assert desk.gateway.bodies_wanted() == set()
    assert desk.take(Release).lock_token == TOKEN.bytes_le  # the broker knows no such lock: no harm
    desk.payloads[1] = message_bytes()
    desk.gateway.bodies_arrived(desk.payloads.get, desk.clock.now_ms)  # type: ignore[arg-type]  # not called
    desk.pump()
    assert not any(isinstance(event, DeliveryReceived) for event in desk.events)


def test_a_lapse_takes_back_what_waits_to_be_sent_and_leaves_the_link(desk: Desk) -> None:
    """For its body, or for credit that the client has taken back. What was asked before is answered.

    Req: G-02, L-16. Source: wire contract C7.
    """
    handle, command = hold(desk, credit=3)
    desk.effect(desk.deliver(command.link, message_bytes(), number=1, locked=False))
    desk.settle(0, 0, ACCEPTED)
    complete = desk.take(Complete)
    effect = desk.deliver(command.link, message_bytes(), number=2, locked=False)
    payload = desk.payloads.pop(effect.message.body_row)
    desk.effect(effect, Settled(complete.reply_to))  # type: ignore[arg-type]  # it has one
    desk.client.flow(desk.channel, handle, 0)
    desk.pump()
    desk.take_event(DeliveryReceived)
    assert desk.gateway.bodies_wanted() == {2}
    desk.commands.clear()
    desk.effect(SessionLockLapsed(command.link))
    assert desk.take_event(DispositionReceived).state == ACCEPTED
    assert desk.gateway.bodies_wanted() == set()
    assert desk.commands == []
    desk.payloads[2] = payload
    desk.client.flow(desk.channel, handle, 5, drain=True)
    desk.pump()
    assert desk.take(SetCredit).drain
    desk.effect(Drained(command.link))
    assert desk.client.credit(desk.channel, handle) == 0
    assert not any(isinstance(event, DeliveryReceived | LinkDetached) for event in desk.events)
    desk.effect(DetachLink(command.link, SessionLockLost("lapsed")))
    assert desk.take_event(LinkDetached).closed
    assert not [asked for asked in desk.commands if isinstance(asked, Release)]


def test_a_lapse_keeps_what_was_deleted_as_it_was_delivered(desk: Desk) -> None:
    """Nobody else can send it: it goes out with the next credit. Req: L-01, G-02."""
    _, command = hold(desk, credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    effect = desk.deliver(command.link, message_bytes(b"gone"), locked=False)
    payload = desk.payloads.pop(effect.message.body_row)
    desk.effect(effect, SessionLockLapsed(command.link))
    assert desk.gateway.bodies_wanted() == {1}
    desk.payloads[1] = payload
    desk.gateway.bodies_arrived(lambda message: payload, desk.clock.now_ms)
    desk.pump()
    assert desk.take_event(DeliveryReceived).payload.endswith(b"gone")


@pytest.mark.parametrize(
    ("session_id", "condition"),
    [(None, "com.microsoft:message-lock-lost"), ("", "com.microsoft:session-lock-lost")],
)
def test_which_lock_a_delivery_settled_twice_has_lost(
    desk: Desk, session_id: str | None, condition: str
) -> None:
    """Req: L-11, G-02. A disposition names no link: the latest receiver of its AMQP session decides.

    Source: wire contract 4.3, 10.4.
    """
    hold(desk, "before") if session_id is None else desk.receiver()
    _, command = desk.receiver(credit=1, opened={"session_id": session_id}, filter={FILTER: None})
    desk.effect(desk.deliver(command.link, message_bytes(), locked=session_id is None))
    desk.settle(0, 0, ACCEPTED)
    assert desk.take(Complete)
    desk.settle(0, 0, ACCEPTED)
    assert str(desk.rejection(0).condition) == condition


def test_many_links_of_one_amqp_session_keep_their_own_deliveries(desk: Desk) -> None:
    """Req: L-16. The end of one leaves those of the others to be settled."""
    links = [hold(desk, f"s{number}", credit=9) for number in range(3)]
    for number in range(9):
        desk.effect(desk.deliver(links[number % 3][1].link, message_bytes(), number=number + 1, locked=False))
    desk.events.clear()
    desk.client.detach(desk.channel, links[1][0])
    desk.pump()
    assert desk.commands == [CloseLink(links[1][1].link)]
    desk.commands.clear()
    desk.settle(0, 8, ACCEPTED)
    assert [command.lock_token[-1] for command in desk.commands if isinstance(command, Complete)] == [
        (TOKEN.int + number) & 0xFF for number in (0, 2, 3, 5, 6, 8)
    ]
    refused = [event for event in desk.events if isinstance(event, DispositionReceived)]
    assert [event.first for event in refused] == [1, 4, 7]


# Ways to end


def test_what_each_end_of_a_link_leaves_behind(desk: Desk) -> None:
    """Req: L-13. A detach of either kind, an end, and a protocol error on one link close that link properly:
    for the last it is we who detach. A close ends the connection properly and everything else breaks it, for
    the links that are still there."""
    _, first = hold(desk, "a", credit=1)
    handle, second = hold(desk, "b", credit=1)
    sender = desk.attach(Role.SENDER, "orders")
    opened = desk.take(OpenSender)
    desk.effect(SenderOpened(opened.link, QUEUE_ID, SIZE_MAX, True))
    desk.client.detach(desk.channel, handle, closed=False)
    desk.pump()
    assert desk.commands == [CloseLink(second.link)]
    desk.commands.clear()
    # A transfer without a delivery-tag breaks the protocol on its link alone.
    body = b"\x00\x53\x14\xc0\x05\x03\x52" + bytes([sender]) + b"\x43\x40"
    frame = (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + desk.channel.to_bytes(2, "big") + body
    desk.commands += desk.gateway.receive(frame, desk.clock.now_ms)
    desk.pump()
    assert desk.commands == [CloseLink(opened.link)]
    detached = [event for event in desk.events if isinstance(event, LinkDetached)]
    assert detached[-1].error is not None
    desk.commands.clear()
    desk.client.end(desk.channel, AmqpError(Symbol("amqp:internal-error"), "bye"))
    desk.pump()
    assert desk.commands == [CloseLink(first.link)]
    assert desk.take_event(SessionEnded)
    desk.commands.clear()
    desk.commands += desk.gateway.eof(desk.clock.now_ms)
    assert desk.commands == [DropConnection(first.link.connection_id, broken=True)]


def test_a_deleted_entity_ends_a_session_receiver(desk: Desk) -> None:
    """Req: A-07."""
    _, command = hold(desk)
    desk.effect(DetachLink(command.link, EntityDeleted("gone")))
    detached = desk.take_event(LinkDetached)
    assert detached.error is not None
    assert str(detached.error.condition) == "amqp:resource-deleted"
