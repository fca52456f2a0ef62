"""What makes a message unacceptable, and what of it the broker gets to know."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.encoding import encode
from peeklock.amqp.messaging import Sections, iter_batch, scan
from peeklock.amqp.types import Symbol, Timestamp, UInt, ULong
from peeklock.broker.content.routing import read_routing
from peeklock.broker.content.subject import without_body
from peeklock.broker.vocabulary.addresses import LockToken
from peeklock.broker.vocabulary.descriptions import UNLIMITED_MS
from peeklock.broker.vocabulary.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    InvalidOperation,
    MessageSizeExceeded,
)
from peeklock.broker.vocabulary.message import Message, MessageView, Routing
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.gateway.errors import MessageMalformed
from peeklock.gateway.inspection import (
    BATCH_MESSAGES_MAX,
    PROPERTIES_BYTES_MAX,
    PROPERTY_BYTES_MAX,
    BatchReader,
    take_in,
)
from peeklock.gateway.rewriting import INSTANT_MS_MAX
from tests.gateway.harness import TOKEN, everything, message_bytes, section

SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
PARTITION_KEY = Symbol("x-opt-partition-key")
VIA_PARTITION_KEY = Symbol("x-opt-via-partition-key")
GROUP = [None] * 10


def inspect(payload: bytes, reads_routing: bool) -> Message:
    return take_in(payload, reads_routing)[0]


def taken(payload: bytes, reads_routing: bool = False) -> tuple[Message, bytes]:
    """Take a message in, and look once more where the sections are of what is kept."""
    message, sections = take_in(payload, reads_routing)
    assert everything(sections) == everything(scan(sections.payload))
    assert message.bare_offset == sections.bare_offset
    return message, sections.payload


def inspect_batch(payload: bytes, reads_routing: bool, count: int = 7) -> list[tuple[Message, Sections]]:
    """Read a batch in slices."""
    reader = BatchReader(iter_batch(payload), reads_routing)
    while reader.read(count):
        pass
    return reader.messages


def test_a_plain_message_is_its_size_and_nothing_else() -> None:
    message = inspect(message_bytes(properties=["id"]), False)
    assert (message.size_bytes, message.bare_offset) == (len(message_bytes(properties=["id"])), 0)
    assert (message.ttl_ms, message.scheduled_at_ms, message.routing) == (None, None, None)


@pytest.mark.parametrize(("ttl", "expected"), [(UInt(0), 0), (UInt(15_000), 15_000), (None, None)])
def test_the_time_to_live_is_read(ttl: Any, expected: int | None) -> None:
    """Req: E-01."""
    payload = message_bytes(header=[True, None, ttl])
    message = inspect(payload, False)
    assert message.ttl_ms == expected
    assert payload[message.bare_offset :] == message_bytes()


@pytest.mark.parametrize(
    ("created", "expires", "expected"),
    [
        (0, 90 * 86_400_000, 90 * 86_400_000),
        (1_000, 922_337_203_685_477, 922_337_203_684_477),
        (-(2**63), 2**63 - 1, UNLIMITED_MS),
        (0, 1_000, 0xFFFFFFFF),
        (None, 90 * 86_400_000, 0xFFFFFFFF),
        (0, None, 0xFFFFFFFF),
    ],
)
def test_a_ttl_beyond_49_days_is_told_by_the_two_times(
    created: int | None, expires: int | None, expected: int
) -> None:
    """Req: E-06. Source: wire contract 3.2, ExpiresAt."""
    times = [None if at is None else Timestamp(at) for at in (expires, created)]
    payload = message_bytes(header=[None, None, UInt(0xFFFFFFFF)], properties=[None] * 8 + times)
    assert inspect(payload, False).ttl_ms == expected


def test_the_absolute_expiry_time_alone_is_ignored() -> None:
    """Source: wire contract 3.2."""
    payload = message_bytes(
        header=[None, None, UInt(5)], properties=[None] * 8 + [Timestamp(9), Timestamp(1)]
    )
    assert inspect(payload, False).ttl_ms == 5
    assert inspect(message_bytes(properties=[None] * 8 + [Timestamp(9), Timestamp(1)]), False).ttl_ms is None


def test_the_scheduled_enqueue_time_is_read_under_a_symbol_or_a_string() -> None:
    """Req: S-05."""
    for key in (SCHEDULED, str(SCHEDULED)):
        assert inspect(message_bytes(annotations={key: Timestamp(7)}), False).scheduled_at_ms == 7


def message_id(payload: bytes) -> bytes | None:
    """Read a message id as an entity that routes by it does."""
    routing = inspect(payload, True).routing
    assert routing is not None
    return routing.message_id


def test_the_message_id_is_read_only_where_it_is_needed_and_equal_ids_are_equal_bytes() -> None:
    """Req: D-01."""
    text = message_bytes(properties=["same"])
    wide = (
        section(0x73, 0)[:3]
        + b"\xd0\x00\x00\x00\x0d\x00\x00\x00\x01\xb1\x00\x00\x00\x04same"
        + message_bytes()
    )
    assert inspect(text, False).routing is None
    assert message_id(text) == message_id(wide) == encode("same")
    assert message_id(message_bytes(properties=[uuid.UUID(int=5)])) == encode(uuid.UUID(int=5))
    long = section(0x73, 0)[:3] + b"\xc0\x0a\x01\x80" + (5).to_bytes(8, "big") + message_bytes()
    assert message_id(long) == message_id(message_bytes(properties=[ULong(5)])) == encode(ULong(5))
    assert message_id(message_bytes(properties=[ULong(2**64 - 1)])) == encode(ULong(2**64 - 1))
    assert message_id(message_bytes(properties=[None])) is None
    assert message_id(message_bytes(properties=[])) is None
    assert message_id(message_bytes()) is None


FILLED = [None, b"user", "to", "subject", "reply", uuid.UUID(int=3), Symbol("a/b"), None, Timestamp(1), 9]


@pytest.mark.parametrize("between", [GROUP[1:], FILLED[1:]])
@pytest.mark.parametrize("first", ["id", None])
@pytest.mark.parametrize("group", ["", "s", "é" * 128, None])
@pytest.mark.parametrize("key", [None, "", "s"])
def test_routing_is_message_id_session_id_and_partition_key(
    between: list[Any], first: str | None, group: str | None, key: str | None
) -> None:
    """Req: G-01, S-02. Whatever stands between them; the empty text is a session id, null is none.

    Beside the empty one any partition key is right. Source: wire contract C11.
    """
    payload = message_bytes(
        properties=[first, *between, group, UInt(7), "reply-group"],
        annotations=None if key is None else {PARTITION_KEY: key},
    )
    if key is not None and group and group != key:
        with pytest.raises(InvalidOperation):
            inspect(payload, True)
        return
    expected = Routing(None if first is None else encode(first), group, key)
    assert inspect(payload, True).routing == expected
    assert inspect_batch(section(0x75, payload), True)[0][0].routing == expected
    assert read_routing(without_body(payload)) == expected


@pytest.mark.parametrize(
    "descriptor", [b"\x00\x80" + bytes(7) + b"\x73", b"\x00\xa3\x14amqp:properties:list"]
)
def test_routing_is_read_from_any_form_of_the_section(descriptor: bytes) -> None:
    wide = b"\xb1\x00\x00\x00\x01s"
    fields = b"\xa1\x02id" + b"\x40" * 9 + wide
    for body in (
        b"\xc0" + bytes([len(fields) + 1, 11]) + fields,
        b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + (11).to_bytes(4, "big") + fields,
    ):
        payload = descriptor + body + message_bytes()
        assert (
            read_routing(without_body(payload))
            == inspect(payload, True).routing
            == Routing(encode("id"), "s", None)
        )


@pytest.mark.parametrize("group", [7, b"s", Symbol("s"), uuid.UUID(int=1), ["s"]])
def test_a_session_id_that_is_no_string_is_refused_where_it_decides(group: Any) -> None:
    """Req: G-01, R-05. Stored where nothing depended on it, it counts as absent."""
    payload = message_bytes(properties=["id", *GROUP[1:], group])
    with pytest.raises(ArgumentInvalid):
        inspect(payload, True)
    assert inspect(payload, False).routing is None
    assert read_routing(without_body(payload)) == Routing()


@pytest.mark.parametrize(
    "payload", [b"", b"no message", section(0x73, [None] * 14), section(0x72, {"x": 1})[:-1]]
)
def test_what_cannot_be_read_of_a_stored_message_counts_as_absent(payload: bytes) -> None:
    assert read_routing(without_body(payload)) == Routing()


def test_a_lying_count_of_properties_is_malformed() -> None:
    """Req: R-05. The fields end before the section does, or reach beyond it."""
    for size, count, fields in ((5, 11, b"\xa1\x02id"), (3, 1, b"\xa1\xff"), (2, 11, b"\x40"), (1, 13, b"")):
        payload = b"\x00\x53\x73\xc0" + bytes([size, count]) + fields
        for rest in (message_bytes(), message_bytes(b"x" * 300), b""):
            with pytest.raises(MessageMalformed):
                inspect(payload + rest, True)
            assert read_routing(without_body(payload + rest)) == Routing()


@pytest.mark.parametrize("value", ["m" * 128, "é" * 128, b"b" * 128, uuid.UUID(int=1), ULong(2**63)])
def test_ids_up_to_the_limit_are_taken(value: Any) -> None:
    """Req: R-05. 128 characters, not bytes. Source: wire contract 3.3."""
    inspect(message_bytes(properties=[value]), False)
    if isinstance(value, str):
        inspect(message_bytes(properties=[*GROUP, value]), False)
        inspect(message_bytes(annotations={PARTITION_KEY: value}), False)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (message_bytes(properties=["m" * 129]), ArgumentInvalid),
        (message_bytes(properties=[b"m" * 129]), ArgumentInvalid),
        (message_bytes(properties=["é" * 129]), ArgumentInvalid),
        (message_bytes(properties=["m" * 128, *GROUP[1:], "g" * 129]), ArgumentInvalid),
        (message_bytes(properties=[*GROUP, "g" * 129]), ArgumentInvalid),
        (message_bytes(annotations={PARTITION_KEY: "p" * 129}), ArgumentInvalid),
        (message_bytes(annotations={PARTITION_KEY: 7}), ArgumentInvalid),
        (message_bytes(annotations={PARTITION_KEY: b"p" * 129}), ArgumentInvalid),
        (message_bytes(annotations={PARTITION_KEY: b"\xff"}), ArgumentInvalid),
        (message_bytes(annotations={VIA_PARTITION_KEY: "v" * 129}), ArgumentInvalid),
        (message_bytes(annotations={VIA_PARTITION_KEY: b"\xc3"}), ArgumentInvalid),
        (message_bytes(annotations={VIA_PARTITION_KEY: 7}), ArgumentInvalid),
        (message_bytes(annotations={SCHEDULED: "soon"}), ArgumentInvalid),
        (message_bytes(annotations={SCHEDULED: True}), ArgumentInvalid),
        (message_bytes(annotations={SCHEDULED: Timestamp(INSTANT_MS_MAX + 1)}), ArgumentOutOfRange),
        (message_bytes(annotations={SCHEDULED: ULong(2**64 - 1)}), ArgumentOutOfRange),
        (message_bytes(annotations={PARTITION_KEY: "p"}, properties=[*GROUP, "g"]), InvalidOperation),
        (message_bytes(annotations={PARTITION_KEY: b"p"}, properties=[*GROUP, "g"]), InvalidOperation),
        (message_bytes(application_properties={"k": "v" * PROPERTIES_BYTES_MAX}), InvalidOperation),
        (b"hello", MessageMalformed),
        (message_bytes()[:-1], MessageMalformed),
        (message_bytes() + b"\x00", MessageMalformed),
        (message_bytes() + section(0x73, ["late"]), MessageMalformed),
        (message_bytes() + b"\x00\x53\x78\xc1\x04\x02\xa3\x05k", MessageMalformed),
        (message_bytes() + b"\x00\x53\x78\xc1\x06\x02\xc0\x02\x01\x40\x40", MessageMalformed),  # a list
        (section(0x75, b"a") + section(0x77, 1), MessageMalformed),
        (section(0x79, b"a"), MessageMalformed),
        (message_bytes(header=[None, None, "soon"]), MessageMalformed),
        (message_bytes(header=[None, None, -1]), MessageMalformed),
        (message_bytes(header=[None, None, ULong(2**32)]), MessageMalformed),
        (message_bytes(header=["x" * 80]), MessageMalformed),
        (message_bytes(annotations={PARTITION_KEY: "p"}, properties=[None] * 14), MessageMalformed),
    ],
)
def test_what_breaks_a_rule_is_refused(payload: bytes, error: type[Exception]) -> None:
    """Req: R-05, T-03. Source: wire contract 3.3."""
    for reads_routing in (False, True):
        with pytest.raises(error):
            inspect(payload, reads_routing)
    if error is not MessageMalformed:
        inspect(message_bytes(), False)
        batch = section(0x75, message_bytes()) + section(0x75, payload)
        with pytest.raises(error):
            inspect_batch(batch, False)


@pytest.mark.parametrize("payload", [b"", section(0x73, ["only properties"])])
def test_a_message_without_a_body_is_taken(payload: bytes) -> None:
    """Req: T-11. The official Python client sends no body section for an empty value."""
    assert inspect(payload, False).size_bytes == len(payload)


@pytest.mark.parametrize("header", [None, [True]])
def test_delivery_annotations_behind_the_body_are_put_in_their_place(header: list[Any] | None) -> None:
    """Req: T-11. The official Python client writes them last."""
    annotations = section(0x71, {Symbol("x"): "y"})
    good = message_bytes(header=header, properties=["id"])
    message, kept = taken(good + annotations)
    assert scan(kept).decode_delivery_annotations() == {"x": "y"}
    assert kept[message.bare_offset :] == good[len(good) - len(kept) + message.bare_offset :]
    assert inspect_batch(section(0x75, good + annotations), False)[0][1].payload == kept
    with pytest.raises(MessageMalformed):
        take_in(annotations + good + annotations, False)


def test_a_footer_before_the_body_is_put_in_its_place() -> None:
    """Req: T-11. rhea, and so the official JavaScript client, writes it there."""
    head, footer = section(0x73, ["id"]), section(0x78, {Symbol("x"): "y"})
    for body in (section(0x77, 1), section(0x75, b"a") + section(0x75, b"b")):
        message, kept = taken(head + footer + body)
        assert kept == head + body + footer
        assert message.size_bytes == len(kept)
    with pytest.raises(MessageMalformed):
        take_in(footer + head + section(0x77, 1) + footer, False)


KEYED = {0x71: "delivery annotations", 0x72: "message annotations", 0x78: "footer"}


@pytest.mark.parametrize("code", KEYED, ids=KEYED.values())
def test_keys_that_are_strings_become_symbols_and_nothing_else_moves(code: int) -> None:
    """Req: T-11. Source: wire contract C5: the official Java client sends strings and reads only symbols."""
    values = {"x-opt-a": "x-opt-b", "l" * 300: {"inner": "text"}, "": None, Symbol("s"): "t", ULong(5): 6}
    symbols = {Symbol(key) if type(key) is str else key: value for key, value in values.items()}
    own = {"keys": "of application properties", "stay": "strings"}

    def message(pairs: dict[Any, Any]) -> bytes:
        rest = message_bytes(properties=["id"], application_properties=own)
        return rest + section(code, pairs) if code == 0x78 else section(code, pairs) + rest

    record, kept = taken(message(values))
    assert kept == message(symbols)
    assert record.size_bytes == len(kept)
    assert inspect_batch(section(0x75, message(values)), True)[0][1].payload == kept
    assert taken(kept)[1] is kept


def test_a_key_that_no_symbol_can_be_stays_a_string() -> None:
    """Our choice: a symbol is ASCII."""
    payload = message_bytes() + section(0x78, {"é": 1, "e": 2})
    assert taken(payload)[1] == message_bytes() + section(0x78, {"é": 1, Symbol("e"): 2})


def test_a_footer_may_be_as_large_as_the_properties() -> None:
    """Req: R-05. At the limit, and one past it."""
    rest = PROPERTIES_BYTES_MAX - len(section(0x78, {Symbol("k"): "v" * 1000}))
    fits = {Symbol("k"): "v" * (1000 + rest)}
    assert len(section(0x78, fits)) == PROPERTIES_BYTES_MAX
    inspect(message_bytes() + section(0x78, fits), False)
    with pytest.raises(InvalidOperation, match="The footer takes 65537 bytes; the limit is 65536"):
        inspect(message_bytes() + section(0x78, {Symbol("k"): "v" * (1001 + rest)}), False)


@pytest.mark.parametrize("key", [b"key", "Zürich".encode(), b"p" * 128, b""])
def test_a_partition_key_may_be_binary_that_holds_utf_8(key: bytes) -> None:
    """Req: T-11, S-02. As the official Python client sends a received message again. Source: contract C6."""
    payload = message_bytes(annotations={PARTITION_KEY: key, VIA_PARTITION_KEY: key}, properties=["id"])
    message, kept = taken(payload, True)
    assert kept is payload  # it comes back as it was sent
    assert (
        message.routing
        == read_routing(without_body(payload))
        == Routing(encode("id"), None, key.decode(), key.decode())
    )
    inspect(message_bytes(annotations={PARTITION_KEY: b"g"}, properties=[*GROUP, "g"]), False)


def test_partition_key_and_session_id_may_be_equal() -> None:
    """Source: wire contract 3.3."""
    inspect(message_bytes(annotations={PARTITION_KEY: "g"}, properties=[*GROUP, "g"]), False)


def test_properties_may_be_as_large_as_the_limit() -> None:
    """Req: R-05. At the limit, and one past it."""
    two = {"k": "v" * 30_000, "l": "v" * 30_000}
    rest = PROPERTIES_BYTES_MAX - len(section(0x74, {**two, "m": "v" * 1000}))
    fits = {**two, "m": "v" * (1000 + rest)}
    assert len(section(0x74, fits)) == PROPERTIES_BYTES_MAX
    inspect(message_bytes(application_properties=fits), False)
    with pytest.raises(InvalidOperation, match="header and properties take 65537 bytes"):
        inspect(message_bytes(application_properties={**two, "m": fits["m"] + "v"}), False)


@pytest.mark.parametrize(
    ("fits", "one_more"),
    [
        ("v" * PROPERTY_BYTES_MAX, "v" * (PROPERTY_BYTES_MAX + 1)),
        (b"v" * PROPERTY_BYTES_MAX, b"v" * (PROPERTY_BYTES_MAX + 1)),
        ("é" * (PROPERTY_BYTES_MAX // 2), "é" * (PROPERTY_BYTES_MAX // 2) + "v"),
        (Symbol("v" * PROPERTY_BYTES_MAX), Symbol("v" * (PROPERTY_BYTES_MAX + 1))),
    ],
)
def test_one_property_may_be_as_large_as_its_limit(fits: object, one_more: object) -> None:
    """Req: R-05. Also within a batch."""
    assert PROPERTY_BYTES_MAX == 32 * 1024
    others = {f"k{n}": "v" for n in range(10)}
    good = message_bytes(application_properties={**others, "large": fits, "after": 1})
    bad = message_bytes(application_properties={**others, "large": one_more, "after": 1})
    assert inspect(good, False).size_bytes == len(good)
    for routed in (False, True):
        with pytest.raises(InvalidOperation, match="property 'large' has 32769 bytes; the limit is 32768"):
            take_in(bad, routed)
        with pytest.raises(InvalidOperation, match="'large'"):
            inspect_batch(section(0x75, message_bytes()) + section(0x75, bad), routed)


def test_many_small_properties_may_have_more_than_one_may() -> None:
    """Req: R-05."""
    small = {f"property-{n}": "v" * 100 for n in range(500)}
    inspect(message_bytes(application_properties=small), False)


def test_large_properties_that_are_no_map_are_malformed() -> None:
    """Req: R-05."""
    payload = section(0x74, ["v" * PROPERTY_BYTES_MAX]) + section(0x77, 1)
    with pytest.raises(MessageMalformed):
        inspect(payload, False)


def test_a_batch_is_its_members_in_order() -> None:
    """Req: T-07. Source: wire contract 3.7: the envelope's other sections are only hints."""
    members = [message_bytes(b"a"), message_bytes("b", properties=["id"], header=[None, None, UInt(3)])]
    envelope = section(0x72, {PARTITION_KEY: "hint"}) + section(0x73, ["hint"])
    found = inspect_batch(envelope + b"".join(section(0x75, member) for member in members), True)
    assert [sections.payload for _, sections in found] == members
    assert [message.routing for message, _ in found] == [Routing(), Routing(encode("id"))]
    assert [message.ttl_ms for message, _ in found] == [None, 3]


def test_a_batch_is_read_in_slices() -> None:
    """Req: R-05"""
    for count in (25, 20):
        reader = BatchReader(iter_batch(section(0x75, message_bytes()) * count), False)
        found = [(reader.read(10), len(reader.messages)) for _ in range(3)]
        assert found == [(True, 10), (True, 20), (False, count)]


def test_a_slice_of_large_messages_has_fewer() -> None:
    """Req: R-05"""
    members = [message_bytes(b"x" * size) for size in (40_000, 40_000, 1, 70_000, 1)]
    reader = BatchReader(iter_batch(b"".join(section(0x75, member) for member in members)), False)
    found = [(reader.read(10), len(reader.messages)) for _ in range(3)]
    assert found == [(True, 2), (True, 4), (False, 5)]


def test_a_batch_has_as_many_messages_as_the_service_takes() -> None:
    """Req: T-07. Source: Azure/azure-service-bus issue 397."""
    part = section(0x75, message_bytes())
    assert len(inspect_batch(part * BATCH_MESSAGES_MAX, False, 1000)) == BATCH_MESSAGES_MAX == 4500
    reader = BatchReader(iter_batch(part * 100_000), False)
    for _ in range(4):
        assert reader.read(1000)
    with pytest.raises(MessageSizeExceeded, match="more than 4500 messages in one batch: send"):
        reader.read(1000)
    assert len(reader.messages) == 4000  # and no further


@pytest.mark.parametrize("payload", [b"", b"x", section(0x77, "value"), section(0x75, b"no message")])
def test_a_batch_of_anything_else_is_malformed(payload: bytes) -> None:
    """Req: T-07."""
    with pytest.raises(MessageMalformed):
        inspect_batch(payload, False)


@given(st.binary(max_size=12), st.integers(0, 200), st.integers(0, 12))
def test_garbage_gives_only_refusals_and_what_is_taken_can_be_shown(
    garbage: bytes, at: int, cut: int
) -> None:
    """Req: R-05. A message that is accepted but could not be encoded would stop its receiver for ever."""
    good = message_bytes(
        header=[True, None, UInt(3)],
        delivery_annotations={Symbol("x"): "y"},
        annotations={PARTITION_KEY: "p"},
        properties=["id", *GROUP[1:], "p"],
        application_properties={"k": 1},
    )
    at %= len(good)
    payload = good[:at] + garbage + good[at + cut :]
    for read in (inspect, inspect_batch):
        with contextlib.suppress(MessageMalformed, ArgumentInvalid, InvalidOperation):
            read(payload, True)
    read_routing(without_body(payload))
    with contextlib.suppress(MessageMalformed, ArgumentInvalid, InvalidOperation):
        message = inspect(payload, False)
        view = MessageView(message, LockToken(TOKEN.bytes_le), 1, 0, message.ttl_ms, message.state, None)
        scan(encode_for_receiver(view, payload))
