"""What a broker says of a message, read straight from the bytes, is what the codec says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.annotations import (
    CURSOR,
    ENQUEUED,
    KEY,
    NO_ANNOTATIONS,
    NUMBER,
    STATE,
    broker_annotations,
)
from peeklock.amqp.codec import DecodeError
from peeklock.amqp.message_writing import encode_message
from peeklock.amqp.messaging import Header, Properties, scan
from peeklock.amqp.types import Int, Long, Timestamp

_PLACES = {
    "x-opt-enqueued-time": ENQUEUED,
    "x-opt-sequence-number": NUMBER,
    "x-opt-message-state": STATE,
    "x-opt-partition-key": KEY,
    "x-opt-peeklock-cursor": CURSOR,
}
_LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
_OURS = st.fixed_dictionaries(
    {
        "x-opt-enqueued-time": st.builds(Timestamp, _LONGS),
        "x-opt-sequence-number": st.builds(Long, _LONGS),
        "x-opt-enqueue-sequence-number": st.builds(Long, _LONGS),
        "x-opt-message-state": st.builds(Int, st.integers(0, 2)),
    }
)
"""In the order of our broker; a small number has another encoding than ours."""
_FURTHER = st.fixed_dictionaries(
    {},
    optional={
        "x-opt-partition-key": st.text(max_size=300),
        "x-opt-of-a-sender": st.none() | _LONGS | st.text(max_size=9),
        "x-opt-peeklock-cursor": st.text(max_size=9),
    },
)


@st.composite
def drawn(draw: st.DrawFn) -> dict[str, Any]:
    """Make annotations in our order, or in any."""
    found = {**draw(_OURS), **draw(_FURTHER)}
    if draw(st.booleans()):
        return found
    kept = draw(st.sets(st.sampled_from([*found])))
    return {name: found[name] for name in draw(st.permutations(sorted(kept)))}


@given(drawn(), st.none() | st.builds(Header, ttl=st.integers(0, 9)), st.booleans())
def test_they_are_what_the_codec_says(
    given_ones: dict[str, Any], header: Header | None, has_delivery_annotations: bool
) -> None:
    payload = encode_message(
        header=header,
        delivery_annotations={"x": Int(1)} if has_delivery_annotations else None,
        message_annotations=given_ones,
        properties=Properties(message_id="m1"),
        data=b"body",
    )
    decoded = scan(payload).decode_message_annotations()
    for _ in range(2):  # the second time from what is cached
        found = broker_annotations(payload)
        assert {name: found[place] for name, place in _PLACES.items()} == {
            name: decoded.get(name) for name in _PLACES
        }


def test_a_message_without_any_has_none() -> None:
    assert broker_annotations(encode_message(data=b"")) == NO_ANNOTATIONS


@pytest.mark.parametrize("size", [1, 12, 40])
def test_a_truncated_message_is_an_error(size: int) -> None:
    payload = encode_message(
        header=Header(), message_annotations={"x-opt-sequence-number": Long(7)}, data=b""
    )
    with pytest.raises(DecodeError):
        broker_annotations(payload[:size])
