"""Tokens: put, refused, renewed, run out."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from peeklock.amqp.events import (
    ConnectionClosed,
    DeliveryReceived,
    DispositionReceived,
    LinkAttached,
    LinkDetached,
)
from peeklock.amqp.frames import EMPTY_FRAME
from peeklock.amqp.performatives import ACCEPTED
from peeklock.amqp.types import Role, ULong
from peeklock.auth import Authority, Right, SasRule, generate
from peeklock.broker.commands import Address, CloseLink, Command, LookUp, OpenReceiver, OpenSender, SubQueue
from peeklock.broker.effects import EntityFound, Failed, ReceiverOpened, SenderOpened
from peeklock.broker.errors import EntityNotFound
from peeklock.gateway import claims
from peeklock.gateway.bounds import STRANGER_CBS_PAIRS_MAX
from tests.gateway.playbook import KEY, KEY_NAME, QUEUE_ID, SIZE_MAX, Desk, Response, view_of_queue

AUDIENCE = "sb://localhost/orders"


@pytest.fixture
def desk() -> Desk:
    return Desk(mechanism="ANONYMOUS")


def put(
    desk: Desk, sender: int, audience: str = AUDIENCE, token: str | None = None, **properties: Any
) -> Response:
    """Put a token for an entity that is there, and give the response."""
    desk.put_token(sender, audience, token, **properties)
    for command in [command for command in desk.commands if isinstance(command, LookUp)]:
        desk.commands.remove(command)
        desk.effect(EntityFound(command.reply_to, view_of_queue()))
    return desk.response()


def token_for(
    desk: Desk, audience: str = AUDIENCE, *, name: str = KEY_NAME, key: str = KEY, lives_ms: int = 3_600_000
) -> str:
    return generate(audience, name, key, desk.clock.now_ms + lives_ms)


def test_a_good_token_is_answered_202_and_opens_the_entity(desk: Desk) -> None:
    """Req: R-04. Source: wire contract 1.7."""
    sender, _ = desk.pair("$cbs")
    desk.put_token(sender, AUDIENCE)
    assert desk.take_event(DispositionReceived).state == ACCEPTED  # settled before anything else (0.6)
    assert not any(isinstance(event, DeliveryReceived) for event in desk.events)
    look_up = desk.take(LookUp)
    assert look_up.address == Address("orders")
    desk.effect(EntityFound(look_up.reply_to, view_of_queue()))
    response = desk.response()
    assert (response.status, response.description, response.condition, response.body) == (
        202,
        "Accepted",
        None,
        None,
    )
    assert response.event.settled
    desk.attach(Role.SENDER, "orders")
    assert desk.take(OpenSender)


def test_the_response_s_bytes_are_what_clients_read(desk: Desk) -> None:
    """Golden bytes: status-code is an int in full, the keys are strings. Source: wire contract 0.3, 0.4,
    1.7."""
    sender, _ = desk.pair("$cbs")
    raw = put(desk, sender).raw
    assert raw == (
        b"\x00\x53\x73\xc0\x17\x06\x40\x40\x40\x40\x40\x98"
        + uuid.UUID(int=1).bytes
        + b"\x00\x53\x74\xc1\x31\x04\xa1\x0bstatus-code\x71\x00\x00\x00\xca"
        + b"\xa1\x12status-description\xa1\x08Accepted"
        + b"\x00\x53\x77\x40"
    )


@pytest.mark.parametrize("message_id", [uuid.UUID(int=77), "text-id", ULong(9), b"binary"])
def test_the_correlation_id_echoes_type_and_value(desk: Desk, message_id: Any) -> None:
    """Source: wire contract 1.7."""
    sender, _ = desk.pair("$cbs")
    response = put(desk, sender)
    desk.request(sender, "bogus", None, message_id=message_id)
    response = desk.response()
    assert response.correlation_id == message_id
    assert type(response.correlation_id) is (int if isinstance(message_id, int) else type(message_id))


@pytest.mark.parametrize(
    ("audience", "address"),
    [
        ("sb://localhost/orders", Address("orders")),
        ("amqps://localhost/orders", Address("orders")),
        ("amqp://localhost:5672/orders/", Address("orders")),
        ("sb://localhost/orders/$DeadLetterQueue", Address("orders", SubQueue.DEAD_LETTER)),
        ("sb://localhost/orders/$management", Address("orders")),
        ("sb://localhost/topic/Subscriptions/s", Address("topic/Subscriptions/s")),
    ],
)
def test_the_entity_of_the_audience_is_looked_up(desk: Desk, audience: str, address: Address) -> None:
    sender, _ = desk.pair("$cbs")
    desk.put_token(sender, audience, token_for(desk, "sb://localhost/"))
    assert desk.take(LookUp).address == address


def test_a_token_for_the_whole_namespace_needs_no_look_up(desk: Desk) -> None:
    sender, _ = desk.pair("$cbs")
    desk.put_token(sender, "sb://localhost/")
    assert desk.commands == []
    assert desk.response().status == 202


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"token": "nonsense"}, 400, "MalformedToken:"),
        ({"token": None, "name": None}, 400, "MalformedToken:"),
        ({"name": "x" * 2000}, 400, "MalformedToken:"),
        ({"type": None}, 400, "MalformedToken:"),
        ({"body": 7}, 400, "MalformedToken:"),
        ({"type": "jwt", "token": "eyJ0.e30.x"}, 401, "InvalidToken:"),
        ({"key": "wrong"}, 401, "InvalidSignature:"),
        ({"rule": "nobody"}, 401, "InvalidSignature:"),
        ({"lives_ms": 0}, 401, "ExpiredToken:"),
        ({"scope": "sb://localhost/other"}, 401, "InvalidAudience:"),
        ({"operation": "delete-token"}, 501, "The operation 'delete-token'"),
    ],
)
def test_failures_have_the_status_that_clients_map(
    desk: Desk, change: dict[str, Any], status: int, text: str
) -> None:
    """Req: R-04, T-02. Source: wire contract 1.7. No secret is in the answer or the log.

    There is no error condition: with one, the official Python client shows neither status nor text.
    """
    sender, _ = desk.pair("$cbs")
    token = change.get("token") or token_for(
        desk,
        change.get("scope", AUDIENCE),
        name=change.get("rule", KEY_NAME),
        key=change.get("key", KEY),
        lives_ms=change.get("lives_ms", 60_000),
    )
    properties = {"type": "servicebus.windows.net:sastoken", "name": AUDIENCE}
    properties.update({key: value for key, value in change.items() if key in properties})
    desk.request(sender, change.get("operation", "put-token"), change.get("body", token), **properties)
    response = desk.response()
    assert response.status == status
    assert response.description.startswith(text)
    assert "TrackingId:" in response.description
    assert response.condition is None
    assert desk.commands == []
    for shown in (response.raw, repr(desk.logged).encode()):
        assert token.encode() not in shown
        assert KEY.encode() not in shown
    desk.attach(Role.SENDER, "orders")
    assert str(desk.refusal().condition) == "amqp:unauthorized-access"


def test_a_missing_entity_fails_here_already(desk: Desk) -> None:
    """Req: T-03. The official client must see it as an authentication error. Source: wire contract 1.7."""
    sender, _ = desk.pair("$cbs")
    desk.put_token(sender, "sb://localhost/nowhere")
    desk.effect(Failed(desk.take(LookUp).reply_to, EntityNotFound("no such entity")))
    response = desk.response()
    assert (response.status, response.condition) == (404, None)
    assert response.description.startswith(
        "The messaging entity 'sb://localhost/nowhere' could not be found."
    )


def test_a_right_that_the_rule_lacks_is_reported_at_attach(desk: Desk) -> None:
    """Req: R-04. Source: wire contract 1.7: any right is enough for CBS."""
    desk = Desk(
        mechanism="ANONYMOUS", authority=Authority([SasRule(KEY_NAME, KEY, rights=frozenset({Right.LISTEN}))])
    )
    sender, _ = desk.pair("$cbs")
    assert put(desk, sender).status == 202
    desk.attach(Role.SENDER, "orders")
    error = desk.refusal()
    assert str(error.condition) == "amqp:unauthorized-access"
    assert "'Send' claim(s) are required" in error.description
    desk.attach(Role.RECEIVER, "orders")
    assert desk.take(OpenReceiver)


def test_a_token_opens_its_audience_and_what_is_below_alone(desk: Desk) -> None:
    """Req: R-04."""
    sender, _ = desk.pair("$cbs")
    assert put(desk, sender, token=token_for(desk, "sb://localhost/")).status == 202
    desk.attach(Role.RECEIVER, "orders/$DeadLetterQueue")
    assert desk.take(OpenReceiver)
    for other in ("invoices", "orders2"):
        desk.attach(Role.RECEIVER, other)
        assert str(desk.refusal().condition) == "amqp:unauthorized-access"


# Pairing of responses (wire contract 1.7)


def test_the_response_takes_the_receiver_of_the_request_s_own_session(desk: Desk) -> None:
    pairs = []
    for _ in range(2):
        desk.channel = desk.client.begin()
        pairs.append((desk.channel, *desk.pair("$cbs")))
    for channel, sender, receiver in pairs:
        desk.channel = channel
        assert (put(desk, sender).event.channel, receiver) == (channel, receiver)


def test_the_response_prefers_the_receiver_named_by_reply_to(desk: Desk) -> None:
    sender = desk.attach(Role.SENDER, "$cbs")
    receivers = {}
    for name in ("cbs-1", "cbs-2"):
        receivers[name] = desk.attach(Role.RECEIVER, "$cbs", name=name, near=name)
        desk.client.flow(desk.channel, receivers[name], 10)
    desk.pump()
    for name, handle in receivers.items():
        desk.request(sender, "bogus", None, reply_to=name)
        assert desk.response().event.handle == handle
    desk.request(sender, "bogus", None, reply_to="unknown")
    assert desk.response().event.handle == receivers["cbs-2"]  # the latest


def test_without_a_receiver_the_response_is_dropped_and_logged(desk: Desk) -> None:
    sender = desk.attach(Role.SENDER, "$cbs")
    desk.request(sender, "bogus", None)
    assert desk.take_event(DispositionReceived).state == ACCEPTED
    assert desk.logged[-1][0] == "reply without a link"
    assert not any(isinstance(event, DeliveryReceived) for event in desk.events)


# The life of a token


def opened_links(desk: Desk) -> tuple[int, int]:
    sender = desk.attach(Role.SENDER, "orders")
    receiver = desk.attach(Role.RECEIVER, "orders")
    desk.effect(SenderOpened(desk.take(OpenSender).link, QUEUE_ID, SIZE_MAX, False))
    desk.effect(ReceiverOpened(desk.take(OpenReceiver).link, QUEUE_ID))
    return sender, receiver


def tick(desk: Desk, ms: int) -> list[Command]:
    desk.clock.advance(ms)
    commands = desk.gateway.tick(desk.clock.now_ms)
    desk.events += desk.client.receive(desk.gateway.data_to_send(), desk.clock.now_ms)
    return commands


def test_when_a_token_runs_out_only_its_links_are_detached(desk: Desk) -> None:
    """Req: R-04. The connection lives on, and so do the links of other tokens. Source: wire contract 1.7."""
    cbs, _ = desk.pair("$cbs")
    assert put(desk, cbs, token=token_for(desk, lives_ms=60_000)).status == 202
    assert (
        put(
            desk, cbs, "sb://localhost/invoices", token_for(desk, "sb://localhost/invoices", lives_ms=90_000)
        ).status
        == 202
    )
    sender, receiver = opened_links(desk)
    desk.pair("orders/$management")
    other = desk.attach(Role.SENDER, "invoices")
    desk.effect(SenderOpened(desk.take(OpenSender).link, QUEUE_ID, SIZE_MAX, False))
    desk.events.clear()
    assert desk.gateway.next_deadline_ms() == desk.clock.now_ms + 60_000
    assert tick(desk, 59_999) == []
    assert not any(isinstance(event, LinkDetached) for event in desk.events)
    commands = tick(desk, 1)
    detached = [event for event in desk.events if isinstance(event, LinkDetached)]
    assert {event.handle for event in detached} >= {sender, receiver}
    assert len(detached) == 4
    assert other not in {event.handle for event in detached}
    assert {str(event.error.condition) for event in detached if event.error} == {"amqp:unauthorized-access"}
    until = datetime.fromtimestamp(desk.clock.now_ms // 1000, UTC)
    text = f"ExpiredToken: The token is expired. Expiration time: {until:%Y-%m-%dT%H:%M:%SZ}. "
    assert all(event.error and event.error.description.startswith(text) for event in detached)
    assert [type(command) for command in commands] == [
        CloseLink,
        CloseLink,
    ]  # locks stay with the broker (L-13)
    assert not desk.gateway.closing
    assert put(desk, cbs).status == 202  # the client comes back over the same links
    desk.attach(Role.SENDER, "orders")
    assert desk.take(OpenSender)


@pytest.mark.parametrize("step_ms", [-7_200_000, 7_200_000])
def test_a_token_is_judged_by_the_clock_that_its_maker_has(desk: Desk, step_ms: int) -> None:
    """Whoever makes tokens has set the same clock. A good one is not refused. Req: R-04."""
    cbs, _ = desk.pair("$cbs")
    desk.ahead_ms = step_ms
    assert put(desk, cbs, token=token_for(desk, lives_ms=step_ms + 60_000)).status == 202
    opened_links(desk)
    assert desk.gateway.next_deadline_ms() == desk.clock.now_ms + 60_000
    assert tick(desk, 59_999) == []
    assert [type(command) for command in tick(desk, 1)] == [CloseLink, CloseLink]


@pytest.mark.parametrize("step_ms", [-7_200_000, 7_200_000])
def test_a_token_that_has_run_out_by_the_clock_of_now_is_not_taken(desk: Desk, step_ms: int) -> None:
    """Req: R-04."""
    cbs, _ = desk.pair("$cbs")
    desk.ahead_ms = step_ms
    assert put(desk, cbs, token=token_for(desk, lives_ms=step_ms - 600_000)).status == 401
    assert put(desk, cbs, token=token_for(desk, lives_ms=step_ms + 600_000)).status == 202


def test_a_step_forwards_ends_a_token_at_the_next_tick(desk: Desk) -> None:
    """Req: R-04."""
    cbs, _ = desk.pair("$cbs")
    assert put(desk, cbs, token=token_for(desk, lives_ms=60_000)).status == 202
    opened_links(desk)
    desk.ahead_ms = 59_999
    assert tick(desk, 0) == []
    desk.ahead_ms = 7_200_000
    assert [type(command) for command in tick(desk, 0)] == [CloseLink, CloseLink]
    desk.attach(Role.SENDER, "orders")
    assert not any(isinstance(command, OpenSender) for command in desk.commands)


def test_a_step_backwards_lets_a_token_live_as_long_as_it_says(desk: Desk) -> None:
    """Req: R-04."""
    cbs, _ = desk.pair("$cbs")
    assert put(desk, cbs, token=token_for(desk, lives_ms=60_000)).status == 202
    opened_links(desk)
    desk.ahead_ms = -100_000
    assert tick(desk, 60_000) == []
    assert desk.gateway.next_deadline_ms() == desk.clock.now_ms + 100_000
    assert [type(command) for command in tick(desk, 100_000)] == [CloseLink, CloseLink]


def test_a_renewed_token_disturbs_no_link(desk: Desk) -> None:
    """Req: R-04. Source: wire contract 1.7."""
    cbs, _ = desk.pair("$cbs")
    put(desk, cbs, token=token_for(desk, lives_ms=60_000))
    opened_links(desk)
    tick(desk, 50_000)
    assert put(desk, cbs, token=token_for(desk, lives_ms=60_000)).status == 202
    desk.events.clear()
    tick(desk, 30_000)
    assert desk.events == []
    tick(desk, 30_000)
    assert sum(isinstance(event, LinkDetached) for event in desk.events) == 2


def test_an_expired_token_opens_no_new_link_even_before_the_tick(desk: Desk) -> None:
    """Req: R-04."""
    cbs, _ = desk.pair("$cbs")
    put(desk, cbs, token=token_for(desk, lives_ms=1_000))
    desk.clock.advance(1_000)
    desk.attach(Role.SENDER, "orders")
    assert str(desk.refusal().condition) == "amqp:unauthorized-access"


def test_the_number_of_audiences_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-05."""
    monkeypatch.setattr(claims, "GRANTS_MAX", 2)
    cbs, _ = desk.pair("$cbs")
    whole = token_for(desk, "sb://localhost/")
    assert [put(desk, cbs, f"sb://localhost/{name}", whole).status for name in ("a", "b", "a", "c")] == [
        202,
        202,
        202,
        403,
    ]


def test_a_pair_is_accepted_at_once(desk: Desk) -> None:
    """Source: wire contract 1.7, C21: credit at once, any number of pairs on one session."""
    senders = []
    for _ in range(3):
        sender, _ = desk.pair("$cbs")
        assert desk.client.credit(desk.channel, sender) == 100
        senders.append(sender)
    assert sum(isinstance(event, LinkAttached) for event in desk.events) == 6
    assert desk.commands == []
    assert [put(desk, sender).status for sender in senders] == [202, 202, 202]


# Tokens for what is absent


def put_for_absent(desk: Desk, sender: int, token: str | None = None) -> Response:
    desk.put_token(sender, AUDIENCE, token)
    for command in [command for command in desk.commands if isinstance(command, LookUp)]:
        desk.commands.remove(command)
        desk.effect(Failed(command.reply_to, EntityNotFound("orders")))
    return desk.response()


def pass_to(desk: Desk, at_ms: int) -> list[ConnectionClosed]:
    """Let time pass in steps of 10 s, and return how the connection ended, if it has."""
    while desk.clock.now_ms < at_ms:
        desk.clock.now_ms = min(desk.clock.now_ms + 10_000, at_ms)
        desk.commands += desk.gateway.tick(desk.clock.now_ms)
        desk.client.receive(b"", desk.clock.now_ms)
        desk.gateway.receive(EMPTY_FRAME, desk.clock.now_ms)
        desk.pump()
    return [event for event in desk.events if isinstance(event, ConnectionClosed)]


def test_a_valid_token_for_an_absent_entity_makes_the_peer_known(desk: Desk) -> None:
    """Req: C47. It is held to no limits of strangers, and it may not do anything yet."""
    sender, _ = desk.pair("$cbs")
    assert put_for_absent(desk, sender).status == 404
    assert desk.gateway.known
    for _ in range(STRANGER_CBS_PAIRS_MAX + 2):
        desk.pair("$cbs")
    assert not any(isinstance(event, LinkDetached) for event in desk.events)
    desk.attach(Role.SENDER, "other")
    assert str(desk.refusal().condition) == "amqp:unauthorized-access"


def test_who_may_and_finds_nothing_is_closed_after_five_minutes(desk: Desk) -> None:
    """Req: C47. Not after 60 s, with a text that says that there was no valid token; asking again changes
    nothing."""
    sender, _ = desk.pair("$cbs")
    desk.clock.now_ms += 20_000
    put_for_absent(desk, sender)
    since_ms = desk.clock.now_ms
    assert pass_to(desk, since_ms + 200_000) == []
    put_for_absent(desk, sender)
    assert pass_to(desk, since_ms + 299_999) == []
    [closed] = pass_to(desk, since_ms + 300_000)
    assert closed.error is not None
    assert closed.error.condition == "amqp:connection:forced"
    assert "inactive for 300000 ms" in str(closed.error.description)


def test_who_finds_something_in_time_stays(desk: Desk) -> None:
    """Req: C47."""
    sender, _ = desk.pair("$cbs")
    put_for_absent(desk, sender)
    assert pass_to(desk, desk.clock.now_ms + 250_000) == []
    assert put(desk, sender).status == 202
    put_for_absent(desk, sender)
    assert pass_to(desk, desk.clock.now_ms + 400_000) == []


def test_a_bad_token_for_an_absent_entity_leaves_a_stranger(desk: Desk) -> None:
    """Req: C47. So does one whose key goes while the entity is looked up."""
    sender, _ = desk.pair("$cbs")
    assert put_for_absent(desk, sender, token_for(desk, key="other")).status == 401
    assert not desk.gateway.known
    desk.put_token(sender, AUDIENCE)
    desk.authority.set_rules("", [SasRule("other", "key")])
    desk.effect(Failed(desk.take(LookUp).reply_to, EntityNotFound("orders")))
    assert not desk.gateway.known
    [closed] = pass_to(desk, desk.clock.now_ms + 60_000)
    assert closed.error is not None
    assert "no valid token or key within 60 s" in str(closed.error.description)
