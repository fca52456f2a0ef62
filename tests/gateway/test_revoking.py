"""What a connection loses when a rule changes, and what it may try before it is closed."""

from __future__ import annotations

import pytest

from peeklock.amqp.events import ConnectionClosed, LinkDetached
from peeklock.amqp.types import Role
from peeklock.auth import Authority, Grant, KeysUnavailable, OpenAuthority, Right, SasRule, generate
from peeklock.auth.rights import TokenProof
from peeklock.broker.vocabulary.commands import CloseLink, LookUp, OpenReceiver
from peeklock.broker.vocabulary.effects import EntityFound, ReceiverOpened
from peeklock.gateway.choice import OneNamespace
from peeklock.gateway.connection import Gateway
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.links.attach import SESSION_FILTER
from tests.gateway.harness import KEY, KEY_NAME, QUEUE_ID, Harness, section, view_of_queue

AUDIENCE = "sb://localhost/orders"


def put(rig: Harness, sender: int, audience: str, name: str, key: str) -> int:
    rig.put_token(sender, audience, generate(audience, name, key, rig.clock.now_ms + 3_600_000))
    for command in [command for command in rig.commands if isinstance(command, LookUp)]:
        rig.commands.remove(command)
        rig.effect(EntityFound(command.reply_to, view_of_queue()))
    status: int = rig.response().status
    return status


def tick(rig: Harness) -> list[object]:
    due = rig.gateway.next_deadline_ms()
    commands: list[object] = []
    if due is not None and due <= rig.clock.now_ms:
        commands = list(rig.gateway.tick(rig.clock.now_ms))
        rig.events += rig.client.receive(rig.gateway.data_to_send(), rig.clock.now_ms)
    return commands


def test_a_rotated_key_detaches_its_links_and_no_others() -> None:
    """Req: R-04. Nothing has to run out; the connection lives on."""
    authority = Authority([SasRule("a", "key-a"), SasRule("b", "key-b")])
    rig = Harness(mechanism="ANONYMOUS", authority=authority)
    cbs, _ = rig.pair("$cbs")
    assert put(rig, cbs, AUDIENCE, "a", "key-a") == 202
    assert put(rig, cbs, "sb://localhost/invoices", "b", "key-b") == 202
    orders, _ = rig.receiver("orders")
    rig.receiver("invoices")
    assert tick(rig) == []
    authority.set_rules("", [SasRule("a", "key-new"), SasRule("b", "key-b")])
    (closed,) = tick(rig)
    assert isinstance(closed, CloseLink)
    detached = rig.take_event(LinkDetached)
    assert detached.handle == orders
    assert detached.error is not None
    assert str(detached.error.condition) == "amqp:unauthorized-access"
    assert "no longer valid" in detached.error.description
    assert not any(isinstance(event, LinkDetached) for event in rig.events)
    assert tick(rig) == []
    assert put(rig, cbs, AUDIENCE, "a", "key-a") == 401
    assert put(rig, cbs, AUDIENCE, "a", "key-new") == 202
    rig.receiver("orders")


def test_a_link_does_not_outlive_the_token_that_opened_it_behind_a_lesser_one() -> None:
    """Req: R-04. Else the lesser token, renewed for ever, would keep what the other key had opened."""
    listen = SasRule("b", "key-b", rights=frozenset({Right.LISTEN}))
    rig = Harness(mechanism="ANONYMOUS", authority=Authority([SasRule("a", "key-a"), listen]))
    cbs, _ = rig.pair("$cbs")
    assert put(rig, cbs, AUDIENCE, "a", "key-a") == 202
    sender = rig.sender("orders")
    rig.receiver("orders")
    assert put(rig, cbs, AUDIENCE, "b", "key-b") == 202
    detached = rig.take_event(LinkDetached)
    assert detached.handle == sender
    assert detached.error is not None
    assert str(detached.error.condition) == "amqp:unauthorized-access"
    assert not any(isinstance(event, LinkDetached) for event in rig.events)
    assert not rig.gateway.closing


def test_a_key_that_goes_while_the_entity_is_looked_up_opens_nothing() -> None:
    """Req: R-04."""
    authority = Authority([SasRule("a", "key-a")])
    rig = Harness(mechanism="ANONYMOUS", authority=authority)
    cbs, _ = rig.pair("$cbs")
    rig.put_token(cbs, AUDIENCE, generate(AUDIENCE, "a", "key-a", rig.clock.now_ms + 3_600_000))
    look_up = rig.take(LookUp)
    authority.set_rules("", [])
    tick(rig)
    rig.effect(EntityFound(look_up.reply_to, view_of_queue()))
    assert rig.response().status == 401
    rig.attach(Role.RECEIVER, "orders")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"


def test_an_attach_that_waits_for_a_session_ends_with_its_key() -> None:
    """Req: R-04."""
    authority = Authority([SasRule(KEY_NAME, KEY)])
    rig = Harness(mechanism="PLAIN", authority=authority)
    handle = rig.attach(Role.RECEIVER, "orders", filter={SESSION_FILTER: None})
    opening = rig.take(OpenReceiver)
    authority.set_rules("", [])
    (closed,) = tick(rig)
    assert closed == CloseLink(opening.link)
    detached = rig.take_event(LinkDetached)
    assert detached.handle == handle
    assert detached.error is not None
    assert str(detached.error.condition) == "amqp:unauthorized-access"
    rig.effect(ReceiverOpened(opening.link, QUEUE_ID, session_id="s", locked_until_ms=1))
    assert not any(isinstance(event, LinkDetached) for event in rig.events)


def test_a_key_shown_by_plain_is_taken_back_too() -> None:
    """Req: R-04."""
    authority = Authority([SasRule(KEY_NAME, KEY)])
    rig = Harness(mechanism="PLAIN", authority=authority)
    rig.receiver("orders")
    authority.set_rules("", [])
    tick(rig)
    detached = rig.take_event(LinkDetached)
    assert detached.error is not None
    assert str(detached.error.condition) == "amqp:unauthorized-access"
    rig.attach(Role.RECEIVER, "orders")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"


def test_a_connection_that_goes_on_with_bad_tokens_is_closed() -> None:
    """Req: R-04, R-05."""
    rig = Harness(mechanism="ANONYMOUS", limits=GatewayLimits(refusals_max=3))
    cbs, _ = rig.pair("$cbs")
    assert put(rig, cbs, AUDIENCE, KEY_NAME, KEY) == 202
    for _ in range(2):
        assert put(rig, cbs, AUDIENCE, KEY_NAME, "wrong") == 401
    assert not rig.gateway.closing
    assert put(rig, cbs, AUDIENCE, KEY_NAME, "wrong") == 401  # it has its answer, then the end
    closed = rig.take_event(ConnectionClosed)
    assert closed.error is not None
    assert str(closed.error.condition) == "amqp:unauthorized-access"
    assert "Too many tokens" in closed.error.description
    assert rig.gateway.closing


def test_bad_tokens_behind_the_last_one_are_not_looked_at() -> None:
    """Req: R-04. A thousand have room in one read."""
    told = []

    class Counting(Authority):
        def authorize(self, token: str, audience: str, now_ms: int, token_type: str = "") -> Grant:
            told.append(audience)
            return super().authorize(token, audience, now_ms, token_type)

    rig = Harness(mechanism="ANONYMOUS", authority=Counting(), limits=GatewayLimits(refusals_max=3))
    cbs, _ = rig.pair("$cbs")
    bad = section(0x73, [1]) + section(
        0x74, {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": AUDIENCE}
    )
    for _ in range(50):
        rig.client.send(rig.channel, cbs, b"tag", bad + section(0x77, "no token"))
    rig.pump()
    assert len(told) == 3
    assert rig.gateway.closing


def test_keys_of_ours_that_are_not_there_are_not_held_against_the_peer() -> None:
    """Req: R-04. It is told to try again, and may."""

    class NoKeysYet:
        def authorize(self, token: str, audience: str, now_ms: int) -> Grant:
            raise KeysUnavailable("ServerBusy: Please try again.")

        def upholds(self, grant: Grant, proof: TokenProof) -> bool:
            raise AssertionError("no grant was given")

    authority = Authority(web_tokens=NoKeysYet())
    rig = Harness(mechanism="ANONYMOUS", authority=authority, limits=GatewayLimits(refusals_max=3))
    cbs, _ = rig.pair("$cbs")
    for _ in range(10):
        rig.put_token(cbs, AUDIENCE, "a.web.token", type="jwt")
        assert rig.response().status == 503
    assert not rig.gateway.closing


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "PLAIN"])
def test_each_refusal_is_told_to_whoever_counts_them(mechanism: str) -> None:
    """Req: R-04. And where there is no patience left with the peer, the first one is the last."""

    class Strict(Harness):
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
        rig = Strict(mechanism="PLAIN", response=b"\0x\0y", opened=False)
    else:
        rig = Strict(mechanism="ANONYMOUS")
        cbs, _ = rig.pair("$cbs")
        assert put(rig, cbs, AUDIENCE, KEY_NAME, "wrong") == 401
    assert rig.told == 1
    assert rig.gateway.closing


def test_with_authorization_off_nobody_has_to_show_anything() -> None:
    """Req: R-04."""
    rig = Harness(mechanism="ANONYMOUS", authority=OpenAuthority())
    rig.attach(Role.RECEIVER, "orders")
    rig.take(OpenReceiver)
    cbs, _ = rig.pair("$cbs")
    assert put(rig, cbs, AUDIENCE, "nobody", "nothing") == 202
    rig.put_token(cbs, AUDIENCE, "not.a.token", type="jwt")
    look_up = rig.take(LookUp)
    rig.effect(EntityFound(look_up.reply_to, view_of_queue()))
    assert rig.response().status == 202
    rig.clock.advance(120_000)
    tick(rig)
    assert not rig.gateway.closing
    plain = Harness(mechanism="PLAIN", response=b"\0x\0y", authority=OpenAuthority())
    plain.attach(Role.SENDER, "orders")
    assert Right.MANAGE in OpenAuthority().anybody.rights
