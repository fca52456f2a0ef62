"""Messages that left, over the API."""

from __future__ import annotations

from peeklock.broker.record.history import History
from peeklock.broker.vocabulary.commands import DeleteEntity
from tests.api.asking import ApiBroker


def test_the_history_says_who_took_a_message() -> None:
    broker = ApiBroker(history=History(10))
    broker.clock.now_ms = 1_704_067_200_000
    broker.create_queue("q")
    sent = [{"body": "a", "messageId": "1", "properties": {"n": 1}}, {"body": "x" * 5000}]
    broker.ok("POST", "/entities/q/messages", sent)
    (first,) = broker.ok("POST", "/entities/q/locks")["deliveries"]
    broker.ok("PATCH", first["lock"]["href"], {"outcome": "abandon"})
    broker.clock.now_ms += 1000
    (first,) = broker.ok("POST", "/entities/q/locks")["deliveries"]
    broker.ok("DELETE", first["lock"]["href"])
    (second,) = broker.ok("POST", "/entities/q/locks")["deliveries"]
    broker.ok("PATCH", second["lock"]["href"], {"outcome": "deadLetter", "reason": "burnt"})
    page = broker.ok("GET", "/history?limit=1")
    (dead,) = page["entries"]
    assert (dead["number"], dead["outcome"], dead["reason"]) == (2, "dead-lettered", "burnt")
    assert dead["movedTo"].lower().endswith("$deadletterqueue")
    assert dead["bodyCut"]
    assert dead["message"]["body"] == "x" * 4096
    (done,) = broker.ok("GET", f"/history?cursor={page['next']}")["entries"]
    assert done["message"]["messageId"] == "1"
    assert done["message"]["properties"] == {"n": 1}
    assert (done["outcome"], done["deliveriesTotal"], done["bodyCut"]) == ("completed", 2, False)
    assert [delivery.get("ended") for delivery in done["deliveries"]] == ["abandoned", None]
    assert done["connection"] == done["deliveries"][1]["connection"]
    assert done["leftAt"] == "2024-01-01T00:00:01.000Z"


def test_the_history_of_one_entity_and_outcome() -> None:
    broker = ApiBroker(history=History(10))
    for name in ("q", "other"):
        broker.create_queue(name)
        broker.ok("POST", f"/entities/{name}/messages", [{"body": "a"}, {"body": "b"}])
        broker.ok("POST", f"/entities/{name}/locks", {"mode": "receiveAndDelete"})
        broker.ok("DELETE", f"/entities/{name}/messages")
    assert len(broker.ok("GET", "/history")["entries"]) == 4
    assert [each["message"]["entity"] for each in broker.ok("GET", "/history?entity=Q")["entries"]] == [
        "q"
    ] * 2
    (purged,) = broker.ok("GET", "/history?entity=q&outcome=purged")["entries"]
    assert purged["message"]["body"] == "b"
    assert broker.ok("GET", "/history?entity=q%2F$deadletterqueue")["entries"] == []


def test_an_entity_that_neither_exists_nor_has_entries_is_not_found() -> None:
    broker = ApiBroker(history=History(10))
    refused = broker.http("GET", "/history?entity=nope")
    assert (refused.status, refused.problem) == (404, "entity-not-found")
    broker.create_queue("q")
    assert broker.ok("GET", "/history?entity=q") == {"entries": []}
    broker.ok("POST", "/entities/q/messages", {"body": "a"})
    broker.ok("POST", "/entities/q/locks", {"mode": "receiveAndDelete"})
    broker.ask(lambda reply_to: DeleteEntity("q", reply_to))
    (entry,) = broker.ok("GET", "/history?entity=q")["entries"]
    assert entry["message"]["body"] == "a"
    assert broker.ok("GET", "/history?entity=q&outcome=expired") == {"entries": []}
    assert broker.http("GET", "/history?entity=nope").status == 404


def test_a_history_that_is_off_says_how_it_is_turned_on() -> None:
    refused = ApiBroker().http("GET", "/history")
    assert (refused.status, refused.problem) == (404, "not-here")
    assert "--history" in refused.json["detail"]
