"""Cursors over the management node: what is read, what is answered, and a whole broker behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from peeklock.amqp.codec import decode_typed
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Int, Long, Timestamp
from peeklock.broker.vocabulary.commands import (
    Address,
    ClaimMessages,
    CommitClaims,
    ListCursors,
    ReadClaim,
    ReleaseCursor,
    SubQueue,
    TakeCursor,
)
from peeklock.broker.vocabulary.effects import (
    Claimed,
    ClaimsLeft,
    CursorsFound,
    CursorView,
    Failed,
    MessagesFound,
)
from peeklock.broker.vocabulary.errors import (
    ClaimCommitted,
    ClaimNotFound,
    CursorNotFound,
    CursorOwned,
    ServiceBusError,
)
from peeklock.gateway.context import GatewayLimits
from peeklock.testing.inprocess import InProcessBroker
from tests.gateway.harness import Harness, LiveHarness, Response, ask, message_bytes, refused, view
from tests.gateway.live import message, request, send

TAKE, CLAIM, READ, COMMIT, RELEASE, LIST = (
    f"peeklock:cursor-{name}" for name in ("take", "claim", "read", "commit", "release", "list")
)


@pytest.fixture
def rig() -> Harness:
    return Harness()


@pytest.fixture
def sender(rig: Harness) -> int:
    return rig.pair("orders/$management")[0]


def typed(response: Response) -> Any:
    """Return the body with the types of its values."""
    span = scan(response.raw).body
    assert span is not None
    return decode_typed(response.raw, span[0] + 3)[0]


@pytest.mark.parametrize(("after", "up_to"), [(None, None), (90_000, None), (None, 1_700_000_000_000)])
def test_claim_reads_its_limits_and_answers_what_was_claimed(
    rig: Harness, sender: int, after: int | None, up_to: int | None
) -> None:
    """Req: X-06."""
    body = {"cursor": "lake", "max-messages": Int(50), "max-bytes": Long(2**40), "expires-after": after}
    body["enqueued-time-utc"] = None if up_to is None else Timestamp(up_to)
    ask(rig, sender, CLAIM, body)
    command = rig.take(ClaimMessages)
    assert command == ClaimMessages(Address("orders"), "lake", 50, 2**40, command.reply_to, after, up_to)
    rig.effect(Claimed(command.reply_to, 7, 50, 2**33))
    response = rig.response()
    assert (response.status, response.condition) == (200, None)
    assert typed(response) == {"claim": Long(7), "count": Int(50), "bytes": Long(2**33)}
    assert [type(value) for value in typed(response).values()] == [Long, Int, Long]


def test_take_reads_the_owner_and_answers_the_cursor(rig: Harness, sender: int) -> None:
    """Req: X-06."""
    ask(rig, sender, TAKE, {"cursor": "lake", "owner": "host:1", "take-over": True, "expires-after": 90_000})
    command = rig.take(TakeCursor)
    assert command == TakeCursor(Address("orders"), "lake", "host:1", True, command.reply_to, 90_000)
    rig.effect(CursorsFound(command.reply_to, [CursorView("lake", 0, 0, 1, 2, [], "host:1", False)], 5))
    [found] = rig.response().body["cursors"]
    assert (found["owner"], found["has-read"]) == ("host:1", False)
    ask(rig, sender, TAKE, {"cursor": "lake", "owner": "host:1"})
    assert not rig.take(TakeCursor).take_over
    for wrong in ({}, {"owner": 7}, {"owner": "a", "take-over": 1}):
        ask(rig, sender, TAKE, {"cursor": "lake", **wrong})
        refused(rig, 400, "com.microsoft:argument-error")


@pytest.mark.parametrize(
    ("operation", "kind"), [(CLAIM, ClaimMessages), (READ, ReadClaim), (COMMIT, CommitClaims)]
)
def test_requests_carry_the_owner(rig: Harness, sender: int, operation: str, kind: type[Any]) -> None:
    """Req: X-06."""
    ask(rig, sender, operation, {**WHOLE, "owner": "host:1"})
    assert rig.take(kind).owner == "host:1"
    ask(rig, sender, operation, WHOLE)
    assert rig.take(kind).owner is None


def test_read_is_answered_as_a_peek_is(rig: Harness, sender: int) -> None:
    """Within the limits of a peek; a claimed message names its cursor. Req: X-06."""
    body = {"cursor": "lake", "claim": Long(7), "skip": 3, "max-messages": 10_000, "max-bytes": Long(2**40)}
    ask(rig, sender, READ, body)
    limits = GatewayLimits()
    command = rig.take(ReadClaim)
    assert command == ReadClaim(
        Address("orders"), "lake", 7, 3, limits.reply_count_max, limits.reply_bytes_max, command.reply_to
    )
    payload = message_bytes(b"hello", annotations={"x-opt-peeklock-cursor": "forged"})
    shown = view(payload, 5, cursor="lake")
    rig.payloads[shown.message.body_row] = payload
    rig.effect(MessagesFound(command.reply_to, [shown]))
    [found] = rig.response().body["messages"]
    annotations = scan(found["message"]).decode_message_annotations()
    assert annotations["x-opt-peeklock-cursor"] == "lake"
    assert annotations["x-opt-message-state"] == 0
    ask(rig, sender, READ, body)
    rig.effect(MessagesFound(rig.take(ReadClaim).reply_to, []))
    assert rig.response().status == 204


def test_commit_and_release_answer_how_much_is_left(rig: Harness, sender: int) -> None:
    """Req: X-06."""
    ask(rig, sender, COMMIT, {"cursor": "lake", "claim": Long(7)})
    command = rig.take(CommitClaims)
    assert (command.address, command.cursor, command.up_to_no) == (Address("orders"), "lake", 7)
    rig.effect(ClaimsLeft(command.reply_to, 3))
    response = rig.response()
    assert (response.status, typed(response)) == (200, {"left": Int(3)})
    ask(rig, sender, RELEASE, {"cursor": "lake"})
    released = rig.take(ReleaseCursor)
    assert (released.address, released.cursor) == (Address("orders"), "lake")
    rig.effect(ClaimsLeft(released.reply_to, 0))
    assert rig.response().body == {"left": 0}


def test_list_shows_cursors_with_their_claims(rig: Harness) -> None:
    """Req: X-06."""
    sender, _ = rig.pair("orders/$DeadLetterQueue/$management")
    ask(rig, sender, LIST, {})
    command = rig.take(ListCursors)
    assert command.address == Address("orders", SubQueue.DEAD_LETTER)
    views = [
        CursorView(
            "lake", 3, 1, 99, 60_000, [(2, 5, 500), (3, 1, 2**33)], "host:1", False, 2**33, 77, (4, 9)
        ),
        CursorView("new", 0, 0, 1, 2, []),
    ]
    rig.effect(CursorsFound(command.reply_to, views, 1234))
    response = rig.response()
    assert response.status == 200
    assert typed(response)["now"] == Timestamp(1234)
    [lake, new] = typed(response)["cursors"]
    assert lake == {
        "cursor": "lake",
        "last-claim": Long(3),
        "committed": Long(1),
        "last-used": Timestamp(99),
        "expires-after": Long(60_000),
        "claims": [[Long(2), Int(5), Long(500)], [Long(3), Int(1), Long(2**33)]],
        "owner": "host:1",
        "has-read": False,
        "backlog": Long(2**33),
        "oldest-enqueued": Timestamp(77),
        "undone": [Long(4), Long(9)],
    }
    assert type(lake["last-used"]) is Timestamp
    assert (new["claims"], new["owner"], new["oldest-enqueued"], new["undone"]) == ([], None, None, None)
    ask(rig, sender, LIST, {})
    rig.effect(CursorsFound(rig.take(ListCursors).reply_to, [], 5))
    assert rig.response().body == {"cursors": [], "now": 5}


WHOLE = {"cursor": "lake", "claim": 1, "skip": 0, "max-messages": 1, "max-bytes": 1}


@pytest.mark.parametrize("operation", [TAKE, CLAIM, READ, COMMIT, RELEASE])
@pytest.mark.parametrize("wrong", [None, 7, b"lake"])
def test_a_request_without_a_cursor_is_400(rig: Harness, sender: int, operation: str, wrong: Any) -> None:
    ask(rig, sender, operation, {**WHOLE, "cursor": wrong})
    refused(rig, 400, "com.microsoft:argument-error")
    assert rig.commands == []


@pytest.mark.parametrize(
    ("operation", "key"),
    [
        (CLAIM, "max-messages"),
        (CLAIM, "max-bytes"),
        (CLAIM, "expires-after"),
        (READ, "claim"),
        (READ, "skip"),
        (READ, "max-messages"),
        (READ, "max-bytes"),
        (COMMIT, "claim"),
    ],
)
def test_a_request_with_a_wrong_number_is_400(rig: Harness, sender: int, operation: str, key: str) -> None:
    ask(rig, sender, operation, {**WHOLE, key: "1"})
    refused(rig, 400, "com.microsoft:argument-error")
    if key != "claim":  # which the broker judges
        ask(rig, sender, operation, {**WHOLE, key: -1})
        refused(rig, 400, "com.microsoft:argument-out-of-range")
    assert rig.commands == []


@pytest.mark.parametrize(
    ("error", "status", "condition"),
    [
        (CursorNotFound("gone"), 404, "peeklock:cursor-not-found"),
        (ClaimNotFound("never made"), 404, "peeklock:claim-not-found"),
        (ClaimCommitted("gone"), 410, "peeklock:claim-committed"),
        (CursorOwned("another's"), 409, "peeklock:cursor-owned"),
    ],
)
def test_refusals_of_cursors_have_conditions_of_their_own(
    rig: Harness, sender: int, error: ServiceBusError, status: int, condition: str
) -> None:
    """Req: X-06."""
    ask(rig, sender, COMMIT, WHOLE)
    rig.effect(Failed(rig.take(CommitClaims).reply_to, error))
    refused(rig, status, condition)


# A whole broker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    broker = InProcessBroker()
    broker.create_queue("orders")
    yield broker
    broker.namespace.check(broker.clock.now_ms)


def texts(response: Response) -> list[str]:
    """Return the bodies of the messages in an answer."""
    return [scan(item["message"]).decode_body()[0][1].decode() for item in response.body["messages"]]


def test_a_cursor_claims_reads_commits_and_is_released(broker: InProcessBroker) -> None:
    """Req: X-06."""
    rig = LiveHarness(broker)
    send(rig, *(message(str(number)) for number in range(5)))
    limits = {"cursor": "lake", "max-messages": 2, "max-bytes": 1_000_000}
    claimed = request(rig, "orders", CLAIM, limits).body
    assert (claimed["claim"], claimed["count"]) == (1, 2)
    assert request(rig, "orders", CLAIM, limits).body["claim"] == 2
    reading = {**limits, "claim": 1, "skip": 1}
    assert texts(request(rig, "orders", READ, reading)) == ["1"]
    assert request(rig, "orders", READ, {**reading, "skip": 2}).status == 204
    rig.listen("orders", credit=10)
    assert len(rig.deliveries()) == 1  # the fifth
    peeked = request(rig, "orders", "peek-message", {"from-sequence-number": 0, "message-count": 10})
    cursors = [
        scan(item["message"]).decode_message_annotations().get("x-opt-peeklock-cursor")
        for item in peeked.body["messages"]
    ]
    assert cursors == ["lake"] * 4 + [None]
    assert request(rig, "orders", COMMIT, {"cursor": "lake", "claim": 1}).body == {"left": 0}
    gone = request(rig, "orders", READ, reading)
    assert (gone.status, str(gone.condition)) == (410, "peeklock:claim-committed")
    [listed] = request(rig, "orders", LIST, {}).body["cursors"]
    assert (listed["last-claim"], listed["committed"]) == (2, 1)
    assert [claim[:2] for claim in listed["claims"]] == [[2, 2]]
    assert request(rig, "orders", RELEASE, {"cursor": "lake"}).body == {"left": 0}
    assert len(rig.deliveries()) == 2
    missing = request(rig, "orders", RELEASE, {"cursor": "lake"})
    assert (missing.status, str(missing.condition)) == (404, "peeklock:cursor-not-found")
    assert "no cursor 'lake'" in missing.description
