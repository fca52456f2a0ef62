"""The API of a real broker, used beside clients of AMQP and of the REST data plane."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage

from peeklock.amqp.types import Array
from peeklock.demo.broker import BrokerProcess
from tests.interop.clients import Links
from tests.interop.helpers import send, take_one
from tests.interop.own_client import OwnClient
from tests.interop.test_rest import TOKEN, Http

ROOT = "/$api/v1"


class ApiClient:
    """One connection to the API."""

    def __init__(self, web: Http) -> None:
        self.web = web

    def ask(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; return the status and the JSON of the answer."""
        text = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
        where = target if target.startswith("/$") else ROOT + target
        status, headers, answer = self.web.ask(method, where, text, {"Content-Type": "application/json"})
        kind = "application/json" if status < 400 else "application/problem+json"
        assert not answer or headers["Content-Type"] == kind
        return status, json.loads(answer) if answer else None

    def ok(self, *given: Any) -> Any:
        status, answer = self.ask(*given)
        assert status < 300, answer
        return answer

    def stream(self, target: str) -> Stream:
        return Stream(self.web.port, target)


class Stream:
    """A client of server-sent events."""

    def __init__(self, port: int, target: str) -> None:
        self._connection = http.client.HTTPConnection("localhost", port, timeout=20)
        self._connection.request("GET", ROOT + target, headers={"Authorization": TOKEN})
        self.answer = self._connection.getresponse()

    def next(self) -> tuple[str, Any]:
        """Return the next event and its data."""
        found: dict[str, str] = {}
        while True:
            line = self.answer.readline().decode()
            assert line, "the stream has ended"
            if line == "\n" and found:
                return found["event"], json.loads(found["data"])
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                found[name] = value

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@pytest.fixture(params=["plain", "tls"])
def api(
    request: pytest.FixtureRequest, broker: BrokerProcess, tls_pair: tuple[Path, Path]
) -> Iterator[ApiClient]:
    secure = request.param == "tls"
    web = Http(broker.amqp_port, str(tls_pair[0])) if secure else Http(broker.http_port, None)
    yield ApiClient(web)
    web.close()


@pytest.fixture
def plain(broker: BrokerProcess) -> Iterator[ApiClient]:
    web = Http(broker.http_port, None)
    yield ApiClient(web)
    web.close()


def test_what_is_sent_here_is_received_by_amqp(api: ApiClient, queue: str, any_client: Links) -> None:
    """Req: T-09."""
    message = {"body": "one", "messageId": "m", "subject": "s", "properties": {"n": 1, "half": 0.5, "t": "x"}}
    assert api.ask("POST", f"/entities/{queue}/messages", message) == (201, {"sequenceNumbers": [1]})
    with any_client.get_queue_receiver(queue) as receiver:
        taken = take_one(receiver)
        assert (str(taken), taken.message_id, taken.subject) == ("one", "m", "s")
        assert taken.application_properties == {b"n": 1, b"half": 0.5, b"t": b"x"}
        receiver.complete_message(taken)


def test_what_is_sent_by_amqp_is_peeked_and_settled_here(
    api: ApiClient, queue: str, any_client: Links
) -> None:
    send(any_client, queue, "a", "b", application_properties={"n": 1})
    page = api.ok("GET", f"/entities/{queue}/messages?limit=1")
    assert (page["messages"][0]["body"], page["messages"][0]["properties"]) == ("a", {"n": 1})
    (delivery,) = api.ok("POST", f"/entities/{queue}/locks", {"wait": 5})["deliveries"]
    reason = {"outcome": "deadLetter", "reason": "burnt"}
    assert api.ask("PATCH", delivery["lock"]["href"], reason) == (204, None)
    with any_client.get_queue_receiver(queue, sub_queue="deadletter") as receiver:
        taken = take_one(receiver)
        assert (str(taken), taken.dead_letter_reason) == ("a", "burnt")
        receiver.complete_message(taken)
    assert api.ok("GET", f"/entities/{queue}")["counts"]["active"] == 1


def test_a_lock_that_was_taken_here_is_renewed_and_completed_by_amqp(
    plain: ApiClient, queue: str, broker: BrokerProcess
) -> None:
    """Req: L-14."""
    plain.ok("POST", f"/entities/{queue}/messages", {"body": "a"})
    (delivery,) = plain.ok("POST", f"/entities/{queue}/locks", {"wait": 5})["deliveries"]
    token = UUID(delivery["lock"]["token"])
    given = {"lock-tokens": Array(UUID, [token])}
    with OwnClient(broker.amqp_port) as own:
        status, condition, _ = own.ask(queue, "com.microsoft:renew-lock", given)
        assert (status, condition) == (200, None)
        done = {"disposition-status": "completed", **given}
        status, condition, _ = own.ask(queue, "com.microsoft:update-disposition", done)
        assert (status, condition) == (200, None)
    assert plain.ask("DELETE", delivery["lock"]["href"])[0] == 404


def test_a_lock_of_the_data_plane_is_settled_here(plain: ApiClient, queue: str) -> None:
    plain.ok("POST", f"/entities/{queue}/messages", {"body": "a"})
    status, headers, _ = plain.web.ask("POST", f"/{queue}/messages/head?timeout=5")
    assert status == 201
    token = json.loads(headers["BrokerProperties"])["LockToken"]
    assert plain.ask("DELETE", f"/entities/{queue}/locks/{token}") == (204, None)


def test_a_stream_follows_what_comes(plain: ApiClient, queue: str, any_client: Links) -> None:
    stream = plain.stream(f"/entities/{queue}/deliveries?window=2")
    assert stream.answer.status == 200
    assert stream.answer.getheader("Content-Type") == "text/event-stream"
    send(any_client, queue, "a", "b", "c")
    for body in "abc":
        event, delivery = stream.next()
        assert (event, delivery["message"]["body"]) == ("delivery", body)
        assert plain.ask("DELETE", delivery["lock"]["href"])[0] == 204
    stream.close()


def test_what_a_stream_does_not_take_is_others(plain: ApiClient, queue: str) -> None:
    """Req: L-16."""
    stream = plain.stream(f"/entities/{queue}/deliveries")
    stream.close()
    while plain.web.ask("GET", "/health")[2].find(b'"http_receives": 0') < 0:
        pass
    plain.ok("POST", f"/entities/{queue}/messages", {"body": "a"})
    (delivery,) = plain.ok("POST", f"/entities/{queue}/locks", {"wait": 5})["deliveries"]
    assert delivery["message"]["deliveryCount"] == 1


def test_a_client_that_does_not_read_is_bounded(plain: ApiClient, queue: str) -> None:
    """Req: T-08."""
    body = {"body": "x" * 200_000}
    for _ in range(12):
        plain.ok("POST", f"/entities/{queue}/messages", body)
    stuck = plain.web.stream()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.sendall(
        f"GET {ROOT}/entities/{queue}/deliveries?window=1000 HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {TOKEN}\r\n\r\n".encode()
    )
    assert stuck.recv(100)
    found = plain.ok("POST", f"/entities/{queue}/locks", {"max": 100, "wait": 5})["deliveries"]
    assert len(found) >= 5
    stuck.close()


def test_a_waiting_receive_takes_what_comes(plain: ApiClient, queue: str, any_client: Links) -> None:
    found: list[Any] = []
    waiting = threading.Thread(
        target=lambda: found.append(plain.ok("POST", f"/entities/{queue}/locks", {"wait": 20}))
    )
    waiting.start()
    send(any_client, queue, "a")
    waiting.join(20)
    assert [each["message"]["body"] for each in found[0]["deliveries"]] == ["a"]


def test_a_schedule_is_shifted_and_cancelled_by_amqp(plain: ApiClient, queue: str, any_client: Links) -> None:
    """Req: S-06."""
    later = datetime.now(UTC) + timedelta(hours=1)
    with any_client.get_queue_sender(queue) as sender:
        first, second = sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], later)
        assert plain.ok("POST", f"/scheduled/shift?entity={queue}", {"by": 60}) == {"shifted": 2}
        sender.cancel_scheduled_messages(first)
        assert plain.ok("POST", f"/scheduled/deliver?entity={queue}") == {"shifted": 1}
    with any_client.get_queue_receiver(queue) as receiver:
        assert str(take_one(receiver)) == "b"
    assert second == first + 1


def test_the_history_says_who_took_a_message(plain: ApiClient, queue: str, any_client: Links) -> None:
    send(any_client, queue, "a", message_id="order-1")
    with any_client.get_queue_receiver(queue) as receiver:
        receiver.complete_message(take_one(receiver))
    (entry,) = plain.ok("GET", f"/history?entity={queue}")["entries"]
    assert (entry["outcome"], entry["message"]["messageId"]) == ("completed", "order-1")
    assert entry["deliveries"][0]["connection"] == entry["connection"]


def test_sessions_are_looked_at_while_amqp_holds_them(
    plain: ApiClient, make_queue: Callable[..., str], any_client: Links
) -> None:
    """Req: G-07."""
    queue = make_queue(requires_session=True)
    plain.ok("POST", f"/entities/{queue}/messages", {"body": "a", "sessionId": "s 1"})
    with any_client.get_queue_receiver(queue, session_id="s 1") as receiver:
        receiver.session.set_state("half done")
        found = plain.ok("GET", f"/entities/{queue}/sessions/s%201")
        assert found["state"] == {"body": "half done"}
        assert "lockedUntil" in found
    assert plain.ask("POST", f"/entities/{queue}/locks")[0] == 409


def test_bodies_that_are_too_large_are_refused_with_problems(plain: ApiClient, queue: str) -> None:
    """Req: R-05."""
    status, problem = plain.ask("PATCH", f"/entities/{queue}/locks/x", b"[" * 20_000)
    assert (status, problem["type"]) == (413, "urn:peeklock:problem:message-size-exceeded")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://example.org"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "example.org"}, 421),
    ],
)
def test_a_page_from_elsewhere_is_refused(plain: ApiClient, headers: dict[str, str], status: int) -> None:
    """Req: R-04."""
    assert plain.web.ask("GET", f"{ROOT}/entities?limit=1", None, headers)[0] == status


def test_a_stop_ends_waits_and_streams(tmp_path: Path) -> None:
    """Req: R-06."""
    with BrokerProcess(tmp_path) as broker:
        web = Http(broker.http_port, None)
        api = ApiClient(web)
        description = (
            '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
            'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
        )
        assert web.ask("PUT", "/q", description, {"Content-Type": "application/xml"})[0] == 201
        stream = api.stream("/entities/q/deliveries")
        assert stream.answer.status == 200
        found: list[Any] = []
        waiting = threading.Thread(
            target=lambda: found.append(api.ask("POST", "/entities/q/locks", {"wait": 60}))
        )
        waiting.start()
        other = Http(broker.http_port, None)
        while b'"http_receives": 2' not in other.ask("GET", "/health")[2]:
            pass
        broker.stop()
        assert stream.next()[0] == "end"
        assert stream.answer.read() == b""
        waiting.join(20)
        assert found[0][0] == 503
