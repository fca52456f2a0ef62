"""Jobs over HTTP, by child processes: what they do, and what is left of one that is stopped or killed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from peeklock.client import BlockingConnection, ReceiveMode, encode_message
from peeklock.client.browsing import Browser
from peeklock.client.links import dead_letter
from peeklock.client.scheduling import due_ms
from peeklock.demo.broker import BrokerProcess
from peeklock.jobs.groups import GROUPS_MAX
from peeklock.search import Peeked
from tests.kept_keys import write_keys
from tests.server.workers.asking import Client, of_kind
from tests.server.workers.conftest import CONFIG, fill
from tests.server.workers.test_search import children, wait_for_no_child

DEAD = "orders/$deadletterqueue"


def fill_dead_letters(connection: BlockingConnection, count: int) -> None:
    """Dead-letter messages, each second one as burnt."""
    fill(connection, count)
    receiver = connection.receiver("orders", ReceiveMode.PEEK_LOCK)
    left = count
    while left:
        for delivery in receiver.receive(min(left, 500), 10):
            is_even = Peeked(delivery.payload).application_properties["n"] % 2 == 0
            receiver.settle(delivery, dead_letter("burnt" if is_even else "lost"))
            left -= 1
        receiver.flush()
    receiver.close()


def numbers_in(connection: BlockingConnection, entity: str) -> list[int]:
    """Return the property `n` of the messages of an entity."""
    pages = Browser(connection, entity).read()
    return sorted(Peeked(each).application_properties["n"] for page in pages for each in page)


def send(client: Client, messages: list[dict[str, Any]], entity: str = "orders") -> None:
    """Send messages to an entity."""
    while (status := client.ask("POST", f"/entities/{entity}/messages", messages)[0]) == 503:
        pass  # a busy machine makes a busy broker
    assert status == 201


def start(client: Client, **order: Any) -> dict[str, Any]:
    status, job = client.ask("POST", "/jobs", order)
    assert status == 201, job
    assert job["state"] == "running"
    return dict(job)


def wait(
    client: Client, job: dict[str, Any], until: Callable[[dict[str, Any]], object] | None = None
) -> dict[str, Any]:
    """Wait until something is true of a job; by default that it does not run."""
    deadline = time.monotonic() + 60
    while True:
        status, found = client.ask("GET", f"/jobs/{job['id']}")
        assert status == 200, found
        if found["state"] != "running" if until is None else until(found):
            return dict(found)
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_dead_letters_are_sent_back_by_group(client: Client, connection: BlockingConnection) -> None:
    fill_dead_letters(connection, 20)
    group = {"by": {"reason": True}, "value": "burnt"}
    order = {"work": "resubmit", "entity": DEAD, "group": group, "edits": {"set": {"again": 1}}}
    name, preview = client.events("/jobs/preview", order)[-1]
    assert name == "end"
    assert (preview["count"], preview["states"], len(preview["examples"])) == (10, {"active": 10}, 10)
    assert preview["guarantee"].startswith("Exactly once")
    job = wait(client, start(client, **order))
    assert (job["state"], job["done"], job["of"], job["left"]) == ("done", 10, 10, 0)
    assert (job["entity"], job["to"], job["guarantee"]) == (DEAD, "orders", preview["guarantee"])
    assert job["group"] == group
    assert numbers_in(connection, "orders") == list(range(0, 20, 2))
    [first] = Browser(connection, "orders").peek(0, 1)
    properties = Peeked(first).application_properties
    assert (properties["again"], properties["peeklock-resubmits"]) == (1, 1)
    assert "DeadLetterReason" not in properties
    assert client.ask("GET", "/jobs")[1]["jobs"][0]["id"] == job["id"]
    assert client.ask("GET", "/jobs?entity=orders")[1]["jobs"][0]["id"] == job["id"]
    assert client.ask("GET", "/jobs?entity=repaired")[1]["jobs"] == []
    assert client.ask("POST", f"/jobs/{job['id']}/resume")[0] == 409
    assert client.ask("DELETE", f"/jobs/{job['id']}")[0] == 204
    assert client.ask("GET", f"/jobs/{job['id']}")[0] == 404


def test_groups_are_counted(client: Client, connection: BlockingConnection) -> None:
    fill_dead_letters(connection, 5)
    events = client.events("/groups", {"entity": DEAD, "by": {"reason": True}})
    end = of_kind(events, "end")[0]
    assert [(each["value"], each["count"], each["repeated"]) for each in end["groups"]] == [
        ("burnt", 3, 0),
        ("lost", 2, 0),
    ]
    assert (end["count"], end["others"]) == (2, 0)
    assert end["groups"][0]["numbers"] == [1, 3, 5]
    assert end["groups"][0]["oldest"] <= end["groups"][0]["newest"]
    end = client.events("/groups", {"entity": DEAD, "by": {"property": "n"}, "filter": "n < 2"})[-1][1]
    assert end["count"] == 2


def test_groups_beyond_the_limit_are_counted_as_others(
    client: Client, connection: BlockingConnection
) -> None:
    fill(connection, GROUPS_MAX + 3)
    end = client.events("/groups", {"entity": "orders", "by": {"property": "n"}})[-1][1]
    assert (end["examined"], end["count"], end["others"]) == (GROUPS_MAX + 3, GROUPS_MAX, 3)
    assert len(end["groups"]) == 1000
    assert "(others)" not in {each["value"] for each in end["groups"]}


def test_a_purge_by_filter_removes_messages_of_all_states(
    client: Client, connection: BlockingConnection
) -> None:
    fill(connection, 10)
    later = {"body": "x", "scheduledEnqueueTime": "2999-01-01T00:00:00Z", "properties": {"n": 0}}
    send(client, [later, later])
    job = wait(client, start(client, work="cancel", entity="orders", criteria={"filter": "n = 0"}))
    assert (job["state"], job["done"]) == ("done", 2)
    send(client, [later])
    job = wait(client, start(client, work="purge", entity="orders", criteria={"filter": "n < 5"}))
    assert (job["state"], job["done"], job["of"]) == ("done", 6, 6)
    assert job["criteria"] == {"filter": "n < 5"}
    assert numbers_in(connection, "orders") == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("killed", [False, True])
def test_schedules_are_shifted_once(
    broker: BrokerProcess, client: Client, connection: BlockingConnection, killed: bool
) -> None:
    later = {"body": "x", "scheduledEnqueueTime": "2999-01-01T00:00:00Z", "properties": {"n": 0}}
    for _ in range(4):
        send(client, [later] * 250)
    job = start(client, work="reschedule", entity="orders", shift=86_400)
    if killed:
        wait(client, job, lambda found: found["state"] != "running" or found["done"] > 100)
        for pid in children(broker):
            os.kill(pid, 9)
        if wait(client, job)["state"] == "interrupted":
            assert client.ask("POST", f"/jobs/{job['id']}/resume")[0] == 202
    done = wait(client, job)
    assert (done["state"], done.get("problem")) == ("done", None)
    pages = Browser(connection, "orders").read()
    due = [due_ms(each) for page in pages for each in page]
    assert due == [round(datetime(2999, 1, 2, tzinfo=UTC).timestamp() * 1000)] * 1000
    job = start(client, work="reschedule", entity="orders", at="2026-01-01T00:00:00Z", numbers=[1001, 1002])
    assert wait(client, job)["done"] == 2


def test_a_topic_has_scheduled_messages_to_move_in_time(client: Client) -> None:
    """Their count comes first, as for all jobs."""
    later = {"body": "x", "scheduledEnqueueTime": "2999-01-01T00:00:00Z"}
    assert client.ask("POST", "/entities/news/messages", [later, later])[0] == 201
    order = {"work": "reschedule", "entity": "news", "at": "2999-02-01T00:00:00Z"}
    events = client.events("/jobs/preview", order)
    assert of_kind(events, "end"), events[-1][1]["detail"]
    [end] = of_kind(events, "end")
    assert (end["count"], end["states"], len(end["examples"])) == (2, {"scheduled": 2}, 2)
    assert end["guarantee"].startswith("Each message is copied to its new time")
    job = wait(client, start(client, **order))
    assert (job["state"], job["done"], job["guarantee"]) == ("done", 2, end["guarantee"])


def test_messages_are_dead_lettered_and_moved_by_number(
    client: Client, connection: BlockingConnection
) -> None:
    fill(connection, 6)
    order = {"work": "deadLetter", "entity": "orders", "reason": "spoilt", "criteria": {"filter": "n > 3"}}
    assert wait(client, start(client, **order))["state"] == "done"
    assert numbers_in(connection, DEAD) == [4, 5]
    [first] = Browser(connection, DEAD).peek(0, 1)
    assert Peeked(first).dead_letter_reason == "spoilt"
    job = wait(client, start(client, work="move", entity="orders", to="repaired", numbers=[2, 3]))
    assert (job["state"], job["done"]) == ("done", 2)
    assert (job["numberCount"], "criteria" in job, "rate" in job) == (2, False, False)
    assert numbers_in(connection, "repaired") == [1, 2]
    assert numbers_in(connection, "orders") == [0, 3]


def test_messages_of_sessions_are_moved(client: Client, connection: BlockingConnection) -> None:
    for session in ("a", "b"):
        cart = {"body": "item", "sessionId": session, "properties": {"n": 1}}
        send(client, [cart, cart], "carts")
    job = wait(client, start(client, work="move", entity="carts", to="repaired"))
    assert (job["state"], job["done"]) == ("done", 4)
    assert numbers_in(connection, "repaired") == [1, 1, 1, 1]


def test_a_job_is_stopped_in_order_and_resumed(client: Client, connection: BlockingConnection) -> None:
    fill_dead_letters(connection, 60)
    job = start(client, work="resubmit", entity=DEAD, rate=20, to="repaired")
    wait(client, job, lambda found: found["done"] > 5)
    assert client.ask("DELETE", f"/jobs/{job['id']}")[0] == 409
    assert client.ask("POST", f"/jobs/{job['id']}/stop")[0] == 202
    stopped = wait(client, job)
    assert (stopped["state"], stopped["rate"]) == ("stopped", 20)
    assert 5 < stopped["done"] < 60
    assert len(numbers_in(connection, "repaired")) == stopped["done"]
    assert client.ask("POST", f"/jobs/{job['id']}/stop")[0] == 409
    assert client.ask("POST", f"/jobs/{job['id']}/resume")[0] == 202
    done = wait(client, job)
    assert (done["state"], done["done"], done["of"]) == ("done", 60, 60)
    assert numbers_in(connection, "repaired") == list(range(60))


@pytest.mark.parametrize("killed", ["child", "broker"])
def test_a_job_that_is_killed_is_resumed_and_each_message_arrives_once(
    broker: BrokerProcess, client: Client, connection: BlockingConnection, killed: str
) -> None:
    fill_dead_letters(connection, 3000)
    job = start(client, work="resubmit", entity=DEAD, to="repaired", rate=1500)
    wait(client, job, lambda found: found["done"] > 500)
    if killed == "child":
        os.kill(children(broker)[0], 9)
    else:
        broker.kill()
        broker.start()
    interrupted = wait(client, job)
    assert interrupted["state"] == "interrupted"
    assert client.ask("POST", f"/jobs/{job['id']}/resume")[0] == 202
    done = wait(client, job)
    assert (done["state"], done.get("problem")) == ("done", None)
    assert numbers_in(connection, "repaired") == list(range(3000))
    assert numbers_in(connection, DEAD) == []


def test_a_job_ends_with_its_key_and_is_resumed_with_another(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(json.dumps(CONFIG))
    [rule] = write_keys(tmp_path / "data")
    with BrokerProcess(tmp_path, ["--durability=os", "--auth=sas", f"--config={config}"]) as broker:
        root = Client(broker, rule.name, rule.primary_key)
        status, key = root.ask("PUT", "/keys/worker?rights=Send,Listen")
        assert status == 201, key
        worker = Client(broker, "worker", key["primaryKey"])
        reader_key = root.ask("PUT", "/keys/reader?rights=Listen")[1]
        reader = Client(broker, "reader", reader_key["primaryKey"])
        messages = [{"body": "x", "properties": {"n": n}} for n in range(200)]
        send(root, messages)
        order = {"work": "move", "entity": "orders", "to": "repaired", "rate": 50}
        assert reader.ask("POST", "/jobs", order)[0] == 403
        job = start(worker, **order)
        assert job["by"] == "worker"
        assert reader.ask("GET", f"/jobs/{job['id']}")[0] == 404
        assert reader.ask("GET", "/jobs")[1] == {"jobs": []}
        assert reader.ask("POST", "/search", {})[0] == 403
        wait(root, job, lambda found: found["done"] > 10)
        assert of_kind(reader.events("/search", {"entity": "repaired", "limit": 1}), "found")
        assert root.ask("DELETE", "/keys/worker")[0] == 200
        stopped = wait(root, job)
        assert stopped["state"] == "stopped"
        assert stopped["problem"] == (
            "The key or role 'worker', with whose rights the job worked, was removed or changed: resume "
            "the job with one that has Listen on 'orders' and Send on 'repaired'."
        )
        assert worker.ask("GET", "/jobs")[0] == 401
        other_key = root.ask("PUT", "/keys/worker?rights=Send,Listen")[1]
        other = Client(broker, "worker", other_key["primaryKey"])
        assert other.ask("GET", "/jobs")[1] == {"jobs": []}
        assert other.ask("POST", f"/jobs/{job['id']}/resume")[0] == 404
        assert root.ask("POST", f"/jobs/{job['id']}/resume")[0] == 202
        done = wait(root, job)
        assert (done["state"], done["done"]) == ("done", 200), done
        assert root.ask("GET", f"/jobs/{job['id']}")[1]["by"] == rule.name


def test_a_regular_expression_that_is_slow_while_a_job_receives_ends_it(
    client: Client, connection: BlockingConnection
) -> None:
    """The count ends at the limit, with the first message; another receiver holds it, so the second comes."""
    fill(connection, 1, data=b"ok")
    fill(connection, 1, data=b"a" * 60 + b"!")
    holder = connection.receiver("orders", ReceiveMode.PEEK_LOCK)
    assert [each.payload for each in holder.receive(1, 10)]
    order = {"work": "move", "entity": "orders", "to": "repaired", "limit": 1}
    job = wait(client, start(client, **order, criteria={"regex": "(a+)+b|ok"}))
    assert (job["state"], job["done"]) == ("failed", 0)
    assert "over 5 s for one message" in job["problem"]
    other = connection.receiver("orders", ReceiveMode.PEEK_LOCK)
    assert len(other.receive(1, 10)) == 1  # it was released


def test_a_regular_expression_is_given_up_while_schedules_are_read(client: Client) -> None:
    slow = {"body": "a" * 60 + "!", "scheduledEnqueueTime": "2999-01-01T00:00:00Z"}
    send(client, [slow])
    order = {"work": "reschedule", "entity": "orders", "shift": 60, "criteria": {"regex": "(a+)+b"}}
    job = wait(client, start(client, **order))
    assert job["state"] == "failed"
    assert "regular expression" in job["problem"]


def test_what_cannot_be_a_job_is_refused(client: Client, connection: BlockingConnection) -> None:
    for order, status in (
        ({"work": "move", "entity": "orders"}, 400),
        ({"work": "move", "entity": "orders", "to": "none"}, 404),
        ({"work": "move", "entity": "orders", "to": "orders"}, 400),
        ({"work": "move", "entity": "news", "to": "orders"}, 409),
        ({"work": "move", "entity": "orders", "to": "news/subscriptions/all"}, 409),
        ({"work": "purge", "entity": "orders", "to": "repaired"}, 400),
        ({"work": "move", "entity": "orders", "to": "repaired", "criteria": {"states": ["deferred"]}}, 400),
        ({"work": "purge", "entity": "orders", "criteria": {"filter": "n <"}}, 400),
        ({"work": "purge", "entity": "orders", "group": {"by": {}, "value": "a"}}, 400),
        ({"work": "none", "entity": "orders"}, 400),
        ({"work": "reschedule", "entity": "orders"}, 400),
        ({"work": "reschedule", "entity": "orders", "at": "2026-01-01T00:00:00Z", "shift": 1}, 400),
        ({"work": "purge", "entity": "orders", "shift": 1}, 400),
        ({"work": "purge"}, 400),
        ({"work": "move", "entity": "orders", "to": "none", "edits": {"timeToLive": 9e307}}, 404),
    ):
        assert client.ask("POST", "/jobs", order)[0] == status, order
    assert client.ask("GET", "/jobs")[1] == {"jobs": []}
    for path in ("/jobs/none", "/jobs/none/stop", "/jobs/none/resume"):
        assert client.ask("GET" if path.endswith("none") else "POST", path)[0] == 404


def test_no_child_is_left(broker: BrokerProcess, client: Client, connection: BlockingConnection) -> None:
    sender = connection.sender("orders")
    sender.send(encode_message(data=b"one"))
    sender.flush()
    wait(client, start(client, work="purge", entity="orders"))
    wait_for_no_child(broker)
