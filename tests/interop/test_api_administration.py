"""Entities, rules and single messages over the API of a real broker, beside a client of AMQP."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage

from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Links
from tests.interop.helpers import send, take, take_one
from tests.interop.test_api import ApiClient
from tests.interop.test_rest import Http


@pytest.fixture
def api(broker: BrokerProcess) -> Iterator[ApiClient]:
    web = Http(broker.http_port, None)
    yield ApiClient(web)
    web.close()


def test_a_topic_made_here_routes_what_amqp_sends(api: ApiClient, any_client: Links) -> None:
    """Req: A-01, P-01."""
    topic = "made-by-json"
    path = quote(f"{topic}/subscriptions/red", safe="")
    assert api.ask("PUT", f"/entities/{topic}", {"kind": "topic"})[0] == 201
    rule = {"filter": {"correlation": {"properties": {"colour": "red"}}}, "action": "SET seen = TRUE"}
    assert api.ask("PUT", f"/entities/{path}", {"rule": {"name": "red", **rule}})[0] == 201
    with any_client.get_topic_sender(topic) as sender:
        for colour in ("red", "blue"):
            sender.send_messages(ServiceBusMessage(colour, application_properties={"colour": colour}))
    with any_client.get_subscription_receiver(topic, "red") as receiver:
        (taken,) = take(receiver, 1)
        assert (str(taken), taken.application_properties[b"seen"]) == ("red", True)
        receiver.complete_message(taken)
    found = api.ok("POST", f"/entities/{topic}/match", {"message": {"properties": {"colour": "blue"}}})
    assert found["subscriptions"][0]["rules"][0]["reason"] == "colour is 'blue', not 'red'."
    assert api.ask("DELETE", f"/entities/{topic}")[0] == 204
    assert api.ask("GET", f"/entities/{path}")[0] == 404


def test_two_who_settle_one_message_never_both_succeed(
    broker: BrokerProcess, api: ApiClient, queue: str, any_client: Links
) -> None:
    send(any_client, queue, *map(str, range(20)))
    statuses: list[int] = []

    def settle() -> None:
        web = Http(broker.http_port, None)
        for number in range(1, 21):
            statuses.append(ApiClient(web).ask("DELETE", f"/entities/{queue}/messages/{number}")[0])
        web.close()

    threads = [threading.Thread(target=settle) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [204] * 20 + [404] * 20
    send(any_client, queue, "held")
    with any_client.get_queue_receiver(queue) as receiver:
        taken = take_one(receiver)
        where = f"/entities/{queue}/messages/{taken.sequence_number}"
        assert api.ask("PATCH", where, {"to": "deadLetter"})[0] == 409
        receiver.abandon_message(taken)
        assert api.ask("PATCH", where, {"to": "deadLetter", "reason": "seen"})[0] == 204
    with any_client.get_queue_receiver(queue, sub_queue="deadletter") as receiver:
        dead = take_one(receiver)
        assert (dead.dead_letter_reason, dead.delivery_count) == ("seen", 1)
        receiver.complete_message(dead)


def test_the_state_of_a_session_is_edited_and_its_holder_is_shown(
    api: ApiClient, make_queue: Callable[..., str], any_client: Links
) -> None:
    """Req: G-03."""
    session_queue = make_queue(requires_session=True)
    api.ok("POST", f"/entities/{session_queue}/messages", {"sessionId": "a", "body": "1"})
    where = f"/entities/{session_queue}/sessions/a"
    assert api.ask("PUT", f"{where}/state", {"state": "half done"})[0] == 204
    with any_client.get_queue_receiver(session_queue, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        assert receiver.session.get_state() == b"half done"
        holder = api.ok("GET", where)["holder"]
        assert holder["identities"] == ["RootManageSharedAccessKey"]
        assert holder["connection"] > 0
        assert api.ask("PUT", f"{where}/state", {"state": "mine"})[0] == 409
        receiver.complete_message(take_one(receiver))
    # The client does not wait until the broker has seen its detach.
    until_s = time.monotonic() + 20
    while "holder" in api.ok("GET", where):
        assert time.monotonic() < until_s
    assert api.ask("DELETE", f"{where}/state")[0] == 204
    assert "state" not in api.ok("GET", where)


def test_counts_follow_what_happens(api: ApiClient, queue: str, any_client: Links) -> None:
    version = api.ok("GET", "/counts")["version"]
    send(any_client, queue, "a", "b")
    entities: list[str] = []
    while queue not in entities:
        found = api.ok("GET", f"/counts?since={version}")
        entities = [entity["name"] for entity in found["entities"]]
    (mine,) = (entity for entity in found["entities"] if entity["name"] == queue)
    assert (mine["active"], mine["received"]) == (2, 2)
    assert not found["isWhole"]


def test_who_changed_an_entity_is_in_the_log(tmp_path: Path) -> None:
    """Req: A-01."""
    with BrokerProcess(tmp_path) as broker:
        web = Http(broker.http_port, None)
        api = ApiClient(web)
        assert api.ask("PUT", "/entities/q", {"kind": "queue"})[0] == 201
        assert api.ask("PUT", "/entities/q", {"kind": "queue"})[0] == 409
        assert api.ask("GET", "/entities/q")[0] == 200
        assert api.ask("DELETE", "/entities/q")[0] == 204
        web.close()
        lines = [json.loads(line) for line in broker.log.read_text().splitlines() if line.startswith("{")]
    changed = [line for line in lines if line["event"] == "administration request"]
    assert [(line["method"], line["path"], line["status"]) for line in changed] == [
        ("PUT", "/$api/v1/entities/q", 201),
        ("DELETE", "/$api/v1/entities/q", 204),
    ]
