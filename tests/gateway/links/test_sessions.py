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
from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    Complete,
    DropConnection,
    LookUp,
    OpenReceiver,
    OpenSender,
    Release,
    SessionRequest,
    SetCredit,
    SubQueue,
)
from peeklock.broker.vocabulary.effects import (
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
from peeklock.broker.vocabulary.errors import (
    EntityDeleted,
    InvalidOperation,
    SessionCannotBeLocked,
    SessionLockLost,
    SessionWaitTimedOut,
)
from peeklock.gateway.rewriting import INSTANT_MS_MAX
from tests.gateway.harness import (
    KEY,
    KEY_NAME,
    QUEUE_ID,
    SIZE_MAX,
    TOKEN,
    Harness,
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
def rig() -> Harness:
    return Harness()


def ask(rig: Harness, wish: Any = None, **options: Any) -> int:
    """Attach a receiver of a session; None: of the next one."""
    filters = options.pop("filter", {FILTER: wish})
    return rig.attach(Role.RECEIVER, "orders", **{"rcv_settle_mode": 1, "filter": filters, **options})


def give(rig: Harness, command: OpenReceiver, session_id: str = "s", until_ms: int = 60_000) -> LinkAttached:
    """Let the broker give a session; the client's attach."""
    rig.effect(
        ReceiverOpened(
            command.link,
            QUEUE_ID,
            session_id=session_id,
            locked_until_ms=until_ms,
        )
    )
    return rig.take_event(LinkAttached)


def hold(rig: Harness, session_id: str = "s", *, credit: int = 0, **options: Any) -> tuple[int, OpenReceiver]:
    """Attach a receiver that is given its session."""
    handle = ask(rig, session_id, **options)
    command = rig.take(OpenReceiver)
    give(rig, command, session_id)
    if credit:
        rig.client.flow(rig.channel, handle, credit)
        rig.pump()
        rig.commands.clear()
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
    rig: Harness, value: Any, session_id: str | None, key: str, address: str
) -> None:
    """Req: G-01, G-04. Go describes the value. Whether there are sessions is the broker's to say. Source:
    wire contract 2.6."""
    rig.attach(Role.RECEIVER, address, rcv_settle_mode=1, filter={key: value, Symbol("other"): 7})
    sub_queue = SubQueue.DEAD_LETTER if "Dead" in address else SubQueue.MAIN
    command = rig.take(OpenReceiver)
    assert command.address == Address("orders", sub_queue)
    assert command.session == SessionRequest(session_id, rig.clock.now_ms + WAIT_MS)


@pytest.mark.parametrize("filters", [None, {}, {Symbol("com.microsoft:session-filter-2"): "s"}])
def test_without_the_filter_no_session_is_asked_for(rig: Harness, filters: Any) -> None:
    """Source: wire contract 2.6."""
    ask(rig, filter=filters)
    assert rig.take(OpenReceiver).session is None


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
def test_a_filter_that_names_no_session_is_refused(rig: Harness, value: Any, condition: str) -> None:
    """Req: G-01, R-05. Source: wire contract 2.6, 10.1."""
    ask(rig, value)
    error = rig.refusal()
    assert str(error.condition) == condition
    assert "SystemTracker:localhost:orders," in error.description
    assert rig.commands == []


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
def test_the_client_says_how_long_it_waits(rig: Harness, timeout: Any, wait_ms: int) -> None:
    """Req: G-04. 65 s when it does not say, a day at most. Source: wire contract 2.5, 2.6."""
    ask(rig, properties={TIMEOUT: timeout})
    assert rig.take(OpenReceiver).session == SessionRequest(None, rig.clock.now_ms + wait_ms)


# What is told


def test_a_session_that_was_given_is_told_byte_for_byte(rig: Harness) -> None:
    """Req: G-02. Golden bytes: Python compares the address, JavaScript reads the ticks as 8 raw bytes.

    Of the filters only the one in force comes back. Source: wire contract 0.1, 0.4, 2.6, C42.
    """
    address = b"\xb1\x00\x00\x00\x06orders"  # not as we would write it
    outcomes = Array.of(Symbol, ["amqp:accepted:list"])
    fields = [Encoded(address), UInt(2), None, UInt(43), False, None, None]
    fields += [{Symbol("first"): 1, FILTER: None, Symbol("last"): "z"}, None, outcomes]
    source = b"\x00\x53\x28" + encode(fields)
    handle = rig.client.attach(rig.channel, "r", Role.RECEIVER, Encoded(source), Encoded(b"\x00\x53\x29\x45"))
    rig.pump()
    before = len(rig.sent)
    attached = give(rig, rig.take(OpenReceiver), "the-one", 1_700_000_000_000)
    fields[7] = {FILTER: "the-one"}
    assert b"\x00\x53\x28" + encode(fields) in rig.sent[before:]
    assert (attached.handle, attached.properties) == (handle, {LOCKED_UNTIL: 638_355_968_000_000_000})
    golden = encode(LOCKED_UNTIL) + b"\x81" + (638_355_968_000_000_000).to_bytes(8, "big")
    assert golden in rig.sent[before:]


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
    rig: Harness, asked: Any, described: Any, session_id: str
) -> None:
    """Req: G-02. Go reads a described value only, the others a plain string only. Source: wire contract
    2.6."""
    ask(rig, asked)
    attached = give(rig, rig.take(OpenReceiver), session_id)
    assert isinstance(attached.source, Source)
    assert attached.source.address == "orders"
    expected = session_id if described is None else Described(described, session_id)
    assert attached.source.filter == {FILTER: expected}
    assert attached.source.filter is not None
    [(key, value)] = attached.source.filter.items()
    assert type(key) is Symbol
    assert isinstance(value, Described) == (described is not None)
    assert attached.initial_delivery_count == 0


def test_a_receiver_without_a_session_is_told_nothing_of_one(rig: Harness) -> None:
    rig.receiver()
    attached = rig.take_event(LinkAttached)
    assert (attached.properties, attached.source.filter) == ({}, None)  # type: ignore[union-attr]  # it has a source


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (SessionCannotBeLocked("held"), "com.microsoft:session-cannot-be-locked"),
        (SessionWaitTimedOut("none"), "com.microsoft:timeout"),
        (InvalidOperation("no sessions here"), "amqp:not-allowed"),
    ],
)
def test_a_session_that_is_not_given_is_refused(rig: Harness, error: Any, condition: str) -> None:
    """Req: G-04, T-03. Source: wire contract 2.6, 4.6."""
    ask(rig)
    rig.effect(LinkRefused(rig.take(OpenReceiver).link, error))
    assert str(rig.refusal().condition) == condition
    assert rig.commands == []


# Waiting


def test_nothing_is_answered_while_a_receiver_waits_and_other_links_go_on(rig: Harness) -> None:
    """Req: G-04. Not even to a flow that wants an echo. Source: wire contract 2.6."""
    handle = ask(rig)
    waiting = rig.take(OpenReceiver)
    before = len(rig.sent)
    rig.client.flow(rig.channel, handle, 5, echo=True)
    rig.pump()
    assert len(rig.sent) == before
    sender = rig.sender()
    delivery_id = rig.transfer(sender, message_bytes())
    assert delivery_id == 0
    _, other = hold(rig, "other", credit=1)
    rig.events.clear()
    rig.effect(rig.deliver(other.link, message_bytes()))
    rig.take_event(DeliveryReceived)
    rig.commands.clear()
    attached = give(rig, waiting, "late")
    assert attached.handle == handle
    assert rig.take(SetCredit).deliveries_max == 5  # what it allowed while it waited


def test_a_wait_ends_with_a_detach(rig: Harness) -> None:
    """Req: G-04, L-16. The handle is free at once, and never gets what the last owner waited for."""
    for closed in (True, False):
        handle = ask(rig, name="first")
        waiting = rig.take(OpenReceiver)
        rig.client.detach(rig.channel, handle, closed=closed)
        again = rig.client.attach(
            rig.channel, "second", Role.RECEIVER, Source("orders", filter={FILTER: "x"}), None
        )
        rig.pump()
        assert rig.take(CloseLink).link == waiting.link
        second = rig.take(OpenReceiver)
        assert second.link != waiting.link
        rig.events.clear()
        before = len(rig.sent)
        rig.effect(
            ReceiverOpened(waiting.link, QUEUE_ID, session_id="late", locked_until_ms=1),
            LinkRefused(waiting.link, SessionWaitTimedOut("late")),
            DetachLink(waiting.link, SessionLockLost("late")),
        )
        assert len(rig.sent) == before
        give(rig, second, "x")
        rig.client.detach(rig.channel, again)
        rig.pump()
        assert rig.take(CloseLink).link == second.link
        rig.events.clear()


def test_a_handle_that_is_used_again_in_one_read_belongs_to_its_new_owner(rig: Harness) -> None:
    """Req: G-04. As the official Python client may do."""
    handle = ask(rig, name="first")
    first = rig.take(OpenReceiver)
    source = Source("orders", filter={FILTER: "second"})
    rig.client.detach(rig.channel, handle)
    out = rig.client.data_to_send()
    other = Harness()
    other.client.attach(other.channel, "second", Role.RECEIVER, source, None)
    out += other.client.data_to_send()
    rig.commands += rig.gateway.receive(out, rig.clock.now_ms)
    assert [type(command) for command in rig.commands] == [CloseLink, OpenReceiver]
    assert rig.take(CloseLink).link == first.link
    second = rig.take(OpenReceiver)
    assert second.session is not None
    assert (second.session.session_id, second.link != first.link) == ("second", True)


def test_a_wait_ends_with_the_end_of_its_amqp_session(rig: Harness) -> None:
    """Req: G-04, L-13. Waits on other sessions go on."""
    ask(rig)
    waiting = rig.take(OpenReceiver)
    first, rig.channel = rig.channel, rig.client.begin()
    ask(rig)
    other = rig.take(OpenReceiver)
    rig.client.end(first)
    rig.pump()
    assert rig.commands == [CloseLink(waiting.link)]
    rig.events.clear()
    before = len(rig.sent)
    rig.effect(ReceiverOpened(waiting.link, QUEUE_ID, session_id="s", locked_until_ms=1))
    assert len(rig.sent) == before
    assert give(rig, other).channel == rig.channel


def test_a_wait_ends_with_its_connection(rig: Harness) -> None:
    """Req: G-04, L-13. Closed, cut off, idle for too long, or with a broken protocol."""
    for end, broken in (("close", False), ("cut", True), ("idle", True), ("garbage", True)):
        rig = Harness()
        ask(rig)
        waiting = rig.take(OpenReceiver)
        now = rig.clock.now_ms
        if end == "close":
            rig.client.close()
            rig.pump()
        elif end == "cut":
            rig.commands += rig.gateway.eof(now)
        elif end == "idle":
            rig.commands += rig.gateway.tick(now + 10_000_000)
        else:
            rig.commands += rig.gateway.receive(b"\x00\x00\x00\x08\x00\x00\x00\x00", now)
        [command] = rig.commands
        assert isinstance(command, DropConnection)
        assert command.broken is broken
        rig.gateway.data_to_send()
        rig.gateway.handle(
            [ReceiverOpened(waiting.link, QUEUE_ID, session_id="s", locked_until_ms=1)],
            lambda message: None,
            now,
        )
        assert rig.gateway.data_to_send() == b""
        assert rig.gateway.take_commands() == []


def test_a_wait_ends_with_its_token(rig: Harness) -> None:
    """Req: R-04, G-04."""
    rig = Harness(mechanism="ANONYMOUS")
    cbs, _ = rig.pair("$cbs")
    audience = "sb://localhost/orders"
    rig.put_token(cbs, audience, generate(audience, KEY_NAME, KEY, rig.clock.now_ms + 9_000))
    rig.effect(EntityFound(rig.take(LookUp).reply_to, view_of_queue()))
    assert rig.response().status == 202
    ask(rig)
    waiting = rig.take(OpenReceiver)
    rig.clock.now_ms += 10_000
    rig.commands += rig.gateway.tick(rig.clock.now_ms)
    rig.pump()
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"
    assert rig.commands == [CloseLink(waiting.link)]
    rig.events.clear()
    rig.effect(ReceiverOpened(waiting.link, QUEUE_ID, session_id="s", locked_until_ms=1))
    assert rig.events == []


def test_a_broker_that_stops_gives_no_session_any_more(rig: Harness) -> None:
    ask(rig)
    waiting = rig.take(OpenReceiver)
    rig.gateway.shutdown(rig.clock.now_ms)
    rig.gateway.data_to_send()
    rig.gateway.handle(
        [ReceiverOpened(waiting.link, QUEUE_ID, session_id="s", locked_until_ms=1)],
        lambda message: None,
        rig.clock.now_ms,
    )
    assert rig.gateway.data_to_send() == b""


# Deliveries and settlement


def test_a_delivery_of_a_session_has_its_token_and_a_lock_without_end(rig: Harness) -> None:
    """Req: G-02, C28. Source: wire contract 3.2, 3.4."""
    _, command = hold(rig, credit=2)
    rig.effect(rig.deliver(command.link, message_bytes(), locked=False))
    delivery = rig.take_event(DeliveryReceived)
    sections = scan(delivery.payload)
    assert delivery.delivery_tag == TOKEN.bytes_le
    assert not delivery.settled
    assert sections.decode_delivery_annotations() == {"x-opt-lock-token": TOKEN}
    assert sections.decode_message_annotations()["x-opt-locked-until"] == INSTANT_MS_MAX


def test_received_and_deleted_from_a_session_the_token_is_a_tag_only(rig: Harness) -> None:
    """Req: L-01, G-01."""
    _, command = hold(rig, credit=2, snd_settle_mode=1, rcv_settle_mode=0)
    rig.effect(rig.deliver(command.link, message_bytes(), locked=False))
    delivery = rig.take_event(DeliveryReceived)
    assert (delivery.delivery_tag, delivery.settled) == (TOKEN.bytes_le, True)
    assert scan(delivery.payload).delivery_annotations is None


def test_a_delivery_of_a_partitioned_entity_shows_its_partition(rig: Harness) -> None:
    """Req: S-02."""
    _, command = rig.receiver(credit=1, opened={"partitioned": True})
    rig.effect(rig.deliver(command.link, message_bytes(), number=3 << 48 | 7))
    annotations = scan(rig.take_event(DeliveryReceived).payload).decode_message_annotations()
    assert (annotations["x-opt-partition-id"], annotations["x-opt-sequence-number"]) == (3, 3 << 48 | 7)


def test_a_lapsed_session_is_detached_and_later_settlements_do_no_harm(rig: Harness) -> None:
    """Req: G-02, L-11. Source: wire contract 2.6, 2.9, 4.3, 10.4."""
    _, command = hold(rig, credit=5)
    for number in (1, 2, 3, 4):
        rig.effect(rig.deliver(command.link, message_bytes(), number=number, locked=False))
    rig.settle(0, 0, ACCEPTED)
    complete = rig.take(Complete)
    rig.settle(1, 1, ACCEPTED)
    lost = rig.take(Complete)
    rig.effect(Settled(complete.reply_to))  # type: ignore[arg-type]  # it has one
    assert rig.take_event(DispositionReceived).state == ACCEPTED
    rig.events.clear()
    rig.effect(
        SettlementFailed(lost.reply_to, SessionLockLost("lapsed")),  # type: ignore[arg-type]  # it has one
        DetachLink(command.link, SessionLockLost("lapsed")),
    )
    assert str(rig.rejection(1).condition) == "com.microsoft:session-lock-lost"
    detached = rig.take_event(LinkDetached)
    assert detached.closed
    assert detached.error is not None
    assert str(detached.error.condition) == "com.microsoft:session-lock-lost"
    assert rig.commands == []
    rig.settle(2, 2, ACCEPTED)
    assert str(rig.rejection(2).condition) == "com.microsoft:session-lock-lost"
    rig.settle(3, 3, ACCEPTED, settled=True)
    rig.settle(0, 3, ACCEPTED)
    ranged = rig.take_event(DispositionReceived)
    assert (ranged.first, ranged.last) == (0, 3)
    assert isinstance(ranged.state, Rejected)
    assert ranged.state.error is not None
    assert str(ranged.state.error.condition) == "com.microsoft:session-lock-lost"
    assert (rig.events, rig.commands) == ([], [])


def test_a_settlement_that_crossed_the_detach_finds_nobody(rig: Harness) -> None:
    """Req: L-11. The broker's answer to it comes when the link is gone."""
    _, command = hold(rig, credit=1)
    rig.effect(rig.deliver(command.link, message_bytes(), locked=False))
    rig.settle(0, 0, ACCEPTED)
    complete = rig.take(Complete)
    before = len(rig.sent)
    rig.gateway.handle(
        [DetachLink(command.link, SessionLockLost("lapsed"))], lambda message: None, rig.clock.now_ms
    )
    rig.effect(SettlementFailed(complete.reply_to, SessionLockLost("lapsed")))  # type: ignore[arg-type]  # it has one
    assert len(rig.sent) > before
    assert not any(isinstance(event, DispositionReceived) for event in rig.events)


def test_what_waited_for_its_body_is_given_up_with_the_session(rig: Harness) -> None:
    """Req: G-02, L-16."""
    _, command = hold(rig, credit=3)
    effect = rig.deliver(command.link, message_bytes(), locked=False)
    rig.payloads.clear()
    rig.effect(effect)
    assert rig.gateway.bodies_wanted() == {1}
    rig.effect(DetachLink(command.link, SessionLockLost("lapsed")))
    assert rig.gateway.bodies_wanted() == set()
    assert rig.take(Release).lock_token == TOKEN.bytes_le  # the broker knows no such lock: no harm
    rig.payloads[1] = message_bytes()
    rig.gateway.bodies_arrived(rig.payloads.get, rig.clock.now_ms)  # type: ignore[arg-type]  # not called
    rig.pump()
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)


def test_a_lapse_takes_back_what_waits_to_be_sent_and_leaves_the_link(rig: Harness) -> None:
    """For its body, or for credit that the client has taken back. What was asked before is answered.

    Req: G-02, L-16. Source: wire contract C7.
    """
    handle, command = hold(rig, credit=3)
    rig.effect(rig.deliver(command.link, message_bytes(), number=1, locked=False))
    rig.settle(0, 0, ACCEPTED)
    complete = rig.take(Complete)
    effect = rig.deliver(command.link, message_bytes(), number=2, locked=False)
    payload = rig.payloads.pop(effect.message.body_row)
    rig.effect(effect, Settled(complete.reply_to))  # type: ignore[arg-type]  # it has one
    rig.client.flow(rig.channel, handle, 0)
    rig.pump()
    rig.take_event(DeliveryReceived)
    assert rig.gateway.bodies_wanted() == {2}
    rig.commands.clear()
    rig.effect(SessionLockLapsed(command.link))
    assert rig.take_event(DispositionReceived).state == ACCEPTED
    assert rig.gateway.bodies_wanted() == set()
    assert rig.commands == []
    rig.payloads[2] = payload
    rig.client.flow(rig.channel, handle, 5, drain=True)
    rig.pump()
    assert rig.take(SetCredit).drain
    rig.effect(Drained(command.link))
    assert rig.client.credit(rig.channel, handle) == 0
    assert not any(isinstance(event, DeliveryReceived | LinkDetached) for event in rig.events)
    rig.effect(DetachLink(command.link, SessionLockLost("lapsed")))
    assert rig.take_event(LinkDetached).closed
    assert not [asked for asked in rig.commands if isinstance(asked, Release)]


def test_a_lapse_keeps_what_was_deleted_as_it_was_delivered(rig: Harness) -> None:
    """Nobody else can send it: it goes out with the next credit. Req: L-01, G-02."""
    _, command = hold(rig, credit=1, snd_settle_mode=1, rcv_settle_mode=0)
    effect = rig.deliver(command.link, message_bytes(b"gone"), locked=False)
    payload = rig.payloads.pop(effect.message.body_row)
    rig.effect(effect, SessionLockLapsed(command.link))
    assert rig.gateway.bodies_wanted() == {1}
    rig.payloads[1] = payload
    rig.gateway.bodies_arrived(lambda message: payload, rig.clock.now_ms)
    rig.pump()
    assert rig.take_event(DeliveryReceived).payload.endswith(b"gone")


@pytest.mark.parametrize(
    ("session_id", "condition"),
    [(None, "com.microsoft:message-lock-lost"), ("", "com.microsoft:session-lock-lost")],
)
def test_which_lock_a_delivery_settled_twice_has_lost(
    rig: Harness, session_id: str | None, condition: str
) -> None:
    """Req: L-11, G-02. A disposition names no link: the latest receiver of its AMQP session decides.

    Source: wire contract 4.3, 10.4.
    """
    hold(rig, "before") if session_id is None else rig.receiver()
    _, command = rig.receiver(credit=1, opened={"session_id": session_id}, filter={FILTER: None})
    rig.effect(rig.deliver(command.link, message_bytes(), locked=session_id is None))
    rig.settle(0, 0, ACCEPTED)
    rig.take(Complete)
    rig.settle(0, 0, ACCEPTED)
    assert str(rig.rejection(0).condition) == condition


def test_many_links_of_one_amqp_session_keep_their_own_deliveries(rig: Harness) -> None:
    """Req: L-16. The end of one leaves those of the others to be settled."""
    links = [hold(rig, f"s{number}", credit=9) for number in range(3)]
    for number in range(9):
        rig.effect(rig.deliver(links[number % 3][1].link, message_bytes(), number=number + 1, locked=False))
    rig.events.clear()
    rig.client.detach(rig.channel, links[1][0])
    rig.pump()
    assert rig.commands == [CloseLink(links[1][1].link)]
    rig.commands.clear()
    rig.settle(0, 8, ACCEPTED)
    assert [command.lock_token[-1] for command in rig.commands if isinstance(command, Complete)] == [
        (TOKEN.int + number) & 0xFF for number in (0, 2, 3, 5, 6, 8)
    ]
    refused = [event for event in rig.events if isinstance(event, DispositionReceived)]
    assert [event.first for event in refused] == [1, 4, 7]


# Ways to end


def test_what_each_end_of_a_link_leaves_behind(rig: Harness) -> None:
    """Req: L-13. A detach of either kind, an end, and a protocol error on one link close that link properly:
    for the last it is we who detach. A close ends the connection properly and everything else breaks it, for
    the links that are still there."""
    _, first = hold(rig, "a", credit=1)
    handle, second = hold(rig, "b", credit=1)
    sender = rig.attach(Role.SENDER, "orders")
    opened = rig.take(OpenSender)
    rig.effect(SenderOpened(opened.link, QUEUE_ID, SIZE_MAX, True))
    rig.client.detach(rig.channel, handle, closed=False)
    rig.pump()
    assert rig.commands == [CloseLink(second.link)]
    rig.commands.clear()
    # A transfer without a delivery-tag breaks the protocol on its link alone.
    body = b"\x00\x53\x14\xc0\x05\x03\x52" + bytes([sender]) + b"\x43\x40"
    frame = (8 + len(body)).to_bytes(4, "big") + b"\x02\x00" + rig.channel.to_bytes(2, "big") + body
    rig.commands += rig.gateway.receive(frame, rig.clock.now_ms)
    rig.pump()
    assert rig.commands == [CloseLink(opened.link)]
    detached = [event for event in rig.events if isinstance(event, LinkDetached)]
    assert detached[-1].error is not None
    rig.commands.clear()
    rig.client.end(rig.channel, AmqpError(Symbol("amqp:internal-error"), "bye"))
    rig.pump()
    assert rig.commands == [CloseLink(first.link)]
    rig.take_event(SessionEnded)
    rig.commands.clear()
    rig.commands += rig.gateway.eof(rig.clock.now_ms)
    assert rig.commands == [DropConnection(first.link.connection_id, broken=True)]


def test_a_deleted_entity_ends_a_session_receiver(rig: Harness) -> None:
    """Req: A-07."""
    _, command = hold(rig)
    rig.effect(DetachLink(command.link, EntityDeleted("gone")))
    detached = rig.take_event(LinkDetached)
    assert detached.error is not None
    assert str(detached.error.condition) == "amqp:resource-deleted"
