"""Rules of subscriptions over the API."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from peeklock.broker.vocabulary.commands import AddRule
from peeklock.broker.vocabulary.descriptions import RuleDescription
from peeklock.rules.filters import FalseFilter
from tests.api.asking import ApiBroker, segment

RULES = f"/entities/{segment('t/subscriptions/s')}/rules"

FILTERS: list[Any] = [
    {"sql": "1=1"},
    {"sql": "1=0"},
    {"sql": "priority = 'high'"},
    {"sql": "n > @least", "parameters": {"@least": 5}},
    {"correlation": {"subject": "pizza"}},
    {
        "correlation": {
            "correlationId": "1", "messageId": "2", "to": "3", "replyTo": "4", "subject": "5",
            "sessionId": "6", "replyToSessionId": "7", "contentType": "8",
            "properties": {
                "text": "a", "whole": 1, "double": 1.5, "flag": True,
                "id": {"type": "guid", "value": "00000000-0000-0000-0000-000000000001"},
                "at": {"type": "dateTime", "value": "2024-01-31T12:00:00Z"},
                "for": {"type": "duration", "value": "P1DT30.5S"},
                "price": {"type": "decimal", "value": "9.90"},
                "large": {"type": "double", "value": "INF"},
                "bytes": {"type": "base64Binary", "value": "AAE="},
            },
        }
    },
]  # fmt: skip


@pytest.fixture
def broker() -> ApiBroker:
    made = ApiBroker()
    made.clock.now_ms = 1_704_067_200_000
    made.create_topic("t")
    made.create_subscription("t", "s")
    return made


@pytest.mark.parametrize("given", FILTERS)
def test_a_rule_is_put_and_shown_as_it_was_given(broker: ApiBroker, given: Any) -> None:
    body = {"filter": given, "action": "SET a = @b", "actionParameters": {"@b": 2}}
    shown = broker.ok("PUT", f"{RULES}/mine", body)
    assert shown == {"name": "mine", **body, "createdAt": "2024-01-01T00:00:00.000Z"}
    assert broker.ok("GET", RULES)["rules"][1] == shown


def test_a_rule_is_replaced(broker: ApiBroker) -> None:
    broker.clock.now_ms += 60_000
    shown = broker.ok("PUT", f"{RULES}/$default", {"filter": {"sql": "n = 1"}})
    assert (shown["name"], shown["createdAt"]) == ("$Default", "2024-01-01T00:00:00.000Z")
    assert [rule["filter"] for rule in broker.ok("GET", RULES)["rules"]] == [{"sql": "n = 1"}]
    broker.ok("POST", "/entities/t/messages", [{"properties": {"n": 1}}, {"properties": {"n": 2}}])
    assert broker.ok("GET", f"/entities/{segment('t/subscriptions/s')}")["counts"]["active"] == 1


def test_rules_are_listed_in_pages_and_removed(broker: ApiBroker) -> None:
    for number in range(4):
        rule = RuleDescription(f"r{number}", FalseFilter())
        broker.ask(partial(AddRule, "t/Subscriptions/s", rule))
    names, cursor = [], ""
    while True:
        page = broker.ok("GET", f"{RULES}?limit=2{cursor}")
        names += [rule["name"] for rule in page["rules"]]
        if "next" not in page:
            break
        cursor = f"&cursor={page['next']}"
    assert names == ["$Default", "r0", "r1", "r2", "r3"]
    assert broker.http("DELETE", f"{RULES}/r1").status == 204
    refused = broker.http("DELETE", f"{RULES}/r1")
    assert (refused.status, refused.problem) == (404, "rule-not-found")


def test_a_page_of_large_rules_is_cut(broker: ApiBroker) -> None:
    large = {"correlation": {"properties": {f"p{number}": "x" * 600 for number in range(100)}}}
    for number in range(20):
        broker.ok("PUT", f"{RULES}/r{number:02}", {"filter": large})
    names, cursor, pages = [], "", 0
    while True:
        page = broker.ok("GET", f"{RULES}?limit=250{cursor}")
        names += [rule["name"] for rule in page["rules"]]
        pages += 1
        if "next" not in page:
            break
        cursor = f"&cursor={page['next']}"
    assert (len(names), pages) == (21, 2)


def test_a_subscription_is_made_with_a_first_rule(broker: ApiBroker) -> None:
    path = segment("t/subscriptions/other")
    broker.ok("PUT", f"/entities/{path}", {"rule": {"name": "first", "filter": {"sql": "n = 1"}}})
    (rule,) = broker.ok("GET", f"/entities/{path}/rules")["rules"]
    assert (rule["name"], rule["filter"]) == ("first", {"sql": "n = 1"})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "filter"),
        ({"filter": {}}, "filter"),
        ({"filter": {"sql": "a = 1", "correlation": {"to": "a"}}}, "filter"),
        ({"filter": {"correlation": {"to": "a"}, "parameters": {"@a": 1}}}, "parameters"),
        ({"filter": {"correlation": {}}}, "empty"),
        ({"filter": {"correlation": {"label": "a"}}}, "label"),
        ({"filter": {"sql": "a ="}}, "a ="),
        ({"filter": {"sql": "1=1"}, "actionParameters": {"@a": 1}}, "actionParameters"),
        ({"filter": {"sql": "1=1"}, "action": "SET"}, "SET"),
        ({"filter": {"sql": "a=@b", "parameters": {"@b": {"type": "guid", "value": "x"}}}}, "@b"),
        ({"filter": {"sql": "a=@b", "parameters": {"@b": [1]}}}, "@b"),
    ],
)
def test_a_bad_rule_is_refused_by_name(broker: ApiBroker, body: Any, named: str) -> None:
    refused = broker.http("PUT", f"{RULES}/mine", body)
    assert (refused.status, refused.problem) == (400, "argument-invalid")
    assert named in refused.json["detail"]


def test_only_a_subscription_has_rules(broker: ApiBroker) -> None:
    body = {"filter": {"sql": "1=1"}}
    for method, path in (("GET", ""), ("PUT", "/r"), ("DELETE", "/r")):
        given = body if method == "PUT" else None
        assert broker.http(method, f"/entities/t/rules{path}", given).problem == "invalid-operation"
        assert broker.http(method, f"/entities/none/rules{path}", given).problem == "entity-not-found"
        where = segment("t/subscriptions/s/$deadletterqueue")
        assert broker.http(method, f"/entities/{where}/rules{path}", given).status == 400


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"filter": {"sql": "a = 1"}, "action": "SET a = 2"}, {"isGood": True}),
        ({"filter": {"correlation": {"to": "a"}}}, {"isGood": True}),
        ({"filter": {"sql": "a = "}}, {"isGood": False, "member": "filter"}),
        ({"filter": {"sql": "abc(1) = 2"}}, {"isGood": False, "member": "filter", "position": 1}),
        ({"filter": {"sql": "x" * 2000}}, {"isGood": False, "member": "filter"}),
        ({"filter": {"correlation": {}}}, {"isGood": False, "member": "filter"}),
        ({"filter": {"sql": "1=1"}, "action": "SET a"}, {"isGood": False, "member": "action"}),
    ],
)
def test_a_rule_is_checked(broker: ApiBroker, body: Any, wanted: dict[str, Any]) -> None:
    found = broker.ok("POST", "/rules/check", body)
    assert {**found, **wanted} == found
    assert found["isGood"] or found["problem"]
    assert "\n" not in found.get("problem", "")
