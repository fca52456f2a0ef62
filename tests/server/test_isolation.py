"""Two namespaces of one process: what is asked of one does nothing in the other.

Each operation that the document of the broker describes is asked of `a` with the names, numbers, lock tokens
and sessions of `b`. A new operation is asked too; one whose parameter has no value here fails.
`tests/interop/test_namespaces.py` has the official client, `tests/gateway/test_choice.py` the tokens.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import pytest

from peeklock.auth import DEVELOPMENT_KEY, generate
from peeklock.demo.broker import BrokerProcess

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "any",
                "Queues": [{"Name": "orders"}, {"Name": "carts", "Properties": {"RequiresSession": True}}],
                "Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}]}],
            }
        ]
    }
}
ATOM = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{}</QueueDescription>'
    "</content></entry>"
)


class Owner:
    """Who has the key of one namespace."""

    def __init__(self, port: int, name: str) -> None:
        self.port = port
        self.name = name

    def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Return status, JSON or text, and headers."""
        expires_at_ms = round(time.time() + 600) * 1000
        headers = {
            "Authorization": generate("sb://localhost/", self.name, DEVELOPMENT_KEY, expires_at_ms),
            "Content-Type": kind,
        }
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        url = f"http://localhost:{self.port}{path}"
        try:
            answer = urllib.request.urlopen(
                urllib.request.Request(url, data, headers, method=method), timeout=30
            )
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            text = answer.read().decode()
        try:
            return answer.status, json.loads(text), dict(answer.headers)
        except ValueError:
            return answer.status, text, dict(answer.headers)

    def content(self) -> Any:
        """Return all that another one could have changed."""
        shown: dict[str, Any] = {"config": self.ask("GET", "/$api/v1/config")[1]}
        found = self.ask("GET", "/$api/v1/entities")[1]["entities"]
        for entity in found:
            where = f"/$api/v1/entities/{quote(entity['name'], safe='')}"
            shown[entity["name"]] = (
                entity["counts"],
                entity["settings"],
                self.ask("GET", f"{where}/messages")[1] if entity["kind"] != "topic" else None,
            )
        shown["history"] = self.ask("GET", "/$api/v1/history")[1]
        shown["sessions"] = self.ask("GET", "/$api/v1/entities/carts/sessions")[1]
        return shown


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("isolation"), ["--durability=os"]) as made:
        yield made


@pytest.fixture
def two(broker: BrokerProcess) -> tuple[Owner, Owner]:
    """Return the owners of `a`, which is empty, and of `b`, which has entities and messages."""
    url = f"http://localhost:{broker.http_port}/$api/v1/namespaces"
    owners = []
    for config in ({"UserConfig": {"Namespaces": [{"Name": "any"}]}}, CONFIG):
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(config).encode())) as answer:
            owners.append(Owner(broker.http_port, json.load(answer)["name"]))
    a, b = owners
    later = {"body": "later", "scheduledEnqueueTime": "2999-01-01T00:00:00Z"}
    sent = b.ask("POST", "/$api/v1/entities/orders/messages", [{"body": "one"}, {"body": "two"}, later])
    assert sent[0] < 300, sent
    cart = {"body": "item", "sessionId": "s1"}
    assert b.ask("POST", "/$api/v1/entities/carts/messages", cart)[0] < 300
    return a, b


def locked(owner: Owner) -> str:
    """Lock a message; return the token."""
    status, found, _ = owner.ask("POST", "/$api/v1/entities/orders/locks", {})
    assert status < 300, found
    return str(found["deliveries"][0]["lock"]["href"]).rpartition("/")[2]


def test_no_operation_of_one_does_anything_in_the_other(two: tuple[Owner, Owner]) -> None:
    a, b = two
    token = locked(b)
    order = {"work": "purge", "entity": "orders", "criteria": {"filter": "1 = 0"}}
    status, started, _ = b.ask("POST", "/$api/v1/jobs", order)
    assert status == 201, started
    job = started["id"]
    values = {
        "entity": "orders",
        "number": "1",
        "token": token,
        "session": "s1",
        "job": job,
        "id": "1",
        "name": b.name,
        "filter": "1=1",
        "rights": "Listen",
        "rule": "$Default",
    }
    bodies = {
        "sendMessages": {"body": "from a"},
        "settleMessage": {"outcome": "abandon"},
        "moveClock": {"advance": "PT1H"},
        "changeEntity": {"settings": {"lockDuration": 5}},
        "putRule": {"filter": {"sql": "1=0"}},
        "changeMessage": {"to": "deadLetter"},
        "matchMessage": {"message": {"body": "from a"}},
        "setSessionState": {"state": "from a"},
        "checkRule": {"filter": {"sql": "1=0"}},
        "shiftScheduled": {"by": -1e9},
    }
    document = a.ask("GET", "/$api/openapi.json")[1]
    before, asked = b.content(), 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path == "/$api/v1/namespaces" or operation["operationId"] == "closeConnection":
                continue  # they name nothing of another namespace; the next test has connections
            needed = [each for each in operation.get("parameters", ()) if each.get("required")]
            query = "&".join(
                f"{each['name']}={values[each['name']]}" for each in needed if each["in"] == "query"
            )
            where = re.sub(r"\{(\w+)\}", lambda found: quote(values[found[1]], safe=""), path)
            body = bodies.get(operation["operationId"], {} if "requestBody" in operation else None)
            status, said, _ = a.ask(method.upper(), f"{where}{'?' if query else ''}{query}", body)
            asked += 1
            if "{" in path:
                assert 400 <= status < 500, (method, path, said)
            assert b.name not in json.dumps(said) or status >= 400
            assert '"one"' not in json.dumps(said)
    assert asked > 35
    assert b.content() == before
    assert b.ask("DELETE", f"/$api/v1/entities/orders/locks/{token}")[0] in (200, 204)


@pytest.mark.parametrize(
    "address", ["sb://{}/orders", "sb://{}.localhost/orders", "sb://{}.servicebus.windows.net/orders"]
)
@pytest.mark.parametrize("field", ["ForwardTo", "ForwardDeadLetteredMessagesTo"])
def test_no_entity_of_one_forwards_to_the_other(two: tuple[Owner, Owner], address: str, field: str) -> None:
    a, b = two
    xml = ATOM.format(f"<{field}>{address.format(b.name)}</{field}>").encode()
    status, said, _ = a.ask("PUT", "/relay?api-version=2021-05", xml, "application/atom+xml")
    assert status == 400, said
    assert a.ask("GET", "/$api/v1/entities")[1]["entities"] == []


def test_the_administration_of_one_knows_no_entity_of_the_other(two: tuple[Owner, Owner]) -> None:
    a, b = two
    before = b.content()
    where = "?api-version=2021-05"
    for path in ("orders", "news", "news/Subscriptions/all", "news/Subscriptions/all/Rules/$Default"):
        assert a.ask("DELETE", f"/{path}{where}")[0] == 404
        assert "<entry" not in str(a.ask("GET", f"/{path}{where}")[1])
    assert "orders" not in str(a.ask("GET", f"/$Resources/queues{where}")[1])
    assert a.ask("PUT", f"/orders{where}", ATOM.format("").encode(), "application/atom+xml")[0] == 201
    assert a.ask("DELETE", f"/orders{where}")[0] == 200
    for name, body in {"orders": {"kind": "queue"}, "news": {"kind": "topic"}}.items():
        assert a.ask("PUT", f"/$api/v1/entities/{name}", body)[0] == 201
        assert a.ask("DELETE", f"/$api/v1/entities/{name}")[0] == 204
    assert b.content() == before


def test_a_page_of_one_shows_nothing_of_the_other(two: tuple[Owner, Owner], broker: BrokerProcess) -> None:
    """The default namespace sees the process: its keys operate it."""
    a, b = two
    own = a.ask("GET", "/metrics")[1]
    assert f'namespace="{a.name}"' in own
    assert b.name not in own
    assert "peeklock_build_info" not in own
    assert a.ask("GET", "/metrics/entities")[1].count("orders") == 0
    assert a.ask("GET", "/connections")[1] == {"connections": []}
    assert a.ask("GET", "/health")[1]["namespace"] == a.name
    with urllib.request.urlopen(f"http://localhost:{broker.http_port}/metrics") as answer:
        whole = answer.read().decode()
    assert f'namespace="{a.name}"' in whole
    assert f'namespace="{b.name}"' in whole
