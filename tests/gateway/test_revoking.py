"""What a connection loses when a rule changes, and what it may try before it is closed."""

from __future__ import annotations

import pytest

from peeklock.amqp.events import ConnectionClosed, LinkDetached
from peeklock.amqp.types import Role
from peeklock.auth import Authority, Grant, KeysUnavailable, OpenAuthority, Right, SasRule, generate
from peeklock.broker.commands import CloseLink, LookUp, OpenReceiver
from peeklock.broker.effects import EntityFound, ReceiverOpened
from peeklock.gateway.attach import SESSION_FILTER
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.namespaces import OneNamespace
from tests.gateway.playbook import KEY, KEY_NAME, QUEUE_ID, Desk, section, view_of_queue

AUDIENCE = "sb://localhost/orders"


def put(desk: Desk, sender: int, audience: str, name: str, key: str) -> int:
    desk.put_token(sender, audience, generate(audience, name, key, desk.clock.now_ms + 3_600_000))
    for command in [command for command in desk.commands if isinstance(command, LookUp)]:
        desk.commands.remove(command)
        desk.effect(EntityFound(command.reply_to, view_of_queue()))
    return desk.response().status


def tick(desk: Desk) -> list[object]:
    due = desk.gateway.next_deadline_ms()
    commands: list[object] = []
    if due is not None and due <= desk.clock.now_ms:
        commands = list(desk.gateway.tick(desk.clock.now_ms))
        desk.events += desk.client.receive(desk.gateway.data_to_send(), desk.clock.now_ms)
    return commands


def test_a_rotated_key_detaches_its_links_and_no_others() -> None:
    """Req: R-04. Nothing has to run out; the connection lives on."""
    authority = Authority([SasRule("a", "key-a"), SasRule("b", "key-b")])
    desk = Desk(mechanism="ANONYMOUS", authority=authority)
    cbs, _ = desk.pair("$cbs")
    assert put(desk, cbs, AUDIENCE, "a", "key-a") == 202
    assert put(desk, cbs, "sb://localhost/invoices", "b", "key-b") == 202
    orders, _ = desk.receiver("orders")
    desk.receiver("invoices")
    assert tick(desk) == []
    authority.set_rules("", [SasRule("a", "key-new"), SasRule("b", "key-b")])
    (closed,) = tick(desk)
    assert isinstance(closed, CloseLink)
    detached = desk.take_event(LinkDetached)
    assert detached.handle == orders
    assert str(detached.error.condition) == "amqp:unauthorized-access"
    assert "no longer valid" in detached.error.description
    assert not any(isinstance(event, LinkDetached) for event in desk.events)
    assert tick(desk) == []
    assert put(desk, cbs, AUDIENCE, "a", "key-a") == 401
    assert put(desk, cbs, AUDIENCE, "a", "key-new") == 202
    desk.receiver("orders")


def test_a_link_does_not_outlive_the_token_that_opened_it_behind_a_lesser_one() -> None:
    """Req: R-04. Else the lesser token, renewed for ever, would keep what the other key had opened."""
    listen = SasRule("b", "key-b", rights=frozenset({Right.LISTEN}))
    desk = Desk(mechanism="ANONYMOUS", authority=Authority([SasRule("a", "key-a"), listen]))
    cbs, _ = desk.pair("$cbs")
    assert put(desk, cbs, AUDIENCE, "a", "key-a") == 202
    sender = desk.sender("orders")
    desk.receiver("orders")
    assert put(desk, cbs, AUDIENCE, "b", "key-b") == 202
    detached = desk.take_event(LinkDetached)
    assert detached.handle == sender
    assert str(detached.error.condition) == "amqp:unauthorized-access"
    assert not any(isinstance(event, LinkDetached) for event in desk.events)
    assert not desk.gateway.closing


def test_a_key_that_goes_while_the_entity_is_looked_up_opens_nothing() -> None:
    """Req: R-04."""
    authority = Authority([SasRule("a", "key-a")])
    desk = Desk(mechanism="ANONYMOUS", authority=authority)
    cbs, _ = desk.pair("$cbs")
    desk.put_token(cbs, AUDIENCE, generate(AUDIENCE, "a", "key-a", desk.clock.now_ms + 3_600_000))
    look_up = desk.take(LookUp)
    authority.set_rules("", [])
    tick(desk)
    desk.effect(EntityFound(look_up.reply_to, view_of_queue()))
    assert desk.response().status == 401
    desk.attach(Role.RECEIVER, "orders")
    assert str(desk.refusal().condition) == "amqp:unauthorized-access"


def test_an_attach_that_waits_for_a_session_ends_with_its_key() -> None:
    """Req: R-04."""
    authority = Authority([SasRule(KEY_NAME, KEY)])
    desk = Desk(mechanism="PLAIN", authority=authority)
    handle = desk.attach(Role.RECEIVER, "orders", filter={SESSION_FILTER: None})
    opening = desk.take(OpenReceiver)
    authority.set_rules("", [])
    (closed,) = tick(desk)
    assert closed == CloseLink(opening.link)
    detached = desk.take_event(LinkDetached)
    assert detached.handle == handle
    assert str(detached.error.condition) == "amqp:unauthorized-access"
    desk.effect(ReceiverOpened(opening.link, QUEUE_ID, session_id="s", locked_until_ms=1))
    assert not any(isinstance(event, LinkDetached) for event in desk.events)


def test_a_key_shown_by_plain_is_taken_back_too() -> None:
    """Req: R-04."""
    authority = Authority([SasRule(KEY_NAME, KEY)])
    desk = Desk(mechanism="PLAIN", authority=authority)
    desk.receiver("orders")
    authority.set_rules("", [])
    tick(desk)
    assert str(desk.take_event(LinkDetached).error.condition) == "amqp:unauthorized-access"
    desk.attach(Role.RECEIVER, "orders")
    assert str(desk.refusal().condition) == "amqp:unauthorized-access"


def test_a_connection_that_goes_on_with_bad_tokens_is_closed() -> None:
    """Req: R-04, R-05."""
    desk = Desk(mechanism="ANONYMOUS", limits=GatewayLimits(refusals_max=3))
    cbs, _ = desk.pair("$cbs")
    assert put(desk, cbs, AUDIENCE, KEY_NAME, KEY) == 202
    for _ in range(2):
        assert put(desk, cbs, AUDIENCE, KEY_NAME, "wrong") == 401
    assert not desk.gateway.closing
    assert put(desk, cbs, AUDIENCE, KEY_NAME, "wrong") == 401  # it has its answer, then the end
    closed = desk.take_event(ConnectionClosed)
    assert str(closed.error.condition) == "amqp:unauthorized-access"
    assert "Too many tokens" in closed.error.description
    assert desk.gateway.closing


def test_bad_tokens_behind_the_last_one_are_not_looked_at() -> None:
    """Req: R-04. A thousand have room in one read."""
    told = []

    class Counting(Authority):
        def authorize(self, token: str, audience: str, now_ms: int, token_type: str = "") -> Grant:
            told.append(audience)
            return super().authorize(token, audience, now_ms, token_type)

    desk = Desk(mechanism="ANONYMOUS", authority=Counting(), limits=GatewayLimits(refusals_max=3))
    cbs, _ = desk.pair("$cbs")
    bad = section(0x73, [1]) + section(
        0x74, {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": AUDIENCE}
    )
    for _ in range(50):
        desk.client.send(desk.channel, cbs, b"tag", bad + section(0x77, "no token"))
    desk.pump()
    assert len(told) == 3
    assert desk.gateway.closing


def test_keys_of_ours_that_are_not_there_are_not_held_against_the_peer() -> None:
    """Req: R-04. It is told to try again, and may."""

    class NoKeysYet:
        def authorize(self, token: str, audience: str, now_ms: int) -> Grant:
            raise KeysUnavailable("ServerBusy: Please try again.")

    authority = Authority(web_tokens=NoKeysYet())
    desk = Desk(mechanism="ANONYMOUS", authority=authority, limits=GatewayLimits(refusals_max=3))
    cbs, _ = desk.pair("$cbs")
    for _ in range(10):
        desk.put_token(cbs, AUDIENCE, "a.web.token", type="jwt")
        assert desk.response().status == 503
    assert not desk.gateway.closing


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "PLAIN"])
def test_each_refusal_is_told_to_whoever_counts_them(mechanism: str) -> None:
    """Req: R-04. And where there is no patience left with the peer, the first one is the last."""

    class Strict(Desk):
        told = 0

        def make_gateway(self, limits: GatewayLimits | None) -> Gateway:
            def bears_refusal() -> bool:
                self.told += 1
                return False

            return Gateway(
                1,
                namespaces=OneNamespace(self.authority),
                tracking=lambda: "id",
                log=lambda event, fields: None,
                now_ms=self.clock.now_ms,
                bears_refusal=bears_refusal,
            )

    if mechanism == "PLAIN":
        desk = Strict(mechanism="PLAIN", response=b"\0x\0y", opened=False)
    else:
        desk = Strict(mechanism="ANONYMOUS")
        cbs, _ = desk.pair("$cbs")
        assert put(desk, cbs, AUDIENCE, KEY_NAME, "wrong") == 401
    assert desk.told == 1
    assert desk.gateway.closing


def test_with_authorization_off_nobody_has_to_show_anything() -> None:
    """Req: R-04."""
    desk = Desk(mechanism="ANONYMOUS", authority=OpenAuthority())
    desk.attach(Role.RECEIVER, "orders")
    assert desk.take(OpenReceiver)
    cbs, _ = desk.pair("$cbs")
    assert put(desk, cbs, AUDIENCE, "nobody", "nothing") == 202
    desk.put_token(cbs, AUDIENCE, "not.a.token", type="jwt")
    look_up = desk.take(LookUp)
    desk.effect(EntityFound(look_up.reply_to, view_of_queue()))
    assert desk.response().status == 202
    desk.clock.advance(120_000)
    tick(desk)
    assert not desk.gateway.closing
    plain = Desk(mechanism="PLAIN", response=b"\0x\0y", authority=OpenAuthority())
    plain.attach(Role.SENDER, "orders")
    assert Right.MANAGE in OpenAuthority().anybody.rights
