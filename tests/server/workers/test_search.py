"""Searches by a child process: what they find, how they end, and that nothing is left of them."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import pytest

from peeklock.client import BlockingConnection, encode_message
from peeklock.demo.broker import BrokerProcess
from peeklock.server.workers.children import CHILDREN_OF_KEY_MAX
from tests.server.workers.asking import Client, of_kind, read_events
from tests.server.workers.conftest import fill


def children(broker: BrokerProcess) -> list[int]:
    """Return the process ids of a broker's children."""
    text = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text()
    found = [int(pid) for pid in text.split()]
    for task in Path(f"/proc/{broker.pid}/task").iterdir():  # threads have children of their own
        if task.name != str(broker.pid):
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that its parent has not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_no_child(broker: BrokerProcess) -> None:
    deadline = time.monotonic() + 20
    while children(broker):
        assert time.monotonic() < deadline, children(broker)
        time.sleep(0.02)


def test_what_is_found_is_streamed_with_progress(client: Client, connection: BlockingConnection) -> None:
    fill(connection, 300)
    events = client.events("/search", {"entity": "orders", "filter": "n < 2 OR n = 250"})
    assert [found["properties"]["n"] for found in of_kind(events, "found")] == [0, 1, 250]
    first = of_kind(events, "found")[0]
    assert (first["entity"], first["body"], first["state"]) == ("orders", "one pizza", "active")
    assert of_kind(events, "progress")[0] == {"examined": 0, "of": 300, "perSecond": 0}
    assert events[-1] == ("end", {"examined": 300, "found": 3, "why": "all"})


def test_a_search_of_all_finds_dead_letters_too(client: Client, connection: BlockingConnection) -> None:
    fill(connection, 3)
    fill(connection, 1, "news")
    locked = client.ask("POST", "/entities/orders/locks", {})[1]["deliveries"][0]["lock"]
    where = locked["href"].removeprefix("/$api/v1")
    assert client.ask("PATCH", where, {"outcome": "deadLetter", "reason": "burnt"})[0] == 204
    found = of_kind(client.events("/search", {}), "found")
    assert [each["entity"] for each in found] == [
        "orders",
        "orders",
        "orders/$deadletterqueue",
        "news/Subscriptions/all",
    ]
    [burnt] = of_kind(client.events("/search", {"deadLetterReason": "burnt"}), "found")
    assert burnt["properties"]["DeadLetterReason"] == "burnt"


def test_criteria_limit_and_bodies_that_are_cut(client: Client, connection: BlockingConnection) -> None:
    fill(connection, 5)
    sender = connection.sender("orders")
    sender.send(encode_message(data=b"\xff" * 10))
    sender.flush()
    numbers = {"entity": "orders", "from": 2, "to": 4, "bodyBytesMax": 3, "states": ["active"]}
    events = client.events("/search", numbers)
    found = of_kind(events, "found")
    assert [each["sequenceNumber"] for each in found] == [2, 3, 4]
    assert {(each["body"], each["bodyTruncated"], each["bodySizeBytes"]) for each in found} == {
        ("one", True, 9)
    }
    assert of_kind(client.events("/search", {**numbers, "states": ["deferred"]}), "found") == []
    events = client.events("/search", {"entity": "orders", "from": 6, "bodyBytesMax": 4})
    assert of_kind(events, "found")[0]["bodyBase64"] == base64.b64encode(b"\xff" * 4).decode()
    end = client.events("/search", {"entity": "orders", "limit": 2})[-1]
    assert (end[0], end[1]["found"], end[1]["why"]) == ("end", 2, "limit")


def test_lines_are_messages_that_can_be_sent(client: Client, connection: BlockingConnection) -> None:
    fill(connection, 3)
    lines = client.lines("/search", {"entity": "orders"})
    assert [line["properties"]["n"] for line in lines] == [0, 1, 2]
    assert {line["body"] for line in lines} == {"one pizza"}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"entity": "none"}, 404, "could not be found"),
        ({"entity": "news"}, 409, "news/subscriptions/NAME"),
        ({"entity": "orders", "filter": "n <"}, 400, "'filter'"),
        ({"entity": "orders", "jsonPath": "a.b"}, 400, "'jsonPath'"),
        ({"entity": "orders", "since": "yesterday"}, 400, "'since'"),
        ({"entity": "orders", "unknown": 1}, 400, "unknown"),
        ({"entity": 5}, 400, "'entity'"),
    ],
)
def test_what_cannot_be_searched_is_refused_at_once(
    client: Client, body: dict[str, object], status: int, said: str
) -> None:
    found, problem = client.ask("POST", "/search", body)
    assert (found, said in problem["detail"]) == (status, True), problem


def test_an_expression_may_take_five_seconds(client: Client, connection: BlockingConnection) -> None:
    fill(connection, 1, data=b"a" * 60 + b"!")
    began = time.monotonic()
    name, problem = client.events("/search", {"entity": "orders", "regex": "(a+)+b"})[-1]
    assert (name, problem["title"]) == ("problem", "Expression too slow")
    assert 5 <= time.monotonic() - began < 20
    name, problem = client.events("/search", {"entity": "orders", "regex": "(a"})[-1]
    assert (name, problem["status"]) == ("problem", 400)
    assert "'regex'" in problem["detail"]


def test_a_client_that_leaves_ends_its_child(
    broker: BrokerProcess, client: Client, connection: BlockingConnection
) -> None:
    fill(connection, 1, data=b"a" * 60 + b"!")
    with client.asked("POST", "/search", {"entity": "orders", "regex": "(a+)+b"}) as answer:
        assert next(read_events(answer))[0] == "progress"
        assert len(children(broker)) == 1
    wait_for_no_child(broker)
    assert client.ask("GET", "/entities/orders")[0] == 200


def test_a_killed_child_ends_its_stream_with_a_problem(
    broker: BrokerProcess, client: Client, connection: BlockingConnection
) -> None:
    fill(connection, 1, data=b"a" * 60 + b"!")
    with client.asked("POST", "/search", {"entity": "orders", "regex": "(a+)+b"}) as answer:
        events = read_events(answer)
        next(events)
        os.kill(children(broker)[0], 9)
        name, problem = [*events][-1]
    assert (name, problem["status"]) == ("problem", 503)
    assert "ended early" in problem["detail"]
    wait_for_no_child(broker)


def test_a_key_has_so_many_at_a_time(
    broker: BrokerProcess, client: Client, connection: BlockingConnection
) -> None:
    """A client that does not read holds up its search."""
    fill(connection, 500, data=b"a" * 64 * 1024)
    opened = [client.asked("POST", "/search", {"entity": "orders"}) for _ in range(CHILDREN_OF_KEY_MAX)]
    answers = [each.__enter__() for each in opened]
    assert {answer.status for answer in answers} == {200}
    status, problem = client.ask("POST", "/search", {"entity": "orders"})
    assert (status, problem["type"]) == (503, "urn:peeklock:problem:server-busy")
    for each in opened:
        each.__exit__(None, None, None)
    wait_for_no_child(broker)
    assert client.events("/search", {"entity": "orders", "limit": 1})[-1][0] == "end"


def test_a_broker_that_stops_or_is_killed_leaves_no_child(
    broker: BrokerProcess, client: Client, connection: BlockingConnection
) -> None:
    fill(connection, 1, data=b"a" * 60 + b"!")
    slow = {"entity": "orders", "regex": "(a+)+b"}
    for end in (broker.stop, broker.kill):
        with client.asked("POST", "/search", slow) as answer:
            next(read_events(answer))
            [pid] = children(broker)
            end()
        deadline = time.monotonic() + 20
        while is_running(pid):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        broker.start()
