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
from peeklock.broker.message import MessageState, MessageView
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.gateway.inspection import inspect
from tests.gateway.playbook import TOKEN, message_bytes, section, stored

UNTIL_MS = 1_700_000_060_000
ENQUEUED_MS = 1_700_000_000_123


def shown(payload: bytes, **view: Any) -> bytes:
    """Encode a stored message for a receiver who holds its lock."""
    number = view.pop("number", 5)
    overlay = view.pop("overlay", None)
    options = {key: view.pop(key) for key in ("tag_only", "partitioned") if key in view}
    message = stored(payload, number=number)
    message.dead_letter_source = view.pop("dead_letter_source", None)
    message.overlay = None if overlay is None else encode(overlay)
    fields: dict[str, Any] = {
        "lock_token": TOKEN.bytes_le,
        "locked_until_ms": UNTIL_MS,
        "delivery_count": 0,
        "ttl_ms": None,
        "state": MessageState.ACTIVE,
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


def test_without_a_lock_there_is_neither_token_nor_locked_until() -> None:
    """Req: S-11, L-01. Peeked, and received with receive-and-delete though its delivery has a tag."""
    for token in (None, TOKEN.bytes_le):
        encoded = shown(message_bytes(), lock_token=token, locked_until_ms=0, tag_only=token is not None)
        assert typed(encoded, "delivery_annotations") is None
        assert "x-opt-locked-until" not in typed(encoded, "message_annotations")
        assert "x-opt-sequence-number" in typed(encoded, "message_annotations")


def test_a_message_of_a_session_shows_its_token_and_no_locked_until() -> None:
    """Req: G-02. Its lock is the session's. Source: wire contract 3.2, 3.4."""
    encoded = shown(message_bytes(), locked_until_ms=0)
    assert typed(encoded, "delivery_annotations") == {"x-opt-lock-token": TOKEN}
    assert "x-opt-locked-until" not in typed(encoded, "message_annotations")
    assert len(typed(encoded, "message_annotations")) == 4


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
        assert ("x-opt-locked-until" in found) == bool(token and until)
        assert "x-opt-partition-id" not in typed(shown(payload, number=number), "message_annotations")


def test_a_forwarded_dead_letter_names_the_entity_that_it_came_from() -> None:
    """Req: F-02. A string. Source: wire contract 3.2."""
    for source in ("orders", "o" * 260):
        found = typed(shown(message_bytes(), dead_letter_source=source), "message_annotations")
        assert found["x-opt-deadletter-source"] == source
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
    assert inspect(payload, False)
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
    inspect(payload, False)
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
