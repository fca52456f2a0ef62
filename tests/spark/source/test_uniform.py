"""Messages of one layout, read at once, are what they are when each is read alone: any, in any order."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties
from peeklock.amqp.types import (
    Array,
    Byte,
    Char,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from peeklock.broker.content.overlay import merged, with_scheduled_time
from peeklock.broker.vocabulary.message import MessageState, MessageView
from peeklock.gateway.annotations import encode_for_receiver
from peeklock.spark.source import columns, layout, uniform
from peeklock.spark.source.schema import row_schema
from tests.gateway.harness import stored

pytestmark = pytest.mark.spark

FIELDS = [field for field in row_schema() if field.name != "entity"]

Rows = dict[str, pa.Array] | str


def one_by_one(payloads: Sequence[bytes]) -> Rows:
    return outcome(lambda: columns.arrays_of(payloads, FIELDS))


def at_once(payloads: Sequence[bytes]) -> Rows:
    return outcome(lambda: uniform.arrays_of(payloads, FIELDS, rows_min=2))


def outcome(read: Callable[[], dict[str, pa.Array]]) -> Rows:
    """Return the columns, or an error: with its text, unless it is of Arrow, which checks by columns."""
    try:
        return read()
    except DecodeError as error:
        return str(error)
    except (pa.ArrowException, OverflowError):
        return "a value that no column can have"


def assert_same(payloads: Sequence[bytes]) -> None:
    expected, found = one_by_one(payloads), at_once(payloads)
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected
        return
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        found[name].validate(full=True)
        assert found[name].equals(column), f"{name}: {found[name]} is not {column}"


# Of each place in a message: values of the same width, of other widths, of other types.

_ids = st.sampled_from(
    [
        None,
        "id-1",
        "id-2",
        "id-10",
        "",
        "grüß",
        "x" * 300,
        uuid.UUID(int=5),
        uuid.UUID(int=6),
        ULong(9),
        b"\1",
    ]
)
_texts = st.sampled_from([None, "a", "b", "", "long", "lang", "größe", "x" * 300])
_symbols = st.sampled_from([None, "a", "b", "long", "x" * 300])
_values = st.sampled_from(
    [
        None, True, False, "text", "test", "größe", "x" * 300, b"\xff\0", b"ab", b"x" * 300, 1.5, Float(0.5),
        Byte(-1), Short(3), Int(7), Int(8), Int(1000), Long(3), Long(1 << 40), UByte(3), UShort(9),
        UInt(0), UInt(5), UInt(1 << 20), ULong(0), ULong(5), ULong(1 << 63), Char("c"), Symbol("sym"),
        Timestamp(1_500), Timestamp(-1 << 60), uuid.UUID(int=5), [1, "a"], {"k": 1}, Array(Int, [Int(1)]),
        Described(Symbol("d"), "x"),
    ]
)  # fmt: skip
_numbers = st.sampled_from([1, 2, 3, 1 << 20, (1 << 48) + 5])
_times = st.sampled_from([0, 1, 1_700_000_000_000, 253_402_300_800_000, -(1 << 47), 1 << 62, -(1 << 63)])
_bodies: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"data": b"body"}, {"data": b"BODY"}, {"data": b""}, {"data": b"b" * 300}, {"data": b"B" * 301},
        {"data": [b"one", b"two"]}, {"value": "text"}, {"value": None}, {"value": b"b" * 300},
        {"value": Int(7)}, {"sequence": [1, 2]},
        {"data": b"body", "footer": {Symbol("f"): 1}},
    ]
)  # fmt: skip


@st.composite
def properties(draw: st.DrawFn) -> Properties | None:
    if draw(st.booleans()):
        return Properties(message_id=draw(_ids))
    return draw(
        st.none()
        | st.builds(
            Properties,
            message_id=_ids,
            user_id=st.sampled_from([None, b"u", b"v"]),
            to=_texts,
            subject=_texts,
            reply_to=_texts,
            correlation_id=_ids,
            content_type=_symbols,
            content_encoding=_symbols,
            absolute_expiry_time=st.none() | _times,
            creation_time=st.none() | _times,
            group_id=_texts,
            group_sequence=st.sampled_from([None, 0, 7]),
            reply_to_group_id=_texts,
        )
    )


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Make a message as our broker shows it, or as another one may."""
    few = st.dictionaries(st.sampled_from(["k", "n", "DeadLetterReason", "größe"]), _values, max_size=3)
    sent: dict[str, Any] = {
        "properties": draw(properties()),
        "application_properties": draw(st.none() | few),
        **draw(_bodies),
    }
    annotations = {
        "x-opt-partition-key": draw(_texts | _values),
        "x-opt-scheduled-enqueue-time": draw(st.none() | st.builds(Timestamp, _times)),
        "x-opt-of-a-sender": draw(_values),
    }
    kept = {name: value for name, value in annotations.items() if value is not None and draw(st.booleans())}
    number, deliveries = draw(_numbers), draw(st.sampled_from([0, 1, 2, 300]))
    ttl_ms = draw(st.sampled_from([None, 0, 5, 1000, 2000, 0xFFFFFFFE, 0xFFFFFFFF]))
    state = draw(st.sampled_from(MessageState))
    if draw(st.booleans()):
        payload = encode_message(message_annotations=kept, **sent)
        message = stored(payload, number=number)
        message.dead_letter_source = draw(st.none() | st.just("elsewhere"))
        overlay = draw(
            st.sampled_from(
                [
                    None,
                    None,
                    merged(None, {"DeadLetterReason": "why", "k": Int(5)}),
                    with_scheduled_time(None, 1_700_000_000_000),
                ]
            )
        )
        cursor = draw(st.sampled_from([None, None, "spark", "größe"]))
        view = MessageView(message, None, 0, deliveries, ttl_ms, state, overlay, cursor=cursor)
        return encode_for_receiver(view, payload, partitioned=draw(st.booleans()))
    own: dict[str, Any] = {
        "x-opt-sequence-number": draw(st.just(Long(number)) | _values),
        "x-opt-enqueued-time": Timestamp(draw(_times)),
        "x-opt-message-state": draw(st.sampled_from([Int(int(state)), Int(-1), Long(1), UInt(0), None])),
    }
    mixed = dict(draw(st.permutations([*own.items(), *kept.items()])))
    header = draw(st.none() | st.just(Header(ttl=ttl_ms, delivery_count=deliveries, priority=4)))
    delivery = draw(st.sampled_from([None, {"x-opt-lock-token": uuid.UUID(int=number)}]))
    return encode_message(header=header, delivery_annotations=delivery, message_annotations=mixed, **sent)


@st.composite
def variants(draw: st.DrawFn, payload: bytes) -> bytes:
    """Make a message with the layout of another one, or nearly: with other values, another body, damage."""
    found = layout.layout_of(payload)
    kind = draw(st.integers(0, 9))
    changed = bytearray(payload)
    if found is not None and kind < 7:
        open_bits = [place for place, bits in enumerate(found.mask) if bits != 0xFF]
        for place in draw(st.lists(st.sampled_from(open_bits), max_size=6)) if open_bits else ():
            byte = draw(st.integers(0, 255))
            changed[place] = (
                byte if kind == 0 else byte & ~found.mask[place] | changed[place] & found.mask[place]
            )
        if found.size is not None:
            body = draw(st.binary(max_size=9)) if draw(st.booleans()) else payload[len(found.mask) :]
            start, width = found.size
            size = len(body) if kind else draw(st.integers(0, 9))
            changed[start:] = size.to_bytes(4, "big")[4 - width :] + body
    elif kind < 9:
        for _ in range(draw(st.integers(1, 2))):
            changed[draw(st.integers(0, min(len(payload), 250) - 1))] = draw(st.integers(0, 255))
    else:
        del changed[draw(st.integers(0, len(payload))) :]
    return bytes(changed)


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Make messages of some layouts, and variants of each, in any order."""
    payloads = []
    for payload in draw(st.lists(messages(), min_size=1, max_size=3)):
        payloads += [payload, *draw(st.lists(variants(payload), max_size=4))]
    return draw(st.permutations(payloads))


@given(batches())
def test_messages_read_at_once_are_what_each_is_alone(payloads: list[bytes]) -> None:
    assert_same(payloads)


@given(messages(), st.data())
def test_messages_of_one_layout_need_no_reading_of_each(payload: bytes, data: st.DataObject) -> None:
    """Whatever the open bits are, a message with the other bits is read at once, as it is alone."""
    found = layout.layout_of(payload)
    if found is None or (found.size is not None and found.size[1] == 1):
        return
    size = len(payload) - len(found.mask)
    other = bytes(
        byte & bits | data.draw(st.integers(0, 255)) & ~bits & 0xFF
        for byte, bits in zip(payload, found.mask, strict=False)
    )
    if found.size is not None:
        other = other[: found.size[0]] + size.to_bytes(4, "big")
    other += payload[len(found.mask) :]
    groups, others = uniform._alike([payload, other], 2)
    assert ([group.rows.tolist() for group in groups], others) == ([[0, 1]], [])
    assert_same([payload, other])


def shown(number: int, **sent: Any) -> bytes:
    """Return a message as a peek shows it."""
    payload = encode_message(**sent)
    view = MessageView(stored(payload, number=number), None, 0, 0, None, MessageState.ACTIVE, None)
    return encode_for_receiver(view, payload)


def usual(number: int) -> bytes:
    return shown(
        number,
        message_annotations={"x-opt-partition-key": f"key-{number % 10}"},
        properties=Properties(message_id=f"{number:032x}", creation_time=number),
        application_properties={"tenant": number % 100},
        data=b"x" * (number % 7),
    )


def test_a_batch_of_one_layout_is_read_at_once_and_two_layouts_keep_their_order() -> None:
    payloads = [usual(number) for number in range(1, 601)]
    assert sizes(payloads) == ([600], [])
    payloads[::3] = [shown(number, data=b"other") for number in range(200)]
    assert sizes(payloads) == ([200, 400], [])
    assert_same(payloads)


def test_layouts_that_few_messages_have_are_not_tried_for_long() -> None:
    odd = [shown(number, properties=Properties(subject="s" * number), data=b"") for number in range(1, 200)]
    assert sizes(odd) == ([], [*range(199)])
    payloads = [odd[0], *[usual(number) for number in range(1, 500)], *odd]
    assert sizes(payloads) == ([499], [0, *range(500, 699)])
    assert_same(payloads)


def test_more_layouts_than_are_used() -> None:
    count = uniform.LAYOUTS_MAX + 2
    payloads = [
        shown(number, properties=Properties(subject="s" * (number % count)), data=b"")
        for number in range(200 * count)
    ]
    groups, others = sizes(payloads)
    assert (groups, len(others)) == ([200] * uniform.LAYOUTS_MAX, 400)
    assert_same(payloads)


def sizes(payloads: Sequence[bytes]) -> tuple[list[int], list[int]]:
    """Return how many messages are read at once, of each layout, and the places of the others."""
    groups, others = uniform._alike(payloads, 160)
    return sorted(len(group.rows) for group in groups), others


def test_a_message_that_is_cut_short_is_the_same_error() -> None:
    payloads = [usual(number) for number in range(1, 300)]
    payloads[150] = payloads[150][:-1] if payloads[150][-1:] == b"x" else payloads[150][:-9]
    payloads[200] = payloads[200][:70]
    expected = one_by_one(payloads)
    assert isinstance(expected, str)
    assert at_once(payloads) == expected
