"""Why a message does not arrive: a message against the rules of a topic, over the API."""

from __future__ import annotations

from typing import Any

import pytest

from peeklock.auth import Authority, SasRule
from peeklock.auth.rights import Right
from tests.api.asking import ApiBroker, segment


@pytest.fixture
def broker() -> ApiBroker:
    """Topic 't' with subscriptions 'all', 'none' and 'red'."""
    made = ApiBroker()
    made.clock.now_ms = 1_704_067_200_000
    made.create_queue("q")
    made.ok("PUT", "/entities/t", {"kind": "topic"})
    subscribe(made, "all")
    subscribe(made, "red", {"filter": {"sql": "colour = 'red'"}})
    subscribe(made, "none", {"filter": {"sql": "n / 0 = 1"}})
    return made


def subscribe(broker: ApiBroker, name: str, rule: Any = None, **settings: Any) -> None:
    body = {"settings": settings, **({} if rule is None else {"rule": rule})}
    broker.ok("PUT", f"/entities/{segment(f't/subscriptions/{name}')}", body)


def ask(broker: ApiBroker, query: str = "", **body: Any) -> Any:
    return broker.ok("POST", f"/entities/t/match{query}", body)


def test_each_rule_says_why_it_matches_or_not(broker: ApiBroker) -> None:
    found = ask(broker, message={"properties": {"colour": "blue", "n": 1}})
    assert [entry["name"] for entry in found["subscriptions"]] == [
        "t/Subscriptions/all",
        "t/Subscriptions/none",
        "t/Subscriptions/red",
    ]
    every, none, red = found["subscriptions"]
    assert every["isMatched"]
    assert every["rules"] == [
        {"name": "$Default", "isMatched": True, "reason": "The filter matches all messages."}
    ]
    assert red == {
        "name": "t/Subscriptions/red",
        "isMatched": False,
        "rules": [
            {
                "name": "$Default",
                "isMatched": False,
                "reason": "colour = 'red' is false: colour is 'blue', a text.",
            }
        ],
    }
    assert "cannot be evaluated" in none["rules"][0]["reason"]
    assert "dead-lettered" in none["rules"][0]["reason"]
    assert broker.ok("GET", f"/entities/{segment('t/subscriptions/all')}")["counts"]["active"] == 0


def test_a_message_that_is_somewhere_is_asked_about(broker: ApiBroker) -> None:
    broker.ok("POST", "/entities/q/messages", {"properties": {"colour": "red"}})
    change = {"to": "deadLetter", "reason": "lost"}
    broker.ok("PATCH", "/entities/q/messages/1", change)
    red = ask(broker, entity="q/$deadletterqueue", number=1)["subscriptions"][2]
    assert red["isMatched"]
    refused = broker.http("POST", "/entities/t/match", {"entity": "q", "number": 1})
    assert (refused.status, refused.problem) == (404, "message-not-found")
    assert broker.http("POST", "/entities/t/match", {"entity": "no", "number": 1}).status == 404


def test_what_the_topic_and_a_subscription_do_else_is_noted(broker: ApiBroker) -> None:
    subscribe(broker, "on", forwardTo="q")
    subscribe(broker, "off", status="ReceiveDisabled")
    broker.ok("PATCH", "/entities/t", {"settings": {"status": "SendDisabled"}})
    found = ask(broker, message={})
    notes = {entry["name"].rpartition("/")[2]: entry.get("note") for entry in found["subscriptions"]}
    assert notes["on"] == "It forwards its messages to 'q'."
    assert notes["off"] == "It is ReceiveDisabled: its messages cannot be received."
    assert notes["all"] is None
    assert found["note"] == "The topic is SendDisabled: nothing can be sent to it."


def test_subscriptions_come_in_pages_and_rules_whole(broker: ApiBroker) -> None:
    where = f"/entities/{segment('t/subscriptions/red')}/rules"
    for number in range(20):
        broker.ok("PUT", f"{where}/r{number:02}", {"filter": {"sql": f"n = {number}"}})
    names, rules, cursor = [], 0, ""
    while True:
        page = ask(broker, f"?limit=2{cursor}", message={"properties": {"n": 7}})
        names += [entry["name"].rpartition("/")[2] for entry in page["subscriptions"]]
        rules += sum(len(entry["rules"]) for entry in page["subscriptions"])
        if "next" not in page:
            break
        cursor = f"&cursor={page['next']}"
    assert (names, rules) == (["all", "none", "red"], 23)
    assert [rule["name"] for rule in page["subscriptions"][0]["rules"] if rule["isMatched"]] == ["r07"]


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("t", {}, "argument-invalid"),
        ("t", {"entity": "q"}, "argument-invalid"),
        ("t", {"message": {}, "entity": "q", "number": 1}, "argument-invalid"),
        ("t", {"message": {"bodyBase64": "?"}}, "argument-invalid"),
        ("t", {"message": {"messageId": "i" * 200}}, "argument-invalid"),
        ("t", {"entity": "$cbs", "number": 1}, "argument-invalid"),
        ("q", {"message": {}}, "invalid-operation"),
        ("no", {"message": {}}, "entity-not-found"),
    ],
)
def test_what_cannot_be_matched_is_refused(broker: ApiBroker, path: str, body: Any, problem: str) -> None:
    assert broker.http("POST", f"/entities/{path}/match", body).problem == problem


def test_manage_is_needed_for_the_rules_and_listen_where_the_message_is() -> None:
    """Req: R-04."""
    listen = frozenset({Right.LISTEN})
    rules = [
        SasRule("root", "r" * 44),
        SasRule("of-t", "t" * 44, path="t"),
        SasRule("reader", "l" * 44, path="t", rights=listen),
    ]
    broker = ApiBroker(authority=Authority(rules))
    broker.create_topic("t")
    broker.create_queue("q")
    own = broker.token("of-t", "t" * 44, "/t")
    assert broker.http("POST", "/entities/t/match", {"message": {}}, token=own).status == 200
    refused = broker.http("POST", "/entities/t/match", {"entity": "q", "number": 1}, token=own)
    assert refused.status == 401
    reader = broker.token("reader", "l" * 44, "/t")
    refused = broker.http("POST", "/entities/t/match", {"message": {}}, token=reader)
    assert (refused.status, refused.problem) == (403, "right-missing")
