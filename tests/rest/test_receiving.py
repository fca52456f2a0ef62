"""Messages that are received and settled over HTTP."""

from __future__ import annotations

import html
import json
from datetime import UTC, datetime
from uuid import UUID

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Properties
from peeklock.amqp.types import Decimal64, Described, Float, Symbol, Timestamp
from peeklock.auth import Authority, SasRule
from peeklock.auth.rights import Right
from peeklock.broker.vocabulary.commands import (
    Address,
    DeleteEntity,
    DropConnection,
    LockToken,
    RenewLocks,
    ReplyTo,
    SendTo,
    UpdateEntity,
)
from peeklock.broker.vocabulary.descriptions import EntityStatus, QueueDescription
from peeklock.gateway.inspection import take_in
from peeklock.rest import receives
from peeklock.rest.api import Elsewhere
from tests.asking import Answer
from tests.rest.asking import HttpBroker

LOCK_MS = 60_000


@pytest.fixture
def broker() -> HttpBroker:
    made = HttpBroker()
    made.create_queue("q", lock_duration_ms=LOCK_MS)
    return made


def send(broker: HttpBroker, *bodies: bytes, path: str = "q") -> None:
    for body in bodies:
        assert broker.answer("POST", f"/{path}/messages", body).status == 201


def lock(broker: HttpBroker, path: str = "q") -> Answer:
    found = broker.answer("POST", f"/{path}/messages/head?timeout=0")
    assert found.status == 201
    return found


def test_a_message_is_locked_and_completed(broker: HttpBroker) -> None:
    """Req: T-09, L-01."""
    broker.clock.now_ms = round(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000)
    send(broker, b"a")
    found = lock(broker)
    token = found.broker["LockToken"]
    assert found.body == b"a"
    assert found.headers["Location"] == f"https://h/q/messages/1/{token}"
    assert found.broker["LockedUntilUtc"] == "Mon, 01 Jan 2024 00:01:00 GMT"
    assert broker.answer("POST", "/q/messages/head?timeout=0").status == 204
    assert broker.answer("DELETE", found.location).status == 200
    assert broker.answer("DELETE", found.location).status == 404
    assert broker.queue("q").active_count == 0


def test_a_plain_connection_is_answered_a_plain_address(broker: HttpBroker) -> None:
    send(broker, b"a")
    found = broker.answer("POST", "/q/messages/head", secure=False)
    assert found.headers["Location"].startswith("http://h/q/messages/1/")


def test_an_abandoned_message_comes_again(broker: HttpBroker) -> None:
    """Req: T-09, L-08."""
    send(broker, b"a")
    found = lock(broker)
    assert broker.answer("PUT", found.location).status == 200
    assert broker.answer("PUT", found.location).status == 404
    assert lock(broker).broker["DeliveryCount"] == 2


def test_a_lock_is_renewed_and_lapses(broker: HttpBroker) -> None:
    """It belongs to no connection. Source: wire contract C26.

    Req: T-09, L-08, L-13.
    """
    send(broker, b"a")
    found = lock(broker)
    broker.advance(LOCK_MS - 1)
    assert broker.answer("POST", found.location).status == 200
    broker.advance(LOCK_MS - 1)
    assert broker.answer("POST", "/q/messages/head?timeout=0").status == 204
    broker.advance(1)
    assert broker.answer("POST", found.location).status == 404
    assert lock(broker).broker["DeliveryCount"] == 2


def test_a_lock_goes_with_the_connection_that_renews_it(broker: HttpBroker) -> None:
    """Renewed over AMQP it has that connection's grace, renewed over HTTP it belongs to none. Source: wire
    contract C26.

    Req: L-13.
    """
    send(broker, b"a", b"b")
    over_amqp, over_both = lock(broker), lock(broker)
    tokens = [LockToken(UUID(found.broker["LockToken"]).bytes_le) for found in (over_amqp, over_both)]
    connection = 5
    broker.offer([RenewLocks(Address("q"), tokens, ReplyTo(connection, 0, 1))])
    broker.run()
    assert broker.answer("POST", over_both.location).status == 200
    broker.offer([DropConnection(connection, broken=True)])
    broker.advance(10_000)
    assert broker.answer("DELETE", over_amqp.location).status == 404
    assert broker.answer("DELETE", over_both.location).status == 200


def test_a_receive_waits_for_a_message(broker: HttpBroker) -> None:
    """Req: T-09."""
    first = broker.waits("POST", "/q/messages/head")
    second = broker.waits("DELETE", "/q/messages/head?timeout=9")
    send(broker, b"a", b"b", b"c")
    assert (broker.answers[first].status, broker.answers[first].body) == (201, b"a")
    assert (broker.answers[second].status, broker.answers[second].body) == (200, b"b")
    assert len(broker.receives) == 0
    assert broker.queue("q").active_count == 2


def test_a_wait_ends_without_a_message(broker: HttpBroker) -> None:
    number = broker.waits("POST", "/q/messages/head?timeout=5")
    broker.receives.time_out(number)
    broker.go()
    assert broker.answers[number] == Answer(204, {}, b"")
    send(broker, b"a")
    assert lock(broker).broker["DeliveryCount"] == 1


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_who_is_gone_is_given_nothing(broker: HttpBroker, method: str) -> None:
    """Req: L-16."""
    number = broker.waits(method, "/q/messages/head")
    broker.receives.cancel(number)
    broker.go()
    send(broker, b"a")
    assert lock(broker).broker["DeliveryCount"] == 1
    assert broker.answers == {}


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_what_is_under_way_to_who_is_gone_comes_back(broker: HttpBroker, method: str) -> None:
    """The message is taken for the receive, and the client goes away before that is committed.

    Req: L-16.
    """
    number = broker.waits(method, "/q/messages/head")
    payload = encode_message(data=b"a")
    broker.offer([SendTo(Address("q"), [take_in(payload, True)], ReplyTo(0, 0, 99))])
    broker.receives.cancel(number)
    broker.go()
    found = lock(broker)
    assert (found.body, found.broker["DeliveryCount"]) == (b"a", 1)


def test_a_body_is_read_from_the_store() -> None:
    broker = HttpBroker(body_cache_bytes=1)
    broker.create_queue("q")
    send(broker, b"a" * 1000, b"b" * 1000)
    assert lock(broker).body == b"a" * 1000
    assert broker.answer("DELETE", "/q/messages/head?timeout=0").body == b"b" * 1000


def test_a_wait_ends_with_its_entity(broker: HttpBroker) -> None:
    """Req: T-09."""
    broker.create_queue("off")
    deleted, disabled = broker.waits("POST", "/q/messages/head"), broker.waits("POST", "/off/messages/head")
    broker.ask(lambda reply_to: DeleteEntity("q", reply_to))
    description = QueueDescription("off", status=EntityStatus.DISABLED)
    broker.ask(lambda reply_to: UpdateEntity(description, reply_to))
    assert broker.answers[deleted].status == 410
    assert broker.answers[disabled].status == 403


def test_the_end_of_the_broker_ends_all_waits(broker: HttpBroker) -> None:
    number = broker.waits("POST", "/q/messages/head")
    broker.receives.end_all()
    broker.go()
    assert (broker.answers[number].status, broker.answers[number].headers["Retry-After"]) == (503, "5")


def test_waits_are_bounded(broker: HttpBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-05."""
    monkeypatch.setattr(receives, "RECEIVES_MAX", 2)
    first = broker.waits("POST", "/q/messages/head")
    broker.waits("POST", "/q/messages/head")
    assert broker.answer("POST", "/q/messages/head").status == 503
    broker.receives.cancel(first)
    broker.waits("POST", "/q/messages/head")


@pytest.mark.parametrize(
    ("path", "status"),
    [("nope", 410), ("s", 405), ("t", 405), ("forwards", 405), ("off", 403), ("t/subscriptions/none", 410)],
)
def test_not_everything_can_be_received_from(broker: HttpBroker, path: str, status: int) -> None:
    """Req: T-09."""
    broker.create_queue("s", requires_session=True)
    broker.create_queue("off", status=EntityStatus.RECEIVE_DISABLED)
    broker.create_queue("forwards", forward_to="q")
    broker.create_topic("t")
    for method in ("POST", "DELETE"):
        assert broker.answer(method, f"/{path}/messages/head?timeout=1").status == status


def test_the_refusal_of_sessions_is_the_services(broker: HttpBroker) -> None:
    broker.create_queue("s", requires_session=True)
    found = broker.answer("POST", "/s/messages/head")
    body = found.body.decode()
    assert "<Code>405</Code>" in body
    assert found.headers["Allow"] == ""
    assert "requires sessions to create a non-sessionful message receiver." in body


@pytest.mark.parametrize("timeout", ["x", "-1", "1.5", ""])
def test_a_timeout_is_a_number_of_seconds(broker: HttpBroker, timeout: str) -> None:
    assert broker.answer("POST", f"/q/messages/head?timeout={timeout}").status == 400


def test_dead_letters_are_received(broker: HttpBroker) -> None:
    """Req: T-09."""
    broker.create_queue("once", max_delivery_count=1)
    send(broker, b"a", path="once")
    broker.answer("PUT", lock(broker, "once").location)
    found = lock(broker, "once/$DeadLetterQueue")
    assert found.headers["DeadLetterReason"] == '"MaxDeliveryCountExceeded"'
    assert found.location.startswith("/once/$DeadLetterQueue/messages/1/")
    assert broker.answer("DELETE", found.location).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_token_is_good_for_its_entity_alone(broker: HttpBroker, method: str) -> None:
    """Req: T-09, L-11."""
    broker.create_queue("other")
    send(broker, b"a")
    token = lock(broker).broker["LockToken"]
    assert broker.answer(method, f"/other/messages/1/{token}").status == 404
    refused = broker.answer(method, f"/q/messages/1/nonsense{'x' * 99}")
    assert refused.status == 404
    assert f"nonsense{'x' * 32}...' is not a GUID such as" in html.unescape(refused.body.decode())
    assert broker.answer(method, f"/nope/messages/1/{token}").status == 410


def test_an_entity_of_such_a_name_can_be_deleted(broker: HttpBroker) -> None:
    """Req: A-01."""
    name = "q/messages/1/b2f27e11-0f3f-4f6f-9d2c-7f8c1f0f5a01"
    broker.create_queue(name)
    broker.create_queue("q/messages/head")
    send(broker, b"a")
    assert broker.http("DELETE", f"/{name}") is Elsewhere.ADMINISTRATION
    assert broker.http("DELETE", "/q/messages/head") is Elsewhere.ADMINISTRATION
    assert broker.queue("q").active_count == 1
    assert lock(broker).body == b"a"


@pytest.mark.parametrize(
    ("method", "path", "has_body"),
    [
        ("GET", "/q/messages/head?api-version=2021-05", False),
        ("PUT", "/q/messages", True),
        ("PUT", "/q/messages/1/t", True),
        ("PUT", "/q/messages/head", True),
        ("DELETE", "/q/messages?a=b&api-version=2021-05", False),
        ("POST", "/messages", True),
        ("POST", "/messages/head", True),
        ("POST", "/q/messages%2Fhead", True),
        ("POST", "/q/messages/1", False),
    ],
)
def test_other_requests_are_for_the_administration(
    broker: HttpBroker, method: str, path: str, has_body: bool
) -> None:
    path, _, query = path.partition("?")
    assert not broker.plane.wants(method, path, query, has_body=has_body)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/q/messages", "POST"),
        ("/nope/messages", "POST"),
        ("/q/messages/head", "POST, DELETE"),
        ("/q/Messages/Head?timeout=1", "POST, DELETE"),
        ("/q/messages/1/t", "POST, PUT, DELETE"),
    ],
)
def test_a_method_that_a_path_does_not_take_is_told_those_that_it_takes(
    broker: HttpBroker, path: str, allowed: str
) -> None:
    """Req: T-09."""
    for method in {"GET", "HEAD", "PATCH", "PUT", "DELETE"} - set(allowed.split(", ")):
        found = broker.answer(method, path)
        assert (found.status, found.headers["Allow"]) == (405, allowed)
        assert f"The method {method} is not allowed here; allowed: {allowed}" in found.body.decode()
    broker.create_queue(path.partition("?")[0].strip("/"))
    assert broker.http("GET", path) is Elsewhere.ADMINISTRATION


def test_a_method_that_a_path_does_not_take_needs_a_token() -> None:
    """Whether there is an entity of such a name is not for strangers."""
    rules = [
        SasRule("writer", "w" * 44, rights=frozenset({Right.SEND})),
        SasRule("reader", "r" * 44, rights=frozenset({Right.LISTEN})),
    ]
    broker = HttpBroker(authority=Authority(rules))
    writer, reader = broker.token("writer", "w" * 44), broker.token("reader", "r" * 44)
    assert broker.answer("GET", "/q/messages/head", token="").status == 401
    assert broker.answer("GET", "/q/messages/head", token=writer).status == 401
    assert broker.answer("GET", "/q/messages/head", token=reader).status == 405
    assert broker.answer("GET", "/q/messages", token=writer).status == 405


def test_all_that_amqp_says_of_a_message_is_shown(broker: HttpBroker) -> None:
    """Req: T-09."""
    payload = encode_message(
        properties=Properties(
            message_id=UUID(int=5),
            to="t",
            subject="s",
            reply_to="r",
            correlation_id=7,
            content_type="application/json",
            reply_to_group_id="rg",
        ),
        application_properties={
            "text": 'say "ü"\r\nX: y',
            "int": 5,
            "double": 0.1,
            "float": Float(0.1),
            "yes": True,
            "at": Timestamp(1_704_067_200_000),
            "far": Timestamp(1 << 62),
            "guid": UUID(int=6),
            "bytes": b"\x00\x01",
            "symbol": Symbol("sym"),
            "nan": float("nan"),
            "null": None,
            "decimal": Decimal64(bytes.fromhex("31c0000000000005")),
            "span": Described(Symbol("com.microsoft:timespan"), 5),
            "no header": 1,
            "Content-Length": 5,
            "Transfer-Encoding": "chunked",
            "grün": 1,
        },
        value={"a": [1, "b", None, b"\x01"]},
    )
    broker.ask(lambda reply_to: SendTo(Address("q"), [take_in(payload, True)], reply_to))
    found = lock(broker)
    ours = ("BrokerProperties", "Location")
    own = {name: value for name, value in found.headers.items() if name not in ours}
    assert own == {
        "Content-Type": "application/json",
        "text": '"say \\"\\u00fc\\"\\r\\nX: y"',
        "int": "5",
        "double": "0.1",
        "float": "0.1",
        "yes": "true",
        "at": '"Mon, 01 Jan 2024 00:00:00 GMT"',
        "far": str(1 << 62),
        "guid": f'"{UUID(int=6)}"',
        "bytes": '"AAE="',
        "symbol": '"sym"',
        "nan": '"nan"',
        "decimal": "5",
    }
    assert found.broker["MessageId"] == str(UUID(int=5))
    assert (found.broker["CorrelationId"], found.broker["Label"]) == ("7", "s")
    assert json.loads(found.body) == {"a": [1, "b", None, "01"]}


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ({"value": "text"}, b"text"),
        ({"value": b"bytes"}, b"bytes"),
        ({"value": None}, b""),
        ({"value": 5}, b"5"),
        ({"sequence": [1, "a"]}, b'[1,"a"]'),
        ({"data": [b"a", b"b"]}, b"ab"),
    ],
)
def test_every_kind_of_body_is_bytes(broker: HttpBroker, body: dict[str, object], shown: bytes) -> None:
    payload = encode_message(**body)  # type: ignore[arg-type]  # keyword arguments of a table
    broker.ask(lambda reply_to: SendTo(Address("q"), [take_in(payload, True)], reply_to))
    assert lock(broker).body == shown


def test_a_content_type_that_is_no_header_is_left_out(broker: HttpBroker) -> None:
    payload = encode_message(properties=Properties(content_type="a\r\nX: y"), data=b"")
    broker.ask(lambda reply_to: SendTo(Address("q"), [take_in(payload, True)], reply_to))
    assert "Content-Type" not in lock(broker).headers


class TestRights:
    """Send for sending, Listen for all else. Source: wire contract 8."""

    @pytest.fixture
    def broker(self) -> HttpBroker:
        rules = [
            SasRule("send", "k", rights=frozenset({Right.SEND})),
            SasRule("listen", "k", rights=frozenset({Right.LISTEN})),
            SasRule("own", "k", rights=frozenset({Right.SEND}), path="q"),
        ]
        made = HttpBroker(authority=Authority(rules))
        made.create_queue("q")
        return made

    @pytest.mark.parametrize(
        ("method", "target", "right"),
        [
            ("POST", "/q/messages", "send"),
            ("POST", "/q/messages/head?timeout=0", "listen"),
            ("DELETE", "/q/messages/head?timeout=0", "listen"),
            ("POST", "/q/messages/1/t", "listen"),
            ("PUT", "/q/messages/1/t", "listen"),
            ("DELETE", "/q/messages/1/t", "listen"),
        ],
    )
    def test_each_request_needs_its_right(
        self, broker: HttpBroker, method: str, target: str, right: str
    ) -> None:
        """Req: T-09."""
        for name in ("send", "listen"):
            status = broker.answer(method, target, token=broker.token(name, "k")).status
            assert (status == 401) == (name != right)
        assert broker.answer(method, target, token="").status == 401
        assert broker.answer(method, target, token=broker.token("send", "wrong")).status == 401
        assert broker.answer(method, target, token=broker.token(right, "k", "/other")).status == 401

    def test_a_token_may_be_for_the_address_alone(self, broker: HttpBroker) -> None:
        for path in ("", "/q", "/q/messages", "/Q/Messages/"):
            token = broker.token("send", "k", path)
            assert broker.answer("POST", "/q/messages", b"x", token=token).status == 201

    def test_an_entity_has_keys_of_its_own(self, broker: HttpBroker) -> None:
        token = broker.token("own", "k", "/q")
        assert broker.answer("POST", "/q/messages", b"x", token=token).status == 201
