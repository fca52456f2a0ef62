"""Message sessions through the `$management` node: their locks, state, listing, and messages by number."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.amqp.encoding import encode
from peeklock.amqp.events import DeliveryReceived, LinkDetached
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Array, Decimal32, Int, Long, Symbol, Timestamp, ULong
from peeklock.broker.vocabulary.commands import (
    Address,
    DeleteMessages,
    GetSessionState,
    ListSessions,
    Peek,
    ReceiveDeferred,
    RenewSessionLock,
    SetSessionState,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import (
    Done,
    Failed,
    MessagesFound,
    SessionLockRenewed,
    SessionsFound,
)
from peeklock.broker.vocabulary.errors import InvalidOperation, SessionLockLost
from peeklock.broker.vocabulary.message import MessageState
from peeklock.gateway.context import GatewayLimits
from peeklock.gateway.links.attach import SESSION_FILTER
from tests.gateway.harness import CONNECTION_ID, TOKEN, Harness, ask, message_bytes, refused, view

NODE = "orders/$management"


@pytest.fixture
def rig() -> Harness:
    return Harness()


@pytest.fixture
def sender(rig: Harness) -> int:
    return rig.pair(NODE)[0]


SESSION_BODY: dict[str, Any] = {
    "session-id": "s",
    "session-state": b"state",
    "last-updated-time": Timestamp(1),
    "skip": 0,
    "top": 1,
    "from-sequence-number": 1,
    "message-count": 1,
    "sequence-numbers": [1],
    "lock-tokens": [TOKEN],
    "disposition-status": "completed",
    "enqueued-time-utc": Timestamp(1),
}
NAMED_SESSION_OPERATIONS = ("renew-session-lock", "get-session-state", "set-session-state")
SESSION_OPERATIONS = (
    *NAMED_SESSION_OPERATIONS,
    "peek-message",
    "receive-by-sequence-number",
    "update-disposition",
    "batch-delete-messages",
)
"""All that take a session id."""


@pytest.mark.parametrize("session_id", ["s", "", "é" * 128, Symbol("s"), None])
@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("peek-message", Peek),
        ("receive-by-sequence-number", ReceiveDeferred),
        ("update-disposition", UpdateDisposition),
        ("batch-delete-messages", DeleteMessages),
    ],
)
def test_a_session_id_comes_along(
    rig: Harness, sender: int, session_id: str | None, operation: str, kind: type[Peek]
) -> None:
    """Req: G-05, G-02. The empty text is a session, null none. Source: wire contract 5.2."""
    ask(rig, sender, operation, {**SESSION_BODY, "session-id": session_id})
    assert rig.take(kind).session_id == session_id


def test_a_session_s_lock_is_renewed(rig: Harness, sender: int) -> None:
    """Req: G-02. Source: wire contract 5.2."""
    ask(rig, sender, "renew-session-lock", {"session-id": "s"})
    command = rig.take(RenewSessionLock)
    assert (command.address, command.session_id) == (Address("orders"), "s")
    assert command.reply_to.connection_id == CONNECTION_ID  # whose links must hold it
    rig.effect(SessionLockRenewed(command.reply_to, 1_700_000_060_000))
    response = rig.response()
    assert (response.status, response.body) == (200, {"expiration": 1_700_000_060_000})
    assert response.raw.endswith(b"\xa1\x0aexpiration" + encode(Timestamp(1_700_000_060_000)))


@pytest.mark.parametrize("operation", NAMED_SESSION_OPERATIONS)
def test_a_session_that_is_not_held_is_410(rig: Harness, sender: int, operation: str) -> None:
    """Req: G-02, G-03, L-11. Source: wire contract 5.2, 10.4."""
    ask(rig, sender, operation, SESSION_BODY)
    command: Any
    [command] = rig.commands
    rig.effect(Failed(command.reply_to, SessionLockLost("lapsed")))
    refused(rig, 410, "com.microsoft:session-lock-lost")


def test_a_session_s_state_is_set_and_cleared(rig: Harness, sender: int) -> None:
    """Req: G-03. The Go client clears by the empty binary and then wants null. Source: wire contract 5.2."""
    for state, kept in ((b"state", b"state"), (b"", None), (None, None)):
        ask(rig, sender, "set-session-state", {"session-id": "s", "session-state": state})
        command = rig.take(SetSessionState)
        assert (command.address, command.session_id, command.state) == (Address("orders"), "s", kept)
        rig.effect(Done(command.reply_to))
        response = rig.response()
        assert (response.status, response.body) == (200, {})


def test_a_state_of_the_largest_tier_fits_a_request_and_its_answer(rig: Harness, sender: int) -> None:
    """Req: G-03, A-05. 1 MiB. Source: wire contract 10.1."""
    state = bytes(1_048_576)
    body = {"session-id": "é" * 128, "session-state": state}
    ask(rig, sender, "set-session-state", body, com__microsoft__tracking__id="t" * 1000)
    assert rig.take(SetSessionState).state == state
    ask(rig, sender, "get-session-state", {"session-id": "s"})
    rig.payloads[1] = state
    found = MessagesFound(rig.take(GetSessionState).reply_to, [view(state, 1, bare_offset=0)])
    rig.effect(found)
    assert rig.response().body == {"session-state": state}


def test_a_session_s_state_is_answered_when_its_body_is_there(rig: Harness, sender: int) -> None:
    """Req: G-03. Null with its key where none is set: Python looks it up. Source: wire contract 5.2."""
    ask(rig, sender, "get-session-state", {"session-id": "s"})
    command = rig.take(GetSessionState)
    assert (command.address, command.session_id) == (Address("orders"), "s")
    rig.effect(MessagesFound(command.reply_to, []))
    response = rig.response()
    assert (response.status, response.body) == (200, {"session-state": None})
    ask(rig, sender, "get-session-state", {"session-id": "s"})
    rig.effect(MessagesFound(rig.take(GetSessionState).reply_to, [view(b"", 3, bare_offset=0)]))
    assert not any(isinstance(event, DeliveryReceived) for event in rig.events)
    assert rig.gateway.bodies_wanted() == {3}
    rig.gateway.bodies_arrived(lambda message: b"raw, no message", rig.clock.now_ms)
    rig.pump()
    response = rig.response()
    assert response.body == {"session-state": b"raw, no message"}
    assert response.raw.endswith(b"\xa1\x0dsession-state" + encode(b"raw, no message"))


@pytest.mark.parametrize(
    ("at", "since"),
    [
        (Timestamp(253_402_300_799_999), None),
        (Timestamp(253_402_300_800_000), None),
        (Timestamp(253_402_300_799_998), 253_402_300_799_998),
        (Timestamp(1_700_000_000_000), 1_700_000_000_000),
        (Timestamp(-(2**63)), -(2**63)),
        (Timestamp(2**63 - 1), None),
    ],
)
def test_sessions_are_listed_from_a_time_on_or_all(
    rig: Harness, sender: int, at: Timestamp, since: int | None
) -> None:
    """Req: G-07, C45. The end of time asks for all. Source: wire contract 5.2."""
    ask(rig, sender, "get-message-sessions", {"last-updated-time": at, "skip": Int(0), "top": Int(100)})
    command = rig.take(ListSessions)
    assert (command.address, command.updated_since_ms) == (Address("orders"), since)
    assert (command.skip, command.top) == (0, 100)


def test_a_page_of_sessions_tells_where_the_next_begins(rig: Harness, sender: int) -> None:
    """Req: G-07. An int and an array of strings. Source: wire contract 5.2."""
    body = {"last-updated-time": Timestamp(253_402_300_799_999), "skip": Int(2**31 - 1), "top": Long(10**9)}
    ask(rig, sender, "get-message-sessions", body)
    command = rig.take(ListSessions)
    assert (command.skip, command.top) == (2**31 - 1, GatewayLimits().reply_count_max)
    rig.effect(SessionsFound(command.reply_to, ["", "a", "é" * 128], 5))
    response = rig.response()
    assert (response.status, response.condition) == (200, None)
    assert response.body == {"skip": 5, "sessions-ids": ["", "a", "é" * 128]}
    golden = encode({"skip": Int(5), "sessions-ids": Array.of(str, ["", "a", "é" * 128])})
    assert response.raw.endswith(golden)


def test_no_sessions_are_204_with_a_condition(rig: Harness, sender: int) -> None:
    """Req: G-07. Source: wire contract 5.2."""
    ask(rig, sender, "get-message-sessions", {"last-updated-time": Timestamp(1), "skip": 0, "top": 1})
    rig.effect(SessionsFound(rig.take(ListSessions).reply_to, [], 0))
    response = rig.response()
    assert (response.status, response.body) == (204, {})
    assert str(response.condition) == "com.microsoft:session-not-found"
    assert b"\xa1\x0eerrorCondition\xa3" in response.raw


@pytest.mark.parametrize("operation", ["get-message-sessions", *NAMED_SESSION_OPERATIONS])
def test_an_entity_without_sessions_is_not_allowed(rig: Harness, sender: int, operation: str) -> None:
    """Req: G-07. Source: wire contract 5.2."""
    ask(rig, sender, operation, SESSION_BODY)
    command: Any
    [command] = rig.commands
    rig.effect(Failed(command.reply_to, InvalidOperation("no sessions")))
    refused(rig, 400, "amqp:not-allowed")


def test_deferred_messages_of_a_session_have_a_token_and_the_end_of_its_lock(
    rig: Harness, sender: int
) -> None:
    """Req: G-05, S-02. Partitioned too. Source: wire contract C4, 10.4."""
    ask(rig, sender, "receive-by-sequence-number", SESSION_BODY)
    command = rig.take(ReceiveDeferred)
    number = 2 << 48 | 3
    payload = rig.payloads[number] = message_bytes()
    found = view(
        payload, number, lock_token=TOKEN.bytes_le, locked_until_ms=99_000, state=MessageState.DEFERRED
    )
    rig.effect(MessagesFound(command.reply_to, [found], partitioned=True))
    [item] = rig.response().body["messages"]
    sections = scan(item["message"])
    annotations = sections.decode_message_annotations()
    assert item["lock-token"] == TOKEN
    assert sections.decode_delivery_annotations() == {"x-opt-lock-token": TOKEN}
    assert annotations["x-opt-locked-until"] == 99_000
    assert (annotations["x-opt-partition-id"], annotations["x-opt-sequence-number"]) == (2, number)


# Refusals


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        *[
            (operation, {**SESSION_BODY, "session-id": session_id})
            for operation in SESSION_OPERATIONS
            for session_id in (7, b"s", ["s"], "s" * 129, {"s": 1})
        ],
        *[(operation, {}) for operation in NAMED_SESSION_OPERATIONS],
        *[(operation, {"session-id": None, "session-state": b""}) for operation in NAMED_SESSION_OPERATIONS],
        ("set-session-state", {"session-id": "s"}),
        ("set-session-state", {"session-id": "s", "session-state": "text"}),
        ("set-session-state", {"session-id": "s", "session-state": [b"list"]}),
        ("set-session-state", {"session-id": "s", "session-state": Decimal32(b"1234")}),
        ("get-message-sessions", {}),
        ("get-message-sessions", {"skip": 0, "top": 1}),
        ("get-message-sessions", {"last-updated-time": "never", "skip": 0, "top": 1}),
        ("get-message-sessions", {"last-updated-time": Timestamp(1), "top": 1}),
        ("get-message-sessions", {"last-updated-time": Timestamp(1), "skip": 0}),
        ("get-message-sessions", {"last-updated-time": Timestamp(1), "skip": "0", "top": 1}),
        ("get-message-sessions", {"last-updated-time": Timestamp(1), "skip": 0, "top": 1.5}),
    ],
)
def test_a_malformed_request_is_400(rig: Harness, sender: int, operation: str, body: Any) -> None:
    """Req: R-05, T-03, G-02. Source: wire contract 5.1. The link lives on."""
    ask(rig, sender, operation, body)
    refused(rig, 400, "com.microsoft:argument-error")
    assert rig.commands == []
    assert not any(isinstance(event, LinkDetached) for event in rig.events)


@pytest.mark.parametrize(("skip", "top"), [(-1, 1), (2**31, 1), (ULong(2**64 - 1), 1), (0, 0), (0, -1)])
def test_sessions_are_listed_from_an_int_on(rig: Harness, sender: int, skip: int, top: int) -> None:
    """Req: G-07, R-05. The next skip is answered as an int."""
    body = {"last-updated-time": Timestamp(1), "skip": skip, "top": top}
    ask(rig, sender, "get-message-sessions", body)
    refused(rig, 400, "com.microsoft:argument-out-of-range")
    assert rig.commands == []


@pytest.mark.parametrize(
    ("operation", "kind"),
    [
        ("peek-message", Peek),
        ("receive-by-sequence-number", ReceiveDeferred),
        ("update-disposition", UpdateDisposition),
    ],
)
def test_a_request_is_about_the_session_of_the_receiver_that_it_names(
    rig: Harness, sender: int, operation: str, kind: type[Peek]
) -> None:
    """Req: G-05. As the Go client asks; what the request itself says goes before. Source: wire contract
    5.1."""

    def asked(link: object, **changed: Any) -> str | None:
        body = {key: value for key, value in SESSION_BODY.items() if key != "session-id"} | changed
        ask(rig, sender, operation, body, associated_link_name=link)
        return rig.take(kind).session_id

    receiver, _ = rig.receiver(
        name="mine", filter={SESSION_FILTER: None}, opened={"session_id": "held", "locked_until_ms": 1}
    )
    rig.receiver(name="without a session")
    assert asked("mine") == "held"
    assert asked("mine", **{"session-id": "other"}) == "other"
    for stranger in ("without a session", "unknown", 5):
        assert asked(stranger) is None
    other, _ = rig.pair("invoices/$management")
    ask(rig, other, operation, SESSION_BODY | {"session-id": None}, associated_link_name="mine")
    assert rig.take(kind).session_id is None
    rig.client.detach(rig.channel, receiver)
    rig.pump()
    assert asked("mine") is None
