"""Counts of all entities over the API, and what has changed since."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.admin.exchange import AdminRequest
from peeklock.api import count_board
from peeklock.broker.handlers import figures
from peeklock.broker.vocabulary.commands import DeleteEntity
from peeklock.rest.exchange import Step
from tests.api.asking import ApiBroker

LATER_MS = count_board.FRESH_MS


@pytest.fixture
def broker() -> ApiBroker:
    made = ApiBroker()
    made.clock.now_ms = 1_704_067_200_000
    return made


def counts(broker: ApiBroker, since: str = "") -> Any:
    """Ask when the last reading is too old."""
    broker.clock.now_ms += LATER_MS
    return broker.ok("GET", f"/counts{'?since=' if since else ''}{since}")


def send(broker: ApiBroker, path: str, *messages: dict[str, Any]) -> None:
    broker.ok("POST", f"/entities/{path}/messages", list(messages) or [{"body": "a"}])


def delete(broker: ApiBroker, path: str) -> None:
    broker.ask(lambda reply_to: DeleteEntity(path, reply_to))


def names(found: Any) -> list[str]:
    return sorted(entity["name"] for entity in found["entities"])


def test_all_entities_are_counted(broker: ApiBroker) -> None:
    broker.create_queue("q")
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    send(broker, "q", {"body": "1"}, {"body": "2"}, {"scheduledEnqueueTime": "2099-01-02T00:00:00Z"})
    send(broker, "t")
    lock = broker.ok("POST", "/entities/q/locks", {})["deliveries"][0]["lock"]["token"]
    broker.ok("PATCH", f"/entities/q/locks/{lock}", {"outcome": "deadLetter"})
    broker.ok("POST", "/entities/q/locks", {"mode": "receiveAndDelete"})
    found = counts(broker)
    by_name = {entity["name"]: entity for entity in found["entities"]}
    size_bytes = by_name["q"]["sizeBytes"]
    assert size_bytes > 0
    assert by_name["q"] == {
        "name": "q",
        "kind": "queue",
        "status": "Active",
        "active": 0,
        "scheduled": 1,
        "deadLetter": 1,
        "transferDeadLetter": 0,
        "sizeBytes": size_bytes,
        "received": 3,
        "delivered": 2,
        "completed": 1,
    }
    assert (by_name["t"]["active"], by_name["t/Subscriptions/s"]["active"]) == (0, 1)
    assert by_name["t/Subscriptions/s"]["oldestEnqueuedTime"] == "2024-01-01T00:00:00.000Z"
    assert found["at"] == "2024-01-01T00:00:02.000Z"
    assert found["isWhole"]
    assert found["totals"] == {
        "entities": 3,
        "active": 1,
        "scheduled": 1,
        "deadLetter": 1,
        "transferDeadLetter": 0,
        "sizeBytes": size_bytes + by_name["t"]["sizeBytes"],
        "oldestEnqueuedTime": "2024-01-01T00:00:00.000Z",
        "received": 4,
        "delivered": 2,
        "completed": 1,
    }


def test_what_has_changed_since_is_listed(broker: ApiBroker) -> None:
    for name in ("a", "b", "c"):
        broker.create_queue(name)
    first = counts(broker)
    assert names(first) == ["a", "b", "c"]
    nothing = counts(broker, first["version"])
    assert (nothing["entities"], nothing["removed"], nothing["isWhole"]) == ([], [], False)
    send(broker, "b")
    delete(broker, "c")
    broker.create_queue("d")
    second = counts(broker, nothing["version"])
    assert (names(second), second["removed"]) == (["b", "d"], ["c"])
    assert second["totals"]["entities"] == 3
    broker.create_queue("c")
    third = counts(broker, first["version"])
    assert (names(third), third["removed"]) == (["b", "c", "d"], [])
    assert names(counts(broker, third["version"])) == []


def test_an_entity_made_again_has_changed(broker: ApiBroker) -> None:
    broker.create_queue("a")
    version = counts(broker)["version"]
    delete(broker, "a")
    broker.create_queue("a")
    found = counts(broker, version)
    assert (names(found), found["removed"]) == (["a"], [])


@pytest.mark.parametrize("since", ["epoch-99", "epoch-0", "epoch-", "epoch", "other-1", "epoch-%C2%B2", "-1"])
def test_after_an_unknown_version_all_are_listed(broker: ApiBroker, since: str) -> None:
    broker.create_queue("a")
    counts(broker)
    found = counts(broker, since)
    assert found["isWhole"]
    assert names(found) == ["a"]


def test_names_of_deleted_entities_are_forgotten_at_last(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count_board, "REMOVED_MAX", 1)
    for name in ("a", "b", "c"):
        broker.create_queue(name)
    first = counts(broker)["version"]
    delete(broker, "a")
    second = counts(broker, first)
    assert second["removed"] == ["a"]
    delete(broker, "b")
    assert counts(broker, second["version"])["removed"] == ["b"]
    assert counts(broker, first)["isWhole"]


def test_the_counts_are_read_once_in_two_seconds(broker: ApiBroker) -> None:
    broker.create_queue("a")
    before = counts(broker)
    send(broker, "a")
    broker.clock.now_ms += LATER_MS - 1
    assert broker.ok("GET", "/counts") == before
    broker.clock.now_ms += 1
    assert broker.ok("GET", "/counts")["entities"][0]["active"] == 1


def test_many_entities_are_read_in_slices(broker: ApiBroker) -> None:
    """All who ask meanwhile read on the same reading."""
    for number in range(1_000):
        broker.create_queue(f"q{number:05}")
    headers = {"authorization": broker.token(), "host": "h"}
    request = AdminRequest("GET", "/$api/v1/counts", headers=headers)
    now_ms = broker.clock.now_ms
    answers = [broker.api.handle(request, now_ms), broker.api.handle(request, now_ms)]
    turns = 0
    while any(isinstance(answer, Step) for answer in answers):
        for at, answer in enumerate(answers):
            if isinstance(answer, Step):
                answers[at] = answer.go_on()
                turns += 1
    assert turns == 1_000 // (figures.SLICE * count_board.SLICES)
    assert answers[0] == answers[1]


def test_nothing_is_read_again_while_nothing_happens(broker: ApiBroker) -> None:
    broker.create_queue("q")
    broker.mark = 1
    first = counts(broker)
    send(broker, "q")  # the mark does not say so
    second = counts(broker, first["version"])
    assert (second["version"], second["entities"]) == (first["version"], [])
    assert second["at"] == "2024-01-01T00:00:04.000Z"
    broker.mark = 2
    third = counts(broker, second["version"])
    assert third["version"] != second["version"]
    assert [entity["active"] for entity in third["entities"]] == [1]
