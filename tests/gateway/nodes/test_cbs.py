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
from peeklock.broker.vocabulary.commands import (
    Address,
    CloseLink,
    Command,
    LookUp,
    OpenReceiver,
    OpenSender,
    SubQueue,
)
from peeklock.broker.vocabulary.effects import EntityFound, Failed, ReceiverOpened, SenderOpened
from peeklock.broker.vocabulary.errors import EntityNotFound
from peeklock.gateway import claims
from peeklock.gateway.bounds import STRANGER_CBS_PAIRS_MAX
from tests.gateway.harness import KEY, KEY_NAME, QUEUE_ID, SIZE_MAX, Harness, Response, view_of_queue

AUDIENCE = "sb://localhost/orders"


@pytest.fixture
def rig() -> Harness:
    return Harness(mechanism="ANONYMOUS")


def put(
    rig: Harness, sender: int, audience: str = AUDIENCE, token: str | None = None, **properties: Any
) -> Response:
    """Put a token for an entity that is there, and give the response."""
    rig.put_token(sender, audience, token, **properties)
    for command in [command for command in rig.commands if isinstance(command, LookUp)]:
        rig.commands.remove(command)
        rig.effect(EntityFound(command.reply_to, view_of_queue()))
    return rig.response()


def token_for(
    rig: Harness,
    audience: str = AUDIENCE,
    *,
    name: str = KEY_NAME,
    key: str = KEY,
    lives_ms: int = 3_600_000,
) -> str:
    return generate(audience, name, key, rig.clock.now_ms + lives_ms)


def test_a_good_token_is_answered_202_and_opens_the_entity(rig: Harness) -> None:
    """Req: R-04. Source: wire contract 1.7."""
    sender, _ = rig.pair("$cbs")
    rig.put_token(sender, AUDIENCE)
    assert rig.take_event(DispositionReceived).state == ACCEPTED  # settled before anything else (0.6)
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)
    look_up = rig.take(LookUp)
    assert look_up.address == Address("orders")
    rig.effect(EntityFound(look_up.reply_to, view_of_queue()))
    response = rig.response()
    assert (response.status, response.description, response.condition, response.body) == (
        202,
        "Accepted",
        None,
        None,
    )
    assert response.event.settled
    rig.attach(Role.SENDER, "orders")
    rig.take(OpenSender)


def test_the_response_s_bytes_are_what_clients_read(rig: Harness) -> None:
    """Golden bytes: status-code is an int in full, the keys are strings. Source: wire contract 0.3, 0.4,
    1.7."""
    sender, _ = rig.pair("$cbs")
    raw = put(rig, sender).raw
    assert raw == (
        b"\x00\x53\x73\xc0\x17\x06\x40\x40\x40\x40\x40\x98"
        + uuid.UUID(int=1).bytes
        + b"\x00\x53\x74\xc1\x31\x04\xa1\x0bstatus-code\x71\x00\x00\x00\xca"
        + b"\xa1\x12status-description\xa1\x08Accepted"
        + b"\x00\x53\x77\x40"
    )


@pytest.mark.parametrize("message_id", [uuid.UUID(int=77), "text-id", ULong(9), b"binary"])
def test_the_correlation_id_echoes_type_and_value(rig: Harness, message_id: Any) -> None:
    """Source: wire contract 1.7."""
    sender, _ = rig.pair("$cbs")
    response = put(rig, sender)
    rig.request(sender, "bogus", None, message_id=message_id)
    response = rig.response()
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
def test_the_entity_of_the_audience_is_looked_up(rig: Harness, audience: str, address: Address) -> None:
    sender, _ = rig.pair("$cbs")
    rig.put_token(sender, audience, token_for(rig, "sb://localhost/"))
    assert rig.take(LookUp).address == address


def test_a_token_for_the_whole_namespace_needs_no_look_up(rig: Harness) -> None:
    sender, _ = rig.pair("$cbs")
    rig.put_token(sender, "sb://localhost/")
    assert rig.commands == []
    assert rig.response().status == 202


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
    rig: Harness, change: dict[str, Any], status: int, text: str
) -> None:
    """Req: R-04, T-02. Source: wire contract 1.7. No secret is in the answer or the log.

    There is no error condition: with one, the official Python client shows neither status nor text.
    """
    sender, _ = rig.pair("$cbs")
    token = change.get("token") or token_for(
        rig,
        change.get("scope", AUDIENCE),
        name=change.get("rule", KEY_NAME),
        key=change.get("key", KEY),
        lives_ms=change.get("lives_ms", 60_000),
    )
    properties: dict[str, Any] = {"type": "servicebus.windows.net:sastoken", "name": AUDIENCE}
    properties.update({key: value for key, value in change.items() if key in properties})
    rig.request(sender, change.get("operation", "put-token"), change.get("body", token), **properties)
    response = rig.response()
    assert response.status == status
    assert response.description.startswith(text)
    assert "TrackingId:" in response.description
    assert response.condition is None
    assert rig.commands == []
    for shown in (response.raw, repr(rig.logged).encode()):
        assert token.encode() not in shown
        assert KEY.encode() not in shown
    rig.attach(Role.SENDER, "orders")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"


def test_a_missing_entity_fails_here_already(rig: Harness) -> None:
    """Req: T-03. The official client must see it as an authentication error. Source: wire contract 1.7."""
    sender, _ = rig.pair("$cbs")
    rig.put_token(sender, "sb://localhost/nowhere")
    rig.effect(Failed(rig.take(LookUp).reply_to, EntityNotFound("no such entity")))
    response = rig.response()
    assert (response.status, response.condition) == (404, None)
    assert response.description.startswith(
        "The messaging entity 'sb://localhost/nowhere' could not be found."
    )


def test_a_right_that_the_rule_lacks_is_reported_at_attach(rig: Harness) -> None:
    """Req: R-04. Source: wire contract 1.7: any right is enough for CBS."""
    rig = Harness(
        mechanism="ANONYMOUS", authority=Authority([SasRule(KEY_NAME, KEY, rights=frozenset({Right.LISTEN}))])
    )
    sender, _ = rig.pair("$cbs")
    assert put(rig, sender).status == 202
    rig.attach(Role.SENDER, "orders")
    error = rig.refusal()
    assert str(error.condition) == "amqp:unauthorized-access"
    assert "'Send' claim(s) are required" in error.description
    rig.attach(Role.RECEIVER, "orders")
    rig.take(OpenReceiver)


def test_a_token_opens_its_audience_and_what_is_below_alone(rig: Harness) -> None:
    """Req: R-04."""
    sender, _ = rig.pair("$cbs")
    assert put(rig, sender, token=token_for(rig, "sb://localhost/")).status == 202
    rig.attach(Role.RECEIVER, "orders/$DeadLetterQueue")
    rig.take(OpenReceiver)
    for other in ("invoices", "orders2"):
        rig.attach(Role.RECEIVER, other)
        assert str(rig.refusal().condition) == "amqp:unauthorized-access"


# Pairing of responses (wire contract 1.7)


def test_the_response_takes_the_receiver_of_the_request_s_own_session(rig: Harness) -> None:
    pairs = []
    for _ in range(2):
        rig.channel = rig.client.begin()
        pairs.append((rig.channel, *rig.pair("$cbs")))
    for channel, sender, receiver in pairs:
        rig.channel = channel
        assert (put(rig, sender).event.channel, receiver) == (channel, receiver)


def test_the_response_prefers_the_receiver_named_by_reply_to(rig: Harness) -> None:
    sender = rig.attach(Role.SENDER, "$cbs")
    receivers = {}
    for name in ("cbs-1", "cbs-2"):
        receivers[name] = rig.attach(Role.RECEIVER, "$cbs", name=name, near=name)
        rig.client.flow(rig.channel, receivers[name], 10)
    rig.pump()
    for name, handle in receivers.items():
        rig.request(sender, "bogus", None, reply_to=name)
        assert rig.response().event.handle == handle
    rig.request(sender, "bogus", None, reply_to="unknown")
    assert rig.response().event.handle == receivers["cbs-2"]  # the latest


def test_without_a_receiver_the_response_is_dropped_and_logged(rig: Harness) -> None:
    sender = rig.attach(Role.SENDER, "$cbs")
    rig.request(sender, "bogus", None)
    assert rig.take_event(DispositionReceived).state == ACCEPTED
    assert rig.logged[-1][0] == "reply without a link"
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)


# The life of a token


def opened_links(rig: Harness) -> tuple[int, int]:
    sender = rig.attach(Role.SENDER, "orders")
    receiver = rig.attach(Role.RECEIVER, "orders")
    rig.effect(SenderOpened(rig.take(OpenSender).link, QUEUE_ID, SIZE_MAX, False))
    rig.effect(ReceiverOpened(rig.take(OpenReceiver).link, QUEUE_ID))
    return sender, receiver


def tick(rig: Harness, ms: int) -> list[Command]:
    rig.clock.advance(ms)
    commands = rig.gateway.tick(rig.clock.now_ms)
    rig.events += rig.client.receive(rig.gateway.data_to_send(), rig.clock.now_ms)
    return commands


def test_when_a_token_runs_out_only_its_links_are_detached(rig: Harness) -> None:
    """Req: R-04. The connection lives on, and so do the links of other tokens. Source: wire contract 1.7."""
    cbs, _ = rig.pair("$cbs")
    assert put(rig, cbs, token=token_for(rig, lives_ms=60_000)).status == 202
    assert (
        put(
            rig,
            cbs,
            "sb://localhost/invoices",
            token_for(rig, "sb://localhost/invoices", lives_ms=90_000),
        ).status
        == 202
    )
    sender, receiver = opened_links(rig)
    rig.pair("orders/$management")
    other = rig.attach(Role.SENDER, "invoices")
    rig.effect(SenderOpened(rig.take(OpenSender).link, QUEUE_ID, SIZE_MAX, False))
    rig.events.clear()
    assert rig.gateway.next_deadline_ms() == rig.clock.now_ms + 60_000
    assert tick(rig, 59_999) == []
    assert not any(isinstance(event, LinkDetached) for event in rig.events)
    commands = tick(rig, 1)
    detached = [event for event in rig.events if isinstance(event, LinkDetached)]
    assert {event.handle for event in detached} >= {sender, receiver}
    assert len(detached) == 4
    assert other not in {event.handle for event in detached}
    assert {str(event.error.condition) for event in detached if event.error} == {"amqp:unauthorized-access"}
    until = datetime.fromtimestamp(rig.clock.now_ms // 1000, UTC)
    text = f"ExpiredToken: The token is expired. Expiration time: {until:%Y-%m-%dT%H:%M:%SZ}. "
    assert all(event.error and event.error.description.startswith(text) for event in detached)
    assert [type(command) for command in commands] == [
        CloseLink,
        CloseLink,
    ]  # locks stay with the broker (L-13)
    assert not rig.gateway.closing
    assert put(rig, cbs).status == 202  # the client comes back over the same links
    rig.attach(Role.SENDER, "orders")
    rig.take(OpenSender)


@pytest.mark.parametrize("step_ms", [-7_200_000, 7_200_000])
def test_a_token_is_judged_by_the_clock_that_its_maker_has(rig: Harness, step_ms: int) -> None:
    """Whoever makes tokens has set the same clock. A good one is not refused. Req: R-04."""
    cbs, _ = rig.pair("$cbs")
    rig.ahead_ms = step_ms
    assert put(rig, cbs, token=token_for(rig, lives_ms=step_ms + 60_000)).status == 202
    opened_links(rig)
    assert rig.gateway.next_deadline_ms() == rig.clock.now_ms + 60_000
    assert tick(rig, 59_999) == []
    assert [type(command) for command in tick(rig, 1)] == [CloseLink, CloseLink]


@pytest.mark.parametrize("step_ms", [-7_200_000, 7_200_000])
def test_a_token_that_has_run_out_by_the_clock_of_now_is_not_taken(rig: Harness, step_ms: int) -> None:
    """Req: R-04."""
    cbs, _ = rig.pair("$cbs")
    rig.ahead_ms = step_ms
    assert put(rig, cbs, token=token_for(rig, lives_ms=step_ms - 600_000)).status == 401
    assert put(rig, cbs, token=token_for(rig, lives_ms=step_ms + 600_000)).status == 202


def test_a_step_forwards_ends_a_token_at_the_next_tick(rig: Harness) -> None:
    """Req: R-04."""
    cbs, _ = rig.pair("$cbs")
    assert put(rig, cbs, token=token_for(rig, lives_ms=60_000)).status == 202
    opened_links(rig)
    rig.ahead_ms = 59_999
    assert tick(rig, 0) == []
    rig.ahead_ms = 7_200_000
    assert [type(command) for command in tick(rig, 0)] == [CloseLink, CloseLink]
    rig.attach(Role.SENDER, "orders")
    assert not any(isinstance(command, OpenSender) for command in rig.commands)


def test_a_step_backwards_lets_a_token_live_as_long_as_it_says(rig: Harness) -> None:
    """Req: R-04."""
    cbs, _ = rig.pair("$cbs")
    assert put(rig, cbs, token=token_for(rig, lives_ms=60_000)).status == 202
    opened_links(rig)
    rig.ahead_ms = -100_000
    assert tick(rig, 60_000) == []
    assert rig.gateway.next_deadline_ms() == rig.clock.now_ms + 100_000
    assert [type(command) for command in tick(rig, 100_000)] == [CloseLink, CloseLink]


def test_a_renewed_token_disturbs_no_link(rig: Harness) -> None:
    """Req: R-04. Source: wire contract 1.7."""
    cbs, _ = rig.pair("$cbs")
    put(rig, cbs, token=token_for(rig, lives_ms=60_000))
    opened_links(rig)
    tick(rig, 50_000)
    assert put(rig, cbs, token=token_for(rig, lives_ms=60_000)).status == 202
    rig.events.clear()
    tick(rig, 30_000)
    assert rig.events == []
    tick(rig, 30_000)
    assert sum(isinstance(event, LinkDetached) for event in rig.events) == 2


def test_an_expired_token_opens_no_new_link_even_before_the_tick(rig: Harness) -> None:
    """Req: R-04."""
    cbs, _ = rig.pair("$cbs")
    put(rig, cbs, token=token_for(rig, lives_ms=1_000))
    rig.clock.advance(1_000)
    rig.attach(Role.SENDER, "orders")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"


def test_the_number_of_audiences_is_bounded(rig: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-05."""
    monkeypatch.setattr(claims, "GRANTS_MAX", 2)
    cbs, _ = rig.pair("$cbs")
    whole = token_for(rig, "sb://localhost/")
    assert [put(rig, cbs, f"sb://localhost/{name}", whole).status for name in ("a", "b", "a", "c")] == [
        202,
        202,
        202,
        403,
    ]


def test_a_pair_is_accepted_at_once(rig: Harness) -> None:
    """Source: wire contract 1.7, C21: credit at once, any number of pairs on one session."""
    senders = []
    for _ in range(3):
        sender, _ = rig.pair("$cbs")
        assert rig.client.credit(rig.channel, sender) == 100
        senders.append(sender)
    assert sum(isinstance(event, LinkAttached) for event in rig.events) == 6
    assert rig.commands == []
    assert [put(rig, sender).status for sender in senders] == [202, 202, 202]


# Tokens for what is absent


def put_for_absent(rig: Harness, sender: int, token: str | None = None) -> Response:
    rig.put_token(sender, AUDIENCE, token)
    for command in [command for command in rig.commands if isinstance(command, LookUp)]:
        rig.commands.remove(command)
        rig.effect(Failed(command.reply_to, EntityNotFound("orders")))
    return rig.response()


def pass_to(rig: Harness, at_ms: int) -> list[ConnectionClosed]:
    """Let time pass in steps of 10 s, and return how the connection ended, if it has."""
    while rig.clock.now_ms < at_ms:
        rig.clock.now_ms = min(rig.clock.now_ms + 10_000, at_ms)
        rig.commands += rig.gateway.tick(rig.clock.now_ms)
        rig.client.receive(b"", rig.clock.now_ms)
        rig.gateway.receive(EMPTY_FRAME, rig.clock.now_ms)
        rig.pump()
    return [event for event in rig.events if isinstance(event, ConnectionClosed)]


def test_a_valid_token_for_an_absent_entity_makes_the_peer_known(rig: Harness) -> None:
    """Req: C47. It is held to no limits of strangers, and it may not do anything yet."""
    sender, _ = rig.pair("$cbs")
    assert put_for_absent(rig, sender).status == 404
    assert rig.gateway.known
    for _ in range(STRANGER_CBS_PAIRS_MAX + 2):
        rig.pair("$cbs")
    assert not any(isinstance(event, LinkDetached) for event in rig.events)
    rig.attach(Role.SENDER, "other")
    assert str(rig.refusal().condition) == "amqp:unauthorized-access"


def test_who_may_and_finds_nothing_is_closed_after_five_minutes(rig: Harness) -> None:
    """Req: C47. Not after 60 s, with a text that says that there was no valid token; asking again changes
    nothing."""
    sender, _ = rig.pair("$cbs")
    rig.clock.now_ms += 20_000
    put_for_absent(rig, sender)
    since_ms = rig.clock.now_ms
    assert pass_to(rig, since_ms + 200_000) == []
    put_for_absent(rig, sender)
    assert pass_to(rig, since_ms + 299_999) == []
    [closed] = pass_to(rig, since_ms + 300_000)
    assert closed.error is not None
    assert closed.error.condition == "amqp:connection:forced"
    assert "inactive for 300000 ms" in str(closed.error.description)


def test_who_finds_something_in_time_stays(rig: Harness) -> None:
    """Req: C47."""
    sender, _ = rig.pair("$cbs")
    put_for_absent(rig, sender)
    assert pass_to(rig, rig.clock.now_ms + 250_000) == []
    assert put(rig, sender).status == 202
    put_for_absent(rig, sender)
    assert pass_to(rig, rig.clock.now_ms + 400_000) == []


def test_a_bad_token_for_an_absent_entity_leaves_a_stranger(rig: Harness) -> None:
    """Req: C47. So does one whose key goes while the entity is looked up."""
    sender, _ = rig.pair("$cbs")
    assert put_for_absent(rig, sender, token_for(rig, key="other")).status == 401
    assert not rig.gateway.known
    rig.put_token(sender, AUDIENCE)
    rig.authority.set_rules("", [SasRule("other", "key")])
    rig.effect(Failed(rig.take(LookUp).reply_to, EntityNotFound("orders")))
    assert not rig.gateway.known
    [closed] = pass_to(rig, rig.clock.now_ms + 60_000)
    assert closed.error is not None
    assert "no valid token or key within 60 s" in str(closed.error.description)
