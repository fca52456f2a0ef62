"""Entities made, changed and deleted over the API."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from peeklock.admin.elements import QUEUE_ELEMENTS, SUBSCRIPTION_ELEMENTS, TOPIC_ELEMENTS, Setting
from peeklock.admin.exchange import AdminRequest
from peeklock.api.api import Api
from peeklock.api.entity_settings import SETTINGS
from peeklock.api.exchange import ApiContext
from peeklock.auth import Authority, SasRule
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import UpdateEntity
from peeklock.broker.vocabulary.descriptions import AuthorizationRule, QueueDescription
from peeklock.broker.vocabulary.quotas import PREMIUM
from tests.api.asking import ApiBroker, segment

SUBSCRIPTION = segment("t/subscriptions/s")

OTHERS: dict[str, Any] = {
    "autoDeleteOnIdle": 3600.0,
    "batchedOperations": False,
    "deadLetteringOnExpiration": True,
    "deadLetteringOnFilterErrors": False,
    "defaultTimeToLive": 60.5,
    "duplicateDetectionWindow": 30.0,
    "express": True,
    "forwardDeadLetteredTo": "target",
    "forwardTo": "target",
    "lockDuration": 30.0,
    "maxDeliveryCount": 3,
    "maxMessageSizeKilobytes": 2048,
    "maxSizeMegabytes": 2048,
    "partitioned": True,
    "requiresDuplicateDetection": True,
    "requiresSession": True,
    "status": "SendDisabled",
    "supportOrdering": False,
    "userMetadata": "a note",
}
"""A value of each setting that is not the default."""


@pytest.fixture
def broker() -> ApiBroker:
    made = ApiBroker()
    made.clock.now_ms = 1_704_067_200_000
    made.create_queue("target")
    return made


def make(broker: ApiBroker, path: str, **body: Any) -> Any:
    found = broker.http("PUT", f"/entities/{path}", body)
    assert found.status == 201, found.body
    return found.json


def test_an_entity_of_each_kind_is_made(broker: ApiBroker) -> None:
    made = make(broker, "a%2Fb", kind="queue", settings={"lockDuration": 30})
    assert (made["name"], made["kind"], made["settings"]["lockDuration"]) == ("a/b", "queue", 30)
    assert make(broker, "t", kind="topic")["kind"] == "topic"
    made = make(broker, SUBSCRIPTION)
    assert (made["name"], made["kind"]) == ("t/Subscriptions/s", "subscription")
    assert broker.ok("GET", "/entities/a%2Fb")["name"] == "a/b"
    again = broker.http("PUT", "/entities/a%2Fb", {"kind": "topic"})
    assert (again.status, again.problem) == (409, "entity-already-exists")


def test_all_settings_of_the_administration_are_there() -> None:
    """Req: A-01."""
    fields = {setting.field for setting in SETTINGS.values()}
    tables = (*QUEUE_ELEMENTS, *TOPIC_ELEMENTS, *SUBSCRIPTION_ELEMENTS)
    assert fields == {row.field for row in tables if isinstance(row, Setting)} - {"authorization_rules"}
    assert OTHERS.keys() == SETTINGS.keys()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("path", ["q", "t", SUBSCRIPTION])
def test_each_setting_is_set_at_creation_and_shown(name: str, path: str) -> None:
    broker = ApiBroker(tier=PREMIUM)
    broker.create_queue("target")
    if path == SUBSCRIPTION:
        broker.create_topic("t")
    kinds = {"q": "queue", "t": "topic", SUBSCRIPTION: "subscription"}
    settings = {name: OTHERS[name]}
    if name == "duplicateDetectionWindow":
        settings["requiresDuplicateDetection"] = True
    answer = broker.http("PUT", f"/entities/{path}", {"kind": kinds[path], "settings": settings})
    if answer.status == 201:
        assert answer.json["settings"][name] == OTHERS[name]
        assert broker.ok("GET", f"/entities/{path}")["settings"] == answer.json["settings"]
    else:
        assert answer.problem in ("argument-invalid", "not-supported"), answer.body
        assert name in answer.json["detail"] or name == "partitioned"


def test_an_entity_is_changed_in_what_is_given(broker: ApiBroker) -> None:
    make(broker, "q", kind="queue", settings={"lockDuration": 30, "userMetadata": "a"})
    rules = (AuthorizationRule("r", ("Listen",), "k" * 44, "l" * 44),)
    description = QueueDescription("q", lock_duration_ms=30_000, user_metadata="a", authorization_rules=rules)
    broker.ask(lambda reply_to: UpdateEntity(description, reply_to))
    given = {"maxDeliveryCount": 3, "forwardDeadLetteredTo": "target", "status": "ReceiveDisabled"}
    found = broker.ok("PATCH", "/entities/q", {"settings": given})
    assert {**found["settings"], **given, "lockDuration": 30, "userMetadata": "a"} == found["settings"]
    assert found["status"] == "ReceiveDisabled"
    nothing = {"forwardDeadLetteredTo": None, "userMetadata": None, "defaultTimeToLive": None}
    settings = broker.ok("PATCH", "/entities/q", {"settings": nothing})["settings"]
    assert not nothing.keys() & settings.keys()
    assert (settings["maxDeliveryCount"], settings["lockDuration"]) == (3, 30)
    kept = broker.queue("q").description.authorization_rules
    assert [rule.name for rule in kept] == ["r"]


def test_a_change_meanwhile_is_kept(broker: ApiBroker) -> None:
    make(broker, "q", kind="queue")
    broker.clock.now_ms += 1
    number = broker.waits.begin(_asked(broker, {"settings": {"maxDeliveryCount": 3}}))
    assert isinstance(number, int)
    looked_up = list(broker.waits.take_commands())
    broker.offer(looked_up)  # it is answered in this state
    broker.ask(lambda reply_to: UpdateEntity(QueueDescription("q", user_metadata="a"), reply_to))
    broker.go()
    assert broker.answers.pop(number).status == 200
    settings = broker.ok("GET", "/entities/q")["settings"]
    assert (settings["maxDeliveryCount"], settings["userMetadata"]) == (3, "a")


def _asked(broker: ApiBroker, body: Any) -> Any:
    headers = {"authorization": broker.token(), "host": "h", "content-type": "application/json"}
    request = AdminRequest("PATCH", "/$api/v1/entities/q", headers=headers, body=json.dumps(body).encode())
    return broker.api.handle(request, broker.clock.now_ms)


def test_an_entity_is_deleted(broker: ApiBroker) -> None:
    make(broker, "q", kind="queue")
    assert broker.http("DELETE", "/entities/q").status == 204
    assert broker.http("DELETE", "/entities/q").problem == "entity-not-found"


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("q", {}, 400, "kind"),
        ("q", {"kind": "subscription"}, 400, "kind"),
        (SUBSCRIPTION, {"kind": "queue"}, 400, "queue"),
        (SUBSCRIPTION, {}, 404, "t"),
        ("q", {"kind": "queue", "settings": {"lockDuration": -1}}, 400, "lockDuration"),
        ("q", {"kind": "queue", "settings": {"lockDuration": 301}}, 400, "PT5M"),
        ("q", {"kind": "queue", "settings": {"lockDuration": 1e308}}, 400, ""),
        ("q", {"kind": "queue", "settings": {"colour": 1}}, 400, "colour"),
        ("q", {"kind": "queue", "settings": {"supportOrdering": True}}, 400, "supportOrdering"),
        ("q", {"kind": "queue", "settings": {"forwardTo": "sb://"}}, 400, "forwardTo"),
        ("q", {"kind": "queue", "settings": {"forwardTo": "none"}}, 400, "none"),
        ("q", {"kind": "queue", "settings": {"status": "Off"}}, 400, "status"),
        ("q", {"kind": "queue", "rule": {"filter": {"sql": "1=1"}}}, 400, "rule"),
        ("q q", {"kind": "queue"}, 400, "q q"),
        ("q%2F$deadletterqueue", {"kind": "queue"}, 400, "dead-letter queue"),
    ],
)
def test_a_bad_entity_is_refused_by_name(
    broker: ApiBroker, path: str, body: Any, status: int, named: str
) -> None:
    refused = broker.http("PUT", f"/entities/{path.replace(' ', '%20')}", body)
    assert refused.status == status, refused.body
    assert named in refused.json["detail"]
    assert broker.http("GET", f"/entities/{path.replace(' ', '%20')}").status != 200


def test_who_forwards_needs_send_on_the_target() -> None:
    """Req: A-01."""
    rules = [SasRule("root", "r" * 44), SasRule("of-q", "c" * 44, path="q")]
    broker = ApiBroker(authority=Authority(rules))
    broker.create_queue("q")
    broker.create_queue("other")
    own = broker.token("of-q", "c" * 44, "/q")
    change = {"settings": {"forwardTo": "other"}}
    refused = broker.http("PATCH", "/entities/q", change, token=own)
    assert refused.status == 401
    assert "'Send'" in refused.json["detail"]
    further = {"ServiceBusSupplementaryAuthorization": broker.token("root", "r" * 44, "/other")}
    assert broker.http("PATCH", "/entities/q", change, further, token=own).status == 200
    # What is there already needs no right.
    assert broker.http("PATCH", "/entities/q", {"settings": {"lockDuration": 9}}, token=own).status == 200
    writer = Authority([SasRule("m", "m" * 44, rights=frozenset({Right.LISTEN}))])
    assert ApiBroker(authority=writer).http("PUT", "/entities/q", {"kind": "queue"}).status == 401


def test_a_foreign_host_is_no_target(broker: ApiBroker) -> None:
    made = make(broker, "q", kind="queue", settings={"forwardTo": "sb://h/target"})
    assert made["settings"]["forwardTo"] == "target"
    own_host = replace(broker.admin_context, owns=lambda host, own: host == "h")
    broker.api = Api(own_host, ApiContext())
    refused = broker.http("PATCH", "/entities/q", {"settings": {"forwardTo": "sb://other/target"}})
    assert refused.status == 400
    assert "another host" in refused.json["detail"]
