"""Who may ask what of the API, and how a refusal looks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from peeklock.admin.exchange import AdminRequest
from peeklock.api import api
from peeklock.api.api import TABLE
from peeklock.api.problems import STATUSES, ApiRefusal
from peeklock.api.table import Table
from peeklock.auth import Authority, SasRule
from peeklock.auth.errors import AuthorizationError
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.errors import ServiceBusError
from tests.api.asking import ApiBroker


@pytest.fixture
def broker() -> ApiBroker:
    rules = [
        SasRule("root", "r" * 44),
        SasRule("reader", "a" * 44, rights=frozenset({Right.LISTEN})),
        SasRule("writer", "b" * 44, rights=frozenset({Right.SEND})),
        SasRule("of-q", "c" * 44, path="q"),
    ]
    made = ApiBroker(authority=Authority(rules))
    made.create_queue("q")
    made.create_queue("other")
    return made


KEYS = {"root": "r", "reader": "a", "writer": "b", "of-q": "c"}


def status(broker: ApiBroker, name: str, method: str, target: str, path: str = "") -> int:
    token = broker.token(name, KEYS[name] * 44, path)
    return broker.http(method, target, token=token).status


@pytest.mark.parametrize(
    ("method", "target", "may"),
    [
        ("GET", "/me", {"root", "reader", "writer", "of-q"}),
        ("GET", "/counts", {"root"}),
        ("GET", "/entities", {"root"}),
        ("GET", "/messages", {"root"}),
        ("GET", "/messages?entity=q", {"root", "reader", "of-q"}),
        ("DELETE", "/messages?entity=q&filter=1%3D1", {"root", "reader", "of-q"}),
        ("POST", "/scheduled/deliver", {"root"}),
        ("POST", "/scheduled/deliver?entity=q", {"root", "writer", "of-q"}),
        ("GET", "/entities/q", {"root", "reader", "of-q"}),
        ("GET", "/entities/other", {"root", "reader"}),
        ("PUT", "/entities/q", {"root", "of-q"}),
        ("PATCH", "/entities/q", {"root", "of-q"}),
        ("DELETE", "/entities/q", {"root", "of-q"}),
        ("GET", "/entities/q/rules", {"root", "of-q"}),
        ("PUT", "/entities/q/rules/r", {"root", "of-q"}),
        ("DELETE", "/entities/q/rules/r", {"root", "of-q"}),
        ("POST", "/rules/check", {"root", "reader", "writer", "of-q"}),
        ("GET", "/entities/q/messages", {"root", "reader", "of-q"}),
        ("GET", "/entities/q%2F$deadletterqueue/messages", {"root", "reader", "of-q"}),
        ("DELETE", "/entities/q/messages", {"root", "reader", "of-q"}),
        ("PUT", "/entities/q/sessions/s/state", {"root", "reader", "of-q"}),
        ("DELETE", "/entities/q/sessions/s/state", {"root", "reader", "of-q"}),
        ("POST", "/entities/q/match", {"root", "of-q"}),
        ("POST", "/entities/q/locks", {"root", "reader", "of-q"}),
        ("DELETE", "/entities/q/messages/1", {"root", "reader", "writer", "of-q"}),
        ("PATCH", "/entities/q/messages/1", {"root", "reader", "writer", "of-q"}),
    ],
)
def test_each_operation_takes_its_right(broker: ApiBroker, method: str, target: str, may: set[str]) -> None:
    """Req: R-04."""
    taken = set()
    for name in KEYS:
        path = "/q" if name == "of-q" else ""
        found = status(broker, name, method, target, path)
        if found not in (401, 403):
            taken.add(name)
        elif name != "of-q":
            assert found == 403
    assert taken == may


@pytest.mark.parametrize(
    ("method", "target", "changes"),
    [
        ("PUT", "/entities/q", True),
        ("PATCH", "/entities/q", True),
        ("DELETE", "/entities/q", True),
        ("PUT", "/entities/q/rules/r", True),
        ("DELETE", "/entities/q/rules/r", True),
        ("GET", "/entities/q/rules", False),
        ("POST", "/entities/q/match", False),
        ("POST", "/entities/q/messages", False),
        ("POST", "/rules/check", False),
    ],
)
def test_changes_of_entities_and_rules_are_administration(
    broker: ApiBroker, method: str, target: str, changes: bool
) -> None:
    assert broker.api.administers(method, f"/$api/v1{target}") is changes


def test_a_post_with_manage_on_an_entity_is_administration_unless_it_changes_nothing(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    [match] = [one for one in TABLE.operations if one.id == "matchMessage"]
    monkeypatch.setattr(api, "TABLE", Table((replace(match, changes_nothing=False),), {}))
    assert broker.api.administers("POST", "/$api/v1/entities/q/match")


def test_a_token_for_the_address_suffices(broker: ApiBroker) -> None:
    where = "/$api/v1/entities/q/messages"
    assert status(broker, "root", "GET", where, where) == 200
    assert status(broker, "root", "GET", "/entities/other/messages", where) == 401


def test_no_token_and_a_bad_one_are_refused_and_logged(broker: ApiBroker) -> None:
    refused = broker.http("GET", "/entities", token="")
    assert (refused.status, refused.problem) == (401, "claim-missing")
    assert refused.headers["WWW-Authenticate"]
    assert refused.json["trackingId"] == broker.logged[-1]["tracking_id"]
    assert refused.json["title"] == "Claim missing"
    assert broker.http("GET", "/entities", token=broker.token("root", "x" * 44)).status == 401
    assert broker.logged[-1]["key_name"] == "root"


def test_the_document_is_shown_to_everybody(broker: ApiBroker) -> None:
    found = broker.ok("GET", "/$api/openapi.json", token="")
    assert found["openapi"].startswith("3.1")
    refused = broker.http("POST", "/$api/openapi.json", token="")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET")


def test_a_method_that_is_not_served_is_told_those_that_are(broker: ApiBroker) -> None:
    refused = broker.http("PUT", "/entities/q/messages")
    assert (refused.status, refused.problem) == (405, "method-not-allowed")
    assert refused.headers["Allow"] == "GET, POST, DELETE"


@pytest.mark.parametrize("kind", ["text/plain", "", "application/jsonp"])
def test_a_body_says_that_it_is_json(broker: ApiBroker, kind: str) -> None:
    token = broker.token("root", "r" * 44)
    target, given = "/entities/q/messages", {"body": "a"}
    refused = broker.http("POST", target, given, {"Content-Type": kind}, token=token)
    assert (refused.status, refused.problem) == (415, "media-type-unsupported")
    taken = broker.http(
        "POST", target, given, {"Content-Type": "application/json; charset=utf-8"}, token=token
    )
    assert taken.status == 201


def test_a_body_that_nobody_wants_is_refused(broker: ApiBroker) -> None:
    token = broker.token("root", "r" * 44)
    assert broker.http("GET", "/entities", {"a": 1}, token=token).problem == "argument-invalid"


def test_a_large_body_is_refused_for_its_token_before_it_is_read(broker: ApiBroker) -> None:
    path = "/$api/v1/entities/q/messages"
    assert broker.api.body_bytes_max("POST", path) == 1024 * 1024
    assert broker.api.body_bytes_max("GET", path) == 16 * 1024
    for name, wanted in (("reader", 403), ("writer", None)):
        token = broker.token(name, KEYS[name] * 44)
        request = AdminRequest("POST", path, headers={"authorization": token})
        found = broker.api.refusal(request, broker.clock.now_ms)
        assert (None if found is None else found.status) == wanted
    assert broker.api.too_large(request, 10, broker.clock.now_ms).status == 413


@pytest.mark.parametrize("path", ["/search", "/groups", "/jobs", "/jobs/preview"])
def test_a_body_that_names_the_entity_is_read_for_a_valid_token_alone(broker: ApiBroker, path: str) -> None:
    def refused(token: str) -> int | None:
        request = AdminRequest("POST", f"/$api/v1{path}", headers={"authorization": token})
        found = broker.api.refusal(request, broker.clock.now_ms)
        return None if found is None else found.status

    assert refused("") == 401
    assert refused(broker.token("of-q", "x" * 44, "/q")) == 401
    assert refused(broker.token("of-q", KEYS["of-q"] * 44, "/q")) is None


def test_each_refusal_of_the_broker_has_a_status() -> None:
    leaves = {*_leaves(ServiceBusError), *_leaves(AuthorizationError), *_leaves(ApiRefusal)}
    assert leaves == set(STATUSES)


def test_each_operation_has_a_name_of_its_own() -> None:
    ids = [operation.id for operation in TABLE.operations]
    assert len(set(ids)) == len(ids)


def _leaves(kind: type) -> list[type]:
    below: list[type] = kind.__subclasses__()
    return [kind] if not below else [leaf for each in below for leaf in _leaves(each)]
