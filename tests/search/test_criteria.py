"""Searches judge encoded messages as a plain reading of all they have would."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.codec import DecodeError
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, scan
from peeklock.amqp.types import Long, Short, Symbol, Timestamp
from peeklock.broker.vocabulary.message import MessageState
from peeklock.search import Criteria, Peeked, Search, SearchError
from peeklock.search import json_path as paths


def message(
    number: int = 1,
    at_ms: int = 1_000,
    *,
    state: int | None = None,
    subject: str | None = None,
    session: str | None = None,
    properties: dict[str, Any] | None = None,
    **body: Any,
) -> bytes:
    """Return a message as a peek returns it."""
    annotations: dict[str, Any] = {
        "x-opt-sequence-number": Long(number),
        "x-opt-enqueued-time": Timestamp(at_ms),
    }
    if state is not None:
        annotations["x-opt-message-state"] = Short(state)
    return encode_message(
        header=Header(ttl=5000, delivery_count=2),
        message_annotations=annotations,
        properties=Properties(message_id="m1", subject=subject, group_id=session),
        application_properties=properties,
        **(body or {"data": b"one pizza"}),
    )


def matches(payload: bytes, **criteria: Any) -> bool:
    return Search.compile(Criteria(**criteria)).matches(Peeked(payload))


@pytest.mark.parametrize(
    ("criteria", "is_match"),
    [
        ({}, True),
        ({"from_number": 1, "to_number": 1}, True),
        ({"from_number": 2}, False),
        ({"to_number": 0}, False),
        ({"since_ms": 1000, "until_ms": 1001}, True),
        ({"since_ms": 1001}, False),
        ({"until_ms": 1000}, False),
        ({"state": MessageState.DEFERRED}, True),
        ({"state": MessageState.ACTIVE}, False),
        ({"session_id": "s1"}, True),
        ({"session_id": "s"}, False),
        ({"dead_letter_reason": "Bad"}, True),
        ({"dead_letter_reason": "bad"}, False),
        ({"filter": "sys.Label = 'pizza' AND Priority = 'high' AND n > 2"}, True),
        ({"filter": "sys.Label = 'pasta'"}, False),
        ({"filter": "sys.SequenceNumber = 1 AND sys.DeliveryCount = 2 AND sys.State = 1"}, True),
        ({"filter": "sys.MessageId = 'm1' AND sys.SessionId LIKE 's%'"}, True),
        ({"filter": "EXISTS(priority) AND NOT EXISTS(colour)"}, True),
        ({"filter": "colour = 'red'"}, False),
        ({"filter": "n / 0 = 1"}, False),
        ({"text": "one pizza"}, True),
        ({"text": "PIZZA"}, False),
        ({"text": "PIZZA", "ignore_case": True}, True),
        ({"regex": r"^one\s\w+$"}, True),
        ({"regex": "PIZZA"}, False),
        ({"regex": "PIZZA", "ignore_case": True}, True),
        ({"json_path": "$"}, False),
        ({"text": "pizza", "session_id": "s1", "filter": "n = 3"}, True),
        ({"text": "pizza", "session_id": "s1", "filter": "n = 4"}, False),
    ],
)
def test_each_criterion(criteria: dict[str, Any], is_match: bool) -> None:
    payload = message(
        state=1,
        subject="pizza",
        session="s1",
        properties={"priority": "high", "n": 3, "DeadLetterReason": "Bad", "none": None},
    )
    assert matches(payload, **criteria) is is_match


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"data": [b"one ", b"pizza"]}, "one pizza"),
        ({"value": "Größe"}, "GRÖSSE"),
        ({"value": b"bytes"}, "bytes"),
        ({"value": {"größe": [1, UUID(int=1)]}}, '{"größe": [1, "00000000'),
        ({"sequence": [1, "two"]}, '[1, "two"]'),
        ({"value": None}, ""),
    ],
)
def test_the_body_is_text_whatever_it_is_sent_as(body: dict[str, Any], text: str) -> None:
    assert matches(message(**body), text=text, ignore_case=True)


def test_a_body_of_amqp_values_has_json_paths() -> None:
    assert matches(message(value={"order": {"total": 101}}), json_path="$.order.total > 100")


def test_a_body_that_is_not_utf_8_is_searched_by_its_bytes() -> None:
    payload = message(data=b"\xff\xfeabc")
    assert matches(payload, text="abc")
    assert matches(payload, text="ABC", ignore_case=True)
    assert matches(payload, regex="^\ufffd\ufffdabc$")


def test_a_message_that_cannot_be_read_has_no_facts() -> None:
    assert matches(b"\x00\x53")
    for criteria in ({"from_number": 0}, {"filter": "sys.Label = 'x'"}, {"text": "x"}, {"json_path": "$"}):
        assert not matches(b"\x00\x53", **criteria)


@pytest.mark.parametrize(
    ("criteria", "position", "what"),
    [
        ({"filter": "a == 1"}, 3, "Expected a value after '=', found '='; one = compares"),
        ({"filter": ""}, None, "The filter is empty"),
        ({"filter": "a = newid()"}, 4, "newid() has no value in a search"),
        ({"regex": "a(b"}, 1, "missing ), unterminated subpattern"),
        ({"regex": "a{99999999999999}"}, None, "the expression has too large a number"),
        ({"json_path": "$.a = 1"}, 4, "== compares"),
    ],
)
def test_a_criterion_that_cannot_be_read_marks_the_place(
    criteria: dict[str, str], position: int | None, what: str
) -> None:
    with pytest.raises(SearchError) as raised:
        Search.compile(Criteria(**criteria))  # type: ignore[arg-type]  # wrong on purpose
    assert [raised.value.criterion] == list(criteria)
    assert raised.value.position == position
    assert what in raised.value.what
    assert "marked" not in str(raised.value)


def test_the_caret_stands_below_its_character_whatever_is_before_it() -> None:
    long = f"{'x' * 30} == 1"
    with pytest.raises(SearchError) as raised:
        Search.compile(Criteria(filter=long))
    _, line, caret = str(raised.value).split("\n")
    assert line[caret.index("^")] == "="
    assert max(len(line), len(caret)) <= 40
    with pytest.raises(SearchError) as raised:
        Search.compile(Criteria(regex="日本("))
    assert str(raised.value).endswith("\n  日本(\n      ^")


def test_matches_come_in_order_and_one_at_a_time() -> None:
    asked = []

    def messages() -> Any:
        for number in range(5):
            asked.append(number)
            yield message(number)

    found = Search.compile(Criteria(from_number=2)).among(messages())
    assert next(found).sequence_number == 2
    assert asked == [0, 1, 2]


# Against a plain reading

TEXTS = st.sampled_from(["", "a", "b", "ab", "A", "\u212a", "k", "ß", "SS"])
BODIES = (
    st.sampled_from(
        [b"", b"ab", b"\xff", b'{"a": 1}', b'{"a": {"b": "ab"}}', b"[1, 2]", b'"AB"', "\u212aß".encode()]
    ).map(lambda data: {"data": data})
    | TEXTS.map(lambda value: {"value": value})
    | st.dictionaries(TEXTS, st.integers(0, 2), max_size=2).map(lambda value: {"value": value})
)
PROPERTIES = st.dictionaries(
    st.sampled_from(["a", "B", "DeadLetterReason"]), TEXTS | st.integers(0, 2) | st.none()
)
MESSAGES = st.builds(
    lambda number, at_ms, state, subject, session, properties, body: message(
        number, at_ms, state=state, subject=subject, session=session, properties=properties, **body
    ),
    st.integers(0, 3),
    st.integers(0, 3),
    st.none() | st.integers(0, 2),
    st.none() | TEXTS,
    st.none() | TEXTS,
    PROPERTIES,
    BODIES,
)
NUMBERS = st.none() | st.integers(0, 3)
FILTERS = st.sampled_from(["a = 'ab'", "a > 0", "b IS NULL", "sys.Label = 'a'", "sys.SequenceNumber >= 2"])
CRITERIA = st.builds(
    Criteria,
    from_number=NUMBERS,
    to_number=NUMBERS,
    since_ms=NUMBERS,
    until_ms=NUMBERS,
    state=st.none() | st.sampled_from(MessageState),
    session_id=st.none() | TEXTS,
    dead_letter_reason=st.none() | TEXTS,
    filter=st.none() | FILTERS,
    text=st.none() | TEXTS,
    regex=st.none() | st.sampled_from(["a", "^$", "b$", "[0-9]"]),
    ignore_case=st.booleans(),
    json_path=st.none() | st.sampled_from(["$", "$.a", "$.a == 1", "$..b == 'ab'", "$[*] > 1"]),
)


def naive(payload: bytes, given: Criteria) -> bool:
    """Return whether a message matches, by decoding all of it and asking all."""
    sections = scan(payload)
    annotations = sections.decode_message_annotations()
    fields = sections.decode_properties()
    properties = sections.decode_application_properties()
    number = annotations[Symbol("x-opt-sequence-number")]
    at_ms = annotations[Symbol("x-opt-enqueued-time")]
    state = annotations.get(Symbol("x-opt-message-state"), 0)
    [(_, value)] = sections.decode_body()
    raw = value if isinstance(value, bytes) else str(value).encode()
    if isinstance(value, dict):
        raw = json.dumps(value, ensure_ascii=False).encode()
    text = raw.decode("utf-8", "replace")
    by_name = {name.lower(): each for name, each in properties.items()}
    a, b = by_name.get("a"), by_name.get("b")
    filters = {
        "a = 'ab'": a == "ab",
        "a > 0": isinstance(a, int) and a > 0,
        "b IS NULL": b is None,
        "sys.Label = 'a'": fields.subject == "a",
        "sys.SequenceNumber >= 2": number >= 2,
    }
    wanted = given.text or ""
    try:
        document, is_json = json.loads(raw), True
    except ValueError:
        document, is_json = None, False
    fold = str.casefold if given.ignore_case else str
    return all(
        (
            given.from_number is None or number >= given.from_number,
            given.to_number is None or number <= given.to_number,
            given.since_ms is None or at_ms >= given.since_ms,
            given.until_ms is None or at_ms < given.until_ms,
            given.state is None or state == given.state,
            given.session_id is None or fields.group_id == given.session_id,
            given.dead_letter_reason is None
            or properties.get("DeadLetterReason") == given.dead_letter_reason,
            given.filter is None or filters[given.filter],
            fold(wanted) in fold(text),
            re.search(given.regex or "", text, re.IGNORECASE if given.ignore_case else 0),
            given.json_path is None or (is_json and paths.parse(given.json_path).matches(document)),
        )
    )


@given(MESSAGES, CRITERIA)
def test_a_search_finds_what_a_plain_reading_finds(payload: bytes, criteria: Criteria) -> None:
    assert Search.compile(criteria).matches(Peeked(payload)) is bool(naive(payload, criteria))


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-130, 130),
    st.text(max_size=300),
    st.floats(allow_nan=False),
    st.builds(Timestamp, st.integers(0, 1 << 41)),
    st.binary(max_size=5),
)


@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=5), st.integers(-9, 9), st.integers(0, 255))
def test_application_properties_are_what_the_codec_says(
    found: dict[str, Any], place: int, value: int
) -> None:
    payload = message(properties=found)
    assert Peeked(payload).application_properties == scan(payload).decode_application_properties()
    damaged = bytearray(payload)
    damaged[scan(payload).body_offset - 10 + place] = value
    try:
        expected = scan(bytes(damaged)).decode_application_properties()
    except DecodeError:
        expected = {}
    assert repr(Peeked(bytes(damaged)).application_properties) == repr(expected)


@given(st.lists(st.none() | st.text(max_size=260), min_size=13, max_size=13), st.booleans())
def test_a_field_of_the_properties_is_what_the_codec_says(fields: list[str | None], has_id: bool) -> None:
    given_ones = Properties(*fields)  # type: ignore[arg-type]  # of any type
    given_ones.user_id = given_ones.creation_time = given_ones.absolute_expiry_time = None
    given_ones.group_sequence = given_ones.content_type = given_ones.content_encoding = None
    given_ones.message_id = UUID(int=1) if has_id else given_ones.message_id
    payload = encode_message(properties=given_ones, data=b"")
    names = [field.name for field in dataclasses.fields(Properties)]
    decoded = scan(payload).decode_properties()
    assert [Peeked(payload).property_at(place) for place in range(13)] == [
        getattr(decoded, name) for name in names
    ]


@given(st.binary(max_size=60), CRITERIA)
def test_any_bytes_are_judged_without_an_error(payload: bytes, criteria: Criteria) -> None:
    Search.compile(criteria).matches(Peeked(payload))
