"""The life of a message over HTTP, from the event log of a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from peeklock.demo.broker import BrokerProcess
from tests.server.workers.asking import Client
from tests.server.workers.conftest import CONFIG

pytest.importorskip("pyarrow")


def test_the_life_of_a_message_is_shown(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(json.dumps(CONFIG))
    log = tmp_path / "log"
    options = ["--durability=os", f"--config={config}", f"--capture={log}", "--capture-interval=1"]
    with BrokerProcess(tmp_path, options) as broker:
        client = Client(broker)
        assert client.ask("POST", "/entities/orders/messages", [{"body": "a"}, {"body": "b"}])[0] == 201
        lock = client.ask("POST", "/entities/orders/locks", {})[1]["deliveries"][0]["lock"]["href"]
        dead = {"outcome": "deadLetter", "reason": "burnt"}
        assert client.ask("PATCH", lock.removeprefix("/$api/v1"), dead)[0] == 204
        deadline = time.monotonic() + 60
        while len(types := shown(client, "orders", 1)) < 3:
            assert time.monotonic() < deadline, types
            time.sleep(0.2)
        assert types == ["enqueued", "delivered", "dead_lettered"]
        assert shown(client, "ORDERS%2F$deadletterqueue", 1) == ["enqueued"]
        assert shown(client, "orders", 2) == ["enqueued"]
        assert shown(client, "orders", 99) == []
        found = client.ask("GET", "/entities/orders/messages/1/life")[1]
        assert found["events"][2]["reason"] == "burnt"
        assert found["events"][2]["relatedEntity"] == "orders/$deadletterqueue"
        assert found["asOf"] >= found["events"][2]["time"]


def shown(client: Client, entity: str, number: int) -> list[str]:
    status, found = client.ask("GET", f"/entities/{entity}/messages/{number}/life")
    assert status == 200, found
    return [event["type"] for event in found["events"]]


def test_without_an_event_log_there_is_no_life(client: Client) -> None:
    status, problem = client.ask("GET", "/entities/orders/messages/1/life")
    assert status == 409
    assert "--capture" in problem["detail"]
