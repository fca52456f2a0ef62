"""What a receiver is shown: the broker's keys in their exact types, the sender's bytes untouched."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import peeklock.gateway.annotations as module
from peeklock.amqp.codec import decode_typed
from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import scan
from peeklock.amqp.types import Array, Described, Int, Long, Short, Symbol, Timestamp, UByte, UInt, ULong
from peeklock.broker.content.overlay import STORE_DAMAGED, with_reason
from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.message import EMPTY_PAYLOAD, NEVER_MS, MessageState, MessageView
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.gateway.inspection import take_in
from tests.gateway.harness import TOKEN, message_bytes, section, stored

UNTIL_MS = 1_700_000_060_000
ENQUEUED_MS = 1_700_000_000_123


def shown(payload: bytes, **view: Any) -> bytes:
    """Encode a stored message for a receiver who holds its lock."""
    number = view.pop("number", 5)
    overlay = view.pop("overlay", None)
    options = {key: view.pop(key) for key in ("over_link", "tag_only", "partitioned") if key in view}
    message = stored(payload, number=number)
    message.dead_letter_source = view.pop("dead_letter_source", None)
    message.expires_at_ms = view.pop("expires_at_ms", NEVER_MS)
    message.was_scheduled = view.pop("was_scheduled", False)
    message.overlay = None if overlay is None else encode(overlay)
    fields: dict[str, Any] = {
        "lock_token": TOKEN.bytes_le,
        "locked_until_ms": UNTIL_MS,
        "delivery_count": 0,
        "ttl_ms": None,
        "state": MessageState.ACTIVE,
        "overlay": message.overlay,
        **view,
    }
    return encode_for_receiver(MessageView(message, **fields), payload, **options)


def typed(encoded: bytes, name: str) -> Any:
    """Decode one section with the types of its values."""
    span = getattr(scan(encoded), name)
    if span is None:
        return None
    value, end = decode_typed(encoded, span[0] + 3)
    assert end == span[1]
    return value


def test_a_delivery_is_byte_for_byte_what_clients_need() -> None:
    """Req: S-01, L-04. Golden bytes. Source: wire contract 0.2, 0.4, 3.2, 3.4, 3.6.

    Section descriptors are `00 53 <code>`; keys are symbols; sequence numbers are longs in full (0x81), which
    JavaScript reads raw; the lock token is a uuid in RFC order; delivery-count is always there.
    """
    golden = (
        "00 53 70 c0 0a 05 40 40 40 40 70 00 00 00 00"
        " 00 53 71 c1 24 02 a3 10" + b"x-opt-lock-token".hex() + " 98 00112233 4455 6677 8899 aabbccddeeff"
        " 00 53 72 c1 9b 0a"
        " a3 13" + b"x-opt-enqueued-time".hex() + " 83 0000018bcfe5687b"
        " a3 15" + b"x-opt-sequence-number".hex() + " 81 0000000000000005"
        " a3 1d" + b"x-opt-enqueue-sequence-number".hex() + " 81 0000000000000005"
        " a3 13" + b"x-opt-message-state".hex() + " 54 00"
        " a3 12" + b"x-opt-locked-until".hex() + " 83 0000018bcfe65260"
        " 00 53 75 a0 05" + b"hello".hex()
    )
    assert shown(message_bytes()).hex(" ") == bytes.fromhex(golden).hex(" ")


def test_the_broker_s_annotations_have_their_exact_types() -> None:
    """Req: S-01, S-04. Source: wire contract 0.4, 3.2."""
    found = typed(shown(message_bytes(), state=MessageState.DEFERRED), "message_annotations")
    expected = {
        "x-opt-enqueued-time": Timestamp(ENQUEUED_MS),
        "x-opt-sequence-number": Long(5),
        "x-opt-enqueue-sequence-number": Long(5),
        "x-opt-message-state": Int(1),
        "x-opt-locked-until": Timestamp(UNTIL_MS),
    }
    assert found == expected
    assert all(type(key) is Symbol for key in found)
    assert {key: type(value) for key, value in found.items()} == {key: type(v) for key, v in expected.items()}


@pytest.mark.parametrize("how", [{}, {"tag_only": True}, {"locked_until_ms": 0}])
def test_over_a_link_a_message_that_was_scheduled_says_so(how: dict[str, Any]) -> None:
    """In each mode of receiving; elsewhere it shows the state that it has. Req: S-06. Source: wire contract
    C10."""
    for over_link, was_scheduled, state in ((True, True, 2), (True, False, 0), (False, True, 0)):
        encoded = shown(message_bytes(), over_link=over_link, was_scheduled=was_scheduled, **how)
        found = typed(encoded, "message_annotations")["x-opt-message-state"]
        assert (found, type(found)) == (state, Int)


def test_without_a_lock_there_is_neither_token_nor_locked_until() -> None:
    """Req: S-11, L-01. Peeked, and received with receive-and-delete though its delivery has a tag."""
    for token in (None, TOKEN.bytes_le):
        encoded = shown(message_bytes(), lock_token=token, locked_until_ms=0, tag_only=token is not None)
        assert typed(encoded, "delivery_annotations") is None
        assert "x-opt-locked-until" not in typed(encoded, "message_annotations")
        assert "x-opt-sequence-number" in typed(encoded, "message_annotations")


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("foreign", [{}, {Symbol("x"): "y"}, {Symbol("x"): "y" * 300}])
def test_a_peek_shows_until_when_another_holds_the_message(
    foreign: dict[Any, Any], partitioned: bool
) -> None:
    """Req: S-11. In an annotation of ours: clients take the service's for a lock of their own."""
    own = Symbol("x-opt-peeklock-locked-until")
    payload = message_bytes(annotations={own: "forged", **foreign})
    plain = typed(
        shown(payload, lock_token=None, locked_until_ms=0, partitioned=partitioned), "message_annotations"
    )
    assert own not in plain
    for until_ms in (UNTIL_MS, UNTIL_MS + 1):
        encoded = shown(payload, lock_token=None, locked_until_ms=until_ms, partitioned=partitioned)
        assert typed(encoded, "message_annotations") == {**plain, own: Timestamp(until_ms)}
        assert typed(encoded, "delivery_annotations") is None
    assert own not in typed(shown(payload, partitioned=partitioned), "message_annotations")
    removed = shown(payload, tag_only=True, partitioned=partitioned)
    assert own not in typed(removed, "message_annotations")


END_OF_9999_MS = 253_402_300_799_999


def test_a_message_of_a_session_shows_its_token_and_a_lock_without_end() -> None:
    """Req: G-02, C28. Its lock is the session's; without a time .NET shows year 1."""
    encoded = shown(message_bytes(), locked_until_ms=0)
    found = typed(encoded, "message_annotations")
    assert typed(encoded, "delivery_annotations") == {"x-opt-lock-token": TOKEN}
    assert found["x-opt-locked-until"] == END_OF_9999_MS
    assert type(found["x-opt-locked-until"]) is Timestamp
    assert len(found) == 5
    removed = shown(message_bytes(), locked_until_ms=0, tag_only=True)
    assert "x-opt-locked-until" not in typed(removed, "message_annotations")


@pytest.mark.parametrize("until_ms", [0, UNTIL_MS])
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_peek_of_a_deferred_message_of_a_session_shows_a_lock_without_end(
    until_ms: int, partitioned: bool
) -> None:
    """Req: C28. Beside it, until when its session holds it."""
    payload = message_bytes(annotations={Symbol("x"): 1})
    how = {"lock_token": None, "locked_until_ms": until_ms, "partitioned": partitioned}
    encoded = shown(payload, of_session=True, state=MessageState.DEFERRED, **how)
    found = typed(encoded, "message_annotations")
    assert found["x-opt-locked-until"] == END_OF_9999_MS
    assert found.get("x-opt-peeklock-locked-until", 0) == until_ms
    assert found["x"] == 1
    assert "x-opt-locked-until" not in typed(shown(payload, **how), "message_annotations")


@pytest.mark.parametrize("until", [0, UNTIL_MS])
@pytest.mark.parametrize("token", [None, TOKEN.bytes_le])
@pytest.mark.parametrize("foreign", [{}, {Symbol("x"): "y" * 200}])
def test_a_partitioned_entity_s_message_shows_its_partition(
    until: int, token: bytes | None, foreign: dict[Any, Any]
) -> None:
    """Req: S-02. A short in full; partition 0 too. Source: wire contract 0.4, 3.2."""
    for partition in (0, 15, 0x7FFF):
        number = partition << 48 | 9
        payload = message_bytes(annotations=foreign or None)
        encoded = shown(
            payload, number=number, partitioned=True, locked_until_ms=until if token else 0, lock_token=token
        )
        found = typed(encoded, "message_annotations")
        assert found["x-opt-partition-id"] == partition
        assert type(found["x-opt-partition-id"]) is Short
        assert encode(Symbol("x-opt-partition-id")) + b"\x61" + partition.to_bytes(2, "big") in encoded
        assert found["x-opt-sequence-number"] == number
        assert {key: found[key] for key in foreign} == foreign
        assert found.get("x-opt-locked-until") == ((until or END_OF_9999_MS) if token else None)
        assert "x-opt-partition-id" not in typed(shown(payload, number=number), "message_annotations")


def test_a_forwarded_dead_letter_names_the_entity_that_it_came_from() -> None:
    """Req: F-02, C37. A string, of a queue in lower case. Source: wire contract 3.2."""
    for source, said in (
        ("Orders/EU", "orders/eu"),
        ("O" * 260, "o" * 260),
        ("News/Subscriptions/All", "News/Subscriptions/All"),
    ):
        found = typed(shown(message_bytes(), dead_letter_source=source), "message_annotations")
        assert found["x-opt-deadletter-source"] == said
        assert type(found["x-opt-deadletter-source"]) is str
    both = typed(shown(message_bytes(), dead_letter_source="orders", partitioned=True), "message_annotations")
    assert (both["x-opt-deadletter-source"], both["x-opt-partition-id"]) == ("orders", 0)


@pytest.mark.parametrize(("count", "ttl_ms"), [(0, None), (9, None), (300, 15_000), (0, 0), (1, 0xFFFFFFFF)])
def test_the_header_always_has_the_delivery_count_and_the_ttl_only_when_there_is_one(
    count: int, ttl_ms: int | None
) -> None:
    """Req: L-08, E-05. Source: wire contract 3.2, 3.5, 3.6."""
    durable, priority, ttl, first, delivery_count = typed(
        shown(message_bytes(), delivery_count=count, ttl_ms=ttl_ms), "header"
    )
    assert (durable, priority, first) == (None, None, None)
    assert (ttl, delivery_count) == (ttl_ms, count)
    assert type(delivery_count) is UInt


DAY_MS = 86_400_000
CREATED_MS = 1_600_000_000_000


def times(expires_ms: int | None, created_ms: int | None, ttl_ms: int | None = 60_000) -> bytes:
    """Encode a message whose sender said when it expires."""
    between = [None if at is None else Timestamp(at) for at in (expires_ms, created_ms)]
    header = None if ttl_ms is None else [True, None, UInt(ttl_ms)]
    return message_bytes(header=header, properties=["id", *[None] * 5, Symbol("a/b"), None, *between, "g"])


@pytest.mark.parametrize(
    ("created_ms", "begins_ms"), [(CREATED_MS, CREATED_MS), (None, ENQUEUED_MS), (-5, -5)]
)
def test_an_expiry_time_follows_a_time_to_live_that_was_capped(
    created_ms: int | None, begins_ms: int
) -> None:
    """Req: E-04, E-05. Its 8 bytes alone change. Source: wire contract 3.2, C17."""
    sent = times(CREATED_MS + 60_000, created_ms)
    bare = scan(sent).bare_offset
    for ttl_ms in (0, 1, 59_999):
        assert shown(sent, ttl_ms=ttl_ms).endswith(times(begins_ms + ttl_ms, created_ms)[bare:])


@pytest.mark.parametrize(
    ("sent", "ttl_ms"),
    [
        (times(5, CREATED_MS), 60_000),  # not capped
        (times(5, CREATED_MS), None),
        (times(5, CREATED_MS, None), 60_000),  # the entity's time-to-live, the sender set none
        (times(None, CREATED_MS), 30_000),  # no expiry time
        (times(CREATED_MS + 90 * DAY_MS, CREATED_MS, 2**32 - 1), 90 * DAY_MS),
        (times(CREATED_MS + 5, CREATED_MS, 2**32 - 1), 2**32 - 1),
        (times(5, None, 2**32 - 1), 2**32 - 1),
        (message_bytes(header=[True, None, UInt(60_000)]), 30_000),
        (message_bytes(header=[True, None, UInt(60_000)], properties=[None] * 8 + ["never"]), 30_000),
        (message_bytes(header=[True, None, UInt(60_000)], properties=["id"]), 30_000),
    ],
)
def test_an_expiry_time_is_returned_as_sent_where_nothing_was_capped(sent: bytes, ttl_ms: int | None) -> None:
    """Req: E-05. Source: wire contract 3.2, C17."""
    assert shown(sent, ttl_ms=ttl_ms).endswith(sent[scan(sent).bare_offset :])


def test_the_expiry_time_of_a_long_time_to_live_that_was_capped() -> None:
    """Req: E-06. Beyond the reach of header.ttl; and a sum beyond the year 9999 is cut to its end."""
    sent = times(CREATED_MS + 90 * DAY_MS, CREATED_MS, 2**32 - 1)
    for ttl_ms in (60 * DAY_MS, 2**32 - 1, 1):
        capped = times(CREATED_MS + ttl_ms, CREATED_MS)
        encoded = shown(sent, ttl_ms=ttl_ms, expires_at_ms=ENQUEUED_MS + ttl_ms)
        assert encoded.endswith(capped[scan(capped).bare_offset :])
    late = times(5, 2**63 - 1)
    end = times(253_402_300_799_999, 2**63 - 1)
    assert shown(late, ttl_ms=1).endswith(end[scan(end).bare_offset :])


@pytest.mark.parametrize("created_ms", [CREATED_MS, None])
@pytest.mark.parametrize("ttl_ms", [2**32, 100 * DAY_MS, 2**62])
def test_a_long_time_to_live_of_an_entity_is_told_by_the_expiry_time(
    ttl_ms: int, created_ms: int | None
) -> None:
    """Req: C29. Clients subtract the creation-time, which is the enqueued time where the sender set none.

    Nothing is added where header.ttl says all, or where the time-to-live is the message's own.
    """
    sent = times(None, created_ms, None)
    encoded = shown(sent, ttl_ms=ttl_ms)
    begins_ms = ENQUEUED_MS if created_ms is None else created_ms
    told = times(min(begins_ms + ttl_ms, END_OF_9999_MS), begins_ms, None)
    assert typed(encoded, "header")[2] == 2**32 - 1
    assert encoded.endswith(told[scan(told).bare_offset :])
    for how in ({"ttl_ms": 2**32 - 1}, {"ttl_ms": ttl_ms, "expires_at_ms": ENQUEUED_MS + ttl_ms}):
        assert shown(sent, **how).endswith(sent[scan(sent).bare_offset :])


def test_a_long_time_to_live_of_an_entity_is_told_where_there_are_no_properties() -> None:
    """Req: C29."""
    found = typed(shown(message_bytes(), ttl_ms=100 * DAY_MS), "properties")
    assert found == [None] * 8 + [Timestamp(ENQUEUED_MS + 100 * DAY_MS), Timestamp(ENQUEUED_MS)]
    assert {type(value) for value in found[8:]} == {Timestamp}


@pytest.mark.parametrize(
    "sent",
    [
        times(5, CREATED_MS, None),
        times(5, None, None),
        message_bytes(properties=[None] * 8 + ["never"]),
        b"\x00\x53\x73\xc0\x03\x01\xa1\x7f" + section(0x75, b"hello"),
    ],
)
def test_an_expiry_time_of_the_sender_stays_beside_an_entity_s_long_time_to_live(sent: bytes) -> None:
    """Req: C29. So do properties that cannot be read."""
    assert shown(sent, ttl_ms=100 * DAY_MS).endswith(sent[scan(sent).bare_offset :])


def test_a_creation_time_that_is_none_counts_from_the_enqueued_time() -> None:
    """Req: C29, R-05. It stays as it was sent."""
    sent = message_bytes(properties=[None] * 9 + ["once"])
    found = typed(shown(sent, ttl_ms=100 * DAY_MS), "properties")
    assert found[8:] == [Timestamp(ENQUEUED_MS + 100 * DAY_MS), "once"]


def test_an_expiry_time_is_found_in_the_longer_forms() -> None:
    long = message_bytes(
        header=[True, None, UInt(9)], properties=["i" * 128, b"u" * 300, *[None] * 6, Timestamp(7)]
    )
    (found,) = typed(shown(long, ttl_ms=8), "properties")[8:]
    assert found == Timestamp(ENQUEUED_MS + 8)


def test_a_ttl_beyond_the_header_s_reach_is_shown_as_its_maximum() -> None:
    """Req: E-06. Source: wire contract 3.2: absolute-expiry-time, the sender's own, says the rest."""
    assert typed(shown(message_bytes(), ttl_ms=90 * 86_400_000), "header")[2] == 0xFFFFFFFF


@pytest.mark.parametrize(
    "header",
    [
        [True, UByte(9), UInt(5000), True, UInt(77)],
        [False, None, None, False],
        [None, UByte(0)],
        [True],
        [],
    ],
)
def test_the_sender_s_header_is_kept_but_for_ttl_and_delivery_count(header: list[Any]) -> None:
    """Req: T-11. Source: wire contract 3.1."""
    durable, priority, _, first_acquirer, _ = header + [None] * (5 - len(header))
    found = typed(shown(message_bytes(header=header), delivery_count=2, ttl_ms=700), "header")
    assert found == [durable, priority, 700, first_acquirer, 2]


FOREIGN = {
    Symbol("x-custom"): Array.of(Long, [1, 2]),
    Symbol("x-opt-partition-key"): "p",
    Symbol("x-opt-scheduled-enqueue-time"): Timestamp(5),
    "text-key": {"deep": [None, 1.5, uuid.UUID(int=3)]},
}


def test_the_sender_s_annotations_are_kept_and_the_broker_s_own_are_overwritten() -> None:
    """Req: S-01. A message received and sent again carries what the last broker said: it is never trusted.

    Source: wire contract 3.1, 3.2.
    """
    forged = {
        Symbol("x-opt-sequence-number"): Long(99),
        Symbol("x-opt-enqueue-sequence-number"): Long(98),
        Symbol("x-opt-enqueued-time"): Timestamp(1),
        Symbol("x-opt-locked-until"): Timestamp(2),
        "x-opt-message-state": Int(2),
        Symbol("x-opt-deadletter-source"): "elsewhere",
        Symbol("x-opt-partition-id"): Short(3),
    }
    payload = message_bytes(
        annotations={**FOREIGN, **forged},
        delivery_annotations={Symbol("x-opt-lock-token"): uuid.UUID(int=1), Symbol("x-mine"): "kept"},
    )
    encoded = shown(payload)
    found = typed(encoded, "message_annotations")
    assert {key: value for key, value in found.items() if key in FOREIGN} == FOREIGN
    assert found["x-opt-sequence-number"] == 5
    assert found["x-opt-message-state"] == 0
    assert "x-opt-deadletter-source" not in found
    assert "x-opt-partition-id" not in found
    assert len(found) == len(FOREIGN) + 5
    assert typed(encoded, "delivery_annotations") == {"x-mine": "kept", "x-opt-lock-token": TOKEN}
    for key, value in FOREIGN.items():
        assert encode(key) + encode(value) in encoded  # bit for bit


def test_large_foreign_annotations_take_the_wide_form() -> None:
    payload = message_bytes(
        annotations={Symbol("x-long"): "a" * 500}, delivery_annotations={Symbol("x"): "b" * 300}
    )
    encoded = shown(payload)
    assert typed(encoded, "message_annotations")["x-long"] == "a" * 500
    assert typed(encoded, "delivery_annotations") == {"x": "b" * 300, "x-opt-lock-token": TOKEN}


def test_sections_with_wide_descriptors_are_sent_with_narrow_ones() -> None:
    """The Python client reads a section's code at a fixed place. Source: wire contract 0.2."""
    wide = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00"
    payload = wide + b"\x70" + encode([True]) + wide + b"\x72" + encode({Symbol("x"): 1}) + message_bytes()
    encoded = shown(payload)
    assert encoded.startswith(b"\x00\x53\x70")
    assert typed(encoded, "header")[0] is True
    assert typed(encoded, "message_annotations")["x"] == 1
    assert encoded.endswith(message_bytes())


def test_changed_properties_are_merged_and_the_body_is_untouched() -> None:
    """Req: L-06, L-09. Source: wire contract 3.8, 4.2."""
    kept = {"kept": Int(7), "changed": "old", "nested": "x"}
    payload = message_bytes(properties=["id"], application_properties=kept)
    encoded = shown(payload, overlay={"changed": Long(3), "added": None, "DeadLetterReason": "why"})
    found = typed(encoded, "application_properties")
    assert found == {"kept": 7, "changed": 3, "nested": "x", "added": None, "DeadLetterReason": "why"}
    assert type(found["kept"]) is Int
    assert encoded.endswith(section(0x75, b"hello"))
    assert section(0x73, ["id"]) in encoded


def test_properties_are_added_where_there_were_none() -> None:
    """Req: L-09."""
    for payload in (message_bytes(properties=["id"]), message_bytes()):
        encoded = shown(payload, overlay={"DeadLetterReason": "why"})
        assert typed(encoded, "application_properties") == {"DeadLetterReason": "why"}
        assert encoded.endswith(section(0x75, b"hello"))


def test_what_a_rule_s_action_removed_and_set_is_merged() -> None:
    """Req: P-02. Strings set application properties, binaries remove them, symbols name fields."""
    payload = message_bytes(
        header=[True],
        annotations={Symbol("x-opt-partition-key"): "old", Symbol("mine"): Int(1)},
        properties=[uuid.UUID(int=2), b"user", "to", "label", None, ULong(9), Symbol("text/plain")],
        application_properties={"kept": Int(7), "gone": "x", "changed": 1},
    )
    overlay = {
        "changed": Long(2),
        "added": Described(Symbol("com.microsoft:timespan"), Long(10)),
        b"gone": None,
        b"never there": None,
        Symbol("subject"): "red",
        Symbol("to"): None,
        Symbol("content-type"): "application/json",
        Symbol("group-id"): "s",
        Symbol("reply-to-group-id"): "r",
        Symbol("x-opt-partition-key"): "s",
        Symbol("x-opt-via-partition-key"): "v",
    }
    encoded = shown(payload, overlay=overlay)
    assert typed(encoded, "application_properties") == {
        "kept": Int(7),
        "changed": Long(2),
        "added": Described(Symbol("com.microsoft:timespan"), Long(10)),
    }
    expected = [uuid.UUID(int=2), b"user", None, "red", None, ULong(9), Symbol("application/json")]
    expected += [None, None, None, "s", None, "r"]
    found = typed(encoded, "properties")
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]
    annotations = typed(encoded, "message_annotations")
    assert annotations["x-opt-sequence-number"] == 5
    assert {key: annotations[key] for key in list(annotations)[5:]} == {
        "mine": Int(1),
        "x-opt-partition-key": "s",
        "x-opt-via-partition-key": "v",
    }
    assert typed(encoded, "header")[0] is True
    assert encoded.endswith(section(0x75, b"hello"))


@pytest.mark.parametrize("name", ["message-id", "to", "subject", "reply-to", "correlation-id"])
def test_a_field_is_set_where_there_were_no_properties(name: str) -> None:
    """Req: P-02. And where the sender's are too few."""
    place = ["message-id", "", "to", "subject", "reply-to", "correlation-id"].index(name)
    for properties in (None, [], [None] * 13, ["id"]):
        payload = message_bytes(properties=properties, application_properties={"n": 1})
        encoded = shown(payload, overlay={Symbol(name): "x" * 300})
        found = typed(encoded, "properties")
        assert found[place] == "x" * 300
        assert len(found) == place + 1
        if place:
            assert found[0] == (properties[0] if properties else None)
        assert encoded.endswith(section(0x74, {"n": 1}) + section(0x75, b"hello"))


def test_annotations_are_set_where_there_were_none_and_removed() -> None:
    """Req: P-02."""
    for payload in (message_bytes(), message_bytes(header=[True])):
        encoded = shown(payload, overlay={Symbol("x-opt-partition-key"): "p"})
        assert typed(encoded, "message_annotations")["x-opt-partition-key"] == "p"
        assert encoded.endswith(message_bytes())
    payload = message_bytes(annotations={Symbol("x-opt-partition-key"): "old"})
    encoded = shown(payload, overlay={Symbol("x-opt-partition-key"): None})
    assert "x-opt-partition-key" not in typed(encoded, "message_annotations")


def test_a_map_that_loses_its_last_pair_goes() -> None:
    """Req: P-02."""
    payload = message_bytes(application_properties={"gone": 1})
    assert typed(shown(payload, overlay={b"gone": None}), "application_properties") is None
    assert typed(shown(message_bytes(), overlay={b"gone": None}), "application_properties") is None


@pytest.mark.parametrize(
    ("text", "code"), [("text/plain", 0xA3), ("t" * 200, 0xA3), ("t" * 300, 0xB3), ("süß", 0xA1)]
)
def test_a_content_type_is_a_symbol_where_it_can_be(text: str, code: int) -> None:
    """Source: wire contract 3.2."""
    encoded = shown(message_bytes(), overlay={Symbol("content-type"): text})
    assert typed(encoded, "properties")[6] == text
    raw = scan(encoded).property_raw(6)
    assert raw is not None
    assert raw[0] == code


def test_fields_that_cannot_be_read_stay_as_they_are() -> None:
    """Req: R-05. A list whose element reaches beyond it."""
    broken = b"\x00\x53\x73\xc0\x03\x01\xa1\x7f"
    payload = broken + section(0x75, b"hello")
    encoded = shown(payload, overlay={Symbol("subject"): "red"})
    assert encoded.endswith(payload)


def test_properties_that_cannot_be_read_give_way_to_the_broker_s() -> None:
    """Req: R-05. A map with one element only; the message can still be dead-lettered."""
    payload = b"\x00\x53\x74\xc1\x02\x01\x40" + message_bytes()
    assert take_in(payload, False)
    assert typed(shown(payload, overlay={"DeadLetterReason": "why"}), "application_properties") == {
        "DeadLetterReason": "why"
    }
    assert shown(payload).endswith(payload)


BODIES = [
    section(0x75, b"one") + section(0x75, b"two"),
    section(0x76, [1, "a"]) + section(0x76, [None]),
    section(0x77, None),
    section(0x77, {"a": [1, Symbol("b")]}),
    section(0x77, Int(3)),
    section(0x75, b"x" * 300) + section(0x78, {Symbol("crc"): 1}),
]


@pytest.mark.parametrize("body", BODIES)
def test_every_kind_of_body_and_the_footer_come_back_bit_for_bit(body: bytes) -> None:
    """Req: T-11. Source: wire contract 3.1."""
    bare = section(0x73, [uuid.UUID(int=2), b"user", "to"]) + section(0x74, {"n": UByte(1)}) + body
    for prefix in (b"", section(0x70, [True]), section(0x72, {Symbol("x"): 1})):
        assert shown(prefix + bare).endswith(bare)


def test_the_layouts_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Req: R-05."""
    monkeypatch.setattr(module, "_LAYOUTS", {})
    for number in range(module._LAYOUTS_MAX + 10):
        shown(message_bytes(annotations={Symbol("x"): Long(number)}))
        assert len(module._LAYOUTS) <= module._LAYOUTS_MAX
    module._LAYOUTS.clear()
    shown(message_bytes(annotations={Symbol("x"): "y" * module._PREFIX_BYTES_MAX}))
    assert module._LAYOUTS == {}


simple = (
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)


@given(
    st.none() | st.dictionaries(st.text("abc", max_size=8).map(Symbol), simple, max_size=4),
    st.none() | st.dictionaries(st.text("abc", max_size=8).map(Symbol), simple, max_size=4),
    st.none() | st.lists(st.booleans(), max_size=1),
    simple,
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 2**32 - 1),
    st.integers(1, 2**63 - 1),
    st.booleans(),
)
def test_whatever_was_accepted_can_be_shown_and_read(
    delivery: Any,
    message: Any,
    header: Any,
    body: Any,
    count: int,
    ttl: int | None,
    number: int,
    locked: bool,
) -> None:
    """Round trip: all sections of the sender come back, whatever their sizes."""
    payload = message_bytes(body, header=header, delivery_annotations=delivery, annotations=message)
    take_in(payload, False)
    encoded = shown(payload, delivery_count=count, ttl_ms=ttl, number=number, tag_only=not locked)
    found = typed(encoded, "message_annotations")
    assert found.pop("x-opt-sequence-number") == number
    assert {key: found[key] for key in message or {}} == (message or {})
    foreign = typed(encoded, "delivery_annotations") or {}
    assert foreign.pop("x-opt-lock-token", None) == (TOKEN if locked else None)
    assert foreign == (delivery or {})
    assert typed(encoded, "header")[2::2] == [ttl, count]
    assert encoded[scan(encoded).bare_offset :] == payload[scan(payload).bare_offset :]


FIELDS = {"message-id": 0, "to": 2, "subject": 3, "reply-to": 4, "correlation-id": 5}
FIELDS |= {"group-id": 10, "reply-to-group-id": 12}
ANNOTATIONS = ("x-opt-partition-key", "x-opt-via-partition-key")
NAMES = st.sampled_from(["a", "b", "c", "RuleName"])


@given(
    st.none() | st.dictionaries(NAMES, simple, max_size=4),
    st.none() | st.lists(st.none() | st.text(max_size=3), max_size=13),
    st.none() | st.dictionaries(st.sampled_from(ANNOTATIONS).map(Symbol), st.text(max_size=3), max_size=2),
    st.dictionaries(NAMES, simple, max_size=3),
    st.sets(NAMES, max_size=3),
    st.dictionaries(st.sampled_from(sorted(FIELDS)).map(Symbol), st.none() | st.text(max_size=3), max_size=4),
    st.dictionaries(st.sampled_from(ANNOTATIONS).map(Symbol), st.none() | st.text(max_size=3), max_size=2),
)
def test_an_overlay_changes_what_it_names_and_nothing_else(
    own: Any, fields: Any, annotations: Any, added: Any, removed: Any, named: Any, noted: Any
) -> None:
    """Req: P-02. Against plain maps and lists."""
    removed -= added.keys()
    payload = message_bytes(application_properties=own, properties=fields, annotations=annotations)
    overlay = {**added, **{name.encode(): None for name in removed}, **named, **noted}
    encoded = shown(payload, overlay=overlay)
    expected = {key: value for key, value in (own or {}).items() if key not in removed} | added
    assert (typed(encoded, "application_properties") or {}) == expected
    values = [*(fields or []), *[None] * (13 - len(fields or []))]
    for name, value in named.items():
        values[FIELDS[name]] = value
    found = typed(encoded, "properties") or []
    assert [*found, *[None] * (13 - len(found))] == values
    kept = {key: value for key, value in {**(annotations or {}), **noted}.items() if value is not None}
    shown_annotations = typed(encoded, "message_annotations")
    assert {key: shown_annotations[key] for key in ANNOTATIONS if key in shown_annotations} == kept
    assert encoded.endswith(section(0x75, b"hello"))


def test_what_stands_for_a_damaged_body_says_so_in_an_older_view_too() -> None:
    """The view was made before the body was read and found damaged."""
    message = stored(b"", number=1)
    message.overlay = with_reason(None, STORE_DAMAGED, "gone")
    view = MessageView(message, LockToken(TOKEN.bytes_le), UNTIL_MS, 0, None, MessageState.ACTIVE, None)
    encoded = encode_for_receiver(view, EMPTY_PAYLOAD)
    properties = scan(encoded).decode_application_properties()
    assert properties["DeadLetterReason"] == STORE_DAMAGED
