"""Messages that are received and settled over the API, and as a stream."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from peeklock.broker.queue.graces import LOCK_GRACE_MS
from peeklock.broker.vocabulary.commands import (
    Address,
    DeleteEntity,
    Disposition,
    DropConnection,
    LockToken,
    RenewLocks,
    ReplyTo,
    UpdateDisposition,
)
from peeklock.broker.vocabulary.effects import Done, LocksRenewed
from peeklock.broker.vocabulary.message import LOST_BODY
from tests.api.asking import ApiBroker
from tests.asking import Answer

LOCK_MS = 60_000


@pytest.fixture
def broker() -> ApiBroker:
    made = ApiBroker()
    made.clock.now_ms = 1_704_067_200_000
    made.create_queue("q", lock_duration_ms=LOCK_MS, max_delivery_count=3)
    return made


def send(broker: ApiBroker, *bodies: str, path: str = "q") -> None:
    broker.ok("POST", f"/entities/{path}/messages", [{"body": body} for body in bodies])


def receive(broker: ApiBroker, path: str = "q", **wish: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.ok("POST", f"/entities/{path}/locks", wish)["deliveries"]
    return found


def bodies_of(deliveries: list[dict[str, Any]]) -> list[str]:
    return [delivery["message"]["body"] for delivery in deliveries]


def test_a_message_is_locked_renewed_and_completed(broker: ApiBroker) -> None:
    """Req: L-02, L-05."""
    send(broker, "a", "b")
    (delivery,) = receive(broker)
    lock = delivery["lock"]
    assert bodies_of([delivery]) == ["a"]
    assert delivery["message"]["deliveryCount"] == 1
    assert lock["lockedUntil"] == "2024-01-01T00:01:00.000Z"
    assert lock["href"] == f"/$api/v1/entities/q/locks/{lock['token']}"
    broker.advance(LOCK_MS - 1)
    assert broker.ok("POST", lock["href"]) == {"lockedUntil": "2024-01-01T00:01:59.999Z"}
    broker.advance(LOCK_MS - 1)
    assert broker.http("DELETE", lock["href"]).status == 204
    for method in ("POST", "DELETE"):
        refused = broker.http(method, lock["href"])
        assert (refused.status, refused.problem) == (404, "message-lock-lost")
    assert broker.queue("q").active_count == 1


def test_several_messages_are_received_at_once(broker: ApiBroker) -> None:
    send(broker, "a", "b", "c")
    assert bodies_of(receive(broker, max=2)) == ["a", "b"]
    assert bodies_of(receive(broker, max=2)) == ["c"]
    assert receive(broker, max=2) == []


def test_a_wait_ends_with_the_first_message(broker: ApiBroker) -> None:
    waiting = broker.later("POST", "/entities/q/locks", {"wait": 10, "max": 5})
    assert len(broker.waits) == 1
    send(broker, "a", "b")
    assert bodies_of(broker.answers[waiting].json["deliveries"]) in (["a"], ["a", "b"])
    assert len(broker.waits) == 0


def test_a_wait_that_is_over_gives_nothing(broker: ApiBroker) -> None:
    waiting = broker.later("POST", "/entities/q/locks", {"wait": 10})
    broker.waits.time_out(waiting)
    broker.go()
    assert broker.answers[waiting].json == {"deliveries": []}


def test_a_client_that_goes_away_takes_nothing_with_it(broker: ApiBroker) -> None:
    """Req: L-16."""
    waiting = broker.later("POST", "/entities/q/locks", {"wait": 10})
    broker.waits.cancel(waiting)
    broker.go()
    send(broker, "a")
    (delivery,) = receive(broker)
    assert delivery["message"]["deliveryCount"] == 1


def test_what_is_received_and_deleted_is_gone(broker: ApiBroker) -> None:
    """Req: L-01."""
    send(broker, "a", "b")
    found = receive(broker, max=5, mode="receiveAndDelete")
    assert bodies_of(found) == ["a", "b"]
    assert all("lock" not in delivery for delivery in found)
    assert broker.queue("q").active_count == 0


def test_a_message_is_abandoned_with_changed_properties(broker: ApiBroker) -> None:
    """Req: L-06."""
    send(broker, "a")
    (delivery,) = receive(broker)
    given = {"outcome": "abandon", "properties": {"try": 1}}
    assert broker.http("PATCH", delivery["lock"]["href"], given).status == 204
    (delivery,) = receive(broker)
    assert (delivery["message"]["deliveryCount"], delivery["message"]["properties"]) == (2, {"try": 1})


def test_a_deferred_message_is_received_by_its_number(broker: ApiBroker) -> None:
    """Req: L-10."""
    send(broker, "a")
    (delivery,) = receive(broker)
    assert broker.http("PATCH", delivery["lock"]["href"], {"outcome": "defer"}).status == 204
    assert receive(broker) == []
    assert broker.ok("GET", "/entities/q/messages/1")["state"] == "deferred"
    (again,) = receive(broker, sequenceNumbers=[1])
    assert broker.http("DELETE", again["lock"]["href"]).status == 204
    refused = broker.http("POST", "/entities/q/locks", {"sequenceNumbers": [1]})
    assert (refused.status, refused.problem) == (404, "message-not-found")


def test_a_deferred_message_is_received_and_deleted(broker: ApiBroker) -> None:
    send(broker, "a")
    (delivery,) = receive(broker)
    broker.http("PATCH", delivery["lock"]["href"], {"outcome": "defer"})
    (found,) = receive(broker, sequenceNumbers=[1], mode="receiveAndDelete")
    assert "lock" not in found
    assert broker.queue("q").active_count == 0


def test_a_dead_letter_says_why(broker: ApiBroker) -> None:
    """Req: L-09."""
    send(broker, "a")
    (delivery,) = receive(broker)
    given = {"outcome": "deadLetter", "reason": "burnt", "description": "black", "properties": {"oven": 2}}
    assert broker.http("PATCH", delivery["lock"]["href"], given).status == 204
    (found,) = receive(broker, path="q%2F$deadletterqueue")
    assert found["message"]["properties"] == {
        "oven": 2,
        "DeadLetterReason": "burnt",
        "DeadLetterErrorDescription": "black",
    }
    assert broker.http("DELETE", found["lock"]["href"]).status == 204


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "outcome"),
        ({"outcome": "complete"}, "outcome"),
        ({"outcome": "defer", "reason": "r"}, "reason"),
        ({"outcome": "abandon", "properties": {"a": {}}}, "properties.a"),
    ],
)
def test_a_bad_outcome_is_named(broker: ApiBroker, given: Any, named: str) -> None:
    refused = broker.http("PATCH", f"/entities/q/locks/{UUID(int=1)}", given)
    assert refused.problem == "argument-invalid"
    assert named in refused.json["detail"]


def test_a_text_that_is_no_token_is_no_lock(broker: ApiBroker) -> None:
    for method, given in (("POST", None), ("DELETE", None), ("PATCH", {"outcome": "abandon"})):
        refused = broker.http(method, "/entities/q/locks/x", given)
        assert (refused.status, refused.problem) == (404, "message-lock-lost")
        assert "The lock token 'x' is not a GUID such as " in refused.json["detail"]


def test_an_entity_with_sessions_is_refused(broker: ApiBroker) -> None:
    broker.create_queue("s", requires_session=True)
    for method, target in (("POST", "/entities/s/locks"), ("GET", "/entities/s/deliveries")):
        refused = broker.http(method, target)
        assert (refused.status, refused.problem) == (409, "invalid-operation")
    assert len(broker.waits) == 0


def test_a_lock_is_renewed_and_settled_from_elsewhere(broker: ApiBroker) -> None:
    """Req: L-14."""
    send(broker, "a")
    (delivery,) = receive(broker)
    token = LockToken(UUID(delivery["lock"]["token"]).bytes_le)
    renewed = broker.ask(lambda reply_to: RenewLocks(Address("q"), [token], reply_to))
    assert isinstance(renewed, LocksRenewed)
    done = broker.ask(
        lambda reply_to: UpdateDisposition(Address("q"), [token], Disposition.COMPLETED, reply_to)
    )
    assert isinstance(done, Done)


def test_a_renewal_moves_a_lock_to_who_renewed_it(broker: ApiBroker) -> None:
    """Req: L-13."""
    send(broker, "a")
    (delivery,) = receive(broker)
    lock = delivery["lock"]
    token = LockToken(UUID(lock["token"]).bytes_le)
    amqp = 7
    broker.offer([RenewLocks(Address("q"), [token], ReplyTo(amqp, 0, 1))])
    broker.run()
    broker.offer([DropConnection(amqp, broken=True)])
    broker.run()
    broker.advance(LOCK_GRACE_MS)
    assert broker.http("POST", lock["href"]).problem == "message-lock-lost"
    (delivery,) = receive(broker)
    assert delivery["message"]["deliveryCount"] == 2
    token = LockToken(UUID(delivery["lock"]["token"]).bytes_le)
    broker.offer([RenewLocks(Address("q"), [token], ReplyTo(amqp, 0, 1))])
    broker.run()
    broker.ok("POST", delivery["lock"]["href"])  # it is nobody's connection's again
    broker.offer([DropConnection(amqp, broken=True)])
    broker.run()
    broker.advance(LOCK_GRACE_MS)
    assert broker.http("DELETE", delivery["lock"]["href"]).status == 204


def test_bodies_are_read_from_the_store_before_what_has_them_is_deleted() -> None:
    broker = ApiBroker(body_cache_bytes=1)
    broker.create_queue("q")
    for number in range(4):
        send(broker, str(number) * 1000)
    assert len(receive(broker, max=2, mode="receiveAndDelete")) == 2
    assert len(receive(broker, max=4)) == 2
    assert broker.queue("q").active_count == 2


def test_a_message_whose_body_is_damaged_is_not_delivered(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Req: R-03."""
    send(broker, "a")
    stream = broker.later("GET", "/entities/q/deliveries")
    assert len(events_of(broker, stream)) == 1
    monkeypatch.setattr(broker.driver, "body", lambda message: LOST_BODY)
    assert broker.ok("GET", "/entities/q/messages")["messages"] == []
    assert broker.http("GET", "/entities/q/messages/1").status == 404
    assert broker.ok("GET", "/messages")["messages"] == []
    send(broker, "b")
    assert events_of(broker, stream) == []
    broker.waits.cancel(stream)
    broker.go()
    send(broker, "c")
    assert receive(broker, max=5) == []


# Streams


def events_of(broker: ApiBroker, number: int) -> list[dict[str, Any]]:
    """Take the deliveries of a stream since the last time."""
    found = []
    for event in broker.events.pop(number, []):
        assert event is not None
        if event.startswith(b"event: delivery\n"):
            found.append(json.loads(event.split(b"\ndata: ")[1]))
    return found


def test_messages_come_as_events_and_are_settled_by_their_locks(broker: ApiBroker) -> None:
    stream = broker.later("GET", "/entities/q/deliveries?window=2")
    assert broker.events.pop(stream) == [b": messages come as they are locked\n\n"]
    send(broker, "a", "b", "c", "d")
    first = events_of(broker, stream)
    assert bodies_of(first) == ["a", "b"]
    assert broker.http("DELETE", first[0]["lock"]["href"]).status == 204
    assert bodies_of(events_of(broker, stream)) == ["c"]
    assert broker.http("PATCH", first[1]["lock"]["href"], {"outcome": "defer"}).status == 204
    assert bodies_of(events_of(broker, stream)) == ["d"]


def test_a_lock_that_lapses_frees_its_place(broker: ApiBroker) -> None:
    stream = broker.later("GET", "/entities/q/deliveries?window=1")
    send(broker, "a", "b")
    assert bodies_of(events_of(broker, stream)) == ["a"]
    broker.advance(LOCK_MS)
    assert events_of(broker, stream) == []
    broker.waits.beat(stream, broker.clock.now_ms)
    broker.go()
    (again,) = events_of(broker, stream)
    assert (again["message"]["body"], again["message"]["deliveryCount"]) == ("a", 2)


def test_a_client_that_does_not_read_is_given_no_more_than_its_window(broker: ApiBroker) -> None:
    stream = broker.later("GET", "/entities/q/deliveries?window=1")
    broker.waits.slow(stream, is_slow=True)
    send(broker, "a", "b")
    (first,) = events_of(broker, stream)
    broker.ok("DELETE", first["lock"]["href"])
    assert events_of(broker, stream) == []
    broker.waits.slow(stream, is_slow=False)
    broker.go()
    assert bodies_of(events_of(broker, stream)) == ["b"]


def test_a_stream_has_only_so_many_bytes_under_way(broker: ApiBroker) -> None:
    stream = broker.later("GET", "/entities/q/deliveries?window=1000")
    for _ in range(12):
        send(broker, "x" * 100_000)
    assert len(events_of(broker, stream)) == 11


def test_a_stream_that_its_client_left_takes_nothing_more(broker: ApiBroker) -> None:
    """Req: L-16."""
    stream = broker.later("GET", "/entities/q/deliveries")
    broker.waits.cancel(stream)
    broker.go()
    send(broker, "a")
    assert broker.events.pop(stream) == [b": messages come as they are locked\n\n"]
    assert bodies_of(receive(broker)) == ["a"]
    assert len(broker.waits) == 0


def test_a_stream_ends_with_its_entity(broker: ApiBroker) -> None:
    stream = broker.later("GET", "/entities/q/deliveries")
    broker.ask(lambda reply_to: DeleteEntity("q", reply_to))
    events = broker.events[stream]
    assert events[-1] is None
    assert events[-2] is not None
    assert events[-2].startswith(b"event: end\ndata: ")
    assert json.loads(events[-2].split(b"data: ")[1])["status"] == 404
    assert len(broker.waits) == 0


def test_a_stop_ends_waits_and_streams(broker: ApiBroker) -> None:
    stream = broker.later("GET", "/entities/q/deliveries")
    waiting = broker.later("POST", "/entities/q/locks", {"wait": 10})
    broker.waits.end_all()
    broker.go()
    assert isinstance(broker.answers[waiting], Answer)
    assert broker.answers[waiting].problem == "server-busy"
    assert broker.events[stream][-1] is None
    send(broker, "a")
    assert bodies_of(receive(broker)) == ["a"]


def test_a_stream_waits_for_bodies_in_order() -> None:
    broker = ApiBroker(body_cache_bytes=1)
    broker.create_queue("q")
    for number in range(5):
        send(broker, f"{number}" * 1000)
    stream = broker.later("GET", "/entities/q/deliveries")
    assert [body[0] for body in bodies_of(events_of(broker, stream))] == list("01234")
