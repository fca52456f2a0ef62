"""Messages of an answer, taken from its bytes, are what the codec decodes."""

from __future__ import annotations

import uuid
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from peeklock.amqp.codec import DecodeError, decode
from peeklock.amqp.encoding import encode
from peeklock.amqp.types import Encoded
from peeklock.client.found import found_messages
from peeklock.client.management import Response
from peeklock.gateway.nodes.management import encode_found

VALUE = b"\x00\x53\x77"


def _messages_of(sizes: st.SearchStrategy[int]) -> st.SearchStrategy[list[bytes]]:
    return st.lists(sizes.map(lambda size: (bytes(range(256)) * 20)[:size]), max_size=30)


_usual = _messages_of(st.integers(20, 243) | st.integers(256, 300) | st.just(5000))
_messages = _messages_of(st.integers(0, 30) | st.integers(225, 290))


def long_form(message: bytes) -> Encoded:
    """Return the element of a broker that writes all sizes in four bytes."""
    pair = encode("message") + b"\xb0" + len(message).to_bytes(4, "big") + message
    return Encoded(b"\xd1" + (len(pair) + 4).to_bytes(4, "big") + (2).to_bytes(4, "big") + pair)


_elements = st.one_of(
    _messages.map(lambda found: [encode_found(message, None) for message in found]),
    _messages.map(lambda found: [*map(long_form, found)]),
    st.lists(
        st.sampled_from(
            [
                encode_found(b"x", None),
                encode_found(b"x" * 300, None),
                encode_found(b"x" * 300, uuid.UUID(int=5).bytes),  # type: ignore[arg-type]  # a lock token
                {"message": "text"},
                {"message": b"x", "more": None},
                {"messages": b"x"},
                {},
                None,
            ]
        ),
        max_size=5,
    ),
)
_bodies: st.SearchStrategy[Any] = st.one_of(
    st.fixed_dictionaries({"messages": _elements}),
    st.fixed_dictionaries({"messages": _elements, "more": _elements}),
    st.sampled_from([{}, {"messages": None}, {"expirations": []}, [], None, "messages", 7]),
)


def by_the_codec(encoded: bytes) -> Any:
    """Return the body of an answer, None if it is damaged."""
    try:
        return decode(encoded)[0]
    except DecodeError:
        return None


@given(_usual)
def test_messages_of_a_broker_are_found(messages: list[bytes]) -> None:
    for element in (lambda message: encode_found(message, None)), long_form:
        encoded = encode({"messages": [*map(element, messages)]})
        assert decode(encoded)[0] == {"messages": [{"message": message} for message in messages]}
        assert found_messages(b"before" + VALUE + encoded, 6) == messages


@given(_bodies, st.data())
@example({"messages": [{"message": b"x" * 300}]}, None)
def test_an_answer_is_what_the_codec_decodes_damaged_or_not(body: Any, data: st.DataObject | None) -> None:
    encoded = encode(body)
    if data is not None and encoded and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(encoded) - 1) | st.integers(0, min(40, len(encoded) - 1)))
        byte = bytes((data.draw(st.integers(0, 255)),))
        encoded = encoded[:place] + data.draw(st.sampled_from([byte, b""])) + encoded[place + 1 :]
    found = found_messages(VALUE + encoded, 0)
    if found is not None:
        decoded = by_the_codec(encoded)
        assert Response(200, found).body == decoded
        assert Response(200, decoded).messages == found


def test_another_section_is_left_to_the_codec() -> None:
    encoded = encode({"messages": [encode_found(b"x" * 300, None)]})
    assert found_messages(b"\x00\x53\x76" + encoded, 0) is None
    assert found_messages(b"", 0) is None


def test_an_answer_without_messages_has_none() -> None:
    assert Response(204, {}).messages == []
    assert Response(200, {"messages": None}).messages == []
    assert Response(200, []).body == {"messages": []}
