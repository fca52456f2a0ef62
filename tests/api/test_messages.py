"""Messages of one entity over the API: peeked, sent, scheduled, cancelled, purged."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties
from peeklock.amqp.types import (
    Byte,
    Char,
    Decimal64,
    Described,
    Float,
    Int,
    Long,
    Symbol,
    Timestamp,
    ULong,
)
from peeklock.broker.vocabulary.commands import Address, SendTo
from peeklock.gateway.inspection import take_in
from tests.api.asking import ApiBroker, segment


@pytest.fixture
def broker() -> ApiBroker:
    made = ApiBroker()
    made.clock.now_ms = 1_704_067_200_000
    made.create_queue("q", requires_duplicate_detection=True)
    made.create_queue("plain")
    return made


def send_amqp(broker: ApiBroker, payload: bytes, path: str = "q") -> None:
    broker.ask(lambda reply_to: SendTo(Address(path), [take_in(payload, reads_routing=True)], reply_to))


def test_what_is_sent_is_shown(broker: ApiBroker) -> None:
    """Req: T-09, S-11."""
    message = {
        "body": "one pizza",
        "contentType": "text/plain",
        "messageId": "order-1",
        "correlationId": "c",
        "subject": "pizza",
        "to": "kitchen",
        "replyTo": "table",
        "timeToLive": 90.5,
        "properties": {"priority": "high", "count": 1, "hot": True, "note": None, "size": 1.5},
    }
    assert broker.ok("POST", "/entities/q/messages", message) == {"sequenceNumbers": [1]}
    (shown,) = broker.ok("GET", "/entities/q/messages")["messages"]
    assert shown == {
        **message,
        "sequenceNumber": 1,
        "enqueuedSequenceNumber": 1,
        "state": "active",
        "enqueuedTime": "2024-01-01T00:00:00.000Z",
        "expiresAt": "2024-01-01T00:01:30.500Z",
        "deliveryCount": 0,
        "sizeBytes": shown["sizeBytes"],
    }
    assert broker.ok("GET", "/entities/q/messages/1") == shown


def test_a_property_with_a_decimal_point_stays_a_decimal_number(broker: ApiBroker) -> None:
    broker.ok("POST", "/entities/q/messages", {"properties": {"rate": 5.0, "count": 5}})
    found = broker.ok("GET", "/entities/q/messages/1?sections=true")["sections"]["applicationProperties"]
    assert found == {"rate": {"type": "double", "value": 5.0}, "count": {"type": "long", "value": 5}}


def test_bytes_are_sent_and_shown_in_base64(broker: ApiBroker) -> None:
    broker.ok("POST", "/entities/q/messages", {"bodyBase64": "/wA="})
    assert broker.ok("GET", "/entities/q/messages/1")["bodyBase64"] == "/wA="


def test_a_time_to_live_beyond_all_is_none(broker: ApiBroker) -> None:
    broker.ok("POST", "/entities/q/messages", {"timeToLive": 1e306})
    assert broker.ok("GET", "/entities/q/messages/1")["timeToLive"] > 1e10


def test_messages_of_an_array_are_stored_all_or_none(broker: ApiBroker) -> None:
    bad = [{"body": "a"}, {"body": "b", "timeToLive": 0}]
    refused = broker.http("POST", "/entities/q/messages", bad)
    assert (refused.status, refused.problem) == (400, "argument-invalid")
    assert "[1].timeToLive" in refused.json["detail"]
    assert broker.queue("q").active_count == 0
    many = [{"body": str(number)} for number in range(300)]
    assert broker.ok("POST", "/entities/q/messages", many)["sequenceNumbers"] == list(range(1, 301))


def test_pages_follow_each_other(broker: ApiBroker) -> None:
    broker.ok("POST", "/entities/q/messages", [{"body": str(number)} for number in range(5)])
    seen, cursor = [], ""
    for _ in range(3):
        page = broker.ok("GET", f"/entities/q/messages?limit=2{cursor}")
        seen += [message["body"] for message in page["messages"]]
        cursor = f"&cursor={page['next']}"
    assert seen == ["0", "1", "2", "3", "4"]
    assert broker.ok("GET", f"/entities/q/messages?limit=2{cursor}") == {"messages": []}
    assert len(broker.ok("GET", "/entities/q/messages?from=4")["messages"]) == 2


def test_pages_of_a_state(broker: ApiBroker) -> None:
    later = "2024-01-02T00:00:00Z"
    broker.ok("POST", "/entities/q/messages", [{"body": "a"}, {"body": "b", "scheduledEnqueueTime": later}])
    page = broker.ok("GET", "/entities/q/messages?state=scheduled")
    (shown,) = page["messages"]
    assert (shown["body"], shown["scheduledEnqueueTime"]) == ("b", "2024-01-02T00:00:00.000Z")
    assert page["nextNumber"] == shown["sequenceNumber"] + 1
    assert broker.ok("GET", "/entities/q/messages?state=deferred") == {"messages": []}


def test_a_page_of_a_state_has_none_of_the_others_that_are_before(
    broker: ApiBroker,
) -> None:
    broker.ok("POST", "/entities/plain/messages", [{"body": "a"}] * 300)
    for number in (290, 299):
        broker.ok("PATCH", f"/entities/plain/messages/{number}", {"to": "deferred"})
    page = broker.ok("GET", "/entities/plain/messages?state=deferred&limit=1")
    assert [message["sequenceNumber"] for message in page["messages"]] == [290]
    page = broker.ok("GET", f"/entities/plain/messages?state=deferred&cursor={page['next']}")
    assert [message["sequenceNumber"] for message in page["messages"]] == [299]


def test_a_scheduled_message_is_cancelled_by_its_number(broker: ApiBroker) -> None:
    """Req: S-06."""
    later = {"body": "b", "scheduledEnqueueTime": "2024-01-01T01:00:00+00:30"}
    assert broker.ok("POST", "/entities/q/messages", later) == {"sequenceNumbers": [1]}
    assert broker.queue("q").scheduled_count == 1
    assert broker.http("DELETE", "/entities/q/messages/1").status == 204
    again = broker.http("DELETE", "/entities/q/messages/1")
    assert (again.status, again.problem) == (404, "message-not-found")


def test_a_message_of_a_topic_reaches_its_subscription(broker: ApiBroker) -> None:
    """The topic shows what is scheduled in it. Req: S-08"""
    broker.create_topic("t/x")
    broker.create_subscription("t/x", "s")
    broker.ok("POST", f"/entities/{segment('t/x')}/messages", {"body": "a"})
    path = segment("t/x/subscriptions/s")
    (shown,) = broker.ok("GET", f"/entities/{path}/messages")["messages"]
    assert shown["body"] == "a"
    later = {"body": "b", "scheduledEnqueueTime": "2999-01-01T00:00:00Z"}
    broker.ok("POST", f"/entities/{segment('t/x')}/messages", later)
    (shown,) = broker.ok("GET", f"/entities/{segment('t/x')}/messages")["messages"]
    assert (shown["body"], shown["state"]) == ("b", "scheduled")


def test_a_purge_spares_scheduled_and_locked_messages(broker: ApiBroker) -> None:
    """Req: A-06."""
    later = {"scheduledEnqueueTime": "2024-01-02T00:00:00Z"}
    broker.ok("POST", "/entities/q/messages", [{"body": "a"}, {"body": "b"}, later])
    broker.ok("POST", "/entities/q/locks")
    assert broker.ok("DELETE", "/entities/q/messages?before=2023-01-01T00:00:00Z") == {"deleted": 0}
    assert broker.ok("DELETE", "/entities/q/messages") == {"deleted": 1}
    left = broker.ok("GET", "/entities/q/messages")["messages"]
    assert [message["sequenceNumber"] for message in left] == [1, 3]
    assert left[0]["lockedUntil"] == "2024-01-01T00:01:00.000Z"


def test_a_message_is_stored_once_under_its_idempotency_key(broker: ApiBroker) -> None:
    """Req: D-01."""
    key = {"Idempotency-Key": "order-1"}
    assert broker.ok("POST", "/entities/q/messages", {"body": "a"}, key) == {"sequenceNumbers": [1]}
    assert broker.ok("POST", "/entities/q/messages", {"body": "a"}, key) == {"sequenceNumbers": [1]}
    assert broker.queue("q").active_count == 1
    assert broker.ok("GET", "/entities/q/messages/1")["messageId"] == "order-1"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("plain", {"body": "a"}),
        ("q", {"messageId": "other"}),
        ("q", [{"body": "a"}, {"body": "b"}]),
        ("q", []),
    ],
)
def test_an_idempotency_key_that_means_nothing_is_refused(broker: ApiBroker, path: str, body: object) -> None:
    refused = broker.http("POST", f"/entities/{path}/messages", body, {"Idempotency-Key": "k"})
    assert refused.problem == "argument-invalid"
    assert broker.queue(path).active_count == 0


def test_values_that_json_has_no_type_for_are_text(broker: ApiBroker) -> None:
    properties: dict[str, Any] = {
        "at": Timestamp(0),
        "bytes": b"\xff",
        "decimal": Decimal64(bytes.fromhex("31c0000000000001")),
        "single": Float(0.5),
        "nan": float("nan"),
    }
    payload = encode_message(
        application_properties=properties, data=b"", properties=Properties(message_id=b"\x01")
    )
    send_amqp(broker, payload)
    shown = broker.ok("GET", "/entities/q/messages/1")
    assert shown["messageId"] == "01"
    assert shown["properties"] == {
        "at": "1970-01-01T00:00:00.000Z",
        "bytes": "/w==",
        "decimal": "1",
        "single": 0.5,
        "nan": "nan",
    }


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (
            {"boddy": "a"},
            "The body has an unknown member 'boddy'; did you mean 'body'? Known: body, bodyBase64, ",
        ),
        ([{}, {"Bogus": 1}], "The member '[1]' has an unknown member 'Bogus'; known: body, "),
        ({"body": 1}, "body"),
        ({"body": "a", "bodyBase64": "YQ=="}, "bodyBase64"),
        ({"bodyBase64": "a"}, "bodyBase64"),
        ({"messageId": "i" * 129}, "messageId"),
        ({"timeToLive": "1"}, "timeToLive"),
        ({"scheduledEnqueueTime": "tomorrow"}, "scheduledEnqueueTime"),
        ({"properties": {"a": []}}, "properties.a"),
        ({"properties": {"a": 1 << 64}}, "'a'"),
        ({"contentType": "é"}, "contentType"),
        ({"body": "\ud800"}, "body"),
        ([], "body"),
        ("text", "body"),
        (b"{", "JSON"),
        (b'{"timeToLive": 1e999}', "timeToLive"),
    ],
)
def test_a_bad_value_is_named(broker: ApiBroker, body: object, named: str) -> None:
    refused = broker.http("POST", "/entities/q/messages", body)
    assert (refused.status, refused.problem) == (400, "argument-invalid")
    assert named in refused.json["detail"]


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("?limit=0", "limit"),
        ("?limit=x", "limit"),
        ("?limit=1&limit=2", "twice"),
        ("?from=-1", "from"),
        ("?state=gone", "state"),
        ("?cursor=x", "cursor"),
        ("?cursor=WyJhIl0", "cursor"),
        (
            "?other=1",
            "The query has an unknown parameter 'other'; known: from, state, bodyBytesMax, limit, cursor.",
        ),
        ("?form=1", "did you mean 'from'?"),
        ("/1?other=1", "The query has an unknown parameter 'other'; known: bodyBytesMax, sections."),
        ("/1?sections=yes", "'sections' is neither true nor false"),
        ("/1?bodyBytesMax=-1", "bodyBytesMax"),
        ("/x", "number"),
        ("/99999999999999999999", "number"),
    ],
)
def test_a_bad_parameter_is_named(broker: ApiBroker, target: str, named: str) -> None:
    refused = broker.http("GET", f"/entities/q/messages{target}")
    assert (refused.status, refused.problem) == (400, "argument-invalid")
    assert named in refused.json["detail"]


@pytest.mark.parametrize(
    ("path", "message", "said"),
    [
        ("t/subscriptions/s", {}, "messages are sent to its topic 't'"),
        ("q/$deadletterqueue", {}, "is a dead-letter queue: nothing can be sent to it"),
        ("sessions", {}, "The SessionId was not set on a message"),
        ("q", {"sessionId": "a", "partitionKey": "b"}, "differs from the SessionId"),
    ],
)
def test_what_an_entity_does_not_take_is_a_400_as_over_the_data_plane(
    broker: ApiBroker, path: str, message: dict[str, str], said: str
) -> None:
    """Req: T-09."""
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    broker.create_queue("sessions", requires_session=True)
    refused = broker.http("POST", f"/entities/{segment(path)}/messages", message)
    assert (refused.status, refused.problem) == (400, "invalid-operation")
    assert said in refused.json["detail"]


def test_what_is_not_there_is_not_found(broker: ApiBroker) -> None:
    for target, problem in {
        "/entities/none/messages": "entity-not-found",
        "/entities/q/messages/7": "message-not-found",
        "/entities/q/massages": "not-here",
        "/$api/v2/entities": "not-here",
        "/$api": "not-here",
    }.items():
        refused = broker.http("GET", target)
        assert (refused.status, refused.problem) == (404, problem)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("a/b", "a%2Fb"),
        ("a/b/messages", "a%2Fb/messages"),
        ("t/subscriptions/s/messages/5", "t%2Fsubscriptions%2Fs/messages/5"),
        ("q/$deadletterqueue/messages", "q%2F$deadletterqueue/messages"),
    ],
)
def test_a_slash_of_an_entity_is_to_be_encoded_once(broker: ApiBroker, path: str, meant: str) -> None:
    refused = broker.http("GET", f"/entities/{path}")
    assert (refused.status, refused.problem) == (404, "not-here")
    said = f" The path of an entity is one segment: write its slashes as %2F, as in /$api/v1/entities/{meant}"
    assert refused.json["detail"].endswith(said)
    twice = broker.http("GET", f"/entities/{meant.replace('%2F', '%252F')}")
    assert (twice.status, twice.problem) == (404, "not-here")
    assert "its slashes are encoded twice" in twice.json["detail"]


@pytest.mark.parametrize("path", ["/x/y/z", "/entities/" + "a/" * 10_000])
def test_a_path_that_means_nothing_has_no_hint(broker: ApiBroker, path: str) -> None:
    assert "%2F" not in broker.http("GET", path).json["detail"]


def test_bodies_are_read_from_the_store(broker: ApiBroker) -> None:
    """Req: S-11."""
    small = ApiBroker(body_cache_bytes=1)
    small.create_queue("q")
    for number in range(5):
        small.ok("POST", "/entities/q/messages", {"body": str(number) * 1000})
    found = small.ok("GET", "/entities/q/messages")["messages"]
    assert [message["body"][0] for message in found] == list("01234")


# Sections, cut bodies


def test_sections_are_shown_with_the_types_of_their_values(broker: ApiBroker) -> None:
    one = UUID(int=1)
    payload = encode_message(
        header=Header(durable=True, priority=7),
        message_annotations={"x-opt-note": "a"},
        properties=Properties(message_id=one, user_id=b"\xff", to="kitchen", creation_time=Timestamp(0)),
        application_properties={
            "text": "a",
            "flag": True,
            "none": None,
            "byte": Byte(-1),
            "exact": ULong((1 << 53) - 1),
            "large": Long(1 << 53),
            "single": Float(0.5),
            "infinite": float("inf"),
            "decimal": Decimal64(bytes.fromhex("31c0000000000001")),
            "symbol": Symbol("s"),
            "char": Char("c"),
        },
        value={"list": [Int(1), "b"], ULong(2): Described(Symbol("d"), one)},
    )
    send_amqp(broker, payload)
    shown = broker.ok("GET", "/entities/q/messages/1?sections=true")
    sections = shown["sections"]
    assert shown["bodyKind"] == "value"
    assert sections["header"]["priority"] == {"type": "ubyte", "value": 7}
    assert sections["messageAnnotations"]["x-opt-note"] == {"type": "string", "value": "a"}
    assert sections["messageAnnotations"]["x-opt-sequence-number"] == {"type": "long", "value": 1}
    text = "00000000-0000-0000-0000-000000000001"
    assert sections["properties"] == {
        "messageId": {"type": "uuid", "value": text},
        "userId": {"type": "binary", "value": "/w=="},
        "to": {"type": "string", "value": "kitchen"},
        "creationTime": {"type": "timestamp", "value": "1970-01-01T00:00:00.000Z"},
    }
    assert sections["applicationProperties"] == {
        "text": {"type": "string", "value": "a"},
        "flag": {"type": "boolean", "value": True},
        "none": {"type": "null", "value": None},
        "byte": {"type": "byte", "value": -1},
        "exact": {"type": "ulong", "value": 9007199254740991},
        "large": {"type": "long", "value": "9007199254740992"},
        "single": {"type": "float", "value": 0.5},
        "infinite": {"type": "double", "value": "inf"},
        "decimal": {"type": "decimal64", "value": "1"},
        "symbol": {"type": "symbol", "value": "s"},
        "char": {"type": "char", "value": "c"},
    }
    (body,) = sections["body"]
    assert body["type"] == "map"
    assert body["value"] == [
        [
            {"type": "string", "value": "list"},
            {"type": "list", "value": [{"type": "int", "value": 1}, {"type": "string", "value": "b"}]},
        ],
        [
            {"type": "ulong", "value": 2},
            {
                "type": "described",
                "descriptor": {"type": "symbol", "value": "d"},
                "value": {"type": "uuid", "value": text},
            },
        ],
    ]
    assert "sections" not in broker.ok("GET", "/entities/q/messages/1")
    cut = broker.ok("GET", "/entities/q/messages/1?sections=true&bodyBytesMax=3")
    assert (cut["bodyKind"], cut["bodyTruncated"], "body" in cut["sections"]) == ("value", True, False)


def test_a_body_of_data_has_no_values(broker: ApiBroker) -> None:
    send_amqp(broker, encode_message(data=b"a"))
    shown = broker.ok("GET", "/entities/q/messages/1?sections=true")
    assert (shown["bodyKind"], shown["body"]) == ("data", "a")
    assert "body" not in shown["sections"]


def test_a_section_that_cannot_be_decoded_is_named(broker: ApiBroker) -> None:
    section = bytes.fromhex("005374 c10502 a1016b ff")  # a map with a value of no type
    send_amqp(broker, section + encode_message(data=b"a"))
    shown = broker.ok("GET", "/entities/q/messages/1?sections=true")
    assert shown["sections"]["malformed"] == ["applicationProperties"]


@pytest.mark.parametrize(
    ("given", "most", "wanted"),
    [
        ({"body": "täglich"}, 2, {"body": "t", "bodyTruncated": True, "bodySizeBytes": 8}),
        ({"body": "täglich"}, 3, {"body": "tä", "bodyTruncated": True, "bodySizeBytes": 8}),
        ({"body": "täglich"}, 8, {"body": "täglich", "bodySizeBytes": 8}),
        ({"body": "a"}, 0, {"body": "", "bodyTruncated": True, "bodySizeBytes": 1}),
        ({"bodyBase64": "/wA="}, 1, {"bodyBase64": "/w==", "bodyTruncated": True, "bodySizeBytes": 2}),
    ],
)
def test_a_long_body_is_cut(broker: ApiBroker, given: Any, most: int, wanted: dict[str, Any]) -> None:
    broker.ok("POST", "/entities/plain/messages", given)
    query = f"bodyBytesMax={most}"
    shown = [
        broker.ok("GET", f"/entities/plain/messages/1?{query}"),
        *broker.ok("GET", f"/entities/plain/messages?{query}")["messages"],
        *broker.ok("GET", f"/messages?entity=plain&{query}")["messages"],
    ]
    assert len(shown) == 3
    for each in shown:
        assert {name: value for name, value in each.items() if name.startswith("body")} == wanted
