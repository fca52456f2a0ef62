"""Entities, sessions, searches and scheduled messages over the API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from peeklock.broker.vocabulary.commands import (
    Address,
    LinkId,
    OpenReceiver,
    ReceiveMode,
    SessionRequest,
    SetSessionState,
)
from tests.api.asking import ApiBroker, segment


@pytest.fixture
def broker() -> ApiBroker:
    made = ApiBroker()
    made.clock.now_ms = 1_704_067_200_000
    return made


def send(broker: ApiBroker, path: str, *messages: dict[str, Any]) -> list[int]:
    found: list[int] = broker.ok("POST", f"/entities/{segment(path)}/messages", list(messages))[
        "sequenceNumbers"
    ]
    return found


def test_an_entity_is_shown_with_its_counts(broker: ApiBroker) -> None:
    broker.create_queue("a/b", requires_session=False, forward_dead_lettered_to=None, default_ttl_ms=60_000)
    send(broker, "a/b", {"body": "1"}, {"scheduledEnqueueTime": "2024-01-02T00:00:00Z"})
    found = broker.ok("GET", "/entities/a%2Fb")
    assert found == {
        "name": "a/b",
        "kind": "queue",
        "href": "/$api/v1/entities/a%2Fb",
        "status": "Active",
        "createdAt": "2024-01-01T00:00:00.000Z",
        "updatedAt": "2024-01-01T00:00:00.000Z",
        "accessedAt": "2024-01-01T00:00:00.000Z",
        "sizeBytes": found["sizeBytes"],
        "counts": {"active": 1, "scheduled": 1, "deadLetter": 0, "transferDeadLetter": 0},
        "settings": {
            "batchedOperations": True,
            "express": False,
            "maxSizeMegabytes": 1024,
            "status": "Active",
            "defaultTimeToLive": 60.0,
            "partitioned": False,
            "requiresDuplicateDetection": False,
            "lockDuration": 60.0,
            "maxDeliveryCount": 10,
            "requiresSession": False,
            "deadLetteringOnExpiration": False,
        },
    }
    assert broker.http("GET", "/entities/none").problem == "entity-not-found"


def test_entities_of_all_kinds_are_listed_in_pages(broker: ApiBroker) -> None:
    for name in ("q2", "q1"):
        broker.create_queue(name)
    broker.create_topic("t")
    for name in ("s2", "s1"):
        broker.create_subscription("t", name)
    for limit in range(1, 7):
        names, cursor = [], ""
        while True:
            page = broker.ok("GET", f"/entities?limit={limit}{cursor}")
            assert len(page["entities"]) <= limit
            names += [entity["name"] for entity in page["entities"]]
            if "next" not in page:
                break
            cursor = f"&cursor={page['next']}"
        assert names == ["q1", "q2", "t", "t/Subscriptions/s1", "t/Subscriptions/s2"]
    assert broker.ok("GET", "/entities/t")["subscriptionCount"] == 2


# Sessions


def test_sessions_are_listed_and_shown(broker: ApiBroker) -> None:
    """Req: G-07."""
    broker.create_queue("s", requires_session=True)
    sessions = ["a", "b/c", "ä", ""]
    send(broker, "s", *({"sessionId": each, "body": each} for each in sessions))
    page = broker.ok("GET", "/entities/s/sessions?limit=2")
    assert page["sessions"] == ["", "a"]
    page = broker.ok("GET", f"/entities/s/sessions?limit=3&cursor={page['next']}")
    assert page == {"sessions": ["b/c", "ä"]}
    for session in sessions:
        where = f"/entities/s/sessions/{quote(session, safe='')}"
        counts = {"active": 1, "deferred": 0, "scheduled": 0}
        assert broker.ok("GET", where) == {"id": session, "counts": counts}
        (message,) = broker.ok("GET", f"{where}/messages")["messages"]
        assert message["body"] == session
    broker.create_queue("q")
    assert broker.http("GET", "/entities/q/sessions").problem == "invalid-operation"


def test_a_session_is_shown_with_its_state_while_a_link_holds_it(broker: ApiBroker) -> None:
    """Req: G-07."""
    broker.create_queue("s", requires_session=True)
    broker.offer(
        [OpenReceiver(LinkId(0, 1), Address("s"), ReceiveMode.PEEK_LOCK, SessionRequest("a", 0))],
    )
    broker.ask(lambda reply_to: SetSessionState(Address("s"), "a", b"half done", reply_to))
    found = broker.ok("GET", "/entities/s/sessions/a")
    assert found["state"] == {"body": "half done"}
    assert found["lockedUntil"] == "2024-01-01T00:01:00.000Z"
    assert found["holder"] == {"connection": 0, "identities": []}
    broker.ask(lambda reply_to: SetSessionState(Address("s"), "a", b"\xff", reply_to))
    assert broker.ok("GET", "/entities/s/sessions/a")["state"] == {"bodyBase64": "/w=="}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"state": "half dön"}, {"body": "half dön"}),
        ({"state": ""}, {"body": ""}),
        ({"stateBase64": "/w=="}, {"bodyBase64": "/w=="}),
    ],
)
@pytest.mark.parametrize("session", ["a", "new", "b%2Fc", ""])
def test_the_state_of_a_free_session_is_set_and_cleared(
    broker: ApiBroker, session: str, given: Any, shown: Any
) -> None:
    """Req: G-03."""
    broker.create_queue("s", requires_session=True)
    send(broker, "s", {"sessionId": "a"})
    where = f"/entities/s/sessions/{session}"
    assert broker.http("PUT", f"{where}/state", given).status == 204
    assert broker.ok("GET", where)["state"] == shown
    assert broker.http("DELETE", f"{where}/state").status == 204
    assert "state" not in broker.ok("GET", where)


def test_the_state_of_a_held_session_is_left_to_its_holder() -> None:
    broker = ApiBroker({"identities_of": lambda number: [f"key of {number}"]})
    broker.create_queue("s", requires_session=True)
    link = LinkId(5, 1)
    broker.offer(
        [OpenReceiver(link, Address("s"), ReceiveMode.PEEK_LOCK, SessionRequest("a", 0), "reader")],
    )
    for method, body in (("PUT", {"state": "x"}), ("DELETE", None)):
        refused = broker.http(method, "/entities/s/sessions/a/state", body)
        assert (refused.status, refused.problem) == (409, "session-cannot-be-locked")
    holder = broker.ok("GET", "/entities/s/sessions/a")["holder"]
    assert holder == {"connection": 5, "link": "reader", "identities": ["key of 5"]}


@pytest.mark.parametrize(
    "body", [{}, {"state": "a", "stateBase64": "YQ=="}, {"stateBase64": "?"}, {"state": 1}]
)
def test_a_bad_state_is_refused(broker: ApiBroker, body: Any) -> None:
    broker.create_queue("s", requires_session=True)
    assert broker.http("PUT", "/entities/s/sessions/a/state", body).problem == "argument-invalid"
    large = {"state": "x" * 300_000}
    assert broker.http("PUT", "/entities/s/sessions/a/state", large).status == 413


# Searches


def test_messages_of_all_entities_are_found_by_a_filter(broker: ApiBroker) -> None:
    for name in ("a", "b"):
        broker.create_queue(name)
        send(broker, name, {"body": "1", "subject": "pizza"}, {"body": "2", "properties": {"n": 2}})
    found = broker.ok("GET", f"/messages?filter={quote(chr(39).join(('sys.Label = ', 'pizza', '')))}")
    assert [(message["entity"], message["body"]) for message in found["messages"]] == [("a", "1"), ("b", "1")]
    found = broker.ok("GET", "/messages?filter=n%20%3E%201&entity=b")
    assert [(message["entity"], message["sequenceNumber"]) for message in found["messages"]] == [("b", 2)]
    seen, cursor = [], ""
    while True:
        page = broker.ok("GET", f"/messages?limit=1{cursor}")
        seen += [message["entity"] for message in page["messages"]]
        if "next" not in page:
            break
        cursor = f"&cursor={page['next']}"
    assert seen == ["a", "a", "b", "b"]


def test_messages_that_match_are_deleted(broker: ApiBroker) -> None:
    for name in ("a", "b"):
        broker.create_queue(name)
        send(broker, name, {"body": "1"}, {"body": "2", "properties": {"n": 2}})
    broker.ok("POST", "/entities/a/locks", {"max": 2})
    assert broker.ok("DELETE", "/messages?filter=n%3D2") == {"deleted": 1, "locked": 1}
    assert broker.ok("DELETE", "/messages?filter=1%3D1&entity=b") == {"deleted": 1, "locked": 0}
    assert broker.queue("a").active_count == 2


@pytest.mark.parametrize(
    ("method", "target", "named"),
    [
        ("GET", "?filter=a%20%3D", "filter"),
        ("GET", "?filter=", "filter"),
        ("GET", "?entity=$cbs", "$cbs"),
        ("GET", "?cursor=WyJhIiw5LDFd", "cursor"),
        ("DELETE", "", "filter"),
    ],
)
def test_a_bad_search_is_named(broker: ApiBroker, method: str, target: str, named: str) -> None:
    refused = broker.http(method, f"/messages{target}")
    assert (refused.status, refused.problem) == (400, "argument-invalid")
    assert named in refused.json["detail"]


# Scheduled messages


def test_scheduled_messages_are_moved_and_keep_their_numbers(broker: ApiBroker) -> None:
    """Req: S-06."""
    broker.create_queue("q")
    at = {"scheduledEnqueueTime": "2024-01-01T02:00:00Z"}
    send(broker, "q", at, at)
    assert broker.ok("POST", "/scheduled/shift", {"by": -3600}) == {"shifted": 2}
    shown = broker.ok("GET", "/entities/q/messages")["messages"]
    assert {each["scheduledEnqueueTime"] for each in shown} == {"2024-01-01T01:00:00.000Z"}
    given = {"sequenceNumbers": [2], "by": 60.5}
    assert broker.ok("POST", "/scheduled/shift?entity=q", given) == {"shifted": 1}
    assert broker.ok("GET", "/entities/q/messages/2")["scheduledEnqueueTime"] == "2024-01-01T01:01:00.500Z"
    assert broker.http("DELETE", "/entities/q/messages/2").status == 204
    assert broker.ok("POST", "/scheduled/deliver?entity=q") == {"shifted": 1}
    broker.run()
    assert broker.queue("q").active_count == 1


def test_numbers_go_with_an_entity(broker: ApiBroker) -> None:
    broker.create_queue("q")
    refused = broker.http("POST", "/scheduled/deliver", {"sequenceNumbers": [1]})
    assert (refused.status, refused.problem) == (400, "argument-invalid")
    refused = broker.http("POST", "/scheduled/deliver?entity=q", {"sequenceNumbers": [1]})
    assert (refused.status, refused.problem) == (404, "message-not-found")


def test_a_page_of_large_messages_is_cut(broker: ApiBroker) -> None:
    broker.create_queue("q")
    for number in range(5):
        send(broker, "q", {"body": f"{number}" * 250_000})
    sizes, cursor = [], ""
    while True:
        page = broker.ok("GET", f"/messages?entity=q{cursor}")
        sizes.append([message["sequenceNumber"] for message in page["messages"]])
        if "next" not in page:
            break
        cursor = f"&cursor={page['next']}"
    assert sizes == [[1, 2, 3, 4], [5]]
