"""Messages that are sent over HTTP."""

from __future__ import annotations

import html
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from peeklock.broker.vocabulary.commands import LimitSending
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS, EntityStatus
from peeklock.broker.vocabulary.quotas import PREMIUM
from tests.asking import Answer
from tests.rest.asking import HttpBroker

BATCH = {"Content-Type": "application/vnd.microsoft.servicebus.json; charset=utf-8"}


@pytest.fixture
def broker() -> HttpBroker:
    made = HttpBroker()
    made.create_queue("q")
    return made


def take(broker: HttpBroker, path: str = "q") -> Answer:
    return broker.answer("DELETE", f"/{path}/messages/head?timeout=0")


def test_a_message_keeps_all_that_was_said_of_it(broker: HttpBroker) -> None:
    """Req: T-09."""
    said = {
        "CorrelationId": "c",
        "Label": "l",
        "MessageId": "m",
        "PartitionKey": "p",
        "ReplyTo": "r",
        "ReplyToSessionId": "rs",
        "TimeToLive": 10.5,
        "To": "t",
        "ViaPartitionKey": "v",
    }
    headers = {
        "BrokerProperties": json.dumps({**said, "ForcePersistence": True}),
        "Content-Type": "text/plain",
    }
    assert broker.answer("POST", "/q/messages", b"\x00body", headers).status == 201
    found = take(broker)
    assert (found.status, found.body, found.headers["Content-Type"]) == (200, b"\x00body", "text/plain")
    assert {name: found.broker[name] for name in said} == said
    assert (found.broker["SequenceNumber"], found.broker["State"]) == (1, "Active")
    assert found.broker["DeliveryCount"] == 1
    assert "LockToken" not in found.broker
    assert "Location" not in found.headers


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ('"text"', '"text"'),
        ("High", '"High"'),
        ("12345,ABC", '"12345,ABC"'),
        ('"a \\"quote\\" and \\u00fc"', '"a \\"quote\\" and \\u00fc"'),
        ('"not "escaped""', '"not \\"escaped\\""'),
        ("12", "12"),
        ("-1.5e3", "-1500.0"),
        ("9223372036854775807", "9223372036854775807"),
        ("9223372036854775808", '"9223372036854775808"'),
        ("007", '"007"'),
        ("1e999", '"1e999"'),
        ("true", "true"),
        ("False", "false"),
        ('"Mon, 01 Jan 2024 00:00:00 GMT"', '"Mon, 01 Jan 2024 00:00:00 GMT"'),
        ("", '""'),
        ("ü".encode().decode("latin-1"), '"\\u00fc"'),
    ],
)
def test_headers_are_properties(broker: HttpBroker, sent: str, shown: str) -> None:
    """Req: T-09."""
    assert broker.answer("POST", "/q/messages", b"", [("My-Property", sent)]).status == 201
    assert take(broker).headers["My-Property"] == shown


def test_headers_of_http_are_no_properties(broker: HttpBroker) -> None:
    names = ("Accept", "accept-Encoding", "User-Agent", "Cookie", "X-MS-Version", "X-Forwarded-For", "Expect")
    broker.answer("POST", "/q/messages", b"", dict.fromkeys(names, "1"))
    assert set(take(broker).headers) == {"BrokerProperties"}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "1",
        '{"Label": 1}',
        '{"MessageId": ["a"]}',
        '{"TimeToLive": "10"}',
        '{"TimeToLive": true}',
        '{"TimeToLive": 0}',
        '{"TimeToLive": NaN}',
        '{"ScheduledEnqueueTimeUtc": 5}',
        '{"ScheduledEnqueueTimeUtc": "soon"}',
        '{"ScheduledEnqueueTimeUtc": "Mon, 31 Feb 2024 00:00:00 GMT"}',
        '{"ForcePersistence": 1}',
        '{"MessageId": "' + "x" * 129 + '"}',
        '{"SessionId": "a", "PartitionKey": "b"}',
        '{"Label": "\\ud800"}',
        "[" * 20_000,
        "\xff",
        json.dumps(dict.fromkeys(map(str, range(65)))),
    ],
)
def test_bad_broker_properties_are_refused(broker: HttpBroker, text: str) -> None:
    """Req: T-09."""
    found = broker.answer("POST", "/q/messages", b"x", {"BrokerProperties": text})
    assert found.status == 400
    assert b"<Code>400</Code>" in found.body
    assert broker.queue("q").active_count == 0


@pytest.mark.parametrize("name", ["Unknown", "DeliveryCount", "LockToken", "SequenceNumber"])
def test_what_only_receivers_are_told_is_not_read(broker: HttpBroker, name: str) -> None:
    headers = {"BrokerProperties": json.dumps({name: "whatever"})}
    assert broker.answer("POST", "/q/messages", b"x", headers).status == 201


def test_a_message_is_scheduled(broker: HttpBroker) -> None:
    broker.clock.now_ms = round(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000)
    at = "Mon, 01 Jan 2024 00:01:00 GMT"
    headers = {"BrokerProperties": json.dumps({"ScheduledEnqueueTimeUtc": at})}
    broker.answer("POST", "/q/messages", b"later", headers)
    assert take(broker).status == 204
    broker.advance(60_000)
    found = take(broker)
    assert (found.body, found.broker["ScheduledEnqueueTimeUtc"], found.broker["EnqueuedTimeUtc"]) == (
        b"later",
        at,
        at,
    )


def test_a_long_time_to_live_is_kept(broker: HttpBroker) -> None:
    broker.answer("POST", "/q/messages", b"", {"BrokerProperties": json.dumps({"TimeToLive": 10_000_000})})
    assert take(broker).broker["TimeToLive"] == 10_000_000


def test_without_a_time_to_live_the_longest_is_shown_and_can_be_sent_again(broker: HttpBroker) -> None:
    """A client that reads BrokerProperties into a type of its own takes no message without the member.

    Req: T-09
    """
    broker.answer("POST", "/q/messages", b"")
    shown = take(broker).headers["BrokerProperties"]
    assert json.loads(shown)["TimeToLive"] == UNLIMITED_MS / 1000
    assert broker.answer("POST", "/q/messages", b"", {"BrokerProperties": shown}).status == 201


def test_a_batch_is_stored_whole(broker: HttpBroker) -> None:
    """Req: T-07, T-09."""
    members = [
        {"Body": f"body {number}", "BrokerProperties": {"TimeToLiveTimeSpan": "0.00:10:00"},
         "UserProperties": {"number": number, "text": "a", "half": 0.5, "yes": True}}
        for number in range(300)
    ]  # fmt: skip
    assert broker.answer("POST", "/q/messages", json.dumps(members), BATCH).status == 201
    found = [take(broker) for _ in members]
    assert [answer.body for answer in found] == [f"body {number}".encode() for number in range(300)]
    assert found[7].headers["number"] == "7"
    assert (found[7].headers["text"], found[7].headers["half"], found[7].headers["yes"]) == (
        '"a"',
        "0.5",
        "true",
    )
    assert found[7].broker["TimeToLive"] == 600


@pytest.mark.parametrize(
    ("batch", "status"),
    [
        ([], 400),
        ({}, 400),
        ([1], 400),
        ([{"Body": 1}], 400),
        ([{"Body": "\ud800"}], 400),
        ([{"Body": "a"}, {"Body": "b", "BrokerProperties": 1}], 400),
        ([{"Body": "a"}, {"Body": "b", "BrokerProperties": {"TimeToLiveTimeSpan": "10"}}], 400),
        ([{"Body": "a"}, {"Body": "b", "UserProperties": {"a": []}}], 400),
        ([{"Body": "a"}, {"Body": "b", "UserProperties": {"a": 1 << 64}}], 400),
        ([{"Body": "a"}] * 4501, 403),
        ([{"Body": "a" * 140_000}] * 2, 403),
    ],
)
def test_a_batch_with_a_bad_member_is_refused_whole(broker: HttpBroker, batch: Any, status: int) -> None:
    """Req: T-07, T-09."""
    assert broker.answer("POST", "/q/messages", json.dumps(batch), BATCH).status == status
    assert broker.queue("q").active_count == 0


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (
            {"Body": "b", "Bogus": 1},
            "an unknown member 'Bogus'; known: Body, BrokerProperties, UserProperties",
        ),
        ({"body": "b"}, "an unknown member 'body'; did you mean 'Body'?"),
        ({"\ud800" * 99: 1}, r"\ud800...'; known: "),
        ({"Body": 1}, "Its Body is not a string"),
        ({"BrokerProperties": {"Label": 1}}, "Label of BrokerProperties is not a string"),
    ],
)
def test_the_refusal_of_a_batch_names_the_message_and_its_member(
    broker: HttpBroker, member: Any, said: str
) -> None:
    """Req: T-09."""
    found = broker.answer("POST", "/q/messages", json.dumps([{"Body": "a"}, member]), BATCH)
    assert found.status == 400
    assert "The message [1] of the batch is refused: " in (text := html.unescape(found.body.decode()))
    assert said in text
    assert broker.queue("q").active_count == 0


def test_a_large_batch_is_not_read() -> None:
    broker = HttpBroker(tier=PREMIUM)
    broker.create_queue("q")
    assert broker.answer("POST", "/q/messages", b"[" * (1024 * 1024 + 1), BATCH).status == 403


def test_what_is_too_large_is_forbidden(broker: HttpBroker) -> None:
    """Req: T-09."""
    assert broker.answer("POST", "/q/messages", b"x" * 262_144).status == 403
    assert broker.plane.body_bytes_max("POST", "/q/messages") == 262_144


def test_a_topic_takes_messages() -> None:
    broker = HttpBroker()
    broker.create_topic("a/t")
    broker.create_subscription("a/t", "s")
    assert broker.answer("POST", "/a/t/messages", b"x").status == 201
    assert take(broker, "A%2Ft/Subscriptions/S").body == b"x"


@pytest.mark.parametrize(
    ("path", "status"),
    [("nope", 410), ("q/$DeadLetterQueue", 400), ("t/subscriptions/s", 400), ("q/$management", 410)],
)
def test_not_everything_can_be_sent_to(broker: HttpBroker, path: str, status: int) -> None:
    """Req: T-09."""
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    assert broker.answer("POST", f"/{path}/messages", b"x").status == status


def test_sessions_want_an_id() -> None:
    broker = HttpBroker()
    broker.create_queue("s", requires_session=True)
    assert broker.answer("POST", "/s/messages", b"x").status == 400
    headers = {"BrokerProperties": '{"SessionId": "a"}'}
    assert broker.answer("POST", "/s/messages", b"x", headers).status == 201
    assert broker.queue("s").active_count == 1


def test_a_disabled_queue_refuses() -> None:
    broker = HttpBroker()
    broker.create_queue("q", status=EntityStatus.SEND_DISABLED)
    assert broker.answer("POST", "/q/messages", b"x").status == 403


@pytest.mark.parametrize("short", ["low_space", "lagging", "capture_full"])
def test_what_is_short_is_told_to_come_again(broker: HttpBroker, short: str) -> None:
    """Req: R-06."""
    broker.offer([LimitSending(**{short: True})])
    found = broker.answer("POST", "/q/messages", b"x")
    assert (found.status, found.headers["Retry-After"]) == (503, "5")


def test_a_refusal_stands_in_the_log(broker: HttpBroker) -> None:
    """Req: T-02."""
    found = broker.answer("POST", "/nope/messages", b"x")
    (line,) = broker.logged
    assert (line["event"], line["status"], line["path"]) == ("message request refused", 410, "nope/messages")
    assert line["tracking_id"].encode() in found.body
