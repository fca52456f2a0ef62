"""One message deleted or changed by its number, over the API."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.auth import Authority, SasRule
from peeklock.auth.rights import Right
from tests.api.asking import ApiBroker, segment

MESSAGES = "/entities/q/messages"


@pytest.fixture
def broker() -> ApiBroker:
    rules = [
        SasRule("RootManageSharedAccessKey", "SAS_KEY_VALUE"),
        SasRule("writer", "w" * 44, rights=frozenset({Right.SEND})),
    ]
    made = ApiBroker(authority=Authority(rules))
    made.clock.now_ms = 1_704_067_200_000
    made.create_queue("q")
    made.ok(
        "POST", MESSAGES, [{"body": "1"}, {"body": "2"}, {"scheduledEnqueueTime": "2024-01-02T00:00:00Z"}]
    )
    return made


def test_a_message_in_any_state_is_deleted(broker: ApiBroker) -> None:
    assert broker.http("PATCH", f"{MESSAGES}/2", {"to": "deferred"}).status == 204
    for number in (1, 2, 3):
        assert broker.http("DELETE", f"{MESSAGES}/{number}").status == 204
        gone = broker.http("DELETE", f"{MESSAGES}/{number}")
        assert (gone.status, gone.problem) == (404, "message-not-found")
    assert broker.ok("GET", MESSAGES)["messages"] == []


def test_a_message_is_dead_lettered_and_deleted_there(broker: ApiBroker) -> None:
    change = {"to": "deadLetter", "reason": "wrong", "description": "no such street"}
    assert broker.http("PATCH", f"{MESSAGES}/1", change).status == 204
    where = f"/entities/{segment('q/$deadletterqueue')}/messages"
    (dead,) = broker.ok("GET", where)["messages"]
    assert dead["properties"]["DeadLetterReason"] == "wrong"
    assert dead["properties"]["DeadLetterErrorDescription"] == "no such street"
    assert (dead["sequenceNumber"], dead["deliveryCount"]) == (1, 0)
    refused = broker.http("PATCH", f"{where}/1", change)
    assert (refused.status, refused.problem) == (409, "invalid-operation")
    assert broker.http("DELETE", f"{where}/1").status == 204


def test_a_deferred_message_is_received_by_its_number(broker: ApiBroker) -> None:
    assert broker.http("PATCH", f"{MESSAGES}/2", {"to": "deferred"}).status == 204
    assert broker.ok("GET", f"{MESSAGES}/2")["state"] == "deferred"
    (delivery,) = broker.ok("POST", "/entities/q/locks", {"sequenceNumbers": [2]})["deliveries"]
    assert delivery["message"]["body"] == "2"


@pytest.mark.parametrize("body", [None, {"to": "deadLetter"}, {"to": "deferred"}])
def test_a_locked_message_is_left_to_who_holds_it(broker: ApiBroker, body: Any) -> None:
    broker.ok("POST", "/entities/q/locks", {})
    refused = broker.http("PATCH" if body else "DELETE", f"{MESSAGES}/1", body)
    assert (refused.status, refused.problem) == (409, "message-locked")
    assert "'q'" in refused.json["detail"]


def test_a_scheduled_message_is_moved_in_time(broker: ApiBroker) -> None:
    change = {"scheduledEnqueueTime": "2024-01-03T00:00:00.5Z"}
    assert broker.http("PATCH", f"{MESSAGES}/3", change).status == 204
    assert broker.ok("GET", f"{MESSAGES}/3")["scheduledEnqueueTime"] == "2024-01-03T00:00:00.500Z"
    assert broker.http("PATCH", f"{MESSAGES}/1", change).problem == "message-not-found"
    refused = broker.http("PATCH", f"{MESSAGES}/3", {"to": "deferred"})
    assert (refused.status, refused.problem) == (409, "invalid-operation")
    broker.ok("PATCH", f"{MESSAGES}/3", {"scheduledEnqueueTime": "2000-01-01T00:00:00Z"})
    broker.run()
    assert broker.queue("q").active_count == 3


def test_who_may_send_alone_may_change_what_is_scheduled(broker: ApiBroker) -> None:
    """Req: R-04."""
    writer = broker.token("writer", "w" * 44)
    change = {"scheduledEnqueueTime": "2024-01-03T00:00:00Z"}
    assert broker.http("PATCH", f"{MESSAGES}/3", change, token=writer).status == 204
    assert broker.http("PATCH", f"{MESSAGES}/1", {"to": "deferred"}, token=writer).status == 403
    assert broker.http("DELETE", f"{MESSAGES}/1", token=writer).problem == "message-not-found"
    assert broker.http("DELETE", f"{MESSAGES}/3", token=writer).status == 204


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "to"),
        ({"to": "deferred", "scheduledEnqueueTime": "2024-01-03T00:00:00Z"}, "to"),
        ({"to": "deferred", "reason": "a"}, "reason"),
        ({"scheduledEnqueueTime": "2024-01-03T00:00:00Z", "description": "a"}, "description"),
        ({"scheduledEnqueueTime": "soon"}, "scheduledEnqueueTime"),
        ({"to": "active"}, "to"),
    ],
)
def test_a_bad_change_is_named(broker: ApiBroker, body: Any, named: str) -> None:
    refused = broker.http("PATCH", f"{MESSAGES}/1", body)
    assert (refused.status, refused.problem) == (400, "argument-invalid")
    assert f"'{named}'" in refused.json["detail"]
