"""Searches and jobs of a namespace in memory, and what becomes of them when it ends."""

from __future__ import annotations

from peeklock.auth import DEVELOPMENT_KEY
from peeklock.demo.broker import BrokerProcess
from tests.server.workers.asking import Client, of_kind
from tests.server.workers.conftest import CONFIG
from tests.server.workers.test_jobs import start, wait
from tests.server.workers.test_search import wait_for_no_child


def test_a_namespace_in_memory_is_searched_and_its_jobs_end_with_it(
    broker: BrokerProcess, client: Client
) -> None:
    status, made = client.ask("POST", "/namespaces", CONFIG)
    assert status == 201, made
    own = Client(broker, made["name"], DEVELOPMENT_KEY)
    messages = [{"body": "x", "properties": {"n": n}} for n in range(100)]
    assert own.ask("POST", "/entities/orders/messages", messages)[0] == 201
    assert len(of_kind(own.events("/search", {"filter": "n >= 90"}), "found")) == 10
    assert client.events("/search", {"filter": "n >= 90"})[-1][1]["found"] == 0
    job = start(own, work="move", entity="orders", to="repaired", criteria={"filter": "n < 50"})
    assert wait(own, job)["done"] == 50
    slow = start(own, work="move", entity="orders", to="repaired", rate=1)
    wait(own, slow, lambda found: found["done"] > 0)
    assert client.ask("GET", f"/jobs/{slow['id']}")[0] == 404
    assert client.ask("DELETE", f"/namespaces/{made['name']}")[0] in (200, 204)
    wait_for_no_child(broker)
    assert client.ask("GET", "/jobs")[1] == {"jobs": []}
