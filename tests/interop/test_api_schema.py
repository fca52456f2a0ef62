"""Requests that schemathesis makes of the OpenAPI document, good ones and bad ones, to a real broker.

No answer may be a server error, and the document must describe each: its status, its type, its JSON. Bad
requests must be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

pytest.importorskip("schemathesis")

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from peeklock.api import cluster_pages, operator_pages
from peeklock.api.api import TABLE
from peeklock.api.openapi import document
from peeklock.demo.broker import BrokerProcess
from tests.interop.test_rest import TOKEN

CASES = 10
"""For each operation: good requests, and as many bad ones."""

CASES_SOAK = 150

ENTITIES = ("q", "ids", "sessions", "t", "t/subscriptions/s", "q/$deadletterqueue", "none")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
REFUSALS_TOO = (413, 421, 431)
"""What schemathesis takes for an acceptance of bad data."""

DATA_PLANE_CHECKS = [not_a_server_error, status_code_conformance]
"""The body of a message is what its sender sent."""

SCHEMA = schemathesis.openapi.from_dict(document(TABLE))
FOUND: list[Any] = list(SCHEMA.get_all_operations())
OF_SERVER = {*operator_pages.PATHS, *cluster_pages.PATHS}
OPERATIONS = {  # an error has no `ok`; a page of connections takes a second
    found.ok().label: found.ok() for found in FOUND if found.ok().path not in OF_SERVER
}


class World:
    """A broker with entities of each kind, and one connection to it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.url = f"http://localhost:{broker.http_port}"
        self.session = requests.Session()
        self.session.headers["Authorization"] = TOKEN
        self.tokens: list[str] = []
        """Locks that were taken."""

    def make(self, path: str, kind: str, **settings: bool) -> None:
        url = f"{self.url}/$api/v1/entities/{quote(path, safe='')}"
        answer = self.session.put(url, json={"kind": kind, "settings": settings})
        assert answer.status_code == 201, answer.text

    def fill(self) -> None:
        """Make all entities anew, put a message into each, and take a lock."""
        for entity in self.session.get(f"{self.url}/$api/v1/entities?limit=250").json()["entities"]:
            if entity["kind"] != "subscription":
                assert self.session.delete(f"{self.url}{entity['href']}").status_code == 204
        self.make("q", "queue")
        self.make("ids", "queue", requiresDuplicateDetection=True)
        self.make("sessions", "queue", requiresSession=True)
        self.make("t", "topic")
        self.make("t/subscriptions/s", "subscription")
        for path in ("q", "ids", "t"):
            self.send(path, [{"body": "a"}, {"scheduledEnqueueTime": "2999-01-01T00:00:00Z"}])
        self.send("sessions", [{"body": "a", "sessionId": "s"}])
        answer = self.session.post(f"{self.url}/$api/v1/entities/q/locks", json={"max": 1})
        self.tokens = [each["lock"]["token"] for each in answer.json()["deliveries"]] or self.tokens

    def send(self, path: str, messages: list[dict[str, Any]]) -> None:
        answer = self.session.post(f"{self.url}/$api/v1/entities/{path}/messages", json=messages)
        assert answer.status_code == 201, answer.text


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with BrokerProcess(tmp_path_factory.mktemp("data")) as broker:
        made = World(broker)
        yield made
        assert requests.get(f"{made.url}/health", timeout=20).json()["defects"] == 0


@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value
)
@pytest.mark.parametrize(
    "cases",
    [
        CASES,
        pytest.param(CASES_SOAK, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("label", OPERATIONS)
def test_each_answer_is_one_that_is_described(
    world: World, label: str, mode: GenerationMode, cases: int
) -> None:
    """Req: R-05, T-09."""
    operation = OPERATIONS[label]
    is_ours = "/$api/" in label

    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
    def check(case: Any, data: st.DataObject) -> None:
        aim(world, case, data, label)
        checks = [*(CHECKS if is_ours else DATA_PLANE_CHECKS)]
        answer = case.call(base_url=world.url, session=world.session, timeout=20)
        if is_ours and negated(case) and negated(case) <= {"query", "body"}:
            if answer.status_code not in REFUSALS_TOO:
                checks.append(negative_data_rejection)
        case.validate_response(answer, checks=checks)

    world.fill()
    check()


@pytest.mark.parametrize("label", OPERATIONS)
def test_a_foreign_host_is_described(world: World, label: str) -> None:
    """Req: R-04."""
    case = OPERATIONS[label].Case(
        path_parameters={
            name: "1"
            for name in ("entity", "id", "job", "number", "rule", "token", "session")
            if name in label
        }
    )
    answer = case.call(base_url=world.url, session=world.session, headers={"Host": "example.org"}, timeout=20)
    assert answer.status_code == 421
    case.validate_response(answer, checks=CHECKS)


def negated(case: Any) -> set[str]:
    """Return which parts of a request are bad."""
    parts = case.meta.components.items()
    return {str(place.value) for place, part in parts if part.mode is GenerationMode.NEGATIVE}


def aim(world: World, case: Any, data: st.DataObject, label: str) -> None:
    """Make most requests concern existing entities, and none wait for long."""
    case.headers["Authorization"] = TOKEN
    path, bad = case.path_parameters, negated(case)
    draw = data.draw(st.integers(0, 7))
    if draw and "path" not in bad:
        if "entity" in path:
            entities = ("sessions", "t", "none") if "/deliveries" in label else ENTITIES
            path["entity"] = quote(entities[draw % len(entities)], safe="")
        if "number" in path:
            path["number"] = draw
        if "token" in path and world.tokens:
            path["token"] = world.tokens[-1]
        if "session" in path:
            path["session"] = "s"
        if "rule" in path:
            path["rule"] = ("$Default", "r")[draw % 2]
    elif "/deliveries" in label:
        path["entity"] = "none"
    if "entity" in case.query and "query" not in bad:
        case.query["entity"] = ENTITIES[draw % len(ENTITIES)]
    if label.endswith("/head") and str(case.query.get("timeout", 0)).isdigit():
        case.query["timeout"] = 0
    if isinstance(case.body, dict) and "body" not in bad and "wait" in case.body:
        case.body["wait"] = 0
