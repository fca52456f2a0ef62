"""What an attach asks for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.events import LinkAttached, LinkDetached
from peeklock.amqp.performatives import Source
from peeklock.amqp.types import Array, Described, Role, Symbol, ULong
from peeklock.auth import Authority, Right, SasRule
from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    LookUp,
    OpenReceiver,
    OpenSender,
    ReceiveMode,
    SubQueue,
)
from peeklock.broker.vocabulary.effects import EntityFound, Failed, LinkRefused, ReceiverOpened, SenderOpened
from peeklock.broker.vocabulary.errors import EntityDisabled, EntityNotFound
from peeklock.gateway.links.attach import SESSION_FILTER
from peeklock.gateway.links.incoming_link import MESSAGE_OVERHEAD_BYTES
from tests.gateway.harness import CONNECTION_ID, KEY, KEY_NAME, QUEUE_ID, SIZE_MAX, Harness, view_of_queue


@pytest.fixture
def rig() -> Harness:
    return Harness()


@pytest.mark.parametrize(
    "address",
    ["amqps://localhost:5672/Orders", "/Orders", "Orders", "amqps://ns.servicebus.windows.net/Orders"],
)
def test_a_sender_is_opened_and_its_attach_echoed_byte_for_byte(rig: Harness, address: str) -> None:
    """Req: T-11. Source: wire contract 0.1, 0.5, 2.3: max-message-size is the entity's."""
    rig.attach(Role.SENDER, address, name="my sender", snd_settle_mode=0)
    command = rig.take(OpenSender)
    assert command.address == Address("Orders")
    assert command.link.connection_id == CONNECTION_ID
    assert not any(isinstance(event, LinkAttached) for event in rig.events)
    rig.effect(SenderOpened(command.link, QUEUE_ID, SIZE_MAX, False))
    attached = rig.take_event(LinkAttached)
    assert (attached.name, attached.role, attached.max_message_size) == ("my sender", Role.RECEIVER, SIZE_MAX)
    assert attached.target is not None
    assert attached.source is not None
    assert attached.target.address == address  # type: ignore[union-attr]  # neither is None here
    assert attached.source.address == "client"  # type: ignore[union-attr]  # neither is None here
    assert (attached.snd_settle_mode, attached.rcv_settle_mode) == (0, 0)


@pytest.mark.parametrize(
    ("address", "sub_queue"),
    [
        ("amqps://localhost/orders", SubQueue.MAIN),
        ("orders/$DeadLetterQueue", SubQueue.DEAD_LETTER),
        ("/orders/$deadletterqueue", SubQueue.DEAD_LETTER),
        ("orders/$Transfer/$DeadLetterQueue", SubQueue.TRANSFER_DEAD_LETTER),
    ],
)
@pytest.mark.parametrize(
    ("modes", "mode"),
    [
        ({"snd_settle_mode": 0, "rcv_settle_mode": 1}, ReceiveMode.PEEK_LOCK),
        ({"snd_settle_mode": 2, "rcv_settle_mode": 1}, ReceiveMode.PEEK_LOCK),
        ({"snd_settle_mode": 1, "rcv_settle_mode": 0}, ReceiveMode.RECEIVE_AND_DELETE),
    ],
)
def test_a_receiver_of_any_queue_of_an_entity_is_opened(
    rig: Harness, address: str, sub_queue: SubQueue, modes: dict[str, int], mode: ReceiveMode
) -> None:
    """Req: L-17, L-01, L-02. Source: wire contract 2.1, 2.3, 2.4."""
    rig.attach(Role.RECEIVER, address, **modes)
    command = rig.take(OpenReceiver)
    assert (command.address, command.mode) == (Address("orders", sub_queue), mode)
    rig.effect(ReceiverOpened(command.link, QUEUE_ID))
    attached = rig.take_event(LinkAttached)
    assert isinstance(attached.source, Source)
    assert attached.source.address == address
    assert {"snd_settle_mode": attached.snd_settle_mode, "rcv_settle_mode": attached.rcv_settle_mode} == modes
    assert attached.initial_delivery_count == 0


@pytest.mark.parametrize(
    ("role", "address", "options", "condition"),
    [
        (Role.SENDER, "orders/$DeadLetterQueue", {}, "amqp:not-allowed"),
        (Role.SENDER, "orders/$Transfer/$DeadLetterQueue", {}, "amqp:not-allowed"),
        (Role.SENDER, None, {}, "amqp:invalid-field"),
        (Role.SENDER, "", {}, "amqp:invalid-field"),
        (Role.RECEIVER, "amqps://localhost/", {}, "amqp:invalid-field"),
    ],
)
def test_what_cannot_be_is_refused_without_asking_the_broker(
    rig: Harness, role: Role, address: Any, options: dict[str, Any], condition: str
) -> None:
    """Req: R-05. Source: wire contract 2.1, 2.2, 2.6, 6."""
    rig.attach(role, address, **options)
    error = rig.refusal()
    assert str(error.condition) == condition
    assert "TrackingId:" in error.description
    if isinstance(address, str) and "orders" in address:
        assert f"systemtracker:localhost:{address.lower()}," in error.description.lower()
    assert rig.commands == []


SHARED = Symbol("com.microsoft:non-exclusive-session-filter")
SELECTOR, NO_LOCAL = 0x0000468C00000004, 0x0000468C00000003


@pytest.mark.parametrize(
    "wish",
    [
        {"filter": {Symbol("jms-selector"): Described(ULong(SELECTOR), "a = 1")}},
        {"filter": {Symbol("selector"): Described(Symbol("apache.org:selector-filter:string"), "a = 1")}},
        {"filter": {Symbol("no-local"): Described(ULong(NO_LOCAL), [])}},
        {"filter": {Symbol("x"): Described(Symbol("apache.org:no-local-filter:list"), [])}},
        {"filter": {SESSION_FILTER: Described(ULong(SELECTOR), "a = 1")}},
        {"filter": {Symbol("other"): 7, "jms-selector": Described(ULong(SELECTOR), None)}},
        {"filter": {SHARED: Described(ULong(0x000000137000000E), [])}},
        {"filter": {SHARED: None}},
        {"filter": {Symbol("x"): Described(ULong(0x000000137000000E), ["s", 1])}},
        {"filter": {Symbol("x"): Described(SHARED, []), SESSION_FILTER: "s"}},
        {"distribution_mode": "copy"},
        {"distribution_mode": "copy", "filter": {SESSION_FILTER: "s"}},
        {"capabilities": Symbol("shared")},
        {"capabilities": Array.of(Symbol, ["topic", "shared", "global"])},
    ],
)
@pytest.mark.parametrize("address", ["orders", "orders/$DeadLetterQueue", "orders/$management", "$cbs"])
def test_a_receiver_that_would_get_other_messages_than_it_asks_for_is_refused(
    rig: Harness, address: str, wish: dict[str, Any]
) -> None:
    """Req: T-11, C45. Qpid JMS accepts each message that its browser shows: served, it would remove them all.

    Source: wire contract C42: JMS filters are known by their descriptor, whatever their key; the one of
    .NET for sessions that receivers share by either.
    """
    rig.attach(Role.RECEIVER, address, **wish)
    assert str(rig.refusal().condition) == "amqp:not-implemented"
    assert rig.commands == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, {}),
        ({Symbol("other"): 7}, {}),
        ({Symbol("other"): Described(Symbol("a:b:c"), [1]), Symbol("more"): None}, {}),
        ({Symbol("other"): Described(Described(Symbol("odd"), 1), "x")}, {}),
        (None, None),
    ],
)
@pytest.mark.parametrize("address", ["orders", "$cbs"])
def test_a_filter_that_is_not_in_force_does_not_come_back(
    rig: Harness, address: str, asked: Any, told: Any
) -> None:
    """Req: T-11. So a client sees that nothing is filtered. Source: wire contract C42; AMQP 3.5.3."""
    options = {"filter": asked, "distribution_mode": "move", "capabilities": Symbol("queue")}
    if address == "orders":
        rig.receiver(address, **options)
    else:
        rig.attach(Role.RECEIVER, address, **options)
    source = rig.take_event(LinkAttached).source
    assert isinstance(source, Source)
    assert (source.address, source.filter, source.distribution_mode) == (address, told, "move")
    assert source.capabilities == "queue"


def test_a_sender_may_say_what_it_likes_of_its_own_source(rig: Harness) -> None:
    """Nothing is taken from there. Source: wire contract 0.1."""
    asked = {Symbol("jms-selector"): Described(ULong(SELECTOR), "a = 1")}
    rig.sender(filter=asked, distribution_mode="copy")
    source = rig.take_event(LinkAttached).source
    assert isinstance(source, Source)
    assert (source.filter, source.distribution_mode) == (asked, "copy")


@pytest.mark.parametrize("role", [Role.SENDER, Role.RECEIVER])
def test_a_refusal_of_the_broker_is_a_null_terminus_and_a_detach(rig: Harness, role: Role) -> None:
    """Req: T-03, A-04. Source: wire contract 2.2: the handle is free at once."""
    for error, condition in (
        (EntityNotFound("x"), "amqp:not-found"),
        (EntityDisabled("x"), "com.microsoft:entity-disabled"),
    ):
        rig.attach(role, "orders", name="again")
        command = rig.take(OpenSender) if role is Role.SENDER else rig.take(OpenReceiver)
        rig.effect(LinkRefused(command.link, error))
        assert str(rig.refusal().condition) == condition
    assert rig.commands == []
    rig.attach(role, "orders", name="again")
    assert rig.take(OpenSender if role is Role.SENDER else OpenReceiver)


def test_a_client_that_detaches_before_the_answer_gets_no_link(rig: Harness) -> None:
    """Req: L-16."""
    handle = rig.attach(Role.RECEIVER, "orders")
    command = rig.take(OpenReceiver)
    rig.client.detach(rig.channel, handle)
    rig.pump()
    assert rig.take(CloseLink).link == command.link
    before = len(rig.sent)
    rig.effect(ReceiverOpened(command.link, QUEUE_ID), LinkRefused(command.link, EntityNotFound("x")))
    assert len(rig.sent) == before


# Rights


@pytest.mark.parametrize(
    ("rights", "allowed"),
    [
        ({Right.SEND}, {"send", "management"}),
        ({Right.LISTEN}, {"receive", "dead", "management"}),
        ({Right.MANAGE}, {"send", "receive", "dead", "management"}),
        (set(), set()),
    ],
)
def test_each_link_needs_its_right(rights: set[Right], allowed: set[str]) -> None:
    """Req: R-04. Source: wire contract 1.7."""
    for wanted, role, address in (
        ("send", Role.SENDER, "orders"),
        ("receive", Role.RECEIVER, "orders"),
        ("dead", Role.RECEIVER, "orders/$DeadLetterQueue"),
        ("management", Role.SENDER, "orders/$management"),
    ):
        rig = Harness(authority=Authority([SasRule(KEY_NAME, KEY, rights=frozenset(rights))]))
        rig.attach(role, address)
        if wanted in allowed:
            assert len(rig.commands) == 1
        else:
            error = rig.refusal()
            assert str(error.condition) == "amqp:unauthorized-access"
            assert error.description.startswith("Unauthorized access. ")
            assert rig.commands == []


def test_a_rule_of_another_entity_gives_no_right() -> None:
    """Req: R-04. Nor does one of an entity whose name begins the same."""
    rig = Harness(authority=Authority([SasRule(KEY_NAME, KEY, path="orders")]))
    for address in ("order", "orders2", "invoices", "orders2/$management"):
        rig.attach(Role.SENDER, address)
        assert str(rig.refusal().condition) == "amqp:unauthorized-access"
    rig.attach(Role.RECEIVER, "Orders/$DeadLetterQueue")
    rig.take(OpenReceiver)


def test_without_any_token_only_cbs_may_be_attached() -> None:
    """Req: R-04."""
    for mechanism in ("ANONYMOUS", "MSSBCBS", "EXTERNAL"):
        rig = Harness(mechanism=mechanism)
        for role, address in (
            (Role.SENDER, "orders"),
            (Role.RECEIVER, "orders"),
            (Role.SENDER, "orders/$management"),
        ):
            rig.attach(role, address)
            assert str(rig.refusal().condition) == "amqp:unauthorized-access"
        assert rig.commands == []
        rig.pair("$cbs")
        assert not any(isinstance(event, LinkDetached) for event in rig.events)


# Management nodes


@pytest.mark.parametrize(
    "address", ["orders/$management", "/Orders/$Management", "orders/$DeadLetterQueue/$management"]
)
def test_a_management_node_is_accepted_when_its_entity_is_there(rig: Harness, address: str) -> None:
    """Source: wire contract 2.1, 5.1."""
    sub_queue = SubQueue.DEAD_LETTER if "DeadLetter" in address else SubQueue.MAIN
    for role in (Role.SENDER, Role.RECEIVER):
        rig.attach(role, address)
        command = rig.take(LookUp)
        assert command.address.path.lower() == "orders"
        assert command.address.sub_queue is sub_queue
        rig.effect(EntityFound(command.reply_to, view_of_queue()))
        attached = rig.take_event(LinkAttached)
        terminus = attached.target if role is Role.SENDER else attached.source
        assert terminus is not None
        assert terminus.address == address  # type: ignore[union-attr]  # neither is None here


def test_a_management_node_of_a_missing_entity_is_refused(rig: Harness) -> None:
    """Req: T-03."""
    rig.attach(Role.SENDER, "nowhere/$management")
    rig.effect(Failed(rig.take(LookUp).reply_to, EntityNotFound("no")))
    error = rig.refusal()
    assert str(error.condition) == "amqp:not-found"
    assert "The messaging entity 'sb://localhost/nowhere' could not be found." in error.description


def test_a_management_half_that_went_before_the_answer_is_not_accepted(rig: Harness) -> None:
    handle = rig.attach(Role.SENDER, "orders/$management")
    command = rig.take(LookUp)
    rig.client.detach(rig.channel, handle)
    rig.pump()
    rig.events.clear()
    rig.effect(EntityFound(command.reply_to, view_of_queue()))
    assert rig.events == []


def test_requests_before_the_management_node_is_accepted_are_not_lost(rig: Harness) -> None:
    """A request may come with its attach."""
    handle = rig.attach(Role.SENDER, "orders/$management")
    command = rig.take(LookUp)
    body = b"\x00\x53\x14\xc0\x0b\x05\x52" + bytes([handle]) + b"\x43\xa0\x01t\x43\x42"
    body = body[:4] + bytes([len(body) - 5]) + body[5:]
    payload = b"no message"
    frame = (8 + len(body) + len(payload)).to_bytes(4, "big") + b"\x02\x00" + rig.channel.to_bytes(2, "big")
    rig.commands += rig.gateway.receive(frame + body + payload, rig.clock.now_ms)
    assert rig.gateway.uncommitted_bytes == len(payload) + MESSAGE_OVERHEAD_BYTES
    rig.effect(EntityFound(command.reply_to, view_of_queue()))
    assert b"\x00\x53\x25\xc0" in rig.sent or b"\x00\x53\x25\xd0" in rig.sent  # no message, but answered
    assert rig.gateway.uncommitted_bytes == 0
